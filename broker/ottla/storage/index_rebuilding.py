"""A sealed segment's indexes made anew while it is read.

Called by `Log.mend_indexes`, in the upkeep thread, for a segment whose offset index pointed a reader to what
is no batch: a bit has flipped in the file. (What a start can see is rebuilt by `loading`.) Until then, and
where the log itself is damaged, readers look for their batch from the segment's start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

from ottla.storage.segment import Segment

logger = logging.getLogger(__name__)


def rebuild(segment: Segment, lock: AbstractContextManager[object], is_in_use: Callable[[], bool]) -> None:
    """Replace the offset and the time index, if the log is whole. `lock` is held for the last bit only, in
    which the segment has to be in use yet. Blocking; raises OSError."""
    segment.index_is_suspect = False
    offsets, times = segment.offset_index.like(), segment.time_index.like()
    size, end, since_entry = segment.size, 0, 0
    max_timestamp, max_timestamp_offset = -1, segment.base_offset
    for position, header in segment.headers():
        # As `Segment.note_batch`.
        if header.max_timestamp > max_timestamp:
            max_timestamp, max_timestamp_offset = header.max_timestamp, header.last_offset
        if since_entry > segment.index_interval_bytes:
            offsets.append(header.last_offset, position)
            times.maybe_append(max_timestamp, max_timestamp_offset)
            since_entry = 0
        since_entry += header.size
        end = position + header.size
    if end < size:
        logger.warning("%s is damaged at %d: its index stays as it is", segment.file.path, end)
        return
    if max_timestamp >= 0:
        times.maybe_append(max_timestamp, max_timestamp_offset, sealing=True)
    with lock:
        if segment.size != size or not is_in_use():
            return  # truncated, deleted or compacted meanwhile
        offsets.replace_file()
        times.replace_file()
        segment.put_indexes(offsets, times)
    logger.warning("rebuilt the indexes of %s", segment.file.path)
