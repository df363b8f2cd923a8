"""Partition reassignment (KIP-455).

A reassignment is a state of the partition's assignment, not a procedure: during it the replicas are the union
of the original and the target replicas, and `adding` and `removing` are their differences. `advance`
completes it when every target replica is in the ISR. A new controller continues it from the topic's node.

Called for AlterPartitionReassignments, and after every change of an ISR or of the brokers.
Invariants: the assignment and the leader of a step are written in one multi, but for the last step: its
assignment is written when StopReplica has been sent, as by Kafka (B6 of onPartitionReassignment), so that a
controller that takes over in between sends it again. A step never removes the last in-sync replica.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.controller import leadership
from ottla.controller.context import ControllerContext, ReplicaAssignment
from ottla.controller.effects import Effects
from ottla.metadata import znodes
from ottla.metadata.store import SetData
from ottla.metadata.znodes import NO_LEADER, TopicPartition
from ottla.protocol.errors import ErrorCode, KafkaError


def alter(
    context: ControllerContext, effects: Effects, tp: TopicPartition, target: Sequence[int] | None
) -> None:
    """Start to reassign the partition to `target`; None cancels its reassignment. Raises KafkaError."""
    if target is not None:
        _validate(context, target)
    assignment = context.assignment(tp)
    if assignment is None or context.is_deleting(tp.topic):
        # As Kafka, the same error whether the partition exists or not.
        if target is None:
            raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{tp} is not being reassigned.")
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    if target is None:
        _cancel(context, effects, tp, assignment)
        return
    moved = assignment.reassign_to(target)
    if moved == assignment:
        return
    dropped = [r for r in assignment.replicas if r not in moved.replicas]
    _apply_assignment(context, effects, tp, moved, assignment.replicas, dropped)
    advance(context, effects, tp)


def _validate(context: ControllerContext, target: Sequence[int]) -> None:
    if not target:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "The list of replicas is empty.")
    if len(set(target)) != len(target):
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{list(target)} names a broker twice.")
    if any(replica < 0 for replica in target):
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Replicas {list(target)} have a negative id.")
    unknown = [replica for replica in target if replica not in context.brokers]
    if unknown:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Brokers {unknown} of the new replicas are not alive."
        )


def _cancel(
    context: ControllerContext, effects: Effects, tp: TopicPartition, assignment: ReplicaAssignment
) -> None:
    if not assignment.is_being_reassigned:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{tp} is not being reassigned.")
    origin = ReplicaAssignment(assignment.origin)
    _apply_assignment(context, effects, tp, origin, assignment.replicas, list(assignment.adding))


def _apply_assignment(
    context: ControllerContext,
    effects: Effects,
    tp: TopicPartition,
    after: ReplicaAssignment,
    before: Sequence[int],
    dropped: Sequence[int],
) -> None:
    """Write a new assignment with the next leader epoch, and delete the replicas in `dropped`.

    `before` are the replicas so far. Raises KafkaError, without a change, if no in-sync replica would be
    left.
    """
    current = context.leaders.get(tp)
    if current is not None and set(current.isr) <= set(dropped):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Only {list(current.isr)} of {tp} are in sync; without them records would be lost.",
        )
    _set_assignment(context, tp, after)
    topic_write = _topic_write(context, tp.topic)
    if current is None:
        effects.write(topic_write)
        leadership.elect_if_needed(context, effects, tp)
        return
    isr = tuple(r for r in current.isr if r not in dropped)
    leader = current.leader
    if leader not in isr:
        leader = _leader_among(context, tp, after.replicas, isr)
    added = [r for r in after.replicas if r not in before]
    changed = leadership.change(
        context, effects, tp, leader, isr, with_operations=[topic_write], new_on=added
    )
    for replica in dropped:
        if replica in context.brokers:
            effects.add_stop_replica(replica, tp, delete=True, leader_epoch=changed.leader_epoch)


def advance_all(context: ControllerContext, effects: Effects) -> None:
    """`advance` every ongoing reassignment."""
    for topic in list(context.topics.values()):
        for partition, assignment in list(topic.assignments.items()):
            if assignment.is_being_reassigned:
                advance(context, effects, TopicPartition(topic.name, partition))


def advance(context: ControllerContext, effects: Effects, tp: TopicPartition) -> None:
    """Complete the partition's reassignment if every target replica is in sync and one can be leader."""
    assignment, current = context.assignment(tp), context.leaders.get(tp)
    if (
        assignment is None
        or current is None
        or not assignment.is_being_reassigned
        or context.is_deleting(tp.topic)
    ):
        return
    target = assignment.target
    if not set(target) <= set(current.isr):
        return
    leader = current.leader
    if leader not in target or not context.is_online(leader, tp, include_shutting_down=True):
        leader = _leader_among(context, tp, target, current.isr)
        if leader == NO_LEADER:
            return
    done = ReplicaAssignment(target)
    _set_assignment(context, tp, done)
    isr = tuple(r for r in current.isr if r in target)
    changed = leadership.change(context, effects, tp, leader, isr)
    effects.last_writes.append((_topic_write(context, tp.topic),))
    for replica in assignment.removing:
        # An offline broker keeps its files; it deletes them when it is back and is not a replica any more.
        if replica in context.brokers:
            effects.add_stop_replica(replica, tp, delete=True, leader_epoch=changed.leader_epoch)


def _leader_among(
    context: ControllerContext, tp: TopicPartition, replicas: Sequence[int], isr: Sequence[int]
) -> int:
    return next((r for r in replicas if r in isr and context.is_online(r, tp)), NO_LEADER)


def _set_assignment(context: ControllerContext, tp: TopicPartition, assignment: ReplicaAssignment) -> None:
    context.topics[tp.topic].assignments[tp.partition] = assignment


def _topic_write(context: ControllerContext, topic: str) -> SetData:
    # Without a version check, as in Kafka: the check of the controller epoch fences the write.
    return SetData(znodes.topic_path(topic), znodes.encode_topic(context.topics[topic].node()))
