"""The streaming plan of a configuration: its inputs as rows, and the windows or the join over them.

Called by `jobs.windows`; the operators are those of `ottla_pipeline.streams`. Nothing runs here except
look-ups of schemas; Spark's analysis reports errors before the first record is read.

A row has the event's fields and the derived ones, `_reason` (why it is invalid, else null), `_kept` (whether
`where` selects it), and `_record`, the columns of Kafka's record. `late` makes the same rows of
the records of one batch, so they depend on the record and its plan only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import TimestampType

from ottla_pipeline.decoding import Plan
from ottla_pipeline.decoding.plans import SchemaRegistry
from ottla_pipeline.errors import JobStartError, error_summary
from ottla_pipeline.streams.joins import join_streams
from ottla_pipeline.streams.reading import ORIGIN, REASON, RECORD, decoded, plan_format, untimely
from ottla_pipeline.streams.windows import WINDOW_START, by_window
from ottla_pipeline.windowing.config import (
    EVENT_DATE,
    LEFT,
    RESERVED,
    RIGHT,
    Aggregate,
    InputConfig,
    JoinConfig,
    WindowConfig,
    WindowsConfig,
)

KEPT = "_kept"


def input_rows(records: DataFrame, how: Plan, source: InputConfig) -> DataFrame:
    """All records of the input as rows, without filtering."""
    found = decoded(records, how)
    for name, expression in source.derive.items():
        found = found.withColumn(name, sf.expr(expression))
    reason = sf.coalesce(sf.col(REASON), untimely(source.time, source.ahead))
    wanted = sf.lit(True) if source.where is None else sf.coalesce(sf.expr(source.where), sf.lit(False))
    return found.withColumn(REASON, reason).withColumn(KEPT, sf.col(REASON).isNull() & wanted)


def observe_input(found: DataFrame, source: InputConfig, name: str) -> DataFrame:
    """The same rows, with an observation `name`: the number of records, the invalid ones, the earliest
    time."""
    return found.observe(
        name,
        sf.count(sf.lit(1)).alias("records"),
        sf.count_if(sf.col(REASON).isNotNull()).alias("invalid"),
        sf.min(sf.when(sf.col(KEPT), time_us(source))).alias("earliest_us"),
    )


def kept_rows(found: DataFrame) -> DataFrame:
    """The rows that windows and joins use."""
    return found.where(KEPT).drop(KEPT, REASON, RECORD)


def time_us(source: InputConfig) -> Column:
    """The event's time in microseconds since 1970."""
    return sf.unix_micros(sf.col(source.time))


def check_input(records: DataFrame, how: Plan, source: InputConfig, where: str) -> None:
    """Raises JobStartError for expressions that Spark rejects, a time that is no timestamp, and duplicate
    names."""
    fields = [name.lower() for name in how.fields.names]
    for name in how.fields.names:
        if name.startswith("_") or name.lower() in RESERVED:
            raise JobStartError(f"{where}.format: field {name!r}: the job has a column of that name")
    for name in source.derive:
        if name.lower() in fields or name.lower() in RESERVED:
            raise JobStartError(
                f"{where}.derive: {name!r} is the name of another column; give it one of its own"
            )
    try:
        schema = input_rows(records, how, source).schema
    except PySparkException as error:
        raise JobStartError(f"{where}: {error_summary(error)}") from error
    kind = schema[source.time].dataType
    if kind != TimestampType():
        raise JobStartError(
            f"{where}.time: {source.time} is {kind.simpleString()}; it must be a timestamp (derive one, by "
            "timestamp_millis(FIELD) for instance)"
        )


KEY = "_key"
_FUNCTIONS: dict[str, Callable[[Column], Column]] = {
    "count": sf.count,
    "sum": sf.sum,
    "min": sf.min,
    "max": sf.max,
    "avg": sf.avg,
    "approxDistinct": sf.approx_count_distinct,
}


