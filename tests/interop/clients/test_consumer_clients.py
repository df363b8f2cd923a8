"""Our consumer beside librdkafka's and kafka-python's: in one group, on one broker, over the same offsets."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import kafka
import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as ConfluentTopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.client.blocking import Consumer as BlockingConsumer
from ottla.client.consumer import Consumer
from ottla.client.core.assigned import OffsetAndMetadata
from ottla.client.core.types import TopicPartition
from tests.judges.one_broker import OneBroker

PARTITIONS = 6
pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def topic(broker: OneBroker) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(60)
    return name


def produce(broker: OneBroker, topic: str, count: int, *, first: int = 0, **settings: object) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
    for number in range(first, first + count):
        producer.produce(
            topic, b"%d" % number, b"key-%d" % number, partition=number % PARTITIONS,
            timestamp=1_000_000 + number, headers=[("n", b"%d" % number)],
        )  # fmt: skip
    assert producer.flush(60) == 0


@asynccontextmanager
async def ours(broker: OneBroker, group: str | None, **settings: object) -> AsyncIterator[Consumer]:
    given: dict[str, object] = {"auto_offset_reset": "earliest", "heartbeat_interval_ms": 300, **settings}
    async with Consumer(bootstrap_servers=broker.bootstrap, group_id=group, **given) as consumer:
        yield consumer


async def until(condition: Callable[[], Awaitable[bool]], timeout_s: float = 60) -> None:
    async with asyncio.timeout(timeout_s):
        while not await condition():  # noqa: ASYNC110 (the condition polls)
            await asyncio.sleep(0)


async def read(consumer: Consumer, count: int) -> list[bytes]:
    values: list[bytes] = []
    async with asyncio.timeout(60):
        while len(values) < count:
            for records in (await consumer.poll(1)).values():
                values += [record.value for record in records]
    return values


def committed(broker: OneBroker, group: str, topic: str) -> dict[int, tuple[int, str]]:
    """As librdkafka's admin client reads it."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    asked = ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([asked])[group].result(30).topic_partitions
    return {p.partition: (p.offset, p.metadata or "") for p in found if p.topic == topic}


class OtherMember:
    """A member of another library, in a thread of its own."""

    def __init__(self, kind: str, broker: OneBroker, group: str, topic: str, strategy: str) -> None:
        self.share: set[int] = set()
        self._stop = threading.Event()
        serve = self._confluent if kind == "confluent-kafka" else self._kafka_python
        self._thread = threading.Thread(target=serve, args=(broker, group, topic, strategy), daemon=True)
        self._thread.start()

    def _confluent(self, broker: OneBroker, group: str, topic: str, strategy: str) -> None:
        with ConfluentConsumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "partition.assignment.strategy": strategy,
                "heartbeat.interval.ms": 300,
            }
        ) as consumer:
            consumer.subscribe([topic])
            while not self._stop.is_set():
                consumer.poll(0.05)
                self.share = {place.partition for place in consumer.assignment()}

    def _kafka_python(self, broker: OneBroker, group: str, topic: str, strategy: str) -> None:
        assignors = {
            "range": kafka.coordinator.assignors.range.RangePartitionAssignor,
        }
        with kafka.KafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap,
            group_id=group,
            partition_assignment_strategy=[assignors[strategy]],
            heartbeat_interval_ms=300,
        ) as consumer:
            while not self._stop.is_set():
                consumer.poll(50)
                self.share = {place.partition for place in consumer.assignment()}

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.mark.parametrize(
    ("strategy", "kinds"),
    [("range", ("confluent-kafka", "kafka-python")), ("cooperative-sticky", ("confluent-kafka",))],
)
async def shared(broker: OneBroker, topic: str, group: str, strategy: str, kinds: tuple[str, ...]) -> None:
    everything = set(range(PARTITIONS))
    callbacks: list[tuple[str, list[int]]] = []

    def recorder(what: str) -> Callable[[list[TopicPartition]], None]:
        return lambda places: callbacks.append((what, [tp.partition for tp in places]))

    async with ours(broker, group, partition_assignment_strategy=strategy) as consumer:
        consumer.subscribe(
            [topic], on_assigned=recorder("got"), on_revoked=recorder("gave"), on_lost=recorder("lost")
        )

        def own() -> set[int]:
            return {tp.partition for tp in consumer.assignment()}

        async def has_all() -> bool:
            await consumer.poll(0.05)
            return own() == everything

        await until(has_all)
        assert callbacks == [("got", sorted(everything))]
        callbacks.clear()
        others = [OtherMember(kind, broker, group, topic, strategy) for kind in kinds]
        try:
            size = PARTITIONS // (1 + len(kinds))

            async def even() -> bool:
                await consumer.poll(0.05)
                shares = [own(), *(set(member.share) for member in others)]
                return all(len(share) == size for share in shares) and set().union(*shares) == everything

            await until(even)
            gave = {number for what, numbers in callbacks if what == "gave" for number in numbers}
            if strategy == "cooperative-sticky":
                assert gave == everything - own(), callbacks
            else:
                assert gave == everything, callbacks
            assert "lost" not in {what for what, _ in callbacks}
        finally:
            for member in others:
                await asyncio.to_thread(member.stop)
        await until(has_all)


