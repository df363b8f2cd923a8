"""Transactions in a cluster of Ottla and Apache Kafka: each coordinates what the other leads, and goes on
with what the other has written down.

Two seats, a broker of each kind; then each seat gets a broker of the other kind, in the midst of
transactions. The producers are raw requests, sent until they are taken: librdkafka's can hang when a group's
coordinator has been away (docs/migration/from-kafka.md). What came of them is read by librdkafka.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.coordinators.records import partition_for
from ottla.local.processes import wait_until
from ottla.local.zookeeper import EmbeddedZooKeeper
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode
from ottla.protocol.types import Message
from ottla.wire.connection import BrokerConnection
from tests.judges.mixed import Kind, Seat
from tests.judges.transaction_requests import (
    Producer,
    add,
    add_offsets,
    batch,
    commit_offset,
    end,
    init,
    produce,
)
from tests.oracles import needs_kafka_jars

WAIT_S = 150
SETTINGS: Final = {
    "offsets.topic.replication.factor": "2",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.replication.factor": "2",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "2",
    "controlled.shutdown.retry.backoff.ms": "200",
    # Nobody is killed here, and nobody shall seem so because the machine is busy.
    "zookeeper.session.timeout.ms": "30000",
}
INTERNAL: Final = ("__transaction_state", "__consumer_offsets")
TOPIC, GROUP = "m", "readers"
GROUPS, TRANSACTIONS = 0, 1
IDS: Final = [next(f"id{n}" for n in range(99) if partition_for(f"id{n}", 2) == p) for p in range(2)]
"""One for each partition of __transaction_state."""
pytestmark = pytest.mark.timeout(600)


class Pair:
    def __init__(self, directory: Path) -> None:
        self.zookeeper = EmbeddedZooKeeper(directory / "zookeeper")
        self.zookeeper.start()
        self.seats = [Seat(n, directory / str(n), self.zookeeper.connect, SETTINGS) for n in range(2)]
        self.bootstrap = ",".join(seat.address for seat in self.seats)

    def start(self) -> None:
        kinds: tuple[Kind, Kind] = ("kafka", "ottla")
        for seat, kind in zip(self.seats, kinds, strict=True):
            seat.start(kind)
        admin = self.admin()
        assert wait_until(lambda: len(admin.list_topics(timeout=60).brokers) == 2, timeout_s=WAIT_S)
        new = NewTopic(TOPIC, num_partitions=2, replica_assignment=[[0, 1], [1, 0]])
        admin.create_topics([new])[TOPIC].result(WAIT_S)
        self.await_whole(TOPIC)

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap})

    def replace(self, number: int, kind: Kind) -> None:
        self.seats[number].stop()
        self.seats[number].start(kind)
        self.await_whole(TOPIC, *INTERNAL)

    def await_whole(self, *topics: str) -> None:
        admin = self.admin()

        def whole() -> bool:
            try:
                known = admin.list_topics(timeout=60).topics
            except KafkaException:  # the broker that it asked is only starting
                return False
            return all(
                topic in known
                and known[topic].error is None
                and all(len(p.isrs) == 2 for p in known[topic].partitions.values())
                for topic in topics
            )

        assert wait_until(whole, timeout_s=WAIT_S, poll_s=0.2), f"{topics} are not whole"

    def stop(self) -> None:
        for seat in self.seats:
            seat.kill()
        self.zookeeper.stop()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    needs_kafka_jars()
    running = Pair(tmp_path)
    try:
        running.start()
        yield running
    finally:
        running.stop()


class Cluster:
    """Requests to whoever is to answer them, until they are answered well."""

    def __init__(self, seats: list[Seat]) -> None:
        self._ports = {seat.broker: seat.port for seat in seats}

    async def ask(self, broker: int, request: Message, version: int) -> Any:
        connection = await BrokerConnection.open("127.0.0.1", self._ports[broker], timeout_s=60)
        try:
            return await connection.request(request, version=version, timeout_s=60)
        finally:
            connection.close()

    async def insist(
        self, find: Callable[[], Any], request: Message, version: int, error: Callable[[Any], int]
    ) -> Any:
        """Send it to the broker that `find` names, until that answers without an error that will pass."""
        deadline = time.monotonic() + WAIT_S
        while True:
            reported: object
            try:
                broker = await find()
                answer = await self.ask(broker, request, version)
                reported = ErrorCode.of(error(answer))
                if reported is ErrorCode.NONE:
                    return answer
                assert reported.retriable, (request, answer)
            except (OSError, TimeoutError, LookupError) as problem:
                reported = problem
            assert time.monotonic() < deadline, (request, reported)
            await asyncio.sleep(0.1)

    async def coordinator(self, kind: int, key: str) -> int:
        for broker in self._ports:
            try:
                request = m.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
                found = (await self.ask(broker, request, 4)).coordinators[0]
            except OSError:
                continue
            if not found.error_code:
                return int(found.node_id)
        raise LookupError(f"{key} has no coordinator")

    async def leader(self, partition: int) -> int:
        wanted = [m.MetadataRequest.MetadataRequestTopic(name=TOPIC)]
        for broker in self._ports:
            try:
                answer = await self.ask(broker, m.MetadataRequest(topics=wanted), 5)
            except OSError:
                continue
            for each in answer.topics[0].partitions:
                if each.partition_index == partition and each.leader_id >= 0:
                    return int(each.leader_id)
        raise LookupError(f"{TOPIC}-{partition} has no leader")


class Writer:
    """A transactional producer."""

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        self._cluster = cluster
        self._id = transactional_id
        self._producer = Producer(transactional_id, -1, -1)
        self._sequence = 0

    async def _coordinated(self, request: Message, version: int) -> Any:
        def find() -> Any:
            return self._cluster.coordinator(TRANSACTIONS, self._id)

        def error(answer: Any) -> int:
            if isinstance(answer, m.AddPartitionsToTxnResponse):
                partitions = [p for t in answer.results_by_topic_v3_and_below for p in t.results_by_partition]
                return max(p.partition_error_code for p in partitions)
            return int(answer.error_code)

        return await self._cluster.insist(find, request, version, error)

    async def begin(self) -> None:
        answer = await self._coordinated(init(self._id), 4)
        self._producer = Producer(self._id, answer.producer_id, answer.producer_epoch)

    async def write(self, number: int) -> None:
        """A transaction over both partitions and the group's offsets, left open."""
        producer = self._producer
        await self._coordinated(add(producer, {TOPIC: [0, 1]}), 3)
        for partition in range(2):
            value = batch(producer, self._sequence, f"{self._id} {number}".encode())
            await self._cluster.insist(
                lambda partition=partition: self._cluster.leader(partition),
                produce(self._id, TOPIC, {partition: value}),
                9,
                lambda answer: answer.responses[0].partition_responses[0].error_code,
            )
        self._sequence += 1
        await self._coordinated(add_offsets(producer, GROUP), 3)
        offset = commit_offset(producer, GROUP, 100 + number, topic=TOPIC, partition=IDS.index(self._id))
        await self._cluster.insist(
            lambda: self._cluster.coordinator(GROUPS, GROUP),
            offset,
            3,
            lambda answer: answer.topics[0].partitions[0].error_code,
        )

    async def end(self, *, commit: bool) -> None:
        await self._coordinated(end(self._producer, commit=commit), 3)


