"""The choice of the next broker to bounce: by table, and by property over random clusters and crashes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla_operator.planning.holds import Hold
from ottla_operator.planning.observed import (
    BrokerInstance,
    BrokerRunState,
    KafkaState,
    Observed,
    PartitionState,
    TopicState,
    ZooKeeperServer,
    ZooKeeperState,
)
from ottla_operator.planning.rolling import plan_roll
from ottla_operator.resources.cluster import RollingUpdate
from tests.worlds.operator_simulation import OperatorSimulation, SimulatedCluster

NOW_MS = 1_000_000
OLD, NEW = "old", "new"


def broker(
    number: int,
    revision: str = OLD,
    *,
    state: BrokerRunState = "Running",
    rack: str | None = None,
    ready_since_ms: int = 0,
    started_at_ms: int | None = None,
    crashes: int = 0,
    message: str = "",
    process_started: bool = True,
) -> BrokerInstance:
    return BrokerInstance(
        id=number,
        state=state,
        ready=state == "Running",
        config_hash=revision,
        rack=rack,
        ready_since_ms=ready_since_ms,
        started_at_ms=started_at_ms,
        crashes=crashes,
        message=message,
        process_started=process_started,
    )


def topic(name: str, *partitions: tuple[list[int], list[int]], min_isr: int = 2) -> TopicState:
    """A topic from (replicas, isr) pairs."""
    states = tuple(
        PartitionState(name, number, isr[0] if isr else -1, tuple(replicas), tuple(isr))
        for number, (replicas, isr) in enumerate(partitions)
    )
    return TopicState(name, f"id-{name}", states, min_isr=min_isr)


def observe(*brokers: BrokerInstance, topics: tuple[TopicState, ...] = (), controller: int = 0) -> Observed:
    registered = frozenset(b.id for b in brokers if b.state == "Running")
    kafka = KafkaState(True, "c", controller, registered, {t.name: t for t in topics})
    return Observed(ZooKeeperState(True), {b.id: b for b in brokers}, kafka, NOW_MS)


FULL = topic("t", ([0, 1, 2], [0, 1, 2]))


def test_brokers_in_service_wait_for_the_zookeeper_server_that_restarts() -> None:
    """Without a leader of ZooKeeper a stopped broker's partitions get no other leaders, and its session does
    not end before its timeout."""

    def servers(*restarts: bool) -> tuple[ZooKeeperServer, ...]:
        return tuple(
            ZooKeeperServer(n, f"zk-{n}", True, "", "", "its restart" if r else "", restarts=r)
            for n, r in enumerate(restarts)
        )

    observed = observe(broker(0), broker(1), broker(2), topics=(FULL,))
    rolling = ZooKeeperState(True, servers=servers(False, True, True))
    roll = plan_roll(replace(observed, zookeeper=rolling), dict.fromkeys(range(3), NEW), RollingUpdate())
    assert roll.bounce == ()
    assert roll.waiting == dict.fromkeys(range(3), "ZooKeeper server 1, which is being restarted")
    absent = ZooKeeperState(True, servers=servers(False, False), absent=(2,))
    roll = plan_roll(replace(observed, zookeeper=absent), dict.fromkeys(range(3), NEW), RollingUpdate())
    assert roll.bounce == ()
    for back in (rolling.held("the window"), ZooKeeperState(True, servers=servers(False, False, False))):
        roll = plan_roll(replace(observed, zookeeper=back), dict.fromkeys(range(3), NEW), RollingUpdate())
        assert roll.bounce == (1,)
    # One that is not in service makes nothing unavailable.
    observed = observe(broker(0), broker(1), broker(2, state="Crashed"), topics=(FULL,))
    roll = plan_roll(replace(observed, zookeeper=rolling), dict.fromkeys(range(3), NEW), RollingUpdate())
    assert roll.bounce == (2,)


HOLD = Hold("WaitingForWindow", "the window")


@pytest.mark.parametrize(
    ("observed", "urgent", "bounce", "waiting", "held"),
    [
        pytest.param(
            observe(broker(0), broker(1), broker(2), topics=(FULL,)),
            (),
            (),
            dict.fromkeys((0, 1, 2), "the window"),
            True,
            id="none begins",
        ),
        pytest.param(
            observe(broker(0), broker(1), broker(2), topics=(FULL,)),
            (2,),
            (2,),
            dict.fromkeys((0, 1), "the window"),
            False,
            id="one that was requested begins",
        ),
        pytest.param(
            observe(broker(0), broker(1), broker(2, NEW, state="Starting"), topics=(FULL,)),
            (),
            (),
            dict.fromkeys((0, 1), "broker 2, which is starting on revision new"),
            False,
            id="one that has begun is waited for",
        ),
        pytest.param(
            observe(broker(0), broker(1), broker(2, state="Stopped", started_at_ms=NOW_MS), topics=(FULL,)),
            (),
            (2,),
            dict.fromkeys((0, 1), "the window"),
            False,
            id="one that the operator has stopped is started",
        ),
        pytest.param(
            observe(broker(0), broker(1), broker(2, state="Starting", started_at_ms=NOW_MS), topics=(FULL,)),
            (),
            (),
            dict.fromkeys((0, 1, 2), "the window"),
            True,
            id="one that starts on the old revision stays on it",
        ),
        pytest.param(
            observe(broker(0), broker(1), broker(2, state="Starting", started_at_ms=NOW_MS), topics=(FULL,)),
            (1,),
            (),
            {0: "the window", 1: "broker 2, which is down", 2: "the window"},
            False,
            id="a requested one waits for one that is down",
        ),
        pytest.param(
            observe(broker(0), broker(1), broker(2, state="Crashed", crashes=2), topics=(FULL,)),
            (),
            (2,),
            dict.fromkeys((0, 1), "the window"),
            False,
            id="one that does not come up on the old revision gets the new one",
        ),
    ],
)
def test_while_restarts_are_held_only_urgent_ones_begin(
    observed: Observed, urgent: tuple[int, ...], bounce: tuple[int, ...], waiting: dict[int, str], held: bool
) -> None:
    targets = dict.fromkeys(observed.brokers, NEW)
    roll = plan_roll(observed, targets, RollingUpdate(), hold=HOLD, urgent=urgent)
    assert (roll.bounce, dict(roll.waiting), roll.rests) == (bounce, waiting, held)
    assert plan_roll(observed, targets, RollingUpdate()).hold is None


@pytest.mark.parametrize(
    ("observed", "bounce", "waiting"),
    [
        pytest.param(
            observe(broker(0, NEW), broker(1, NEW), broker(2, NEW), topics=(FULL,)),
            (),
            {},
            id="nothing to do",
        ),
        pytest.param(
            observe(broker(0), broker(1), broker(2), topics=(FULL,), controller=0),
            (1,),
            {0: "all other brokers: it is the controller", 2: "broker 1, which is being restarted"},
            id="one at a time, the controller last",
        ),
        pytest.param(
            observe(broker(0), broker(1, NEW), broker(2, NEW), topics=(FULL,)),
            (0,),
            {},
            id="the controller in the end",
        ),
        pytest.param(
            observe(broker(0), broker(1), broker(2, state="Crashed"), topics=(FULL,)),
            (2,),
            {0: "broker 2, which is not in service", 1: "broker 2, which is not in service"},
            id="one that is out of service goes first",
        ),
        pytest.param(
            observe(broker(0), broker(1), broker(2, state="Starting", started_at_ms=NOW_MS), topics=(FULL,)),
            (),
            {**dict.fromkeys((0, 1), "broker 2, which is not in service"), 2: "itself: it is starting"},
            id="one that is starting may be recovering its logs",
        ),
        pytest.param(
            observe(
                broker(0),
                broker(1),
                broker(2, state="Starting", started_at_ms=NOW_MS, process_started=False),
                topics=(FULL,),
            ),
            (2,),
            dict.fromkeys((0, 1), "broker 2, which is not in service"),
            id="one that has no node yet has nothing to recover",
        ),
        pytest.param(
            observe(broker(0), broker(1), broker(2, state="Starting", started_at_ms=0), topics=(FULL,)),
            (2,),
            {0: "broker 2, which is not in service", 1: "broker 2, which is not in service"},
            id="one that hangs past the timeout goes",
        ),
        pytest.param(
            observe(broker(0), broker(1), broker(2, NEW, state="Starting"), topics=(FULL,)),
            (),
            dict.fromkeys((0, 1), "broker 2, which is starting on revision new"),
            id="a bounced broker that is not back holds the others",
        ),
        pytest.param(
            observe(broker(0), broker(1), broker(2, NEW, ready_since_ms=NOW_MS - 1), topics=(FULL,)),
            (),
            dict.fromkeys((0, 1), "broker 2 to be ready for 3 s"),
            id="a bounced broker is ready for a while first",
        ),
        pytest.param(
            observe(broker(0), broker(1), broker(2, NEW), topics=(topic("t", ([0, 1, 2], [0, 1])),)),
            (),
            dict.fromkeys((0, 1), "broker 2 to rejoin the ISR of t-0"),
            id="a bounced broker catches up first",
        ),
        pytest.param(
            observe(broker(0), broker(1), broker(2), topics=(FULL, topic("u", ([0, 1, 2], [0, 1])))),
            (2,),
            {
                0: "all other brokers: it is the controller",
                1: "u-0: 1 replicas would be left in sync, min.insync.replicas is 2",
            },
            id="min ISR names the partition that blocks",
        ),
        pytest.param(
            observe(broker(0), broker(1), topics=(topic("t", ([1, 0], [1, 0]), min_isr=2),)),
            (1,),
            {0: "broker 1, which is being restarted"},
            id="a factor not above min ISR is exempt",
        ),
        pytest.param(
            observe(broker(0), broker(1), topics=(topic("t", ([1, 0], [1]), min_isr=2),), controller=0),
            (),
            {0: "all other brokers: it is the controller", 1: "t-0: it has the only replica in sync"},
            id="exempt or not, the last in-sync replica stays",
        ),
        pytest.param(
            observe(broker(0), broker(1), topics=(topic("t", ([1], [1]), min_isr=1),)),
            (1,),
            {0: "broker 1, which is being restarted"},
            id="a single replica cannot be kept",
        ),
        pytest.param(
            observe(broker(0), broker(1), broker(2), topics=(FULL,), controller=-1),
            (),
            dict.fromkeys((0, 1, 2), "a controller to be elected"),
            id="without a controller nothing is known",
        ),
    ],
)  # fmt: skip
def test_the_next_broker_is_bounced_and_the_others_wait_with_a_reason(
    observed: Observed, bounce: tuple[int, ...], waiting: dict[int, str]
) -> None:
    roll = plan_roll(observed, dict.fromkeys(observed.brokers, NEW), RollingUpdate(timeout="10m"))
    assert roll.bounce == bounce
    assert dict(roll.waiting) == waiting


def test_a_broker_that_keeps_crashing_on_the_new_revision_stalls_the_roll() -> None:
    bad = broker(2, NEW, state="Crashed", crashes=2, message="ended with code 2: log.dir is no folder")
    roll = plan_roll(
        observe(broker(0), broker(1), bad, topics=(FULL,)), dict.fromkeys(range(3), NEW), RollingUpdate()
    )
    assert roll.bounce == ()
    assert (
        roll.stalled == "broker 2 does not come up on revision new: ended with code 2: log.dir is no folder"
    )


def test_brokers_of_one_rack_are_bounced_together_within_the_limit() -> None:
    racks = {0: "a", 1: "b", 2: "c", 3: "a", 4: "b", 5: "c"}
    spread = topic("t", ([0, 1, 2], [0, 1, 2]), ([3, 4, 5], [3, 4, 5]))
    observed = observe(*(broker(b, rack=rack) for b, rack in racks.items()), topics=(spread,), controller=2)
    policy = RollingUpdate(max_unavailable_per_rack=2)
    assert plan_roll(observed, dict.fromkeys(racks, NEW), policy).bounce == (0, 3)
    single = plan_roll(observed, dict.fromkeys(racks, NEW), RollingUpdate())
    assert single.bounce == (0,)


def test_brokers_of_one_rack_are_not_bounced_together_below_min_isr() -> None:
    both = topic("t", ([0, 1, 2], [0, 1, 2]))
    observed = observe(
        broker(0, rack="a"), broker(1, rack="a"), broker(2, rack="b"), topics=(both,), controller=2
    )
    roll = plan_roll(observed, dict.fromkeys(range(3), NEW), RollingUpdate(max_unavailable_per_rack=2))
    assert roll.bounce == (0,)
    assert "t-0" in roll.waiting[1]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[int, list[tuple[list[int], int]]]:
    """(brokers, topics as (replicas, min ISR))."""
    size = draw(st.integers(2, 6))
    brokers = list(range(size))
    topics = draw(
        st.lists(
            st.tuples(
                st.lists(st.sampled_from(brokers), min_size=1, max_size=size, unique=True), st.integers(1, 3)
            ),
            max_size=6,
        )
    )
    return size, topics


@pytest.mark.budget(5)  # 60 rolls of Hypothesis
@settings(max_examples=60, deadline=None)
@given(clusters(), st.lists(st.tuples(st.integers(1, 60), st.integers(0, 5)), max_size=3))
def test_a_roll_with_random_crashes_ends_without_a_violation(
    shape: tuple[int, list[tuple[list[int], int]]], crashes: list[tuple[int, int]]
) -> None:
    size, topics = shape
    sim = OperatorSimulation(SimulatedCluster())
    sim.apply_cluster(size)
    sim.reconcile_until_ready()
    for number, (replicas, min_isr) in enumerate(topics):
        sim.cluster.create_topic(
            f"t{number}", 1, len(replicas), {"min.insync.replicas": str(min_isr)}, {0: replicas}
        )
    sim.reconcile(5_000)
    sim.apply_cluster(size, config={"queued.max.requests": "3"}, rebalance={"onScaleUp": False})
    planned = dict(crashes)
    for number in range(600):
        victim = planned.pop(number, None)
        if victim is not None and victim < size and sim.cluster.brokers[victim].state == "Running":
            sim.cluster.crash(victim)
        sim.reconcile()
        if not planned and sim.condition("BrokerCluster/demo")[0] == "True":
            break
    else:
        raise AssertionError(f"the roll does not end: {sim.describe()}")
    assert not sim.cluster.violations
    assert len({b.launch.config_hash for b in sim.cluster.brokers.values()}) == 1
    stops = [line for line in sim.cluster.log if line.startswith("stop")]
    assert len(stops) == len(set(stops)), "no broker is bounced twice"
    if not crashes:
        assert sim.cluster.max_unavailable <= 1
        assert len(stops) == size


class RackOracle(SimulatedCluster):
    """Detects brokers of two racks, or too many of one, that are down at the same time."""

    def __init__(self, racks: dict[int, str], limit: int) -> None:
        super().__init__(racks=racks)
        self.limit = limit
        self.most_of_a_rack = 0

    def check_stop(self, broker: int) -> None:
        super().check_stop(broker)
        down = {b.id for b in self.brokers.values() if b.state != "Running"} | {broker}
        self.most_of_a_rack = max(self.most_of_a_rack, len(down))
        if len({self.racks[b] for b in down}) > 1 or len(down) > self.limit:
            self.violations.append(f"stopping {broker}: {sorted(down)} are down, in {self.racks}")


@pytest.mark.budget(3)  # 25 rolls of Hypothesis
@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 3),
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=3, max_size=8),
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True), st.integers(1, 3), st.booleans()
        ),
        max_size=5,
    ),
)
def test_a_roll_over_racks_ends_and_stays_within_one_rack(
    limit: int, racks: list[str], shapes: list[tuple[list[int], int, bool]]
) -> None:
    size = len(racks)
    oracle = RackOracle(dict(enumerate(racks)), limit)
    sim, keep = OperatorSimulation(oracle), {"onScaleUp": False}
    sim.apply_cluster(size, rebalance=keep)
    sim.reconcile_until_ready()
    for number, (members, min_isr, _) in enumerate(shapes):
        replicas = [b for b in members if b < size]
        if replicas:
            oracle.create_topic(f"t{number}", 1, 1, {"min.insync.replicas": str(min_isr)}, {0: replicas})
    sim.reconcile(5_000)
    policy = {"maxUnavailablePerRack": limit}
    sim.apply_cluster(size, config={"queued.max.requests": "3"}, rebalance=keep, rollingUpdate=policy)
    sim.reconcile_until_ready()
    assert not oracle.violations
    stops = [line for line in oracle.log if line.startswith("stop")]
    assert sorted(stops) == [f"stop {b}" for b in range(size)]
    if not shapes:
        # Brokers wait only for the limit and for the controller, which is bounced alone.
        assert oracle.most_of_a_rack >= min(limit, max(racks.count(r) for r in racks) - 1)


def test_two_brokers_of_a_rack_that_share_a_partition_are_bounced_one_at_a_time() -> None:
    oracle = RackOracle({b: "ab"[b % 2] for b in range(4)}, 2)
    sim, keep = OperatorSimulation(oracle), {"onScaleUp": False}
    sim.apply_cluster(4, rebalance=keep)
    sim.reconcile_until_ready()
    oracle.create_topic("spread", 1, 1, {"min.insync.replicas": "1"}, {0: [0, 1]})
    oracle.create_topic("both", 1, 1, {"min.insync.replicas": "1"}, {0: [1, 3]})
    sim.reconcile(5_000)
    policy = {"maxUnavailablePerRack": 2}
    sim.apply_cluster(4, config={"queued.max.requests": "3"}, rebalance=keep, rollingUpdate=policy)
    sim.reconcile_until(lambda: any(line.startswith("stop") for line in oracle.log))
    stops = [line for line in oracle.log if line.startswith("stop")]
    # Brokers 1 and 3 have all replicas of a partition; 0 is the controller and is bounced last.
    assert stops == ["stop 1"]
    sim.reconcile_until_ready()
    assert (oracle.violations, oracle.most_of_a_rack) == ([], 1)


def test_two_brokers_of_a_rack_without_common_partitions_are_bounced_together() -> None:
    oracle = RackOracle({b: "ab"[b % 2] for b in range(4)}, 2)
    sim, keep = OperatorSimulation(oracle), {"onScaleUp": False}
    sim.apply_cluster(4, rebalance=keep)
    sim.reconcile_until_ready()
    oracle.create_topic("spread", 1, 1, {"min.insync.replicas": "1"}, {0: [0, 1]})
    oracle.create_topic("other", 1, 1, {"min.insync.replicas": "1"}, {0: [2, 3]})
    sim.reconcile(5_000)
    sim.apply_cluster(
        4, config={"queued.max.requests": "3"}, rebalance=keep, rollingUpdate={"maxUnavailablePerRack": 2}
    )
    sim.reconcile_until_ready()
    assert (oracle.violations, oracle.most_of_a_rack) == ([], 2)


RACKS = ["a", "b", "c"]
STATES: list[BrokerRunState] = ["Running", "Running", "Running", "Crashed", "Starting"]


@settings(max_examples=200, deadline=None)
@given(
    st.integers(2, 8),
    st.integers(1, 3),
    st.lists(st.sampled_from(RACKS), min_size=8, max_size=8),
    st.lists(st.sampled_from([OLD, NEW]), min_size=8, max_size=8),
    st.lists(st.sampled_from(STATES), min_size=8, max_size=8),
    st.lists(
        st.tuples(st.sets(st.integers(0, 7), min_size=1), st.sets(st.integers(0, 7)), st.integers(1, 3)),
        max_size=5,
    ),
)
def test_one_step_stays_within_min_isr_and_rack_limits(
    size: int,
    limit: int,
    racks: list[str],
    revisions: list[str],
    states: list[BrokerRunState],
    shapes: list[tuple[set[int], set[int], int]],
) -> None:
    brokers = [
        broker(b, revisions[b], state=states[b], rack=racks[b], started_at_ms=NOW_MS) for b in range(size)
    ]
    topics = []
    for number, (members, out, min_isr) in enumerate(shapes):
        replicas = sorted(b for b in members if b < size)
        if replicas:
            isr = [b for b in replicas if b not in out]
            topics.append(topic(f"t{number}", (replicas, isr), min_isr=min_isr))
    observed = observe(*brokers, topics=tuple(topics))
    roll = plan_roll(observed, dict.fromkeys(range(size), NEW), RollingUpdate(max_unavailable_per_rack=limit))
    taken = [b for b in roll.bounce if observed.in_service(b)]
    if not taken:
        assert len(roll.bounce) <= 1
        return
    down = {b.id for b in brokers if not observed.in_service(b.id)} | set(roll.bounce)
    assert len({racks[b] for b in down}) == 1
    assert len(down) <= limit
    for state in topics:
        for partition in state.partitions:
            if len(partition.replicas) <= state.min_isr or not set(taken) & set(partition.replicas):
                continue
            assert len(set(partition.isr) - down) >= state.min_isr
    assert set(roll.bounce) | set(roll.waiting) == {b for b in range(size) if revisions[b] != NEW}


def test_the_simulation_detects_a_stop_below_min_isr() -> None:
    """The tests above rely on the simulation's checks, so these must be able to fail."""
    cluster = SimulatedCluster()
    sim = OperatorSimulation(cluster)
    sim.apply_cluster(3)
    sim.apply_topic("t", config={"min.insync.replicas": 2})
    sim.reconcile_until_ready()
    partition = cluster.topics["t"].partitions[0]
    partition.isr = [0, 1]
    cluster.check_stop(0)
    assert cluster.violations
