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
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import TopicPartition as ConfluentTopicPartition
from kafka import KafkaConsumer
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from ottla.client.core.types import TopicPartition
from ottla.client.errors import CoordinatorNotAvailableError
from ottla.client.legacy import (
    EARLIEST_TIME,
    LATEST_TIME,
    Blacklist,
    ConsumerConnector,
    ConsumerTimeoutError,
    DefaultPartitioner,
    FailedToSendMessageError,
    FetchRequestBuilder,
    KafkaStream,
    KeyedMessage,
    OffsetRequest,
    Producer,
    SimpleConsumer,
    StringDecoder,
    Whitelist,
)
from ottla.client.legacy.zookeeper_coordination import ZooKeeperCoordination
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records import BATCH_HEADER
from ottla.protocol.records import codec_of as codec_of_attributes
from tests.judges.brokers_082 import Brokers082, Side, wait_for
from tests.judges.clients_082 import needs_jars_082
from tests.oracles import JUDGES, needs_kafka_jars
from tests.selection import ROOT

pytestmark = pytest.mark.timeout(300)
IN_ZOOKEEPER = {
    "auto.offset.reset": "smallest",
    "rebalance.backoff.ms": "300",
    "rebalance.max.retries": "100",
    "zookeeper.session.timeout.ms": "30000",
    "zookeeper.connection.timeout.ms": "60000",
}
"""A session that ends because the machine is busy would bring messages again."""
MISSED_SOON = {"zookeeper.session.timeout.ms": "4000"}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers082]:
    needs_kafka_jars()
    needs_jars_082()
    with ExitStack() as running:
        yield Brokers082(tmp_path_factory.mktemp("brokers"), running)


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


def test_a_simple_consumer_gets_the_responses_of_kafka(brokers: Brokers082) -> None:
    """By both brokers. What they convert for Java's may be cut off at the size of what it was made of."""
    topic = "simple"
    brokers.make_topic(topic, partitions=2, everywhere=True)
    for side in brokers.sides.values():
        for number, codec in enumerate(("none", "gzip", "snappy", "lz4")):
            produce(side.port, topic, 10 * number, 10, 2, compression_type=codec)
        with SimpleConsumer("127.0.0.1", side.port, client_id="simple") as consumer:
            for partition in (0, 7):
                for when, most in ((LATEST_TIME, 5), (EARLIEST_TIME, 5), (LATEST_TIME, 0), (0, 5)):
                    ours = consumer.get_offsets(OffsetRequest({(topic, partition): (when, most)}))
                    reported = brokers.clients.do("before", side.port, topic, partition, when, most)
                    offsets = ",".join(map(str, ours.offsets(topic, partition)))
                    assert f"{int(ours.error_code(topic, partition))} {offsets}" == reported
                for offset in (0, 3, 20, 21):
                    request = FetchRequestBuilder().add_fetch(topic, partition, offset, 1 << 20).build()
                    found = consumer.fetch(request)
                    records = [
                        f"{each.offset}={(each.message.payload or b'').decode()}"
                        for each in found.message_set(topic, partition)
                    ]
                    reported = brokers.clients.do("fetch", side.port, topic, partition, offset)
                    error, high_watermark, listed = reported.split(" ")
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
            assert brokers.clients.do("kept", 0, side.port, "old", topic, 0).startswith("0 4")
            kept = consumer.fetch_offsets("old", [(topic, 0)], version_id=0)
            assert kept[TopicPartition(topic, 0)].offset == 4
            metadata = consumer.topic_metadata([topic])
            (of_topic,) = metadata.topics
            assert [each.leader for each in of_topic.partitions] == [next(iter(metadata.brokers))] * 2
            assert metadata.brokers[of_topic.partitions[0].leader].port == side.port


def _offset(listed: str) -> int:
    return int(listed.partition("=")[0])


def test_many_fetches_are_in_flight_and_a_lost_connection_is_opened_again(brokers: Brokers082) -> None:
    topic = "many"
    brokers.make_topic(topic, partitions=3)
    produce(brokers.ours.port, topic, 0, 30, 3, compression_type="zstd")
    with SimpleConsumer("127.0.0.1", brokers.ours.port) as consumer:
        requests = [FetchRequestBuilder().add_fetch(topic, p, p, 1 << 20).build() for p in (0, 1, 2, 1)]
        offsets = [
            [each.offset for each in response.message_set(topic, partition)]
            for partition, response in zip((0, 1, 2, 1), consumer.multifetch(requests), strict=True)
        ]
        assert offsets == [list(range(p, 10)) for p in (0, 1, 2, 1)]
        assert consumer.get_offsets_before(topic, 0, LATEST_TIME) == [10]
        brokers.broker.kill()
        brokers.broker.start_and_wait()
        # It is asked before it has heard what it leads: that is an answer, too.
        asked = OffsetRequest({(topic, 0): (EARLIEST_TIME, 1)})
        wait_for(lambda: not consumer.get_offsets(asked).has_error, "a leader")
        assert consumer.earliest_or_latest_offset((topic, 0), EARLIEST_TIME) == 0


