"""Rows of Kafka's records: decoded, with derived columns, each either kept, left out by `where`, or no event.

Called by `plan` on streams, and by `late` on the very records that one batch of the stream
was made of; both must say the same of a record, so this is a function of the record (and its plan) alone.
Pure: column expressions; `check` alone looks at a schema.

Columns of a row: the event's fields and the derived ones, `_reason` (why it is no event, else null), `_kept`,
and `_record`, what Kafka has of it.
"""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import TimestampType

from ottla_pipeline.decoding import Plan
from ottla_pipeline.errors import JobStartError, error_summary
from ottla_pipeline.streams.reading import REASON, RECORD, decoded, untimely
from ottla_pipeline.windowing.config import RESERVED, InputConfig

KEPT = "_kept"


def rows(records: DataFrame, how: Plan, source: InputConfig) -> DataFrame:
    """All records of the input as rows, none left out."""
    found = decoded(records, how)
    for name, expression in source.derive.items():
        found = found.withColumn(name, sf.expr(expression))
    reason = sf.coalesce(sf.col(REASON), untimely(source.time, source.ahead))
    wanted = sf.lit(True) if source.where is None else sf.coalesce(sf.expr(source.where), sf.lit(False))
    return found.withColumn(REASON, reason).withColumn(KEPT, sf.col(REASON).isNull() & wanted)


def observed(found: DataFrame, source: InputConfig, name: str) -> DataFrame:
    """The same rows; counted in passing under `name`: records, those that are no events, the earliest
    time."""
    return found.observe(
        name,
        sf.count(sf.lit(1)).alias("records"),
        sf.count_if(sf.col(REASON).isNotNull()).alias("invalid"),
        sf.min(sf.when(sf.col(KEPT), micros(source))).alias("earliest_us"),
    )


def kept(found: DataFrame) -> DataFrame:
    """What windows and joins are made of."""
    return found.where(KEPT).drop(KEPT, REASON, RECORD)


def micros(source: InputConfig) -> Column:
    """The event's time in microseconds since 1970."""
    return sf.unix_micros(sf.col(source.time))


def check(records: DataFrame, how: Plan, source: InputConfig, where: str) -> None:
    """JobStartError for expressions that Spark refuses, a time that is none, names that are taken twice."""
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
        schema = rows(records, how, source).schema
    except PySparkException as error:
        raise JobStartError(f"{where}: {error_summary(error)}") from error
    kind = schema[source.time].dataType
    if kind != TimestampType():
        raise JobStartError(
            f"{where}.time: {source.time} is {kind.simpleString()}; it must be a timestamp (derive one, by "
            "timestamp_millis(FIELD) for instance)"
        )
