"""The code samples of the documents that describe the system (seeds), line by line, in Python's spelling.

    000, 001  5.1  class Producer: send(ProducerData), send(List<ProducerData>), close()
    000, 001  5.1  interface Encoder: toMessage(data)
    000, 001  5.1  interface Partitioner: partition(key, numPartitions)
    000, 001  5.1  class SimpleConsumer: fetch(FetchRequest), multifetch(List<FetchRequest>), getOffsetsBefore
    000, 001  5.1  Consumer.create(config); interface ConsumerConnector: createMessageStreams,
                   createMessageStreamsByFilter, commitOffsets, shutdown
    000, 001  5.4  the message format (also 5.5, on disk): offset, length, crc, magic, attributes, …
    000, 001  5.6  the znodes /brokers/ids, /brokers/topics, /consumers/[group]/ids, offsets, owners
    003       3    samples of a producer and a consumer, of which the document keeps the sentences only: a set
                   of messages in one publish request; streams, whose iterator blocks until messages come
    000, 001  5.5  MessageSetSend, MultiMessageSetSend: no bytes of today's protocol; the iterables are tested

The rules of 5.6 (registration, rebalancing) have tests in test_client_older_shapes.py. Every sample runs on a
broker of Ottla and on Apache Kafka 3.9.1.
"""

from __future__ import annotations

import asyncio
import json
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from kazoo.client import KazooClient

from ottla.client import RequestClient
from ottla.client.errors import ClientError, OffsetOutOfRangeError
from ottla.client.legacy import (
    BuiltFetchRequest,
    ByteBufferMessageSet,
    Consumer,
    ConsumerConfig,
    ConsumerConnector,
    FetchRequest,
    FetchRequestBuilder,
    KafkaStream,
    Message,
    MessageSet,
    MultiFetchResponse,
    OffsetRequest,
    Producer,
    ProducerData,
    SimpleConsumer,
    StringDecoder,
    Whitelist,
)
from ottla.local.processes import free_port
from ottla.protocol import messages as m
from ottla.testing import DevBroker
from tests.judges.brokers_082 import Brokers082, Side, wait_for
from tests.judges.clients_082 import needs_jars_082
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(300)
SIDES = ("Ottla", "Apache Kafka")
ACKED = {"request.required.acks": "-1"}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers082]:
    needs_kafka_jars()
    needs_jars_082()
    with ExitStack() as running:
        made = Brokers082(tmp_path_factory.mktemp("brokers"), running)
        for topic in ("sent", "formats", "streamed", "published"):
            made.make_topic(topic, 2, everywhere=True)
        yield made


@pytest.fixture(params=SIDES)
def side(brokers: Brokers082, request: pytest.FixtureRequest) -> Side:
    return brokers.sides[request.param]


def payloads(messages: ByteBufferMessageSet) -> list[bytes | None]:
    return [each.message.payload for each in messages]


def all_of(side: Side, topic: str) -> list[list[bytes | None]]:
    with SimpleConsumer("127.0.0.1", side.port) as consumer:
        return [payloads(consumer.fetch(FetchRequest(topic, n, 0, 1 << 20))) for n in (0, 1)]


def by_broker_list(side: Side) -> dict[str, object]:
    return {"broker.list": f"0:127.0.0.1:{side.port}", **ACKED}


class UpperCase:
    """interface Encoder<T> { public Message toMessage(T data); }"""

    def to_message(self, data: str) -> Message:
        return Message(data.upper().encode())


class ByLength:
    """interface Partitioner<T> { int partition(T key, int numPartitions); }"""

    def partition(self, key: str, num_partitions: int) -> int:
        return len(key) % num_partitions


