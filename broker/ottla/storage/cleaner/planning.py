"""Computes the cleanable range of a log, and plans the job of a worker process (part of Kafka's
LogCleanerManager).

Called by `ottla.server.logs`, in a thread where files are read, and by `cleaner` (`group_segments`). The
rules are those of Kafka 3.9.

A log is clean up to its first dirty offset, the end of the last cleaning. Of the rest, data is cleanable that
is not in the active segment, is below the last stable offset (so below the high watermark and in no open
transaction), and is before the first segment with a record younger than min.compaction.lag.ms. The range ends
at the base offset of a segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ottla.protocol.records import INT32_MAX
from ottla.storage.indexes import AbortedTransaction
from ottla.storage.log_config import INT64_MAX, LogConfig
from ottla.storage.log_segment import LogSegment

if TYPE_CHECKING:
    from ottla.storage.log import Log  # the worker process does not load it

GROUP_MAX = 256
"""The maximum number of segments that are replaced at once, under the log's lock. Kafka has no such limit."""


class CleanableSegment(NamedTuple):
    """The facts of a segment that decide what is cleaned; timestamps are milliseconds."""

    base_offset: int
    size: int
    largest_timestamp: int
    first_timestamp: int
    """The max timestamp of the first batch; -1 for none."""


class LogToClean(NamedTuple):
    """The cleanable range of a log (Kafka's LogToClean)."""

    first_dirty: int
    first_uncleanable: int
    """The end of the cleanable range, the base offset of a segment."""
    clean_bytes: int
    cleanable_bytes: int
    delay_ms: int
    """The time since cleaning is due by max.compaction.lag.ms; 0 if it is not."""

    @property
    def ratio(self) -> float:
        """The cleanable share of the log."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    def is_due(self, config: LogConfig) -> bool:
        """Whether the dirty ratio or max.compaction.lag.ms requires a cleaning."""
        if self.delay_ms > 0 and self.cleanable_bytes > 0:
            return True
        return self.ratio > config.min_cleanable_dirty_ratio


class SourceSegment(NamedTuple):
    """A segment that the cleaner reads; sizes are bytes."""

    base_offset: int
    size: int
    offset_index_size: int
    time_index_size: int


@dataclass(slots=True)
class Job:
    """Clean a log from its first segment up to `upper_bound`. Times are milliseconds, sizes bytes."""

    directory: str
    sources: list[SourceSegment]
    """The segments below `upper_bound`, in order."""
    first_dirty: int
    upper_bound: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_bytes: int
    index_interval_bytes: int
    map_bytes: int
    """log.cleaner.dedupe.buffer.size, of one worker"""
    load_factor: float
    buffer_bytes: int
    """log.cleaner.io.buffer.size, of one worker"""
    aborted: list[AbortedTransaction] = field(default_factory=list)
    """Aborted transactions that reach into the log below `upper_bound`."""
    producers: list[tuple[int, int, int]] = field(default_factory=list)
    """Producer id, offset and epoch of what active producers wrote last, as `filtering.LastOfProducer`."""


def first_dirty_offset(checkpoint: int | None, log_start_offset: int, log_end_offset: int) -> int:
    """The first dirty offset; a checkpoint outside of the log is ignored."""
    if checkpoint is None or not log_start_offset <= checkpoint <= log_end_offset:
        return log_start_offset
    return checkpoint


def measure_log(
    pieces: Sequence[CleanableSegment],
    config: LogConfig,
    *,
    first_dirty: int,
    last_stable_offset: int,
    now_ms: int,
) -> LogToClean:
    """The cleanable range of a log with these segments, the last of which is active."""
    active = pieces[-1].base_offset
    first_uncleanable = min(last_stable_offset, active)
    dirty = [piece for at, piece in enumerate(pieces[:-1]) if pieces[at + 1].base_offset > first_dirty]
    if config.min_compaction_lag_ms > 0:
        newest_ms = now_ms - config.min_compaction_lag_ms
        young = next((piece for piece in dirty if piece.largest_timestamp > newest_ms), None)
        if young is not None:
            first_uncleanable = min(first_uncleanable, young.base_offset)
    first_uncleanable = max(first_dirty, first_uncleanable)
    # The segment that holds the first uncleanable offset is not cleaned.
    end = max(piece.base_offset for piece in pieces if piece.base_offset <= first_uncleanable)
    return LogToClean(
        first_dirty,
        end,
        clean_bytes=sum(piece.size for piece in pieces if piece.base_offset < first_dirty),
        cleanable_bytes=sum(piece.size for piece in dirty if piece.base_offset < end),
        delay_ms=_delay_ms(dirty, config, now_ms),
    )


def _delay_ms(dirty: Sequence[CleanableSegment], config: LogConfig, now_ms: int) -> int:
    if config.max_compaction_lag_ms == INT64_MAX:
        return 0
    earliest = min((piece.first_timestamp for piece in dirty if piece.first_timestamp > 0), default=None)
    due_ms = now_ms - config.max_compaction_lag_ms
    return due_ms - earliest if earliest is not None and earliest < due_ms else 0


def group_segments(
    sources: Sequence[SourceSegment], *, segment_bytes: int, index_bytes: int, end_offset: int
) -> list[list[SourceSegment]]:
    """Group neighbours that become one segment, so that segments do not shrink for ever: as many as stay
    within the limits even if no record is removed. `end_offset` is the end of the last segment, or later."""
    grouped: list[list[SourceSegment]] = []
    for at, source in enumerate(sources):
        next_base = sources[at + 1].base_offset if at + 1 < len(sources) else end_offset
        if grouped:
            group = grouped[-1]
            if (
                sum(each.size for each in group) + source.size <= segment_bytes
                and sum(each.offset_index_size for each in group) + source.offset_index_size <= index_bytes
                and sum(each.time_index_size for each in group) + source.time_index_size <= index_bytes
                and (source.size == 0 or next_base - 1 - group[0].base_offset <= INT32_MAX)
                and len(group) < GROUP_MAX
            ):
                group.append(source)
                continue
        grouped.append([source])
    return grouped


CHECKPOINT_FILE = "cleaner-offset-checkpoint"
"""Kafka's checkpoint file of first dirty offsets in each log directory."""


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """The limits of one worker process."""

    map_bytes: int
    load_factor: float
    buffer_bytes: int


