"""A broker of Apache Kafka 3.9.1 is killed and restarted under Ottla's clients; with Ottla's brokers, they
run in the simulation.

The clients are an idempotent producer, a transactional one that aborts some of its transactions, and a group
of two consumers that read committed records and commit their positions. Acknowledgements are compared with
what librdkafka reads from the logs afterwards.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import TopicPartition as ConfluentTopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.exceptions import NoNodeError

from bench.apache_kafka import KafkaBroker
from ottla.client import Consumer, ConsumerRecord, Producer, TopicPartition
from ottla.client.errors import CommitFailedError, RebalanceInProgressError
from ottla.local.processes import wait_until
from ottla.local.zookeeper import EmbeddedZooKeeper
from ottla.metadata import znodes
from tests.judges.faults import znodes_of
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(420)

PARTITIONS = 3
PLAIN, PAID = "plain", "paid"
WAIT_S = 90.0
SETTINGS = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "3",
    "offsets.topic.num.partitions": "3",
    "zookeeper.session.timeout.ms": "30000",  # it ends for no broker that lives, however busy the machine
}


class Kafka:
    """A broker of Apache Kafka with the two topics."""

    def __init__(self, directory: Path) -> None:
        self._zookeeper = EmbeddedZooKeeper(directory / "zookeeper")
        self._zookeeper.start()
        self._broker = KafkaBroker(directory / "kafka", self._zookeeper.connect, settings=SETTINGS)
        self.bootstrap = self._broker.bootstrap

    def start(self) -> None:
        self._broker.start()
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for created in admin.create_topics([NewTopic(t, PARTITIONS, 1) for t in (PLAIN, PAID)]).values():
            created.result(WAIT_S)

    def kill_and_start(self) -> None:
        self._broker.kill()
        with znodes_of(self._zookeeper.connect) as tree:  # as ZooKeeper does once the session is over
            for path in (znodes.broker_path(0), znodes.CONTROLLER):
                with suppress(NoNodeError):
                    tree.delete(path)
        self._broker.start()

    def stop(self) -> None:
        self._broker.stop()
        self._zookeeper.stop()


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[Kafka]:
    needs_kafka_jars()
    running = Kafka(tmp_path)
    try:
        running.start()
        yield running
    finally:
        running.stop()


class Writers:
    """Producers, and the records that were acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.stopping = False
        self.plain: dict[tuple[int, int], int] = {}
        """(partition, offset) -> number."""
        self.sent: dict[int, list[int]] = defaultdict(list)
        self.committed: list[int] = []
        self.aborted: list[int] = []
        self.retries = 0.0
        self.done = 0

    async def send_plain(self) -> None:
        async with Producer(
            bootstrap_servers=self._bootstrap, linger_ms=2, request_timeout_ms=5_000
        ) as producer:
            futures = []
            number = 0
            while not self.stopping:
                partition = number % PARTITIONS
                futures.append(await producer.send(PLAIN, b"%d" % number, partition=partition))
                self.sent[partition].append(number)
                number += 1
                if number % 20 == 0:
                    await asyncio.sleep(0.005)  # there is always something on its way
            for number, future in enumerate(futures):
                metadata = await future
                self.plain[metadata.partition, metadata.offset] = number
            self.retries = producer.metrics()["record-retry-total"]
        self.done += 1

    async def send_in_transactions(self) -> None:
        async with Producer(
            bootstrap_servers=self._bootstrap, transactional_id="payer", request_timeout_ms=5_000
        ) as producer:
            number = 0
            while not self.stopping:
                producer.begin_transaction()
                for partition in range(PARTITIONS):
                    await producer.send(PAID, b"%d" % number, partition=partition)
                if number % 4 == 3:
                    await producer.flush()
                    await producer.abort_transaction()
                    self.aborted.append(number)
                else:
                    await producer.commit_transaction()
                    self.committed.append(number)
                number += 1
                await asyncio.sleep(0.01)
        self.done += 1


