"""LeaderAndIsr and StopReplica requests as rows: one per partition, whatever the version of the request.

Called by `manager`, which applies the rows. LeaderAndIsr groups partitions by topic from version 2 on and has
topic ids from 5 on; StopReplica changed its structure in 1 and in 3, which added the leader epoch (KIP-570).
Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode
from ottla.protocol.types import ZERO_UUID

PartitionKey = tuple[str, int]

NO_LEADER_EPOCH = -1
"""StopReplica before version 3 has no leader epoch, and is not fenced."""
EPOCH_DURING_DELETE = -2
"""The deletion of a topic does not increment leader epochs; this value is above all of them."""
TYPE_FULL = 2
"""LeaderAndIsr's Type: the request names every replica of the broker."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition of a LeaderAndIsr request. `topic_id` is None before version 5."""

    topic: str
    partition: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int
    replicas: tuple[int, ...]
    controller_epoch: int = 0
    topic_id: UUID | None = None
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    is_new: bool = False
    leader_recovery_state: int = 0

    @property
    def key(self) -> PartitionKey:
        return (self.topic, self.partition)


class StopState(NamedTuple):
    """A partition of a StopReplica request."""

    topic: str
    partition: int
    leader_epoch: int
    delete: bool


def partition_states(request: m.LeaderAndIsrRequest, version: int) -> Iterator[PartitionState]:
    """The rows of a LeaderAndIsr request of any version."""
    if version < 2:
        for row in request.ungrouped_partition_states:
            yield _partition_state(row.topic_name, None, row)
        return
    for topic in request.topic_states:
        topic_id = topic.topic_id if version >= 5 and topic.topic_id != ZERO_UUID else None
        for row in topic.partition_states:
            yield _partition_state(topic.topic_name, topic_id, row)


def _partition_state(
    topic: str, topic_id: UUID | None, row: m.LeaderAndIsrRequest.LeaderAndIsrPartitionState
) -> PartitionState:
    return PartitionState(
        topic=topic,
        partition=row.partition_index,
        leader=row.leader,
        leader_epoch=row.leader_epoch,
        isr=tuple(row.isr),
        partition_epoch=row.partition_epoch,
        replicas=tuple(row.replicas),
        controller_epoch=row.controller_epoch,
        topic_id=topic_id,
        adding_replicas=tuple(row.adding_replicas),
        removing_replicas=tuple(row.removing_replicas),
        is_new=row.is_new,
        leader_recovery_state=row.leader_recovery_state,
    )


def leader_and_isr_response(
    request: m.LeaderAndIsrRequest, version: int, errors: Mapping[PartitionKey, ErrorCode]
) -> m.LeaderAndIsrResponse:
    """The response with an error code per partition; by topic id from version 5 on, by name before."""
    row = m.LeaderAndIsrResponse.LeaderAndIsrPartitionError
    if version < 5:
        return m.LeaderAndIsrResponse(
            partition_errors=[
                row(topic_name=topic, partition_index=partition, error_code=error)
                for (topic, partition), error in errors.items()
            ]
        )
    by_topic: dict[str, list[m.LeaderAndIsrResponse.LeaderAndIsrPartitionError]] = {}
    for (topic, partition), error in errors.items():
        by_topic.setdefault(topic, []).append(row(partition_index=partition, error_code=error))
    ids = {state.topic_name: state.topic_id for state in request.topic_states}
    return m.LeaderAndIsrResponse(
        topics=[
            m.LeaderAndIsrResponse.LeaderAndIsrTopicError(topic_id=ids[topic], partition_errors=rows)
            for topic, rows in by_topic.items()
        ]
    )


def stop_states(request: m.StopReplicaRequest, version: int) -> Iterator[StopState]:
    """The rows of a StopReplica request of any version."""
    if version >= 3:
        for topic in request.topic_states:
            for row in topic.partition_states:
                yield StopState(topic.topic_name, row.partition_index, row.leader_epoch, row.delete_partition)
    elif version >= 1:
        for named in request.topics:
            for index in named.partition_indexes:
                yield StopState(named.name, index, NO_LEADER_EPOCH, request.delete_partitions)
    else:
        for each in request.ungrouped_partitions:
            yield StopState(each.topic_name, each.partition_index, NO_LEADER_EPOCH, request.delete_partitions)


def stop_replica_response(errors: Iterable[tuple[PartitionKey, ErrorCode]]) -> m.StopReplicaResponse:
    return m.StopReplicaResponse(
        partition_errors=[
            m.StopReplicaResponse.StopReplicaPartitionError(
                topic_name=topic, partition_index=partition, error_code=error
            )
            for (topic, partition), error in errors
        ]
    )
