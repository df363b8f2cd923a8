"""One segment of a log: the `.log` file with its three indexes, and ranges of it for readers.

Owned by `Log` (which serialises writers); `FileSlice`s travel up to the server, which sends them
with sendfile. Invariants: `size` is the number of bytes that hold whole batches (a preallocated file is
longer until it is sealed); a slice keeps its file's descriptor open, so that it stays readable after the
segment is deleted.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import (
    BATCH_HEADER,
    HEAD_BYTES,
    LOG_OVERHEAD,
    MAGIC_V2,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
)
from ottla.storage.page_cache import pread
from ottla.storage.segment_files import LOG_SUFFIX, SegmentFile, SegmentFiles, segment_name

_SCAN_WINDOW_BYTES = 8 * 1024
_BATCH_LENGTH_MIN = 14
"""Of the oldest format; Kafka takes less for corrupt, and more for what may be a batch."""
_RECENT_BATCHES_MAX = 256
# Base offset, batch length and last offset delta: what finding an offset needs of a header.
_LOCATE = struct.Struct(">qi11xi")
_MAGIC_POSITION = 16
# The first bytes of a batch: base offset, batch length, and the leader epoch that the leader gives it.
HEAD = struct.Struct(">qii")
_NO_BATCHES: dict[int, int] = {}
"""Shared by segments that were not appended to yet, and never changed."""
assert HEAD.size == HEAD_BYTES


class FileSlice(NamedTuple):
    """`length` bytes at `position` of a segment's file."""

    file: SegmentFile
    position: int
    length: int

    def to_bytes(self) -> bytes:
        """The bytes; fewer where the file was truncated meanwhile."""
        return os.pread(self.file.fd, self.length, self.position)


class LogRead(NamedTuple):
    """What a read found: ranges of files, beginning with the batch that holds `first_offset`."""

    first_offset: int
    slices: list[FileSlice]
    size: int

    def to_bytes(self) -> bytes:
        return b"".join([piece.to_bytes() for piece in self.slices])