class Readers:
    """A group of two; its records, and whether any record came again after its commit."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.stopping = False
        self.given: dict[TopicPartition, dict[int, int]] = defaultdict(dict)
        """Numbers by offset."""
        self.committed: dict[TopicPartition, int] = defaultdict(int)
        self.commits = 0

    async def read(self) -> None:
        async with Consumer(
            bootstrap_servers=self._bootstrap,
            group_id="readers",
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            enable_auto_commit=False,
            partition_assignment_strategy="cooperative-sticky",
            heartbeat_interval_ms=500,
            request_timeout_ms=5_000,
        ) as consumer:
            reached: dict[TopicPartition, int] = {}

            def begin(partitions: list[TopicPartition]) -> None:
                for tp in partitions:  # which the other may have had meanwhile
                    reached.pop(tp, None)

            consumer.subscribe([PLAIN, PAID], on_assigned=begin)
            while not self.stopping:
                for tp, records in (await consumer.poll(0.2)).items():
                    self._take(tp, records, reached)
                place = {tp: reached[tp] for tp in consumer.assignment() if tp in reached}
                if place:
                    try:
                        await consumer.commit(place)
                    except (RebalanceInProgressError, CommitFailedError):
                        continue  # what was not committed may come again, to this one or to the other
                    self.commits += 1
                    for tp, offset in place.items():
                        self.committed[tp] = max(self.committed[tp], offset)

    def _take(
        self, tp: TopicPartition, records: list[ConsumerRecord], reached: dict[TopicPartition, int]
    ) -> None:
        given = self.given[tp]
        offsets = [record.offset for record in records]
        assert offsets == sorted(offsets)
        assert offsets[0] >= self.committed[tp], f"{tp}: {offsets[0]} came again after it was committed"
        for record in records:
            number = int(record.value)
            assert given.setdefault(record.offset, number) == number
        reached[tp] = offsets[-1] + 1


def stored(bootstrap: str, topic: str) -> dict[TopicPartition, dict[int, int]]:
    """Committed numbers by offset, as librdkafka reads them."""
    with ConfluentConsumer(
        {"bootstrap.servers": bootstrap, "group.id": "oracle", "isolation.level": "read_committed",
         "enable.partition.eof": True}
    ) as consumer:  # fmt: skip
        consumer.assign([ConfluentTopicPartition(topic, p, 0) for p in range(PARTITIONS)])
        found: dict[TopicPartition, dict[int, int]] = defaultdict(dict)
        ended: set[int | None] = set()
        while len(ended) < PARTITIONS:
            message = consumer.poll(WAIT_S)
            assert message is not None
            if message.error() is not None:
                ended.add(message.partition())
                continue
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None
            assert offset is not None
            found[TopicPartition(topic, partition)][offset] = int(value or b"")
    return found


async def produce_and_consume(writers: Writers, readers: Readers) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(writers.send_plain())
        tasks.create_task(writers.send_in_transactions())
        for _ in range(2):
            tasks.create_task(readers.read())


def test_acknowledged_records_are_stored_once_and_in_order(kafka: Kafka) -> None:
    writers, readers = Writers(kafka.bootstrap), Readers(kafka.bootstrap)
    with ThreadPoolExecutor(1) as pool:
        # The broker is started from this thread: with the one that started it, a broker goes as well.
        producing = pool.submit(asyncio.run, produce_and_consume(writers, readers))

        def until(condition: Callable[[], bool], what: str) -> None:
            wait_until(lambda: producing.done() or condition(), timeout_s=WAIT_S)
            if producing.done():
                producing.result()
            assert condition(), f"never came true: {what}"

        def goes_on() -> None:
            transactions, commits = len(writers.committed), readers.commits
            until(lambda: len(writers.committed) > transactions + 10, "more transactions")
            until(lambda: readers.commits > commits + 3, "more commits")

        try:
            goes_on()
            kafka.kill_and_start()
            goes_on()
            writers.stopping = True
            until(readers_have(readers, writers), "the group has read all")
        finally:
            writers.stopping = readers.stopping = True
        producing.result(WAIT_S)
        assert writers.retries > 0, "the kills were not felt"
        assert writers.aborted
        plain, paid = stored(kafka.bootstrap, PLAIN), stored(kafka.bootstrap, PAID)

    for partition in range(PARTITIONS):
        assert in_order(plain[TopicPartition(PLAIN, partition)]) == writers.sent[partition]
        assert in_order(paid[TopicPartition(PAID, partition)]) == writers.committed
    for (partition, offset), number in writers.plain.items():
        assert offset < 0 or plain[TopicPartition(PLAIN, partition)][offset] == number
    assert dict(readers.given) == {**plain, **paid}, "the group was given all of it"


def readers_have(readers: Readers, writers: Writers) -> Callable[[], bool]:
    def all_of_it() -> bool:
        wanted = PARTITIONS * len(writers.committed) + sum(map(len, writers.sent.values()))
        return writers.done == 2 and sum(map(len, readers.given.values())) >= wanted

    return all_of_it


def in_order(numbers: dict[int, int]) -> list[int]:
    return [numbers[offset] for offset in sorted(numbers)]
