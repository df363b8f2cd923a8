"""The file system, as its system calls: descriptors are integers, errors are OSError.

Used by storage for logs, checkpoints and locks, and by connections that send ranges of files. The calls of
`OsFiles` are those of `os` themselves, so that the port costs the hot path an attribute lookup.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import pathlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from struct import Struct
from typing import Final, NamedTuple, Protocol, TypeAlias

from ottla.ports import page_cache

Path: TypeAlias = "str | os.PathLike[str]"
Buffer: TypeAlias = "bytes | bytearray | memoryview"

_FLOCK: Final = Struct("hhqqi")
"""The C structure flock."""


class FileStatus(NamedTuple):
    """What is known of a file or a directory."""

    size: int
    mtime_ns: int
    is_directory: bool


class DiskUsage(NamedTuple):
    """Bytes of the file system that holds a path."""

    total: int
    free: int


class Files(Protocol):
    """The interface. Every call may raise OSError."""

    # --- descriptors ---

    def open(self, path: Path, flags: int = os.O_RDONLY, mode: int = 0o644) -> int:
        """A descriptor, closed at exec."""

    def close(self, fd: int, /) -> None: ...

    def dup(self, fd: int, /) -> int: ...

    def pread(self, fd: int, length: int, position: int, /) -> bytes:
        """At most `length` bytes; fewer at the end of the file."""

    def pwrite(self, fd: int, data: Buffer, position: int, /) -> int:
        """Write; returns how many bytes were written, which may be fewer."""

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int, /) -> int: ...

    def ftruncate(self, fd: int, length: int, /) -> None: ...

    def fsync(self, fd: int, /) -> None:
        """Make the file's content durable; of a directory: its entries."""

    def fdatasync(self, fd: int, /) -> None: ...

    def fstat(self, fd: int, /) -> FileStatus: ...

    def set_mtime(self, fd: int, mtime_ns: int, /) -> None: ...

    def lock(self, fd: int, /) -> None:
        """Lock a file for as long as it is open. Raises OSError with EAGAIN or EACCES if another process, or
        another broker of this process, has locked it."""

    def is_locked(self, fd: int, /) -> bool:
        """Whether another process has locked the file."""

    def view(self, fd: int, /) -> AbstractContextManager[memoryview]:
        """The content of a file that is not written meanwhile, read on demand: segments may be large. For
        offline checks and tools."""

    def advise_sequential(self, fd: int, length: int, /) -> None:
        """Announce that the file will be read from its start to `length`."""

    def sendfile(self, out_fd: int, in_fd: int, position: int, count: int, /) -> int:
        """Send a range of a file to a socket; returns how many bytes the socket took."""

    # --- the page cache ---

    def try_pread(self, fd: int, length: int, position: int, /) -> bytes | bytearray | None:
        """As `pread`, or None where the read would wait for the disk."""

    def is_resident(self, fd: int, position: int, length: int, *, exact: bool = False) -> bool:
        """Whether a range is in the page cache: by probes or, with `exact`, by a check of every page."""

    def load(self, fd: int, position: int, length: int, /) -> None:
        """Read a range into the page cache. Blocking."""

    def load_ahead(self, fd: int, position: int, length: int, /) -> None:
        """Start to read a range into the page cache."""

    # --- paths ---

    def stat(self, path: Path, /) -> FileStatus: ...

    def exists(self, path: Path, /) -> bool: ...

    def listdir(self, path: Path, /) -> list[str]:
        """The names in a directory, sorted."""

    def mkdir(self, path: Path, /) -> None:
        """Create a directory and its missing parents, unless it exists."""

    def rename(self, old: Path, new: Path, /) -> None:
        """Rename a file or a directory; an existing file is replaced."""

    def truncate(self, path: Path, length: int, /) -> None: ...

    def unlink(self, path: Path, /) -> None: ...

    def rmtree(self, path: Path, /) -> None:
        """Remove a directory with all that is in it."""

    def realpath(self, path: Path, /) -> str: ...

    def disk_usage(self, path: Path, /) -> DiskUsage: ...


