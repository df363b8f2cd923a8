"""Opening a log's directory: which segments there are, and what of them can be trusted.

Called by `Log.open`. After a clean shutdown the files are taken at their word, checked lightly.
After a crash every segment from the one that holds the recovery point on is verified: batches one
after another, CRC-32C included; the first that fails ends the log, whatever follows it is removed,
and the indexes are made anew. So also for a segment whose index is missing or cannot be right.

Invariant on return: at least one segment, ordered by base offset, the last of which ends in a whole
batch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from crc32c import crc32c

from ottla.protocol.records import (
    BATCH_HEADER,
    CRC_START,
    LOG_OVERHEAD,
    MAGIC_V2,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
)
from ottla.storage.indexes import CorruptIndex
from ottla.storage.log_config import LogConfig
from ottla.storage.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
)

logger = logging.getLogger(__name__)

_READ_CHUNK_BYTES = 1024 * 1024


class UnfinishedSwap(Exception):
    """Compaction's swap files of a crashed broker, which this version cannot finish."""


class OldFormat(Exception):
    """A segment of message format v0 or v1, which this version does not store."""


def load_segments(
    directory: Path,
    config: LogConfig,
    *,
    recovery_point: int,
    log_start_offset: int,
    clean_shutdown: bool,
    now_ms: int,
) -> tuple[list[Segment], int]:
    """The segments, recovered as needed, and the log end offset.

    Raises OSError, UnfinishedSwap when a crash interrupted the swap of compacted segments, and
    OldFormat.
    """
    _remove_leftovers(directory)
    bases = sorted(int(path.stem) for path in directory.glob(f"*{LOG_SUFFIX}") if path.stem.isdigit())
    segments: list[Segment] = []
    end_offset = log_start_offset
    for at, base_offset in enumerate(bases):
        segment = open_segment(directory, base_offset, config, now_ms)
        is_last = at == len(bases) - 1
        next_base = bases[at + 1] if not is_last else None
        suspect = not clean_shutdown and (next_base is None or next_base > recovery_point)
        intact = True
        if suspect or not _attach(segment, is_last=is_last):
            logger.info("verifying %s", segment.file.path)
            intact, end_offset = recover(segment)
        elif is_last:
            intact, end_offset = _find_end(segment)
        segments.append(segment)
        if not intact:
            for damaged in bases[at + 1 :]:
                logger.warning("removing segment %d of %s: it follows a damaged one", damaged, directory)
                open_segment(directory, damaged, config, now_ms).remove_files()
            break
    if segments and end_offset < log_start_offset:
        logger.warning(
            "%s ends at %d, below its start offset %d: starting it anew there",
            directory,
            end_offset,
            log_start_offset,
        )
        for segment in segments:
            segment.remove_files()
        segments = []
        end_offset = log_start_offset
    if not segments:
        segments = [open_segment(directory, end_offset, config, now_ms)]
    return segments, end_offset


def open_segment(directory: Path, base_offset: int, config: LogConfig, now_ms: int) -> Segment:
    """The segment that begins at `base_offset`, its file made if there is none."""
    return Segment(
        directory,
        base_offset,
        index_interval_bytes=config.index_interval_bytes,
        index_max_bytes=config.segment_index_bytes,
        now_ms=now_ms,
    )


def recover(segment: Segment) -> tuple[bool, int]:
    """Verify every batch, rebuild the indexes, cut the file after the last good batch.

    Returns whether nothing had to be cut, and the offset after the last batch.
    """
    size_found = segment.size
    segment.offset_index.reset()
    segment.time_index.reset()
    segment.size = 0
    end_offset = segment.base_offset
    for header in _verified_batches(segment, size_found):
        if header.base_offset < end_offset:
            logger.warning("%s: offset %d after %d", segment.file.path, header.base_offset, end_offset - 1)
            break
        segment.note_batch(header.size, header.base_offset, header.last_offset, header.max_timestamp)
        end_offset = header.next_offset
    intact = segment.size == size_found
    if not intact:
        logger.warning(
            "%s: dropping %d bytes after offset %d, which are no valid batches",
            segment.file.path,
            size_found - segment.size,
            end_offset - 1,
        )
        os.ftruncate(segment.fd, segment.size)
    segment.seal()
    segment.sync()
    return intact, end_offset


def _verified_batches(segment: Segment, end: int) -> Iterator[BatchHeader]:
    """Headers of the batches from the start on whose checksums match, until one does not."""
    position = 0
    chunk = b""
    at = 0
    while position + RECORD_BATCH_OVERHEAD <= end:
        if at + RECORD_BATCH_OVERHEAD > len(chunk):
            chunk, at = os.pread(segment.fd, _READ_CHUNK_BYTES, position), 0
        header = BatchHeader(*BATCH_HEADER.unpack_from(chunk, at))
        size = header.size
        if position == 0 and header.magic in (0, 1) and size > LOG_OVERHEAD:
            raise OldFormat(
                f"{segment.file.path} holds messages of format v{header.magic}, from before Kafka 0.11: "
                "rewrite the topic with a newer Kafka before it moves here"
            )
        if size < RECORD_BATCH_OVERHEAD or header.magic != MAGIC_V2 or position + size > end:
            return
        if header.last_offset_delta < 0:
            return
        if at + size > len(chunk):
            chunk, at = os.pread(segment.fd, max(size, _READ_CHUNK_BYTES), position), 0
        if len(chunk) - at < size or crc32c(memoryview(chunk)[at + CRC_START : at + size]) != header.crc:
            return
        yield header
        position += size
        at += size


def _attach(segment: Segment, *, is_last: bool) -> bool:
    """Take over the segment's indexes as they are; False when they must be rebuilt."""
    try:
        last_position = segment.offset_index.attach()
        last_time = segment.time_index.attach()
    except CorruptIndex as problem:
        logger.warning("rebuilding an index: %s", problem)
        return False
    if last_position is not None and last_position[1] >= segment.size:
        logger.warning("rebuilding %s: it points beyond the log's end", segment.offset_index.path)
        return False
    segment.index_full = segment.offset_index.is_full or segment.time_index.is_full
    if last_time is not None:
        segment.max_timestamp = last_time[0]
        segment.max_timestamp_offset = segment.base_offset + last_time[1]
    if is_last:
        segment.load_timestamps()
    return True


def _find_end(segment: Segment) -> tuple[bool, int]:
    """The offset after the last batch, from the last index entry on; verifies all if that fails."""
    end_offset = segment.base_offset
    position = segment.offset_index.lookup(2**31 - 1 + segment.base_offset)
    for at, header in segment.headers(position):
        end_offset = header.next_offset
        position = at + header.size
    if position != segment.size:
        logger.warning("%s does not end in a whole batch", segment.file.path)
        return recover(segment)
    return True, end_offset


def _remove_leftovers(directory: Path) -> None:
    swaps = sorted(path.name for path in directory.glob("*.swap"))
    if swaps:
        raise UnfinishedSwap(
            f"{directory} holds {', '.join(swaps)}: a broker died while it swapped compacted segments in. "
            "Start Apache Kafka on it once to finish that, or remove this replica's directory."
        )
    for path in directory.iterdir():
        orphan = path.suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX) and not (
            path.with_suffix(LOG_SUFFIX).exists()
        )
        if orphan or path.suffix in (DELETED_SUFFIX, ".cleaned", ".tmp"):
            path.unlink()
