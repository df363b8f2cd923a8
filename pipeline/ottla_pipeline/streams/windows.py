"""Windows over a stream's rows, and deduplication, with Spark's own operators.

Called by users' jobs and by `windowing.plan`. Pure: column expressions. With `lateness`, the maximum delay
of late rows, a function sets a watermark on the column `time`. Rows may have one watermark only, so only
the first of several functions gets a `lateness`. Rows without a time are in no window; rows with a null
key form a group of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from ottla_pipeline.streams.reading import RECORD

WINDOW_START = "window_start"
WINDOW_END = "window_end"


def tumbling(
    rows: DataFrame,
    size: str,
    aggregates: Mapping[str, Column],
    *,
    time: str,
    by: Sequence[str] = (),
    lateness: str | None = None,
) -> DataFrame:
    """A row for each window of `size` ("1 hour") and value of `by`: window_start, window_end, the columns
    `by`, the aggregates. Windows begin at multiples of their size since 1970 and do not overlap."""
    return by_window(rows, sf.window(time, size), aggregates, time=time, by=by, lateness=lateness)


def sliding(
    rows: DataFrame,
    size: str,
    slide: str,
    aggregates: Mapping[str, Column],
    *,
    time: str,
    by: Sequence[str] = (),
    lateness: str | None = None,
) -> DataFrame:
    """As `tumbling`, for windows of `size` that begin `slide` apart: a row of the stream is in each window
    that covers it."""
    return by_window(rows, sf.window(time, size, slide), aggregates, time=time, by=by, lateness=lateness)


def session(
    rows: DataFrame,
    gap: str,
    aggregates: Mapping[str, Column],
    *,
    time: str,
    by: Sequence[str],
    lateness: str | None = None,
) -> DataFrame:
    """As `tumbling`, for sessions: a window for each series of rows with equal `by`, which ends when none
    has arrived for `gap` of event time. Raises ValueError without `by`: Spark has no sessions without a
    key."""
    if not by:
        raise ValueError("session: give at least one column to group by")
    return by_window(rows, sf.session_window(time, gap), aggregates, time=time, by=by, lateness=lateness)


def by_window(
    rows: DataFrame,
    window: Column,
    aggregates: Mapping[str, Column],
    *,
    time: str,
    by: Sequence[str],
    lateness: str | None,
) -> DataFrame:
    """A row for each window and value of `by`; `window` is one of Spark's window columns."""
    numbers = [column.alias(name) for name, column in aggregates.items()]
    groups = (window.alias("_window"), *(sf.col(name) for name in by))
    found = watermarked(rows, time, lateness).groupBy(*groups).agg(*numbers)
    start, end = sf.col("_window")["start"], sf.col("_window")["end"]
    return found.select(start.alias(WINDOW_START), end.alias(WINDOW_END), *by, *aggregates)


def deduplicate(rows: DataFrame, by: Sequence[str], *, time: str, lateness: str | None = None) -> DataFrame:
    """The first row for each value of `by`; later rows with a time up to `lateness` after the first one's
    are dropped. State is kept for that long. Rows with a null in `by` are never duplicates of each other,
    if they come from `read_topic`."""
    unknown = sf.greatest(*(sf.col(name).isNull() for name in by), sf.lit(False))
    if RECORD not in rows.columns:
        return watermarked(rows, time, lateness).dropDuplicatesWithinWatermark(list(by))
    origin = sf.struct(*(sf.col(RECORD)[name].alias(name) for name in ("topic", "partition", "offset")))
    marked = watermarked(rows, time, lateness).withColumn("_own", sf.when(unknown, origin))
    return marked.dropDuplicatesWithinWatermark([*by, "_own"]).drop("_own")


def watermarked(rows: DataFrame, time: str, lateness: str | None) -> DataFrame:
    """The rows with a watermark on `time`, unless `lateness` is None."""
    return rows if lateness is None else rows.withWatermark(time, lateness)
