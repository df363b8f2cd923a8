"""A segment's files: the log and its indexes, opened and made when first needed, and their names.

The lower half of `Segment`. Of thousands of logs most are not used for long, and so hold no descriptors and
no indexes. Invariant: what is not open has its file under the name that is known here; before the files get
other names, `load` opens them.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from ottla.storage.indexes import OffsetIndex, TimeIndex
from ottla.storage.places import Placed
from ottla.storage.txn_index import TransactionIndex

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
"""Behind the other suffixes, of a segment that the cleaner is writing, and of no use before it is whole."""
SWAP_SUFFIX = ".swap"
"""Likewise, of one that is whole, and about to take the place of those that it was made from."""

_OPENING = threading.Lock()


def segment_name(base_offset: int) -> str:
    """The file name, without suffix, of the segment that begins at `base_offset`."""
    return f"{base_offset:020d}"


Rename = Callable[[Path, Path], None]


class SegmentFile(Placed):
    """A file, opened when it is first needed; the descriptor closes when the last reference is dropped."""

    __slots__ = ("fd", "read_ahead")

    def __init__(self, path: str | Path, *, make: bool = True) -> None:
        """With `make` the file is opened now, and made if it is not there. Raises OSError."""
        self.place(path)
        self.read_ahead = 0
        """Up to where somebody who reads it from the disk has it read ahead (server.page_cache_reader)."""
        self.fd = -1
        """The descriptor; -1 before `open`."""
        if make:
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def open(self) -> int:
        """The descriptor. From any thread; raises OSError."""
        with _OPENING:
            if self.fd < 0:
                self.fd = os.open(self.location, os.O_RDWR | os.O_CLOEXEC)
            return self.fd

    def close(self) -> None:
        """To be opened anew when it is needed. Only for who knows of nobody that reads it."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class SegmentFiles:
    """See the module."""

    __slots__ = (
        "_fd",
        "_index_max_bytes",
        "_offset_index",
        "_time_index",
        "_txn_index",
        "base_offset",
        "file",
        "index_full",
    )

    def __init__(self, path: str, base_offset: int, index_max_bytes: int, *, make: bool) -> None:
        """`path` is the log's; with `make` it is opened, and made if it is not there. Raises OSError."""
        self.file = SegmentFile(path, make=make)
        self._fd = self.file.fd
        self.base_offset = base_offset
        self.index_full = False
        """No room for another index entry: time to roll."""
        self._index_max_bytes = index_max_bytes
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._txn_index: TransactionIndex | None = None

    @property
    def fd(self) -> int:
        """The log's descriptor, opened now if it was not used yet. Raises OSError."""
        fd = self._fd
        if fd < 0:
            fd = self._fd = self.file.open()
        return fd

    def rest(self) -> None:
        """Hold no descriptor until it is used (again). Only for who knows of nobody that reads it."""
        self._fd = -1
        self.file.close()

    @property
    def offset_index(self) -> OffsetIndex:
        index = self._offset_index
        if index is None:
            path = self._beside(INDEX_SUFFIX)
            index = self._offset_index = OffsetIndex(path, self.base_offset, self._index_max_bytes)
        return index

    @property
    def time_index(self) -> TimeIndex:
        index = self._time_index
        if index is None:
            path = self._beside(TIME_INDEX_SUFFIX)
            index = self._time_index = TimeIndex(path, self.base_offset, self._index_max_bytes)
        return index

    @property
    def txn_index(self) -> TransactionIndex:
        index = self._txn_index
        if index is None:
            index = self._txn_index = TransactionIndex(self._beside(TXN_INDEX_SUFFIX), self.base_offset)
        return index

    def attach_indexes(self) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        """Take over the indexes' files as they are; the last entries of the first two. Raises CorruptIndex,
        OSError."""
        offsets, times = self.offset_index, self.time_index
        last = offsets.attach(), times.attach()
        self.txn_index.check()
        self.index_full = offsets.is_full or times.is_full
        self._forget_empty_indexes()
        return last

    @property
    def has_aborted_transactions(self) -> bool:
        """By the index that was taken over."""
        return self._txn_index is not None

    def reset_indexes(self) -> None:
        """Make them empty, in memory and on disk. Raises OSError."""
        for index in (self.offset_index, self.time_index, self.txn_index):
            index.reset()
        self._forget_empty_indexes()

    def _forget_empty_indexes(self) -> None:
        if not self._offset_index:
            self._offset_index = None
        if not self._time_index:
            self._time_index = None
        if not self._txn_index:
            self._txn_index = None

    def put_indexes(self, offsets: OffsetIndex, times: TimeIndex) -> None:
        """Use these from now on."""
        self._offset_index, self._time_index = offsets, times

    def _beside(self, suffix: str) -> str:
        """Where another of its files is."""
        head, _, tail = self.file.location.rpartition(LOG_SUFFIX)
        return f"{head}{suffix}{tail}"

    def set_aside(self, *, with_snapshot: bool = True, rename: Rename = os.rename) -> list[Path]:
        """Rename the files, so that nobody opens them any more and their names are free; returns what is
        to be unlinked, which takes its time. Readers that hold slices go on reading. The log goes last, so
        that a crash in between leaves a log whose indexes are rebuilt, and not indexes without a log."""
        self.load()
        aside: list[Path] = []
        for path in self._paths():
            if path.suffix == SNAPSHOT_SUFFIX and not with_snapshot:
                continue
            doomed = path.with_name(path.name + DELETED_SUFFIX)
            with contextlib.suppress(FileNotFoundError):
                rename(path, doomed)
                aside.append(doomed)
        return aside

    def load(self) -> None:
        """Open the log and read the indexes, which else is done when first needed: before the files get other
        names, for a reader that found this segment a moment ago."""
        with contextlib.suppress(FileNotFoundError):
            self._fd = self.file.open()
        self.offset_index.lookup(self.base_offset)
        self.time_index.last()
        self.txn_index.load()

    def move_to(self, suffix: str, rename: Rename = os.rename) -> None:
        """Rename the files so that their names end in `suffix`, of those that the cleaner gives, or in none.
        The log goes first: while any of its files has the old name, it is not taken for whole."""
        for part in (self.file, self.offset_index, self.time_index, self.txn_index):
            name = part.path.name.removesuffix(CLEANED_SUFFIX).removesuffix(SWAP_SUFFIX) + suffix
            target = part.path.with_name(name)
            if part is not self.txn_index or len(self.txn_index):
                rename(part.path, target)
            part.place(target)

    def moved_to(self, directory: Path) -> None:
        """The directory has another name now."""
        for part in (self.file, self._offset_index, self._time_index, self._txn_index):
            if part is not None:
                part.place(directory / part.path.name)

    def remove_files(self) -> None:
        """Unlink at once. Only for who can rule out that another log has taken the directory's name."""
        for path in self._paths():
            path.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        log = self.file.path
        return [
            log.with_suffix(INDEX_SUFFIX),
            log.with_suffix(TIME_INDEX_SUFFIX),
            log.with_suffix(TXN_INDEX_SUFFIX),
            log.with_suffix(SNAPSHOT_SUFFIX),
            log,
        ]
