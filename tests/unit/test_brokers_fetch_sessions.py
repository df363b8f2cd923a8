"""Three brokers follow each other by fetch sessions, through what happens to topics and clocks."""

from __future__ import annotations

import pytest

from ottla.client.admin import AdminClient, TopicPartition
from ottla.replication.partition import Partition
from ottla.server.dispatch.fetch_sessions import FetchSession
from ottla.simulation.cluster import Cluster
from tests.worlds.simulated_brokers import (
    call,
    controller,
    create,
    produce_request,
    replica,
    restart,
    run,
    serving,
    state_of,
    until,
)

SETTINGS = {"replica.lag.time.max.ms": "4000", "auto.leader.rebalance.enable": "false"}
EVERYONE = (0, 1, 2)


def leader_of(cluster: Cluster, topic: str, partition: int = 0) -> Partition:
    found = replica(cluster, state_of(cluster, topic, partition).leader, topic, partition)
    assert found is not None
    return found


async def append(cluster: Cluster, topic: str, partitions: int) -> None:
    """One record for each partition, with acks=1."""
    for number in range(partitions):
        leader = state_of(cluster, topic, number).leader
        answer = await call(cluster, leader, produce_request(topic, ["x"], acks=1, partition=number))
        assert answer.responses[0].partition_responses[0].error_code == 0


def are_replicated(cluster: Cluster, topic: str, partitions: int, *, replicas: int, end: int) -> bool:
    """Whether so many replicas are in sync, have `end` records, and know that they are committed."""
    for number in range(partitions):
        state = state_of(cluster, topic, number)
        found = [replica(cluster, broker, topic, number) for broker in state.isr]
        if len(found) != replicas or state.leader < 0:
            return False
        if any(
            each is None or (each.log.log_end_offset, each.high_watermark) != (end, end) for each in found
        ):
            return False
    return True


def sessions_of(cluster: Cluster, leader: int, follower: int) -> list[FetchSession]:
    broker = cluster.machines[leader].broker
    assert broker is not None
    cached = broker.replication.purgatory.sessions._sessions.values()
    return [session for session in cached if session.replica_id == follower]


def in_step(cluster: Cluster) -> bool:
    """Whether each follower has one session with each leader, of just what it follows there."""
    for leader in serving(cluster):
        for follower in {broker.broker_id for broker in serving(cluster)} - {leader.broker_id}:
            wanted = {
                (each.topic_id, each.partition)
                for each in leader.replication.replicas.partitions()
                if each.is_leader and follower in each.replicas
            }
            sessions = sessions_of(cluster, leader.broker_id, follower)
            seen = [{(w.topic_id, w.asked.partition) for w in s.partitions.values()} for s in sessions]
            if (seen or [set()]) != [wanted]:
                return False
    return True


def is_idle(cluster: Cluster) -> bool:
    """Whether no session has a partition to look at."""
    caches = [broker.replication.purgatory.sessions for broker in serving(cluster)]
    return not any(session.dirty for cache in caches for session in cache._sessions.values())


async def until_replicated(cluster: Cluster, topic: str, partitions: int, *, replicas: int, end: int) -> None:
    await until(
        lambda: are_replicated(cluster, topic, partitions, replicas=replicas, end=end),
        f"{replicas} replicas of {topic} to have {end} records",
    )


async def move(cluster: Cluster, topic: str, moves: dict[int, tuple[int, ...]]) -> None:
    async def request(admin: AdminClient) -> None:
        targets = {TopicPartition(topic, number): target for number, target in moves.items()}
        (await admin.alter_partition_reassignments(targets)).raise_first()

    await cluster.admin(request)


def spread(partitions: int) -> dict[int, tuple[int, ...]]:
    return {n: tuple((n + k) % 3 for k in EVERYONE) for n in range(partitions)}


def test_a_topic_that_is_deleted_and_created_anew_is_followed_anew() -> None:
    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "stays", spread(3))
        for _ in range(2):
            await create(cluster, "again", spread(6))
            await append(cluster, "again", 6)
            await append(cluster, "again", 6)
            await until_replicated(cluster, "again", 6, replicas=3, end=2)
            await until(lambda: in_step(cluster), "sessions of what is followed")
            await until(lambda: is_idle(cluster), "nothing to be left to look at")
            await cluster.admin(lambda admin: admin.delete_topic("again"))
            await until(
                lambda: not any(b.replication.cache.partitions("again") for b in serving(cluster)),
                "the topic to be forgotten",
            )
            await until(lambda: "again" not in cluster.topics(), "the topic to be gone")
            await until(lambda: in_step(cluster), "the sessions to forget it")
        await append(cluster, "stays", 3)
        await until_replicated(cluster, "stays", 3, replicas=3, end=1)

    run(scenario, settings=SETTINGS)


