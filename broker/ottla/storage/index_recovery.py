"""Verifies index entries against the segment's log, and rebuilds indexes that contradict it.

Called by `log_loader`, `log_segments` and retention. Kafka checks the form of an index file when it opens
one. Here, an entry is used only if the batch that it points to agrees, to detect flipped bits (`LogSegment`
does this for offsets). Otherwise the segment is scanned from its start, and `rebuild_indexes` rebuilds the
offset and the time index in the maintenance thread. Errors that are visible at startup are repaired by
`log_loader`.

One flipped bit is not detected: an aborted transaction's first offset that becomes the offset of another
batch of the same producer.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from ottla.protocol.errors import KafkaError
from ottla.protocol.records import (
    BATCH_HEADER,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    verify_crc,
)
from ottla.storage.indexes import AbortedTransaction, CorruptIndex
from ottla.storage.log_config import INT64_MAX
from ottla.storage.log_segment import LogSegment

logger = logging.getLogger(__name__)


def scan_start_for_timestamp(segment: LogSegment, timestamp_ms: int, log_start_offset: int) -> int:
    """The position, from the time index, from which to scan for the first record at or after `timestamp_ms`
    that is not below `log_start_offset`."""
    timestamp, offset = segment.time_index.lookup(timestamp_ms)
    has_entry = (timestamp, offset) != (NO_TIMESTAMP, segment.base_offset)
    if has_entry and not segment.has_timestamp(timestamp, offset):
        segment.index_is_suspect = True
        offset = segment.base_offset
    return segment.scan_start(max(offset, log_start_offset))


def verify_max_timestamp(segment: LogSegment) -> None:
    """Verify, once after startup, that the max timestamp from the time index is the log's; scan the log for
    it if not. Raises OSError."""
    if segment.index_is_suspect is None:
        timestamp, offset = segment.max_timestamp, segment.max_timestamp_offset
        segment.index_is_suspect = timestamp >= 0 and not segment.has_timestamp(timestamp, offset)
        if (
            segment.index_is_suspect
            and not segment.scan_max_timestamp()
            and segment.max_timestamp < timestamp
        ):
            segment.max_timestamp, segment.max_timestamp_offset = timestamp, offset


def verify_transaction_index(segments: Sequence[LogSegment], next_base: int | None) -> None:
    """Raise CorruptIndex if the log contradicts an aborted transaction in the last segment's index.

    `next_base` is the base offset of the following segment. A transaction's first batch may have been
    compacted away or be in no segment; a batch that is damaged itself contradicts nothing.
    """
    segment = segments[-1]
    end = INT64_MAX if next_base is None else next_base
    open_from = INT64_MAX
    for aborted in reversed(segment.txn_index.entries()):
        marker = _batch_at(segment, aborted.last_offset)
        if (
            aborted.last_offset >= end
            # A transaction that was aborted later was open at that time, or began after it.
            or not 0 <= aborted.last_stable_offset <= min(aborted.last_offset + 1, open_from)
            or not 0 <= aborted.first_offset < aborted.last_offset
            or (marker is not None and not _is_end_of(marker, aborted))
            or not _can_begin(segments, aborted)
        ):
            raise CorruptIndex(f"{segment.txn_index.path}: the log has no such transaction: {aborted}")
        open_from = min(open_from, aborted.first_offset)


def _is_end_of(marker: BatchHeader, aborted: AbortedTransaction) -> bool:
    ends = marker.is_control and marker.producer_id == aborted.producer_id
    return ends and marker.last_offset == aborted.last_offset


def _can_begin(segments: Sequence[LogSegment], aborted: AbortedTransaction) -> bool:
    at = bisect_right(segments, aborted.first_offset, key=lambda segment: segment.base_offset) - 1
    first = _batch_at(segments[at], aborted.first_offset) if at >= 0 else None
    if first is None or first.base_offset > aborted.first_offset:
        return True
    begins = first.is_transactional and not first.is_control and first.producer_id == aborted.producer_id
    return begins and first.base_offset == aborted.first_offset


def _batch_at(segment: LogSegment, offset: int) -> BatchHeader | None:
    """The header of the first batch that ends at or after `offset`; None if there is none with a correct
    checksum."""
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
    return header if verify_crc(batch, 0, header) else None


def rebuild_indexes(
    segment: LogSegment,
    lock: AbstractContextManager[object],
    is_in_use: Callable[[], bool],
    *,
    is_active: bool,
) -> bool:
    """Rebuild the offset and the time index from the log. Returns False if the log is damaged or the segment
    was truncated, deleted or compacted meanwhile (`is_in_use`).

    `lock` excludes appends; it is held only for the batches that were appended during the rebuild. Blocking;
    raises OSError.
    """
    builder = _IndexBuilder(segment)
    builder.scan()
    with lock:
        if segment.size < builder.end or not is_in_use():
            return False
        builder.scan()
        segment.index_is_suspect = False
        if builder.end < segment.size:
            logger.warning("%s is damaged at %d: its index is kept", segment.file.path, builder.end)
            return False
        builder.install(is_sealed=not is_active)
    logger.warning("Rebuilt the indexes of %s", segment.file.path)
    return True


class _IndexBuilder:
    """Builds the indexes of the batches before `end`, as `LogSegment.register_batch` does."""

    def __init__(self, segment: LogSegment) -> None:
        self.end = 0
        self._segment = segment
        self._offsets, self._times = segment.offset_index.new_empty(), segment.time_index.new_empty()
        self._since_entry = 0
        self._max_timestamp, self._max_timestamp_offset = -1, segment.base_offset

    def scan(self) -> None:
        """Index the batches from `end` to the segment's current end, or to the first that is incomplete or
        has a wrong checksum."""
        for position, header in self._segment.headers(self.end):
            if not verify_crc(self._segment.read_batch(position), 0, header):
                return
            if header.max_timestamp > self._max_timestamp:
                self._max_timestamp, self._max_timestamp_offset = header.max_timestamp, header.last_offset
            if self._since_entry > self._segment.index_interval_bytes:
                self._offsets.append(header.last_offset, position)
                self._times.maybe_append(self._max_timestamp, self._max_timestamp_offset)
                self._since_entry = 0
            self._since_entry += header.size
            self.end = position + header.size

    def install(self, *, is_sealed: bool) -> None:
        """Replace the segment's indexes and their files."""
        if is_sealed and self._max_timestamp >= 0:
            self._times.maybe_append(self._max_timestamp, self._max_timestamp_offset, sealing=True)
        self._offsets.replace_file()
        self._times.replace_file()
        self._segment.replace_indexes(self._offsets, self._times)
        self._segment.max_timestamp = self._max_timestamp
        self._segment.max_timestamp_offset = self._max_timestamp_offset
