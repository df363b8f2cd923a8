"""What there is to clean in a log, and the job that a worker process gets: from a Log to plain facts.

Called by `server.log_cleaner`, in a thread, for some of it reads files.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla.storage.cleanable_log import CleanableLog
from ottla.storage.cleaner import log_to_clean
from ottla.storage.cleaner.messages import Job
from ottla.storage.log_config import INT64_MAX
from ottla.storage.log_segment import Segment

CHECKPOINT_FILE = "cleaner-offset-checkpoint"
"""Kafka's, in each log directory: where the dirty part of its logs begins."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one worker may take."""

    map_bytes: int
    load_factor: float
    buffer_bytes: int


def dirt_of(log: CleanableLog, last_stable_offset: int, now_ms: int) -> log_to_clean.Dirt:
    """What there is to clean. May read the first batches of segments; raises OSError."""
    config = log.config
    segments = log.segments
    pieces = [
        log_to_clean.Piece(
            segment.base_offset,
            segment.size,
            segment.largest_timestamp() if config.min_compaction_lag_ms > 0 else -1,
            first_timestamp(segment) if config.max_compaction_lag_ms != INT64_MAX else -1,
        )
        for segment in segments
    ]
    return log_to_clean.measure(
        pieces,
        config,
        first_dirty=log_to_clean.first_dirty_offset(
            log.first_dirty_offset, log.log_start_offset, log.log_end_offset
        ),
        last_stable_offset=last_stable_offset,
        now_ms=now_ms,
    )


def first_timestamp(segment: Segment) -> int:
    """The first batch's highest, in ms; -1 where there is none."""
    if segment.first_timestamp >= 0:
        return segment.first_timestamp
    for _, header in segment.headers():
        return header.max_timestamp
    return -1


def prepare(
    log: CleanableLog, dirt: log_to_clean.Dirt, limits: Limits, now_ms: int
) -> tuple[Job, list[Segment]]:
    """The job of cleaning up to the end of the dirt, and the segments that it is about."""
    config = log.config
    segments = [each for each in log.segments if each.base_offset < dirt.first_uncleanable]
    first = segments[0].base_offset if segments else dirt.first_dirty
    return Job(
        directory=str(log.directory),
        sources=[
            (
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
        aborted=[
            (each.producer_id, each.first_offset, each.last_offset, each.last_stable_offset)
            for each in log.collect_aborted_transactions(first, dirt.first_uncleanable)
        ],
        producers=log.last_of_producers(),
    ), segments
