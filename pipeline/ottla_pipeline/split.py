"""Good from bad: turns Kafka records into typed events, each with the reason why it is none, if so.

Called by the lake job on every batch. Pure: column expressions over a DataFrame of Spark's Kafka source, no
action is run here. A record is an event when its value is one JSON object whose fields fit the schema, with a
non-empty id and a time. Fields that the JSON lacks are null; fields that the schema lacks are left out.

Two parsers look at each value, because one alone lets something by. `from_json` knows the schema, but turns
numbers into strings and times where a field asks for those (a string field may have it so; an id or a time
may not), and stops at the end of the first object, whatever follows it: a second event would be lost without
a word. `try_parse_json` stops there too, so it is given the value in brackets, where a second text shows.
"""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from ottla_pipeline.schema import EventSchema, SchemaError

CORRUPT = "_corrupt_record"
EVENT_DATE = "event_date"
TOPIC = "topic"
# Where a record came from, kept with every event: what an auditor asks for first.
ORIGIN = ("kafka_partition", "kafka_offset", "kafka_timestamp")

NO_VALUE = "no value"
NOT_JSON = "not JSON"
NOT_AN_OBJECT = "not a JSON object"


def check(schema: EventSchema) -> StructType:
    """The schema's fields as Spark types (needs a running session); SchemaError says what does not fit."""
    try:
        fields = StructType.fromDDL(schema.fields)
    except PySparkException as error:
        raise SchemaError(f"fields {schema.fields!r} are no DDL: {str(error).splitlines()[0]}") from error
    if not isinstance(fields, StructType):
        raise SchemaError(f"fields {schema.fields!r} must be a list of columns, like 'id STRING'")
    for name, wanted in ((schema.id_field, StringType()), (schema.time_field, TimestampType())):
        if name not in fields.names:
            raise SchemaError(
                f"fields {schema.fields!r} lack {name!r}, which is to be the event's id or time"
            )
        if fields[name].dataType != wanted:
            raise SchemaError(f"field {name!r} must be {wanted.simpleString()}")
    taken = sorted({EVENT_DATE, TOPIC, CORRUPT, *ORIGIN} & {name.lower() for name in fields.names})
    if taken:
        raise SchemaError(f"field {taken[0]!r}: the lake has a column of that name; rename the field")
    return fields


def not_a(field: str, kind: str) -> str:
    """The reason for a field that is there, with a value of another type."""
    return f"wrong type: {field} is not {kind}"


def kind_at(variant: Column, path: str) -> Column:
    """The kind of what stands at a path of a variant (STRING, OBJECT<…>, VOID for null); null if none."""
    return sf.schema_of_variant(sf.try_variant_get(variant, path, "variant"))


def wrong_type(text: Column, fields: StructType) -> Column:
    """Which field's type is not met, for a value already known not to fit as a whole."""
    reason = sf.lit("does not fit the schema")
    for field in reversed(fields.fields):
        alone = StructType([StructField(field.name, field.dataType), StructField(CORRUPT, StringType())])
        parsed = sf.from_json(text, alone, {"columnNameOfCorruptRecord": CORRUPT})
        kind = field.dataType.simpleString()
        reason = sf.when(parsed[CORRUPT].isNotNull(), not_a(field.name, kind)).otherwise(reason)
    return reason


def parse(records: DataFrame, schema: EventSchema) -> DataFrame:
    """Adds `event` (a struct of the schema's fields) and `reason` (null for an event) to Kafka's columns."""
    fields = check(schema)
    text = sf.col("value").cast("string")
    with_corrupt = StructType([*fields.fields, StructField(CORRUPT, StringType())])
    parsed = records.withColumns(
        {
            "event": sf.from_json(text, with_corrupt, {"columnNameOfCorruptRecord": CORRUPT}),
            "texts": sf.try_parse_json(sf.concat(sf.lit("["), text, sf.lit("]"))),
        }
    )
    event, texts = sf.col("event"), sf.col("texts")
    reason = (
        sf.when(sf.col("value").isNull(), NO_VALUE)
        .when(kind_at(texts, "$[0]").isNull() | kind_at(texts, "$[1]").isNotNull(), NOT_JSON)
        .when(~kind_at(texts, "$[0]").startswith("OBJECT"), NOT_AN_OBJECT)
        .when(event.isNull() | event[CORRUPT].isNotNull(), wrong_type(text, fields))
        .when(sf.coalesce(event[schema.id_field], sf.lit("")) == "", f"missing {schema.id_field}")
        .when(event[schema.time_field].isNull(), f"missing {schema.time_field}")
        .when(kind_at(texts, f"$[0]['{schema.id_field}']") != "STRING", not_a(schema.id_field, "string"))
        .when(
            kind_at(texts, f"$[0]['{schema.time_field}']") != "STRING", not_a(schema.time_field, "timestamp")
        )
        # Beyond these years a timestamp cannot be read back by Python and most others.
        .when(~sf.year(event[schema.time_field]).between(1, 9999), f"{schema.time_field} out of range")
    )
    return parsed.withColumn("reason", reason).drop("texts")


def events(parsed: DataFrame, schema: EventSchema) -> DataFrame:
    """The events of `parse`'s result: typed fields, origin, and the columns the lake is partitioned by."""
    names = check(schema).names
    return parsed.where(sf.col("reason").isNull()).select(
        *(sf.col("event")[name].alias(name) for name in names),
        sf.col("partition").alias(ORIGIN[0]),
        sf.col("offset").alias(ORIGIN[1]),
        sf.col("timestamp").alias(ORIGIN[2]),
        sf.to_date(sf.col("event")[schema.time_field]).alias(EVENT_DATE),
        sf.col("topic").alias(TOPIC),
    )


def dead_letters(parsed: DataFrame) -> DataFrame:
    """The other records of `parse`'s result, with the reason, their origin and their bytes as they were."""
    return parsed.where(sf.col("reason").isNotNull()).select(
        "reason", "partition", "offset", "timestamp", "key", "value", "topic"
    )
