"""The names and descriptors of segment files, and readable ranges of them.

Used by `log_segment` and by all code that reads log directories. `FileSlice`s travel up to the server, which
sends them with sendfile. A slice holds a reference to its file's descriptor, so that it stays readable after
the segment is deleted.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ottla.storage.files import InternedPath

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
"""After the other suffixes: the cleaner is writing this segment. Files without their whole set are
removed."""
SWAP_SUFFIX = ".swap"
"""After the other suffixes: a complete cleaned segment that is replacing its source segments."""

_OPEN_LOCK = threading.Lock()

Rename = Callable[[Path, Path], None]


def segment_name(base_offset: int) -> str:
    """The file name, without suffix, of the segment that begins at `base_offset`."""
    return f"{base_offset:020d}"


class SegmentFile(InternedPath):
    """A `.log` file, opened on first use. The descriptor closes when the last reference is dropped."""

    __slots__ = ("fd", "read_ahead")

    def __init__(self, path: str | Path, *, create: bool = True) -> None:
        """With `create`, open the file now and create it if it does not exist. Raises OSError."""
        self.set_path(path)
        self.read_ahead = 0
        """The position up to which the server has requested read-ahead (server.logs.page_cache_reader)."""
        self.fd = -1
        """The descriptor; -1 before `open`."""
        if create:
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def open(self) -> int:
        """The descriptor. Safe to call from any thread. Raises OSError."""
        with _OPEN_LOCK:
            if self.fd < 0:
                self.fd = os.open(self.path_str, os.O_RDWR | os.O_CLOEXEC)
            return self.fd

    def close(self) -> None:
        """Close the descriptor until the next `open`. The caller must rule out concurrent readers."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class FileSlice(NamedTuple):
    """`length` bytes at `position` of a segment's file."""

    file: SegmentFile
    position: int
    length: int

    def to_bytes(self) -> bytes:
        """The bytes; fewer if the file was truncated meanwhile."""
        return os.pread(self.file.fd, self.length, self.position)


class LogRead(NamedTuple):
    """The result of a read: ranges of files that begin with the batch that holds `first_offset`."""

    first_offset: int
    slices: list[FileSlice]
    size: int

    def to_bytes(self) -> bytes:
        return b"".join([each.to_bytes() for each in self.slices])
