"""Adds records that the lake lacks: those of a range of offsets (backfill), or its own dead letters (replay).

Called by the jobs `backfill` and `replay`. Only one of them at a time may run on a lake; the lake job may run
beside it. Both add only records whose origin (topic, partition, offset) the lake lacks, so they can be
stopped and run again.

A backfill's range ends where the lake job's last completed batch ended: the job itself writes later
records, which would otherwise be in the lake twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from ottla_pipeline.checkpoints import OffsetRange, Offsets, offset_ranges
from ottla_pipeline.lake.sink import Lake, Landed

ORIGIN = ["topic", "partition", "offset"]


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay: dead letters that were tried, that are in the lake now (or were before), and
    that are still invalid."""

    tried: int
    landed: int
    bad: int


def backfill(lake: Lake, records: DataFrame) -> Landed:
    """Adds those records that are neither in the lake nor among its dead letters."""
    missing = records
    for known in (lake.origins(), lake.dead_letters(with_replayed=True)):
        if known is not None:
            missing = missing.join(known.select(*ORIGIN), ORIGIN, "left_anti")
    kept = missing.persist(StorageLevel.DISK_ONLY)
    try:
        return lake.add(kept, replayed=False) if not kept.isEmpty() else Landed(0, 0)
    finally:
        kept.unpersist()


def select_dead_letters(dead: DataFrame, reasons: Sequence[str], topics: Sequence[str]) -> DataFrame:
    """The dead letters of these topics whose reason begins with one of these texts; all, if none are
    given."""
    if topics:
        dead = dead.where(sf.col("topic").isin(*topics))
    if reasons:
        wanted = sf.lit(False)
        for reason in reasons:
            wanted = wanted | sf.col("reason").startswith(reason)
        dead = dead.where(wanted)
    return dead


def replay(lake: Lake, reasons: Sequence[str], topics: Sequence[str]) -> Replayed:
    """Decodes dead letters with the present schema; the valid ones are added to the lake and marked as
    replayed."""
    dead = lake.dead_letters()
    if dead is None:
        return Replayed(0, 0, 0)
    kept = select_dead_letters(dead, reasons, topics).drop("reason").persist(StorageLevel.DISK_ONLY)
    try:
        tried, before = kept.count(), 0
        waiting = kept
        origins = lake.origins()
        if origins is not None and tried:
            # Added by a replay that was killed before it marked them.
            landed = kept.join(origins, ORIGIN, "left_semi")
            before = landed.count()
            if before:
                lake.mark(landed)
                waiting = kept.join(origins, ORIGIN, "left_anti").persist(StorageLevel.DISK_ONLY)
        found = lake.add(waiting, replayed=True) if tried > before else Landed(0, 0)
        return Replayed(tried, before + found.events, found.dead_letters)
    finally:
        kept.unpersist()


def backfill_ranges(starts: Offsets, ends: Offsets, limits: Offsets) -> tuple[OffsetRange, ...]:
    """The ranges between `starts` and `ends`, limited to the offsets that the lake job has processed. A
    partition without a limit has not been read: it has no range."""
    return offset_ranges(starts, {where: min(end, limits.get(where, 0)) for where, end in ends.items()})
