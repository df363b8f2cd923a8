"""What a segment's log confirms of its indexes, in whose files a bit may have flipped.

Called by `loading` and `lookups`, and before retention. Kafka checks the form of an index when it opens one,
and believes the rest; here an entry is believed about a batch when that says the same (`Segment` does so for
offsets). Else the segment is read from its start, and `index_rebuilding` makes its indexes anew.

One flip is not seen without reading all between: of an aborted transaction's first offset, where the other is
that of another batch of the same producer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from crc32c import crc32c

from ottla.protocol.errors import KafkaError
from ottla.protocol.records import (
    BATCH_HEADER,
    CRC_START,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
)
from ottla.storage.indexes import CorruptIndex
from ottla.storage.log_config import INT64_MAX
from ottla.storage.log_segment import Segment
from ottla.storage.transaction_index import AbortedTransaction


def start_by_time(segment: Segment, timestamp_ms: int, log_start_offset: int) -> int:
    """The position of a batch, at or behind `log_start_offset`, before which there is no record at or after
    `timestamp_ms`."""
    timestamp, offset = segment.time_index.lookup(timestamp_ms)
    is_told = (timestamp, offset) != (NO_TIMESTAMP, segment.base_offset)
    if is_told and not segment.has_timestamp(timestamp, offset):
        segment.index_is_suspect = True
        offset = segment.base_offset
    return segment.start_of_scan(max(offset, log_start_offset))


def check_timestamps(segment: Segment) -> None:
    """Make sure, once after a start, that the segment's highest timestamp, with which the time index ends, is
    the log's; find that if not. Raises OSError."""
    if segment.index_is_suspect is None:
        timestamp, offset = segment.max_timestamp, segment.max_timestamp_offset
        segment.index_is_suspect = timestamp >= 0 and not segment.has_timestamp(timestamp, offset)
        if segment.index_is_suspect and not segment.find_timestamps() and segment.max_timestamp < timestamp:
            segment.max_timestamp, segment.max_timestamp_offset = timestamp, offset


def check_transactions(segments: Sequence[Segment], next_base: int | None) -> None:
    """Raise CorruptIndex if the last segment's log contradicts what its index says of aborted transactions.

    Other segments follow from `next_base` on. The first batches of some may be gone from a compacted log, or
    be in none of `segments`; and a batch that is damaged itself contradicts nothing.
    """
    segment = segments[-1]
    end = INT64_MAX if next_base is None else next_base
    open_from = INT64_MAX
    for aborted in reversed(segment.txn_index.entries()):
        marker = _batch_at(segment, aborted.last_offset)
        if (
            aborted.last_offset >= end
            # Whatever was aborted later was open then, or has begun since.
            or not 0 <= aborted.last_stable_offset <= min(aborted.last_offset + 1, open_from)
            or not 0 <= aborted.first_offset < aborted.last_offset
            or (marker is not None and not _ends(marker, aborted))
            or not _may_begin(segments, aborted)
        ):
            raise CorruptIndex(f"{segment.txn_index.path}: the log has no such transaction: {aborted}")
        open_from = min(open_from, aborted.first_offset)


def _ends(marker: BatchHeader, aborted: AbortedTransaction) -> bool:
    ends = marker.is_control and marker.producer_id == aborted.producer_id
    return ends and marker.last_offset == aborted.last_offset


def _may_begin(segments: Sequence[Segment], aborted: AbortedTransaction) -> bool:
    at = bisect_right(segments, aborted.first_offset, key=lambda segment: segment.base_offset) - 1
    first = _batch_at(segments[at], aborted.first_offset) if at >= 0 else None
    if first is None or first.base_offset > aborted.first_offset:
        return True
    begins = first.is_transactional and not first.is_control and first.producer_id == aborted.producer_id
    return begins and first.base_offset == aborted.first_offset


def _batch_at(segment: Segment, offset: int) -> BatchHeader | None:
    """Of the first batch that ends at or after `offset`; None where there is none that is whole."""
    try:
        position = segment.position_of(offset)
        if position >= segment.size:
            return None
        batch = segment.read_batch(position)
    except KafkaError:
        return None
    if len(batch) < RECORD_BATCH_OVERHEAD:
        return None
    header = BatchHeader(*BATCH_HEADER.unpack_from(batch))
    return header if crc32c(memoryview(batch)[CRC_START:]) == header.crc else None