def test_the_producer_its_encoder_and_its_partitioner(brokers: Brokers082, side: Side) -> None:
    config = {**by_broker_list(side), "serializer.class": UpperCase, "partitioner.class": ByLength}
    with Producer(config) as producer:
        # Sends the data, partitioned by key to the topic using the synchronous or the asynchronous producer
        producer.send(ProducerData("sent", "ab", ["even"]))
        producer.send(ProducerData("sent", "a", "odd"))
        # Sends a list of data, partitioned by key to the topic
        producer.send([ProducerData("sent", "a", ["one", "two"]), ProducerData("sent", "abcd", ["three"])])
        # Closes the producer and cleans up
        producer.close()
    assert all_of(side, "sent") == [[b"EVEN", b"THREE"], [b"ODD", b"ONE", b"TWO"]]
    if side is brokers.ours:
        reported = brokers.clients.do("fetch", side.port, "sent", 1, 0)
        assert reported.split(" ")[2] == "0=ODD,1=ONE,2=TWO", "as Kafka 0.8.2's SimpleConsumer reads it"
    with SimpleConsumer("127.0.0.1", side.port) as consumer:
        (first, *_) = consumer.fetch(FetchRequest("sent", 1, 0, 1 << 20))
        assert first.message.key is None, "as in 0.7, the key chooses the partition and is not sent"

    with Producer({**config, "producer.type": "async", "queue.time": "50"}) as producer:
        producer.send([ProducerData("sent", "ab", ["late"]), ProducerData("sent", "ab", ["later"])])
    assert all_of(side, "sent")[0] == [b"EVEN", b"THREE", b"LATE", b"LATER"]


def test_a_message_set_is_published_and_read(brokers: Brokers082, side: Side) -> None:
    """003: "For efficiency, the producer can send a set of messages in a single publish request"."""
    with Producer({"zk.connect": side.zookeeper, **ACKED}) as producer:
        message = Message(b"test message str")
        messages = MessageSet(message, Message(b"keyed", b"k", 1_000))
        producer.send("published", messages)
    with SimpleConsumer("127.0.0.1", side.port) as consumer:
        found = [each for n in (0, 1) for each in consumer.fetch(FetchRequest("published", n, 0, 1 << 20))]
    assert {each.message.payload for each in found} == {b"test message str", b"keyed"}
    assert [each.message for each in found if each.message.key] == [Message(b"keyed", b"k", 1_000)]


def test_the_simple_consumer(brokers: Brokers082, side: Side) -> None:
    topic = "formats"
    with Producer({**by_broker_list(side), "partitioner.class": lambda key, partitions: key % 2}) as producer:
        for n in range(10):
            producer.send(ProducerData(topic, n, b"%d" % n))
    with SimpleConsumer("127.0.0.1", side.port, 30_000, 64 * 1024) as simple_consumer:
        # Send fetch request to a broker and get back a set of messages.
        byte_buffer_message_set = simple_consumer.fetch(FetchRequest(topic, 0, 0, 1 << 20))
        assert isinstance(byte_buffer_message_set, ByteBufferMessageSet)
        assert payloads(byte_buffer_message_set) == [b"0", b"2", b"4", b"6", b"8"]
        assert [(each.offset, each.next_offset) for each in byte_buffer_message_set][-1] == (4, 5)
        # Send a list of fetch requests to a broker and get back a response set.
        fetches = [
            FetchRequest(topic, 1, 3, 1 << 20),
            FetchRequest(topic, 0, 4, 1 << 20),
            FetchRequest(topic, 1, 4, 9),
        ]
        multi_fetch_response = simple_consumer.multifetch(fetches)
        assert isinstance(multi_fetch_response, MultiFetchResponse)
        assert [payloads(each) for each in multi_fetch_response] == [[b"7", b"9"], [b"8"], [b"9"]]
        # Get a list of valid offsets (up to maxSize) before the given time, in descending order.
        assert simple_consumer.get_offsets_before(topic, 0, OffsetRequest.LATEST_TIME, 2) == [5, 0]
        assert simple_consumer.get_offsets_before(topic, 0, OffsetRequest.EARLIEST_TIME, 2) == [0]
        # "a non-existent offset: it is given an OutOfRangeException and can either reset itself or
        # fail" (5.5)
        beyond = simple_consumer.fetch(FetchRequest(topic, 0, 99, 1 << 20))
        with pytest.raises(OffsetOutOfRangeError, match="formats-0"):
            list(beyond)


