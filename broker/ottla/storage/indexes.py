"""The indexes of a segment, in Kafka's file formats.

* `.index`: (offset relative to the segment's base offset: int32, file position: int32), 8 bytes;
* `.timeindex`: (timestamp in ms: int64, relative offset: int32), 12 bytes (KIP-33);
* `.txnindex`: aborted transactions (`TransactionIndex`).

Owned by `log_segment`. An offset index entry gives the last offset and the position of a batch. A time index
entry says that all records with a later timestamp come after its offset. Invariants: offsets (and timestamps)
strictly ascend; an index is never ahead of its log once both are flushed.

Entries of the first two are kept in memory (arrays of integers, searched by bisect) and written to the file
at once when the segment is rolled, flushed or closed. An index that is lost in a crash is rebuilt from the
log. Entries that exist at startup are read on first use.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

from ottla.ports.files import Files, opened, sync_path, write_all, write_file
from ottla.storage.nonblocking_reads import read_index_file
from ottla.storage.segment_files import LogFile

# Shared columns of indexes without entries in memory; never appended to.
_NO_LONGS = array("q")
_NO_INTS = array("i")

_TXN_VERSION = 0
_TXN_ENTRY = struct.Struct(">hqqqq")


class CorruptIndex(Exception):
    """An index file is invalid and must be rebuilt."""


class _Index(LogFile):
    """An index: two parallel columns and their file."""

    __slots__ = ("_first", "_second", "_unloaded", "_unsynced", "_written", "base_offset", "max_entries")

    ENTRY: ClassVar[struct.Struct]
    NOTHING: ClassVar[array[int]]
    """The first column of an empty index."""

    def __init__(self, files: Files, path: str | Path, base_offset: int, max_bytes: int) -> None:
        super().__init__(files, path)
        self.base_offset = base_offset
        self.max_entries = max_bytes // self.ENTRY.size
        self._first = self.NOTHING
        self._second = _NO_INTS
        self._unsynced = False
        """The file was written since its last fsync."""
        self._unloaded = 0
        """The number of entries in the file that are not in memory yet; all or none."""
        self._written = 0
        """The number of entries in the file."""

    def attach(self) -> tuple[int, int] | None:
        """Use the existing file without reading all of it. Returns its last entry, None for an empty file.

        Raises CorruptIndex if the file is missing or invalid.
        """
        size = self.ENTRY.size
        files = self.files
        try:
            fd = files.open(self.path_str)
        except FileNotFoundError:
            raise CorruptIndex(f"{self.path}: missing") from None
        try:
            length = files.fstat(fd).size
            if length % size:
                raise CorruptIndex(f"{self.path}: {length} bytes are not whole entries of {size}")
            if length == 0:
                return None
            first = self.ENTRY.unpack(files.pread(fd, size, 0))
            last = self.ENTRY.unpack(files.pread(fd, size, length - size))
        finally:
            files.close(fd)
        if last[0] < first[0] or (length > size and last[0] == first[0]) or last[1] < 0:
            raise CorruptIndex(f"{self.path}: ends in {last}, below its first entry")
        self._unloaded = self._written = length // size
        return last

    def __len__(self) -> int:
        return self._unloaded or len(self._first)

    def entries(self) -> list[tuple[int, int]]:
        """All entries, with relative offsets as in the file."""
        self._load()
        return list(zip(self._first, self._second, strict=True))

    def write(self) -> None:
        """Write new entries to the file, which is created if it does not exist. No fsync."""
        count = len(self._second)
        if self._unloaded or (self._written == count and count):
            return
        tail = zip(self._first[self._written : count], self._second[self._written : count], strict=True)
        with opened(self.files, self.path_str, os.O_WRONLY | os.O_CREAT) as fd:
            if count:
                write_all(self.files, fd, self._pack(tail), self._written * self.ENTRY.size)
                self._unsynced = True
        self._written = count

    def flush(self) -> None:
        """Write new entries, and fsync the file if it was written since the last fsync."""
        self.write()
        if self._unsynced:
            self._unsynced = False
            sync_path(self.files, self.path_str)

    def new_empty(self) -> Self:
        """An empty index for the same file."""
        return type(self)(self.files, self.path_str, self.base_offset, self.max_entries * self.ENTRY.size)

    def replace_file(self) -> None:
        """Replace the file's content with the entries, all of which are in memory."""
        assert not self._unloaded
        write_file(self.files, self.path_str, b"")
        self._written = 0
        self.write()

    def reset(self) -> None:
        """Remove all entries, in memory and in the file."""
        self._keep(0)

    @classmethod
    def _unpack(cls, data: bytes) -> tuple[array[int], array[int]]:
        """Decode a file into the two columns, as whole arrays: a large segment's index has 260,000
        entries."""
        raise NotImplementedError

    def _pack(self, entries: Iterable[tuple[int, int]]) -> bytes:
        pack = self.ENTRY.pack
        return b"".join(pack(first, second) for first, second in entries)

    def _load(self) -> None:
        if not self._unloaded:
            return
        data = read_index_file(self.files, self.path_str)
        self._first, self._second = self._unpack(data[: len(data) - len(data) % self.ENTRY.size])
        self._unloaded = 0
        self._written = len(self._first)

    def _keep(self, count: int) -> None:
        if count:
            self._load()
            del self._first[count:], self._second[count:]
        else:
            self._first, self._second, self._unloaded = self.NOTHING, _NO_INTS, 0
        if self._written > count or count == 0:
            self._written = min(self._written, count)
            with contextlib.suppress(FileNotFoundError):
                if self.files.stat(self.path_str).size > self._written * self.ENTRY.size:
                    self.files.truncate(self.path_str, self._written * self.ENTRY.size)
                    self._unsynced = True


