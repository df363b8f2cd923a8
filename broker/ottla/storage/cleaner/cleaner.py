"""Cleans a log's segments: builds the map of last offsets, then rewrites the segments (Kafka's Cleaner).

`clean_log` is a job of a worker process (`ottla.ports.workers`), submitted by `ottla.server.logs`. It reads
the files by name and writes `.cleaned` files beside them; it may be killed at any time. Its steps are numbers
of bytes that were read and written, after which it waits as long as the throttle demands, and each finished
segment (`Cleaned`), after which it waits until the source segments have been replaced.

Invariants: batches are used only with a correct checksum; a reported segment is on disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

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
from ottla.storage.cleaner.offset_map import ENTRY_BYTES, OffsetMap
from ottla.storage.cleaner.planning import Job, SourceSegment, group_segments
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


class Cleaned(NamedTuple):
    """The `.cleaned` files with `size` bytes of log can replace the segments with these base offsets."""

    bases: list[int]
    size: int


Step: TypeAlias = int | Cleaned
"""A step of a cleaning: bytes that were read and written, or a cleaned segment."""


class Done(NamedTuple):
    """The log is cleaned before `end_offset`."""

    end_offset: int
    counts: Counts
    map_utilization: float


class LogCleaningError(Exception):
    """A log cannot be cleaned; the message says where and why."""


def clean_log(files: Files, job: Job) -> Generator[Step, None, Done]:
    """See the module. Raises OSError, LogCleaningError, KafkaError."""
    offsets = OffsetMap(map_bytes(job))
    end_offset = yield from build_map(files, job, offsets)
    counts = yield from clean(files, job, offsets, end_offset)
    return Done(end_offset, counts, offsets.size * ENTRY_BYTES / job.map_bytes)


def map_bytes(job: Job) -> int:
    """The size of the map: as configured, but not larger than needed, as its entries soon touch each of its
    pages."""
    if job.load_factor <= 0:
        return job.map_bytes
    records_max = job.upper_bound - job.first_dirty
    return min(job.map_bytes, ENTRY_BYTES * (int(records_max / job.load_factor) + 2))


def build_map(files: Files, job: Job, offsets: OffsetMap) -> Generator[int, None, int]:
    """Fill the map from the dirty segments, up to its load factor. Returns the end of the mapped range: all
    dirty records before it are in the map. Raises OSError, LogCleaningError, KafkaError."""
    offsets.clear()
    entries_max = int(offsets.slots * job.load_factor)
    if entries_max < 1:
        raise LogCleaningError(
            f"{offsets.slots} entries at a load of {job.load_factor} have no room for a key"
        )
    transactions = CleanedTransactionMetadata(job.aborted)
    sources = job.sources
    for at, source in enumerate(sources):
        next_base = sources[at + 1].base_offset if at + 1 < len(sources) else job.upper_bound
        if next_base <= job.first_dirty:
            continue
        for chunk_bytes, batches in _chunks(files, job, source, job.first_dirty):
            for header, batch in batches:
                if header.attributes & CONTROL_FLAG:
                    transactions.can_discard_marker(header, batch)
                elif not transactions.is_aborted(header) and not _put_all(
                    job, offsets, entries_max, header, batch
                ):
                    return offsets.latest_offset + 1
                if header.last_offset >= job.first_dirty:
                    offsets.latest_offset = header.last_offset
            yield chunk_bytes
        # The segment may end in a gap.
        offsets.latest_offset = next_base - 1
    return offsets.latest_offset + 1


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


def clean(files: Files, job: Job, offsets: OffsetMap, end_offset: int) -> Generator[Step, None, Counts]:
    """Rewrite the segments below `end_offset` with the map of `build_map`. Returns the counts. Raises
    OSError, LogCleaningError, KafkaError."""
    kept_aborts: list[AbortedTransaction] = []
    transactions = CleanedTransactionMetadata(job.aborted, kept_aborts.append)
    batch_filter = BatchFilter(
        offsets,
        transactions,
        {producer_id: LastOfProducer(offset, epoch) for producer_id, offset, epoch in job.producers},
        now_ms=job.now_ms,
        delete_retention_ms=job.delete_retention_ms,
        upper_bound=job.upper_bound,
    )
    for group in group_segments(
        [source for source in job.sources if source.base_offset < end_offset],
        segment_bytes=job.segment_bytes,
        index_bytes=job.index_bytes,
        end_offset=job.upper_bound,
    ):
        destination = _Destination(files, job, group[0].base_offset)
        for source in group:
            for chunk_bytes, batches in _chunks(files, job, source, -1):
                for header, batch in batches:
                    kept = batch_filter.filter(header, batch)
                    if kept is not None:
                        destination.append(*kept)
                    while kept_aborts:
                        destination.segment.txn_index.append(kept_aborts.pop(0))
                yield chunk_bytes + destination.take_written()
        destination.finish(_log_path(job, group[-1].base_offset))
        yield destination.take_written()
        yield Cleaned([source.base_offset for source in group], destination.segment.size)
    return batch_filter.counts


def remove_cleaned(files: Files, directory: Path, base_offset: int) -> None:
    """Remove the `.cleaned` files of a stopped job."""
    for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
        unlink_if_exists(files, directory / (segment_name(base_offset) + suffix + CLEANED_SUFFIX))


class _Destination:
    """The `.cleaned` segment of a group of source segments."""

    def __init__(self, files: Files, job: Job, base_offset: int) -> None:
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
        self._written = 0
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
        self._written += len(data)

    def take_written(self) -> int:
        """The bytes that were written since the last call."""
        written, self._written = self._written, 0
        return written

    def finish(self, last_source: Path) -> None:
        """Complete the segment, and give it the modification time of its last source."""
        self._write()
        self.segment.seal()
        self.segment.sync()
        self._files.set_mtime(self.segment.fd, self._files.stat(last_source).mtime_ns)


def _chunks(
    files: Files, job: Job, source: SourceSegment, from_offset: int
) -> Iterator[tuple[int, list[tuple[BatchHeader, memoryview]]]]:
    """A segment in pieces of about half of the buffer: their sizes, and headers and bytes of the batches that
    end at or after `from_offset`."""
    path = _log_path(job, source.base_offset)
    chunk_bytes = max(job.buffer_bytes // 2, RECORD_BATCH_OVERHEAD)
    with opened(files, path) as fd:
        files.advise_sequential(fd, source.size)
        position = _indexed_position(files, job, source, from_offset)
        while position < source.size:
            chunk = memoryview(files.pread(fd, min(chunk_bytes, source.size - position), position))
            batches = []
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
                    batches.append((header, chunk[at:end]))
                at = end
            yield at, batches
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
