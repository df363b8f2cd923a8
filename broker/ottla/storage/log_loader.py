"""Opens a log's directory: finds its segments, and recovers them where needed (Kafka's LogLoader).

Called by `Log.open`. After a clean shutdown the files are checked lightly. After a crash, every segment from
the one with the recovery point on is recovered: its batches are verified in order, with their CRC-32C. The
first invalid batch ends the log, and so does a segment that ends before the next one begins, unless the topic
is compacted: a power loss may take all of a segment, and leave its successor. All that follows is removed.
The indexes are rebuilt, the transaction
index with the state of the producers before the segment. The same is done for a segment with a missing or
invalid index.

Invariants on return: at least one segment, in the order of base offsets, the last of which ends in a whole
batch; the producer state includes all batches.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

from crc32c import crc32c

from ottla.ports.files import Files, opened, sync_path
from ottla.protocol.records import (
    BATCH_HEADER,
    CRC_START,
    LOG_OVERHEAD,
    MAGIC_V2,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
)
from ottla.storage.index_recovery import rebuild_indexes, verify_transaction_index
from ottla.storage.indexes import CorruptIndex
from ottla.storage.leader_epochs import LeaderEpochFileCache
from ottla.storage.log_config import INT64_MAX, LogConfig
from ottla.storage.log_segment import LogSegment, scan_headers
from ottla.storage.producer_state_manager import ProducerStateManager
from ottla.storage.segment_files import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)

logger = logging.getLogger(__name__)

_READ_CHUNK_BYTES = 1024 * 1024


class UnsupportedMessageFormat(Exception):
    """A segment has message format v0 or v1, which this version does not support."""


def load_segments(
    files: Files,
    directory: str,
    names: Sequence[str],
    config: LogConfig,
    producer_state: ProducerStateManager,
    leader_epochs: LeaderEpochFileCache,
    *,
    recovery_point: int | None,
    log_start_offset: int,
    clean_shutdown: bool,
    now_ms: int,
) -> tuple[list[LogSegment], int]:
    """Returns the segments, recovered where needed, and the log end offset. `names` are the files in the
    directory. Raises OSError, and UnsupportedMessageFormat.

    Between two segments beyond the recovery point there is no gap, unless a power loss took the end of the
    first one: then the second one goes, too, and what is missing is fetched from the leader. If the recovery
    point is unknown, a gap in a compacted log may be the cleaner's.
    """
    gaps_are_losses = recovery_point is not None or not config.compacts
    if any(name.endswith(SWAP_SUFFIX) for name in names):
        _finish_swaps(files, directory, names)
        names = files.listdir(directory)
    _remove_leftovers(files, directory, names)
    stems = (name.removesuffix(LOG_SUFFIX) for name in names if name.endswith(LOG_SUFFIX))
    bases = sorted(int(stem) for stem in stems if stem.isdigit())
    segments: list[LogSegment] = []
    end_offset = log_start_offset
    state_is_current = epochs_have_changed = False
    for at, base_offset in enumerate(bases):
        segment = open_segment(files, directory, base_offset, config, now_ms)
        is_last = at == len(bases) - 1
        next_base = bases[at + 1] if not is_last else None
        suspect = not clean_shutdown and (next_base is None or next_base > (recovery_point or 0))
        trusted_end = None if suspect else _attach(segment, segments, next_base)
        is_flushed_end = not clean_shutdown and next_base is not None and next_base == recovery_point
        if is_flushed_end and trusted_end is not None and not _ends_in_time_index(segment):
            trusted_end = None
        intact = True
        if trusted_end is None:
            if segment.size:
                logger.info("Recovering %s", segment.file.path)
            if not state_is_current:
                producer_state.rebuild(segments, log_start_offset, base_offset, sync=True)
            known_epochs = leader_epochs.entries()
            intact, end_offset = recover(segment, producer_state, leader_epochs, next_base)
            epochs_have_changed = epochs_have_changed or leader_epochs.entries() != known_epochs
            is_short = next_base is not None and max(end_offset, log_start_offset) < next_base
            if suspect and is_short and gaps_are_losses:
                logger.warning("%s ends at %d, before the next segment", segment.file.path, end_offset)
                intact = False
            # With the snapshot, this segment need not be read again if the next one is invalid.
            producer_state.take_snapshot(end_offset, log_start_offset, sync=True)
            state_is_current = True
        else:
            end_offset = trusted_end
            state_is_current = False
            if epochs_have_changed:
                # The recovery of an earlier segment has removed the epochs of this one.
                for _, header in segment.headers():
                    _set_epoch(leader_epochs, header)
        segments.append(segment)
        if not intact:
            for damaged in bases[at + 1 :]:
                logger.warning("Removing segment %d of %s: the one before is invalid", damaged, directory)
                open_segment(files, directory, damaged, config, now_ms).remove_files()
            break
    if segments and end_offset < log_start_offset:
        logger.warning(
            "%s ends at %d, before its log start offset %d: it restarts there, empty",
            directory,
            end_offset,
            log_start_offset,
        )
        for segment in segments:
            segment.remove_files()
        segments = []
        end_offset = log_start_offset
        leader_epochs.clear()
        producer_state.clear()
    if not segments:
        segments = [new_segment(files, directory, end_offset, config, now_ms)]
    log_start_offset = max(log_start_offset, segments[0].base_offset)
    producer_state.snapshots.remove_strays({segment.base_offset for segment in segments})
    if state_is_current:
        producer_state.snapshots.keep_within(log_start_offset, end_offset)
    else:
        producer_state.rebuild(segments, log_start_offset, end_offset, sync=True)
    leader_epochs.truncate_from_end(end_offset)
    if leader_epochs.epoch_at(log_start_offset) is None:
        _learn_epochs(segments, leader_epochs, log_start_offset)
        leader_epochs.write()
    for segment in segments:
        segment.close_file()
    return segments, end_offset


def open_segment(
    files: Files, directory: str, base_offset: int, config: LogConfig, now_ms: int
) -> LogSegment:
    """The existing segment that begins at `base_offset`."""
    return _segment(files, directory, base_offset, config, now_ms, preallocate_bytes=0, create=False)


def open_cleaned(files: Files, directory: str, base_offset: int, config: LogConfig) -> LogSegment:
    """The segment that the cleaner has written, with the suffix `.cleaned`. Raises OSError, CorruptIndex."""
    segment = _segment(
        files, directory, base_offset, config, 0, preallocate_bytes=0, suffix=CLEANED_SUFFIX, create=False
    )
    if _attach(segment, [], INT64_MAX) is None:
        raise CorruptIndex(f"{segment.file.path} and its indexes do not agree")
    return segment


def new_segment(files: Files, directory: str, base_offset: int, config: LogConfig, now_ms: int) -> LogSegment:
    """A new, empty segment that begins at `base_offset`."""
    preallocate_bytes = config.segment_bytes if config.preallocate else 0
    return _segment(files, directory, base_offset, config, now_ms, preallocate_bytes=preallocate_bytes)


def _segment(
    files: Files,
    directory: str,
    base_offset: int,
    config: LogConfig,
    now_ms: int,
    *,
    preallocate_bytes: int,
    suffix: str = "",
    create: bool = True,
) -> LogSegment:
    # The jitter is derived from the segment's name: evenly distributed, and the same after a restart.
    jitter_ms_max = min(config.segment_jitter_ms, config.segment_ms)
    name = f"{os.path.basename(directory)}/{base_offset}".encode()
    return LogSegment(
        files,
        directory,
        base_offset,
        index_interval_bytes=config.index_interval_bytes,
        index_max_bytes=config.segment_index_bytes,
        now_ms=now_ms,
        roll_jitter_ms=crc32c(name) % jitter_ms_max if jitter_ms_max > 0 else 0,
        preallocate_bytes=preallocate_bytes,
        suffix=suffix,
        create=create,
    )


def recover(
    segment: LogSegment,
    producer_state: ProducerStateManager,
    leader_epochs: LeaderEpochFileCache,
    next_base: int | None = None,
) -> tuple[bool, int]:
    """Verify every batch, rebuild the indexes, and truncate the file after the last valid batch.

    The producer state must include all earlier segments; this segment is added to it. The leader epochs
    become those of the batches. Batches from `next_base` on, where the next segment begins, had been
    truncated before a power loss: they are removed. Returns whether all other batches are valid, and the
    offset after the last one.
    """
    size_found = segment.size
    segment.reset_indexes()
    segment.index_is_suspect = False
    if not size_found:
        return True, segment.base_offset
    segment.size = 0
    end_offset = segment.base_offset
    reaches_next = False
    for header, batch in _verified_batches(segment, size_found):
        if next_base is not None and header.last_offset >= next_base:
            reaches_next = True
            break
        if header.base_offset < end_offset:
            logger.warning("%s: offset %d after %d", segment.file.path, header.base_offset, end_offset - 1)
            break
        segment.register_batch(header.size, header.base_offset, header.last_offset, header.max_timestamp)
        end_offset = header.next_offset
        if header.producer_id >= 0:
            producer_state.update(header, batch, segment)
        _set_epoch(leader_epochs, header)
    is_whole = segment.size == size_found
    if not is_whole:
        logger.warning(
            "%s: truncating %d bytes after offset %d, which are no valid batches of this segment",
            segment.file.path,
            size_found - segment.size,
            end_offset - 1,
        )
        segment.file.files.ftruncate(segment.fd, segment.size)
    segment.seal()
    if not is_whole:
        segment.sync()
    return is_whole or reaches_next, end_offset


def _set_epoch(leader_epochs: LeaderEpochFileCache, header: BatchHeader) -> None:
    """The epoch of a batch is that of its offset."""
    if leader_epochs.epoch_at(header.base_offset) != header.partition_leader_epoch:
        # The file may have the epoch of a leader without batches, which another one has replaced since.
        leader_epochs.truncate_from_end(header.base_offset)
        leader_epochs.assign(header.partition_leader_epoch, header.base_offset)


def _verified_batches(segment: LogSegment, end: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Headers and bytes of the batches, up to the first invalid one."""
    position = 0
    chunk = b""
    at = 0
    while position + RECORD_BATCH_OVERHEAD <= end:
        if at + RECORD_BATCH_OVERHEAD > len(chunk):
            chunk, at = segment.file.files.pread(segment.fd, _READ_CHUNK_BYTES, position), 0
        header = BatchHeader(*BATCH_HEADER.unpack_from(chunk, at))
        size = header.size
        if position == 0 and header.magic in (0, 1) and size > LOG_OVERHEAD:
            raise UnsupportedMessageFormat(
                f"{segment.file.path} holds messages of format v{header.magic}, from before Kafka 0.11: "
                "rewrite the topic with a newer Kafka before it moves here"
            )
        if size < RECORD_BATCH_OVERHEAD or header.magic != MAGIC_V2 or position + size > end:
            return
        if header.last_offset_delta < 0:
            return
        if at + size > len(chunk):
            chunk, at = segment.file.files.pread(segment.fd, max(size, _READ_CHUNK_BYTES), position), 0
        batch = memoryview(chunk)[at : at + size]
        if len(batch) < size or crc32c(batch[CRC_START:]) != header.crc:
            return
        yield header, batch
        position += size
        at += size