class OffsetIndex(_Index):
    """Maps offsets to file positions."""

    __slots__ = ()

    ENTRY = struct.Struct(">ii")
    NOTHING = _NO_INTS

    @classmethod
    def _unpack(cls, data: bytes) -> tuple[array[int], array[int]]:
        words = _big_endian("i", data)
        return words[0::2], words[1::2]

    @property
    def is_full(self) -> bool:
        return len(self) >= self.max_entries

    def append(self, offset: int, position: int) -> bool:
        """Add the batch at `position` that ends at `offset`, unless the index is full; return whether it is
        full now."""
        if self._unloaded:
            self._load()
        first = self._first
        count = len(first)
        if count >= self.max_entries:
            return True
        if not count:
            self._first, self._second = first, _ = array("i"), array("i")
        relative = offset - self.base_offset
        assert not count or relative > first[-1]
        first.append(relative)
        self._second.append(position)
        return count + 1 >= self.max_entries

    def lookup(self, offset: int) -> int:
        """The position of a batch at or before the one that holds `offset`."""
        if self._unloaded:
            self._load()
        at = bisect_right(self._first, offset - self.base_offset) - 1
        return self._second[at] if at >= 0 else 0

    def first_entry_from(self, position: int) -> tuple[int, int] | None:
        """(offset, position) of the first entry at or after `position`; None if there is none. As in Kafka's
        search, the index's first entry is only found for a lower position."""
        self._load()
        at = bisect_left(self._second, position)
        if at == 0 and self._second and self._second[0] == position:
            at = 1
        if at == len(self._second):
            return None
        return self.base_offset + self._first[at], self._second[at]

    def position_before(self, position: int) -> int:
        """The position of the nearest indexed batch at or before `position`; 0 if there is none."""
        self._load()
        at = bisect_right(self._second, position) - 1
        return max(self._second[at], 0) if at >= 0 else 0

    def truncate_to(self, offset: int) -> None:
        """Drop entries at or beyond `offset`."""
        self._load()
        self._keep(bisect_left(self._first, offset - self.base_offset))


