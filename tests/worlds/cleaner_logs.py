"""What the log cleaner's tests share: logs of keyed records, and their cleaning within this process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TypeVar, cast

from ottla.ports import OS_RANDOM
from ottla.ports.files import OS_FILES, Files
from ottla.protocol.compression import Codec
from ottla.protocol.records import (
    ControlType,
    Record,
    build_batch,
    build_control_batch,
    decode_batch,
    iter_batches,
)
from ottla.storage.cleaner import cleaner
from ottla.storage.cleaner.batch_filter import Counts
from ottla.storage.cleaner.offset_map import OffsetMap
from ottla.storage.cleaner.planning import Job, LogToClean, WorkerLimits, plan_job
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.log_dir import LogDir
from ottla.storage.log_loader import open_cleaned
from ottla.storage.log_segment import LogSegment

S = TypeVar("S")
Result = TypeVar("Result")

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(cleanup_policy="compact", segment_bytes=400, index_interval_bytes=100)

Pair = tuple[str, str | None]
Found = tuple[int, bytes | None, bytes | None]


def in_memory_path() -> Path | None:
    """Where files are in memory: these tests sync many, and a disk that others use is slow at that."""
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK) else None


def in_memory_place(tmp_path: Path) -> Iterator[Path]:
    """For a fixture: as tmp_path, in memory if there is such a place."""
    parent = in_memory_path()
    if parent is None:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="ottla-cleaner-", dir=parent) as directory:
        yield Path(directory)


def open_log(
    directory: Path, config: LogConfig = CONFIG, *, clean: bool = True, files: Files = OS_FILES
) -> Log:
    log_dir = LogDir(directory, files=files, source=OS_RANDOM)
    return Log.open(directory / "compacted-0", config, clean_shutdown=clean, now_ms=NOW_MS, log_dir=log_dir)


def put(
    log: Log,
    *pairs: Pair,
    codec: Codec = Codec.NONE,
    producer: tuple[int, int] = (-1, -1),
    transactional: bool = False,
    now_ms: int = NOW_MS,
    timestamp: int = NOW_MS,
) -> int:
    """Append a batch of (key, value), of producer (id, epoch) if there is one; its first offset."""
    producer_id, epoch = producer
    sequence = -1
    if producer_id >= 0:
        entry = log.producers.get(producer_id)
        sequence = entry.last_sequence + 1 if entry is not None and entry.epoch == epoch else 0
    batch = build_batch(
        [
            Record(0, timestamp, key.encode(), None if value is None else value.encode())
            for key, value in pairs
        ],
        codec=codec,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    return log.append_as_leader(batch, leader_epoch=0, now_ms=now_ms).first_offset


def end_transaction(log: Log, producer: tuple[int, int], *, commit: bool) -> int:
    marker = build_control_batch(
        ControlType.COMMIT if commit else ControlType.ABORT,
        producer_id=producer[0],
        producer_epoch=producer[1],
        coordinator_epoch=0,
        timestamp=NOW_MS,
    )
    return log.append_as_leader(marker, leader_epoch=0, now_ms=NOW_MS, client=False).first_offset


def job_for(
    log: Log, *, now_ms: int = NOW_MS, map_entries: int = 1000, upper_bound: int | None = None
) -> tuple[Job, list[LogSegment]]:
    """All that is sealed, up to `upper_bound`, where a segment must begin; all of it dirty if none is."""
    end = log.segments[-1].base_offset if upper_bound is None else upper_bound
    first = log.segments[0].base_offset
    dirty = first if log.first_dirty_offset is None else log.first_dirty_offset
    limits = WorkerLimits(24 * map_entries, load_factor=0.9, buffer_bytes=1024)
    return plan_job(log, LogToClean(dirty if dirty < end else first, end, 0, 0, 0), limits, now_ms)


def clean(
    log: Log,
    *,
    now_ms: int = NOW_MS,
    map_entries: int = 1000,
    upper_bound: int | None = None,
    finished: Callable[[list[int]], None] = lambda bases: None,
) -> Counts:
    """One cleaning, as the worker and the broker do it together."""
    job, segments = job_for(log, now_ms=now_ms, map_entries=map_entries, upper_bound=upper_bound)
    offsets = OffsetMap(job.map_bytes)
    end_offset = run_steps(cleaner.build_map(OS_FILES, job, offsets))

    def swap(step: cleaner.Step) -> None:
        if not isinstance(step, cleaner.Cleaned):
            return
        finished(step.bases)
        new = open_cleaned(OS_FILES, str(log.directory), step.bases[0], log.config)
        assert new.size == step.size
        old = [segment for segment in segments if segment.base_offset in step.bases]
        assert log.replace_segments(old, new, job.upper_bound)

    counts = run_steps(cleaner.clean(OS_FILES, job, offsets, end_offset), swap)
    log.first_dirty_offset = end_offset
    return counts


def run_steps(steps: Generator[S, None, Result], on_step: Callable[[S], None] = lambda step: None) -> Result:
    """The result of a job; `on_step` is called with its steps."""
    while True:
        try:
            step = next(steps)
        except StopIteration as end:
            return cast(Result, end.value)
        on_step(step)


def seal(log: Log) -> None:
    """Begin a new segment, so that all that is there may be cleaned."""
    log.roll(NOW_MS)


def batches(log: Log) -> list[bytes]:
    """Every batch, by reading as a consumer does: on from where the last one ended."""
    found = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20, up_to=log.log_end_offset).to_bytes()
        if not data:
            break
        for position, header in iter_batches(data):
            found.append(data[position : position + header.size])
            assert header.next_offset > offset
            offset = header.next_offset
    return found


def records(log: Log) -> list[Found]:
    """(offset, key, value) of the data in the log."""
    found = []
    for batch in batches(log):
        _, header = next(iter_batches(batch))
        if not header.is_control:
            found += [(record.offset, record.key, record.value) for record in decode_batch(batch)]
    return found


def survivors(written: Sequence[Found], clean_to: int) -> list[Found]:
    """What compaction must leave of `written`: of each key the last before `clean_to`, and all behind it."""
    last = {key: offset for offset, key, _ in written if offset < clean_to}
    return [each for each in written if each[0] >= clean_to or last[each[1]] == each[0]]