def _attach(segment: LogSegment, earlier: list[LogSegment], next_base: int | None) -> int | None:
    """Use the segment's index files. Returns None if the segment must be recovered, or its end offset if it
    is the last (no `next_base`), or any number otherwise.
    """
    try:
        last_position, last_time = segment.attach_indexes()
        if segment.has_aborted_transactions:
            verify_transaction_index([*earlier, segment], next_base)
    except CorruptIndex as problem:
        logger.warning("Rebuilding an index: %s", problem)
        return None
    if last_position is not None and last_position[1] >= segment.size:
        logger.warning("Rebuilding %s: it points beyond the log's end", segment.offset_index.path)
        return None
    if last_time is not None:
        segment.max_timestamp = last_time[0]
        segment.max_timestamp_offset = segment.base_offset + last_time[1]
        segment.index_is_suspect = None
    if next_base is not None or not segment.size:
        return segment.base_offset
    segment.index_is_suspect = False
    segment.load_timestamps()
    end_offset = _end_of(segment)
    if end_offset is not None:
        last_relative = end_offset - 1 - segment.base_offset
        is_beyond = (last_position or (0, 0))[0] > last_relative or (last_time or (0, 0))[1] > last_relative
        is_wrong = is_beyond or segment.index_is_suspect
        if (
            is_wrong
            and not rebuild_indexes(segment, nullcontext(), lambda: True, is_active=True)
            and is_beyond
        ):
            return None
    return end_offset


