"""One segment of a log: the `.log` file with its offset, time and transaction indexes (Kafka's LogSegment).

Owned by `LogSegments`; `Log` serialises writers. The log file is opened and the indexes are created on first
use: most of a broker's thousands of logs are idle and hold neither descriptors nor indexes.

Invariants: `size` is the number of bytes that hold whole batches (a preallocated file is longer until the
segment is sealed). A file that is not open has the name that is known here; `load` opens all files before
they are renamed.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path

from ottla.ports.files import Files, sync_path, unlink_if_exists, write_all
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import (
    BATCH_HEADER,
    HEAD_BYTES,
    LOG_OVERHEAD,
    MAGIC_V2,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
)
from ottla.storage.indexes import OffsetIndex, TimeIndex, TransactionIndex
from ottla.storage.nonblocking_reads import pread
from ottla.storage.segment_files import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    FileSlice,
    SegmentFile,
    segment_name,
)

_SCAN_WINDOW_BYTES = 8 * 1024
_BATCH_LENGTH_MIN = 14
"""The smallest length field of a batch, in the oldest format. Kafka treats smaller ones as corrupt."""
_RECENT_BATCHES_MAX = 256
# Base offset, batch length and last offset delta: the header fields that a search for an offset reads.
_LOCATE = struct.Struct(">qi11xi")
_MAGIC_POSITION = 16
# The first bytes of a batch: base offset, batch length, and the leader epoch that the leader assigns.
HEAD = struct.Struct(">qii")
_NO_BATCHES: dict[int, int] = {}
"""Shared by segments without recent batches; never changed."""
assert HEAD.size == HEAD_BYTES


class LogSegment:
    """Appends to, searches and truncates one segment. Times are milliseconds."""

    __slots__ = (
        "_bytes_since_index",
        "_fd",
        "_index_max_bytes",
        "_offset_index",
        "_older_positions",
        "_preallocated",
        "_recent_positions",
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
        files: Files,
        directory: str | Path,
        base_offset: int,
        *,
        index_interval_bytes: int,
        index_max_bytes: int,
        now_ms: int,
        roll_jitter_ms: int = 0,
        preallocate_bytes: int = 0,
        suffix: str = "",
        create: bool = True,
    ) -> None:
        """With `create`, open the log file, or create it with `preallocate_bytes` allocated (preallocate).
        Without, the file must exist. `roll_jitter_ms` is subtracted from the age at which the segment is
        rolled (segment.jitter.ms). File names end in `suffix`. Raises OSError."""
        path = f"{directory}/{segment_name(base_offset)}{LOG_SUFFIX}{suffix}"
        self.file = SegmentFile(files, path, create=create)
        self._fd = self.file.fd
        self.base_offset = base_offset
        self.index_full = False
        """An index has no free entry left: the segment must be rolled."""
        self._index_max_bytes = index_max_bytes
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._txn_index: TransactionIndex | None = None
        self.size = files.stat(path).size
        self._preallocated = preallocate_bytes > 0 and self.size == 0
        if self._preallocated:
            files.ftruncate(self.fd, preallocate_bytes)
        self.roll_jitter_ms = roll_jitter_ms
        self.created_ms = now_ms
        self.first_timestamp = -1
        """The first batch's max timestamp, from which the segment's age counts; -1 for an empty segment."""
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset
        self.index_is_suspect: bool | None = False
        """Whether an index entry contradicted the log, so that the indexes must be rebuilt
        (`index_recovery`). None: the last time index entry, loaded at startup, is not verified yet."""
        self.index_interval_bytes = index_interval_bytes
        self._bytes_since_index = 0
        # Positions of recently appended batches by base offset, in two generations. Consumers at the log's
        # end and the high watermark look up exactly these, without a scan.
        self._recent_positions = _NO_BATCHES
        self._older_positions = _NO_BATCHES

    @property
    def fd(self) -> int:
        """The log file's descriptor, opened on first use. Raises OSError."""
        fd = self._fd
        if fd < 0:
            fd = self._fd = self.file.open()
        return fd

    def close_file(self) -> None:
        """Close the log file until its next use. The caller must rule out concurrent readers."""
        self._fd = -1
        self.file.close()

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
        """Write one batch, the bytes `head` and `rest`. Raises OSError and then leaves no part of it."""
        position = self.size
        fd = self._fd
        if fd < 0:
            fd = self.fd
        written = self.file.files.pwritev(fd, (head, rest), position)
        if written != size:
            self._write_remainder(b"".join((head, rest)), written, position)
        self.register_batch(size, first_offset, last_offset, max_timestamp)

    def write(self, data: memoryview) -> None:
        """Write whole batches unchanged. The caller calls `register_batch` for each afterwards."""
        written = self.file.files.pwrite(self.fd, data, self.size)
        if written != len(data):
            self._write_remainder(data, written, self.size)

    def register_batch(self, size: int, first_offset: int, last_offset: int, max_timestamp: int) -> None:
        """Add a batch that was written at `self.size` to the size, the timestamps and the indexes."""
        position = self.size
        recent = self._recent_positions
        if not 0 < len(recent) < _RECENT_BATCHES_MAX:
            self._older_positions = recent
            self._recent_positions = recent = {}
        recent[first_offset] = position
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if position == 0:
            self.first_timestamp = max_timestamp
        if self._bytes_since_index > self.index_interval_bytes:
            offsets_are_full = self.offset_index.append(last_offset, position)
            times_are_full = self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset)
            self.index_full = offsets_are_full or times_are_full
            self._bytes_since_index = size
        else:
            self._bytes_since_index += size
        self.size = position + size

    def _write_remainder(self, data: bytes | memoryview, written: int, position: int) -> None:
        try:
            write_all(self.file.files, self.fd, memoryview(data)[written:], position + written)
        except OSError:
            self.file.files.ftruncate(self.fd, position)
            raise

    # --- searching -------------------------------------------------------------------------------

    def position_of(self, offset: int) -> int:
        """The position of the first batch that ends at or after `offset`; `size` if there is none. Raises
        CORRUPT_MESSAGE if the scan meets bytes that are not a batch."""
        position = self._recent_positions.get(offset)
        if position is None:
            position = self._older_positions.get(offset)
            if position is None:
                position = self._scan_for(offset)
        return position

    def scan_start(self, offset: int) -> int:
        """The position, from the offset index, of a batch at or before the one that holds `offset`; 0 if the
        index entry contradicts the log."""
        position = self.offset_index.lookup(offset)
        if position and not self._is_batch_before(self._head_at(position), offset):
            return 0
        return position

    def offset_after(self, position: int) -> int | None:
        """The offset of the first index entry at or after `position`, which is the start of a batch."""
        entry = self.offset_index.first_entry_from(position)
        if entry is None or not self._is_batch_before(self._head_at(entry[1]), entry[0]):
            return None
        return entry[0]

    def header_at(self, offset: int) -> BatchHeader | None:
        """The header of the first batch that ends at or after `offset`."""
        for _, header in self.headers(self.scan_start(offset)):
            if header.last_offset >= offset:
                return header
        return None

    def has_timestamp(self, timestamp: int, offset: int) -> bool:
        """Whether `timestamp` is the max timestamp of the batch that holds `offset`: verifies a time index
        entry."""
        header = self.header_at(offset)
        return header is not None and header.base_offset <= offset and header.max_timestamp == timestamp

    def _head_at(self, position: int) -> bytes | bytearray:
        return pread(self.file.files, self.fd, _LOCATE.size, position) if position >= 0 else b""

    def _is_batch_before(self, head: bytes | bytearray, offset: int) -> bool:
        """Whether `head` begins a batch at or before `offset`. If not, the index is marked as suspect."""
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
        is_from_index = position != 0
        end = self.size
        while position < end or is_from_index:
            window: bytes | bytearray = b""
            if 0 <= position < end:
                window = pread(self.file.files, self.fd, min(_SCAN_WINDOW_BYTES, end - position), position)
            if is_from_index:
                is_from_index = False
                if not self._is_batch_before(window, offset):
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
        """The size in bytes that the header of the batch at `position` states. Raises CORRUPT_MESSAGE."""
        length = int.from_bytes(pread(self.file.files, self.fd, 4, position + 8), "big", signed=True)
        if length < _BATCH_LENGTH_MIN:
            raise self._corrupt(position, length)
        return LOG_OVERHEAD + length

    def headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of the batches from `position` on. Stops at the first incomplete batch."""
        return scan_headers(self.file.files, self.fd, position, self.size)

    def slice(self, position: int, length: int) -> FileSlice:
        if self._fd < 0:
            self._fd = self.file.open()
        return FileSlice(self.file, position, length)

    def read_batch(self, position: int) -> bytes:
        return bytes(pread(self.file.files, self.fd, self.batch_size_at(position), position))

    # --- truncating, sealing, syncing ------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Drop the batch that holds `offset` and all later ones."""
        position = self.position_of(offset)
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        self._recent_positions = self._older_positions = _NO_BATCHES
        self.file.files.ftruncate(self.fd, position)
        self._preallocated = False
        self.size = position
        self._bytes_since_index = 0
        self.index_full = False
        if self.max_timestamp_offset >= offset or self.first_timestamp < 0:
            self.load_timestamps()

    def load_timestamps(self) -> None:
        """Load the first and the max timestamp, from the time index's last entry and the batches after it."""
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
            self.scan_max_timestamp()
        else:
            self.max_timestamp, self.max_timestamp_offset = timestamp, offset
            self._raise_max_timestamp(self.scan_start(offset))

    def scan_max_timestamp(self) -> bool:
        """Find the max timestamp by a scan of the whole log. Returns whether all of it was readable."""
        self.max_timestamp, self.max_timestamp_offset = -1, self.base_offset
        return self._raise_max_timestamp(0) == self.size

    def _raise_max_timestamp(self, position: int) -> int:
        for at, header in self.headers(position):
            position = at + header.size
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp = header.max_timestamp
                self.max_timestamp_offset = header.last_offset
        return position

    def largest_timestamp(self) -> int:
        """The max timestamp; the file's modification time if the records have no timestamps."""
        if self.max_timestamp >= 0:
            return self.max_timestamp
        return self.modified_ms()

    def modified_ms(self) -> int:
        """The modification time of the log file. Raises OSError."""
        files = self.file.files
        status = files.stat(self.file.path_str) if self._fd < 0 else files.fstat(self._fd)
        return status.mtime_ns // 1_000_000

    def seal(self) -> None:
        """End appends: index the max timestamp, cut preallocated bytes, write the indexes. No fsync."""
        if self.max_timestamp >= 0:
            self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset, sealing=True)
        self._recent_positions = self._older_positions = _NO_BATCHES
        if self._preallocated:
            self.file.files.ftruncate(self.fd, self.size)
            self._preallocated = False
        self.write_indexes()

    def sync(self) -> None:
        """fsync the log file and the indexes."""
        self.file.files.fsync(self.fd)
        self.sync_indexes()
        if self._txn_index is not None:
            self._txn_index.sync()

    # --- indexes ---------------------------------------------------------------------------------

    @property
    def offset_index(self) -> OffsetIndex:
        index = self._offset_index
        if index is None:
            path = self._index_path(INDEX_SUFFIX)
            index = self._offset_index = OffsetIndex(
                self.file.files, path, self.base_offset, self._index_max_bytes
            )
        return index

    @property
    def time_index(self) -> TimeIndex:
        index = self._time_index
        if index is None:
            path = self._index_path(TIME_INDEX_SUFFIX)
            index = self._time_index = TimeIndex(
                self.file.files, path, self.base_offset, self._index_max_bytes
            )
        return index

    @property
    def txn_index(self) -> TransactionIndex:
        index = self._txn_index
        if index is None:
            index = self._txn_index = TransactionIndex(
                self.file.files, self._index_path(TXN_INDEX_SUFFIX), self.base_offset
            )
        return index

    def _index_path(self, suffix: str) -> str:
        head, _, tail = self.file.path_str.rpartition(LOG_SUFFIX)
        return f"{head}{suffix}{tail}"

    @property
    def has_aborted_transactions(self) -> bool:
        """Whether the attached transaction index has entries."""
        return self._txn_index is not None

    def attach_indexes(self) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        """Use the existing index files. Returns the last entries of the offset and the time index. Raises
        CorruptIndex, OSError."""
        offsets, times = self.offset_index, self.time_index
        last = offsets.attach(), times.attach()
        self.txn_index.check()
        self.index_full = offsets.is_full or times.is_full
        self._release_empty_indexes()
        return last

    def reset_indexes(self) -> None:
        """Empty the indexes, in memory and on disk. Raises OSError.

        The offset index has no file until the indexes are written again: one that is missing is rebuilt at
        the next start, if this one fails meanwhile.
        """
        files = self.file.files
        if files.exists(self.offset_index.path):
            files.unlink(self.offset_index.path)
            sync_path(files, self.offset_index.path.parent)
        for index in (self.offset_index, self.time_index, self.txn_index):
            index.reset()
        self._release_empty_indexes()

    def _release_empty_indexes(self) -> None:
        if not self._offset_index:
            self._offset_index = None
        if not self._time_index:
            self._time_index = None
        if not self._txn_index:
            self._txn_index = None

    def replace_indexes(self, offsets: OffsetIndex, times: TimeIndex) -> None:
        self._offset_index, self._time_index = offsets, times

    def write_indexes(self) -> None:
        """Write the offset and the time index. No fsync."""
        self.offset_index.write()
        self.time_index.write()

    def sync_indexes(self) -> None:
        """Write and fsync the offset and the time index."""
        self.offset_index.flush()
        self.time_index.flush()

    # --- renaming and deleting files -------------------------------------------------------------

    def load(self) -> None:
        """Open the log and read the indexes, before the files are renamed: a reader may have found this
        segment a moment ago."""
        with contextlib.suppress(FileNotFoundError):
            self._fd = self.file.open()
        self.offset_index.lookup(self.base_offset)
        self.time_index.last()
        self.txn_index.load()

    def rename_deleted(self, *, with_snapshot: bool = True) -> list[Path]:
        """Rename the files to `.deleted`, which frees their names. Returns the new paths, for the caller to
        unlink later.

        Readers that hold slices read on. The log file is renamed last: a crash in between leaves a log
        without indexes, which are rebuilt, and never indexes without a log."""
        self.load()
        renamed: list[Path] = []
        for path in self._paths():
            if path.suffix == SNAPSHOT_SUFFIX and not with_snapshot:
                continue
            deleted = path.with_name(path.name + DELETED_SUFFIX)
            with contextlib.suppress(FileNotFoundError):
                self.file.files.rename(path, deleted)
                renamed.append(deleted)
        return renamed

    def change_file_suffixes(self, suffix: str) -> None:
        """Replace the cleaner's suffix (`.cleaned` or `.swap`) of all files by `suffix`, which may be empty.
        The log file is renamed first: while any file has the old suffix, the set counts as incomplete."""
        for part in (self.file, self.offset_index, self.time_index, self.txn_index):
            name = part.path.name.removesuffix(CLEANED_SUFFIX).removesuffix(SWAP_SUFFIX) + suffix
            target = part.path.with_name(name)
            if part is not self.txn_index or len(self.txn_index):
                self.file.files.rename(part.path, target)
            part.set_path(target)

    def update_parent_dir(self, directory: Path) -> None:
        """The log's directory was renamed to `directory`."""
        for part in (self.file, self._offset_index, self._time_index, self._txn_index):
            if part is not None:
                part.set_path(directory / part.path.name)

    def remove_files(self) -> None:
        """Unlink the files now. The caller must rule out that another log uses the directory's name."""
        for path in self._paths():
            unlink_if_exists(self.file.files, path)

    def _paths(self) -> list[Path]:
        log = self.file.path
        return [
            log.with_suffix(INDEX_SUFFIX),
            log.with_suffix(TIME_INDEX_SUFFIX),
            log.with_suffix(TXN_INDEX_SUFFIX),
            log.with_suffix(SNAPSHOT_SUFFIX),
            log,
        ]


def scan_headers(files: Files, fd: int, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of consecutive v2 batches in [position, end); reads headers only.

    Stops silently at the first bytes that are no whole v2 batch. Callers compare the position after the last
    batch with `end` where that matters.
    """
    unpack = BATCH_HEADER.unpack_from
    size = 0
    while position + RECORD_BATCH_OVERHEAD <= end:
        # After a large batch, read one header only: the next batch is probably large, too.
        wanted = RECORD_BATCH_OVERHEAD if size > _SCAN_WINDOW_BYTES // 2 else _SCAN_WINDOW_BYTES
        window = pread(files, fd, min(wanted, end - position), position)
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
