"""Converts a batch's records to rows of the lake: decoded, fitted to the table, with their origin and
partition.

Called by both sinks, and by the commands that add records later. Pure column expressions, except `plans_of`,
which uses the registry and, where a batch may have several schemas, reads the batch once for their ids.

Rows have three columns from the headers of audited producers, so that the audit counts tables and topics
alike; `completeness.tiers` uses `produced_columns`, too.

A record is an event if it can be decoded, has a non-empty id and a valid time (where the configuration
names such fields), and fits the table's columns. Every other record is a dead letter with a reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    DataType,
    DateType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from ottla_pipeline.auditing.events import AT_MS_MAX, PRODUCED_HEADER, PRODUCER_HEADER
from ottla_pipeline.decoding import Plan, decode, plan, writer_ids
from ottla_pipeline.decoding.formats import JsonFormat, SchemaUnusable
from ottla_pipeline.decoding.json_values import not_a
from ottla_pipeline.decoding.plans import SchemaRegistry
from ottla_pipeline.lake import schema_evolution
from ottla_pipeline.lake.config import EventConfig, LakeConfig

PRODUCER = "kafka_producer"  # STRING
PRODUCED_AT = "kafka_produced_at"  # TIMESTAMP
PRODUCED_NUMBER = "kafka_produced_number"  # BIGINT

EVENT_DATE = "event_date"
TOPIC = "topic"
# The record of each event.
ORIGIN = ("kafka_partition", "kafka_offset", "kafka_timestamp")
# Producer, time and number of the record, for the audit; null for producers that are not audited.
PRODUCED = (PRODUCER, PRODUCED_AT, PRODUCED_NUMBER)
RESERVED = frozenset({EVENT_DATE, TOPIC, *ORIGIN, *PRODUCED})
DEAD_LETTERS = ("reason", "partition", "offset", "timestamp", "key", "value", "headers")
MILLIS = (-62_135_596_800_000, 253_402_300_799_999)  # of the years 1 to 9999
_EMPTY = StructType([])


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """The decoding plan of a topic (of all topics, if it is None). `problem` says why no record can be
    decoded."""

    topic: str | None
    how: Plan = field(default_factory=lambda: Plan("none", _EMPTY))
    problem: str | None = None

    @property
    def fields(self) -> StructType:
        return self.how.fields


def plans_of(
    spark: SparkSession, config: LakeConfig, registry: SchemaRegistry | None, records: DataFrame
) -> list[TopicPlan]:
    """The plans of a batch. Reads it unless one plan applies to all records."""
    if isinstance(config.format, JsonFormat):
        return [plan_of(spark, config, registry, None)]
    by_topic = writer_ids(records)
    if not by_topic:
        return [TopicPlan(None, problem="the batch has no records")]
    return [plan_of(spark, config, registry, topic, ids) for topic, ids in sorted(by_topic.items())]


def plan_of(
    spark: SparkSession,
    config: LakeConfig,
    registry: SchemaRegistry | None,
    topic: str | None,
    ids: set[int] | frozenset[int] = frozenset(),
) -> TopicPlan:
    """One topic's plan; with a problem in place of a plan if its schema is not usable."""
    try:
        how = plan(spark, config.format, topic=topic or "", registry=registry, ids=ids)
        check_fields(how.fields, config.event)
    except SchemaUnusable as error:
        return TopicPlan(topic, problem=str(error))
    return TopicPlan(topic, how)


def check_fields(fields: StructType, event: EventConfig) -> None:
    """Raises SchemaUnusable if the lake cannot have such columns, or if the id or time field is missing."""
    taken = sorted(RESERVED & {name.lower() for name in fields.names})
    if taken:
        raise SchemaUnusable(f"field {taken[0]!r}: the lake has a column of that name; rename the field")
    lowered = [name.lower() for name in fields.names]
    twice = sorted({name for name in lowered if lowered.count(name) > 1})
    if twice:
        raise SchemaUnusable(f"field {twice[0]!r} occurs twice (names are case-insensitive)")
    times = (TimestampType, TimestampNTZType, DateType, LongType, StringType)
    for name, kinds, allowed in (
        (event.id, (StringType,), "string"),
        (event.time, times, "timestamp, date, long (milliseconds since 1970) or string (ISO 8601)"),
    ):
        if name is None:
            continue
        found = type_at(fields, name)
        if found is None:
            raise SchemaUnusable(f"the schema lacks {name!r}, the configured field of the event's id or time")
        if not isinstance(found, kinds):
            raise SchemaUnusable(f"field {name!r} must be {allowed}, not {found.simpleString()}")


def type_at(fields: StructType, path: str) -> DataType | None:
    found: DataType = fields
    for part in path.split("."):
        if not isinstance(found, StructType) or part not in found.names:
            return None
        found = found[part].dataType
    return found


def table_schema(table: StructType | None, plans: Sequence[TopicPlan]) -> StructType:
    """The event columns of the table after this batch."""
    known = StructType([f for f in (table or _EMPTY).fields if f.name.lower() not in RESERVED])
    return reduce(lambda found, each: schema_evolution.merge_structs(found, each.fields), plans, known)


