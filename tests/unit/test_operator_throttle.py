"""The replication throttle of reassignments: set before them, removed after them, others unchanged."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla_operator.planning.steps import AlterTopicConfig, KafkaStep, Reassign
from ottla_operator.planning.throttle import FOLLOWERS, LEADERS, RATES
from ottla_operator.platform.interfaces import StepFailed
from ottla_operator.resources import BrokerClusterStatus
from tests.worlds.operator_simulation import OperatorSimulation, SimulatedCluster

RATE = str(10 * 2**20)
OTHERS = {FOLLOWERS: "7:7"}


class ThrottleOracle(SimulatedCluster):
    """Detects moves that began without a throttle."""

    def __init__(self) -> None:
        super().__init__()
        self.unthrottled: list[str] = []
        self.die_after: int | None = None

    def execute(self, step: KafkaStep) -> None:
        if self.die_after is not None:
            self.die_after -= 1
            if self.die_after < 0:
                raise KeyboardInterrupt
        if isinstance(step, Reassign):
            for (name, number), target in step.assignment.items():
                config = self.topics[name].config
                partition = self.topics[name].partitions[number]
                coming = [b for b in target if b not in partition.replicas]
                throttled = (config.get(FOLLOWERS) or "").split(",")
                sending = (config.get(LEADERS) or "").split(",")
                ours = all(f"{number}:{b}" in throttled for b in coming) and (
                    partition.leader < 0 or f"{number}:{partition.leader}" in sending
                )
                if config.get(FOLLOWERS) != OTHERS[FOLLOWERS] and coming and not ours:
                    self.unthrottled.append(f"{name}-{number} to {target} under {config}")
                if coming and ours and not all(rate in self.settings for rate in RATES):
                    self.unthrottled.append(f"{name}-{number} without a rate")
        super().execute(step)

    @property
    def throttles(self) -> dict[str, str]:
        found = {name: value for name, value in self.settings.items() if name in RATES}
        for name, topic in self.topics.items():
            found |= {
                f"{name} {key}": topic.config[key] for key in (LEADERS, FOLLOWERS) if key in topic.config
            }
        return found


def make(*, throttle: str | None = "10Mi", topics: int = 2) -> tuple[OperatorSimulation, ThrottleOracle]:
    cluster = ThrottleOracle()
    sim = OperatorSimulation(cluster)
    ask(sim, 3, throttle)
    for number in range(topics):
        sim.apply_topic(f"t{number}", partitions=9)
    sim.reconcile_until_ready()
    return sim, cluster


def ask(sim: OperatorSimulation, replicas: int, throttle: str | None = "10Mi") -> None:
    rebalance: dict[str, object] = {} if throttle is None else {"replicationThrottle": throttle}
    sim.apply_cluster(replicas, rebalance=rebalance)


def status_of(sim: OperatorSimulation) -> BrokerClusterStatus:
    status = sim.status()
    assert isinstance(status, BrokerClusterStatus)
    return status


def test_moves_are_throttled_from_start_to_end() -> None:
    sim, cluster = make()
    ask(sim, 4)
    sim.reconcile_until(lambda: bool(cluster.throttles))
    assert {cluster.settings[name] for name in RATES} == {RATE}
    record = status_of(sim).throttle
    assert record is not None
    assert record.topics == ["t0", "t1"]
    sim.reconcile_until_ready()
    sim.reconcile_until(lambda: status_of(sim).throttle is None)
    assert cluster.throttles == {}
    assert cluster.unthrottled == []
    assert sim.reconcile() == []


def test_a_larger_replication_factor_is_throttled_too() -> None:
    sim, cluster = make(topics=0)
    sim.apply_topic("t0", partitions=6, replicas=2)
    sim.reconcile_until_ready()
    sim.apply_topic("t0", partitions=6, replicas=3)
    sim.reconcile_until_ready()
    sim.reconcile_until(lambda: status_of(sim).throttle is None)
    assert any(line.startswith("reassign") for line in cluster.log)
    assert (cluster.throttles, cluster.unthrottled) == ({}, [])


def test_without_a_throttle_in_the_spec_nothing_is_throttled() -> None:
    sim, cluster = make(throttle=None)
    ask(sim, 4, None)
    sim.reconcile_until_ready()
    assert not any("throttled" in line for line in cluster.log)


def test_removing_the_throttle_from_the_spec_removes_it_at_once() -> None:
    sim, cluster = make()
    ask(sim, 4)
    sim.reconcile_until(lambda: bool(cluster.throttles))
    ask(sim, 4, None)
    sim.reconcile()
    assert cluster.throttles == {}
    sim.reconcile_until_ready()


def test_a_changed_rate_is_set_during_moves() -> None:
    sim, cluster = make()
    ask(sim, 4)
    sim.reconcile_until(lambda: bool(cluster.throttles))
    ask(sim, 4, "20Mi")
    sim.reconcile()
    assert {cluster.settings[name] for name in RATES} == {str(20 * 2**20)}
    sim.reconcile_until_ready()
    sim.reconcile_until(lambda: cluster.throttles == {})


def test_a_rate_of_another_tool_is_kept() -> None:
    sim, cluster = make()
    cluster.settings |= dict.fromkeys(RATES, "77")
    ask(sim, 4)
    sim.reconcile_until(lambda: len(cluster.throttles) > len(RATES))
    assert {cluster.settings[name] for name in RATES} == {"77"}
    sim.reconcile_until_ready()
    sim.reconcile_until(lambda: status_of(sim).throttle is None)
    assert cluster.throttles == dict.fromkeys(RATES, "77")


def test_a_topic_throttled_by_another_tool_is_moved_under_that_throttle() -> None:
    sim, cluster = make()
    cluster.topics["t0"].config |= OTHERS
    ask(sim, 4)
    sim.reconcile_until_ready()
    sim.reconcile_until(lambda: status_of(sim).throttle is None)
    assert cluster.throttles == {f"t0 {FOLLOWERS}": "7:7"}
    assert cluster.unthrottled == []


def test_a_throttle_of_another_tool_is_not_reverted_by_the_topic() -> None:
    sim, cluster = make()
    cluster.topics["t0"].config |= OTHERS
    for _ in range(5):
        assert sim.reconcile() == []
    sim.reconcile_until_ready()


def test_moves_wait_until_the_throttle_is_set() -> None:
    sim, cluster = make()
    cluster.step_failures[AlterTopicConfig] = StepFailed("KafkaError", "no")
    ask(sim, 4)
    for _ in range(40):
        sim.reconcile()
    assert not any(line.startswith("reassign") for line in cluster.log)
    assert sim.condition("BrokerCluster/demo") == ("False", "KafkaError", "no; no")
    del cluster.step_failures[AlterTopicConfig]
    sim.reconcile_until_ready()
    assert cluster.unthrottled == []


def test_a_topic_deleted_during_moves_does_not_block_them() -> None:
    sim, cluster = make()
    ask(sim, 4)
    sim.reconcile_until(lambda: bool(cluster.throttles))
    sim.store.delete("Topic/t0")
    sim.reconcile_until_ready()
    sim.reconcile_until(lambda: status_of(sim).throttle is None)
    assert cluster.throttles == {}


@pytest.mark.budget(3)  # 25 moves of Hypothesis with faults
@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["scale", "factor", "rate", "no rate", "die", "crash", "time"]), st.integers(0, 5)
        ),
        max_size=8,
    )
)
def test_with_random_faults_every_move_is_throttled_and_no_throttle_is_left(
    script: list[tuple[str, int]],
) -> None:
    sim, cluster = make()
    size, factor, throttle = 3, 3, "10Mi"
    always_throttled = True

    def step() -> None:
        try:
            sim.reconcile()
        except KeyboardInterrupt:
            cluster.die_after = None

    for what, number in script:
        if what == "scale":
            size = 3 + number % 3
        elif what == "factor":
            factor = 2 + number % 2
        elif what == "rate":
            throttle = f"{1 + number}Mi"
        elif what == "no rate":
            throttle, always_throttled = "", False
        elif what == "die":
            cluster.die_after = number
        elif what == "crash" and len(cluster.live()) == len(cluster.brokers) and number in cluster.brokers:
            cluster.crash(number)
        ask(sim, size, throttle or None)
        sim.apply_topic("t0", partitions=9, replicas=factor)
        for _ in range(number):
            step()
    cluster.die_after = None
    sim.reconcile_until_ready(reconciles_max=1500)
    for _ in range(10):
        step()
    assert cluster.throttles == {}
    assert status_of(sim).throttle is None
    if always_throttled:
        assert cluster.unthrottled == []


def test_the_oracle_detects_a_move_without_a_throttle() -> None:
    _, cluster = make()
    cluster.settings |= dict.fromkeys(RATES, RATE)
    cluster.brokers[3] = cluster.brokers[2]
    cluster.execute(Reassign({("t0", 0): (0, 1, 3)}, "why"))
    assert cluster.unthrottled
