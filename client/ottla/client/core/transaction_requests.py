"""The requests of a transactional producer (KIP-98, KIP-447). Called by `transactions`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from ottla.client.core.types import GroupMetadata, OffsetToCommit, TopicPartition
from ottla.protocol import messages as m
from ottla.protocol.types import Message

FIND_COORDINATOR_VERSION_MAX: Final = 3
"""The last version of FindCoordinator for a single key."""
ADD_PARTITIONS_VERSION_MAX: Final = 3
"""The last version of AddPartitionsToTxn for clients; later ones are for brokers (KIP-890)."""


class Identity(NamedTuple):
    """A transactional id with its producer id and epoch."""

    transactional_id: str
    producer_id: int
    epoch: int


def add_partitions(producer: Identity, partitions: Iterable[TopicPartition]) -> m.AddPartitionsToTxnRequest:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    added = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    return m.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=producer.transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[added(name=name, partitions=found) for name, found in topics.items()],
    )


def add_offsets(producer: Identity, group: GroupMetadata) -> m.AddOffsetsToTxnRequest:
    return m.AddOffsetsToTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        group_id=group.group_id,
    )


def commit_offsets(
    producer: Identity, group: GroupMetadata, offsets: Mapping[TopicPartition, OffsetToCommit]
) -> m.TxnOffsetCommitRequest:
    part = m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition
    topics: dict[str, list[m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition]] = {}
    for tp, to in sorted(offsets.items()):
        entry = part(
            partition_index=tp.partition,
            committed_offset=to.offset,
            committed_leader_epoch=to.leader_epoch,
            committed_metadata=to.metadata,
        )
        topics.setdefault(tp.topic, []).append(entry)
    return m.TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id=group.group_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        generation_id=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=[
            m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=name, partitions=parts)
            for name, parts in topics.items()
        ],
    )


def end(producer: Identity, *, committed: bool) -> m.EndTxnRequest:
    return m.EndTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        committed=committed,
    )


def codes_of(request: Message, response: Any) -> list[int]:
    """The error codes of a response, one for each partition if it has partitions."""
    if isinstance(request, m.AddPartitionsToTxnRequest):
        return [
            result.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        ]
    if isinstance(request, m.TxnOffsetCommitRequest):
        return [partition.error_code for topic in response.topics for partition in topic.partitions]
    return [response.error_code]
