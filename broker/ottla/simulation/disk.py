"""A simulated disk: what a process wrote is in the page cache, and durable only once it is synced.

Implements the port `ottla.ports.files.Files`. A disk belongs to a machine and survives its processes; each
process opens it as a `ProcessFiles`, which fails once that process is dead. `lose_power` keeps what was
synced, and of the rest what the seed chooses: each unsynced write survives, is lost or is torn, and of the
unsynced changes of directories a first part survives, in their order (as with a journalled file system).

Faults: `fail_next` raises an OSError, `capacity` bounds the bytes (ENOSPC), `kill_after` kills the process in
the middle of a system call, `misses` makes reads leave the page cache, `flip_bit` damages a file.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from ottla.ports.files import Buffer, DiskUsage, FileStatus, Path
from ottla.simulation.loop import Process, ProcessKilled, SimulatedLoop

SECTOR_BYTES: Final = 512


class File:
    """A file's content: the page cache's, and the disk's."""

    __slots__ = ("data", "durable", "is_directory", "locked_by", "mtime_ns", "unsynced")

    def __init__(self, *, is_directory: bool, mtime_ns: int) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.unsynced: list[tuple[int, bytes | None]] = []
        """(position, bytes): a write; (length, None): a truncation or extension."""
        self.is_directory = is_directory
        self.mtime_ns = mtime_ns
        self.locked_by: object | None = None

    def sync(self) -> None:
        for position, data in self.unsynced:
            _apply(self.durable, position, data)
        self.unsynced.clear()

    def lose_unsynced(self, source: random.Random) -> None:
        """Keep what is durable, and of the rest what the seed chooses."""
        keeps = source.choice((0.0, 0.5, 1.0))
        for position, data in self.unsynced:
            if source.random() >= keeps:
                continue
            if data is not None and source.random() < 0.2:
                data = self._torn(position, data, source)
            _apply(self.durable, position, data)
        self.unsynced.clear()
        self.data = bytearray(self.durable)

    def _torn(self, position: int, data: bytes, source: random.Random) -> bytes:
        """A write that was lost from a boundary of sectors on; the file may have its new length already, with
        zeros in place of what was lost."""
        ends = range(SECTOR_BYTES - position % SECTOR_BYTES, len(data), SECTOR_BYTES)
        kept = data[: source.choice((0, *ends))]
        if position + len(data) > len(self.durable) and source.random() < 0.5:
            kept += bytes(len(data) - len(kept))
        return kept


def _apply(content: bytearray, position: int, data: bytes | None) -> None:
    if data is None:
        if position < len(content):
            del content[position:]
        else:
            content.extend(bytes(position - len(content)))
        return
    if position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


_Change = tuple[str, File | None]
"""A name, and the file that it now names, or None."""


