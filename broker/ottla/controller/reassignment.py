"""Moving partitions between brokers (KIP-455).

A move is a state of the partition's assignment, not a procedure: while it lasts, the replicas are the union
of where from and where to, and `adding` and `removing` say which is which. `advance` ends it as soon as
every target replica is in the ISR; a new controller finds all it needs in the topic's node.

Called by the shell for AlterPartitionReassignments, and after every change of an ISR or of the brokers.
Invariants: the assignment and the leadership of one step are written in one multi; a step never takes the
last in-sync replica away.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.controller import leadership
from ottla.controller.effects import Effects
from ottla.controller.state import Assignment, ClusterState
from ottla.metadata import znodes
from ottla.metadata.store import SetData
from ottla.metadata.znodes import NO_LEADER, TopicPartition
from ottla.protocol.errors import ErrorCode, KafkaError


def alter(state: ClusterState, effects: Effects, tp: TopicPartition, target: Sequence[int] | None) -> None:
    """Begin to move the partition to `target`; None cancels the move under way. Raises KafkaError."""
    if target is not None:
        _validate(state, target)
    assignment = state.assignment(tp)
    if assignment is None or state.is_deleting(tp.topic):
        # Nothing of it is under way, whether it exists or not: Kafka answers so.
        if target is None:
            raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{tp} is not being reassigned.")
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    if target is None:
        _cancel(state, effects, tp, assignment)
        return
    moved = assignment.moved_to(target)
    if moved == assignment:
        return
    dropped = [r for r in assignment.replicas if r not in moved.replicas]
    _install(state, effects, tp, moved, assignment.replicas, dropped)
    advance(state, effects, tp)


def _validate(state: ClusterState, target: Sequence[int]) -> None:
    if not target:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "The list of replicas is empty.")
    if len(set(target)) != len(target):
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{list(target)} names a broker twice.")
    if any(replica < 0 for replica in target):
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Replicas {list(target)} have a negative id.")
    unknown = [replica for replica in target if replica not in state.brokers]
    if unknown:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Brokers {unknown} of the new replicas are not alive."
        )


def _cancel(state: ClusterState, effects: Effects, tp: TopicPartition, assignment: Assignment) -> None:
    if not assignment.moving:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{tp} is not being reassigned.")
    origin = Assignment(assignment.origin)
    _install(state, effects, tp, origin, assignment.replicas, list(assignment.adding))


def _install(
    state: ClusterState,
    effects: Effects,
    tp: TopicPartition,
    after: Assignment,
    before: Sequence[int],
    dropped: Sequence[int],
) -> None:
    """Put a new assignment in force, under the next leader epoch; replicas that it drops are deleted.

    `before` are the replicas so far. Raises KafkaError, with nothing done, if nobody in sync would be left.
    """
    current = state.leaders.get(tp)
    if current is not None and set(current.isr) <= set(dropped):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Only {list(current.isr)} of {tp} are in sync; without them records would be lost.",
        )
    _put(state, tp, after)
    topic_write = _topic_write(state, tp.topic)
    if current is None:
        effects.write(topic_write)
        leadership.settle(state, effects, tp)
        return
    isr = tuple(r for r in current.isr if r not in dropped)
    leader = current.leader
    if leader not in isr:
        leader = _leader_among(state, tp, after.replicas, isr)
    added = [r for r in after.replicas if r not in before]
    changed = leadership.change(state, effects, tp, leader, isr, with_operations=[topic_write], new_on=added)
    for replica in dropped:
        if replica in state.brokers:
            effects.stop(replica, tp, delete=True, leader_epoch=changed.leader_epoch)


def advance_all(state: ClusterState, effects: Effects) -> None:
    for topic in list(state.topics.values()):
        for partition, assignment in list(topic.assignments.items()):
            if assignment.moving:
                advance(state, effects, TopicPartition(topic.name, partition))


def advance(state: ClusterState, effects: Effects, tp: TopicPartition) -> None:
    """End the partition's move if every target replica is in sync and one of them can lead."""
    assignment, current = state.assignment(tp), state.leaders.get(tp)
    if assignment is None or current is None or not assignment.moving or state.is_deleting(tp.topic):
        return
    target = assignment.target
    if not set(target) <= set(current.isr):
        return
    leader = current.leader
    if leader not in target or not state.is_online(leader, tp, also_leaving=True):
        leader = _leader_among(state, tp, target, current.isr)
        if leader == NO_LEADER:
            return
    done = Assignment(target)
    _put(state, tp, done)
    changed = leadership.change(
        state,
        effects,
        tp,
        leader,
        tuple(r for r in current.isr if r in target),
        with_operations=[_topic_write(state, tp.topic)],
    )
    for replica in assignment.removing:
        # A broker that is down keeps its files until it is back, and finds no one who asks for them.
        if replica in state.brokers:
            effects.stop(replica, tp, delete=True, leader_epoch=changed.leader_epoch)


def _leader_among(
    state: ClusterState, tp: TopicPartition, replicas: Sequence[int], isr: Sequence[int]
) -> int:
    return next((r for r in replicas if r in isr and state.is_online(r, tp)), NO_LEADER)


def _put(state: ClusterState, tp: TopicPartition, assignment: Assignment) -> None:
    state.topics[tp.topic].assignments[tp.partition] = assignment


def _topic_write(state: ClusterState, topic: str) -> SetData:
    # Unconditional on the node's version, as in Kafka: the controller epoch's check is the fence.
    return SetData(znodes.topic_path(topic), znodes.encode_topic(state.topics[topic].node()))
