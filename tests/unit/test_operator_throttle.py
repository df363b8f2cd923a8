"""The throttle of our moves: there before they begin, gone after them, and nobody else's is touched."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from operator_cluster import FakeCluster, World

from ottla_operator.planning.steps import AlterTopicConfig, Reassign
from ottla_operator.planning.throttle import FOLLOWERS, LEADERS, RATES
from ottla_operator.platform.interfaces import KafkaStep, StepFailed
from ottla_operator.resources import BrokerClusterStatus

RATE = str(10 * 2**20)
OTHERS = {FOLLOWERS: "7:7"}


class Judge(FakeCluster):
    """Says which moves began without a throttle."""

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


def make(*, throttle: str | None = "10Mi", topics: int = 2) -> tuple[World, Judge]:
    judge = Judge()
    world = World(judge)
    ask(world, 3, throttle)
    for number in range(topics):
        world.topic(f"t{number}", partitions=9)
    world.settle()
    return world, judge


def ask(world: World, replicas: int, throttle: str | None = "10Mi") -> None:
    rebalance: dict[str, object] = {} if throttle is None else {"replicationThrottle": throttle}
    world.brokers(replicas, rebalance=rebalance)


def status_of(world: World) -> BrokerClusterStatus:
    status = world.status()
    assert isinstance(status, BrokerClusterStatus)
    return status


def test_moves_are_throttled_from_before_they_begin_until_they_are_over() -> None:
    world, judge = make()
    ask(world, 4)
    world.until(lambda: bool(judge.throttles))
    assert {judge.settings[name] for name in RATES} == {RATE}
    record = status_of(world).throttle
    assert record is not None
    assert record.topics == ["t0", "t1"]
    world.settle()
    world.until(lambda: status_of(world).throttle is None)
    assert judge.throttles == {}
    assert judge.unthrottled == []
    assert world.step() == []


def test_a_larger_replication_factor_is_throttled_too() -> None:
    world, judge = make(topics=0)
    world.topic("t0", partitions=6, replicas=2)
    world.settle()
    world.topic("t0", partitions=6, replicas=3)
    world.settle()
    world.until(lambda: status_of(world).throttle is None)
    assert any(line.startswith("reassign") for line in judge.log)
    assert (judge.throttles, judge.unthrottled) == ({}, [])


def test_without_a_throttle_in_the_spec_nothing_is_throttled() -> None:
    world, judge = make(throttle=None)
    ask(world, 4, None)
    world.settle()
    assert not any("throttled" in line for line in judge.log)


def test_a_throttle_that_is_taken_out_of_the_spec_is_taken_away_at_once() -> None:
    world, judge = make()
    ask(world, 4)
    world.until(lambda: bool(judge.throttles))
    ask(world, 4, None)
    world.step()
    assert judge.throttles == {}
    world.settle()


def test_a_new_rate_is_set_while_moves_go_on() -> None:
    world, judge = make()
    ask(world, 4)
    world.until(lambda: bool(judge.throttles))
    ask(world, 4, "20Mi")
    world.step()
    assert {judge.settings[name] for name in RATES} == {str(20 * 2**20)}
    world.settle()
    world.until(lambda: judge.throttles == {})


def test_a_rate_of_somebody_elses_stays() -> None:
    world, judge = make()
    judge.settings |= dict.fromkeys(RATES, "77")
    ask(world, 4)
    world.until(lambda: len(judge.throttles) > len(RATES))
    assert {judge.settings[name] for name in RATES} == {"77"}
    world.settle()
    world.until(lambda: status_of(world).throttle is None)
    assert judge.throttles == dict.fromkeys(RATES, "77")


def test_a_topic_that_somebody_else_throttles_is_moved_under_their_throttle() -> None:
    world, judge = make()
    judge.topics["t0"].config |= OTHERS
    ask(world, 4)
    world.settle()
    world.until(lambda: status_of(world).throttle is None)
    assert judge.throttles == {f"t0 {FOLLOWERS}": "7:7"}
    assert judge.unthrottled == []


def test_a_throttle_of_somebody_elses_is_no_drift_of_a_topic() -> None:
    world, judge = make()
    judge.topics["t0"].config |= OTHERS
    for _ in range(5):
        assert world.step() == []
    world.settle()


def test_moves_do_not_begin_while_the_throttle_cannot_be_set() -> None:
    world, judge = make()
    judge.refuse[AlterTopicConfig] = StepFailed("KafkaError", "no")
    ask(world, 4)
    for _ in range(40):
        world.step()
    assert not any(line.startswith("reassign") for line in judge.log)
    assert world.condition("BrokerCluster/demo") == ("False", "KafkaError", "no; no")
    del judge.refuse[AlterTopicConfig]
    world.settle()
    assert judge.unthrottled == []


def test_a_topic_that_is_deleted_on_the_way_holds_nothing_up() -> None:
    world, judge = make()
    ask(world, 4)
    world.until(lambda: bool(judge.throttles))
    world.store.delete("Topic/t0")
    world.settle()
    world.until(lambda: status_of(world).throttle is None)
    assert judge.throttles == {}


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["scale", "factor", "rate", "no rate", "die", "crash", "time"]), st.integers(0, 5)
        ),
        max_size=8,
    )
)
def test_whatever_comes_between_no_move_goes_unthrottled_and_nothing_is_left(
    script: list[tuple[str, int]],
) -> None:
    world, judge = make()
    size, factor, throttle = 3, 3, "10Mi"
    always_throttled = True

    def step() -> None:
        try:
            world.step()
        except KeyboardInterrupt:
            judge.die_after = None

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
            judge.die_after = number
        elif what == "crash" and len(judge.live()) == len(judge.brokers) and number in judge.brokers:
            judge.crash(number)
        ask(world, size, throttle or None)
        world.topic("t0", partitions=9, replicas=factor)
        for _ in range(number):
            step()
    judge.die_after = None
    world.settle(passes=1500)
    for _ in range(10):
        step()
    assert judge.throttles == {}
    assert status_of(world).throttle is None
    if always_throttled:
        assert judge.unthrottled == []


def test_the_judge_sees_a_move_without_a_throttle() -> None:
    _, judge = make()
    judge.settings |= dict.fromkeys(RATES, RATE)
    judge.brokers[3] = judge.brokers[2]
    judge.execute(Reassign({("t0", 0): (0, 1, 3)}, "why"))
    assert judge.unthrottled