def classified(
    records: DataFrame, plans: Sequence[TopicPlan], target: StructType, config: LakeConfig
) -> DataFrame:
    """Kafka's columns, `event` in the table's type, `reason` (null for an event), and the event's date."""
    parts = [_classified(records, each, target, config) for each in plans]
    return reduce(DataFrame.unionByName, parts)


def _classified(records: DataFrame, each: TopicPlan, target: StructType, config: LakeConfig) -> DataFrame:
    if each.topic is not None:
        records = records.where(sf.col("topic") == each.topic)
    if each.problem is not None:
        return records.withColumns(
            {
                "event": sf.lit(None).cast(target),
                "reason": sf.lit(each.problem),
                EVENT_DATE: sf.lit(None).cast("date"),
            }
        )
    decoded = decode(records, each.how, config.strings if each.how.kind != "avro" else ())
    event, decode_reason = sf.col("event"), sf.col("reason")
    time, time_problem = _time(each.fields, config.event.time)
    reason = sf.when(decode_reason.isNotNull(), decode_reason)
    if config.event.id is not None:
        identity = _at(event, config.event.id)
        reason = reason.when(sf.coalesce(identity, sf.lit("")) == "", f"missing {config.event.id}")
    if time_problem is not None:
        reason = reason.when(time_problem.isNotNull(), time_problem)
    fitted = schema_evolution.fit(event, each.fields, target)
    if fitted.conflict is not None:
        reason = reason.when(fitted.conflict.isNotNull(), fitted.conflict)
    return decoded.withColumns({"event": fitted.value, "reason": reason, EVENT_DATE: sf.to_date(time)})


def _at(event: Column, path: str) -> Column:
    return reduce(lambda found, part: found[part], path.split("."), event)


def _time(fields: StructType, path: str | None) -> tuple[Column, Column | None]:
    """An event's time as a timestamp, and why it has none."""
    if path is None:
        return sf.col("timestamp"), None
    raw = _at(sf.col("event"), path)
    kind = type_at(fields, path)
    if isinstance(kind, LongType):
        # A time outside this range would end the batch with an overflow.
        time = sf.when(raw.between(*MILLIS), sf.timestamp_millis(raw))
    elif isinstance(kind, StringType):
        time = sf.try_to_timestamp(raw)
    else:
        time = raw.cast("timestamp")
    problem = (
        sf.when(raw.isNull(), f"missing {path}")
        .when(time.isNull(), not_a(path, "a timestamp"))
        # Beyond these years a timestamp cannot be read back by Python and most others.
        .when(~sf.year(time).between(1, 9999), f"{path} out of range")
    )
    return time, problem


def events(rows: DataFrame, target: StructType) -> DataFrame:
    """The events among classified records: typed fields, origin, and the partition columns of the lake."""
    return rows.where(sf.col("reason").isNull()).select(
        *(sf.col("event")[name].alias(name) for name in target.names),
        sf.col("partition").alias(ORIGIN[0]),
        sf.col("offset").alias(ORIGIN[1]),
        sf.col("timestamp").alias(ORIGIN[2]),
        *_produced(),
        EVENT_DATE,
        TOPIC,
    )


def repartition_by_folder(events: DataFrame, folder: Sequence[str], writers: int) -> DataFrame:
    """Repartitions so that one task writes each folder, in one file, however many partitions the topic
    has; or `writers` tasks, which share the topic's partitions."""
    share = () if writers == 1 else (sf.pmod(sf.col(ORIGIN[0]), sf.lit(writers)),)
    return events.repartition(*folder, *share)


def dead_letters(rows: DataFrame) -> DataFrame:
    """The dead letters among classified records: the reason, their origin and their original bytes."""
    return rows.where(sf.col("reason").isNotNull()).select(*DEAD_LETTERS, *_produced(), TOPIC)


def _produced() -> list[Column]:
    return [column.alias(name) for name, column in produced_columns(sf.col("headers")).items()]


def header(headers: Column, name: str) -> Column:
    """The first value of a header as text; null if the record lacks the header."""
    return sf.get(sf.filter(headers, lambda one: one["key"] == name), sf.lit(0))["value"].cast("string")


def produced_columns(headers: Column) -> dict[str, Column]:
    """The three columns, by name, from Spark's `headers` column (Kafka source with includeHeaders)."""
    stamp = header(headers, PRODUCED_HEADER)
    at_ms = sf.split_part(stamp, sf.lit("/"), sf.lit(1)).try_cast("bigint")
    number = sf.split_part(stamp, sf.lit("/"), sf.lit(2)).try_cast("bigint")
    producer = header(headers, PRODUCER_HEADER)
    # All of it or nothing: half a name would count as a record of its own, and a time beyond AT_MS_MAX would
    # end the batch with an overflow.
    whole = (sf.length(producer) > 0) & at_ms.between(0, AT_MS_MAX) & (number >= 0)
    return {
        PRODUCER: sf.when(whole, producer),
        PRODUCED_AT: sf.when(whole, sf.timestamp_millis(at_ms)),
        PRODUCED_NUMBER: sf.when(whole, number),
    }