def plans(
    spark: SparkSession, config: WindowsConfig, schemas: SchemaRegistry | None, also: Mapping[str, set[int]]
) -> dict[str, Plan]:
    """The decoding plan of each input, with all schemas that its subject has at present and those of the
    ids in `also`. Raises JobStartError with the input's name."""
    found = {}
    for name, source in config.inputs.items():
        try:
            found[name] = plan_format(spark, source.format, source, schemas, frozenset(also.get(name, ())))
        except JobStartError as error:
            raise JobStartError(f"{name}.{error}") from error
    return found


def streaming(spark: SparkSession, config: WindowsConfig, how: Mapping[str, Plan]) -> DataFrame:
    """The results as a stream. Raises JobStartError with the input or the part that Spark rejects."""
    rows = {}
    for name, source in config.inputs.items():
        records = spark.readStream.format("kafka").options(**config.source_options(source)).load()
        records = records.select("value", *ORIGIN)
        where = name if config.join is None else f"join.{name}"
        check_input(records, how[name], source, where)
        found = observe_input(input_rows(records, how[name], source), source, name)
        rows[name] = kept_rows(found)
    try:
        if config.join is not None:
            return joined(rows[LEFT], rows[RIGHT], config.join)
        assert config.input is not None
        assert config.window is not None
        return aggregated(rows["input"], config.input, config.window, config.keys, config.aggregates)
    except PySparkException as error:
        part = "join" if config.join is not None else "keys and aggregates"
        raise JobStartError(f"{part}: {error_summary(error)}") from error


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
    source: InputConfig,
    window: WindowConfig,
    keys: Sequence[str],
    aggregates: Mapping[str, Aggregate],
) -> DataFrame:
    """A row for each window and key: window_start, window_end, the keys, the aggregates, event_date."""
    numbers = {
        name: _FUNCTIONS[one.function](sf.expr(one.of) if one.of is not None else sf.lit(1))
        for name, one in aggregates.items()
    }
    found = by_window(
        rows, window_of(source.time, window), numbers, time=source.time, by=keys, lateness=source.watermark
    )
    return found.withColumn(EVENT_DATE, sf.to_date(WINDOW_START))


def joined(left: DataFrame, right: DataFrame, join: JoinConfig) -> DataFrame:
    """A row for each pair (and for unmatched rows, in outer joins): the selected columns, `_key` (a struct
    of the join keys), event_date."""
    on = [f"on_{number}" for number in range(len(join.keys))]
    pairs = join_streams(
        _side(left, join.left, join, LEFT),
        _side(right, join.right, join, RIGHT),
        on=on,
        time=("left_time", "right_time"),
        within=(join.within.from_, join.within.to),
        lateness=(join.left.watermark, join.right.watermark),
        how=join.kind,
    )
    keys = [sf.col(one).alias(name) for one, name in zip(on, names(join), strict=True)]
    selected = [sf.expr(text).alias(name) for name, text in join.select.items()] or [
        sf.col(LEFT),
        sf.col(RIGHT),
    ]
    date = sf.to_date(sf.coalesce("left_time", "right_time"))
    return pairs.select(*selected, sf.struct(*keys).alias(KEY), date.alias(EVENT_DATE))


def names(join: JoinConfig) -> list[str]:
    """The names of the join keys: the field's name if the left expression is a field."""
    found: list[str] = []
    for number, key in enumerate(join.keys):
        plain = key.left.isidentifier() and key.left not in found
        found.append(key.left if plain else f"key_{number}")
    return found


def _side(rows: DataFrame, source: InputConfig, join: JoinConfig, side: str) -> DataFrame:
    """One side's rows: all its columns as a struct, its join keys, its time."""
    equal = [sf.expr(getattr(key, side)).alias(f"on_{number}") for number, key in enumerate(join.keys)]
    return rows.select(
        sf.struct(*rows.columns).alias(side), *equal, sf.col(source.time).alias(f"{side}_time")
    )
