"""What a log is to the cleaner: what of it is dirty, and segments that take the place of others.

Part of `Log`, over `trimmed_log`. Called by `server.log_cleaner`, on the event loop and in threads.

Invariant: segments are replaced only by what was made of these very segments, and only while the log has not
been truncated below their end.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ottla.storage.cleaner.swap import put_in_place
from ottla.storage.files import sync_directory
from ottla.storage.log_config import INT64_MAX
from ottla.storage.log_segment import Segment
from ottla.storage.segment_files import Rename
from ottla.storage.trimmed_log import TrimmedLog


class CleanableLog(TrimmedLog):
    """See the module."""

    __slots__ = ("first_dirty_offset", "truncated_to")

    first_dirty_offset: int | None
    """Where the part begins that was not cleaned yet, kept by the cleaner; None is the log's start."""
    truncated_to: int
    """The lowest truncation since the cleaner set this."""

    def nothing_cleaned(self) -> None:
        """As for a log that was just opened."""
        self.first_dirty_offset = None
        self.truncated_to = INT64_MAX

    @property
    def segments(self) -> tuple[Segment, ...]:
        """As they are at this moment, the active one last."""
        return self._segments

    @property
    def has_sealed_dirt(self) -> bool:
        """Whether there are segments besides the active one that were not cleaned."""
        clean_to = self.first_dirty_offset
        return (self.log_start_offset if clean_to is None else clean_to) < self._active.base_offset

    def truncate_to(self, offset: int) -> bool:
        with self._lock:
            changed = super().truncate_to(offset)
            if changed:
                self._uncleaned_from(offset)
            return changed

    def truncate_fully_and_start_at(self, offset: int) -> None:
        with self._lock:
            super().truncate_fully_and_start_at(offset)
            self._uncleaned_from(offset)

    def _uncleaned_from(self, offset: int) -> None:
        """What comes after a truncation is dirty."""
        self.truncated_to = min(self.truncated_to, offset)
        if self.first_dirty_offset is not None:
            self.first_dirty_offset = min(self.first_dirty_offset, self._active.base_offset)

    def last_of_producers(self) -> list[tuple[int, int, int]]:
        """Of each producer its id, where its last batch of data ends (-1 if none is known), and its epoch."""
        with self._lock:
            return [
                (producer_id, entry.batches[-1].last_offset if entry.batches else -1, entry.epoch)
                for producer_id, entry in self.producers.all().items()
            ]

    def was_cleaned(self, end_offset: int) -> None:
        """All is clean before `end_offset`, unless it was truncated meanwhile."""
        with self._lock:
            if self.truncated_to >= end_offset:
                self.first_dirty_offset = end_offset

    def replace_segments(
        self, old: Sequence[Segment], new: Segment, end_offset: int, rename: Rename = os.rename
    ) -> bool:
        """Put `new`, which was made of `old`, neighbours up to `end_offset`, in their place. False when these
        are not the log's any more. Blocking; raises KAFKA_STORAGE_ERROR."""
        for segment in old:
            segment.load()
        # A flush, which knows segments by their files' names, is not under way meanwhile.
        with self.flushing(), self._lock:
            segments = list(self._segments)
            at = segments.index(old[0]) if old[0] in segments else 0
            if (
                self.closed
                or segments[at : at + len(old)] != list(old)
                or self._active in old
                or self.truncated_to < end_offset
            ):
                return False
            try:
                doomed = put_in_place(new, old, rename)
            except OSError as problem:
                raise self._storage_error("replace segments of", problem) from problem
            segments[at : at + len(old)] = [new]
            self._set_segments(segments)
            for segment in old[1:]:
                self._history.snapshots.forget(segment.base_offset)
            self._chores.bury(doomed, self._config.file_delete_delay_ms)
        sync_directory(self.directory)
        return True
