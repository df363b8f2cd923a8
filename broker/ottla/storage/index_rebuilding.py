"""A segment's indexes made anew while it is read, and written to.

Called by `Log.mend_indexes`, in the upkeep thread, for a segment whose indexes told what the log does not:
a bit has flipped in a file. (What a start can see is rebuilt by `loading`.) Until then, and where the log
itself is damaged, readers look for their batch from the segment's start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

from ottla.storage.log_segment import Segment

logger = logging.getLogger(__name__)


def rebuild(
    segment: Segment, lock: AbstractContextManager[object], is_in_use: Callable[[], bool], *, is_active: bool
) -> bool:
    """Replace the offset and the time index, if the log is whole; whether it was done. `lock`, which keeps
    appends away, is held for the last bit only, in which the segment has to be in use yet. Blocking; raises
    OSError."""
    made = _Indexes(segment)
    made.read_on()
    with lock:
        if segment.size < made.end or not is_in_use():
            return False  # truncated, deleted or compacted meanwhile
        made.read_on()
        segment.index_is_suspect = False
        if made.end < segment.size:
            logger.warning("%s is damaged at %d: its index stays as it is", segment.file.path, made.end)
            return False
        made.take_over(seals=not is_active)
    logger.warning("rebuilt the indexes of %s", segment.file.path)
    return True


class _Indexes:
    """As `Segment.note_batch` makes them, of the batches before `end`."""

    def __init__(self, segment: Segment) -> None:
        self.end = 0
        self._segment = segment
        self._offsets, self._times = segment.offset_index.like(), segment.time_index.like()
        self._since_entry = 0
        self._max_timestamp, self._max_timestamp_offset = -1, segment.base_offset

    def read_on(self) -> None:
        """Up to where the segment ends now, or is no whole batch."""
        for position, header in self._segment.headers(self.end):
            if header.max_timestamp > self._max_timestamp:
                self._max_timestamp, self._max_timestamp_offset = header.max_timestamp, header.last_offset
            if self._since_entry > self._segment.index_interval_bytes:
                self._offsets.append(header.last_offset, position)
                self._times.maybe_append(self._max_timestamp, self._max_timestamp_offset)
                self._since_entry = 0
            self._since_entry += header.size
            self.end = position + header.size

    def take_over(self, *, seals: bool) -> None:
        if seals and self._max_timestamp >= 0:
            self._times.maybe_append(self._max_timestamp, self._max_timestamp_offset, sealing=True)
        self._offsets.replace_file()
        self._times.replace_file()
        self._segment.put_indexes(self._offsets, self._times)
        self._segment.max_timestamp = self._max_timestamp
        self._segment.max_timestamp_offset = self._max_timestamp_offset