class SimulatedDisk:
    """The disk of one machine. Paths are absolute."""

    def __init__(self, loop: SimulatedLoop, source: random.Random, wall_ms: Callable[[], int]) -> None:
        self.loop = loop
        self.random = source
        self.wall_ms = wall_ms
        root = File(is_directory=True, mtime_ns=0)
        self.names: dict[str, File] = {"/": root}
        self._durable_names: dict[str, File] = {"/": root}
        self._changes: list[list[_Change]] = []
        """Unsynced changes of directories, each atomic, in their order."""
        self.capacity: int | None = None
        """Bytes, after which writes fail with ENOSPC."""
        self.used = 0
        self.fail_rate = 0.0
        """The share of calls that fail with EIO."""
        self.miss_rate = 0.0
        """The share of reads that find nothing in the page cache."""
        self.kill_after = -1
        """After so many writing calls the process is killed in the middle of one; -1: never."""
        self.on_kill: Callable[[], None] = lambda: None
        self.failed = False
        """Every call fails with EIO."""

    # --- faults ---

    def lose_power(self) -> None:
        """Keep what was synced, and of the rest what the seed chooses."""
        names = self._durable_names
        for changes in self._changes[: self.random.randint(0, len(self._changes))]:
            _change_names(names, changes)
        self._changes.clear()
        self.names = dict(names)
        for file in self.names.values():
            file.lose_unsynced(self.random)
            file.locked_by = None
        self.used = sum(len(file.data) for file in self.names.values())

    def wipe(self) -> None:
        """A new, empty disk."""
        root = File(is_directory=True, mtime_ns=0)
        self.names = {"/": root}
        self._durable_names = {"/": root}
        self._changes.clear()
        self.used = 0

    def copy(self) -> SimulatedDisk:
        """Another disk with the same content, none of it locked or waiting for a sync, and without faults."""
        disk = SimulatedDisk(self.loop, random.Random(self.used), self.wall_ms)
        for name, file in self.names.items():
            copy = File(is_directory=file.is_directory, mtime_ns=file.mtime_ns)
            copy.data, copy.durable = bytearray(file.data), bytearray(file.data)
            disk.names[name] = disk._durable_names[name] = copy
        disk.used = self.used
        return disk

    def flip_bit(self, path: str, position: int, bit: int) -> None:
        file = self.names[path]
        file.sync()
        file.data[position] ^= 1 << bit
        file.durable[position] ^= 1 << bit

    # --- names ---

    def durable_name(self, path: str, file: File) -> str | None:
        """The name that a file has after a power loss: `path` if the last rename is synced, or a former one;
        None if the file may be gone."""
        names = self._durable_names
        if names.get(path) is file:
            return path
        return next((name for name, each in names.items() if each is file), None)

    def find(self, path: Path) -> File:
        file = self.names.get(os.fspath(path))
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
        return file

    def change(self, changes: list[_Change]) -> None:
        _change_names(self.names, changes)
        self._changes.append(changes)

    def sync_directory(self, path: str) -> None:
        """Make changes durable up to the last one of this directory: a journal commits in order."""
        for at in range(len(self._changes) - 1, -1, -1):
            if any((name.rpartition("/")[0] or "/") == path for name, _ in self._changes[at]):
                for changes in self._changes[: at + 1]:
                    _change_names(self._durable_names, changes)
                del self._changes[: at + 1]
                return

    def parent_of(self, path: str) -> File:
        parent = path.rpartition("/")[0] or "/"
        file = self.find(parent)
        if not file.is_directory:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), parent)
        return file


def _change_names(names: dict[str, File], changes: list[_Change]) -> None:
    for name, file in changes:
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file


class _Open:
    __slots__ = ("file", "path", "writes")

    def __init__(self, file: File, path: str, *, writes: bool) -> None:
        self.file = file
        self.path = path
        self.writes = writes