class Segment(SegmentFiles):
    """Appends to, finds offsets in, and truncates one segment. Times are milliseconds."""

    __slots__ = (
        "_bytes_since_index",
        "_older",
        "_preallocated",
        "_recent",
        "created_ms",
        "first_timestamp",
        "index_interval_bytes",
        "index_is_suspect",
        "max_timestamp",
        "max_timestamp_offset",
        "roll_jitter_ms",
        "size",
    )

    def __init__(
        self,
        directory: str | Path,
        base_offset: int,
        *,
        index_interval_bytes: int,
        index_max_bytes: int,
        now_ms: int,
        roll_jitter_ms: int = 0,
        preallocate_bytes: int = 0,
        suffix: str = "",
        make: bool = True,
    ) -> None:
        """With `make` opens the files, or makes them, then with `preallocate_bytes` taken (preallocate);
        without, the log has to be there. Its age counts as `roll_jitter_ms` more than it is
        (segment.jitter.ms). The names end in `suffix`. Raises OSError."""
        path = f"{directory}/{segment_name(base_offset)}{LOG_SUFFIX}{suffix}"
        super().__init__(path, base_offset, index_max_bytes, make=make)
        self.size = os.stat(path).st_size
        self._preallocated = preallocate_bytes > 0 and self.size == 0
        if self._preallocated:
            os.ftruncate(self.fd, preallocate_bytes)
        self.roll_jitter_ms = roll_jitter_ms
        self.created_ms = now_ms
        self.first_timestamp = -1
        """The first batch's highest timestamp, from which rolling by time counts; -1 for none."""
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset
        self.index_is_suspect: bool | None = False
        """An entry told what the log does not say: see `index_rebuilding`. None: the end of the time index,
        as it was found at the start, is yet to be checked."""
        self.index_interval_bytes = index_interval_bytes
        self._bytes_since_index = 0
        # Where recently appended batches begin, in two generations: readers at the tail and the
        # high watermark ask for just these, and need no scan.
        self._recent = _NO_BATCHES
        self._older = _NO_BATCHES

    # --- appending -------------------------------------------------------------------------------

    def append(
        self,
        head: bytes,
        rest: memoryview,
        size: int,
        first_offset: int,
        last_offset: int,
        max_timestamp: int,
    ) -> None:
        """Write one batch, `head` and `rest` being its bytes. Raises OSError, leaving no part of it."""
        position = self.size
        fd = self._fd
        if fd < 0:
            fd = self.fd
        written = os.pwritev(fd, (head, rest), position)
        if written != size:
            self._write_remainder(b"".join((head, rest)), written, position)
        self.note_batch(size, first_offset, last_offset, max_timestamp)

    def write(self, data: memoryview) -> None:
        """Write whole batches as they are; the caller notes each with `note_batch` afterwards."""
        written = os.pwrite(self.fd, data, self.size)
        if written != len(data):
            self._write_remainder(data, written, self.size)

    def note_batch(self, size: int, first_offset: int, last_offset: int, max_timestamp: int) -> None:
        """Account for a batch that was written at `self.size`."""
        position = self.size
        recent = self._recent
        if not 0 < len(recent) < _RECENT_BATCHES_MAX:
            self._older = recent
            self._recent = recent = {}
        recent[first_offset] = position
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if position == 0:
            self.first_timestamp = max_timestamp
        if self._bytes_since_index > self.index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset)
            self._bytes_since_index = 0
            self.index_full = self.offset_index.is_full or self.time_index.is_full
        self._bytes_since_index += size
        self.size = position + size

    def _write_remainder(self, data: bytes | memoryview, written: int, position: int) -> None:
        try:
            while written < len(data):
                count = os.pwrite(self.fd, data[written:], position + written)
                if count == 0:
                    raise OSError(f"{self.file.path}: the file takes no more bytes")
                written += count
        except OSError:
            os.ftruncate(self.fd, position)
            raise

    # --- finding ---------------------------------------------------------------------------------

    def position_of(self, offset: int) -> int:
        """Where the first batch that ends at or after `offset` begins; `size` when there is none. Raises
        CORRUPT_MESSAGE on the way over bytes that cannot be a batch."""
        position = self._recent.get(offset)
        if position is None:
            position = self._older.get(offset)
            if position is None:
                position = self._scan_for(offset)
        return position

    def start_of_scan(self, offset: int) -> int:
        """The position of a batch at or before the one that holds `offset`: by the index, unless that points
        to what is no such batch."""
        position = self.offset_index.lookup(offset)
        if position and not self._may_begin(self._head_at(position), offset):
            return 0
        return position

    def offset_behind(self, position: int) -> int | None:
        """An offset that is not before `position`, where a batch begins, as near as the index tells."""
        entry = self.offset_index.entry_behind(position)
        if entry is None or not self._may_begin(self._head_at(entry[1]), entry[0]):
            return None
        return entry[0]

    def header_at(self, offset: int) -> BatchHeader | None:
        """Of the first batch that ends at or after `offset`."""
        for _, header in self.headers(self.start_of_scan(offset)):
            if header.last_offset >= offset:
                return header
        return None

    def has_timestamp(self, timestamp: int, offset: int) -> bool:
        """Whether that is the highest of the batch that holds `offset`, as a time index's entry says."""
        header = self.header_at(offset)
        return header is not None and header.base_offset <= offset and header.max_timestamp == timestamp

    def _head_at(self, position: int) -> bytes | bytearray:
        return pread(self.fd, _LOCATE.size, position) if position >= 0 else b""

    def _may_begin(self, head: bytes | bytearray, offset: int) -> bool:
        """Whether a batch at or before `offset` may begin like this; if not, the index has misled us."""
        if len(head) >= _LOCATE.size:
            base_offset, length, delta = _LOCATE.unpack_from(head)
            if (
                self.base_offset <= base_offset <= offset
                and length >= RECORD_BATCH_OVERHEAD - LOG_OVERHEAD
                and head[_MAGIC_POSITION] == MAGIC_V2
                and delta >= 0
            ):
                return True
        self.index_is_suspect = True
        return False

    def _scan_for(self, offset: int) -> int:
        position = self.offset_index.lookup(offset)
        is_told = position != 0
        end = self.size
        while position < end or is_told:
            window: bytes | bytearray = b""
            if 0 <= position < end:
                window = pread(self.fd, min(_SCAN_WINDOW_BYTES, end - position), position)
            if is_told:
                is_told = False
                if not self._may_begin(window, offset):
                    position = 0
                    continue
            at = 0
            last = len(window) - _LOCATE.size
            while at <= last:
                base_offset, length, delta = _LOCATE.unpack_from(window, at)
                if length < _BATCH_LENGTH_MIN:
                    raise self._corrupt(position + at, length)
                following = at + LOG_OVERHEAD + length
                if position + following > end:
                    return end
                if base_offset + delta >= offset:
                    return position + at
                at = following
            if at == 0:
                break
            position += at
        return end

    def _corrupt(self, position: int, length: int) -> KafkaError:
        return KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"{self.file.path}: a batch of {length} bytes at {position}"
        )

    def batch_size_at(self, position: int) -> int:
        """Bytes that the batch at `position` says it has; fewer may be there. Raises CORRUPT_MESSAGE."""
        length = int.from_bytes(pread(self.fd, 4, position + 8), "big", signed=True)
        if length < _BATCH_LENGTH_MIN:
            raise self._corrupt(position, length)
        return LOG_OVERHEAD + length

    def headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of the batches from `position` on; stops at what is no whole batch."""
        return scan_headers(self.fd, position, self.size)

    def slice(self, position: int, length: int) -> FileSlice:
        if self._fd < 0:
            self._fd = self.file.open()
        return FileSlice(self.file, position, length)

    def read_batch(self, position: int) -> bytes:
        return bytes(pread(self.fd, self.batch_size_at(position), position))

    # --- life ------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Drop the batch that holds `offset`, and all after it."""
        position = self.position_of(offset)
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        self._recent = self._older = _NO_BATCHES
        os.ftruncate(self.fd, position)
        self._preallocated = False
        self.size = position
        self._bytes_since_index = 0
        self.index_full = False
        if self.max_timestamp_offset >= offset or self.first_timestamp < 0:
            self.load_timestamps()

    def load_timestamps(self) -> None:
        """Find out the first and highest timestamps: the index's last entry, and the tail behind it."""
        self.first_timestamp = self.max_timestamp = -1
        self.max_timestamp_offset = self.base_offset
        if self.size == 0:
            return
        for _, header in self.headers():
            self.first_timestamp = header.max_timestamp
            break
        timestamp, offset = self.time_index.last()
        if timestamp >= 0 and not self.has_timestamp(timestamp, offset):
            self.index_is_suspect = True
            self.find_timestamps()
        else:
            self.max_timestamp, self.max_timestamp_offset = timestamp, offset
            self._look_for_higher(self.start_of_scan(offset))

    def find_timestamps(self) -> bool:
        """The highest timestamp, by the log alone; whether that could be read to its end."""
        self.max_timestamp, self.max_timestamp_offset = -1, self.base_offset
        return self._look_for_higher(0) == self.size

    def _look_for_higher(self, position: int) -> int:
        for at, header in self.headers(position):
            position = at + header.size
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp = header.max_timestamp
                self.max_timestamp_offset = header.last_offset
        return position

    def seal(self) -> None:
        """No more appends: note the highest timestamp, bring the files to what they hold."""
        if self.max_timestamp >= 0:
            self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset, sealing=True)
        self._recent = self._older = _NO_BATCHES
        if self._preallocated:
            os.ftruncate(self.fd, self.size)
            self._preallocated = False
        self.write_indexes()

    def write_indexes(self) -> None:
        self.offset_index.write()
        self.time_index.write()

    def sync(self) -> None:
        """fsync log and indexes, as written so far."""
        os.fsync(self.fd)
        self.sync_indexes()
        if self._txn_index is not None:
            self._txn_index.sync()

    def sync_indexes(self) -> None:
        """Write, and fsync what was written."""
        self.offset_index.flush()
        self.time_index.flush()

    def largest_timestamp(self) -> int:
        """The highest timestamp, or the file's time of change when the records have none."""
        if self.max_timestamp >= 0:
            return self.max_timestamp
        return int(os.stat(self.file.location if self._fd < 0 else self._fd).st_mtime * 1000)


def scan_headers(fd: int, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of consecutive v2 batches in [position, end), reading headers only.

    Stops, without a word, at the first bytes that are no whole v2 batch: callers that care compare
    where it stopped with where it should have.
    """
    unpack = BATCH_HEADER.unpack_from
    size = 0
    while position + RECORD_BATCH_OVERHEAD <= end:
        # After a large batch just the next header, for its batch will be large, too.
        wanted = RECORD_BATCH_OVERHEAD if size > _SCAN_WINDOW_BYTES // 2 else _SCAN_WINDOW_BYTES
        window = pread(fd, min(wanted, end - position), position)
        at = 0
        last = len(window) - RECORD_BATCH_OVERHEAD
        while at <= last:
            header = BatchHeader(*unpack(window, at))
            size = LOG_OVERHEAD + header.batch_length
            if size < RECORD_BATCH_OVERHEAD or header.magic != MAGIC_V2 or position + at + size > end:
                return
            yield position + at, header
            at += size
        if at == 0:
            return
        position += at