def _ends_in_time_index(segment: LogSegment) -> bool:
    """Whether the time index of a sealed segment is complete. Sealing writes its last entry, which a power
    loss takes before the next flush; the checkpoint may have the records' recovery point of before."""
    timestamp = segment.max_timestamp
    segment.load_timestamps()
    return segment.max_timestamp == timestamp


def _end_of(segment: LogSegment) -> int | None:
    """The offset after the last batch, by a scan from the last index entry; None if the file ends in an
    incomplete batch."""
    end_offset = segment.base_offset
    position = max(segment.offset_index.lookup(2**31 - 1 + segment.base_offset), 0)
    for at, header in segment.headers(position):
        end_offset = header.next_offset
        position = at + header.size
    if position == segment.size:
        return end_offset
    logger.warning("%s does not end in a whole batch", segment.file.path)
    return None


def _learn_epochs(
    segments: list[LogSegment], leader_epochs: LeaderEpochFileCache, log_start_offset: int
) -> None:
    """Find the epochs before the first one that is known in the batch headers.

    All are unknown if the checkpoint is lost. Some are if it was written after DeleteRecords, and a crash
    came before the checkpoint of the log start offset."""
    known = leader_epochs.entries()
    end_offset = known[0][1] if known else None
    found: list[tuple[int, int]] = []
    for segment in segments:
        if end_offset is not None and segment.base_offset >= end_offset:
            break
        for _, header in segment.headers(segment.scan_start(log_start_offset)):
            if end_offset is not None and header.base_offset >= end_offset:
                break
            if header.partition_leader_epoch > (found[-1][0] if found else -1):
                found.append((header.partition_leader_epoch, header.base_offset))
    leader_epochs.prepend(found)