class ProcessFiles:
    """A disk as one process sees it: the port `ottla.ports.files.Files`."""

    def __init__(self, disk: SimulatedDisk, process: Process) -> None:
        self._disk = disk
        self._process = process
        self._open: dict[int, _Open] = {}
        self._missing: dict[tuple[int, int], None] = {}
        """Ranges that were not in the page cache and are not loaded yet."""

    def _enter(self) -> None:
        if not self._process.alive:
            raise ProcessKilled
        disk = self._disk
        if disk.failed or (disk.fail_rate and disk.random.random() < disk.fail_rate):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _enter_write(self) -> bool:
        """Returns whether the process is killed in the middle of this call."""
        self._enter()
        disk = self._disk
        if disk.kill_after >= 0:
            disk.kill_after -= 1
            return disk.kill_after < 0
        return False

    def _kill(self) -> None:
        self._disk.on_kill()
        raise ProcessKilled

    def _descriptor(self, fd: int) -> _Open:
        found = self._open.get(fd)
        if found is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return found

    # --- descriptors ---

    def open(self, path: Path, flags: int = os.O_RDONLY, mode: int = 0o644) -> int:
        self._enter()
        disk, name = self._disk, os.fspath(path)
        file = disk.names.get(name)
        if file is None:
            if not flags & os.O_CREAT:
                disk.find(name)
            disk.parent_of(name)
            file = File(is_directory=False, mtime_ns=disk.wall_ms() * 1_000_000)
            if self._enter_write():
                self._kill()
            disk.change([(name, file)])
        elif flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        writes = bool(flags & (os.O_WRONLY | os.O_RDWR))
        if flags & os.O_TRUNC:
            self._truncate(file, 0)
        fd = disk.loop.new_descriptor()
        self._open[fd] = _Open(file, name, writes=writes)
        return fd

    def close(self, fd: int, /) -> None:
        opened = self._open.pop(fd, None)
        if opened is None:
            if self._process.alive:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        elif opened.file.locked_by is opened:
            opened.file.locked_by = None

    def dup(self, fd: int, /) -> int:
        opened = self._descriptor(fd)
        copy = self._disk.loop.new_descriptor()
        self._open[copy] = _Open(opened.file, opened.path, writes=opened.writes)
        return copy

    def pread(self, fd: int, length: int, position: int, /) -> bytes:
        self._enter()
        return bytes(memoryview(self._descriptor(fd).file.data)[position : position + length])

    def pwrite(self, fd: int, data: Buffer, position: int, /) -> int:
        return self._write(fd, bytes(data), position)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int, /) -> int:
        return self._write(fd, b"".join(buffers), position)

    def _write(self, fd: int, data: bytes, position: int) -> int:
        is_killed = self._enter_write()
        disk, opened = self._disk, self._descriptor(fd)
        file = opened.file
        if is_killed:
            data = data[: disk.random.randint(0, len(data))]
        grows = position + len(data) - len(file.data)
        if grows > 0:
            if disk.capacity is not None and disk.used + grows > disk.capacity:
                left = max(0, disk.capacity - disk.used)
                if left == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                data = data[: len(data) - (grows - left)]
                grows = position + len(data) - len(file.data)
            disk.used += max(grows, 0)
        _apply(file.data, position, data)
        file.unsynced.append((position, data))
        file.mtime_ns = disk.wall_ms() * 1_000_000
        if is_killed:
            self._kill()
        return len(data)

    def ftruncate(self, fd: int, length: int, /) -> None:
        if self._enter_write():
            self._kill()
        self._truncate(self._descriptor(fd).file, length)

    def _truncate(self, file: File, length: int) -> None:
        disk = self._disk
        disk.used += length - len(file.data)
        _apply(file.data, length, None)
        file.unsynced.append((length, None))
        file.mtime_ns = disk.wall_ms() * 1_000_000

    def fsync(self, fd: int, /) -> None:
        if self._enter_write():
            self._kill()
        opened = self._descriptor(fd)
        if opened.file.is_directory:
            self._disk.sync_directory(opened.path)
        else:
            opened.file.sync()

    fdatasync = fsync

    def fstat(self, fd: int, /) -> FileStatus:
        self._enter()
        return _status(self._descriptor(fd).file)

    def set_mtime(self, fd: int, mtime_ns: int, /) -> None:
        self._enter()
        self._descriptor(fd).file.mtime_ns = mtime_ns

    def lock(self, fd: int, /) -> None:
        self._enter()
        opened = self._descriptor(fd)
        if opened.file.locked_by is not None:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        opened.file.locked_by = opened

    def is_locked(self, fd: int, /) -> bool:
        self._enter()
        opened = self._descriptor(fd)
        return opened.file.locked_by not in (None, opened)

    @contextmanager
    def view(self, fd: int, /) -> Iterator[memoryview]:
        self._enter()
        yield memoryview(bytes(self._descriptor(fd).file.data))

    def advise_sequential(self, fd: int, length: int, /) -> None:
        """No effect."""

    def sendfile(self, out_fd: int, in_fd: int, position: int, count: int, /) -> int:
        data = self.pread(in_fd, count, position)
        if not data:
            return 0
        sent: int = self._disk.loop.sockets[out_fd].send(data)  # type: ignore[attr-defined]
        return sent

    # --- the page cache ---

    def try_pread(self, fd: int, length: int, position: int, /) -> bytes | bytearray | None:
        if not self.is_resident(fd, position, length):
            return None
        return self.pread(fd, length, position)

    def is_resident(self, fd: int, position: int, length: int, *, exact: bool = False) -> bool:
        self._enter()
        disk = self._disk
        return not (disk.miss_rate and disk.random.random() < disk.miss_rate)

    def load(self, fd: int, position: int, length: int, /) -> None:
        self._enter()
        self._descriptor(fd)

    def load_ahead(self, fd: int, position: int, length: int, /) -> None:
        self._enter()

    # --- paths ---

    def stat(self, path: Path, /) -> FileStatus:
        self._enter()
        return _status(self._disk.find(path))

    def exists(self, path: Path, /) -> bool:
        self._enter()
        return os.fspath(path) in self._disk.names

    def listdir(self, path: Path, /) -> list[str]:
        self._enter()
        disk = self._disk
        if not disk.find(path).is_directory:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(path))
        prefix = os.fspath(path).rstrip("/") + "/"
        size = len(prefix)
        return sorted(
            name[size:]
            for name in disk.names
            if name.startswith(prefix) and "/" not in name[size:] and len(name) > size
        )

    def mkdir(self, path: Path, /) -> None:
        self._enter()
        disk, name = self._disk, os.fspath(path).rstrip("/")
        made = ""
        for part in name.strip("/").split("/"):
            made = f"{made}/{part}"
            file = disk.names.get(made)
            if file is None:
                if self._enter_write():
                    self._kill()
                disk.change([(made, File(is_directory=True, mtime_ns=disk.wall_ms() * 1_000_000))])
            elif not file.is_directory:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), made)

    def rename(self, old: Path, new: Path, /) -> None:
        if self._enter_write():
            self._kill()
        disk, source, target = self._disk, os.fspath(old), os.fspath(new)
        file = disk.find(source)
        disk.parent_of(target)
        replaced = disk.names.get(target)
        if replaced is not None and not replaced.is_directory:
            disk.used -= len(replaced.data)
        changes: list[_Change] = [(source, None), (target, file)]
        if file.is_directory:
            prefix = source + "/"
            for name, inner in list(disk.names.items()):
                if name.startswith(prefix):
                    changes += [(name, None), (f"{target}/{name[len(prefix) :]}", inner)]
        disk.change(changes)

    def truncate(self, path: Path, length: int, /) -> None:
        if self._enter_write():
            self._kill()
        self._truncate(self._disk.find(path), length)

    def unlink(self, path: Path, /) -> None:
        if self._enter_write():
            self._kill()
        disk, name = self._disk, os.fspath(path)
        file = disk.find(name)
        if file.is_directory:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        disk.used -= len(file.data)
        disk.change([(name, None)])

    def rmtree(self, path: Path, /) -> None:
        name = os.fspath(path)
        self._disk.find(name)
        for each in [each for each in self._disk.names if each.startswith(name + "/")]:
            if not self._disk.names[each].is_directory:
                self.unlink(each)
        if self._enter_write():
            self._kill()
        changes: list[_Change] = [(each, None) for each in self._disk.names if each.startswith(name + "/")]
        self._disk.change([*changes, (name, None)])

    def realpath(self, path: Path, /) -> str:
        return os.path.normpath(path)

    def disk_usage(self, path: Path, /) -> DiskUsage:
        total = self._disk.capacity or 1 << 40
        return DiskUsage(total, max(0, total - self._disk.used))

    def release_locks(self) -> None:
        """The kernel closes the files of a dead process."""
        for opened in self._open.values():
            if opened.file.locked_by is opened:
                opened.file.locked_by = None
        self._open.clear()


def _status(file: File) -> FileStatus:
    return FileStatus(len(file.data), file.mtime_ns, file.is_directory)
