"""Our consumer when brokers die under it, and with Apache Kafka 3.9.1 as the broker."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ConfluentTopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from judges import needs_kafka_jars

from bench.apache_kafka import KafkaBroker
from ottla.client.consumer import Consumer
from ottla.client.core.types import TopicPartition
from ottla.local.cluster import LocalCluster
from ottla.local.zookeeper import EmbeddedZooKeeper

PARTITIONS = 4
COUNT = 2000
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:8]}"


def produce(bootstrap: str, topic: str, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(first, first + count):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(120) == 0


async def read_until(consumer: Consumer, seen: Counter[int], count: int) -> None:
    async with asyncio.timeout(150):
        while len(seen) < count:
            for records in (await consumer.poll(1)).values():
                seen.update(int(record.value) for record in records)


def test_leaders_and_the_coordinator_die_and_nothing_is_lost_or_read_twice(
    cluster: LocalCluster, group: str
) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(topic, partitions=PARTITIONS, replicas=3, min_insync_replicas="2")
    bootstrap = cluster.bootstrap
    lost: list[TopicPartition] = []

    async def run() -> None:
        seen: Counter[int] = Counter()
        async with Consumer(
            bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest",
            heartbeat_interval_ms=500, auto_commit_interval_ms=200,
        ) as consumer:  # fmt: skip
            consumer.subscribe([topic], on_lost=lost.extend)
            await asyncio.to_thread(produce, bootstrap, topic, 0, COUNT)
            await read_until(consumer, seen, COUNT)
            coordinator = consumer._coordinator.node()
            assert coordinator is not None
            # The coordinator goes; of the three brokers it leads some of the partitions as well.
            cluster.brokers[coordinator].kill()
            await asyncio.to_thread(produce, bootstrap, topic, COUNT, COUNT)
            await read_until(consumer, seen, 2 * COUNT)
            await consumer.commit()
            committed = await consumer.committed(consumer.assignment())
            ends = await consumer.end_offsets(consumer.assignment())
            assert {tp: found and found.offset for tp, found in committed.items()} == ends
            assert consumer._coordinator.node() not in (None, coordinator)
            await asyncio.to_thread(cluster.brokers[coordinator].start_and_wait)
        assert set(seen.values()) == {1}
        assert not lost

    asyncio.run(run())


@pytest.fixture(scope="module")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    needs_kafka_jars()
    directory: Path = tmp_path_factory.mktemp("apache")
    zookeeper = EmbeddedZooKeeper(directory / "zookeeper")
    zookeeper.start()
    broker = KafkaBroker(
        directory / "kafka", zookeeper.connect,
        settings={
            "transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "2", "offsets.topic.num.partitions": "2",
        },
    )  # fmt: skip
    try:
        broker.start()
        yield broker.bootstrap
    finally:
        broker.stop()
        zookeeper.stop()


def test_apache_kafka_is_a_broker_like_any_other(apache_kafka: str, group: str) -> None:
    admin = AdminClient({"bootstrap.servers": apache_kafka})
    topic = "t"
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(60)
    produce(apache_kafka, topic, 0, COUNT)
    producer = Producer({"bootstrap.servers": apache_kafka, "transactional.id": "tx"})
    producer.init_transactions(60)
    for value, decide in ((b"-1", producer.abort_transaction), (b"-2", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        producer.flush()
        decide(60)

    async def run() -> None:
        settings = {
            "bootstrap.servers": apache_kafka,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "partition.assignment.strategy": "cooperative-sticky",
            "heartbeat.interval.ms": "300",
        }
        seen: Counter[int] = Counter()
        async with Consumer(settings) as first:
            first.subscribe([topic])
            await read_until(first, seen, COUNT + 1)
            async with Consumer(settings) as second:
                second.subscribe([topic])
                async with asyncio.timeout(60):
                    while (len(first.assignment()), len(second.assignment())) != (2, 2):
                        for consumer in (first, second):
                            assert await consumer.poll(0.1) == {}
            assert await first.offsets_for_times({(topic, 0): 2**41}) == {TopicPartition(topic, 0): None}
        assert set(seen.values()) == {1}
        assert -2 in seen
        assert -1 not in seen

    asyncio.run(run())
    other = ConfluentConsumer({"bootstrap.servers": apache_kafka, "group.id": group})
    places = other.committed([ConfluentTopicPartition(topic, n) for n in range(PARTITIONS)], timeout=30)
    ends = [other.get_watermark_offsets(ConfluentTopicPartition(topic, n))[1] for n in range(PARTITIONS)]
    assert [place.offset for place in places] == ends
    other.close()
