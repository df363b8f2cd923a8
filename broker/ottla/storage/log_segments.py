"""The segments of one log, and searches across them: by offset, by timestamp, for aborted transactions.

Owned by `LocalLog`. Searches by timestamp (ListOffsets, KIP-79 and KIP-734) decode the records of one batch;
their results are (offset, timestamp in ms, leader epoch). Readers do not lock: they use the tuple of segments
as it is at one moment. A change replaces the tuple.

Invariant: at least one segment, ascending base offsets; the last one is the active segment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import decode_batch
from ottla.storage.index_recovery import rebuild_indexes, scan_start_for_timestamp, verify_max_timestamp
from ottla.storage.indexes import AbortedTransaction
from ottla.storage.log_segment import LogSegment
from ottla.storage.segment_files import FileSlice

TimestampAndOffset = tuple[int, int, int]
"""(offset, timestamp in ms, leader epoch)."""


class LogSegments:
    """See the module."""

    __slots__ = ("active", "all")

    def __init__(self, segments: Sequence[LogSegment]) -> None:
        self.set(segments)

    def set(self, segments: Sequence[LogSegment]) -> None:
        """Replace all segments."""
        assert segments
        self.all = tuple(segments)
        self.active = segments[-1]

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.all)

    def overlapping(self, start_offset: int, end_offset: int) -> list[LogSegment]:
        """The segments with offsets in [start_offset, end_offset)."""
        segments = self.all
        last = len(segments) - 1
        return [
            segment
            for at, segment in enumerate(segments)
            if segment.base_offset < end_offset
            and (at == last or segments[at + 1].base_offset > start_offset)
        ]

    def locate(self, offset: int, up_to: int, log_end_offset: int) -> tuple[LogSegment, int, int]:
        """The segment, start position and end position of a read of [offset, up_to) within one segment."""
        segments = self.all
        at = _floor(segments, offset)
        while True:
            segment = segments[at]
            position = segment.position_of(offset)
            is_last = at == len(segments) - 1
            if position < segment.size or is_last:
                break
            at += 1  # compaction removed the offset from the end of this segment
        end_offset = log_end_offset if is_last else segments[at + 1].base_offset
        if up_to >= end_offset:
            return segment, position, segment.size
        return segment, position, segment.position_of(up_to)

    # --- by timestamp ----------------------------------------------------------------------------

    def offset_for_timestamp(self, timestamp_ms: int, log_start_offset: int) -> TimestampAndOffset | None:
        """The first record with a timestamp of at least `timestamp_ms` at or after the log start offset."""
        segments = self.all
        before_ms = -1
        for at, segment in enumerate(segments):
            after = segments[at + 1] if at + 1 < len(segments) else None
            if after is not None and after.base_offset <= log_start_offset:
                continue
            if segment.max_timestamp < timestamp_ms:
                # To skip a segment with a wrong max timestamp would miss a record. Where max timestamps
                # ascend, only the last skipped one must be verified.
                if (
                    segment.max_timestamp < before_ms
                    or after in (None, segments[-1])
                    or (after.max_timestamp >= timestamp_ms)
                ):
                    verify_max_timestamp(segment)
                before_ms = segment.max_timestamp
                if before_ms < timestamp_ms:
                    continue
            end = scan_start_for_timestamp(segment, timestamp_ms, log_start_offset)
            for position, header in segment.headers(end):
                end = position + header.size
                if header.max_timestamp < timestamp_ms:
                    continue
                for record in decode_batch(segment.read_batch(position)):
                    if record.timestamp >= timestamp_ms and record.offset >= log_start_offset:
                        return record.offset, record.timestamp, header.partition_leader_epoch
            _check_scanned_to_end(segment, end)
        return None

    def max_timestamp(self) -> TimestampAndOffset | None:
        """The first record with the log's max timestamp; None if no record has a timestamp."""
        before_ms = -1
        for each in self.all:
            if each.max_timestamp < before_ms:
                verify_max_timestamp(each)
            before_ms = each.max_timestamp
        while True:
            segment = max(self.all, key=lambda candidate: candidate.max_timestamp)
            unverified_ms = segment.max_timestamp
            verify_max_timestamp(segment)
            if segment.max_timestamp == unverified_ms:
                break
        if unverified_ms < 0:
            return None
        end = segment.scan_start(segment.max_timestamp_offset)
        for position, header in segment.headers(end):
            end = position + header.size
            if header.max_timestamp == segment.max_timestamp:
                for record in decode_batch(segment.read_batch(position)):
                    if record.timestamp == header.max_timestamp:
                        return record.offset, record.timestamp, header.partition_leader_epoch
        _check_scanned_to_end(segment, end)
        return None

    def start_offsets_before(
        self, timestamp_ms: int, log_start_offset: int, log_end_offset: int, now_ms: int
    ) -> list[int]:
        """The result of ListOffsets 0, newest first: the start offsets of the segments that were last written
        before `timestamp_ms` and of all earlier ones; with the log end offset if `timestamp_ms` is at or
        after `now_ms` and the active segment is not empty."""
        starts = [(max(each.base_offset, log_start_offset), each.modified_ms()) for each in self.all]
        if self.active.size:
            starts.append((log_end_offset, now_ms))
        while starts and starts[-1][1] > timestamp_ms:
            starts.pop()
        return sorted((offset for offset, _ in starts), reverse=True)

    # --- aborted transactions (KIP-98) -----------------------------------------------------------

    def aborted_in_slice(
        self, fetch_offset: int, file_slice: FileSlice, log_end_offset: int
    ) -> list[AbortedTransaction]:
        """The aborted transactions that overlap `file_slice`, the result of a read at `fetch_offset`.

        As in Kafka, the upper bound is the next offset in the offset index, so that transactions that begin
        after the slice may be included.
        """
        segments = self.all
        at = _floor(segments, fetch_offset)
        while segments[at].file is not file_slice.file and at < len(segments) - 1:
            at += 1
        if at == len(segments) - 1 and not segments[at].has_aborted_transactions:
            return []  # the active segment's indexes are attached: it has none
        upper_bound = segments[at].offset_after(file_slice.position + file_slice.length)
        if upper_bound is None:
            upper_bound = segments[at + 1].base_offset if at + 1 < len(segments) else log_end_offset
        return _aborted_between(segments[at:], fetch_offset, upper_bound)

    def aborted_between(self, fetch_offset: int, upper_bound: int) -> list[AbortedTransaction]:
        """The aborted transactions that overlap [fetch_offset, upper_bound)."""
        return _aborted_between(self.all, fetch_offset, upper_bound)

    # --- indexes ---------------------------------------------------------------------------------

    @property
    def has_suspect_index(self) -> bool:
        return any(segment.index_is_suspect for segment in self.all)

    def rebuild_suspect_indexes(self, lock: AbstractContextManager[object]) -> None:
        """Rebuild the indexes that contradicted the log. `lock` excludes appends. Blocking; raises
        OSError."""
        for segment in self.all:
            if segment.index_is_suspect:
                is_active = segment is self.active
                is_in_use = partial(self._contains, segment, is_active=is_active)
                rebuild_indexes(segment, lock, is_in_use, is_active=is_active)

    def _contains(self, segment: LogSegment, *, is_active: bool) -> bool:
        return segment is self.active if is_active else segment in self.all[:-1]


def _floor(segments: Sequence[LogSegment], offset: int) -> int:
    """The index of the last segment that begins at or before `offset`; 0 if none does."""
    return max(bisect_right(segments, offset, key=_base_offset) - 1, 0)


def _base_offset(segment: LogSegment) -> int:
    return segment.base_offset


def _check_scanned_to_end(segment: LogSegment, end: int) -> None:
    """Raise CORRUPT_MESSAGE if a search stopped at `end`, before the segment's end: its result is unknown."""
    if end < segment.size:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{segment.file.path}: no batch at {end}")


def _aborted_between(
    segments: Sequence[LogSegment], fetch_offset: int, upper_bound: int
) -> list[AbortedTransaction]:
    # An aborted transaction is in the index of the segment that holds its marker, maybe a later one.
    aborted: list[AbortedTransaction] = []
    for segment in segments[_floor(segments, fetch_offset) :]:
        transactions, is_complete = segment.txn_index.collect(fetch_offset, upper_bound)
        aborted += transactions
        if is_complete:
            break
    return aborted
