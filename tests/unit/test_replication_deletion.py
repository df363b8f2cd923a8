"""DeleteRecords: the leader raises its log start offset, followers do after it; the low watermark shows when
all have."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.replication.delete_records import HIGH_WATERMARK, delete_records, low_watermark
from ottla.storage.log_config import LogConfig
from tests.worlds.replication_cluster import Cluster


def alive(_: int) -> bool:
    return True


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """Ten records on three replicas, all committed."""
    cluster = Cluster(tmp_path)
    for n in range(10):
        cluster.produce(f"v{n}")
    cluster.replicate(2, 3)
    assert cluster.leader.high_watermark == 10
    return cluster


def test_the_low_watermark_follows_the_slowest_replica(cluster: Cluster) -> None:
    leader = cluster.leader
    assert delete_records(leader, 4) == 4
    assert leader.log.log_start_offset == 4
    assert low_watermark(leader, alive) == 0
    cluster.fetch(2)
    cluster.fetch(2)
    assert cluster.nodes[2].log.log_start_offset == 4
    assert low_watermark(leader, alive) == 0, "broker 3 has not heard of it"
    cluster.fetch(3)
    cluster.fetch(3)
    assert low_watermark(leader, alive) == 4


def test_a_replica_whose_broker_is_down_does_not_count(cluster: Cluster) -> None:
    delete_records(cluster.leader, 4)
    cluster.fetch(2)
    cluster.fetch(2)
    assert low_watermark(cluster.leader, lambda broker: broker != 3) == 4


def test_minus_one_deletes_all_committed_records(cluster: Cluster) -> None:
    cluster.produce("not yet committed")
    assert delete_records(cluster.leader, HIGH_WATERMARK) == 10
    assert cluster.leader.log.log_start_offset == 10


def test_an_offset_below_the_log_start_has_no_effect(cluster: Cluster) -> None:
    delete_records(cluster.leader, 6)
    assert delete_records(cluster.leader, 2) == 2
    assert cluster.leader.log.log_start_offset == 6


@pytest.mark.parametrize("offset", [11, -2])
def test_only_committed_records_can_be_deleted(cluster: Cluster, offset: int) -> None:
    cluster.produce("not yet committed")
    with pytest.raises(KafkaError) as refused:
        delete_records(cluster.leader, offset)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert cluster.leader.log.log_start_offset == 0


def test_a_follower_deletes_nothing(cluster: Cluster) -> None:
    with pytest.raises(KafkaError) as refused:
        delete_records(cluster.nodes[2], 1)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(("policy", "allowed"), [("compact", False), ("compact,delete", True)])
def test_the_cleanup_policy_has_to_name_delete(cluster: Cluster, policy: str, allowed: bool) -> None:
    cluster.leader.log.config = LogConfig(cleanup_policy=policy)
    if allowed:
        assert delete_records(cluster.leader, 1) == 1
        return
    with pytest.raises(KafkaError) as refused:
        delete_records(cluster.leader, 1)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION


def test_waiting_followers_are_notified_of_the_new_log_start(cluster: Cluster) -> None:
    cluster.listeners[1].events.clear()
    delete_records(cluster.leader, 4)
    assert cluster.listeners[1].events == [("changed", 4)]
    delete_records(cluster.leader, 4)
    assert cluster.listeners[1].events == [("changed", 4)], "nothing has changed since"
