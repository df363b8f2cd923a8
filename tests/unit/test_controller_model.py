"""Random sequences of events: the safety rules hold for all actions of brokers, leaders and administrators.

`SimulatedController.decide` checks after every step that state and store agree, that leaders are in the ISR
and that epochs only grow. This test adds which replicas may be in sync and lead: a replica that was in sync
before the step (and so has every committed record), or one that the leader has added during it.
"""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.controller import broker_changes, leadership, reassignment
from ottla.controller.context import ControllerContext, LeaderAndIsr
from ottla.controller.effects import Effects
from ottla.metadata.znodes import NO_LEADER, TopicPartition
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.worlds.simulated_controller import T0, SimulatedController

BROKERS = (1, 2, 3, 4)
T1 = TopicPartition("t", 1)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("down"), st.sampled_from(BROKERS)),
        st.tuples(st.just("up"), st.sampled_from(BROKERS)),
        st.tuples(st.just("bounce"), st.sampled_from(BROKERS)),
        st.tuples(st.just("shutdown"), st.sampled_from(BROKERS)),
        st.tuples(st.just("shrink"), st.sampled_from(BROKERS)),
        st.tuples(st.just("grow"), st.sampled_from(BROKERS)),
        st.tuples(st.just("preferred"), st.none()),
        st.tuples(
            st.just("move"),
            st.lists(st.sampled_from(BROKERS), min_size=1, max_size=3, unique=True),
        ),
        st.tuples(st.just("cancel"), st.none()),
    ),
    max_size=40,
)


class Model:
    """The simulation, and the replicas that leaders have added to their ISRs during the current step."""

    def __init__(self, *, unclean: bool) -> None:
        self.simulation = SimulatedController(BROKERS)
        self.unclean = unclean
        self.simulation.create({0: (1, 2, 3), 1: (2, 3)})
        self.joined: set[tuple[TopicPartition, int]] = set()

    def step(self, kind: str, argument: object) -> None:
        context = self.simulation.context
        before = dict(context.leaders)
        brokers: set[object] = set(context.brokers)
        self.joined = set()
        if kind == "down" and argument in brokers:
            self._alive(brokers - {argument})
        elif kind == "up" and argument not in brokers:
            self._alive(brokers | {argument})
        elif kind == "bounce" and argument in brokers:
            assert isinstance(argument, int)
            self.simulation.alive(*context.brokers, bounced=[argument])
        elif kind == "shutdown" and argument in brokers:
            assert isinstance(argument, int)
            broker = argument
            self.simulation.decide(lambda s, e: broker_changes.controlled_shutdown(s, e, broker))
        elif kind in ("shrink", "grow"):
            assert isinstance(argument, int)
            self._alter_isr(kind, argument)
        elif kind == "preferred":
            for tp in (T0, T1):
                self.simulation.decide(partial(_elect_preferred, tp=tp))
        elif kind in ("move", "cancel"):
            target = argument if isinstance(argument, list) else None
            try:
                self.simulation.decide(lambda s, e: reassignment.alter(s, e, T0, target))
            except KafkaError:
                assert context.leaders == before, "refused, and yet something has changed"
        self._check(before)

    def _alive(self, brokers: set[object]) -> None:
        if self.unclean:
            self.simulation.context.unclean_topics = {"t"}
        self.simulation.alive(*[b for b in brokers if isinstance(b, int)])

    def _alter_isr(self, kind: str, broker: int) -> None:
        for tp in (T0, T1):
            current = self.simulation.lead(tp)
            assignment = self.simulation.context.assignment(tp)
            assert assignment is not None
            if current.leader not in self.simulation.context.brokers:
                continue
            wanted = [r for r in current.isr if r != broker]
            if kind == "grow":
                wanted.append(broker)
                if broker not in assignment.replicas:
                    continue
            if current.leader in wanted:
                answer = self.simulation.ask_isr(wanted, tp=tp).topics[0].partitions[0]
                granted = answer.error_code == ErrorCode.NONE
                assert granted or answer.error_code == ErrorCode.INELIGIBLE_REPLICA
                if granted and kind == "grow":
                    self.joined.add((tp, broker))

    def _check(self, before: dict[TopicPartition, LeaderAndIsr]) -> None:
        context = self.simulation.context
        for tp in (T0, T1):
            now, was = context.leaders[tp], before[tp]
            complete = set(was.isr) | {broker for joined, broker in self.joined if joined == tp}
            lost = not set(now.isr) <= complete
            if lost:
                assert self.unclean, f"{tp}: the ISR has got a stranger: {was} -> {now}"
                assert now.isr == (now.leader,), f"{tp}: more than the new leader: {was} -> {now}"
                alive = [r for r in was.isr if context.is_online(r, tp, include_shutting_down=True)]
                assert not alive, f"{tp}: records are given up though {alive} had them: {was} -> {now}"
            if now.leader == NO_LEADER:
                online = [r for r in now.isr if context.is_online(r, tp, include_shutting_down=True)]
                assert not online, f"{tp} has no leader though {online} could lead"
            else:
                dead = [r for r in now.isr if not context.is_online(r, tp, include_shutting_down=True)]
                assert not dead, f"{tp}: {dead} are dead, and still in sync: {was} -> {now}"


def _elect_preferred(context: ControllerContext, effects: Effects, tp: TopicPartition) -> None:
    leadership.elect_preferred(context, effects, tp)


@pytest.mark.parametrize("unclean", [False, True])
@settings(max_examples=300, deadline=None)
@given(steps=STEPS)
def test_leaders_come_from_the_isr_and_epochs_grow(unclean: bool, steps: list[tuple[str, object]]) -> None:
    model = Model(unclean=unclean)
    for kind, argument in steps:
        model.step(kind, argument)
