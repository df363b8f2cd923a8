"""Topics as streams of typed rows.

Called by users' jobs (mostly through `streams.Job`), by `tables`, and by `windowing.source`. A row has the
event's fields, and `_record`, the columns of Kafka's record (key, value, headers, topic, partition,
offset, timestamp).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import TypeAdapter
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import TimestampType

from ottla.client.registry import RegistryError
from ottla_pipeline.config.common import KafkaConfig, TopicsConfig
from ottla_pipeline.decoding import Format, JsonFormat, Plan, decode, plan
from ottla_pipeline.decoding.formats import SchemaUnusable
from ottla_pipeline.decoding.plans import SchemaRegistry, registered_ids
from ottla_pipeline.errors import JobStartError

REASON: Final = "_reason"
RECORD: Final = "_record"
ORIGIN: Final = ("topic", "partition", "offset", "timestamp")
AHEAD: Final = "1 hour"

Invalid = Literal["fail", "drop", "keep"]
_FORMAT: Final[TypeAdapter[Any]] = TypeAdapter(Format)


def read_topic(
    spark: SparkSession,
    kafka: KafkaConfig,
    topics: TopicsConfig,
    form: str | Mapping[str, Any],
    *,
    time: str | None = None,
    ahead: str = AHEAD,
    invalid: Invalid = "fail",
    registry: SchemaRegistry | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The topics' records as a stream.

    `form` is the fields of JSON objects as Spark DDL ("id STRING, amount DOUBLE"), or a format as in the
    jobs' configurations ({"type": "avro"}), which may need a registry. `time` names the timestamp field
    with the event time: a record without it, or with a time more than `ahead` after its own record
    timestamp, is invalid, because it would advance the watermark and make all other records late.
    `invalid` is the treatment of invalid records: "fail" ends the query with the first one (a restart uses
    schemas that were registered since); "drop" skips them; "keep" keeps them, with the reason as `_reason`
    (null for events). Aborted transactions are not read. `options` are those of Spark's Kafka source.
    Raises JobStartError for an unusable format.
    """
    loaded = spark.readStream.format("kafka").options(
        **source_options(kafka, topics),
        **{"startingOffsets": "earliest", "includeHeaders": "true", **(options or {})},
    )
    found = decoded(loaded.load(), plan_of(spark, form, topics, registry))
    if time is not None:
        check_time(found, time)
        found = found.withColumn(REASON, sf.coalesce(REASON, untimely(time, ahead)))
    return apply_invalid_policy(found, invalid)


def source_options(kafka: KafkaConfig, topics: TopicsConfig) -> dict[str, str]:
    """Options of Spark's Kafka source, for streams and tables. Records that were deleted before they were
    read end the query."""
    return {
        "kafka.isolation.level": "read_committed",
        **kafka.spark_options(),
        **topics.subscription(),
        "failOnDataLoss": "true",
    }


def plan_of(
    spark: SparkSession, form: str | Mapping[str, Any], topics: TopicsConfig, registry: SchemaRegistry | None
) -> Plan:
    """The decoding plan, with all schemas that the registry has at present. Raises JobStartError."""
    try:
        given = (
            JsonFormat(type="json", fields=form) if isinstance(form, str) else _FORMAT.validate_python(form)
        )
    except ValueError as error:
        raise JobStartError(f"format {form!r}: {error}") from error
    return plan_format(spark, given, topics, registry, frozenset())


def plan_format(
    spark: SparkSession,
    form: Format,
    topics: TopicsConfig,
    registry: SchemaRegistry | None,
    also: frozenset[int],
) -> Plan:
    """The decoding plan of a parsed format; schemas with the ids in `also` are included."""
    topic, ids = (topics.topics or [""])[0], set(also)
    try:
        if not isinstance(form, JsonFormat) and form.framing == "registry" and registry is not None:
            ids |= set(registered_ids(registry, form.subject_of(topic)))
        return plan(spark, form, topic=topic, registry=registry, ids=ids)
    except (SchemaUnusable, RegistryError) as error:
        raise JobStartError(f"format: {error}") from error


def decoded(records: DataFrame, how: Plan) -> DataFrame:
    """A row for each record: the event's fields, `_reason` (why it is invalid, else null), `_record`."""
    found = decode(records.withColumn(RECORD, sf.struct(*records.columns)), how)
    fields = (sf.col("event")[name].alias(name) for name in how.fields.names)
    return found.select(*fields, sf.col("reason").alias(REASON), RECORD)


def untimely(time: str, ahead: str) -> Column:
    """Why a row's time is invalid; null if it is valid."""
    stamp = sf.col(RECORD)["timestamp"]
    return (
        sf.when(sf.col(time).isNull(), f"missing {time}")
        # Beyond these years a timestamp cannot be read back by Python and most others.
        .when(~sf.year(time).between(1, 9999), f"{time} out of range")
        .when(
            (sf.unix_millis(stamp) >= 0) & (sf.col(time) > stamp + sf.expr(f"INTERVAL '{ahead}'")),
            f"{time} is more than {ahead} after the record's timestamp",
        )
    )


def check_time(found: DataFrame, time: str) -> None:
    """Raises JobStartError unless `time` is a timestamp column."""
    kinds = {field.name: field.dataType for field in found.schema.fields}
    if time not in kinds:
        raise JobStartError(f"time: {time} is not one of the fields {', '.join(kinds)}")
    if kinds[time] != TimestampType():
        raise JobStartError(f"time: {time} is {kinds[time].simpleString()}; it must be a timestamp")


def apply_invalid_policy(found: DataFrame, invalid: Invalid) -> DataFrame:
    """The result of `decoded` with invalid rows treated according to `invalid`."""
    if invalid == "keep":
        return found
    event = sf.col(REASON).isNull()
    if invalid == "fail":
        record = sf.col(RECORD)
        where = sf.concat_ws("-", record["topic"], record["partition"], record["offset"])
        event = sf.when(event, sf.lit(True)).otherwise(
            sf.raise_error(sf.concat(sf.lit("no event at "), where, sf.lit(": "), sf.col(REASON))).cast(
                "boolean"
            )
        )
    return found.where(event).drop(REASON)
