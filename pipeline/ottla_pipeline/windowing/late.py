"""Records that a batch did not count: those after the end of their window, and those that are no events.

Called by `batch`, for batches that can hold some. Spark drops what is late inside its operators, and says
only how many rows that were (after adding up: not how many records). So the batch's very records are read
again, by the offsets of the `ledger`, and what Spark's operators ask of each is asked here once more:

- a tumbling or sliding window whose end is not after the watermark takes no record;
- a session takes none whose own end (its time and the gap) is not after it;
- a join takes none whose time is not after it.

A record may be late for some of its sliding windows and not for others: it is told once, with the windows it
is not counted in. So for every window: what it was told to hold, and what was late for it, is all there was.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from ottla_pipeline.decoding import Plan
from ottla_pipeline.streams import writing
from ottla_pipeline.streams.reading import REASON, RECORD
from ottla_pipeline.windowing import source as src
from ottla_pipeline.windowing.config import InputConfig, WindowConfig
from ottla_pipeline.windowing.offset_log import Range

MISSED = "_missed"


def earliest_end_us(time_us: int, window: WindowConfig | None) -> int:
    """When the first is over of what a record takes part in; of a join (no window), its own time."""
    if window is None:
        return time_us
    if window.session is not None:
        return time_us + window.size_us
    # The earliest window that holds it begins at the first multiple of the slide after (time - size).
    first = (time_us - window.size_us) // window.slide_us + 1
    return first * window.slide_us + window.size_us


def can_be_late(earliest_us: int | None, late_by_us: int, window: WindowConfig | None) -> bool:
    """Whether any record of a batch is late, by the earliest of their times: later ones end later."""
    return earliest_us is not None and earliest_end_us(earliest_us, window) <= late_by_us


def missed(time_us: Column, late_by_us: int, window: WindowConfig | None) -> Column:
    """The windows that a record is too late for, as (start, end) in microseconds, earliest first."""
    limit = sf.lit(late_by_us)
    if window is None or window.session is not None:
        size = 0 if window is None else window.size_us
        own = sf.struct(time_us.alias("start"), (time_us + sf.lit(size)).alias("end"))
        return sf.when(time_us + sf.lit(size) <= limit, sf.array(own)).otherwise(sf.array().cast(_WINDOWS))
    size, slide = window.size_us, window.slide_us
    last = time_us - sf.pmod(time_us, sf.lit(slide))
    steps = sf.sequence(sf.lit((size - 1) // slide), sf.lit(0), sf.lit(-1))

    def nth(step: Column) -> Column:
        start = last - step.cast("long") * sf.lit(slide)
        return sf.struct(start.alias("start"), (start + sf.lit(size)).alias("end"))

    return sf.filter(sf.transform(steps, nth), lambda one: (one["end"] > time_us) & (one["end"] <= limit))


_WINDOWS = "array<struct<start: bigint, end: bigint>>"


@dataclass(frozen=True, slots=True)
class UncountedRecords:
    """What one input's records a batch did not count: few of them as `rows`, many as `records`, persisted."""

    late: int
    invalid: int
    rows: Sequence[Row] = ()
    records: DataFrame | None = None

    def select(self, *, late: bool, invalid: bool) -> Iterator[Row]:
        """Those of the two kinds that are to be told of."""
        if self.records is None:
            return (row for row in self.rows if (late if row[REASON] is None else invalid))
        reason = sf.col(REASON)
        wanted = (reason.isNull() & sf.lit(late)) | (reason.isNotNull() & sf.lit(invalid))
        return self.records.where(wanted).toLocalIterator()

    def unpersist(self) -> None:
        if self.records is not None:
            self.records.unpersist()


def counted(found: DataFrame) -> UncountedRecords:
    """The result of `uncounted`, counted. Mostly it is a handful: then one job is all that it takes."""
    rows = found.take(writing.COLLECTED_MAX + 1)
    if len(rows) <= writing.COLLECTED_MAX:
        late = sum(row[REASON] is None for row in rows)
        return UncountedRecords(late, len(rows) - late, rows)
    records, reason = found.persist(), sf.col(REASON)
    row = records.agg(
        sf.count_if(reason.isNull()).alias("late"), sf.count_if(reason.isNotNull()).alias("invalid")
    ).first()
    assert row is not None
    return UncountedRecords(row["late"], row["invalid"], records=records)


def read_again(spark: SparkSession, options: dict[str, str], ranges: Sequence[Range]) -> DataFrame:
    """These very records, no more and no less; records that have gone since are an error."""
    partitions: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for one in ranges:
        partitions.setdefault(one.topic, []).append(one.partition)
        starts.setdefault(one.topic, {})[str(one.partition)] = one.start
        ends.setdefault(one.topic, {})[str(one.partition)] = one.end
    return (
        spark.read.format("kafka")
        .options(**options)
        .option("includeHeaders", "true")
        .option("assign", json.dumps(partitions))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .load()
    )


def uncounted_records(
    records: DataFrame, how: Plan, source: InputConfig, window: WindowConfig | None, late_by_us: int
) -> DataFrame:
    """Of a batch's records those that were not counted: `_reason` (null: late), `_missed`, and `_record`."""
    found = src.rows(records, how, source)
    windows = sf.when(sf.col(src.KEPT), missed(src.micros(source), late_by_us, window))
    told = found.select(REASON, RECORD, windows.alias(MISSED))
    return told.where(sf.col(REASON).isNotNull() | (sf.size(MISSED) > 0))