def committed(bootstrap: str) -> list[list[str]]:
    """What a reader of committed records sees of each partition."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "looks",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
    }
    found: list[list[str]] = [[], []]
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(2)])
        going, deadline = {0, 1}, time.monotonic() + WAIT_S
        while going and time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is None:
                continue
            partition, error, value = message.partition(), message.error(), message.value()
            assert partition is not None
            if error is None:
                assert value is not None
                found[partition].append(value.decode())
            elif error.code() == KafkaError._PARTITION_EOF:
                going.discard(partition)
    finally:
        consumer.close()
    return found


def group_offsets(bootstrap: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    try:
        places = consumer.committed([TopicPartition(TOPIC, partition) for partition in range(2)], WAIT_S)
    finally:
        consumer.close()
    return [place.offset for place in places]


def test_kafka_and_ottla_continue_each_others_transactions(pair: Pair) -> None:
    cluster = Cluster(pair.seats)
    committing, aborting = writers = [Writer(cluster, name) for name in IDS]

    async def write(number: int) -> None:
        for writer in writers:
            await writer.write(number)

    async def first() -> None:
        for writer in writers:
            await writer.begin()
        await write(0)
        await committing.end(commit=True)
        await aborting.end(commit=True)
        await write(1)
        for writer in writers:
            await writer.end(commit=False)

    async def go_on(number: int) -> None:
        await committing.end(commit=True)
        await aborting.end(commit=False)
        await write(number + 10)
        for writer in writers:
            await writer.end(commit=True)

    asyncio.run(first())
    pair.await_whole(TOPIC, *INTERNAL)
    swaps: tuple[tuple[int, int, Kind], ...] = ((2, 0, "ottla"), (3, 1, "kafka"))
    for number, seat, kind in swaps:
        asyncio.run(write(number))
        pair.replace(seat, kind)
        asyncio.run(go_on(number))

    expected = [
        *(f"{IDS[0]} {number}" for number in (0, 2, 12, 3, 13)),
        *(f"{IDS[1]} {number}" for number in (0, 12, 13)),
    ]
    assert wait_until(lambda: group_offsets(pair.bootstrap) == [113, 113], timeout_s=WAIT_S)
    # Who commits does not wait for the last markers.
    assert wait_until(
        lambda: all(len(each) >= len(expected) for each in committed(pair.bootstrap)), timeout_s=WAIT_S
    )
    for found in committed(pair.bootstrap):
        assert sorted(found) == sorted(expected)
        for name in IDS:
            ours = [value for value in expected if value.startswith(f"{name} ")]
            assert [value for value in found if value.startswith(f"{name} ")] == ours, "in order"
