"""Rows of Kafka's records: decoded, with derived columns; each is kept, filtered by `where`, or invalid.

Called by `plan` for streams, and by `late` for the records of one batch; both must treat a record alike, so
the result depends on the record and its plan only. Pure: column expressions; only `check` analyses a schema.

Columns of a row: the event's fields and the derived ones, `_reason` (why it is invalid, else null),
`_kept`, and `_record`, the columns of Kafka's record.
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
    """All records of the input as rows, without filtering."""
    found = decoded(records, how)
    for name, expression in source.derive.items():
        found = found.withColumn(name, sf.expr(expression))
    reason = sf.coalesce(sf.col(REASON), untimely(source.time, source.ahead))
    wanted = sf.lit(True) if source.where is None else sf.coalesce(sf.expr(source.where), sf.lit(False))
    return found.withColumn(REASON, reason).withColumn(KEPT, sf.col(REASON).isNull() & wanted)


def observed(found: DataFrame, source: InputConfig, name: str) -> DataFrame:
    """The same rows, with an observation `name`: the number of records, the invalid ones, the earliest
    time."""
    return found.observe(
        name,
        sf.count(sf.lit(1)).alias("records"),
        sf.count_if(sf.col(REASON).isNotNull()).alias("invalid"),
        sf.min(sf.when(sf.col(KEPT), micros(source))).alias("earliest_us"),
    )


def kept(found: DataFrame) -> DataFrame:
    """The rows that windows and joins use."""
    return found.where(KEPT).drop(KEPT, REASON, RECORD)


def micros(source: InputConfig) -> Column:
    """The event's time in microseconds since 1970."""
    return sf.unix_micros(sf.col(source.time))


def check(records: DataFrame, how: Plan, source: InputConfig, where: str) -> None:
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
        schema = rows(records, how, source).schema
    except PySparkException as error:
        raise JobStartError(f"{where}: {error_summary(error)}") from error
    kind = schema[source.time].dataType
    if kind != TimestampType():
        raise JobStartError(
            f"{where}.time: {source.time} is {kind.simpleString()}; it must be a timestamp (derive one, by "
            "timestamp_millis(FIELD) for instance)"
        )
