"""The admin client while one of three brokers dies: the next broker is asked for what it led."""

from __future__ import annotations

import asyncio

import pytest

from ottla.client import errors
from ottla.client.admin import AdminClient, ElectionType, OffsetSpec, TopicPartition
from ottla.simulation.cluster import Cluster
from tests.worlds.simulated_brokers import create, restart, run, serving, until

GROUPS = [f"g-{number}" for number in range(6)]
PLACES = [TopicPartition("spread", number) for number in range(6)]


def test_a_broker_failure_delays_results_and_loses_none() -> None:
    async def ask_all(cluster: Cluster, admin: AdminClient) -> None:
        for group in GROUPS:
            (await admin.alter_group_offsets(group, dict.fromkeys(PLACES, 0))).raise_first()
        coordinators = {each.coordinator.id for each in (await admin.describe_groups(GROUPS)).values()}
        assert len(coordinators) > 1

        victim = min(coordinators)
        cluster.kill(victim)
        found, offsets, ends = await asyncio.gather(
            admin.describe_groups(GROUPS),
            admin.list_group_offsets(dict.fromkeys(GROUPS)),
            admin.list_offsets(dict.fromkeys(PLACES, OffsetSpec.LATEST)),
        )
        assert {each.state for each in found.raise_first().values()} == {"Empty"}
        assert victim not in {each.coordinator.id for each in found.values()}
        assert [set(each) for each in offsets.raise_first().values()] == [set(PLACES)] * len(GROUPS)
        assert [ends[place].offset for place in PLACES] == [0] * 6
        # A broker that has not learned it yet would name the dead one among those to ask.
        await until(
            lambda: not any(broker.replication.cache.is_alive(victim) for broker in serving(cluster)),
            "all to have learned that it is gone",
        )
        listed = (await admin.list_groups()).raise_first()
        assert sorted(each.group_id for groups in listed.values() for each in groups) == GROUPS
        disks = await admin.describe_log_dirs([0, 1, 2])
        assert set(disks) == {0, 1, 2} - {victim}
        assert [error.name for error in disks.errors.values()] == ["BROKER_NOT_AVAILABLE"]

        await restart(cluster)
        elected = await admin.elect_leaders(ElectionType.PREFERRED, PLACES)
        assert {error.name for error in elected.errors.values()} <= {"ELECTION_NOT_NEEDED"}
        with pytest.raises(errors.UnknownTopicOrPartitionError):
            (await admin.delete_records({TopicPartition("nope", 0): 1})).raise_first()

    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "spread", {n: (n % 3, (n + 1) % 3, (n + 2) % 3) for n in range(6)})
        await cluster.admin(lambda admin: ask_all(cluster, admin))

    run(scenario, settings={"offsets.topic.num.partitions": "6"})


def test_a_cluster_that_is_away_is_an_error_that_names_its_address() -> None:
    async def ask() -> None:
        async with AdminClient(bootstrap_servers="broker-0:1", default_api_timeout_ms=5_000) as admin:
            with pytest.raises(errors.RetriableError, match="broker-0:1"):
                await admin.list_topics()

    async def scenario(cluster: Cluster) -> None:
        await cluster.in_process("client", ask())

    run(scenario, brokers=1)