class OsFiles:
    """The file system of this machine."""

    close = staticmethod(os.close)
    dup = staticmethod(os.dup)
    pread = staticmethod(os.pread)
    pwrite = staticmethod(os.pwrite)
    pwritev = staticmethod(os.pwritev)
    ftruncate = staticmethod(os.ftruncate)
    fsync = staticmethod(os.fsync)
    fdatasync = staticmethod(os.fdatasync)
    sendfile = staticmethod(os.sendfile)
    try_pread = staticmethod(page_cache.try_pread)
    is_resident = staticmethod(page_cache.is_resident)
    load = staticmethod(page_cache.load)
    load_ahead = staticmethod(page_cache.load_ahead)
    exists = staticmethod(os.path.exists)
    rename = staticmethod(os.replace)
    truncate = staticmethod(os.truncate)
    unlink = staticmethod(os.unlink)
    rmtree = staticmethod(shutil.rmtree)

    def open(self, path: Path, flags: int = os.O_RDONLY, mode: int = 0o644) -> int:
        return os.open(path, flags | os.O_CLOEXEC, mode)

    def fstat(self, fd: int, /) -> FileStatus:
        return _status(os.fstat(fd))

    def stat(self, path: Path, /) -> FileStatus:
        return _status(os.stat(path))

    def set_mtime(self, fd: int, mtime_ns: int, /) -> None:
        os.utime(fd, ns=(mtime_ns, mtime_ns))

    def lock(self, fd: int, /) -> None:
        """Takes two kinds of lock: POSIX record locks are what Java takes, and keep Apache Kafka out; flock
        also keeps out a second broker in the same process."""
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def is_locked(self, fd: int, /) -> bool:
        query = _FLOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0)
        kind: int = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, query))[0]
        return kind != fcntl.F_UNLCK

    @contextlib.contextmanager
    def view(self, fd: int, /) -> Iterator[memoryview]:
        if os.fstat(fd).st_size == 0:
            yield memoryview(b"")
            return
        with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as data, memoryview(data) as view:
            yield view

    def advise_sequential(self, fd: int, length: int, /) -> None:
        os.posix_fadvise(fd, 0, length, os.POSIX_FADV_SEQUENTIAL)

    def listdir(self, path: Path, /) -> list[str]:
        return sorted(os.listdir(path))

    def mkdir(self, path: Path, /) -> None:
        os.makedirs(path, exist_ok=True)

    def realpath(self, path: Path, /) -> str:
        return os.fspath(os.path.realpath(path))

    def disk_usage(self, path: Path, /) -> DiskUsage:
        usage = shutil.disk_usage(path)
        return DiskUsage(usage.total, usage.free)


def _status(status: os.stat_result) -> FileStatus:
    return FileStatus(status.st_size, status.st_mtime_ns, (status.st_mode & 0o170000) == 0o040000)


OS_FILES: Final = OsFiles()
"""For programs that are no broker, and for tests."""


# --- operations of several calls -----------------------------------------------------------------


@contextlib.contextmanager
def opened(files: Files, path: Path, flags: int = os.O_RDONLY, mode: int = 0o644) -> Iterator[int]:
    """A context with the descriptor of a file. Raises OSError."""
    fd = files.open(path, flags, mode)
    try:
        yield fd
    finally:
        files.close(fd)


def read_file(files: Files, path: Path) -> bytes:
    """The whole content of a file. Blocking. Raises OSError."""
    fd = files.open(path)  # not `opened`: a start reads thousands of files
    try:
        return files.pread(fd, files.fstat(fd).size, 0)
    finally:
        files.close(fd)


def write_file(files: Files, path: Path, data: bytes, *, mode: int = 0o644, sync: bool = False) -> None:
    """Replace the content of a file, in place. Raises OSError."""
    with opened(files, path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode) as fd:
        write_all(files, fd, data, 0)
        if sync:
            files.fsync(fd)


def write_all(files: Files, fd: int, data: Buffer, position: int) -> None:
    """Write all of `data`. Raises OSError, and may then have written a part."""
    written = 0
    while written < len(data):
        count = files.pwrite(fd, memoryview(data)[written:], position + written)
        if count == 0:
            raise OSError(errno.ENOSPC, "the file takes no more bytes")
        written += count


def write_atomically(files: Files, path: Path, text: str, *, sync: bool = True) -> None:
    """Replace the content of `path`: write a temporary file, fsync it, rename it, fsync the directory.

    Readers see the old or the new content. Without `sync`, a crash may leave the old content or, on some file
    systems, an empty file. Blocking. Raises OSError.
    """
    temporary = f"{os.fspath(path)}.tmp"
    write_file(files, temporary, text.encode(), sync=sync)
    files.rename(temporary, path)
    if sync:
        sync_path(files, pathlib.PurePath(path).parent)


def sync_path(files: Files, path: Path) -> None:
    """fsync a file's content, or the entries of a directory: its created, renamed and removed files."""
    with opened(files, path) as fd:
        files.fsync(fd)


def sync_if_exists(files: Files, path: Path) -> None:
    """fsync a file, if it exists."""
    with contextlib.suppress(FileNotFoundError):
        sync_path(files, path)


def unlink_if_exists(files: Files, path: Path) -> None:
    """Remove a file, if it exists."""
    with contextlib.suppress(FileNotFoundError):
        files.unlink(path)


def is_directory(files: Files, path: Path) -> bool:
    """Whether `path` exists and is a directory."""
    try:
        return files.stat(path).is_directory
    except FileNotFoundError:
        return False
