"""Our SimpleConsumer, 0.8 Producer and ConsumerConnector: beside Kafka 0.8.2's own classes, with messages of
today's clients, and in one group in ZooKeeper with consumers of Kafka 0.8.2."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from clients_082 import needs_jars_082
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer
from judges import needs_kafka_jars
from kafka import KafkaConsumer
from old_world import Side, World, wait_for

from ottla.client.core.types import TopicPartition
from ottla.client.legacy import (
    EARLIEST_TIME,
    LATEST_TIME,
    ConsumerConnector,
    FailedToSendMessageError,
    FetchRequestBuilder,
    KafkaStream,
    KeyedMessage,
    OffsetRequest,
    Producer,
    SimpleConsumer,
    StringDecoder,
)
from ottla.protocol.errors import ErrorCode

pytestmark = pytest.mark.timeout(300)
IN_ZOOKEEPER = {
    "auto.offset.reset": "smallest",
    "rebalance.backoff.ms": "300",
    "rebalance.max.retries": "100",
    "zookeeper.session.timeout.ms": "4000",
    "zookeeper.connection.timeout.ms": "60000",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    needs_kafka_jars()
    needs_jars_082()
    with ExitStack() as running:
        yield World(tmp_path_factory.mktemp("world"), running)


def produce(port: int, topic: str, first: int, count: int, partitions: int = 1, **settings: object) -> None:
    """By a client of today; number n goes to partition n % partitions."""
    given = {key.replace("_", "."): value for key, value in settings.items()}
    producer = ConfluentProducer({"bootstrap.servers": f"127.0.0.1:{port}", **given})
    for number in range(first, first + count):
        producer.produce(
            topic, b"%d" % number, b"k%d" % (number % 10), partition=number % partitions, headers={"h": b"1"}
        )
    assert producer.flush(60) == 0


class Reader:
    """Threads that read a connector's streams."""

    def __init__(self, streams: list[KafkaStream]) -> None:
        self.seen: list[tuple[str, int, int, str]] = []
        self.problems: list[Exception] = []
        self._threads = [threading.Thread(target=self._read, args=(each,), daemon=True) for each in streams]
        for thread in self._threads:
            thread.start()

    def _read(self, stream: KafkaStream) -> None:
        try:
            for each in stream:
                self.seen.append((each.topic, each.partition, each.offset, each.message))
        except Exception as problem:
            self.problems.append(problem)

    def ended(self) -> bool:
        for thread in self._threads:
            thread.join(30)
        return not self.problems and not any(thread.is_alive() for thread in self._threads)

    @property
    def values(self) -> list[int]:
        return [int(value) for *_, value in list(self.seen)]


def connected(side: Side, group: str, **settings: object) -> ConsumerConnector:
    given = {key.replace("_", "."): value for key, value in settings.items()}
    return ConsumerConnector(
        {**IN_ZOOKEEPER, "zookeeper.connect": side.zookeeper, "group.id": group, **given}
    )


# --- SimpleConsumer ---


def test_a_simple_consumer_is_told_what_kafkas_own_is_told(world: World) -> None:
    """By both brokers. What they convert for Java's may be cut off at the size of what it was made of."""
    topic = "simple"
    world.make_topic(topic, partitions=2, everywhere=True)
    for side in world.sides.values():
        for number, codec in enumerate(("none", "gzip", "snappy", "lz4")):
            produce(side.port, topic, 10 * number, 10, 2, compression_type=codec)
        with SimpleConsumer("127.0.0.1", side.port, client_id="simple") as consumer:
            for partition in (0, 7):
                for when, most in ((LATEST_TIME, 5), (EARLIEST_TIME, 5), (LATEST_TIME, 0), (0, 5)):
                    ours = consumer.get_offsets(OffsetRequest({(topic, partition): (when, most)}))
                    told = world.clients.do("before", side.port, topic, partition, when, most)
                    offsets = ",".join(map(str, ours.offsets(topic, partition)))
                    assert f"{int(ours.error_code(topic, partition))} {offsets}" == told
                for offset in (0, 3, 20, 21):
                    request = FetchRequestBuilder().add_fetch(topic, partition, offset, 1 << 20).build()
                    found = consumer.fetch(request)
                    records = [
                        f"{each.offset}={(each.message.payload or b'').decode()}"
                        for each in found.message_set(topic, partition)
                    ]
                    told = world.clients.do("fetch", side.port, topic, partition, offset)
                    error, high_watermark, listed = told.split(" ")
                    # It gives out a compressed set whole, from before the offset on.
                    of_java = [each for each in listed.split(",") if each and _offset(each) >= offset]
                    assert records[: len(of_java)] == of_java, (partition, offset)
                    assert records == ([f"{n}={2 * n}" for n in range(offset, 20)] if partition == 0 else [])
                    assert bool(of_java) == bool(records)
                    assert found.error_code(topic, partition) == int(error)
                    assert found.high_watermark(topic, partition) == int(high_watermark)
            assert consumer.commit_offsets("old", {(topic, 0): (4, "meta")}, version_id=0) == {
                TopicPartition(topic, 0): ErrorCode.NONE
            }
            assert world.clients.do("kept", 0, side.port, "old", topic, 0).startswith("0 4")
            kept = consumer.fetch_offsets("old", [(topic, 0)], version_id=0)
            assert kept[TopicPartition(topic, 0)].offset == 4
            metadata = consumer.topic_metadata([topic])
            (of_topic,) = metadata.topics
            assert [each.leader for each in of_topic.partitions] == [next(iter(metadata.brokers))] * 2
            assert metadata.brokers[of_topic.partitions[0].leader].port == side.port


