"""Cleans a log's segments: builds the map of last offsets, then rewrites the segments (Kafka's Cleaner).

Called by `worker` in its own process; blocking. Reads the files by name, writes `.cleaned` files beside them,
and reports each finished segment to the caller, which replaces the source segments before the cleaning
continues.

Invariants: batches are used only with a correct checksum; a reported segment is on disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from ottla.ports.files import Files, opened, unlink_if_exists
from ottla.protocol.compression import Buffer
from ottla.protocol.record_scan import iter_keys
from ottla.protocol.records import (
    BATCH_HEADER,
    CONTROL_FLAG,
    CRC_START,
    INT32_MAX,
    MAGIC_V2,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
)
from ottla.storage.cleaner.batch_filter import (
    BatchFilter,
    CleanedTransactionMetadata,
    Counts,
    LastOfProducer,
    records_of,
)
from ottla.storage.cleaner.messages import Job
from ottla.storage.cleaner.offset_map import OffsetMap
from ottla.storage.cleaner.planning import SourceSegment, group_segments
from ottla.storage.indexes import AbortedTransaction, CorruptIndex
from ottla.storage.log_segment import LogSegment
from ottla.storage.segment_files import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_name,
)

_SYNC_BYTES = 16 << 20
"""The output is synced after so many bytes: a larger fsync would delay other users of the disk."""

Moved = Callable[[int], None]
"""Called with the number of bytes read or written; may wait, or raise to end the cleaning."""


class LogCleaningError(Exception):
    """A log cannot be cleaned; the message says where and why."""


class MappedRange(NamedTuple):
    """The range of offsets in the map."""

    end_offset: int
    """All dirty records before it are in the map."""
    bytes_read: int


def build_map(files: Files, job: Job, offsets: OffsetMap, moved: Moved) -> MappedRange:
    """Fill the map from the dirty segments, up to its load factor. Raises OSError, LogCleaningError,
    KafkaError."""
    offsets.clear()
    entries_max = int(offsets.slots * job.load_factor)
    if entries_max < 1:
        raise LogCleaningError(
            f"{offsets.slots} entries at a load of {job.load_factor} have no room for a key"
        )
    transactions = CleanedTransactionMetadata(AbortedTransaction(*each) for each in job.aborted)
    bytes_read = 0
    sources = [SourceSegment(*each) for each in job.sources]
    for at, source in enumerate(sources):
        next_base = sources[at + 1].base_offset if at + 1 < len(sources) else job.upper_bound
        if next_base <= job.first_dirty:
            continue
        for header, batch in _batches(files, job, source, job.first_dirty, moved):
            bytes_read += header.size
            if header.attributes & CONTROL_FLAG:
                transactions.can_discard_marker(header, batch)
            elif not transactions.is_aborted(header) and not _put_all(
                job, offsets, entries_max, header, batch
            ):
                return MappedRange(offsets.latest_offset + 1, bytes_read)
            if header.last_offset >= job.first_dirty:
                offsets.latest_offset = header.last_offset
        # The segment may end in a gap.
        offsets.latest_offset = next_base - 1
    return MappedRange(offsets.latest_offset + 1, bytes_read)


def _put_all(job: Job, offsets: OffsetMap, entries_max: int, header: BatchHeader, batch: memoryview) -> bool:
    """Add a batch's keys. Returns False if the map is full."""
    put = offsets.put
    base_offset, first_dirty = header.base_offset, job.first_dirty
    for key, delta in iter_keys(records_of(header, batch), header.record_count):
        if key is None or base_offset + delta < first_dirty:
            continue
        if offsets.size >= entries_max:
            return False
        put(key, base_offset + delta)
    return True


def clean(
    files: Files,
    job: Job,
    offsets: OffsetMap,
    end_offset: int,
    moved: Moved,
    finished: Callable[[list[int], int], None],
) -> Counts:
    """Rewrite the segments below `end_offset` with the map of `build_map`. Returns the counts.

    `finished` is called with the base offsets of the segments that a synced `.cleaned` segment replaces, and
    its size. Raises OSError, LogCleaningError, KafkaError.
    """
    kept_aborts: list[AbortedTransaction] = []
    transactions = CleanedTransactionMetadata(
        (AbortedTransaction(*each) for each in job.aborted), kept_aborts.append
    )
    batch_filter = BatchFilter(
        offsets,
        transactions,
        {producer_id: LastOfProducer(offset, epoch) for producer_id, offset, epoch in job.producers},
        now_ms=job.now_ms,
        delete_retention_ms=job.delete_retention_ms,
        upper_bound=job.upper_bound,
    )
    for group in group_segments(
        [SourceSegment(*each) for each in job.sources if each[0] < end_offset],
        segment_bytes=job.segment_bytes,
        index_bytes=job.index_bytes,
        end_offset=job.upper_bound,
    ):
        destination = _Destination(files, job, group[0].base_offset, moved)
        for source in group:
            for header, batch in _batches(files, job, source, -1, moved):
                kept = batch_filter.filter(header, batch)
                if kept is not None:
                    destination.append(*kept)
                while kept_aborts:
                    destination.segment.txn_index.append(kept_aborts.pop(0))
        destination.finish(_log_path(job, group[-1].base_offset))
        finished([source.base_offset for source in group], destination.segment.size)
    return batch_filter.counts


