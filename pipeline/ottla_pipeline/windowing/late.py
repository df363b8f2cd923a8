"""Records that a batch did not count: late ones, and invalid ones.

Called by `batch`, for batches that may have some. Spark drops late rows inside its operators and reports only
the number of rows (after aggregation, not of records). So the batch's records are read again, by the offsets
of Spark's offset log, and the conditions of Spark's operators are evaluated for each:

- a tumbling or sliding window accepts no record if its end is not after the watermark;
- a session accepts none whose own end (its time plus the gap) is not after it;
- a join accepts none whose time is not after it.

A record may be late for some of its sliding windows only: it is reported once, with the windows that do
not count it. So for every window, its reported count plus its late records are all records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as sf

from ottla_pipeline.decoding import Plan
from ottla_pipeline.streams import writing
from ottla_pipeline.streams.reading import REASON, RECORD
from ottla_pipeline.windowing.config import InputConfig, WindowConfig
from ottla_pipeline.windowing.plan import KEPT, input_rows, time_us

MISSED = "_missed"


def earliest_end_us(time_us: int, window: WindowConfig | None) -> int:
    """The end of the first window of a record with this time; for a join (no window), the time itself."""
    if window is None:
        return time_us
    if window.session is not None:
        return time_us + window.size_us
    # The earliest window that holds it begins at the first multiple of the slide after (time - size).
    first = (time_us - window.size_us) // window.slide_us + 1
    return first * window.slide_us + window.size_us


def can_be_late(earliest_us: int | None, late_by_us: int, window: WindowConfig | None) -> bool:
    """Whether any record of a batch is late, given the earliest of their times."""
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
    """The records of one input that a batch did not count: few as `rows`, many as persisted `records`."""

    late: int
    invalid: int
    rows: Sequence[Row] = ()
    records: DataFrame | None = None

    def select(self, *, late: bool, invalid: bool) -> Iterator[Row]:
        """The records of the selected kinds."""
        if self.records is None:
            return (row for row in self.rows if (late if row[REASON] is None else invalid))
        reason = sf.col(REASON)
        wanted = (reason.isNull() & sf.lit(late)) | (reason.isNotNull() & sf.lit(invalid))
        return self.records.where(wanted).toLocalIterator()

    def unpersist(self) -> None:
        if self.records is not None:
            self.records.unpersist()


def counted(found: DataFrame) -> UncountedRecords:
    """The result of `uncounted_records` with its counts. Usually these are few records: then one Spark job
    is enough."""
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


def uncounted_records(
    records: DataFrame, how: Plan, source: InputConfig, window: WindowConfig | None, late_by_us: int
) -> DataFrame:
    """The uncounted records of a batch: `_reason` (null: late), `_missed`, and `_record`."""
    found = input_rows(records, how, source)
    windows = sf.when(sf.col(KEPT), missed(time_us(source), late_by_us, window))
    rows = found.select(REASON, RECORD, windows.alias(MISSED))
    return rows.where(sf.col(REASON).isNotNull() | (sf.size(MISSED) > 0))