def _finish_swaps(files: Files, directory: str, names: Sequence[str]) -> None:
    """Complete an interrupted replacement of segments by a cleaned one, as Kafka does
    (`LocalLog.replace_segments`).

    `.swap` files are complete: the files that they replace are removed, and the suffix is dropped. If
    `.cleaned` files with lower offsets exist, the set is incomplete, and the `.swap` files are removed.
    """
    logger.warning("%s: completing an interrupted swap of compacted segments", directory)
    offsets = {name: offset for name in names if (offset := _offset_of(name)) is not None}
    cleaned = [offset for name, offset in offsets.items() if name.endswith(CLEANED_SUFFIX)]
    swaps = [name for name in offsets if name.endswith(SWAP_SUFFIX)]
    for name in [name for name in swaps if cleaned and offsets[name] >= min(cleaned)]:
        swaps.remove(name)
        files.unlink(f"{directory}/{name}")
    ends = {
        offsets[name]: _end_offset(files, f"{directory}/{name}", offsets[name])
        for name in swaps
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)
    }
    if ends:
        for name, offset in offsets.items():
            if not name.endswith(SWAP_SUFFIX) and min(ends) <= offset < max(ends.values()):
                files.unlink(f"{directory}/{name}")
    for name in swaps:
        files.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix(SWAP_SUFFIX)}")
    # After a power loss, a `.swap` file beside the next cleaning's `.cleaned` files would be removed.
    sync_path(files, directory)


def _offset_of(name: str) -> int | None:
    digits = name.partition(".")[0]
    return int(digits) if digits.isdigit() else None


def _end_offset(files: Files, path: str, base_offset: int) -> int:
    """The offset after the last batch of a segment's file."""
    end = base_offset
    with opened(files, path) as fd:
        for _, header in scan_headers(files, fd, 0, files.fstat(fd).size):
            end = header.next_offset
    return end


def _remove_leftovers(files: Files, directory: str, names: Sequence[str]) -> None:
    """Remove files of deleted and unfinished segments, and indexes without a log."""
    logs = {name.removesuffix(LOG_SUFFIX) for name in names if name.endswith(LOG_SUFFIX)}
    for name in names:
        stem, suffix = os.path.splitext(name)
        is_orphan = suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX) and stem not in logs
        if is_orphan or suffix in (DELETED_SUFFIX, CLEANED_SUFFIX, ".tmp"):
            files.unlink(f"{directory}/{name}")
