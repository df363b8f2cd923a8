"""Brokers that come, go, and announce that they will go.

Called by the shell when /brokers/ids changes, when this broker is elected, and for ControlledShutdown.
Invariant: a broker that appears is first told everything (all metadata, all its replicas), in the same
decision that makes it a candidate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.controller import deletion, leadership, reassignment
from ottla.controller.effects import Effects
from ottla.controller.state import ClusterState
from ottla.metadata.znodes import NO_LEADER, BrokerInfo, TopicPartition


def update_brokers(state: ClusterState, alive: Mapping[int, BrokerInfo]) -> tuple[set[int], set[int]]:
    """Take over who is registered now; returns who came and who went. A bounced broker did both."""
    before = state.brokers
    went = {b for b in before if b not in alive or alive[b].epoch != before[b].epoch}
    came = {b for b in alive if b not in before or alive[b].epoch != before[b].epoch}
    state.brokers = dict(alive)
    for broker in went | came:
        state.shutting_down.discard(broker)
        state.failed_replicas.pop(broker, None)
    return came, went


def react(state: ClusterState, effects: Effects, came: set[int], went: set[int]) -> None:
    """Everything that follows from brokers having come and gone (after `update_brokers`)."""
    bounced = came & went
    if bounced:
        # It has restarted unseen: its old incarnation has left every ISR that can do without it.
        _leave_isrs(state, effects, bounced)
    for tp, _ in list(state.partitions_on(went)):
        leadership.settle(state, effects, tp)
    if came:
        introduce(state, effects, came)
        for tp in list(state.partitions()):
            if not state.has_live_leader(tp):
                leadership.settle(state, effects, tp)
    effects.brokers_changed = True
    for tp, _ in state.partitions_on(came | went):
        # Which replicas are offline is part of a partition's metadata.
        effects.tell_everyone(tp)
    reassignment.advance_all(state, effects)
    deletion.brokers_came(state, came)
    deletion.resume(state, effects)


def _leave_isrs(state: ClusterState, effects: Effects, bounced: set[int]) -> None:
    for tp, assignment in list(state.partitions_on(bounced)):
        current = state.leaders.get(tp)
        if current is None or current.leader == NO_LEADER or state.is_deleting(tp.topic):
            continue
        isr = tuple(r for r in current.isr if r not in bounced)
        if not isr or isr == current.isr:
            # Alone in the ISR, it has all there is: it leads again, under a new epoch.
            if current.leader in bounced:
                leadership.change(state, effects, tp, current.leader, current.isr)
            continue
        leader = current.leader
        if leader in bounced:
            leader = next((r for r in assignment.replicas if r in isr and state.is_online(r, tp)), NO_LEADER)
            if leader == NO_LEADER:
                isr = current.isr
        leadership.change(state, effects, tp, leader, isr)


def introduce(state: ClusterState, effects: Effects, brokers: Iterable[int]) -> None:
    """Tell these brokers everything: the metadata of all partitions, the state of all their replicas."""
    new = set(brokers)
    effects.full_metadata |= new
    effects.full_leader_and_isr |= new
    for tp, assignment in state.partitions_on(new):
        if tp in state.leaders and not state.is_deleting(tp.topic):
            effects.tell_replicas(tp, [r for r in assignment.replicas if r in new])


def take_office(state: ClusterState, effects: Effects) -> None:
    """A new controller's first decision, over everything it has loaded."""
    introduce(state, effects, state.brokers)
    effects.brokers_changed = True
    for tp in list(state.partitions()):
        leadership.settle(state, effects, tp)
    reassignment.advance_all(state, effects)
    deletion.resume(state, effects)


def begin_shutdown(state: ClusterState, effects: Effects, broker_id: int) -> list[TopicPartition]:
    """Controlled shutdown: move leaders off the broker and take it out of the ISRs.

    Returns the partitions that it still leads because nobody else may. Partitions with a single replica are
    not among them, and stay led by it until it goes, as in Kafka.
    """
    state.shutting_down.add(broker_id)
    remaining: list[TopicPartition] = []
    for tp, assignment in list(state.partitions_on([broker_id])):
        current = state.leaders.get(tp)
        if current is None or len(assignment.replicas) == 1 or state.is_deleting(tp.topic):
            continue
        isr = tuple(r for r in current.isr if r not in state.shutting_down)
        if current.leader == broker_id:
            leader = next((r for r in assignment.replicas if r in isr and state.is_online(r, tp)), None)
            if leader is None:
                remaining.append(tp)
                continue
            leadership.change(state, effects, tp, leader, isr)
        else:
            without = tuple(r for r in current.isr if r != broker_id)
            if without and without != current.isr:
                leadership.change(state, effects, tp, current.leader, without)
            effects.stop(broker_id, tp, delete=False, leader_epoch=state.leaders[tp].leader_epoch)
    return remaining
