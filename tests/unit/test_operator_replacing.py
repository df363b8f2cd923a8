"""Replacement of volumes: the decisions by table and by property, and whole replacements."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla_operator.planning.observed import (
    BrokerInstance,
    BrokerRunState,
    KafkaState,
    Observed,
    PartitionState,
    TopicState,
    VolumeLoss,
    VolumeLossKind,
    ZooKeeperState,
)
from ottla_operator.planning.replacement import plan_replacement
from ottla_operator.planning.steps import ReplaceBroker
from ottla_operator.resources import BrokerClusterStatus
from ottla_operator.resources.cluster import RollingUpdate
from tests.worlds.operator_simulation import OperatorSimulation

NOW_MS = 10_000_000
KINDS: list[VolumeLossKind] = ["Requested", "Forced", "Gone", "Unreachable"]
POLICY = RollingUpdate(timeout="10m")


def broker(
    number: int,
    loss: VolumeLossKind | None = None,
    *,
    state: BrokerRunState = "Running",
    age_ms: int = 1_000_000,
) -> BrokerInstance:
    return BrokerInstance(
        id=number,
        state=state,
        ready=state == "Running",
        config_hash="h",
        ready_since_ms=0,
        started_at_ms=NOW_MS - age_ms,
        volume_loss=VolumeLoss(loss, "why") if loss else None,
    )


def topic(name: str, replicas: list[int], isr: list[int], min_isr: int = 2) -> TopicState:
    partition = PartitionState(name, 0, isr[0] if isr else -1, tuple(replicas), tuple(isr))
    return TopicState(name, f"id-{name}", (partition,), min_isr=min_isr)


def observe(
    *brokers: BrokerInstance, topics: tuple[TopicState, ...] = (), registered: set[int] | None = None
) -> Observed:
    live = {b.id for b in brokers if b.ready} if registered is None else registered
    controller = min(live, default=-1)
    kafka = KafkaState(bool(live), "c", controller, frozenset(live), {t.name: t for t in topics})
    return Observed(ZooKeeperState(True), {b.id: b for b in brokers}, kafka, NOW_MS)


FULL = topic("t", [0, 1, 2], [0, 1, 2])
WITHOUT_2 = topic("t", [0, 1, 2], [0, 1])
ONLY_2 = topic("one", [2, 1], [2], min_isr=1)
SINGLE = topic("single", [2], [2], min_isr=1)
DEAD_2 = broker(2, "Gone", state="Starting")


@pytest.mark.parametrize(
    ("observed", "going", "waiting", "blocked"),
    [
        pytest.param(observe(broker(0), broker(1), broker(2), topics=(FULL,)), [], {}, False, id="none lost"),
        pytest.param(
            observe(broker(0), broker(1), DEAD_2, topics=(WITHOUT_2,)), [2], {}, False, id="gone, others sync"
        ),
        pytest.param(
            observe(broker(0), broker(1), DEAD_2, topics=(FULL,), registered={0, 1, 2}),
            [],
            {2: "its ZooKeeper session to expire, so that the controller removes it from the ISRs"},
            False,
            id="gone, and still thought to be in sync",
        ),
        pytest.param(
            observe(broker(0), broker(1), broker(2, "Gone", state="Starting", age_ms=5_000)),
            [],
            {},
            False,
            id="a pod seen before its claim",
        ),
        pytest.param(
            observe(broker(0), broker(1), DEAD_2, topics=(ONLY_2,)),
            [],
            {
                2: "one-0 would be lost: no other replica is in sync; "
                "ottla.dev/delete-pod-and-pvc: force accepts the loss"
            },
            True,
            id="the only replica in sync, and others that a human may choose",
        ),
        pytest.param(
            observe(broker(0), broker(1), DEAD_2, topics=(SINGLE,)), [2], {}, False, id="nothing left to save"
        ),
        pytest.param(
            observe(broker(0), broker(1), broker(2, "Requested"), topics=(SINGLE,)),
            [],
            {
                2: "single-0 would be lost: no other replica is in sync; "
                "ottla.dev/delete-pod-and-pvc: force accepts the loss"
            },
            True,
            id="asked for, and all there is of a partition",
        ),
        pytest.param(
            observe(broker(0), broker(1), broker(2, "Forced"), topics=(SINGLE,)), [2], {}, False, id="forced"
        ),
        pytest.param(
            observe(broker(0), broker(1), broker(2, "Requested"), topics=(FULL,)),
            [2],
            {},
            False,
            id="asked for",
        ),
        pytest.param(
            observe(broker(0), broker(1, "Requested"), broker(2, "Requested"), topics=(FULL,)),
            [1],
            {2: "broker 1, which is down"},
            False,
            id="two asked for: one at a time",
        ),
        pytest.param(
            observe(broker(0), broker(1, state="Crashed"), broker(2, "Requested"), topics=(FULL,)),
            [],
            {2: "broker 1, which is down"},
            False,
            id="asked for while another is down",
        ),
        pytest.param(
            observe(broker(0), broker(1), broker(2, "Requested"), topics=(topic("t", [0, 1, 2], [0, 2]),)),
            [],
            {2: "t-0: 1 replicas would be left in sync, min.insync.replicas is 2"},
            False,
            id="asked for, and needed for min ISR",
        ),
        pytest.param(
            observe(
                broker(0),
                broker(1),
                broker(2, "Requested"),
                topics=(topic("t", [0, 1, 2], [0, 2], min_isr=1),),
            ),
            [],
            {2: "broker 1 to rejoin the ISR of t-0"},
            False,
            id="asked for while another copy is not whole",
        ),
        pytest.param(
            observe(broker(0), broker(1), broker(2, "Unreachable", state="Starting", age_ms=60_000)),
            [],
            {2: "its volume to become reachable within 10m: why"},
            False,
            id="out of reach for a minute",
        ),
        pytest.param(
            observe(broker(0), broker(1), broker(2, "Unreachable", state="Starting"), topics=(WITHOUT_2,)),
            [2],
            {},
            False,
            id="out of reach for long",
        ),
        pytest.param(
            observe(broker(0), broker(1), broker(2, "Unreachable", state="Starting"), topics=(SINGLE,)),
            [],
            {
                2: "single-0 would be lost: no other replica is in sync; "
                "ottla.dev/delete-pod-and-pvc: force accepts the loss"
            },
            True,
            id="out of reach, and it may still be had one day",
        ),
        pytest.param(
            observe(broker(0, state="Crashed"), broker(1), DEAD_2, topics=(topic("t", [0, 2], [0]),)),
            [],
            {2: "broker 0: it has a replica of t-0 in sync, and is not in service"},
            False,
            id="the other one in sync is down",
        ),
        pytest.param(
            observe(*(broker(b, "Gone", state="Starting") for b in range(3))),
            [0, 1, 2],
            {},
            False,
            id="all volumes are gone",
        ),
        pytest.param(
            observe(broker(0, "Gone", state="Starting"), broker(1, state="Starting")),
            [],
            {0: "a controller to be elected, which lists the replicas on the broker"},
            False,
            id="without a controller",
        ),
        pytest.param(
            observe(broker(0), broker(1), broker(2, "Requested", state="Stopping"), topics=(FULL,)),
            [],
            {2: "itself: it is stopping, and starts again with an empty volume"},
            False,
            id="on its way",
        ),
    ],
)
def test_volumes_are_replaced_or_wait_by_these_rules(
    observed: Observed, going: list[int], waiting: dict[int, str], blocked: bool
) -> None:
    plan = plan_replacement(observed, range(3), POLICY)
    assert [step.broker for step in plan.steps if isinstance(step, ReplaceBroker)] == going
    assert plan.waiting == waiting
    assert bool(plan.blocked) == blocked


def test_only_a_broker_in_service_waits_for_a_roll() -> None:
    observed = observe(broker(0), broker(1), broker(2, "Requested"), topics=(FULL,))
    assert plan_replacement(observed, range(3), POLICY, bouncing=[0]).waiting == {
        2: "broker 0, which is down"
    }
    dead = observe(broker(0), broker(1), DEAD_2, topics=(topic("t", [1, 2], [1]),))
    assert plan_replacement(dead, range(3), POLICY, bouncing=[0]).steps


STATES: list[BrokerRunState] = ["Running", "Running", "Running", "Crashed", "Starting", "Stopping"]


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 6),
    st.lists(st.sampled_from([None, None, *KINDS]), min_size=6, max_size=6),
    st.lists(st.sampled_from(STATES), min_size=6, max_size=6),
    st.lists(
        st.tuples(st.sets(st.integers(0, 5), min_size=1), st.sets(st.integers(0, 5)), st.integers(1, 3)),
        max_size=5,
    ),
    st.lists(st.integers(0, 2_000_000), min_size=6, max_size=6),
)
def test_no_step_removes_the_last_replica_in_sync(
    size: int,
    losses: list[VolumeLossKind | None],
    states: list[BrokerRunState],
    shapes: list[tuple[set[int], set[int], int]],
    ages_ms: list[int],
) -> None:
    brokers = [broker(b, losses[b], state=states[b], age_ms=ages_ms[b]) for b in range(size)]
    topics = []
    for number, (members, out, min_isr) in enumerate(shapes):
        replicas = sorted(b for b in members if b < size)
        if replicas:
            isr = [b for b in replicas if b not in out] or replicas[:1]
            topics.append(topic(f"t{number}", replicas, isr, min_isr))
    observed = observe(*brokers, topics=tuple(topics))
    plan = plan_replacement(observed, range(size), POLICY)
    going = {step.broker for step in plan.steps if isinstance(step, ReplaceBroker)}
    in_service = {b for b in range(size) if observed.in_service(b)}
    asked = {b for b in going if losses[b] != "Forced"}
    assert len({b for b in asked if b in in_service}) <= 1
    for b in going:
        assert losses[b] is not None
        assert b not in plan.waiting
    for state in topics:
        (partition,) = state.partitions
        left = (set(partition.isr) & in_service) - going
        for b in asked & set(partition.isr):
            hopeless = losses[b] == "Gone" and (
                set(partition.replicas) == {b} or not observed.kafka.has_controller
            )
            assert left or hopeless, f"{partition} loses {b}"
        if asked & in_service & set(partition.isr) and len(partition.replicas) > state.min_isr:
            assert len(left) >= state.min_isr


def status_of(sim: OperatorSimulation) -> BrokerClusterStatus:
    status = sim.status()
    assert isinstance(status, BrokerClusterStatus)
    return status


@pytest.fixture
def sim() -> OperatorSimulation:
    sim = OperatorSimulation()
    sim.apply_cluster(3)
    sim.apply_topic("orders", config={"min.insync.replicas": 2})
    sim.reconcile_until_ready()
    sim.reconcile(60_000)
    return sim


def all_in_sync(sim: OperatorSimulation) -> bool:
    return all(len(p.isr) == 3 for p in sim.cluster.topics["orders"].partitions)


@pytest.mark.parametrize("kind", ["Requested", "Gone", "Forced"])
def test_a_replaced_broker_starts_empty_and_catches_up(sim: OperatorSimulation, kind: VolumeLossKind) -> None:
    if kind == "Gone":
        sim.cluster.crash(1)
    sim.cluster.losses[1] = VolumeLoss(kind, "why")
    sim.reconcile()
    assert sim.condition("BrokerCluster/demo")[:2] == ("False", "ReplacingBroker")
    sim.reconcile_until_ready()
    sim.reconcile_until(lambda: all_in_sync(sim))
    assert sim.cluster.log.count("replace 1") == 1
    assert sim.cluster.max_unavailable == 1
    assert not sim.cluster.violations


def test_a_replacement_that_would_lose_records_waits_for_an_administrator(sim: OperatorSimulation) -> None:
    sim.cluster.create_topic("alone", 1, 1, assignment={0: [2]})
    sim.cluster.losses[2] = VolumeLoss("Requested", "why")
    sim.reconcile()
    sim.reconcile()
    status, reason, message = sim.condition("BrokerCluster/demo")
    assert (status, reason) == ("False", "VolumeLost")
    assert "alone-0 would be lost" in message
    assert "alone-0 would be lost" in status_of(sim).brokers[2].waiting_for
    assert "replace 2" not in sim.cluster.log
    sim.cluster.losses[2] = VolumeLoss("Forced", "why")
    sim.reconcile_until_ready()
    assert sim.cluster.log.count("replace 2") == 1


def test_all_brokers_are_replaced_one_at_a_time(sim: OperatorSimulation) -> None:
    for number in range(3):
        sim.cluster.losses[number] = VolumeLoss("Requested", "why")
    sim.reconcile_until_ready()
    sim.reconcile_until(lambda: all_in_sync(sim))
    assert sorted(line for line in sim.cluster.log if line.startswith("replace")) == [
        "replace 0",
        "replace 1",
        "replace 2",
    ]
    assert sim.cluster.max_unavailable == 1
    assert not sim.cluster.violations
