"""One segment of a log: the `.log` file with its three indexes, and ranges of it for readers.

Owned by `Log` (which serialises writers); `FileSlice`s travel up to the server, which sends them
with sendfile. Invariants: `size` is the number of bytes that hold whole batches (a preallocated file is
longer until it is sealed); a slice keeps its file's descriptor open, so that it stays readable after the
segment is deleted. Of thousands of logs most are not used for long, and so descriptors and indexes are opened
and made when they are first needed; that is before the files get other names.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections.abc import Callable, Iterator
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
from ottla.storage.indexes import OffsetIndex, TimeIndex
from ottla.storage.page_cache import pread
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

_SCAN_WINDOW_BYTES = 8 * 1024
_BATCH_LENGTH_MIN = 14
"""Of the oldest format; Kafka takes less for corrupt, and more for what may be a batch."""
_RECENT_BATCHES_MAX = 256
# Base offset, batch length and last offset delta: what finding an offset needs of a header.
_LOCATE = struct.Struct(">qi11xi")
_MAGIC_POSITION = 16
# The first bytes of a batch: base offset, batch length, and the leader epoch that the leader gives it.
HEAD = struct.Struct(">qii")
_OPENING = threading.Lock()
_NO_BATCHES: dict[int, int] = {}
"""Shared by segments that were not appended to yet, and never changed."""
assert HEAD.size == HEAD_BYTES


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
        """Up to where somebody who reads it from the disk has it read ahead (server.cold_reads)."""
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


class Segment:
    """Appends to, finds offsets in, and truncates one segment. Times are milliseconds."""

    __slots__ = (
        "_bytes_since_index",
        "_fd",
        "_index_max_bytes",
        "_offset_index",
        "_older",
        "_preallocated",
        "_recent",
        "_time_index",
        "_txn_index",
        "base_offset",
        "created_ms",
        "file",
        "first_timestamp",
        "index_full",
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
        self.file = SegmentFile(path, make=make)
        self._fd = self.file.fd
        self.base_offset = base_offset
        self.size = os.stat(path).st_size
        self._index_max_bytes = index_max_bytes
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._txn_index: TransactionIndex | None = None
        self._preallocated = preallocate_bytes > 0 and self.size == 0
        if self._preallocated:
            os.ftruncate(self.fd, preallocate_bytes)
        self.roll_jitter_ms = roll_jitter_ms
        self.created_ms = now_ms
        self.first_timestamp = -1
        """The first batch's highest timestamp, from which rolling by time counts; -1 for none."""
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset
        self.index_full = False
        """No room for another index entry: time to roll."""
        self.index_is_suspect = False
        """An entry pointed to what is no batch: see `index_rebuilding`."""
        self.index_interval_bytes = index_interval_bytes
        self._bytes_since_index = 0
        # Where recently appended batches begin, in two generations: readers at the tail and the
        # high watermark ask for just these, and need no scan.
        self._recent = _NO_BATCHES
        self._older = _NO_BATCHES

    # --- its files -------------------------------------------------------------------------------

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
        if position and not self._may_begin(pread(self.fd, _LOCATE.size, position), offset):
            return 0
        return position

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
        is_told = position > 0
        end = self.size
        while position < end or is_told:
            window = pread(self.fd, max(min(_SCAN_WINDOW_BYTES, end - position), 0), position)
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
        self.max_timestamp, self.max_timestamp_offset = self.time_index.last()
        for _, header in self.headers(self.offset_index.lookup(self.max_timestamp_offset)):
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp = header.max_timestamp
                self.max_timestamp_offset = header.last_offset

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
