"""BrokerPools: their brokers' ids, moves between pools, removals, revisions, and what the statuses say."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_operator.planning.observed import (
    BrokerInstance,
    KafkaState,
    Observed,
    PartitionState,
    TopicState,
    VolumeLoss,
    ZooKeeperState,
)
from ottla_operator.planning.pools import assign_brokers
from ottla_operator.resources import BrokerCluster, BrokerClusterStatus, BrokerPool, BrokerPoolStatus
from ottla_operator.resources.loading import parse_resource
from ottla_operator.resources.pool import listed_ids
from tests.worlds.operator_simulation import OperatorSimulation

REF = {"clusterRef": {"name": "demo"}}


@pytest.fixture
def sim() -> OperatorSimulation:
    return OperatorSimulation()


def pool_status(sim: OperatorSimulation, name: str = "fast") -> BrokerPoolStatus:
    status = sim.status(f"BrokerPool/{name}")
    assert isinstance(status, BrokerPoolStatus)
    return status


def cluster_status(sim: OperatorSimulation) -> BrokerClusterStatus:
    status = sim.status()
    assert isinstance(status, BrokerClusterStatus)
    return status


def holders(sim: OperatorSimulation) -> set[int]:
    return {b for topic in sim.cluster.topics.values() for p in topic.partitions for b in p.replicas}


def settle(sim: OperatorSimulation) -> None:
    """Reconcile until all is Ready and a reconciliation does nothing."""
    for _ in range(10):
        sim.reconcile_until_ready()
        if not sim.reconcile():
            break
    assert sim.reconcile() == []
    assert sim.cluster.violations == []


def moves(sim: OperatorSimulation) -> list[str]:
    return [line for line in sim.cluster.log if line.startswith("reassign")]


# ---- ids


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("[]", []),
        ("[1001]", [1001]),
        ("1001", [1001]),
        ("[ 1010-1012, 1001 ]", [1010, 1011, 1012, 1001]),
    ],
)
def test_an_annotation_lists_ids_and_ranges(text: str, expected: list[int]) -> None:
    assert listed_ids(text) == (expected, "")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[a]", "such as [1000-1002,1010]"),
        ("[1000,]", "such as [1000-1002,1010]"),
        ("[3]", "ids of pools are 1000 to 9999"),
        ("[1005-1001]", "ids of pools are 1000 to 9999"),
        ("[9999-10000]", "ids of pools are 1000 to 9999"),
    ],
)
def test_a_wrong_list_has_no_ids_and_says_what_is_allowed(text: str, named: str) -> None:
    ids, problem = listed_ids(text)
    assert ids == []
    assert named in problem


def a_cluster(replicas: int = 3) -> BrokerCluster:
    resource, problems = parse_resource("BrokerCluster", {"name": "demo"}, {"replicas": replicas})
    assert isinstance(resource, BrokerCluster), problems
    return resource


def a_pool(
    name: str, replicas: int, ids: Sequence[int] = (), annotations: dict[str, str] | None = None
) -> BrokerPool:
    metadata = {"name": name, "annotations": annotations or {}, "creationTimestamp": f"2024-{name}"}
    spec = {**REF, "replicas": replicas}
    resource, problems = parse_resource("BrokerPool", metadata, spec, {"brokerIds": list(ids)})
    assert isinstance(resource, BrokerPool), problems
    return resource


def state(
    pools: dict[int, str],
    *,
    registered: Sequence[int] = (),
    holding: Sequence[int] = (),
    reachable: bool = True,
) -> Observed:
    brokers = {b: BrokerInstance(b, "Running", ready=True, pool=pool) for b, pool in pools.items()}
    partition = PartitionState("t", 0, 0, tuple(holding), tuple(holding))
    kafka = KafkaState(
        reachable=reachable,
        controller_id=0 if reachable else -1,
        brokers=frozenset({0, *registered, *pools}) if reachable else frozenset(),
        topics={"t": TopicState("t", "id", (partition,))} if holding else {},
    )
    return Observed(ZooKeeperState(True), brokers, kafka, 0)


def ids_of(observed: Observed, *pools: BrokerPool) -> dict[str, tuple[int, ...]]:
    return {each.name: each.brokers for each in assign_brokers(a_cluster(), pools, observed)}


def test_the_brokers_of_a_pool_have_the_lowest_free_ids() -> None:
    assert ids_of(state({0: ""}), a_pool("a", 2), a_pool("b", 1)) == {"a": (1000, 1001), "b": (1002,)}


def test_no_id_is_used_while_a_registration_or_a_replica_has_it() -> None:
    observed = state({0: ""}, registered=[1000], holding=[0, 1002])
    assert ids_of(observed, a_pool("a", 3)) == {"a": (1001, 1003, 1004)}


def test_an_annotation_chooses_the_next_ids_as_far_as_they_are_free() -> None:
    wanted = a_pool("a", 4, annotations={"ottla.dev/next-broker-ids": "[1100-1101,1000]"})
    assert ids_of(state({0: ""}, registered=[1101]), wanted) == {"a": (1000, 1001, 1002, 1100)}


def test_the_highest_ids_leave_unless_an_annotation_names_others() -> None:
    observed = state({0: "", **dict.fromkeys(range(1000, 1004), "a")})
    assert ids_of(observed, a_pool("a", 2, range(1000, 1004))) == {"a": (1000, 1001)}
    named = a_pool("a", 2, range(1000, 1004), {"ottla.dev/remove-broker-ids": "[1001]"})
    (found,) = assign_brokers(a_cluster(), [named], observed)
    assert (found.brokers, found.leaving) == ((1000, 1002), (1001, 1003))


def test_a_pool_without_a_status_keeps_the_brokers_that_were_started_for_it() -> None:
    observed = state({0: "", 1003: "a", 1007: "a", 1001: "b"})
    assert ids_of(observed, a_pool("a", 3), a_pool("b", 1)) == {"a": (1000, 1003, 1007), "b": (1001,)}


def test_a_pool_that_grows_again_keeps_a_broker_that_was_leaving() -> None:
    observed = state({0: "", 1000: "a", 1005: "a"})
    assert ids_of(observed, a_pool("a", 2, [1000])) == {"a": (1000, 1005)}


def test_new_ids_wait_for_a_controller_once_brokers_exist() -> None:
    assert ids_of(state({0: ""}, reachable=False), a_pool("a", 2)) == {"a": ()}
    assert ids_of(state({}, reachable=False), a_pool("a", 2)) == {"a": (1000, 1001)}, "a new cluster"


@given(
    replicas=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    recorded=st.lists(st.sets(st.integers(1000, 1006)), min_size=3, max_size=3),
    existing=st.dictionaries(st.integers(1000, 1006), st.sampled_from(["", "0", "1", "2", "gone"])),
    registered=st.sets(st.integers(1000, 1006)),
)
def test_ids_are_unique_kept_and_not_reused(
    replicas: list[int],
    recorded: list[set[int]],
    existing: dict[int, str],
    registered: set[int],
) -> None:
    pools = [a_pool(str(n), count, sorted(recorded[n])) for n, count in enumerate(replicas)]
    observed = state({0: "", **existing}, registered=sorted(registered))
    found = assign_brokers(a_cluster(), pools, observed)
    ids = [broker for each in found for broker in each.brokers]
    assert len(ids) == len(set(ids))
    for pool, each in zip(pools, found, strict=True):
        assert len(each.brokers) == pool.spec.replicas
        others = {broker for broker, of in existing.items() if of not in ("", each.name)}
        assert not others & {*each.brokers}, "the broker of another pool"
        new = (
            {*each.brokers} - {*pool.status.broker_ids} - {b for b, of in existing.items() if of == each.name}
        )
        assert not new & (registered | {*existing})
    again = [a_pool(str(n), count, found[n].brokers) for n, count in enumerate(replicas)]
    assert [each.brokers for each in assign_brokers(a_cluster(), again, observed)] == [
        e.brokers for e in found
    ]


def test_the_id_of_a_volume_that_was_kept_is_for_its_own_pool() -> None:
    kept = {1000: "a", 1001: "", 1002: "b"}
    pools = [a_pool("a", 2), a_pool("b", 2)]
    found = assign_brokers(a_cluster(), pools, state({0: ""}), kept)
    assert {each.name: each.brokers for each in found} == {"a": (1000, 1003), "b": (1002, 1004)}


def test_a_pool_without_a_status_keeps_its_brokers_while_there_is_no_controller() -> None:
    (found,) = assign_brokers(a_cluster(), [a_pool("a", 1)], state({0: "", 1003: "a"}, reachable=False))
    assert (found.brokers, found.leaving) == ((1003,), ())


# ---- a cluster with pools


def test_a_pool_gets_brokers_and_replicas_move_onto_them(sim: OperatorSimulation) -> None:
    sim.apply_cluster(3)
    sim.apply_topic("t", partitions=10)
    settle(sim)
    sim.apply_pool("fast", 2, rack="west")
    settle(sim)
    assert pool_status(sim).broker_ids == [1000, 1001]
    assert (pool_status(sim).replicas, pool_status(sim).ready_replicas) == (2, 2)
    assert pool_status(sim).selector == "ottla.dev/cluster=demo,ottla.dev/pool=fast"
    assert {0, 1, 2, 1000, 1001} == holders(sim)
    status = cluster_status(sim)
    assert (status.replicas, status.desired_brokers, status.ready_replicas) == (3, 5, 5)
    assert [(b.id, b.pool) for b in status.brokers][2:] == [(2, ""), (1000, "fast"), (1001, "fast")]
    assert sim.cluster.brokers[1000].launch.static["broker.rack"] == "west"
    assert "broker.rack" not in sim.cluster.brokers[0].launch.static


def test_a_pool_restarts_no_broker_of_others(sim: OperatorSimulation) -> None:
    sim.apply_cluster(3)
    settle(sim)
    sim.cluster.log.clear()
    sim.apply_pool("fast", 1, rack="a")
    settle(sim)
    sim.apply_pool("fast", 1, rack="b")
    settle(sim)
    stopped = [line for line in sim.cluster.log if line.startswith("stop")]
    assert stopped == ["stop 1000"], "a change of the pool restarts its brokers, and only them"


def test_any_broker_of_a_pool_may_leave(sim: OperatorSimulation) -> None:
    sim.apply_cluster(1)
    sim.apply_pool("fast", 3)
    sim.apply_topic("t", partitions=9, replicas=2)
    settle(sim)
    ref = {**REF, "replicas": 2}
    sim.apply("BrokerPool", "fast", ref, remove_broker_ids="[1001]")
    sim.reconcile()
    assert pool_status(sim).leaving_broker_ids == [1001]
    assert sim.condition("BrokerPool/fast")[1] == "ScaleDown"
    settle(sim)
    assert pool_status(sim).broker_ids == [1000, 1002]
    assert set(sim.cluster.brokers) == {0, 1000, 1002}


def test_a_move_to_another_pool_moves_each_replica_once(sim: OperatorSimulation) -> None:
    sim.apply_cluster(0)
    sim.apply_pool("old", 3)
    sim.apply_topic("t", partitions=12)
    settle(sim)
    moved: list[str] = []
    sim.apply_pool("old", 0)
    sim.apply_pool("new", 3)
    for _ in range(400):
        moved += [step for step in sim.reconcile() if step.startswith("reassign")]
        if not pool_status(sim, "old").replicas:
            break
    settle(sim)
    assert pool_status(sim, "old").replicas == 0
    assert holders(sim) == {1003, 1004, 1005}
    assert sum(int(step.split()[1]) for step in moved) == 12, moved


def test_the_clusters_own_pool_may_have_no_brokers(sim: OperatorSimulation) -> None:
    sim.apply_cluster(3)
    sim.apply_topic("t", partitions=6)
    settle(sim)
    sim.apply_pool("fast", 3)
    sim.apply_cluster(0)
    settle(sim)
    assert set(sim.cluster.brokers) == {1000, 1001, 1002}
    assert holders(sim) == {1000, 1001, 1002}
    assert cluster_status(sim).replicas == 0


@pytest.mark.parametrize("policy", ["Drain", "Force"])
def test_a_cluster_without_any_broker_to_stay_keeps_those_that_it_has(
    sim: OperatorSimulation, policy: str
) -> None:
    sim.apply_cluster(2, scaleDown={"policy": policy})
    sim.apply_topic("t", partitions=4, replicas=2)
    settle(sim)
    sim.apply_cluster(0, scaleDown={"policy": policy})
    for _ in range(20):
        sim.reconcile()
    assert sim.condition("BrokerCluster/demo")[1] == "NoBrokers"
    assert sim.cluster.live() == {0, 1}


def test_the_brokers_of_a_deleted_pool_are_drained_and_nothing_waits_for_it(sim: OperatorSimulation) -> None:
    sim.apply_cluster(3)
    sim.apply_pool("fast", 2)
    sim.apply_topic("t", partitions=10)
    settle(sim)
    sim.store.delete("BrokerPool/fast")
    sim.reconcile()
    assert "BrokerPool/fast" not in sim.store.stored
    assert {b.id: b.state for b in cluster_status(sim).brokers}[1000] == "Draining"
    settle(sim)
    assert set(sim.cluster.brokers) == {0, 1, 2}


def test_a_deleted_pool_that_is_created_again_keeps_its_brokers(sim: OperatorSimulation) -> None:
    sim.apply_cluster(3)
    sim.apply_pool("fast", 2)
    sim.apply_topic("t", partitions=10)
    settle(sim)
    sim.store.delete("BrokerPool/fast")
    sim.reconcile()
    sim.cluster.log.clear()
    sim.apply_pool("fast", 2)
    settle(sim)
    assert pool_status(sim).broker_ids == [1000, 1001]
    assert [line for line in sim.cluster.log if line.startswith(("stop", "remove"))] == []


def test_a_pool_that_cannot_be_read_keeps_its_brokers(
    sim: OperatorSimulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim.apply_cluster(3)
    sim.apply_pool("fast", 1)
    sim.apply_topic("t", partitions=4)
    settle(sim)
    del sim.store.stored["BrokerPool/fast"]
    monkeypatch.setattr(sim.store, "withheld", lambda: ["BrokerPool/fast"])
    for _ in range(20):
        assert sim.reconcile() == []
    status, reason, message = sim.condition("BrokerCluster/demo")
    assert (status, reason) == ("False", "PoolInvalid")
    assert "BrokerPool/fast" in message
    assert 1000 in sim.cluster.live()


def test_a_policy_that_blocks_keeps_the_brokers_that_hold_replicas(sim: OperatorSimulation) -> None:
    sim.apply_cluster(3, scaleDown={"policy": "Block"})
    sim.apply_pool("fast", 1)
    sim.apply_topic("t", partitions=8)
    settle(sim)
    sim.apply_pool("fast", 0)
    for _ in range(20):
        sim.reconcile()
    assert sim.condition("BrokerCluster/demo")[1] == "ScaleDownBlocked"
    assert 1000 in sim.cluster.live()


def test_a_pool_rolls_one_broker_at_a_time_with_all_others_of_the_cluster(sim: OperatorSimulation) -> None:
    sim.apply_cluster(2)
    sim.apply_pool("fast", 2)
    sim.apply_topic("t", partitions=6, replicas=3, config={"min.insync.replicas": "2"})
    settle(sim)
    sim.cluster.max_unavailable = 0
    sim.cluster.log.clear()
    sim.apply_cluster(2, config={"replica.fetch.wait.max.ms": "400"})
    settle(sim)
    stopped = [line for line in sim.cluster.log if line.startswith("stop")]
    assert sorted(stopped) == ["stop 0", "stop 1", "stop 1000", "stop 1001"]
    assert sim.cluster.max_unavailable == 1


def test_a_pool_of_no_cluster_says_so(sim: OperatorSimulation) -> None:
    sim.apply_pool("fast", 1)
    sim.reconcile()
    assert sim.condition("BrokerPool/fast")[1] == "ClusterNotFound"
    sim.store.delete("BrokerPool/fast")
    sim.reconcile()
    assert sim.store.stored == {}


def test_a_wrong_annotation_is_a_warning(sim: OperatorSimulation) -> None:
    sim.apply_cluster(1)
    sim.apply("BrokerPool", "fast", {**REF, "replicas": 1}, next_broker_ids="[3]")
    settle(sim)
    (warning,) = pool_status(sim).warnings
    assert warning.startswith("metadata.annotations[ottla.dev/next-broker-ids]: 3 is not allowed")
    assert pool_status(sim).broker_ids == [1000]


def test_hibernation_covers_the_brokers_of_pools(sim: OperatorSimulation) -> None:
    sim.apply_cluster(2)
    sim.apply_pool("fast", 2)
    sim.apply_topic("t", partitions=6)
    settle(sim)
    sim.apply("BrokerCluster", "demo", {"replicas": 2, "config": {}}, hibernate="true")
    for _ in range(20):
        sim.reconcile()
    assert sim.cluster.live() == set()
    assert sim.condition("BrokerCluster/demo")[1] == "Hibernated"
    sim.cluster.violations.clear()  # all brokers were stopped at the same time
    sim.apply_cluster(2)
    settle(sim)
    assert sim.cluster.live() == {0, 1, 1000, 1001}


def test_a_paused_pool_keeps_its_brokers(sim: OperatorSimulation) -> None:
    sim.apply_cluster(2)
    sim.apply_pool("fast", 2)
    settle(sim)
    sim.apply("BrokerPool", "fast", {**REF, "replicas": 0}, pause_reconciliation="true")
    for _ in range(10):
        sim.reconcile()
    assert sim.cluster.live() == {0, 1, 1000, 1001}


def test_a_paused_pool_is_left_out_of_a_roll_and_the_cluster_goes_on(sim: OperatorSimulation) -> None:
    sim.apply_cluster(2)
    sim.apply_pool("fast", 2)
    settle(sim)
    sim.cluster.log.clear()
    sim.apply("BrokerPool", "fast", {**REF, "replicas": 2}, pause_reconciliation="true")
    sim.apply_cluster(2, config={"queued.max.requests": "7"})
    sim.reconcile_until(lambda: sum(entry.startswith("start") for entry in sim.cluster.log) == 2)
    for _ in range(20):
        sim.reconcile()
    assert sorted(e.split()[1] for e in sim.cluster.log if e.startswith("stop")) == ["0", "1"]
    assert sim.condition("BrokerCluster/demo")[:2] == ("True", "AllBrokersReady")
    status, reason, message = sim.condition("BrokerCluster/demo", "Rolling")
    assert (status, reason) == ("False", "PoolPaused")
    assert "broker 1000 waits for its BrokerPool, which is paused" in message
    assert sim.condition("BrokerCluster/demo", "ConfigApplied")[:2] == ("False", "Outdated")
    sim.apply("BrokerPool", "fast", {**REF, "replicas": 2})
    settle(sim)
    assert sorted(e.split()[1] for e in sim.cluster.log if e.startswith("stop")) == ["0", "1", "1000", "1001"]


def test_a_broker_of_a_paused_pool_that_is_down_is_not_started_and_others_wait(
    sim: OperatorSimulation,
) -> None:
    sim.apply_cluster(2)
    sim.apply_pool("fast", 1)
    settle(sim)
    sim.apply("BrokerPool", "fast", {**REF, "replicas": 1}, pause_reconciliation="true")
    sim.cluster.crash(1000)
    sim.cluster.log.clear()
    sim.apply_cluster(2, config={"queued.max.requests": "7"})
    for _ in range(20):
        sim.reconcile()
    assert sim.cluster.log == []
    sim.apply("BrokerPool", "fast", {**REF, "replicas": 1})
    settle(sim)
    assert {e.split()[1] for e in sim.cluster.log if e.startswith("start")} == {"0", "1", "1000"}


def test_a_pause_stops_a_scale_down_that_has_begun(sim: OperatorSimulation) -> None:
    sim.apply_cluster(2)
    sim.apply_pool("fast", 2)
    sim.apply_topic("t", partitions=8, replicas=2)
    settle(sim)
    sim.apply_pool("fast", 1)
    sim.reconcile()
    assert any(entry.startswith("reassign") for entry in sim.cluster.log)
    sim.cluster.log.clear()
    sim.apply("BrokerPool", "fast", {**REF, "replicas": 1}, pause_reconciliation="true")
    for _ in range(30):
        sim.reconcile()
    assert not any(entry.startswith(("stop", "remove", "reassign")) for entry in sim.cluster.log)
    assert 1001 in sim.cluster.brokers
    sim.apply_pool("fast", 1)
    settle(sim)
    assert 1001 not in sim.cluster.brokers


def test_volumes_of_a_paused_pool_are_neither_emptied_nor_replaced(sim: OperatorSimulation) -> None:
    volumes = {"volumes": [{"id": 0}, {"id": 1}]}
    sim.apply_cluster(2)
    sim.apply_pool("fast", 2, storage=volumes)
    sim.apply_topic("t", partitions=8, replicas=2)
    settle(sim)
    sim.cluster.log.clear()
    sim.cluster.losses[1001] = VolumeLoss("Requested", "why")
    spec = {**REF, "replicas": 2, "storage": {"volumes": [{"id": 0}]}}
    sim.apply("BrokerPool", "fast", spec, pause_reconciliation="true")
    for _ in range(20):
        sim.reconcile()
    assert sim.cluster.log == []
    assert sim.condition("BrokerCluster/demo")[:2] == ("True", "AllBrokersReady")


def test_warnings_count_the_brokers_of_pools(sim: OperatorSimulation) -> None:
    sim.apply_cluster(0, config={"default.replication.factor": "3"})
    sim.apply_pool("fast", 2)
    settle(sim)
    (warning,) = cluster_status(sim).warnings
    assert warning.endswith("3 is more than the number of brokers, which is 2")
    sim.apply_pool("fast", 3)
    settle(sim)
    assert cluster_status(sim).warnings == []


def test_a_drain_does_not_wait_for_a_new_broker_that_does_not_start(sim: OperatorSimulation) -> None:
    sim.apply_cluster(3, rollingUpdate={"timeout": "30s"})
    sim.apply_pool("fast", 1)
    sim.apply_topic("t", partitions=8)
    settle(sim)
    sim.cluster.losses[1001] = VolumeLoss("Gone", "no volume")  # it starts for ever
    sim.apply_pool("fast", 0)
    sim.apply_pool("slow", 1)
    sim.reconcile_until(
        lambda: "waiting for broker 1001" in sim.condition("BrokerCluster/demo", "Scaling")[2]
    )
    assert 1000 in holders(sim)
    sim.reconcile_until(lambda: 1000 not in sim.cluster.brokers)
    assert holders(sim) == {0, 1, 2}
    assert sim.cluster.violations == []
