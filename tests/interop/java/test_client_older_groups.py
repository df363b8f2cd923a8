"""Our ConsumerConnector without ZooKeeper: in one group, by the group protocol, with a client of today."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import TopicPartition as ConfluentTopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.client.legacy import ConsumerConnector, KafkaStream, StringDecoder, Whitelist
from ottla.local.processes import wait_until
from tests.judges.one_broker import OneBroker, one_broker

pytestmark = pytest.mark.timeout(300)
PARTITIONS = 6


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneBroker]:
    with one_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


def make_topic(broker: OneBroker, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(60)


def produce(broker: OneBroker, topic: str, first: int, count: int) -> None:
    producer = ConfluentProducer({"bootstrap.servers": broker.bootstrap})
    for number in range(first, first + count):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(60) == 0


class Modern(threading.Thread):
    """confluent-kafka's consumer, until it is told to leave."""

    def __init__(self, broker: OneBroker, group: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._settings: dict[str, str] = {
                "bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset": "earliest",
                "partition.assignment.strategy": "range",
            }  # fmt: skip
        self._topic = topic
        self._leaving = threading.Event()
        self.values: list[int] = []
        self.partitions: list[int] = []

    def run(self) -> None:
        with ConfluentConsumer(self._settings) as consumer:
            consumer.subscribe([self._topic])
            while not self._leaving.is_set():
                for message in consumer.consume(100, 0.1):
                    assert message.error() is None, message.error()
                    self.values.append(int(message.value()))
                self.partitions = [each.partition for each in consumer.assignment()]

    def leave(self) -> None:
        self._leaving.set()
        self.join(60)

    def __enter__(self) -> Modern:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


def reading(streams: list[KafkaStream]) -> tuple[list[list[tuple[int, int]]], list[threading.Thread]]:
    """(partition, value) of each message by stream, and the threads that read."""
    seen: list[list[tuple[int, int]]] = [[] for _ in streams]

    threads = []
    for stream, into in zip(streams, seen, strict=True):
        thread = threading.Thread(target=_append, args=(stream, into), daemon=True)
        thread.start()
        threads.append(thread)
    return seen, threads


def _append(stream: KafkaStream, into: list[tuple[int, int]]) -> None:
    for each in stream:
        into.append((each.partition, int(each.message)))  # noqa: PERF401 - as they come


def test_a_connector_and_a_current_client_share_a_group(broker: OneBroker) -> None:
    make_topic(broker, "shared")
    produce(broker, "shared", 0, 600)
    with ConsumerConnector(
        bootstrap_servers=broker.bootstrap, group_id="both", auto_offset_reset="smallest",
        auto_commit_interval_ms=200,
    ) as connector:  # fmt: skip
        streams = connector.create_message_streams({"shared": 4}, value_decoder=StringDecoder())["shared"]
        seen, threads = reading(streams)

        def ours() -> list[int]:
            return [value for of_stream in seen for _, value in of_stream]

        assert wait_until(lambda: len(ours()) == 600, timeout_s=60), len(ours())
        assert [{partition for partition, _ in of_stream} for of_stream in seen] == [{0, 1}, {2, 3}, {4}, {5}]

        with Modern(broker, "both", "shared") as modern:
            assert wait_until(lambda: len(modern.partitions) == PARTITIONS // 2, timeout_s=60), (
                modern.partitions
            )
            produce(broker, "shared", 600, 600)
            everything = lambda: Counter(ours() + modern.values)  # noqa: E731
            assert wait_until(lambda: len(everything()) == 1200, timeout_s=60), len(everything())
            assert len(modern.values) == 300
        produce(broker, "shared", 1200, 300)
        assert wait_until(lambda: len(everything()) == 1500, timeout_s=60), len(everything())
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert set(everything().values()) == {1}

    with ConfluentConsumer({"bootstrap.servers": broker.bootstrap, "group.id": "both"}) as asker:
        partitions = [ConfluentTopicPartition("shared", number) for number in range(PARTITIONS)]
        assert [each.offset for each in asker.committed(partitions, 30)] == [250] * PARTITIONS


def test_buffered_messages_of_a_slow_stream_are_dropped_with_its_partition(broker: OneBroker) -> None:
    """Thousands lie in a stream, of which ten were taken; those of a partition that goes are another's."""
    make_topic(broker, "held")
    produce(broker, "held", 0, 6000)
    with ConsumerConnector(
        bootstrap_servers=broker.bootstrap, group_id="held", auto_offset_reset="smallest"
    ) as connector:
        (stream,) = connector.create_message_streams({"held": 1})["held"]
        taken = [int(next(stream).message) for _ in range(10)]
        with Modern(broker, "held", "held") as modern:
            assert wait_until(lambda: len(modern.partitions) == PARTITIONS // 2, timeout_s=60)
            seen, _ = reading([stream])
            values = lambda: taken + [value for _, value in seen[0]] + modern.values  # noqa: E731
            assert wait_until(lambda: len(set(values())) == 6000, timeout_s=60), len(values())
    assert len(values()) == 6000


def test_a_slow_reader_delays_no_other_client_and_memory_is_bounded(broker: OneBroker) -> None:
    """One of two streams is not read: its partitions rest, the other's flow."""
    make_topic(broker, "slow-1")
    produce(broker, "slow-1", 0, 60_000)
    with ConsumerConnector(
        bootstrap_servers=broker.bootstrap, group_id="slow", auto_offset_reset="smallest",
        queued_max_message_chunks=2, auto_commit_enable=False,
    ) as connector:  # fmt: skip
        quick, slow = connector.create_message_streams_by_filter(Whitelist("slow-.*"), 2)
        values = [int(next(quick).message) for _ in range(30_000)]
        assert {value % PARTITIONS for value in values} == {0, 1, 2}
        assert len(slow._chunks) <= 2
        values += [int(next(slow).message) for _ in range(30_000)]
        assert sorted(values) == list(range(60_000))