def remove_cleaned(files: Files, directory: Path, base_offset: int) -> None:
    """Remove the `.cleaned` files of a stopped job."""
    for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
        unlink_if_exists(files, directory / (segment_name(base_offset) + suffix + CLEANED_SUFFIX))


class _Destination:
    """The `.cleaned` segment of a group of source segments."""

    def __init__(self, files: Files, job: Job, base_offset: int, moved: Moved) -> None:
        directory = Path(job.directory)
        remove_cleaned(files, directory, base_offset)
        self.segment = LogSegment(
            files,
            directory,
            base_offset,
            index_interval_bytes=job.index_interval_bytes,
            index_max_bytes=job.index_bytes,
            now_ms=job.now_ms,
            suffix=CLEANED_SUFFIX,
        )
        self._files = files
        self._buffer_bytes = job.buffer_bytes // 2
        self._moved = moved
        self._headers: list[BatchHeader] = []
        self._parts: list[Buffer] = []
        self._buffered = 0
        self._unsynced = 0

    def append(self, header: BatchHeader, batch: Buffer) -> None:
        if self.segment.size + self._buffered + len(batch) > INT32_MAX:
            raise LogCleaningError(f"{self.segment.file.path} grows beyond 2 GiB")
        self._headers.append(header)
        self._parts.append(batch)
        self._buffered += len(batch)
        if self._buffered >= self._buffer_bytes:
            self._write()

    def _write(self) -> None:
        segment = self.segment
        data = memoryview(b"".join(self._parts))
        segment.write(data)
        for header in self._headers:
            segment.register_batch(header.size, header.base_offset, header.last_offset, header.max_timestamp)
        self._unsynced += len(data)
        if self._unsynced >= _SYNC_BYTES:
            self._files.fdatasync(segment.fd)
            self._unsynced = 0
        self._headers.clear()
        self._parts.clear()
        self._buffered = 0
        self._moved(len(data))

    def finish(self, last_source: Path) -> None:
        """Complete the segment, and give it the modification time of its last source."""
        self._write()
        self.segment.seal()
        self.segment.sync()
        self._files.set_mtime(self.segment.fd, self._files.stat(last_source).mtime_ns)


def _batches(
    files: Files, job: Job, source: SourceSegment, from_offset: int, moved: Moved
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Headers and bytes of a segment's batches that end at or after `from_offset`."""
    path = _log_path(job, source.base_offset)
    chunk_bytes = max(job.buffer_bytes // 2, RECORD_BATCH_OVERHEAD)
    with opened(files, path) as fd:
        files.advise_sequential(fd, source.size)
        position = _indexed_position(files, job, source, from_offset)
        while position < source.size:
            chunk = memoryview(files.pread(fd, min(chunk_bytes, source.size - position), position))
            at = 0
            while at + RECORD_BATCH_OVERHEAD <= len(chunk):
                header = BatchHeader(*BATCH_HEADER.unpack_from(chunk, at))
                end = at + header.size
                if header.magic != MAGIC_V2 or header.size < RECORD_BATCH_OVERHEAD:
                    raise LogCleaningError(f"{path}: no batch at {position + at}")
                if end > len(chunk):
                    break
                if crc32c(chunk[at + CRC_START : end]) != header.crc:
                    raise LogCleaningError(f"{path}: the checksum of the batch at {position + at} is wrong")
                if header.last_offset >= from_offset:
                    yield header, chunk[at:end]
                at = end
            moved(at)
            position += at
            if at == 0:
                chunk_bytes = _next_size(path, chunk, position, source.size)
            else:
                chunk_bytes = max(job.buffer_bytes // 2, RECORD_BATCH_OVERHEAD)


def _next_size(path: Path, chunk: memoryview, position: int, end: int) -> int:
    """The size of the batch at `position`, of which `chunk` holds a part."""
    size = 0
    if len(chunk) >= RECORD_BATCH_OVERHEAD:
        size = BatchHeader(*BATCH_HEADER.unpack_from(chunk)).size
    if not len(chunk) < size <= end - position:
        raise LogCleaningError(f"{path}: no whole batch at {position} of {end}")
    return size


def _indexed_position(files: Files, job: Job, source: SourceSegment, from_offset: int) -> int:
    if from_offset <= source.base_offset:
        return 0
    segment = LogSegment(
        files,
        job.directory,
        source.base_offset,
        index_interval_bytes=job.index_interval_bytes,
        index_max_bytes=job.index_bytes,
        now_ms=job.now_ms,
        create=False,
    )
    with contextlib.suppress(CorruptIndex):
        segment.offset_index.attach()
        return segment.scan_start(from_offset)
    return 0


def _log_path(job: Job, base_offset: int) -> Path:
    return Path(job.directory) / (segment_name(base_offset) + LOG_SUFFIX)
