"""A consumer with many partitions on three brokers: every record comes, and soon, whatever the other
partitions have. tests/interop has the same for consumers in threads."""

from __future__ import annotations

import random

from ottla.client import Consumer, Producer, TopicPartition
from ottla.simulation.cluster import Cluster
from tests.worlds.simulated_brokers import create, run

IDLE_PARTITIONS = 180
BACKLOG_PARTITIONS = 40
BACKLOG_RECORDS = 100
"""In each partition that has any, of a KiB."""
BACKLOGGED = [number for number in range(BACKLOG_PARTITIONS) if number % 3]
"""Not those of the first broker, which has nothing and waits."""
POSITIONS_FOUND_S = 5.0
SOON_S = 0.1


async def poll(consumer: Consumer, count: int) -> dict[TopicPartition, int]:
    """Read so many records, and no more; their numbers by partition."""
    found: dict[TopicPartition, int] = {}
    while sum(found.values()) < count:
        for place, records in (await consumer.poll(0.5)).items():
            found[place] = found.get(place, 0) + len(records)
    return found


async def poll_without_records(cluster: Cluster, consumer: Consumer) -> None:
    """Poll until positions are found and all brokers are asked."""
    until_s = cluster.loop.now + POSITIONS_FOUND_S
    while cluster.loop.now < until_s:
        assert not await consumer.poll(0.5)


def test_a_record_of_any_of_180_idle_partitions_is_returned_soon() -> None:
    async def read(cluster: Cluster) -> None:
        places = [TopicPartition("idle", number) for number in range(IDLE_PARTITIONS)]
        async with (
            Producer(bootstrap_servers=cluster.bootstrap) as producer,
            Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer,
        ):
            consumer.assign(places)
            await poll_without_records(cluster, consumer)
            for place in random.Random(16).sample(places, 12):
                await producer.send_and_wait(place.topic, b"x", partition=place.partition)
                written_s = cluster.loop.now
                assert await poll(consumer, 1) == {place: 1}
                assert cluster.loop.now - written_s < SOON_S

    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "idle", {n: [n % 3] for n in range(IDLE_PARTITIONS)}, min_insync_replicas="1")
        await cluster.in_process("reader", read(cluster))

    run(scenario)


def test_a_backlog_is_read_with_a_mib_while_a_broker_has_nothing() -> None:
    async def read(cluster: Cluster) -> None:
        places = [TopicPartition("backlog", number) for number in range(BACKLOG_PARTITIONS)]
        async with (
            Producer(bootstrap_servers=cluster.bootstrap, linger_ms=50) as producer,
            Consumer(
                bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", fetch_max_bytes=1 << 20
            ) as consumer,
        ):
            consumer.assign(places)
            await poll_without_records(cluster, consumer)
            for number in BACKLOGGED:
                for _ in range(BACKLOG_RECORDS):
                    await producer.send("backlog", bytes(1000), partition=number)
            await producer.flush()
            written_s = cluster.loop.now
            found = await poll(consumer, len(BACKLOGGED) * BACKLOG_RECORDS)
            assert found == {places[number]: BACKLOG_RECORDS for number in BACKLOGGED}
            assert cluster.loop.now - written_s < SOON_S

    async def scenario(cluster: Cluster) -> None:
        placed = {n: [n % 3] for n in range(BACKLOG_PARTITIONS)}
        await create(cluster, "backlog", placed, min_insync_replicas="1")
        await cluster.in_process("reader", read(cluster))

    run(scenario)
