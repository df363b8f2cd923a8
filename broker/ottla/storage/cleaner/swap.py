"""A cleaned segment takes the place of those that it was made from, whatever happens meanwhile.

Called by `Log.replace_segments`, under the log's lock. The steps are Kafka's, so that either can finish what
the other began (`loading` does, when a log is opened):

1. the worker has written `.cleaned` files, and synced them. A crash up to here: they are removed;
2. they are renamed to `.swap`, the log first. While any is called `.cleaned`, all of them are removed;
3. the old segments' files are renamed to `.deleted`. From here on a crash is finished forwards: what lies in
   the range of the `.swap` log and is not `.swap` is removed;
4. the `.swap` files get their names, the log first. Indexes that are left get theirs when the log is opened.

Of the producers' snapshots those go whose segment goes; that of the first segment is still right.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ottla.storage.log_segment import Segment
from ottla.storage.segment_files import SWAP_SUFFIX, Rename


def put_in_place(new: Segment, old: Sequence[Segment], rename: Rename = os.rename) -> list[Path]:
    """Rename the files; returns what is to be unlinked. No fsync. Raises OSError."""
    assert new.base_offset == old[0].base_offset
    new.move_to(SWAP_SUFFIX, rename)
    doomed: list[Path] = []
    for segment in old:
        doomed += segment.set_aside(with_snapshot=segment is not old[0], rename=rename)
    new.move_to("", rename)
    return doomed
