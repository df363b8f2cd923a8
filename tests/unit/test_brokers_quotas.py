"""How fast clients of ours are that would be faster than they may, in simulated time. tests/interop has other
people's clients, and compares what each answer says with Kafka's own classes."""

from __future__ import annotations

import pytest

from ottla.cli.reassignment_plan import FOLLOWER_RATE, LEADER_RATE
from ottla.client import Consumer, ConsumerRecord, Producer, TopicPartition
from ottla.client.admin import AdminClient, ConfigChange, ConfigResource, ConfigType
from ottla.simulation.cluster import Cluster
from tests.worlds.simulated_brokers import create, in_sync, run, until

LIMIT = 400_000
WINDOWS = 3
"""Three windows of a second: what may be sent in three seconds can all be sent in the first of them, so
speeds are looked at over whole cycles of three."""
SPAN_S = 2 * WINDOWS
VALUE = bytes(1000)
RECORDS = (SPAN_S + 2 * WINDOWS) * LIMIT // len(VALUE)
RATES: dict[str, float | None] = {"producer_byte_rate": float(LIMIT), "consumer_byte_rate": float(LIMIT)}


async def produce(cluster: Cluster, client_id: str, acks: int) -> None:
    async with Producer(
        bootstrap_servers=cluster.bootstrap, client_id=client_id, acks=acks, enable_idempotence=False
    ) as producer:
        for _ in range(RECORDS):
            await producer.send("t", VALUE, partition=0)
        await producer.flush()


async def consume(cluster: Cluster, client_id: str) -> list[tuple[float, ConsumerRecord]]:
    """The records, and when each had come."""
    found: list[tuple[float, ConsumerRecord]] = []
    async with Consumer(
        bootstrap_servers=cluster.bootstrap,
        client_id=client_id,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=65_536,
    ) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        while len(found) < RECORDS:
            for records in (await consumer.poll(1)).values():
                found += [(cluster.loop.now, record) for record in records]
    return found


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_producers_are_throttled_to_their_quotas(acks: int) -> None:
    """By the times at which the broker wrote the records: with acks=0 the client does not know."""
    times: list[float] = []

    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "t", {0: [0]}, min_insync_replicas="1", message_timestamp_type="LogAppendTime")
        await cluster.admin(lambda admin: admin.alter_client_quota({"client-id": "hurried"}, RATES))
        await cluster.in_process("client", produce(cluster, "hurried", acks))
        for _, record in await cluster.in_process("reader", consume(cluster, "free")):
            times.append(record.timestamp_ms / 1000)

    run(scenario, brokers=1, settings={"quota.window.num": str(WINDOWS)})
    check_rate(times, 0.75)


def test_consumers_are_throttled_to_their_quotas() -> None:
    times: list[float] = []

    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "t", {0: [0]}, min_insync_replicas="1")
        await cluster.admin(lambda admin: admin.alter_client_quota({"client-id": "hurried"}, RATES))
        await cluster.in_process("client", produce(cluster, "free", 1))
        times.extend(at for at, _ in await cluster.in_process("reader", consume(cluster, "hurried")))

    run(scenario, brokers=1, settings={"quota.window.num": str(WINDOWS)})
    check_rate(times, 0.6)  # with few windows a consumer's empty answers cost it a fifth


def check_rate(times: list[float], least: float) -> None:
    """Over whole cycles, on the average of all phases that these may begin in."""
    assert len(times) == RECORDS
    phases = [times[0] + n * WINDOWS / 60 for n in range(60)]
    counted = sum(start <= at < start + SPAN_S for start in phases for at in times)
    rate = counted * len(VALUE) / len(phases) / SPAN_S
    assert least * LIMIT < rate <= LIMIT


def test_only_the_replicas_that_a_throttle_names_are_held_back() -> None:
    rate, records = 120_000, 1_500
    took_s: list[float] = []

    async def scenario(cluster: Cluster) -> None:
        throttled = {"leader_replication_throttled_replicas": "0:0"}
        throttled["follower_replication_throttled_replicas"] = "0:1"
        await create(cluster, "moving", {0: [0]}, min_insync_replicas="1", **throttled)
        await create(cluster, "standing", {0: [0, 1]})
        rates = [ConfigChange(name, str(rate)) for name in (LEADER_RATE, FOLLOWER_RATE)]
        brokers = {ConfigResource(ConfigType.BROKER, str(broker)): rates for broker in range(2)}

        async def limit(admin: AdminClient) -> None:
            (await admin.incremental_alter_configs(brokers)).raise_first()

        async def move(admin: AdminClient) -> None:
            (await admin.alter_partition_reassignments({TopicPartition("moving", 0): [1]})).raise_first()

        async def write(topic: str, count: int) -> None:
            async with Producer(bootstrap_servers=cluster.bootstrap, acks=-1) as producer:
                for _ in range(count):
                    await producer.send(topic, VALUE, partition=0)
                await producer.flush()

        await cluster.admin(limit)
        await cluster.in_process("before", write("moving", records))
        began = cluster.loop.now
        await cluster.admin(move)
        await cluster.in_process("meanwhile", write("standing", 100))
        took_s.append(cluster.loop.now - began)
        await until(lambda: in_sync(cluster, "moving") == {1}, "the move to end")
        took_s.append(cluster.loop.now - began)

    run(scenario, brokers=2)
    others, moved = took_s
    assert others < 1, "replicas that no throttle names wait for nothing"
    # The first windows' worth may come at once.
    assert records * len(VALUE) / rate - 3 < moved < records * len(VALUE) / rate + 3
