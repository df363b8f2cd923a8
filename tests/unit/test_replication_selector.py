"""The preferred read replica of a consumer (KIP-392)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.metadata.config import BrokerConfig, ConfigError
from ottla.replication.replica_selector import SELECTORS, ReplicaView, preferred_replica, rack_aware
from tests.worlds.replication_cluster import LAG_MS_MAX, Cluster

LEADER = ReplicaView(1, "a", 10, 0)


def view(broker_id: int, rack: str | None, end: int = 10, ago_ms: int = 0) -> ReplicaView:
    return ReplicaView(broker_id, rack, end, ago_ms)


def test_a_replica_in_the_consumers_rack_is_preferred() -> None:
    assert rack_aware("b", LEADER, [view(2, "b"), view(3, "c")]) == 2


@pytest.mark.parametrize("rack", ["", "a", "z"])
def test_the_leader_serves_its_own_rack_and_racks_without_replica(rack: str) -> None:
    assert rack_aware(rack, LEADER, [view(2, "b"), view(3, None), view(4, "a")]) is None


def test_the_replica_with_the_highest_offset_is_preferred() -> None:
    assert rack_aware("b", LEADER, [view(4, "b", end=8), view(2, "b", end=9), view(3, "b", end=7)]) == 2
    assert rack_aware("b", LEADER, [view(2, "b", ago_ms=5), view(3, "b", ago_ms=4)]) == 3
    assert rack_aware("b", LEADER, [view(3, "b"), view(2, "b")]) == 3


def test_only_followers_that_can_serve_the_offset_are_chosen(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    racks = {1: "a", 2: "b", 3: "b"}

    def chosen(offset: int, rack: str = "b") -> int | None:
        return preferred_replica(rack_aware, cluster.leader, rack, racks.get, offset, cluster.now_ms)

    assert chosen(0) is None, "no follower has fetched yet"
    cluster.produce("one", "two")
    cluster.replicate()
    cluster.replicate()
    assert chosen(0) == chosen(2) == 3
    assert chosen(3) is None
    cluster.produce("three")
    for _ in range(3):
        cluster.fetch(2)
    assert chosen(3) == 2, "the other one has not got it yet"
    cluster.now_ms += LAG_MS_MAX + 1
    cluster.fetch(2)
    cluster.leader.maybe_shrink_isr(cluster.now_ms)
    cluster.decide_proposals()
    assert cluster.isr == [1, 2]
    assert chosen(0) == 2, "the other one is not in sync"
    assert chosen(0, rack="a") is None


def test_the_setting_takes_kafkas_class_name_and_no_other() -> None:
    [name] = SELECTORS
    settings = {"broker.id": "1", "zookeeper.connect": "localhost:1"}
    assert BrokerConfig.from_properties(settings)["replica.selector.class"] is None
    config = BrokerConfig.from_properties({**settings, "replica.selector.class": name})
    assert SELECTORS[config.get_str("replica.selector.class")] is rack_aware
    with pytest.raises(ConfigError, match=r"replica.selector.class"):
        BrokerConfig.from_properties({**settings, "replica.selector.class": "org.example.Mine"})
