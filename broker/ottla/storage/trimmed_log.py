"""Both ends of a log: rolling and truncation at its end, retention and DeleteRecords at its start.

Part of `Log`, over `readable_log`. Truncations come from the event loop, retention from the upkeep thread;
what goes is renamed at once, under the lock, and removed later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

from ottla.protocol.records import NO_TIMESTAMP
from ottla.storage.directories import parse_partition_directory
from ottla.storage.index_recovery import check_timestamps
from ottla.storage.log_loader import new_segment
from ottla.storage.log_segment import Segment
from ottla.storage.readable_log import ReadableLog
from ottla.storage.retention import (
    BUILT_IN,
    DeletionPolicy,
    LogFacts,
    SegmentFacts,
    deletable_segments,
    needs_timestamps,
    within_high_watermark,
)


class TrimmedLog(ReadableLog):
    """See the module."""

    __slots__ = ()

    def truncate_to(self, offset: int) -> bool:
        """Drop everything from `offset` on; whether there was anything to drop."""
        with self._lock, self._io("truncate"):
            if offset < 0:
                raise ValueError(f"cannot truncate to {offset}")
            if offset >= self.log_end_offset:
                # Also a leader's epoch that begins here, and left nothing in the log.
                self._epochs.truncate_from_end(self.log_end_offset)
                self._epochs_changed()
                return False
            if offset < self._segments[0].base_offset:
                self.truncate_fully_and_start_at(offset)
                return True
            self.truncations += 1
            kept = [segment for segment in self._segments if segment.base_offset <= offset]
            taken_back = self._history.take_back(self._segments[len(kept) - 1 :], offset)
            self._bury(self._segments[len(kept) :])
            kept[-1].truncate_to(offset)
            self._set_segments(kept)
            self.log_end_offset = offset
            self.log_start_offset = min(self.log_start_offset, offset)
            self._lower_recovery_point(offset)
            self._epochs.truncate_from_end(offset)
            self._epochs_changed()
            if taken_back:
                self._history.snapshots.keep_within(self.log_start_offset, offset)
            else:  # not synced: this runs on the event loop
                self._history.rebuild(kept, self.log_start_offset, offset, sync=False)
                self._producers_noted()
            return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything and go on, empty, at `offset`."""
        with self._lock, self._io("truncate"):
            self.truncations += 1
            self._bury(self._segments)
            self._set_segments([new_segment(self._directory, offset, self._config, 0)])
            self.log_end_offset = self.log_start_offset = offset
            self._lower_recovery_point(offset)
            self._epochs.clear()
            self.latest_epoch = None
            self._history.clear()

    def _lower_recovery_point(self, offset: int) -> None:
        if offset < self.recovery_point:
            self._chores.checkpoint_soon()
        self.recovery_point = min(self.recovery_point, offset)

    def _bury(self, segments: Sequence[Segment]) -> None:
        """Rename the segments' files, which are to be removed after file.delete.delay.ms.

        At once, under the lock: once it is released the topic may be deleted and made again, and the old
        names be those of another log's files. The newest goes first, so that a crash leaves no gap."""
        for segment in reversed(segments):
            self._history.snapshots.forget(segment.base_offset)
            self._chores.bury(segment.set_aside(), self._config.file_delete_delay_ms)

    def roll(self, now_ms: int, base_offset: int | None = None) -> None:
        """Seal the active segment and begin a new one, unless it is empty. No fsync."""
        with self._lock, self._io("roll"):
            if self._active.size == 0:
                return
            self._active.seal()
            offset = max(self.log_end_offset, base_offset or 0)
            segment = new_segment(self._directory, offset, self._config, now_ms)
            self._history.take_snapshot(offset, self.log_start_offset, sync=False)
            self._set_segments([*self._segments, segment])
            self._chores.work_soon(self.flush_sealed)

    def maybe_increment_log_start_offset(self, offset: int) -> bool:
        """Hide what lies before `offset` (DeleteRecords, retention); segments go at the next upkeep."""
        with self._lock, self._io("note the start of"):
            if offset <= self.log_start_offset or offset > self.log_end_offset:
                return False
            self.log_start_offset = offset
            self._epochs.truncate_from_start(offset)
            self._epochs_changed()
            return True

    def delete_old_segments(
        self, *, now_ms: int, high_watermark: int, policies: Mapping[str, DeletionPolicy] = BUILT_IN
    ) -> int:
        """Apply retention; how many segments went. Their files follow after file.delete.delay.ms.

        `policies`, by name, are called outside of the lock: they may be slow.
        """
        if self.closed or (len(self._segments) == 1 and not self._active.size):
            return 0
        with self._io("delete segments of"):
            # What may have to come from the disk, before others wait for the lock.
            segments, truncations = self._segments, self.truncations
            facts = self._facts(now_ms)
            count = self._deletable(facts, policies, high_watermark)
            if (
                count + 1 < len(segments)
                and segments[count].max_timestamp > segments[count + 1].max_timestamp
            ):
                check_timestamps(segments[count])  # it holds up the next, and so should be right
            for segment in segments[:count]:
                segment.load()
                check_timestamps(segment)
            self._mend_soon()
            checked = self._facts(now_ms)
            if checked != facts:
                facts, count = checked, self._deletable(checked, policies, high_watermark)
        if count == 0:
            return 0
        with self._lock, self._io("delete segments of"):
            segments = self._segments
            if self.closed or self.truncations != truncations:
                return 0
            # What was written meanwhile, the policies have not seen.
            present = self._facts(now_ms).segments[:count]
            same = takewhile(lambda pair: pair[0] == pair[1], zip(present, facts.segments, strict=False))
            count = sum(1 for _ in same)
            if count == 0:
                return 0
            if count == len(segments):
                self.roll(now_ms)
            self._set_segments(list(self._segments[count:]))
            self.maybe_increment_log_start_offset(self._segments[0].base_offset)
            self.recovery_point = max(self.recovery_point, self.log_start_offset)
            # The oldest first: after a crash the log begins later, and has no gap.
            for segment in segments[:count]:
                self._bury([segment])
        return count

    def _facts(self, now_ms: int) -> LogFacts:
        """What the log's policies decide by."""
        timed = needs_timestamps(self._config)
        topic, partition = parse_partition_directory(self.directory.name) or (self.directory.name, -1)
        return LogFacts(
            topic,
            partition,
            [
                SegmentFacts(s.base_offset, s.size, s.largest_timestamp() if timed else NO_TIMESTAMP)
                for s in self._segments
            ],
            self._config,
            now_ms,
        )

    def _deletable(self, facts: LogFacts, policies: Mapping[str, DeletionPolicy], high_watermark: int) -> int:
        """How many of the first segments retention deletes."""
        allowed = within_high_watermark(facts.segments, high_watermark, self.log_end_offset)
        if not allowed:
            return 0
        return min(allowed, deletable_segments(facts, policies, log_start_offset=self.log_start_offset))