class TimeIndex(_Index):
    """Maps timestamps to offsets."""

    __slots__ = ()

    ENTRY = struct.Struct(">qi")
    NOTHING = _NO_LONGS

    @classmethod
    def _unpack(cls, data: bytes) -> tuple[array[int], array[int]]:
        # Each entry has three words, of which the first two are a timestamp: combine them to a native int64.
        words = _big_endian("i", data)
        timestamps = array("i", bytes(len(words) // 3 * 8))
        low, high = (0, 1) if sys.byteorder == "little" else (1, 0)
        timestamps[high::2] = words[0::3]
        timestamps[low::2] = words[1::3]
        first = array("q")
        first.frombytes(timestamps.tobytes())
        return first, words[2::3]

    @property
    def is_full(self) -> bool:
        # One entry is reserved for the max timestamp, which is written when the segment is sealed.
        return len(self) >= self.max_entries - 1

    def maybe_append(self, timestamp: int, offset: int, *, sealing: bool = False) -> bool:
        """Add an entry if `timestamp` is later than the last entry's; return whether the index is full
        now."""
        if self._unloaded:
            self._load()
        first = self._first
        count = len(first)
        full_at = self.max_entries - 1
        if timestamp > (first[-1] if count else -1) and (sealing or count < full_at):
            if not count:
                self._first, self._second = first, _ = array("q"), array("i")
            relative = offset - self.base_offset
            assert not count or relative >= self._second[-1]
            first.append(timestamp)
            self._second.append(relative)
            count += 1
        return count >= full_at

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """(timestamp, offset) of the last entry at or before `timestamp`; (-1, base) when none."""
        if self._unloaded:
            self._load()
        at = bisect_right(self._first, timestamp) - 1
        return (self._first[at], self.base_offset + self._second[at]) if at >= 0 else (-1, self.base_offset)

    def last(self) -> tuple[int, int]:
        """(timestamp, offset) of the last entry; (-1, base) when there is none."""
        self._load()
        if not self._first:
            return -1, self.base_offset
        return self._first[-1], self.base_offset + self._second[-1]

    def truncate_to(self, offset: int) -> None:
        """Drop entries at or beyond `offset`."""
        self._load()
        self._keep(bisect_left(self._second, offset - self.base_offset))


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    """The abort marker's offset."""
    last_stable_offset: int
    """The log's last stable offset after the marker was appended."""


class TransactionIndex(LogFile):
    """`.txnindex`: the aborted transactions that consumers skip (KIP-98).

    Written by `producer_state_manager` when an abort marker is appended, read by `Log` for read_committed
    fetches. An entry has 34 bytes, big-endian: version int16 (0), then producer id, first offset, last offset
    (the marker's) and the last stable offset after the marker was written, int64 each.

    Invariants: entries ascend by last offset; a transaction is in the index of the segment that holds its
    marker. The file does not exist until a transaction is aborted. Entries are written at once: unlike the
    other indexes, this one cannot be rebuilt from its own segment alone. They stay in memory after their
    first use.
    """

    __slots__ = ("_base_offset", "_data", "_size")

    def __init__(self, files: Files, path: str | Path, base_offset: int) -> None:
        super().__init__(files, path)
        self._base_offset = base_offset
        try:
            self._size = files.stat(self.path_str).size
        except FileNotFoundError:
            self._size = 0
        self._data: bytearray | None = None

    def __len__(self) -> int:
        return self._size // _TXN_ENTRY.size

    def check(self) -> None:
        """Raise CorruptIndex if the file must be rebuilt."""
        if self._size % _TXN_ENTRY.size:
            raise CorruptIndex(f"{self.path}: {self._size} bytes are not whole entries of {_TXN_ENTRY.size}")
        last = self._base_offset - 1
        for version, _, _, last_offset, _ in _TXN_ENTRY.iter_unpack(self._load()):
            if version != _TXN_VERSION or last_offset <= last:
                raise CorruptIndex(f"{self.path}: version {version}, offset {last_offset} after {last}")
            last = last_offset

    def entries(self) -> list[AbortedTransaction]:
        return [AbortedTransaction(*fields) for _, *fields in _TXN_ENTRY.iter_unpack(self._load())]

    def append(self, aborted: AbortedTransaction) -> None:
        """Raises OSError."""
        data = self._load()
        assert not data or self._last_offset(len(self) - 1) < aborted.last_offset
        entry = _TXN_ENTRY.pack(_TXN_VERSION, *aborted)
        with opened(self.files, self.path_str, os.O_WRONLY | os.O_CREAT) as fd:
            if self.files.pwrite(fd, entry, self._size) != len(entry):
                self.files.ftruncate(fd, self._size)
                raise OSError(errno.ENOSPC, f"{self.path}: the file takes no more bytes")
        data += entry
        self._size += len(entry)

    def collect(self, fetch_offset: int, upper_bound: int) -> tuple[list[AbortedTransaction], bool]:
        """The aborted transactions that overlap [fetch_offset, upper_bound), and whether later segments have
        no more of them."""
        if not self._size:
            return [], False
        data = self._load()
        found = []
        for at in range(bisect_left(range(len(self)), fetch_offset, key=self._last_offset), len(self)):
            _, *fields = _TXN_ENTRY.unpack_from(data, at * _TXN_ENTRY.size)
            aborted = AbortedTransaction(*fields)
            if aborted.first_offset < upper_bound:
                found.append(aborted)
            if aborted.last_stable_offset >= upper_bound:
                return found, True
        return found, False

    def truncate_to(self, offset: int) -> None:
        """Remove transactions that were aborted at or after `offset`."""
        if self._size:
            self._load()
            self._cut(bisect_left(range(len(self)), offset, key=self._last_offset) * _TXN_ENTRY.size)

    def reset(self) -> None:
        """Remove all entries, also invalid ones."""
        if self._size:
            self._cut(0)

    def sync(self) -> None:
        if self._size:
            sync_path(self.files, self.path_str)

    def load(self) -> None:
        """Read the entries into memory."""
        self._load()

    def _load(self) -> bytearray:
        if self._data is None:
            self._data = bytearray(read_index_file(self.files, self.path_str)) if self._size else bytearray()
        return self._data

    def _last_offset(self, at: int) -> int:
        assert self._data is not None
        return int.from_bytes(self._data[at * _TXN_ENTRY.size + 18 : at * _TXN_ENTRY.size + 26], "big")

    def _cut(self, size: int) -> None:
        if self._data is None:
            self._data = bytearray()
        del self._data[size:]
        if size < self._size:
            self.files.truncate(self.path_str, size)
        self._size = size


def _big_endian(kind: str, data: bytes) -> array[int]:
    """Decode big-endian integers of the array type `kind`."""
    numbers = array(kind)
    numbers.frombytes(data)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
