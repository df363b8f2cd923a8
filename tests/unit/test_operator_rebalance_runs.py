"""Rebalances by load from the trigger to the end: approval, batches, new operators, cancellation."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from ottla_operator.planning.observed import ClusterLoad, KafkaState, PartitionLoad
from ottla_operator.planning.rebalance_run import moves_of
from ottla_operator.resources.cluster_status import BrokerClusterStatus
from ottla_operator.resources.rebalance import RebalanceProposal, RebalanceStatus
from tests.worlds.operator_simulation import OperatorSimulation

PARTITIONS = 12


class Skewed:
    """Loads in which the partitions of one topic differ: partition n has n + 1 times the least."""

    def __init__(self) -> None:
        self.covered_ms = 600_000
        self.problem = ""

    async def observe(
        self, brokers: Collection[int], kafka: KafkaState, now_ms: int, window_ms: int
    ) -> ClusterLoad:
        loads = {
            p.key: PartitionLoad(10_000_000 * (p.partition + 1), 10_000_000, 10**9 * (p.partition + 1))
            for p in kafka.partitions()
        }
        return ClusterLoad(loads, {}, self.covered_ms, self.problem, fresh=True)


class World(OperatorSimulation):
    """A cluster of three brokers whose topic is on the first two, with preferred leaders on broker 0."""

    def __init__(self, mode: str = "OnApproval", **rebalance: object) -> None:
        super().__init__()
        self.skewed = self.loads = Skewed()
        self.rebalance = {"mode": mode, "goals": ["DiskUsageDistribution"], "onScaleUp": False, **rebalance}
        self.apply_cluster(2)
        self.apply_topic("t", partitions=PARTITIONS, replicas=1)
        self.reconcile_until_ready()
        self.ask()
        self.reconcile_until(lambda: len(self.cluster.brokers) == 3)

    def ask(self, request: str = "", replicas: int = 3) -> None:
        annotations = {"rebalance": request} if request else {}
        self.store.apply(
            "BrokerCluster", "demo", {"replicas": replicas, "rebalance": self.rebalance}, **annotations
        )

    @property
    def cluster_status(self) -> BrokerClusterStatus:
        status = self.status()
        assert isinstance(status, BrokerClusterStatus)
        return status

    @property
    def state(self) -> RebalanceStatus:
        state = self.cluster_status.rebalance
        assert state is not None
        return state

    def until_proposed(self) -> RebalanceProposal:
        self.reconcile_until(
            lambda: self.cluster_status.rebalance is not None and self.state.proposal is not None
        )
        assert self.state.proposal is not None
        return self.state.proposal

    def disks(self) -> list[int]:
        held = [0, 0, 0]
        for partition in self.cluster.describe({}, access=False).partitions():
            for broker in partition.replicas:
                held[broker] += partition.partition + 1
        return held


def test_a_proposal_waits_for_its_approval_and_then_balances_the_cluster() -> None:
    world = World(replicationThrottle="100M")
    proposal = world.until_proposed()
    assert proposal.reason == "ScaleUp"
    assert (proposal.score_before < proposal.score_after, bool(proposal.seconds)) == (True, True)
    assert not world.reconcile()
    assert world.condition("BrokerCluster/demo", "Balanced")[:2] == ("False", "Proposed")
    assert world.condition("BrokerCluster/demo")[0] == "True"
    world.ask(f"approve:{proposal.id}")
    world.reconcile_until(lambda: world.state.last is not None)
    assert world.state.last is not None
    assert (world.state.last.id, world.state.last.result) == (proposal.id, "Completed")
    disks = world.disks()
    assert max(disks) <= 1.1 * sum(disks) / 3
    world.reconcile_until(lambda: world.cluster_status.throttle is None)
    assert not world.cluster.describe({}, access=False).settings
    # The approval of the old proposal approves no other one.
    world.cluster.advance(3_600_000)
    world.reconcile_until(lambda: world.state.phase == "Balanced")
    assert world.condition("BrokerCluster/demo", "Balanced")[0] == "True"


def test_automatic_rebalances_need_no_approval_and_move_in_batches() -> None:
    world = World("Auto", concurrentPartitions=2)
    in_flight = []
    for _ in range(200):
        world.reconcile(50)
        in_flight.append(len(world.cluster.describe({}, access=False).reassigning))
        if world.cluster_status.rebalance is not None and world.state.last is not None:
            break
    assert world.state.last is not None
    assert world.state.last.result == "Completed"
    assert max(in_flight) == 2


def test_a_trigger_that_is_not_enabled_proposes_nothing() -> None:
    world = World(triggers=["DiskFull"])
    world.reconcile_until(lambda: world.cluster_status.rebalance is not None)
    for _ in range(5):
        world.reconcile()
    assert world.state.proposal is None


def test_before_the_window_has_passed_nothing_is_proposed() -> None:
    fresh = OperatorSimulation()
    fresh.loads = loads = Skewed()
    loads.covered_ms = 1000
    fresh.apply_cluster(3, rebalance={"mode": "Auto"})
    fresh.reconcile_until_ready()
    status = fresh.status()
    assert isinstance(status, BrokerClusterStatus)
    assert status.rebalance is not None
    assert (status.rebalance.phase, status.rebalance.message) == ("Measuring", "loads are measured for 5m")


def test_a_request_gets_a_proposal_in_mode_off_and_is_answered_once() -> None:
    world = World("Off")
    for _ in range(3):
        world.reconcile()
    assert world.cluster_status.rebalance is None
    world.ask("propose:one")
    proposal = world.until_proposed()
    assert proposal.reason == "Requested"
    assert world.state.handled_request == "one"
    world.ask(f"approve:{proposal.id}")
    world.reconcile_until(lambda: world.state.last is not None)
    for _ in range(3):
        assert not world.reconcile()
    assert world.state.proposal is None


def test_bytes_in_flight_are_left_to_move() -> None:
    world = World("Auto")
    world.reconcile_until(lambda: bool(world.cluster.describe({}, access=False).reassigning))
    world.reconcile(50)
    in_flight = world.cluster.describe({}, access=False).reassigning
    assert in_flight
    assert world.state.progress is not None
    assert world.state.proposal is not None
    assert world.state.progress.bytes_left == world.state.proposal.bytes
    world.reconcile_until(lambda: world.state.last is not None)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_cancelled_rebalance_takes_back_what_is_in_flight_and_the_throttle(at: int) -> None:
    world = World(replicationThrottle="100M", concurrentPartitions=2)
    proposal = world.until_proposed()
    world.ask(f"approve:{proposal.id}")
    for _ in range(50):
        world.reconcile(50)
        if len(world.cluster.describe({}, access=False).reassigning) and (at := at - 1) <= 0:
            break
    world.ask(f"cancel:{proposal.id}")
    world.reconcile_until(lambda: world.state.last is not None)
    assert world.state.last is not None
    assert world.state.last.result == "Cancelled"
    kafka = world.cluster.describe({}, access=False)
    assert not kafka.reassigning
    assert all(len(partition.replicas) == 1 for partition in kafka.partitions())
    world.reconcile_until(lambda: world.cluster_status.throttle is None)
    assert not world.cluster.describe({}, access=False).settings


def test_a_scale_down_ends_a_rebalance_onto_the_leaving_broker() -> None:
    world = World(concurrentPartitions=1)
    proposal = world.until_proposed()
    world.ask(f"approve:{proposal.id}")
    world.reconcile_until(lambda: bool(world.cluster.describe({}, access=False).reassigning))
    world.ask(replicas=2)
    world.reconcile_until(lambda: world.state.last is not None)
    assert world.state.last is not None
    assert world.state.last.result == "Failed"
    world.reconcile_until(lambda: len(world.cluster.brokers) == 2)
    assert world.disks()[2] == 0


def test_moves_are_in_the_status_in_their_order() -> None:
    proposal = World().until_proposed()
    moves = moves_of(proposal)
    assert len(moves) == proposal.partitions
    assert all(topic == "t" for topic, _ in moves)


def test_a_rebalance_over_pools_takes_replicas_to_their_racks_and_evens_out_disks() -> None:
    world = OperatorSimulation()
    world.loads = Skewed()
    rebalance = {"mode": "Auto", "onScaleUp": False, "goals": ["DiskUsageDistribution"]}
    world.apply_cluster(0, rebalance=rebalance)
    for pool in ("east", "west"):
        world.apply_pool(pool, 2, rack=pool)
    world.reconcile_until(lambda: len(world.cluster.live()) == 4)
    racks = {broker.id: broker.rack for broker in world.cluster.brokers.values()}
    east = [broker for broker, rack in racks.items() if rack == "east"]
    world.cluster.create_topic("hot", 8, 2, assignment=dict.fromkeys(range(8), east))
    status = BrokerClusterStatus()

    def is_done() -> bool:
        nonlocal status
        found = world.status()
        assert isinstance(found, BrokerClusterStatus)
        status = found
        return status.rebalance is not None and status.rebalance.last is not None

    world.reconcile_until(is_done)
    assert status.rebalance is not None
    assert status.rebalance.last is not None
    assert status.rebalance.last.result == "Completed"
    held = dict.fromkeys(racks, 0)
    for partition in world.cluster.describe({}).partitions():
        assert {racks[broker] for broker in partition.replicas} == {"east", "west"}
        for broker in partition.replicas:
            held[broker] += partition.partition + 1
    assert max(held.values()) <= 1.1 * sum(held.values()) / 4
    assert world.cluster.violations == []