def test_leaders_and_replicas_may_move() -> None:
    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "topic", spread(6))
        await append(cluster, "topic", 6)
        await until_replicated(cluster, "topic", 6, replicas=3, end=1)
        await until(lambda: in_step(cluster), "sessions of what is followed")
        await cluster.stop_broker(2)
        await until(
            lambda: not sessions_of(cluster, 0, 2) + sessions_of(cluster, 1, 2),
            "the sessions of a broker that stops to be closed",
        )
        await until_replicated(cluster, "topic", 6, replicas=2, end=1)
        await append(cluster, "topic", 6)
        await until_replicated(cluster, "topic", 6, replicas=2, end=2)
        await restart(cluster)
        await until_replicated(cluster, "topic", 6, replicas=3, end=2)
        await move(cluster, "topic", {n: (n % 3,) for n in range(6)})
        await until_replicated(cluster, "topic", 6, replicas=1, end=2)
        await until(lambda: in_step(cluster), "nothing to be followed")
        await append(cluster, "topic", 6)
        await move(cluster, "topic", {n: (n % 3, (n + 1) % 3) for n in range(6)})
        await until_replicated(cluster, "topic", 6, replicas=2, end=3)
        await until(lambda: in_step(cluster), "sessions of what is followed")

    run(scenario, settings=SETTINGS)


def test_an_idle_follower_is_in_sync_at_the_next_record() -> None:
    """Its polls did not look at the partition for longer than replica.lag.time.max.ms."""

    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "topic")
        await append(cluster, "topic", 1)
        await until_replicated(cluster, "topic", 1, replicas=3, end=1)
        await until(lambda: is_idle(cluster), "nothing to be left to look at")
        leader = leader_of(cluster, "topic")
        began_s = cluster.loop.now
        await until(lambda: cluster.loop.now > began_s + 8.0, "twice the lag time to have passed")
        assert is_idle(cluster)
        await append(cluster, "topic", 1)
        leader.maybe_shrink_isr(cluster.machines[leader.broker_id].clock.monotonic_ms())
        assert leader.isr_change is None
        assert len(leader.isr) == 3
        await until_replicated(cluster, "topic", 1, replicas=3, end=2)

    run(scenario, settings=SETTINGS)


def test_a_follower_that_lost_its_fetch_session_begins_another() -> None:
    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "topic", spread(3))
        await until(lambda: in_step(cluster), "sessions of what is followed")
        for broker in serving(cluster):
            cache = broker.replication.purgatory.sessions
            for session in list(cache._sessions.values()):
                cache._remove(session)
        await append(cluster, "topic", 3)
        await until_replicated(cluster, "topic", 3, replicas=3, end=1)
        await until(lambda: in_step(cluster), "sessions again")

    run(scenario, settings=SETTINGS)


@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000], ids=["forth", "back"])
def test_the_clocks_are_set_by_an_hour(step_ms: int) -> None:
    """Nobody leaves the ISR for that; and a broker that hangs afterwards does, as soon as ever."""

    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "topic")
        await append(cluster, "topic", 1)
        await until_replicated(cluster, "topic", 1, replicas=3, end=1)
        leader = leader_of(cluster, "topic")
        epoch = leader.partition_epoch
        for machine in cluster.machines.values():
            machine.clock.wall_offset_ms += step_ms
        await append(cluster, "topic", 1)
        await until_replicated(cluster, "topic", 1, replicas=3, end=2)
        began_s = cluster.loop.now
        await until(lambda: cluster.loop.now > began_s + 8.0, "twice the lag time to have passed")
        assert leader.partition_epoch == epoch

        away = max(set(EVERYONE) - {leader.broker_id, controller(cluster)})
        cluster.pause(away)
        await append(cluster, "topic", 1)
        await until(lambda: away not in leader.isr, "the ISR to be smaller", timeout_s=8.0)
        cluster.resume(away)

    run(scenario, settings={**SETTINGS, "zookeeper.session.timeout.ms": "18000"})
