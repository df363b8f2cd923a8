"""AlterPartition: a leader asks for another ISR (KIP-497, KIP-704, KIP-841, KIP-903).

Called by the shell. Pure: checks the request against the state, and either changes the ISR or says why not.

Invariant: an ISR changes only at the request of the current leader under its current epoch, from the
partition epoch that the leader knew; so a leader that has been replaced, or has missed a change, cannot.
"""

from __future__ import annotations

from dataclasses import replace

from ottla.controller import reassignment
from ottla.controller.effects import Effects
from ottla.controller.state import RECOVERED, RECOVERING, ClusterState, LeaderAndIsr, Topic
from ottla.metadata import znodes
from ottla.metadata.store import SetData
from ottla.metadata.znodes import TopicPartition
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import AlterPartitionRequest, AlterPartitionResponse
from ottla.protocol.types import ZERO_UUID

_TOPIC_IDS_SINCE = 2
_BROKER_EPOCHS_SINCE = 3


def alter_partition(
    state: ClusterState, effects: Effects, request: AlterPartitionRequest, version: int
) -> AlterPartitionResponse:
    """Answer the whole request; partitions are judged one by one."""
    response = AlterPartitionResponse()
    broker = state.brokers.get(request.broker_id)
    if broker is None or (request.broker_epoch >= 0 and request.broker_epoch != broker.epoch):
        response.error_code = ErrorCode.STALE_BROKER_EPOCH
        return response
    for asked in request.topics:
        topic = _find_topic(state, asked, version)
        answer = AlterPartitionResponse.TopicData(topic_name=asked.topic_name, topic_id=asked.topic_id)
        for partition in asked.partitions:
            answer.partitions.append(_alter_one(state, effects, request.broker_id, topic, partition, version))
        response.topics.append(answer)
    return response


def _find_topic(state: ClusterState, asked: AlterPartitionRequest.TopicData, version: int) -> Topic | None:
    if version >= _TOPIC_IDS_SINCE and asked.topic_id != ZERO_UUID:
        return state.topic_by_id(asked.topic_id)
    return state.topics.get(asked.topic_name)


def _alter_one(
    state: ClusterState,
    effects: Effects,
    broker_id: int,
    topic: Topic | None,
    asked: AlterPartitionRequest.PartitionData,
    version: int,
) -> AlterPartitionResponse.PartitionData:
    answer = AlterPartitionResponse.PartitionData(partition_index=asked.partition_index)
    if topic is None and version >= _TOPIC_IDS_SINCE:
        answer.error_code = ErrorCode.UNKNOWN_TOPIC_ID
        return answer
    if topic is None or asked.partition_index not in topic.assignments or state.is_deleting(topic.name):
        answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return answer
    tp = TopicPartition(topic.name, asked.partition_index)
    current = state.leaders.get(tp)
    if current is None:
        answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return answer
    isr, epochs = _asked_isr(asked, version)
    error = _judge(state, tp, current, broker_id, asked, isr, epochs, version)
    if error is not None:
        answer.error_code = error
        return answer
    if set(isr) != set(current.isr) or asked.leader_recovery_state != current.recovery:
        current = _change_isr(state, effects, tp, current, isr, asked.leader_recovery_state)
        # What the leader is told is the outcome of its request; a move that ends with it follows as a
        # LeaderAndIsr of a later epoch.
        reassignment.advance(state, effects, tp)
    answer.leader_id = current.leader
    answer.leader_epoch = current.leader_epoch
    answer.isr = list(current.isr)
    answer.leader_recovery_state = current.recovery
    answer.partition_epoch = current.partition_epoch
    return answer


def _asked_isr(
    asked: AlterPartitionRequest.PartitionData, version: int
) -> tuple[tuple[int, ...], dict[int, int]]:
    if version >= _BROKER_EPOCHS_SINCE and asked.new_isr_with_epochs:
        epochs = {member.broker_id: member.broker_epoch for member in asked.new_isr_with_epochs}
        return tuple(epochs), epochs
    return tuple(dict.fromkeys(asked.new_isr)), {}


def _judge(
    state: ClusterState,
    tp: TopicPartition,
    current: LeaderAndIsr,
    broker_id: int,
    asked: AlterPartitionRequest.PartitionData,
    isr: tuple[int, ...],
    epochs: dict[int, int],
    version: int,
) -> ErrorCode | None:
    """Why the change is refused, or None. The order of the checks is Kafka's."""
    if asked.leader_epoch > current.leader_epoch or asked.partition_epoch > current.partition_epoch:
        # The broker has heard of a newer state than ours: a newer controller is at work.
        return ErrorCode.NOT_CONTROLLER
    if asked.leader_epoch < current.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if broker_id != current.leader:
        return ErrorCode.INVALID_REQUEST
    if set(isr) == set(current.isr) and asked.leader_recovery_state == current.recovery:
        return None  # a repeated request: already as asked, whatever partition epoch it came with
    if asked.partition_epoch != current.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    if asked.leader_recovery_state not in (RECOVERED, RECOVERING):
        return ErrorCode.INVALID_REQUEST
    if asked.leader_recovery_state == RECOVERING and (len(isr) > 1 or current.recovery == RECOVERED):
        return ErrorCode.INVALID_REQUEST
    assignment = state.assignment(tp)
    assert assignment is not None
    if broker_id not in isr or not set(isr) <= set(assignment.replicas):
        return ErrorCode.INVALID_REQUEST
    joining = [replica for replica in isr if replica not in current.isr]
    for replica in joining:
        known = state.brokers.get(replica)
        stale = known is not None and epochs.get(replica, -1) not in (-1, known.epoch)
        if not state.is_online(replica, tp) or stale:
            return (
                ErrorCode.INELIGIBLE_REPLICA
                if version >= _TOPIC_IDS_SINCE
                else ErrorCode.OPERATION_NOT_ATTEMPTED
            )
    return None


def _change_isr(
    state: ClusterState,
    effects: Effects,
    tp: TopicPartition,
    current: LeaderAndIsr,
    isr: tuple[int, ...],
    recovery: int,
) -> LeaderAndIsr:
    """Unlike an election, a change of the ISR keeps the leader epoch, and replicas need not be told."""
    changed = replace(
        current,
        isr=isr,
        recovery=recovery,
        partition_epoch=current.partition_epoch + 1,
        controller_epoch=state.controller_epoch,
    )
    assert changed.leader in isr
    data = znodes.encode_partition_state(changed.node())
    effects.write(SetData(znodes.state_path(*tp), data, current.partition_epoch))
    state.leaders[tp] = changed
    effects.tell_everyone(tp)
    return changed