def test_the_message_format_is_that_of_the_document(brokers: Brokers082, side: Side) -> None:
    """5.4 and 5.5: by Fetch 0, whose messages have magic 0, and Fetch 2, with magic 1 and a timestamp."""
    with Producer(by_broker_list(side)) as producer:
        producer.send("formats", [Message(b"value", b"key", 1_234)])

    async def fetched(version: int) -> list[bytes]:
        async with RequestClient(bootstrap_servers=f"127.0.0.1:{side.port}") as client:
            part = m.FetchRequest.FetchPartition
            rows = [part(partition=n, fetch_offset=0, partition_max_bytes=1 << 20) for n in (0, 1)]
            topic = m.FetchRequest.FetchTopic(topic="formats", partitions=rows)
            response = await client.request(m.FetchRequest(replica_id=-1, topics=[topic]), version=version)
            return [bytes(each.records or b"") for each in response.responses[0].partitions]

    for version, magic in ((0, 0), (2, 1)):
        entries = [entry for data in asyncio.run(fetched(version)) for entry in log_entries(data)]
        (found,) = [entry for entry in entries if entry["key"] == b"key"]
        assert found["magic"] == magic
        assert found["value"] == b"value"
        assert found["attributes"] & 0b111 == 0, "no compression"
        assert found["timestamp"] == (1_234 if magic else None)


def log_entries(data: bytes) -> Iterator[dict[str, Any]]:
    """As the document has it: offset 8, length 4, crc 4, magic 1, attributes 1, timestamp 8 if magic > 0,
    key length 4, key, value length 4, value."""
    position = 0
    while position + 12 <= len(data):
        offset, length = struct.unpack_from(">qi", data, position)
        if position + 12 + length > len(data):
            return  # a partial message ends the buffer, as the document says of reads
        entry = data[position + 12 : position + 12 + length]
        crc, magic, attributes = struct.unpack_from(">IBB", entry)
        assert crc == zlib.crc32(entry[4:])
        at = 6
        timestamp = None
        if magic > 0:
            (timestamp,) = struct.unpack_from(">q", entry, at)
            at += 8
        fields = []
        for _ in ("key", "value"):
            (size,) = struct.unpack_from(">i", entry, at)
            fields.append(None if size < 0 else entry[at + 4 : at + 4 + size])
            at += 4 + max(size, 0)
        assert length == at, "4 + 1 + 1 + 8(if magic value > 0) + 4 + K + 4 + V"
        yield {
            "offset": offset, "magic": magic, "attributes": attributes, "timestamp": timestamp,
            "key": fields[0], "value": fields[1],
        }  # fmt: skip
        position += 12 + length


class Released:
    """ConsumerRebalanceListener."""

    def __init__(self, connector: ConsumerConnector) -> None:
        self.connector = connector
        self.seen: list[dict[str, set[int]]] = []

    def before_releasing_partitions(self, partition_ownership: Mapping[str, set[int]]) -> None:
        self.seen.append(dict(partition_ownership))
        self.connector.commit_offsets()


