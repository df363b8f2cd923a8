"""AlterPartition: a leader requests a new ISR (KIP-497, KIP-704, KIP-841, KIP-903).

Called by `partition_requests`. Pure: validates the request against the controller's state, and either changes
the ISR or returns an error code.

Invariant: an ISR changes only at the request of the current leader with the current leader epoch and
partition epoch. A former leader, or a leader that missed a change, cannot change it.
"""

from __future__ import annotations

from dataclasses import replace

from ottla.controller import reassignment
from ottla.controller.context import RECOVERED, RECOVERING, ControllerContext, LeaderAndIsr, Topic
from ottla.controller.effects import Effects
from ottla.metadata import znodes
from ottla.metadata.store import SetData
from ottla.metadata.znodes import TopicPartition
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import AlterPartitionRequest, AlterPartitionResponse
from ottla.protocol.types import ZERO_UUID

_TOPIC_IDS_SINCE = 2
_BROKER_EPOCHS_SINCE = 3


def alter_partition(
    context: ControllerContext, effects: Effects, request: AlterPartitionRequest, version: int
) -> AlterPartitionResponse:
    """The response to the request. Each partition succeeds or fails by itself."""
    response = AlterPartitionResponse()
    broker = context.brokers.get(request.broker_id)
    if broker is None or (request.broker_epoch >= 0 and request.broker_epoch != broker.epoch):
        response.error_code = ErrorCode.STALE_BROKER_EPOCH
        return response
    for requested in request.topics:
        topic = _find_topic(context, requested, version)
        result = AlterPartitionResponse.TopicData(
            topic_name=requested.topic_name, topic_id=requested.topic_id
        )
        for partition in requested.partitions:
            result.partitions.append(
                _alter_partition(context, effects, request.broker_id, topic, partition, version)
            )
        response.topics.append(result)
    return response


def _find_topic(
    context: ControllerContext, requested: AlterPartitionRequest.TopicData, version: int
) -> Topic | None:
    if version >= _TOPIC_IDS_SINCE and requested.topic_id != ZERO_UUID:
        return context.topic_by_id(requested.topic_id)
    return context.topics.get(requested.topic_name)


def _alter_partition(
    context: ControllerContext,
    effects: Effects,
    broker_id: int,
    topic: Topic | None,
    requested: AlterPartitionRequest.PartitionData,
    version: int,
) -> AlterPartitionResponse.PartitionData:
    result = AlterPartitionResponse.PartitionData(partition_index=requested.partition_index)
    if topic is None and version >= _TOPIC_IDS_SINCE:
        result.error_code = ErrorCode.UNKNOWN_TOPIC_ID
        return result
    if topic is None or requested.partition_index not in topic.assignments or context.is_deleting(topic.name):
        result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return result
    tp = TopicPartition(topic.name, requested.partition_index)
    current = context.leaders.get(tp)
    if current is None:
        result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return result
    isr, epochs = _requested_isr(requested, version)
    error = _validate_change(context, tp, current, broker_id, requested, isr, epochs, version)
    if error is not None:
        result.error_code = error
        return result
    if set(isr) != set(current.isr) or requested.leader_recovery_state != current.recovery:
        current = _set_isr(context, effects, tp, current, isr, requested.leader_recovery_state)
        # The response has the outcome of the leader's request. If the change completes a reassignment, a
        # LeaderAndIsr with a later epoch follows.
        reassignment.advance(context, effects, tp)
    result.leader_id = current.leader
    result.leader_epoch = current.leader_epoch
    result.isr = list(current.isr)
    result.leader_recovery_state = current.recovery
    result.partition_epoch = current.partition_epoch
    return result


def _requested_isr(
    requested: AlterPartitionRequest.PartitionData, version: int
) -> tuple[tuple[int, ...], dict[int, int]]:
    if version >= _BROKER_EPOCHS_SINCE and requested.new_isr_with_epochs:
        epochs = {member.broker_id: member.broker_epoch for member in requested.new_isr_with_epochs}
        return tuple(epochs), epochs
    return tuple(dict.fromkeys(requested.new_isr)), {}


def _validate_change(
    context: ControllerContext,
    tp: TopicPartition,
    current: LeaderAndIsr,
    broker_id: int,
    requested: AlterPartitionRequest.PartitionData,
    isr: tuple[int, ...],
    epochs: dict[int, int],
    version: int,
) -> ErrorCode | None:
    """The error code of a rejected change, or None. The order of the checks is Kafka's."""
    if requested.leader_epoch > current.leader_epoch or requested.partition_epoch > current.partition_epoch:
        # The broker has a newer state than this controller: there is a newer controller.
        return ErrorCode.NOT_CONTROLLER
    if requested.leader_epoch < current.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if broker_id != current.leader:
        return ErrorCode.INVALID_REQUEST
    if set(isr) == set(current.isr) and requested.leader_recovery_state == current.recovery:
        return None  # a repeated request whose change is already made, with any partition epoch
    if requested.partition_epoch != current.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    if requested.leader_recovery_state not in (RECOVERED, RECOVERING):
        return ErrorCode.INVALID_REQUEST
    if requested.leader_recovery_state == RECOVERING and (len(isr) > 1 or current.recovery == RECOVERED):
        return ErrorCode.INVALID_REQUEST
    assignment = context.assignment(tp)
    assert assignment is not None
    if broker_id not in isr or not set(isr) <= set(assignment.replicas):
        return ErrorCode.INVALID_REQUEST
    joining = [replica for replica in isr if replica not in current.isr]
    for replica in joining:
        known = context.brokers.get(replica)
        stale = known is not None and epochs.get(replica, -1) not in (-1, known.epoch)
        if not context.is_online(replica, tp) or stale:
            return (
                ErrorCode.INELIGIBLE_REPLICA
                if version >= _TOPIC_IDS_SINCE
                else ErrorCode.OPERATION_NOT_ATTEMPTED
            )
    return None


def _set_isr(
    context: ControllerContext,
    effects: Effects,
    tp: TopicPartition,
    current: LeaderAndIsr,
    isr: tuple[int, ...],
    recovery: int,
) -> LeaderAndIsr:
    """Write the ISR. Unlike an election this keeps the leader epoch and sends no LeaderAndIsr."""
    changed = replace(
        current,
        isr=isr,
        recovery=recovery,
        partition_epoch=current.partition_epoch + 1,
        controller_epoch=context.controller_epoch,
    )
    assert changed.leader in isr
    data = znodes.encode_partition_state(changed.node())
    effects.write(SetData(znodes.state_path(*tp), data, current.partition_epoch))
    context.leaders[tp] = changed
    effects.add_update_metadata(tp)
    return changed