# --- the Producer ---


def read_by_confluent(
    port: int, topic: str, count: int, partitions: int
) -> list[tuple[int, bytes | None, bytes]]:
    found = []
    with ConfluentConsumer({"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "any"}) as consumer:
        consumer.assign([ConfluentTopicPartition(topic, partition, 0) for partition in range(partitions)])
        until = time.monotonic() + 60
        while len(found) < count and time.monotonic() < until:
            for message in consumer.consume(count, 0.2):
                assert message.error() is None, message.error()
                found.append((message.partition(), message.key(), message.value()))
    return found


def codec_of(consumer: SimpleConsumer, topic: str, partition: int) -> str:
    """Of the first batch."""
    request = FetchRequestBuilder().add_fetch(topic, partition, 0, 1 << 20).build()
    header = BATCH_HEADER.unpack_from(consumer.fetch(request).message_set(topic, partition)._data)
    return codec_of_attributes(header[5]).name.lower()


@pytest.mark.parametrize(("kind", "codec"), [("sync", "gzip"), ("async", "snappy"), ("async", "lz4")])
def test_current_clients_read_the_producers_messages(brokers: Brokers082, kind: str, codec: str) -> None:
    topic = f"sent-{kind}-{codec}"
    brokers.make_topic(topic, partitions=4, everywhere=True)
    if kind == "sync":
        brokers.make_topic("plain", partitions=1, everywhere=True)
    for side in brokers.sides.values():
        with Producer(
            {
                "metadata.broker.list": f"127.0.0.1:{side.port}", "producer.type": kind,
                "request.required.acks": "-1", "compression.codec": codec, "queue.buffering.max.ms": "100",
                "serializer.class": "kafka.serializer.StringEncoder", "compressed.topics": topic,
            }
        ) as producer:  # fmt: skip
            for first in range(0, 600, 100):
                producer.send(
                    *(KeyedMessage(topic, str(n), key=f"key-{n % 7}") for n in range(first, first + 100))
                )
            producer.send(KeyedMessage("plain", "1", key="k"))
        with SimpleConsumer("127.0.0.1", side.port) as consumer:
            assert {codec_of(consumer, topic, partition) for partition in range(4)} == {codec}
            assert codec_of(consumer, "plain", 0) == "none"
        found = read_by_confluent(side.port, topic, 600, 4)
        assert sorted(int(value) for *_, value in found) == list(range(600))
        by_key = {key: [int(v) for _, k, v in found if k == key] for key in {key for _, key, _ in found}}
        assert all(values == sorted(values) for values in by_key.values()), "in order, key by key"
        assert all(len({partition for partition, k, _ in found if k == key}) == 1 for key in by_key)
    if codec != "gzip":
        return  # kafka-python has no other one here
    with KafkaConsumer(
        topic, bootstrap_servers=f"127.0.0.1:{brokers.ours.port}", auto_offset_reset="earliest",
        consumer_timeout_ms=60_000,
    ) as reader:  # fmt: skip
        read = [next(reader) for _ in range(600)]
    assert sorted(int(record.value) for record in read) == list(range(600))


def test_keys_have_the_partitions_of_the_java_producer(brokers: Brokers082) -> None:
    keys = ["a", "customer-7", "polygenelubricants", "Grüße", "z" * 40]
    kinds: list[tuple[str, list[Any]]] = [
        ("text", keys), ("bytes", keys), ("int", [0, 17, -17, -(2**31)]), ("long", [2**31, -(2**40)])
    ]  # fmt: skip
    partitioner = DefaultPartitioner()
    for kind, given in kinds:
        for key in given:
            reported = brokers.clients.do("partition", kind, key, 13)
            assert partitioner.partition(key.encode() if kind == "bytes" else key, 13) == int(reported), (
                kind,
                key,
            )


def test_messages_that_cannot_be_delivered_are_named(brokers: Brokers082) -> None:
    brokers.make_topic("known", partitions=1)
    with Producer(
        metadata_broker_list=f"127.0.0.1:{brokers.ours.port}", request_required_acks=1,
        request_timeout_ms=5_000, message_send_max_retries=0,
    ) as producer:  # fmt: skip
        lost = KeyedMessage("unknown", b"lost", key=b"k")
        with pytest.raises(FailedToSendMessageError, match="1 of 3 messages") as failure:
            producer.send(KeyedMessage("known", b"a"), lost, KeyedMessage("known", b"b"))
        assert [message for message, _ in failure.value.failed] == [lost]
    assert [value for *_, value in read_by_confluent(brokers.ours.port, "known", 2, 1)] == [b"a", b"b"]


# --- the ConsumerConnector ---


def test_consumers_of_kafka_and_ottla_share_a_group(brokers: Brokers082) -> None:
    """As they come, go and are killed, each message reaches one of them, once."""
    clients, topic, group = brokers.clients, "shared", "mixed"
    brokers.make_topic(topic, partitions=5)
    owner = f"/consumers/{group}/owners/{topic}"

    def wait_for_owners(*expected: str) -> None:
        found: Callable[[], list[str | None]] = lambda: [brokers.node(f"{owner}/{p}") for p in range(5)]  # noqa: E731
        wait_for(lambda: found() == [f"{group}_{name}" for name in expected], f"owners {expected}", found)

    clients.start("j", group, f"topic:{topic}", brokers.ours.zookeeper, "rebalance.backoff.ms=300")
    clients.allow("j", 100_000)
    wait_for_owners(*["j-0"] * 5)
    with connected(brokers.ours, group, consumer_id="o") as ours:
        reader = Reader(ours.create_message_streams({topic: 2}, value_decoder=StringDecoder())[topic])
        wait_for_owners("j-0", "j-0", "o-0", "o-0", "o-1")

        node = {name: brokers.node(f"/consumers/{group}/ids/{group}_{name}") or "" for name in "jo"}
        assert re.sub(r"\d{13}", "T", node["j"]) == re.sub(r"\d{13}", "T", node["o"]).replace(":2}", ":1}")
        assert ours.consumer_id == f"{group}_o"
        _, stat = brokers.tree.get(f"{owner}/4")
        assert stat.ephemeralOwner != 0

        produce(brokers.ours.port, topic, 0, 100, 5)
        everything = lambda: Counter(reader.values + clients.values("j"))  # noqa: E731
        wait_for(lambda: len(everything()) == 100, "all to both", everything)
        assert {partition for _, partition, *_ in reader.seen} == {2, 3, 4}

        # A third is killed: its session ends, and so do its nodes.
        command = [
            sys.executable, str(JUDGES / "older_reader.py"), topic, "1",
            f"zookeeper.connect={brokers.ours.zookeeper}", f"group.id={group}", "consumer.id=z",
            *(f"{key}={value}" for key, value in {**IN_ZOOKEEPER, **MISSED_SOON}.items()),
        ]  # fmt: skip
        log = (brokers.directory / "third.log").open("wb")
        third = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        try:
            wait_for_owners("j-0", "j-0", "o-0", "o-1", "z-0")
        finally:
            third.kill()
            third.communicate()
            log.close()
        wait_for_owners("j-0", "j-0", "o-0", "o-0", "o-1")
        produce(brokers.ours.port, topic, 100, 100, 5)
        wait_for(lambda: len(everything()) == 200, "all to those that are left", everything)
        of_java = clients.values("j")
        clients.do("stop", "j")
        wait_for_owners("o-0", "o-0", "o-0", "o-1", "o-1")
        produce(brokers.ours.port, topic, 200, 50, 5)
        wait_for(lambda: len({*reader.values, *of_java}) == 250, "all to ours", lambda: sorted(reader.values))
    assert reader.ended()
    assert set(Counter([*reader.values, *of_java]).values()) == {1}
    assert brokers.tree.get_children(f"/consumers/{group}/ids") == []
    assert brokers.tree.get_children(owner) == []
    assert [brokers.node(f"/consumers/{group}/offsets/{topic}/{p}") for p in range(5)] == ["50"] * 5


def test_buffered_messages_of_a_slow_stream_are_dropped_with_its_partition(brokers: Brokers082) -> None:
    """Thousands lie in a stream, of which ten were taken; those of a partition that goes are another's."""
    topic, group = "slow", "slow"
    brokers.make_topic(topic, partitions=4)
    produce(brokers.ours.port, topic, 0, 4000, 4)
    with connected(brokers.ours, group, consumer_id="a") as first:
        (stream,) = first.create_message_streams({topic: 1}, value_decoder=StringDecoder())[topic]
        taken = [int(next(stream).message) for _ in range(10)]
        with connected(brokers.ours, group, consumer_id="b") as second:
            of_second = Reader(
                second.create_message_streams({topic: 1}, value_decoder=StringDecoder())[topic]
            )
            wait_for(lambda: brokers.owners(group, topic, 4) == [f"{group}_{n}" for n in "aabb"], "two each")
            of_first = Reader([stream])
            values = lambda: taken + of_first.values + of_second.values  # noqa: E731
            wait_for(lambda: len(set(values())) == 4000, "all", lambda: len(values()))
    assert of_first.ended()
    assert of_second.ended()
    assert len(values()) == 4000
    assert len(of_second.values) >= 2000 - 10


def test_the_roundrobin_strategy_has_kafkas_assignment(brokers: Brokers082) -> None:
    group, roundrobin = "hashed", "partition.assignment.strategy=roundrobin"
    for number in range(3):
        brokers.make_topic(f"hashed-{number}", partitions=4)
    brokers.clients.start(
        "h", group, "filter:hashed-.*", brokers.ours.zookeeper, roundrobin, "rebalance.backoff.ms=300"
    )
    with connected(brokers.ours, group, consumer_id="o", partition_assignment_strategy="roundrobin") as ours:
        ours.create_message_streams_by_filter(Whitelist("hashed-.*"), 1)
        owned = lambda: Counter(o for n in range(3) for o in brokers.owners(group, f"hashed-{n}", 4))  # noqa: E731
        wait_for(lambda: owned() == {f"{group}_h": 6, f"{group}_o": 6}, "half to each", owned)
    brokers.clients.do("stop", "h")


def test_messages_are_delivered_while_consumers_join_and_leave(brokers: Brokers082) -> None:
    """Each one reaches one consumer, once. A session that ends takes its partitions along; a new one comes,
    and what it had not committed is read again."""
    topic, group = "flowing", "ours"
    brokers.make_topic(topic, partitions=4)
    sent = 0
    go_on = threading.Event()

    def send() -> None:
        nonlocal sent
        while not go_on.wait(0.02):
            produce(brokers.ours.port, topic, sent, 20, 4)
            sent += 20

    def partitions(reader: Reader, since: int) -> set[int]:
        return {partition for _, partition, *_ in reader.seen[since:]}

    sender = threading.Thread(target=send, daemon=True)
    with ExitStack() as closing:
        closing.callback(sender.join)
        closing.callback(go_on.set)
        first = closing.enter_context(connected(brokers.ours, group, consumer_id="a"))
        of_first = Reader(first.create_message_streams({topic: 1}, value_decoder=StringDecoder())[topic])
        sender.start()
        wait_for(lambda: partitions(of_first, 0) == {0, 1, 2, 3}, "all to the first")
        second = closing.enter_context(connected(brokers.ours, group, consumer_id="b"))
        of_second = Reader(second.create_message_streams({topic: 2}, value_decoder=StringDecoder())[topic])
        mark = len(of_first.seen)
        wait_for(lambda: partitions(of_second, 0) == {2, 3}, "two to the second")
        second.shutdown()
        wait_for(lambda: partitions(of_first, mark) == {0, 1, 2, 3}, "all to the first again")
        assert of_second.ended()
        assert set(Counter(of_first.values + of_second.values).values()) == {1}

        def owning_session() -> int | None:
            """The first one's; None while nobody owns the partition."""
            with suppress(NoNodeError):
                data, node = brokers.tree.get(f"/consumers/{group}/owners/{topic}/0")
                return int(node.ephemeralOwner) if data == f"{group}_a-0".encode() else None
            return None

        session, _ = client_id = session_of(first)
        wait_for(lambda: owning_session() == session, "its own session")
        end_session(brokers, client_id)
        wait_for(lambda: owning_session() not in (None, session), "another session")
        mark = len(of_first.seen)
        wait_for(lambda: partitions(of_first, mark) == {0, 1, 2, 3}, "all to the new session")
        go_on.set()
        sender.join()
        wait_for(lambda: len({*of_first.values, *of_second.values}) == sent, "all that was sent")
    assert of_first.ended()
    kept = [int(brokers.node(f"/consumers/{group}/offsets/{topic}/{p}") or -1) for p in range(4)]
    assert kept == [sent // 4] * 4


def session_of(connector: ConsumerConnector) -> tuple[int, bytes]:
    """Its number and its password."""
    coordination = connector._coordination
    assert isinstance(coordination, ZooKeeperCoordination)
    number, password = coordination._registry._client.client_id
    return number, password


def end_session(brokers: Brokers082, client_id: tuple[int, bytes]) -> None:
    """As ZooKeeper does with one that it has not heard of for too long."""
    other = KazooClient(brokers.ours.zookeeper, client_id=client_id)
    try:
        other.start(timeout=60)
    finally:
        other.stop()
        other.close()


def test_a_topic_filter_matches_topics_and_offsets_move_to_kafka_and_back(brokers: Brokers082) -> None:
    """By the steps of Kafka's manual, on Apache Kafka as the broker; a consumer that stands at the end of
    what it has never read commits that."""
    side, group = brokers.sides["Apache Kafka"], "moving"
    brokers.make_topic("found-1", partitions=1, everywhere=True)
    with ExitStack() as closing:
        tree = KazooClient(side.zookeeper)
        tree.start(timeout=60)
        closing.callback(tree.close)
        closing.callback(tree.stop)
        kept: Callable[[], int] = lambda: int(tree.get(f"/consumers/{group}/offsets/found-1/0")[0])  # noqa: E731

        def text(path: str) -> str | None:
            with suppress(NoNodeError):
                return str(tree.get(path)[0], "ascii")
            return None

        asker = closing.enter_context(SimpleConsumer("127.0.0.1", side.port))
        here = TopicPartition("found-1", 0)

        def coordinates() -> bool:
            try:
                return asker.consumer_metadata(group).port == side.port
            except CoordinatorNotAvailableError:
                return False

        wait_for(coordinates, "a coordinator")

        def committed() -> int:
            return asker.fetch_offsets(group, [here])[here].offset

        kafka = {"offsets_storage": "kafka", "auto_commit_enable": "false"}
        produce(side.port, "found-1", 0, 30)
        found: list[list[str]] = []
        for step, settings in enumerate(
            (
                {"auto_commit_enable": "false"}, kafka, {**kafka, "dual_commit_enabled": "false"}, kafka,
                {"auto_commit_enable": "false"},
            )
        ):  # fmt: skip
            with connected(side, group, consumer_timeout_ms=60_000, **settings) as connector:
                (stream,) = connector.create_message_streams_by_filter(
                    Whitelist("found-.*"), value_decoder=StringDecoder()
                )
                found.append([next(stream).message for _ in range(5)])
                connector.commit_offsets()
            before = kept(), committed()
            assert before == [(5, -1), (10, 10), (10, 15), (20, 20), (25, 20)][step]
        assert [int(value) for values in found for value in values] == list(range(25))

        with connected(side, "late", auto_offset_reset="largest", consumer_timeout_ms=100) as connector:
            (stream,) = connector.create_message_streams_by_filter(Blacklist("found-1|__.*"))
            with pytest.raises(ConsumerTimeoutError):
                next(stream)
            brokers.make_topic("found-2", partitions=2, everywhere=True)
            owner = "/consumers/late/owners/found-2/1"
            wait_for(lambda: text(owner) == f"{connector.consumer_id}-0", "the new topic")
            assert tree.exists("/consumers/late/owners/found-1") is None

            def committed_late() -> str | None:
                connector.commit_offsets()
                return text("/consumers/late/offsets/found-2/1")

            wait_for(lambda: committed_late() is not None, "a commit of where it stands")
            assert committed_late() == "0"


def test_the_documents_examples_run(brokers: Brokers082, capfd: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/guides/client-older.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    brokers.make_topic("orders", partitions=3)
    addresses = {
        "127.0.0.1:2181": brokers.ours.zookeeper,
        "9092": str(brokers.ours.port),
        '"5000"': '"10000"',
    }
    for example in examples:
        for named, here in addresses.items():
            example = example.replace(named, here)
        subprocess.run([sys.executable, "-c", example], check=True, timeout=60)
    printed = capfd.readouterr().out.splitlines()
    values = ["one", "two", "one", "two", "three", "four", "five", "six"]
    keys = [b"customer-7", *[None] * 7]
    expected = [f"{key} {value.encode()}" for key, value in zip(keys, values, strict=True)]
    expected += [f"orders {key} {value}" for key, value in zip(keys, values, strict=True)]
    whole = [re.sub(r"\d+ \d+ ", "", line) for line in printed if line.count(" ") >= 3]
    assert sorted(whole) == sorted(expected)
    of_partition_0 = [line.split() for line in printed if re.fullmatch(r"\d+ b'\w+'", line)]
    assert [int(offset) for offset, _ in of_partition_0] == list(range(len(of_partition_0)))
    assert sum(line.isdigit() for line in printed) == 3, "the sizes of three message sets"
