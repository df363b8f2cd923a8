"""Nonblocking file reads: what the event loop may read, and what it leaves to a thread.

Storage reads log and index files with `pread` and `read_index_file`. Inside `NonblockingReads`, which the
server enters on the event loop, they raise `PageCacheMiss` instead of waiting for the disk. The server then
lets a thread read the bytes into the page cache (`Files.load`), and repeats the operation. The thread touches
the file only; a log's state belongs to the event loop. Outside of `NonblockingReads` reads block as usual.
"""

from __future__ import annotations

import threading
from typing import Final

from ottla.ports.files import Files


class _ThreadState(threading.local):
    """Whether reads may block in this thread. No context variable: callbacks, readers and tasks that are
    created inside `NonblockingReads` would inherit its value."""

    allow_blocking = True


_thread_state: Final = _ThreadState()


class OpenFile:
    """Owns a descriptor, which is closed when the last reference is dropped."""

    __slots__ = ("fd", "files")

    def __init__(self, files: Files, fd: int) -> None:
        self.files = files
        self.fd = fd

    def __del__(self) -> None:
        self.files.close(self.fd)


class PageCacheMiss(Exception):
    """`length` bytes at `position` are not completely in the page cache. No OSError: the file is intact."""

    def __init__(self, files: Files, fd: int, position: int, length: int) -> None:
        super().__init__(f"{length} bytes at {position} are not in memory")
        self.file: Final = OpenFile(files, files.dup(fd))  # the segment may be deleted meanwhile
        self.position: Final = position
        self.length: Final = length


class NonblockingReads:  # a context manager on the hot path: a generator would cost a microsecond
    """Context in which reads raise PageCacheMiss instead of waiting for the disk. It must not contain an
    await."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = _thread_state.allow_blocking
        _thread_state.allow_blocking = False

    def __exit__(self, *_: object) -> None:
        _thread_state.allow_blocking = self._before


def blocking_allowed() -> bool:
    """Whether reads may block here: false inside `NonblockingReads`."""
    return _thread_state.allow_blocking


def pread(files: Files, fd: int, length: int, position: int) -> bytes | bytearray:
    """Like Files.pread. Raises OSError, and PageCacheMiss inside `NonblockingReads`."""
    if _thread_state.allow_blocking:
        return files.pread(fd, length, position)
    found = files.try_pread(fd, length, position)
    if found is None:
        raise PageCacheMiss(files, fd, position, length)
    return found


def read_index_file(files: Files, path: str) -> bytes:
    """The content of an index file. Raises OSError, and PageCacheMiss inside `NonblockingReads`."""
    file = OpenFile(files, files.open(path))
    size = files.fstat(file.fd).size
    return bytes(pread(files, file.fd, size, 0)) if size else b""
