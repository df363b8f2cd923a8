"""Broker startup, broker failure and controlled shutdown.

Called when /brokers/ids changes, when this broker is elected controller, and for ControlledShutdown.
Invariant: a new broker gets the full state (all metadata, all its replicas) in the same decision in which its
replicas become online.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.controller import leadership, reassignment, topic_deletion
from ottla.controller.context import ControllerContext
from ottla.controller.effects import Effects
from ottla.metadata.znodes import NO_LEADER, BrokerInfo, TopicPartition


def update_brokers(context: ControllerContext, alive: Mapping[int, BrokerInfo]) -> tuple[set[int], set[int]]:
    """Replace the registered brokers. Returns the new and the failed ones; a bounced broker is in both."""
    before = context.brokers
    failed_brokers = {b for b in before if b not in alive or alive[b].epoch != before[b].epoch}
    new_brokers = {b for b in alive if b not in before or alive[b].epoch != before[b].epoch}
    context.brokers = dict(alive)
    for broker in sorted(failed_brokers | new_brokers):
        context.shutting_down.discard(broker)
        context.failed_replicas.pop(broker, None)
    return new_brokers, failed_brokers


def on_brokers_changed(
    context: ControllerContext, effects: Effects, new_brokers: set[int], failed_brokers: set[int]
) -> None:
    """Elections, requests, reassignments and deletions after `update_brokers` returned these brokers."""
    bounced = new_brokers & failed_brokers
    if bounced:
        # A broker that restarted between two reads leaves every ISR that has another member.
        _remove_from_isrs(context, effects, bounced)
    for tp, _ in list(context.partitions_on(failed_brokers)):
        leadership.elect_if_needed(context, effects, tp)
    if new_brokers:
        send_full_state(context, effects, new_brokers)
        for tp in list(context.partitions()):
            if not context.has_live_leader(tp):
                leadership.elect_if_needed(context, effects, tp)
    effects.brokers_changed = True
    for tp, _ in context.partitions_on(new_brokers | failed_brokers):
        # Offline replicas are part of a partition's metadata.
        effects.add_update_metadata(tp)
    reassignment.advance_all(context, effects)
    topic_deletion.on_brokers_started(context, new_brokers)
    topic_deletion.resume(context, effects)


def _remove_from_isrs(context: ControllerContext, effects: Effects, bounced: set[int]) -> None:
    for tp, assignment in list(context.partitions_on(bounced)):
        current = context.leaders.get(tp)
        if current is None or current.leader == NO_LEADER or context.is_deleting(tp.topic):
            continue
        isr = tuple(r for r in current.isr if r not in bounced)
        if not isr or isr == current.isr:
            # The only member of the ISR stays the leader, with a new epoch.
            if current.leader in bounced:
                leadership.change(context, effects, tp, current.leader, current.isr)
            continue
        leader = current.leader
        if leader in bounced:
            leader = next(
                (r for r in assignment.replicas if r in isr and context.is_online(r, tp)), NO_LEADER
            )
            if leader == NO_LEADER:
                isr = current.isr
        leadership.change(context, effects, tp, leader, isr)


def send_full_state(context: ControllerContext, effects: Effects, brokers: Iterable[int]) -> None:
    """Send these brokers the metadata of all partitions and LeaderAndIsr of all their replicas."""
    new = set(brokers)
    effects.full_metadata |= new
    effects.full_leader_and_isr |= new
    for tp, assignment in context.partitions_on(new):
        if tp in context.leaders and not context.is_deleting(tp.topic):
            effects.add_leader_and_isr(tp, [r for r in assignment.replicas if r in new])


def on_elected(context: ControllerContext, effects: Effects) -> None:
    """The first decision of a new controller (onControllerFailover), over all that it has loaded."""
    send_full_state(context, effects, context.brokers)
    effects.brokers_changed = True
    for tp in list(context.partitions()):
        leadership.elect_if_needed(context, effects, tp)
    reassignment.advance_all(context, effects)
    topic_deletion.resume(context, effects)


def controlled_shutdown(context: ControllerContext, effects: Effects, broker_id: int) -> list[TopicPartition]:
    """Controlled shutdown: move leaders off the broker and remove it from the ISRs.

    Returns the partitions that it still leads because no other replica can. As in Kafka, partitions with a
    single replica are not among them, and keep this leader until the broker is gone.
    """
    context.shutting_down.add(broker_id)
    remaining: list[TopicPartition] = []
    for tp, assignment in list(context.partitions_on([broker_id])):
        current = context.leaders.get(tp)
        if current is None or len(assignment.replicas) == 1 or context.is_deleting(tp.topic):
            continue
        isr = tuple(r for r in current.isr if r not in context.shutting_down)
        if current.leader == broker_id:
            leader = next((r for r in assignment.replicas if r in isr and context.is_online(r, tp)), None)
            if leader is None:
                remaining.append(tp)
                continue
            leadership.change(context, effects, tp, leader, isr)
        else:
            without = tuple(r for r in current.isr if r != broker_id)
            if without and without != current.isr:
                leadership.change(context, effects, tp, current.leader, without)
            effects.add_stop_replica(
                broker_id, tp, delete=False, leader_epoch=context.leaders[tp].leader_epoch
            )
    return remaining