def _offset(listed: str) -> int:
    return int(listed.partition("=")[0])


def test_many_fetches_go_at_once_and_a_lost_connection_is_made_again(world: World) -> None:
    topic = "many"
    world.make_topic(topic, partitions=3)
    produce(world.ours.port, topic, 0, 30, 3, compression_type="zstd")
    with SimpleConsumer("127.0.0.1", world.ours.port) as consumer:
        requests = [FetchRequestBuilder().add_fetch(topic, p, p, 1 << 20).build() for p in (0, 1, 2, 1)]
        offsets = [
            [each.offset for each in response.message_set(topic, partition)]
            for partition, response in zip((0, 1, 2, 1), consumer.multifetch(requests), strict=True)
        ]
        assert offsets == [list(range(p, 10)) for p in (0, 1, 2, 1)]
        assert consumer.get_offsets_before(topic, 0, LATEST_TIME) == [10]
        world.broker.kill()
        world.broker.start_and_wait()
        # It is asked before it has heard what it leads: that is an answer, too.
        asked = OffsetRequest({(topic, 0): (EARLIEST_TIME, 1)})
        wait_for(lambda: not consumer.get_offsets(asked).has_error, "a leader")
        assert consumer.earliest_or_latest_offset((topic, 0), EARLIEST_TIME) == 0


# --- the Producer ---


