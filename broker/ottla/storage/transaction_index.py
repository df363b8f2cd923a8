"""A segment's transaction index, `.txnindex`: the aborted transactions that consumers skip (KIP-98).

Owned by `log_segment`, written by `producer_state_manager` when an abort marker is appended, read by `Log`
for read_committed fetches. An entry has 34 bytes, big-endian: version int16 (0), then producer id, first
offset, last offset (the marker's) and the last stable offset after the marker was written, int64 each.

Invariants: entries ascend by last offset; a transaction is in the index of the segment that holds its marker.
The file does not exist until a transaction is aborted. Entries are written at once, not buffered: unlike the
other indexes, this one cannot be rebuilt from its own segment alone.
"""

from __future__ import annotations

import errno
import os
import struct
from bisect import bisect_left
from pathlib import Path
from typing import NamedTuple

from ottla.ports.files import Files, opened, sync_path
from ottla.storage.indexes import CorruptIndex
from ottla.storage.nonblocking_reads import read_index_file
from ottla.storage.segment_files import LogFile

VERSION = 0
_ENTRY = struct.Struct(">hqqqq")


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    """The abort marker's offset."""
    last_stable_offset: int
    """The log's last stable offset after the marker was appended."""


class TransactionIndex(LogFile):
    """See the module. Entries stay in memory after their first use."""

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
        return self._size // _ENTRY.size

    def check(self) -> None:
        """Raise CorruptIndex if the file must be rebuilt."""
        if self._size % _ENTRY.size:
            raise CorruptIndex(f"{self.path}: {self._size} bytes are not whole entries of {_ENTRY.size}")
        last = self._base_offset - 1
        for version, _, _, last_offset, _ in _ENTRY.iter_unpack(self._load()):
            if version != VERSION or last_offset <= last:
                raise CorruptIndex(f"{self.path}: version {version}, offset {last_offset} after {last}")
            last = last_offset

    def entries(self) -> list[AbortedTransaction]:
        return [AbortedTransaction(*fields) for _, *fields in _ENTRY.iter_unpack(self._load())]

    def append(self, aborted: AbortedTransaction) -> None:
        """Raises OSError."""
        data = self._load()
        assert not data or self._last_offset(len(self) - 1) < aborted.last_offset
        entry = _ENTRY.pack(VERSION, *aborted)
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
            _, *fields = _ENTRY.unpack_from(data, at * _ENTRY.size)
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
            self._cut(bisect_left(range(len(self)), offset, key=self._last_offset) * _ENTRY.size)

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
        return int.from_bytes(self._data[at * _ENTRY.size + 18 : at * _ENTRY.size + 26], "big")

    def _cut(self, size: int) -> None:
        if self._data is None:
            self._data = bytearray()
        del self._data[size:]
        if size < self._size:
            self.files.truncate(self.path_str, size)
        self._size = size
