"""Reading a log: ranges of its files, offsets by time, aborted transactions.

Part of `Log`, over `durable_log`. On the event loop, mostly, and without the log's lock: a reader takes the
tuple of segments as it is at that moment.
"""

from __future__ import annotations

from bisect import bisect_right

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage import log_segments
from ottla.storage.log_flusher import DurableLog
from ottla.storage.log_segment import LogRead, Segment
from ottla.storage.transaction_index import AbortedTransaction


class ReadableLog(DurableLog):
    """See the module."""

    __slots__ = ()

    def read(self, offset: int, max_bytes: int, *, up_to: int, min_one: bool = True) -> LogRead:
        """Ranges of file from the batch that holds `offset` on, before `up_to`, of one segment.

        As in Kafka, `max_bytes` may cut the last batch short, but with `min_one` the first is whole
        however large; without, nothing is returned where the first does not fit. `up_to` (a high
        watermark or last stable offset) excludes the batch that holds it. Raises
        KafkaError(OFFSET_OUT_OF_RANGE) outside [log_start_offset, log_end_offset], KAFKA_STORAGE_ERROR.
        """
        log_end = self.log_end_offset
        if offset < self.log_start_offset or offset > log_end:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not within {self.log_start_offset} to {log_end}",
            )
        if up_to > log_end:
            up_to = log_end
        if offset >= up_to or max_bytes < 0:
            return LogRead(offset, [], 0)
        try:
            segment = self._active
            if offset >= segment.base_offset:
                position = segment.position_of(offset)
                limit = segment.size if up_to == log_end else segment.position_of(up_to)
            else:
                segment, position, limit = self._locate(offset, up_to)
            length = limit - position
            if length > max_bytes:
                length = max_bytes
                first_size = segment.batch_size_at(position)
                if first_size > max_bytes:
                    length = min(first_size, limit - position) if min_one else 0
        except OSError as problem:
            raise self._storage_error("read", problem) from problem
        if segment.index_is_suspect:
            self._chores.work_soon(self.mend_indexes)
        if length <= 0:
            return LogRead(offset, [], 0)
        return LogRead(offset, [segment.slice(position, length)], length)

    def _locate(self, offset: int, up_to: int) -> tuple[Segment, int, int]:
        """Segment, start and limit of a read that does not begin in the active segment."""
        segments = self._segments
        at = max(bisect_right(segments, offset, key=_base_offset) - 1, 0)
        while True:
            segment = segments[at]
            position = segment.position_of(offset)
            is_last = at == len(segments) - 1
            if position < segment.size or is_last:
                break
            at += 1  # a gap at the end of this segment: the offset was compacted away
        end_offset = self.log_end_offset if is_last else segments[at + 1].base_offset
        if up_to >= end_offset:
            return segment, position, segment.size
        return segment, position, segment.position_of(up_to)

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int, int] | None:
        """(offset, timestamp, leader epoch) of the first record at or after `timestamp_ms`."""
        with self._io("read"):
            found = log_segments.first_at_or_after(self._segments, timestamp_ms, self.log_start_offset)
            self._mend_soon()
            return found

    def segment_starts_before(self, timestamp_ms: int, now_ms: int) -> list[int]:
        """Where segments begin that were not written to after `timestamp_ms`, newest first, the log's end
        included (ListOffsets 0)."""
        with self._io("read"):
            return log_segments.segment_starts_before(
                self._segments, timestamp_ms, self.log_start_offset, self.log_end_offset, now_ms
            )

    def max_timestamp(self) -> tuple[int, int, int] | None:
        """(offset, timestamp, leader epoch) of the first record with the highest timestamp (KIP-734)."""
        with self._io("read"):
            found = log_segments.highest(self._segments)
            self._mend_soon()
            return found

    def aborted_transactions(self, fetch_offset: int, read: LogRead | None) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions that a read_committed reader of `read`,
        found for `fetch_offset`, has to skip; as Kafka's, it may name some that begin beyond."""
        if read is None or not read.slices:
            return []
        try:
            found = log_segments.aborted_in(
                self._segments, fetch_offset, read.slices[-1], self.log_end_offset
            )
        except OSError as problem:
            raise self._storage_error("read", problem) from problem
        return [(aborted.producer_id, aborted.first_offset) for aborted in found]

    def collect_aborted_transactions(self, fetch_offset: int, upper_bound: int) -> list[AbortedTransaction]:
        """Those that reach into [fetch_offset, upper_bound)."""
        return log_segments.aborted_between(self._segments, fetch_offset, upper_bound)


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