@pytest.mark.parametrize("coordinator", ["zookeeper", "group protocol"])
def test_the_consumer_connector(brokers: Brokers082, side: Side, coordinator: str) -> None:
    """With streams whose iterators block until there are new messages (003), and 5.6's znodes."""
    topic, group = "streamed", f"samples-{coordinator[:3]}"
    where: dict[str, object] = {"zk.connect": side.zookeeper}
    if coordinator != "zookeeper":
        where = {"bootstrap.servers": f"127.0.0.1:{side.port}"}
    settings = {
        **where, "groupid": group, "auto.offset.reset": "smallest", "auto.commit.enable": "false",
        "rebalance.backoff.ms": "300", "zk.sessiontimeout.ms": "30000", "consumer.id": "one",
    }  # fmt: skip
    consumer_config = ConsumerConfig.of(settings)
    # create a connection to the cluster
    with Consumer.create(consumer_config) as connector:
        listener = Released(connector)
        connector.set_consumer_rebalance_listener(listener)
        # get a list of KafkaStreams: a map of <topic, #streams> to a map of <topic, list of message streams>
        streams: dict[str, list[KafkaStream]] = connector.create_message_streams(
            {topic: 1}, None, StringDecoder()
        )
        read: list[str] = []

        def read_stream() -> None:
            for each in streams[topic][0]:
                read.append(each.message)  # noqa: PERF401 - looked at meanwhile

        reader = threading.Thread(target=read_stream, daemon=True)
        reader.start()
        with Producer(
            {**by_broker_list(side), "partitioner.class": lambda key, partitions: key % 2}
        ) as producer:
            before = sum(map(len, all_of(side, topic)))
            for n in range(4):
                producer.send(ProducerData(topic, n, b"%d" % (before + n)))
        wait_for(lambda: len(read) == before + 4, "all messages", lambda: read)
        if coordinator == "zookeeper":
            check_znodes(side, topic, group)
        # Commit the offsets of all messages consumed so far.
        connector.commit_offsets()
        # a list of KafkaStreams, that iterate over messages from topics that match a TopicFilter
        with Consumer.create({**settings, "consumer.id": "two"}) as second:
            filtered = second.create_message_streams_by_filter(
                Whitelist("stream.*"), 1, None, StringDecoder()
            )
            assert len(filtered) == 1
            wait_for(lambda: {topic: {0, 1}} in listener.seen, "the listener", lambda: listener.seen)
        # Shut down the connector
        connector.shutdown()
    reader.join(60)
    assert not reader.is_alive()
    assert sorted(map(int, read)) == list(range(before + 4))


def check_znodes(side: Side, topic: str, group: str) -> None:
    """Those of 5.6, with the fields that the document names."""
    tree = KazooClient(side.zookeeper)
    tree.start(timeout=60)
    try:

        def fields(path: str) -> set[str]:
            return set(json.loads(tree.get(path)[0]))

        named = {"jmx_port", "timestamp", "endpoints", "host", "version", "port"}
        assert named <= fields("/brokers/ids/0")
        state = {"controller_epoch", "leader", "version", "leader_epoch", "isr"}
        assert fields(f"/brokers/topics/{topic}/partitions/0/state") == state
        (consumer,) = tree.get_children(f"/consumers/{group}/ids")
        registered = {"version", "subscription", "pattern", "timestamp"}
        assert fields(f"/consumers/{group}/ids/{consumer}") == registered
        owner, stat = tree.get(f"/consumers/{group}/owners/{topic}/0")
        assert owner.decode() == f"{consumer}-0"
        assert stat.ephemeralOwner
    finally:
        tree.stop()
        tree.close()


# --- what goes with the samples ---


def test_a_request_has_the_client_id_of_its_builder() -> None:
    """As a broker sees it, which counts the fetches of each id."""

    def built(builder: FetchRequestBuilder) -> BuiltFetchRequest:
        return builder.add_fetch("read", 0, 0, 1 << 20).build()

    with DevBroker() as broker, SimpleConsumer("127.0.0.1", broker.port, client_id="own") as consumer:
        broker.create_topic("read")
        own = broker.delay("FETCH", 0, client_id="own")
        other = broker.delay("FETCH", 0, client_id="other")
        assert not consumer.fetch(built(FetchRequestBuilder())).has_error
        assert (own.hits, other.hits) == (1, 0)
        assert not consumer.fetch(built(FetchRequestBuilder().client_id("other"))).has_error
        assert (own.hits, other.hits) == (1, 1)
        given = [built(FetchRequestBuilder().client_id(each)) for each in ("other", "own", "other")]
        assert len(consumer.multifetch(given)) == 3
        assert (own.hits, other.hits) == (2, 3)


def test_a_producer_fails_at_once_when_zookeeper_has_no_brokers(brokers: Brokers082) -> None:
    with pytest.raises(ClientError, match="no broker with a PLAINTEXT listener is registered in ZooKeeper"):
        Producer({"zk.connect": f"{brokers.ours.zookeeper}/absent"})
    with pytest.raises(ClientError, match="no ZooKeeper at zookeeper"):
        Producer({"zk.connect": f"127.0.0.1:{free_port()}", "zk.connectiontimeout.ms": "300"})
