"""Numbers for each window and key, as a streaming plan of Spark's own operators.

Called by `plan`. Pure: column expressions over the rows of `source`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from ottla_pipeline.windowing.config import EVENT_DATE, WINDOW_END, WINDOW_START, Aggregate, WindowConfig

_FUNCTIONS: dict[str, Callable[[Column], Column]] = {
    "count": sf.count,
    "sum": sf.sum,
    "min": sf.min,
    "max": sf.max,
    "avg": sf.avg,
    "approxDistinct": sf.approx_count_distinct,
}


def window_of(time: str, window: WindowConfig) -> Column:
    """Spark's window column for an event's time."""
    if window.session is not None:
        return sf.session_window(time, window.session.gap)
    if window.sliding is not None:
        return sf.window(time, window.sliding.size, window.sliding.slide)
    assert window.tumbling is not None
    return sf.window(time, window.tumbling)


def aggregated(
    rows: DataFrame,
    *,
    time: str,
    watermark: str,
    window: WindowConfig,
    keys: Sequence[str],
    aggregates: dict[str, Aggregate],
) -> DataFrame:
    """A row for each window and key: window_start, window_end, the keys, the aggregates, event_date."""
    numbers = [
        _FUNCTIONS[one.function](sf.expr(one.of) if one.of is not None else sf.lit(1)).alias(name)
        for name, one in aggregates.items()
    ]
    grouped = rows.withWatermark(time, watermark).groupBy(
        window_of(time, window).alias("_window"), *(sf.col(name) for name in keys)
    )
    start, end = sf.col("_window")["start"], sf.col("_window")["end"]
    return grouped.agg(*numbers).select(
        start.alias(WINDOW_START),
        end.alias(WINDOW_END),
        *keys,
        *aggregates,
        sf.to_date(start).alias(EVENT_DATE),
    )