@pytest.mark.parametrize(
    ("strategy", "kinds"),
    [("range", ("confluent-kafka", "kafka-python")), ("cooperative-sticky", ("confluent-kafka",))],
)
def test_a_group_with_members_of_ottla_and_of_other_clients(
    broker: OneBroker, topic: str, group: str, strategy: str, kinds: tuple[str, ...]
) -> None:
    asyncio.run(shared(broker, topic, group, strategy, kinds))


def test_records_are_complete_and_in_order(broker: OneBroker, topic: str, group: str) -> None:
    produce(broker, topic, 3000, **{"compression.type": "lz4"})

    async def run() -> None:
        async with ours(broker, group) as consumer:
            consumer.subscribe([topic])
            seen = []
            async for record in consumer:
                number = int(record.value)
                assert record.topic == topic
                assert record.partition == number % PARTITIONS
                assert record.offset == number // PARTITIONS
                assert (record.key, record.timestamp_ms) == (b"key-%d" % number, 1_000_000 + number)
                assert list(record.headers) == [("n", b"%d" % number)]
                seen.append(number)
                if len(seen) == 3000:
                    break
        assert sorted(seen) == list(range(3000))

    asyncio.run(run())
    # What was read was committed when it was closed.
    assert committed(broker, group, topic) == dict.fromkeys(range(PARTITIONS), (500, ""))


def test_commits_cover_the_processed_records_and_other_clients_read_them(
    broker: OneBroker, topic: str, group: str
) -> None:
    produce(broker, topic, 60)

    async def run() -> None:
        async with ours(broker, group, enable_auto_commit=False) as consumer:
            consumer.subscribe([topic])
            seen: Counter[int] = Counter()
            async for record in consumer:
                seen[record.partition] += 1
                if sum(seen.values()) == 25:
                    break
            await consumer.commit()
            assert {n: o for n, (o, _) in committed(broker, group, topic).items() if o} == dict(seen)
            # The rest comes, from where it was left.
            assert len(await read(consumer, 35)) == 35
            await consumer.commit({(topic, 1): OffsetAndMetadata(4, "a note")})
            done = asyncio.get_running_loop().create_future()
            consumer.commit_nowait({(topic, 2): 7}, lambda offsets, error: done.set_result(error))
            assert await done is None
            found = await consumer.committed([(topic, 1), (topic, 2)])
            assert found[TopicPartition(topic, 1)] == OffsetAndMetadata(4, "a note")
            figures = consumer.metrics()
            assert figures["records-consumed-total"] == 60
            assert figures["bytes-consumed-total"] > 60 * 20
            assert figures["records-lag-max"] == 0
            assert (figures["join-total"], figures["rebalance-total"]) == (2, 1), "the id is given first"
            assert figures["commit-total"] == 3
            assert figures["commit-latency-max"] >= figures["commit-latency-avg"] > 0
            assert figures["commit-sync-time-ns-total"] > 0
            assert figures["assigned-partitions"] == PARTITIONS
        with ConfluentConsumer({"bootstrap.servers": broker.bootstrap, "group.id": group}) as other:
            places = other.committed([ConfluentTopicPartition(topic, n) for n in (1, 2)], timeout=30)
            assert [(p.offset, p.metadata or "") for p in places] == [(4, "a note"), (7, "")]

    asyncio.run(run())


