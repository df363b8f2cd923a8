"""Brokers with several volumes: adding and removing them, what restarts wait for, and the status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla_operator.planning.observed import (
    BrokerInstance,
    KafkaState,
    LogDir,
    Observed,
    PartitionKey,
    PartitionState,
    TopicState,
    ZooKeeperState,
)
from ottla_operator.planning.revision import VOLUMES, PerBroker, target_revision
from ottla_operator.planning.volumes import (
    Emptying,
    log_dir_name,
    plan_emptying,
    volume_of,
    volume_statuses,
)
from ottla_operator.resources import BrokerCluster, BrokerClusterStatus
from ottla_operator.resources.cluster_status import VolumeStatus
from ottla_operator.resources.loading import parse_resource
from tests.worlds.operator_simulation import OperatorSimulation

GI = 2**30


def storage(*volumes: int, **more: object) -> dict[str, object]:
    return {"volumes": [{"id": volume} for volume in volumes], **more}


def cluster(*volumes: int, **spec: object) -> BrokerCluster:
    whole = {"replicas": 3, "storage": storage(*volumes), **spec}
    resource, problems = parse_resource("BrokerCluster", {"name": "demo"}, whole)
    assert isinstance(resource, BrokerCluster), problems
    return resource


def log_dir(volume: int, replicas: Mapping[PartitionKey, int] | None = None, **more: object) -> LogDir:
    return replace(LogDir(f"/v/{log_dir_name(volume)}", replicas or {}), **more)  # type: ignore[arg-type]


def observed(
    log_dirs: Mapping[int, Iterable[LogDir]],
    *,
    volumes: str = "0,1",
    down: Iterable[int] = (),
    partitions: Iterable[PartitionState] = (),
) -> Observed:
    brokers = {
        broker: BrokerInstance(broker, "Running", broker not in down, settings={VOLUMES: volumes})
        for broker in log_dirs
    }
    topics: dict[str, TopicState] = {}
    for each in partitions:
        known = topics[each.topic].partitions if each.topic in topics else ()
        topics[each.topic] = TopicState(each.topic, each.topic, (*known, each))
    kafka = KafkaState(
        True,
        "c",
        0,
        frozenset(log_dirs),
        topics,
        log_dirs={broker: tuple(dirs) for broker, dirs in log_dirs.items()},
    )
    return Observed(ZooKeeperState(True), brokers, kafka, 0)


def plan(spec: BrokerCluster, seen: Observed) -> Emptying:
    return plan_emptying(spec, seen, PerBroker(target_revision(spec.spec)), sorted(seen.brokers))


@pytest.mark.parametrize(
    ("path", "volume"),
    [("/var/lib/ottla/data", 0), ("/var/lib/ottla-7/data-7/", 7), ("data-x", None), ("/logs", None)],
)
def test_the_volume_of_a_log_directory_is_in_its_name(path: str, volume: int | None) -> None:
    assert volume_of(path) == volume


def test_one_volume_with_the_id_0_is_the_storage_without_volumes() -> None:
    plain, problems = parse_resource("BrokerCluster", {"name": "demo"}, {"replicas": 3})
    assert isinstance(plain, BrokerCluster), problems
    assert target_revision(plain.spec).hash == target_revision(cluster(0).spec).hash
    assert target_revision(cluster(1, 0).spec).traits == {VOLUMES: "0,1"}
    assert target_revision(cluster(1, 0).spec).hash != target_revision(cluster(0).spec).hash


def test_nothing_waits_while_no_volume_leaves() -> None:
    assert plan(cluster(0, 1, 2), observed({0: [log_dir(0), log_dir(1)]})) == Emptying()


def test_replicas_move_to_where_the_most_bytes_are_free_the_largest_first() -> None:
    seen = observed(
        {
            0: [
                log_dir(0, total=100 * GI, usable=30 * GI),
                log_dir(1, {("a", 0): 20 * GI, ("a", 1): 5 * GI, ("b", 0): 4 * GI}),
                log_dir(2, total=100 * GI, usable=25 * GI),
            ]
        },
        volumes="0,1,2",
    )
    (step,) = plan(cluster(0, 2), seen).steps
    assert step.log_dirs == {("a", 0): "/v/data", ("a", 1): "/v/data-2", ("b", 0): "/v/data-2"}
    assert str(step) == "move 3 replicas of broker 0 off volume 1"


def test_a_move_in_flight_is_not_requested_again_and_counts_for_the_limit() -> None:
    replicas = {("a", number): GI for number in range(4)}
    seen = observed({0: [log_dir(0, usable=90 * GI, futures={("a", 0): 0}), log_dir(1, replicas)]})
    spec = cluster(0, rebalance={"concurrentPartitionsPerBroker": 3})
    decided = plan(spec, seen)
    assert [sorted(step.log_dirs) for step in decided.steps] == [[("a", 1), ("a", 2)]]
    assert decided.waiting == {0: "volume 1: 4 replicas to move to its other volumes"}


def test_a_volume_stays_full_when_the_others_have_no_room() -> None:
    moving = {("a", 0): 0}
    dirs = [log_dir(0, usable=3 * GI, futures=moving), log_dir(1, {("a", 0): 2 * GI, ("a", 1): 2 * GI})]
    decided = plan(cluster(0), observed({0: dirs}))
    assert decided.steps == ()
    assert decided.waiting == {0: "room for 2 replicas of volume 1 on its other volumes"}


def test_brokers_of_a_pool_wait_until_the_volume_is_empty_on_all_of_them() -> None:
    dirs = {
        0: [log_dir(0), log_dir(1)],
        1: [log_dir(0), log_dir(1, {("a", 0): 1})],
        2: [log_dir(0), log_dir(1)],
    }
    decided = plan(cluster(0), observed(dirs))
    assert decided.waiting == {
        0: "broker 1, whose volume 1 must be empty, too",
        1: "volume 1: 1 replicas to move to its other volumes",
        2: "broker 1, whose volume 1 must be empty, too",
    }
    assert plan(cluster(0), observed({broker: [log_dir(0), log_dir(1)] for broker in range(3)})) == Emptying()


def test_a_broker_that_does_not_answer_keeps_its_volume() -> None:
    seen = observed({0: [log_dir(0), log_dir(1)]}, down=[0])
    assert plan(cluster(0), seen).waiting == {0: "itself to be in service, so that volume 1 can be emptied"}
    silent = replace(seen, kafka=replace(seen.kafka, log_dirs={}), brokers=observed({0: []}).brokers)
    assert 0 in plan(cluster(0), silent).waiting


def test_a_failed_volume_can_leave_unless_a_partition_may_be_on_it_alone() -> None:
    dirs = {0: [log_dir(0), log_dir(1, failed=True)]}
    healthy = PartitionState("a", 0, 1, (0, 1), (1,))
    assert plan(cluster(0), observed(dirs, partitions=[healthy])) == Emptying()
    offline = PartitionState("a", 1, -1, (0,), (0,))
    decided = plan(cluster(0), observed(dirs, partitions=[healthy, offline]))
    assert decided.waiting == {0: "a leader of a-1: a replica of it may be in the failed log directory"}


def test_the_last_volume_stays() -> None:
    seen = observed({0: [log_dir(0, {("a", 0): 1}), log_dir(1, {("b", 0): 1})]})
    decided = plan(cluster(2), seen)
    assert decided.steps == ()
    assert decided.waiting == {0: "another volume: volumes 0, 1 has 2 replicas, and no volume stays"}


@given(
    sizes=st.dictionaries(st.tuples(st.just("t"), st.integers(0, 40)), st.integers(0, 50), max_size=25),
    usable=st.lists(st.integers(0, 300), min_size=1, max_size=4),
    limit=st.integers(1, 8),
)
@settings(max_examples=200, deadline=None)
def test_moves_never_fill_a_volume_beyond_its_free_bytes(
    sizes: dict[PartitionKey, int], usable: list[int], limit: int
) -> None:
    kept = range(1, len(usable) + 1)
    dirs = [log_dir(0, sizes), *(log_dir(n, usable=free) for n, free in zip(kept, usable, strict=True))]
    spec = cluster(*kept, rebalance={"concurrentPartitionsPerBroker": limit})
    decided = plan(spec, observed({0: dirs}, volumes=",".join(map(str, [0, *kept]))))
    moves = {key: path for step in decided.steps for key, path in step.log_dirs.items()}
    assert len(moves) <= limit
    assert (0 in decided.waiting) == bool(sizes)
    for n, free in zip(kept, usable, strict=True):
        assert sum(sizes[key] for key, path in moves.items() if volume_of(path) == n) <= free


def test_the_status_has_the_disk_by_volume() -> None:
    dirs = [
        log_dir(7, {("a", 0): 1}, total=200, usable=50),
        log_dir(0, failed=True),
        log_dir(3, total=None, usable=None),
        LogDir("/elsewhere"),
    ]
    assert volume_statuses(dirs, [0, 7]) == [
        VolumeStatus(id=0, state="Failed", replicas=0),
        VolumeStatus(id=3, state="Leaving", replicas=0),
        VolumeStatus(id=7, state="Online", bytes=200, used_percent=75, replicas=1),
    ]


# ---- in the simulated cluster


@pytest.fixture
def sim() -> OperatorSimulation:
    sim = OperatorSimulation()
    sim.apply_cluster(storage=storage(0, 1))
    sim.reconcile_until_ready()
    sim.cluster.create_topic("orders", 12, 2)
    sim.reconcile_until_ready()
    sim.cluster.max_unavailable = 0
    sim.cluster.log.clear()
    return sim


def on_volumes(sim: OperatorSimulation) -> dict[int, list[int]]:
    """The number of replicas by volume of each broker."""
    status = sim.status()
    assert isinstance(status, BrokerClusterStatus)
    return {broker.id: [volume.replicas for volume in broker.volumes] for broker in status.brokers}


def test_a_volume_is_added_by_a_roll(sim: OperatorSimulation) -> None:
    sim.apply_cluster(storage=storage(0, 1, 2))
    sim.reconcile_until_ready()
    assert [entry for entry in sim.cluster.log if entry.startswith("stop")] == ["stop 1", "stop 2", "stop 0"]
    assert not any("move" in entry for entry in sim.cluster.log)
    assert [len(volumes) for volumes in on_volumes(sim).values()] == [3, 3, 3]
    assert sim.cluster.max_unavailable == 1


def test_a_volume_is_emptied_before_the_roll_that_removes_it(sim: OperatorSimulation) -> None:
    assert on_volumes(sim) == {0: [4, 4], 1: [4, 4], 2: [4, 4]}
    sim.apply_cluster(storage=storage(0))
    sim.reconcile(ms=0)
    assert sim.cluster.log == [f"move 4 replicas of broker {broker} off volume 1" for broker in range(3)]
    assert "volume 1: 4 replicas to move" in sim.condition("BrokerCluster/demo")[2]
    sim.reconcile_until_ready()
    assert sim.cluster.violations == []
    assert on_volumes(sim) == {0: [], 1: [], 2: []}, "one volume is as before"
    assert sim.cluster.max_unavailable == 1


def test_other_brokers_roll_while_a_pool_loses_a_volume(sim: OperatorSimulation) -> None:
    sim.apply_pool("large", 2, storage=storage(0, 5))
    sim.reconcile_until_ready()
    sim.cluster.create_topic("invoices", 8, 2, assignment={n: [1000, 1001] for n in range(8)})
    sim.reconcile_until_ready()
    sim.cluster.log.clear()
    sim.cluster.timing = replace(sim.cluster.timing, move=600_000)
    sim.apply_pool("large", 2, storage=storage(5))
    sim.apply_cluster(storage=storage(0, 1, 2))
    sim.reconcile_until(lambda: sum(entry.startswith("start") for entry in sim.cluster.log) >= 3)
    assert sorted(e.split()[1] for e in sim.cluster.log if e.startswith("stop")) == ["0", "1", "2"]
    sim.cluster.advance(600_000)
    sim.reconcile_until_ready()
    assert sim.cluster.violations == []


def test_a_volume_that_comes_back_during_the_drain_stays(sim: OperatorSimulation) -> None:
    sim.apply_cluster(storage=storage(0))
    sim.reconcile(ms=0)
    sim.apply_cluster(storage=storage(0, 1))
    sim.reconcile_until_ready()
    assert not any(entry.startswith("stop") for entry in sim.cluster.log)


def test_a_volume_that_is_removed_while_a_broker_restarts_is_emptied_first(sim: OperatorSimulation) -> None:
    sim.apply_cluster(storage=storage(0, 1), config={"queued.max.requests": "9"})
    sim.reconcile_until(lambda: sim.cluster.brokers[1].state == "Stopped")
    sim.apply_cluster(storage=storage(0), config={"queued.max.requests": "9"})
    sim.reconcile_until_ready()
    assert sim.cluster.violations == []
    assert any(entry == "move 4 replicas of broker 1 off volume 1" for entry in sim.cluster.log)


def test_a_topic_that_comes_between_is_moved_before_its_broker_restarts(sim: OperatorSimulation) -> None:
    sim.apply_cluster(storage=storage(0))
    sim.reconcile_until(lambda: "stop 1" in sim.cluster.log)
    sim.cluster.create_topic("late", 12, 1, assignment={n: [2] for n in range(12)})
    sim.reconcile_until_ready()
    assert sim.cluster.violations == []
