"""Reading files without waiting for the disk: what the event loop may do, and what it leaves to a thread.

`pread` and `read_file` are how storage reads where clients ask for it. Inside `NonblockingReads`, which the
server enters on the event loop around what it looks up, they raise `PageCacheMiss` where they would wait.
Whoever catches that has the bytes read into the page cache by a thread (`load`), and tries again. The thread
touches the file alone and nothing of a log's state, which stays the loop's. Outside, they read as ever.

How they know: preadv with RWF_NOWAIT. Where a file system (tmpfs, overlays) or a sandbox does not have it,
they ask mincore, which every Linux has for every file that can be mapped; where that fails too, they take all
for warm, as if this module were not there.

A range that is to go out by sendfile is probed at every `PROBE_STRIDE_BYTES` and at its end (`is_resident`):
0.6 µs a probe, 3.5 µs a MiB, where asking for every page costs 29 and reading it 30. The kernel evicts in the
order of use, which is large pieces of a log; a smaller hole between two probes costs the loop one read of the
disk. Where pages are on their way from the disk, in the disk's order, every page is asked for (`exact`).
"""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import os
import threading
from functools import cache
from typing import Final

logger = logging.getLogger(__name__)

PROBE_STRIDE_BYTES: Final = 256 * 1024

_NOWAIT: Final = getattr(os, "RWF_NOWAIT", None)
_NOT_SUPPORTED: Final = frozenset((errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM))
_PAGE: Final = mmap.PAGESIZE


class _ThreadState(threading.local):
    """What holds in this thread, now. No context variable: a callback, a reader or a task that is made inside
    `NonblockingReads` would inherit it for good, and so would all that they make."""

    allow_blocking = True


_thread_state: Final = _ThreadState()


class OpenFile:
    """A descriptor of our own; it closes when the last reference is dropped."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


class PageCacheMiss(Exception):
    """`length` bytes at `position` are not all in memory. No OSError: nothing is wrong with the file."""

    def __init__(self, fd: int, position: int, length: int) -> None:
        super().__init__(f"{length} bytes at {position} are not in memory")
        self.file: Final = OpenFile(os.dup(fd))  # the segment may be deleted meanwhile
        self.position: Final = position
        self.length: Final = length


class NonblockingReads:  # a context manager on the hot path: a generator would cost a microsecond
    """Raise PageCacheMiss rather than wait for the disk. Nothing may be awaited inside, nor be done for
    others."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = _thread_state.allow_blocking
        _thread_state.allow_blocking = False

    def __exit__(self, *_: object) -> None:
        _thread_state.allow_blocking = self._before


def blocking_allowed() -> bool:
    """Whether reads may wait here: false inside `NonblockingReads`."""
    return _thread_state.allow_blocking


def pread(fd: int, length: int, position: int) -> bytes | bytearray:
    """As os.pread. Raises OSError, and PageCacheMiss inside `NonblockingReads`."""
    if _thread_state.allow_blocking:
        return os.pread(fd, length, position)
    found = try_pread(fd, length, position)
    if found is None:
        raise PageCacheMiss(fd, position, length)
    return found


def try_pread(fd: int, length: int, position: int) -> bytes | bytearray | None:
    """As os.pread, but None rather than wait for the disk, whoever calls. Raises OSError."""
    buffer = bytearray(length)
    got = -1
    if _NOWAIT is not None:
        try:
            got = os.preadv(fd, (buffer,), position, _NOWAIT)
        except BlockingIOError:
            return None
        except OSError as problem:
            if problem.errno not in _NOT_SUPPORTED:
                raise
    if got == length:
        return buffer
    if got < 0:
        return os.pread(fd, length, position) if _is_mapped_in_memory(fd, position, length) else None
    if got < os.fstat(fd).st_size - position:
        return None
    return buffer[:got]


def read_file(path: str) -> bytes:
    """All that is in the file. Raises OSError, and PageCacheMiss inside `NonblockingReads`."""
    file = OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    size = os.fstat(file.fd).st_size
    return bytes(pread(file.fd, size, 0)) if size else b""


def is_resident(fd: int, position: int, length: int, *, exact: bool = False) -> bool:
    """Whether a range is in memory, for all that probes tell; `exact` asks for every page. Raises OSError."""
    if exact or _NOWAIT is None:
        return _is_mapped_in_memory(fd, position, length)
    probe = (bytearray(1),)
    last = position + length - 1
    try:
        for at in range(position, last, PROBE_STRIDE_BYTES):
            os.preadv(fd, probe, at, _NOWAIT)
        os.preadv(fd, probe, last, _NOWAIT)
    except BlockingIOError:
        return False
    except OSError as problem:
        if problem.errno not in _NOT_SUPPORTED:
            raise
        return _is_mapped_in_memory(fd, position, length)
    return True


def load(fd: int, position: int, length: int) -> None:
    """Read a range into the page cache, and wait for it: for a thread. Raises OSError."""
    os.posix_fadvise(fd, position, length, os.POSIX_FADV_WILLNEED)
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        while length > 0:
            count = os.sendfile(null, fd, position, length)  # waits for the pages, and copies nothing
            if count == 0:
                return
            position += count
            length -= count
    finally:
        os.close(null)


def load_ahead(fd: int, position: int, length: int) -> None:
    """Have a range read into the page cache without waiting for it, which still takes the system some
    0.3 ms a MiB: for a thread. Raises OSError."""
    os.posix_fadvise(fd, position, length, os.POSIX_FADV_WILLNEED)


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_longlong)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    return libc


def _is_mapped_in_memory(fd: int, position: int, length: int) -> bool:
    """What mincore says of each page; True where there is no asking."""
    start = position - position % _PAGE
    size = min(position + length, os.fstat(fd).st_size) - start
    if size <= 0:
        return True
    try:
        libc = _libc()
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, start)
        if address in (None, ctypes.c_void_p(-1).value):
            return True
        try:
            pages = (ctypes.c_ubyte * -(-size // _PAGE))()
            if libc.mincore(address, size, pages) != 0:
                return True
            return 0 not in bytes(pages)
        finally:
            libc.munmap(address, size)
    except (AttributeError, OSError) as problem:
        logger.debug("whether a file is in memory cannot be known here: %s", problem)
        return True
