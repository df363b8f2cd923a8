"""Our admin client with three brokers, one of which dies: the next one is asked for what it led."""

from __future__ import annotations

import asyncio

import pytest

from ottla.client import errors
from ottla.client.admin import AdminClient, ElectionType, NewTopic, OffsetSpec, TopicPartition
from ottla.local.cluster import LocalCluster, run_admin

pytestmark = pytest.mark.timeout(300)
GROUPS = [f"g-{number}" for number in range(6)]
PARTITIONS = [TopicPartition("spread", number) for number in range(6)]


def replicated(cluster: LocalCluster) -> None:
    cluster.wait_until(
        lambda: cluster.fully_replicated("spread", len(PARTITIONS)), "all replicas to be in sync"
    )


def missed(cluster: LocalCluster, victim: int) -> None:
    """Who has not heard yet would name the dead one among those to ask."""

    def by_all() -> bool:
        at = [(broker.host, broker.port) for broker in cluster.brokers.values() if broker.running]
        answers = [run_admin([each], lambda client: client.describe_cluster()) for each in at]
        return not any(victim in {node.id for node in each.brokers} for each in answers)

    cluster.wait_until(by_all, f"all to have heard that broker {victim} is gone")


def test_a_broker_that_dies_costs_time_and_no_results(cluster: LocalCluster) -> None:
    async def run() -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap) as admin:
            (await admin.create_topics([NewTopic("spread", 6, 3)])).raise_first()
            await asyncio.to_thread(replicated, cluster)
            for group in GROUPS:
                (await admin.alter_group_offsets(group, dict.fromkeys(PARTITIONS, 0))).raise_first()
            coordinators = {g.coordinator.id for g in (await admin.describe_groups(GROUPS)).values()}
            leaders = {p.leader for p in (await admin.describe_topics(["spread"]))["spread"].partitions}
            assert len(coordinators) > 1
            assert leaders == {0, 1, 2}

            victim = min(coordinators)
            cluster.brokers[victim].kill()
            found, offsets, ends = await asyncio.gather(
                admin.describe_groups(GROUPS),
                admin.list_group_offsets(dict.fromkeys(GROUPS)),
                admin.list_offsets(dict.fromkeys(PARTITIONS, OffsetSpec.LATEST)),
            )
            assert {g.state for g in found.raise_first().values()} == {"Empty"}
            assert victim not in {g.coordinator.id for g in found.values()}
            assert [set(each) for each in offsets.raise_first().values()] == [set(PARTITIONS)] * len(GROUPS)
            assert [ends[tp].offset for tp in PARTITIONS] == [0] * 6
            await asyncio.to_thread(missed, cluster, victim)
            listed = (await admin.list_groups()).raise_first()
            assert sorted(g.group_id for groups in listed.values() for g in groups) == GROUPS
            disks = await admin.describe_log_dirs([0, 1, 2])
            assert set(disks) == {0, 1, 2} - {victim}
            assert [error.name for error in disks.errors.values()] == ["BROKER_NOT_AVAILABLE"]

            await asyncio.to_thread(cluster.brokers[victim].start_and_wait)
            await asyncio.to_thread(replicated, cluster)
            elected = await admin.elect_leaders(ElectionType.PREFERRED, PARTITIONS)
            assert {error.name for error in elected.errors.values()} <= {"ELECTION_NOT_NEEDED"}
            with pytest.raises(errors.UnknownTopicOrPartitionError):
                (await admin.delete_records({TopicPartition("nope", 0): 1})).raise_first()
        nobody = AdminClient(bootstrap_servers="127.0.0.1:1")
        with pytest.raises(errors.RetriableError, match=r"127\.0\.0\.1:1"):
            await nobody.list_topics()

    asyncio.run(run())
