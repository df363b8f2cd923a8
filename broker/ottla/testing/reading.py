"""All records of a topic, read once, front to back. Called by ottla.testing.broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ottla.client import errors
from ottla.client.core.types import ConsumerRecord
from ottla.protocol import messages as m
from ottla.protocol.records import (
    ControlType,
    decode_batch,
    iter_batches,
    parse_control_record,
)
from ottla.testing.wire import Wire

_METADATA_VERSION: Final = 8
_FETCH_VERSION: Final = 11
"""The last in which topics have names and sessions need not be."""
_BYTES_MAX: Final = 16 << 20


def records(wire: Wire, topic: str, *, committed: bool) -> list[ConsumerRecord]:
    """By partition and offset. Raises errors.BrokerError, OSError."""
    asked = m.MetadataRequest.MetadataRequestTopic(name=topic)
    answer = wire.ask(m.MetadataRequest(topics=[asked], allow_auto_topic_creation=False), _METADATA_VERSION)
    (found,) = answer.topics
    if found.error_code:
        raise errors.for_code(found.error_code, topic)
    partitions = sorted(partition.partition_index for partition in found.partitions)
    return [
        record
        for partition in partitions
        for record in _partition(wire, topic, partition, committed=committed)
    ]


def _partition(wire: Wire, topic: str, partition: int, *, committed: bool) -> Iterator[ConsumerRecord]:
    offset = 0
    while True:
        answer = _fetch(wire, topic, partition, offset, committed=committed)
        if answer.error_code == errors.OffsetOutOfRangeError.code and offset < answer.log_start_offset:
            offset = answer.log_start_offset
            continue
        if answer.error_code:
            raise errors.for_code(answer.error_code, f"{topic}-{partition} at offset {offset}")
        before = offset
        aborted = sorted(
            ((each.first_offset, each.producer_id) for each in answer.aborted_transactions or ()),
            reverse=True,
        )
        open_aborted: set[int] = set()
        data = bytes(answer.records or b"")
        for at, header in iter_batches(data):
            while aborted and aborted[-1][0] <= header.last_offset:
                open_aborted.add(aborted.pop()[1])
            offset = header.next_offset
            if header.is_control:
                marker = parse_control_record(decode_batch(data, at)[0])
                if marker.type == ControlType.ABORT:
                    open_aborted.discard(header.producer_id)
                continue
            if committed and header.is_transactional and header.producer_id in open_aborted:
                continue
            for record in decode_batch(data, at):
                if record.offset >= before:
                    yield ConsumerRecord(
                        topic,
                        partition,
                        record.offset,
                        record.timestamp,
                        int(header.timestamp_type),
                        record.key,
                        record.value,
                        tuple(record.headers),
                        header.partition_leader_epoch,
                    )
        if offset == before:
            return


def _fetch(wire: Wire, topic: str, partition: int, offset: int, *, committed: bool) -> Any:
    kind = m.FetchRequest
    wanted = kind.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=_BYTES_MAX)
    request = kind(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=_BYTES_MAX,
        isolation_level=int(committed),
        session_id=0,
        session_epoch=-1,
        topics=[kind.FetchTopic(topic=topic, partitions=[wanted])],
    )
    (found,) = wire.ask(request, _FETCH_VERSION).responses
    (answer,) = found.partitions
    return answer