def read_by_confluent(port: int, topic: str, count: int) -> list[tuple[int, bytes | None, bytes]]:
    consumer = ConfluentConsumer(
        {"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "any", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found = []
    until = time.monotonic() + 60
    while len(found) < count and time.monotonic() < until:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.append((message.partition(), message.key(), message.value()))
    consumer.close()
    return found


@pytest.mark.parametrize(("kind", "codec"), [("sync", "gzip"), ("async", "snappy"), ("async", "lz4")])
def test_clients_of_today_read_what_the_producer_sends(world: World, kind: str, codec: str) -> None:
    topic = f"sent-{kind}-{codec}"
    world.make_topic(topic, partitions=4, everywhere=True)
    for side in world.sides.values():
        with Producer(
            {
                "metadata.broker.list": f"127.0.0.1:{side.port}", "producer.type": kind,
                "request.required.acks": "-1", "compression.codec": codec, "queue.buffering.max.ms": "100",
                "serializer.class": "kafka.serializer.StringEncoder",
            }
        ) as producer:  # fmt: skip
            for first in range(0, 600, 100):
                producer.send(
                    *(KeyedMessage(topic, str(n), key=f"key-{n % 7}") for n in range(first, first + 100))
                )
        found = read_by_confluent(side.port, topic, 600)
        assert sorted(int(value) for *_, value in found) == list(range(600))
        by_key = {key: [int(v) for _, k, v in found if k == key] for key in {key for _, key, _ in found}}
        assert all(values == sorted(values) for values in by_key.values()), "in order, key by key"
        assert all(len({partition for partition, k, _ in found if k == key}) == 1 for key in by_key)
    if codec != "gzip":
        return  # kafka-python has no other one here
    reader = KafkaConsumer(
        topic, bootstrap_servers=f"127.0.0.1:{world.ours.port}", auto_offset_reset="earliest",
        consumer_timeout_ms=15_000,
    )  # fmt: skip
    read = [next(reader) for _ in range(600)]
    reader.close()
    assert sorted(int(record.value) for record in read) == list(range(600))


def test_messages_that_cannot_be_delivered_are_named(world: World) -> None:
    world.make_topic("known", partitions=1)
    with Producer(
        metadata_broker_list=f"127.0.0.1:{world.ours.port}", request_required_acks=1, request_timeout_ms=200,
        message_send_max_retries=1,
    ) as producer:  # fmt: skip
        lost = KeyedMessage("unknown", b"lost", key=b"k")
        with pytest.raises(FailedToSendMessageError, match="1 of 3 messages") as failure:
            producer.send(KeyedMessage("known", b"a"), lost, KeyedMessage("known", b"b"))
        assert [message for message, _ in failure.value.failed] == [lost]
    assert [value for *_, value in read_by_confluent(world.ours.port, "known", 2)] == [b"a", b"b"]


# --- the ConsumerConnector ---


def test_kafkas_consumers_and_ours_are_one_group(world: World) -> None:
    """As they come, go and are killed, each message reaches one of them, once."""
    clients, topic, group = world.clients, "shared", "mixed"
    world.make_topic(topic, partitions=5)
    owner = f"/consumers/{group}/owners/{topic}"

    def wait_for_owners(*expected: str) -> None:
        found: Callable[[], list[str | None]] = lambda: [world.node(f"{owner}/{p}") for p in range(5)]  # noqa: E731
        wait_for(lambda: found() == [f"{group}_{name}" for name in expected], f"owners {expected}", found)

    clients.start("j", group, f"topic:{topic}", world.ours.zookeeper, "rebalance.backoff.ms=300")
    clients.allow("j", 100_000)
    wait_for_owners(*["j-0"] * 5)
    with connected(world.ours, group, consumer_id="o") as ours:
        reader = Reader(ours.create_message_streams({topic: 2}, value_decoder=StringDecoder())[topic])
        wait_for_owners("j-0", "j-0", "o-0", "o-0", "o-1")

        node = {name: world.node(f"/consumers/{group}/ids/{group}_{name}") or "" for name in "jo"}
        assert re.sub(r"\d{13}", "T", node["j"]) == re.sub(r"\d{13}", "T", node["o"]).replace(":2}", ":1}")
        assert ours.consumer_id == f"{group}_o"
        _, stat = world.tree.get(f"{owner}/4")
        assert stat.ephemeralOwner != 0

        produce(world.ours.port, topic, 0, 100, 5)
        everything = lambda: Counter(reader.values + clients.values("j"))  # noqa: E731
        wait_for(lambda: len(everything()) == 100, "all to both", everything)
        assert {partition for _, partition, *_ in reader.seen} == {2, 3, 4}

        # A third is killed: its session ends, and so do its nodes.
        command = [
            sys.executable, str(Path(__file__).with_name("older_reader.py")), topic, "1",
            f"zookeeper.connect={world.ours.zookeeper}", f"group.id={group}", "consumer.id=z",
            *(f"{key}={value}" for key, value in IN_ZOOKEEPER.items()),
        ]  # fmt: skip
        log = (world.directory / "third.log").open("wb")
        third = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        try:
            wait_for_owners("j-0", "j-0", "o-0", "o-1", "z-0")
        finally:
            third.kill()
            third.communicate()
            log.close()
        wait_for_owners("j-0", "j-0", "o-0", "o-0", "o-1")
        produce(world.ours.port, topic, 100, 100, 5)
        wait_for(lambda: len(everything()) == 200, "all to those that are left", everything)
        of_java = clients.values("j")
        clients.do("stop", "j")
        wait_for_owners("o-0", "o-0", "o-0", "o-1", "o-1")
        produce(world.ours.port, topic, 200, 50, 5)
        wait_for(lambda: len({*reader.values, *of_java}) == 250, "all to ours", lambda: sorted(reader.values))
    assert reader.ended()
    assert set(Counter([*reader.values, *of_java]).values()) == {1}
    assert world.tree.get_children(f"/consumers/{group}/ids") == []
    assert world.tree.get_children(owner) == []
    assert [world.node(f"/consumers/{group}/offsets/{topic}/{p}") for p in range(5)] == ["50"] * 5