def log_to_clean(log: Log, last_stable_offset: int, now_ms: int) -> LogToClean:
    """The cleanable range of a log. May read the first batches of segments; raises OSError."""
    config = log.config
    segments = log.segments
    pieces = [
        CleanableSegment(
            segment.base_offset,
            segment.size,
            segment.largest_timestamp() if config.min_compaction_lag_ms > 0 else -1,
            first_timestamp(segment) if config.max_compaction_lag_ms != INT64_MAX else -1,
        )
        for segment in segments
    ]
    return measure_log(
        pieces,
        config,
        first_dirty=first_dirty_offset(log.first_dirty_offset, log.log_start_offset, log.log_end_offset),
        last_stable_offset=last_stable_offset,
        now_ms=now_ms,
    )


def first_timestamp(segment: LogSegment) -> int:
    """The max timestamp of a segment's first batch, in ms; -1 for an empty segment."""
    if segment.first_timestamp >= 0:
        return segment.first_timestamp
    for _, header in segment.headers():
        return header.max_timestamp
    return -1


def plan_job(log: Log, dirt: LogToClean, limits: WorkerLimits, now_ms: int) -> tuple[Job, list[LogSegment]]:
    """The job that cleans the range, and the segments that it reads."""
    config = log.config
    segments = [each for each in log.segments if each.base_offset < dirt.first_uncleanable]
    first = segments[0].base_offset if segments else dirt.first_dirty
    return Job(
        directory=str(log.directory),
        sources=[
            SourceSegment(
                segment.base_offset,
                segment.size,
                len(segment.offset_index) * segment.offset_index.ENTRY.size,
                len(segment.time_index) * segment.time_index.ENTRY.size,
            )
            for segment in segments
        ],
        first_dirty=dirt.first_dirty,
        upper_bound=dirt.first_uncleanable,
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        map_bytes=limits.map_bytes,
        load_factor=limits.load_factor,
        buffer_bytes=limits.buffer_bytes,
        aborted=list(log.collect_aborted_transactions(first, dirt.first_uncleanable)),
        producers=log.last_producer_batches(),
    ), segments
