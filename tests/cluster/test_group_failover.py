"""A consumer group continues when its coordinator is killed, restarted, or shut down."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import bring_back, cluster_for_faults, start_and_end
from group_members import WatchedGroup
from oracles import needs_kafka_jars
from verify import VerifiableProducer

from ottla.client.admin_types import TopicPartition
from ottla.local.cluster import LocalCluster

PARTITIONS = 4
pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    needs_kafka_jars()
    with cluster_for_faults(tmp_path_factory.mktemp("groups")) as running:
        yield running


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name.removeprefix("test_")
    cluster.create_topic(name, partitions=PARTITIONS, replicas=3, min_insync_replicas="2")
    yield name
    bring_back(cluster)


def finish(group: WatchedGroup, producer: VerifiableProducer) -> None:
    """Everything acknowledged was read; the group's offsets are the ends of the partitions."""
    producer.stop()
    assert producer.errors == []
    cluster = group.cluster

    def all_read() -> bool:
        group.check()
        return group.seen >= producer.acknowledged.keys()

    cluster.wait_until(all_read, "every record to be read")

    def all_committed() -> bool:
        group.check()
        offsets = cluster.admin(lambda client: client.group_offsets(group.group))
        return all(
            offsets.get(TopicPartition(group.topic, p), 0) == start_and_end(cluster, group.topic, p)[1]
            for p in range(PARTITIONS)
        )

    cluster.wait_until(all_committed, "the ends to be committed")


def test_the_coordinator_killed_while_a_group_reads(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    with (
        VerifiableProducer(cluster.bootstrap, topic, tmp_path) as producer,
        WatchedGroup(cluster, topic, "killed") as group,
    ):
        group.wait_until_stable()
        group.wait_for_more(500)
        victim = group.coordinator()
        cluster.brokers[victim].kill()
        group.wait_until_stable(not_at=victim)
        group.wait_for_more(500)
        cluster.brokers[victim].start()
        bring_back(cluster)
        group.wait_until_stable()
        group.wait_for_more(500)
        finish(group, producer)


def test_controlled_shutdown_of_each_broker_while_a_group_reads(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    with (
        VerifiableProducer(cluster.bootstrap, topic, tmp_path) as producer,
        WatchedGroup(cluster, topic, "rolled") as group,
    ):
        group.wait_until_stable()
        group.wait_for_more(300)
        for broker in cluster.brokers.values():
            assert broker.stop(timeout_s=90), broker.log_tail()
            group.wait_until_stable(not_at=broker.broker_id)
            group.wait_for_more(300)
            broker.start()
            bring_back(cluster)
        group.wait_until_stable()
        finish(group, producer)
