"""All records of a topic, read once, front to back. Called by ottla.testing.broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ottla.client import errors
from ottla.client.core.decoding import PartitionData
from ottla.client.core.types import ConsumerRecord, TopicPartition
from ottla.protocol import messages as m
from ottla.testing.wire import Wire

_METADATA_VERSION: Final = 8
_FETCH_VERSION: Final = 11
"""The last in which topics have names and sessions need not be."""
_LIST_OFFSETS_VERSION: Final = 5
_EARLIEST_TIMESTAMP: Final = -2
_BYTES_MAX: Final = 16 << 20


def records(wire: Wire, topic: str, *, committed: bool) -> list[ConsumerRecord]:
    """By partition and offset. Raises errors.ClientError, OSError."""
    asked = m.MetadataRequest.MetadataRequestTopic(name=topic)
    answer = wire.ask(m.MetadataRequest(topics=[asked], allow_auto_topic_creation=False), _METADATA_VERSION)
    (found,) = answer.topics
    if found.error_code:
        raise errors.for_code(found.error_code, topic)
    partitions = sorted(partition.partition_index for partition in found.partitions)
    return [
        record
        for partition in partitions
        for record in _partition(wire, TopicPartition(topic, partition), committed=committed)
    ]


def _partition(wire: Wire, tp: TopicPartition, *, committed: bool) -> Iterator[ConsumerRecord]:
    offset = 0
    while True:
        answer = _fetch(wire, tp, offset, committed=committed)
        if answer.error_code == errors.OffsetOutOfRangeError.code and offset < (start := _start(wire, tp)):
            offset = start
            continue
        if answer.error_code:
            raise errors.for_code(answer.error_code, f"{tp} at offset {offset}")
        data = PartitionData(
            tp,
            memoryview(answer.records or b""),
            offset,
            check_crcs=True,
            aborted=(answer.aborted_transactions or ()) if committed else None,
        )
        while (batch := data.next_batch()) is not None:
            yield from batch
        if data.next_offset == offset:
            return
        offset = data.next_offset


def _start(wire: Wire, tp: TopicPartition) -> int:
    """The first offset that is left, which a Fetch that is out of range does not say."""
    kind = m.ListOffsetsRequest
    wanted = kind.ListOffsetsPartition(partition_index=tp.partition, timestamp=_EARLIEST_TIMESTAMP)
    request = kind(replica_id=-1, topics=[kind.ListOffsetsTopic(name=tp.topic, partitions=[wanted])])
    (found,) = wire.ask(request, _LIST_OFFSETS_VERSION).topics
    (answer,) = found.partitions
    if answer.error_code:
        raise errors.for_code(answer.error_code, f"the first offset of {tp}")
    return int(answer.offset)


def _fetch(wire: Wire, tp: TopicPartition, offset: int, *, committed: bool) -> Any:
    kind = m.FetchRequest
    wanted = kind.FetchPartition(partition=tp.partition, fetch_offset=offset, partition_max_bytes=_BYTES_MAX)
    request = kind(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=_BYTES_MAX,
        isolation_level=int(committed),
        session_id=0,
        session_epoch=-1,
        topics=[kind.FetchTopic(topic=tp.topic, partitions=[wanted])],
    )
    (found,) = wire.ask(request, _FETCH_VERSION).responses
    (answer,) = found.partitions
    return answer
