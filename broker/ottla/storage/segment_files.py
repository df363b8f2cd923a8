"""The names and descriptors of segment files, and readable ranges of them.

Used by `log_segment` and by all code that reads log directories. `FileSlice`s travel up to the server, which
sends them with sendfile. A slice holds a reference to its file's descriptor, so that it stays readable after
the segment is deleted.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import NamedTuple

from ottla.ports.files import Files

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


def segment_name(base_offset: int) -> str:
    """The file name, without suffix, of the segment that begins at `base_offset`."""
    return f"{base_offset:020d}"


class LogFile:
    """A file of a log, by its path, which is stored as an interned directory and an interned name.

    A broker has tens of thousands of log files, and a Path costs some 300 bytes. Files of one log share the
    directory; files of unused logs share the name, as most of these logs begin at offset 0. Paths are
    computed on demand.
    """

    __slots__ = ("_directory", "_name", "files")

    def __init__(self, files: Files, path: str | Path) -> None:
        self.files = files
        self.set_path(path)

    def set_path(self, path: str | Path) -> None:
        """Set the path, initially or after a rename."""
        directory, _, name = os.fspath(path).rpartition("/")
        self._directory = sys.intern(directory)
        self._name = sys.intern(name)

    @property
    def path(self) -> Path:
        return Path(self._directory, self._name)

    @property
    def path_str(self) -> str:
        """The path for system calls."""
        return f"{self._directory}/{self._name}"


class SegmentFile(LogFile):
    """A `.log` file, opened on first use. The descriptor closes when the last reference is dropped."""

    __slots__ = ("fd", "read_ahead")

    def __init__(self, files: Files, path: str | Path, *, create: bool = True) -> None:
        """With `create`, open the file now and create it if it does not exist. Raises OSError."""
        super().__init__(files, path)
        self.read_ahead = 0
        """The position up to which the server has requested read-ahead (server.logs.page_cache_reader)."""
        self.fd = -1
        """The descriptor; -1 before `open`."""
        if create:
            self.fd = files.open(path, os.O_RDWR | os.O_CREAT)

    def open(self) -> int:
        """The descriptor. Safe to call from any thread. Raises OSError."""
        with _OPEN_LOCK:
            if self.fd < 0:
                self.fd = self.files.open(self.path_str, os.O_RDWR)
            return self.fd

    def close(self) -> None:
        """Close the descriptor until the next `open`. The caller must rule out concurrent readers."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            self.files.close(fd)

    def __del__(self) -> None:
        self.close()


class FileSlice(NamedTuple):
    """`length` bytes at `position` of a segment's file."""

    file: SegmentFile
    position: int
    length: int

    def to_bytes(self) -> bytes:
        """The bytes; fewer if the file was truncated meanwhile."""
        return self.file.files.pread(self.file.fd, self.length, self.position)


class LogRead(NamedTuple):
    """The result of a read: ranges of files that begin with the batch that holds `first_offset`."""

    first_offset: int
    slices: list[FileSlice]
    size: int

    def to_bytes(self) -> bytes:
        return b"".join([each.to_bytes() for each in self.slices])
