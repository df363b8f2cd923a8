"""A drain by load: only what leaves moves, onto the brokers where it adds least."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla_operator.planning.load_drain import drain_by_load
from ottla_operator.planning.load_model import BrokerCapacity
from ottla_operator.planning.observed import PartitionKey, PartitionLoad
from ottla_operator.planning.placement import Unplaceable, drain
from ottla_operator.planning.rebalance_goals import Thresholds
from tests.unit.test_operator_rebalance_runs import Skewed
from tests.worlds.operator_simulation import OperatorSimulation

THRESHOLDS = Thresholds(disk_gap=64 * 1024**2, network_gap=64 * 1024)
Assignment = dict[PartitionKey, tuple[int, ...]]


def moved(before: Assignment, changes: Mapping[PartitionKey, tuple[int, ...]]) -> Assignment:
    return {**before, **changes}


def most(
    assignment: Assignment, loads: Mapping[PartitionKey, PartitionLoad], brokers: Sequence[int]
) -> float:
    """The fullest disk as a multiple of the mean."""
    sizes = [sum(loads[key].size for key, r in assignment.items() if b in r) for b in brokers]
    return max(sizes) * len(brokers) / sum(sizes)


@settings(max_examples=30, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(2, 7), st.integers(1, 3), st.integers(1, 3))
def test_only_replicas_of_leaving_brokers_move_and_factors_stay(
    source: random.Random, size: int, factor: int, racks: int
) -> None:
    before = {
        ("t", n): tuple(source.sample(range(size), min(factor, size))) for n in range(source.randint(1, 20))
    }
    loads = {key: PartitionLoad(source.random() * 1e7, 0, source.randint(0, 10**9)) for key in before}
    staying = range(size - 1)
    brokers = {b: BrokerCapacity(rack=str(b % racks), movable=b != 0) for b in staying}
    try:
        changes = drain_by_load(before, loads, brokers, Thresholds())
    except Unplaceable:
        # Broker 0 takes nothing.
        assert min(factor, size) > size - 2
        return
    after = moved(before, changes)
    for key, replicas in after.items():
        assert len({*replicas}) == len(before[key])
        assert {*replicas} <= {*staying}
        for old, new in zip(before[key], replicas, strict=True):
            assert old == new or (old == size - 1 and new != 0)


def test_the_disks_are_more_even_than_after_a_drain_by_number() -> None:
    source = random.Random(7)
    before = {("t", n): tuple(source.sample(range(10), 2)) for n in range(400)}
    loads = {key: PartitionLoad(0, 0, int(10**8 * source.paretovariate(1.5))) for key in before}
    brokers = dict.fromkeys(range(8), BrokerCapacity())
    by_load = moved(before, drain_by_load(before, loads, brokers, Thresholds()))
    by_number = moved(before, drain(before, dict.fromkeys(range(8))))
    assert most(by_load, loads, range(8)) < most(by_number, loads, range(8))
    mean = sum(2 * load.size for load in loads.values()) / 8
    fullest = max(sum(loads[key].size for key, r in before.items() if b in r) for b in range(8)) / mean
    assert most(by_load, loads, range(8)) < max(1.05, fullest * 1.001)


def test_racks_go_before_loads_and_capacities_before_an_even_load() -> None:
    before = {("t", 0): (9, 0), ("u", 0): (1,)}
    loads = {("t", 0): PartitionLoad(size=100), ("u", 0): PartitionLoad(size=1000)}
    racks = {0: "a", 1: "b", 2: "a"}
    brokers = {b: BrokerCapacity(rack=rack) for b, rack in racks.items()}
    assert drain_by_load(before, loads, brokers, Thresholds()) == {("t", 0): (1, 0)}
    brokers = {b: BrokerCapacity(disk=disk) for b, disk in {0: 10.0, 1: 10000.0, 2: 100.0}.items()}
    assert drain_by_load(before, loads, brokers, Thresholds()) == {("t", 0): (1, 0)}


def test_a_pool_with_larger_disks_takes_more() -> None:
    before: Assignment = {("t", n): (9,) for n in range(40)}
    loads = {key: PartitionLoad(size=10**9) for key in before}
    brokers = {0: BrokerCapacity(disk=1e11), 1: BrokerCapacity(disk=1e11), 1000: BrokerCapacity(disk=1e12)}
    after = moved(before, drain_by_load(before, loads, brokers, Thresholds(replicas_max=100)))
    held = {b: sum(b in r for r in after.values()) for b in brokers}
    assert held[1000] > held[0]
    assert held[1000] > held[1]


@pytest.mark.parametrize(
    ("mode", "problem", "by_load"),
    [("Auto", "", True), ("OnApproval", "", True), ("Off", "", False), ("Auto", "no metrics", False)],
)
def test_a_scale_down_drains_by_load_if_loads_are_known_else_by_number(
    mode: str, problem: str, *, by_load: bool
) -> None:
    rebalance = {"mode": mode, "triggers": []}
    world = OperatorSimulation()
    skewed = world.loads = Skewed()
    world.apply_cluster(4, rebalance=rebalance)
    world.apply_topic("t", partitions=12, replicas=1)
    world.reconcile_until_ready()
    skewed.problem = problem
    before = replicas_of(world)
    kafka = world.cluster.describe({}, access=False)
    loads = asyncio.run(Skewed().observe((), kafka, 0, 0)).partitions
    racks = {0: None, 1: None}
    number = drain(before, racks)
    load = drain_by_load(before, loads, dict.fromkeys(racks, BrokerCapacity()), THRESHOLDS)
    assert number != load
    world.apply_cluster(2, rebalance=rebalance)
    world.reconcile_until(lambda: len(world.cluster.brokers) == 2)
    assert replicas_of(world) == {**before, **(load if by_load else number)}


@pytest.mark.parametrize(("mode", "by_load"), [("OnApproval", True), ("Off", False)])
def test_a_broker_is_emptied_by_load_if_loads_are_known(mode: str, *, by_load: bool) -> None:
    world = OperatorSimulation()
    world.loads = Skewed()
    spec = {"replicas": 3, "rebalance": {"mode": mode, "triggers": []}}
    world.apply("BrokerCluster", "demo", spec)
    world.apply_topic("t", partitions=12, replicas=1)
    world.reconcile_until_ready()
    before = replicas_of(world)
    loads = asyncio.run(Skewed().observe((), world.cluster.describe({}), 0, 0)).partitions
    racks = {0: None, 2: None}
    number = drain(before, racks)
    load = drain_by_load(before, loads, dict.fromkeys(racks, BrokerCapacity()), THRESHOLDS)
    assert number != load
    world.apply("BrokerCluster", "demo", spec, reassign='{"id": "x", "empty": [1]}')
    world.reconcile_until(lambda: not any(1 in replicas for replicas in replicas_of(world).values()))
    assert replicas_of(world) == {**before, **(load if by_load else number)}


def replicas_of(world: OperatorSimulation) -> Assignment:
    return {p.key: p.replicas for p in world.cluster.describe({}, access=False).partitions()}