def test_positions_by_time_ends_and_by_hand(broker: OneBroker, topic: str) -> None:
    produce(broker, topic, 120)
    place = TopicPartition(topic, 2)

    async def run() -> None:
        async with ours(broker, None) as consumer:
            times = await consumer.offsets_for_times({place: 1_000_050, (topic, 3): 9_999_999})
            found = times[place]
            assert found is not None
            assert (found.offset, found.timestamp_ms) == (8, 1_000_050)
            assert times[TopicPartition(topic, 3)] is None
            assert await consumer.beginning_offsets([place]) == {place: 0}
            assert await consumer.end_offsets([place]) == {place: 20}
            assert await consumer.partitions_for(topic) == list(range(PARTITIONS))
            consumer.assign([place])
            consumer.seek_to_time(1_000_050, place)
            assert await consumer.position(place) == 8
            assert (await consumer.getone()).offset == 8
            assert await consumer.position(place) == 9
            consumer.seek(place, 15)
            assert [int(v) // PARTITIONS for v in await read(consumer, 5)] == list(range(15, 20))
            assert consumer.lag(place) == 0
            consumer.seek_to_beginning()
            consumer.pause(place)
            assert await consumer.poll(0.7) == {}
            consumer.resume(place)
            assert len(await read(consumer, 20)) == 20

    asyncio.run(run())


def test_the_blocking_consumer_calls_its_listeners_in_the_thread_that_polls(
    broker: OneBroker, topic: str, group: str
) -> None:
    produce(broker, topic, 30)
    callbacks: list[tuple[str, int, bool]] = []
    here = threading.current_thread()
    with BlockingConsumer(
        bootstrap_servers=broker.bootstrap, group_id=group, auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:  # fmt: skip

        def revoked(places: list[TopicPartition]) -> None:
            consumer.commit()
            callbacks.append(("gave", len(places), threading.current_thread() is here))

        consumer.subscribe(
            [topic],
            on_assigned=lambda places: callbacks.append(
                ("got", len(places), threading.current_thread() is here)
            ),
            on_revoked=revoked,
        )
        seen = []
        for record in consumer:
            seen.append(int(record.value))
            if len(seen) == 30:
                break
    assert sorted(seen) == list(range(30))
    assert callbacks == [("got", PARTITIONS, True), ("gave", PARTITIONS, True)]
    assert {offset for offset, _ in committed(broker, group, topic).values()} == {5}


def test_calls_can_be_cancelled_at_any_point(broker: OneBroker, topic: str, group: str) -> None:
    """Cut off after any time, a poll loses no record and gives none twice."""
    produce(broker, topic, 600)

    async def run() -> None:
        async with ours(broker, group, max_poll_records=7) as consumer:
            consumer.subscribe([topic])
            seen: Counter[int] = Counter()
            async with asyncio.timeout(60):
                for attempt in range(100_000):
                    try:
                        taken = await asyncio.wait_for(consumer.poll(5), (attempt % 20) / 1000)
                    except TimeoutError:
                        continue
                    seen.update(int(r.value) for rows in taken.values() for r in rows)
                    if len(seen) == 600:
                        break
            assert set(seen.values()) == {1}

    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, run()).result(90)
