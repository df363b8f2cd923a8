"""Decodes Avro values to a struct with spark-avro's `from_avro`: one expression for each writer schema.

Called by `plans`. Schemas are changed before Spark uses them:

- References to other schemas of the registry are resolved: each named type is inlined at its first use
  (`inline_references`).
- Under PERMISSIVE, `from_avro` returns a struct of nulls for corrupt bytes, which a valid record of nulls
  equals. So the reader schema gets an additional field with the default true (`with_marker`): decoded records
  have it, corrupt bytes do not.

A corrupt value of eleven bytes can declare a string of 1.5 GB, and Avro's decoder allocates it: one such
record would end the executor with an OutOfMemoryError on every attempt. `set_decoder_limits` sets Avro's
limits in the driver; executors get them on their command line (`EXECUTOR_OPTIONS`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import StructType

from ottla_pipeline.decoding import formats
from ottla_pipeline.decoding.formats import SchemaUnusable

MARKER = "__ottla_decoded"
_NAMED = ("record", "error", "enum", "fixed")


def parse_schema(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise SchemaUnusable(f"not an Avro schema: {error}") from error


def inline_references(text: str, references: Mapping[str, str]) -> str:
    """The schema with the named types of `references` (texts by name) inlined at their first use."""
    if not references:
        return text
    return json.dumps(_Inliner(references).visit(parse_schema(text), ""))


class _Inliner:
    """Visits a schema in the order of Avro's parsers, because a name is defined at its first use."""

    def __init__(self, references: Mapping[str, str]) -> None:
        self._texts = references
        self._defined: set[str] = set()

    def visit(self, schema: Any, namespace: str) -> Any:
        if isinstance(schema, str):
            full = schema if "." in schema or not namespace else f"{namespace}.{schema}"
            name = full if full in self._texts else schema
            if name in self._defined or name not in self._texts:
                return schema
            self._defined.add(name)
            return self.visit(parse_schema(self._texts[name]), "")
        if isinstance(schema, list):
            return [self.visit(each, namespace) for each in schema]
        if not isinstance(schema, dict):
            return schema
        kind = schema.get("type")
        if kind in _NAMED:
            name = str(schema.get("name", ""))
            namespace = name.rpartition(".")[0] or str(schema.get("namespace", namespace))
            self._defined.add(name if "." in name or not namespace else f"{namespace}.{name}")
        made = dict(schema)
        if kind in ("record", "error"):
            made["fields"] = [f | {"type": self.visit(f["type"], namespace)} for f in schema["fields"]]
        elif kind == "array":
            made["items"] = self.visit(schema["items"], namespace)
        elif kind == "map":
            made["values"] = self.visit(schema["values"], namespace)
        elif not isinstance(kind, str):
            made["type"] = self.visit(kind, namespace)
        return made


def with_marker(reader: str) -> str:
    """The reader schema with the marker field. Raises SchemaUnusable if it is not a record."""
    schema = parse_schema(reader)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise SchemaUnusable("the reader schema must be a record: its fields become columns")
    if not schema.get("fields"):
        raise SchemaUnusable("the reader schema has no fields")
    mark = {"name": MARKER, "type": "boolean", "default": True}
    return json.dumps(schema | {"fields": [*schema["fields"], mark]})


LENGTH_MAX = 16 << 20
LIMITS = {
    f"org.apache.avro.limits.{what}.maxLength": str(LENGTH_MAX)
    for what in ("string", "bytes", "collectionItems")
}
EXECUTOR_OPTIONS = " ".join(f"-D{name}={value}" for name, value in LIMITS.items())
UNREADABLE = "broken Avro, or not readable with the schema in force"


def set_decoder_limits(spark: SparkSession) -> None:
    """Sets limits of Avro's decoder in this JVM, before its first use; existing values stay."""
    jvm: Any = spark.sparkContext._jvm
    system = jvm.java.lang.System
    for name, value in LIMITS.items():
        if system.getProperty(name) is None:
            system.setProperty(name, value)


def struct_of(spark: SparkSession, reader: str) -> StructType:
    """The reader schema as a Spark type. Raises SchemaUnusable if Avro or Spark rejects it."""
    try:
        empty = spark.range(0).select(
            _read(sf.lit(None).cast("binary"), with_marker(reader), reader).alias("e")
        )
        struct = empty.schema["e"].dataType
    except SchemaUnusable:
        raise
    except Exception as error:  # Avro's own come through Py4J, under many names
        raise SchemaUnusable(f"not a schema that Spark can read: {_first_line(error)}") from error
    assert isinstance(struct, StructType)
    return StructType([field for field in struct.fields if field.name != MARKER])


def check_writer(spark: SparkSession, writer: str, reader: str) -> str | None:
    """Why values written with `writer` can never be read with `reader`; None if they may be readable."""
    try:
        spark.range(0).select(_read(sf.lit(None).cast("binary"), writer, reader)).schema  # noqa: B018
    except Exception as error:
        return _first_line(error)
    return None


def decode_framed(
    records: DataFrame,
    reader: str,
    fields: StructType,
    writers: Mapping[int, str],
    problems: Mapping[int, str],
) -> DataFrame:
    """Adds `event` and `reason`. `writers` are schemas by id; `problems` are reasons by id."""
    value = sf.col("value")
    identity, rest = sf.col("_id"), formats.framed_body(value)
    event: Any = sf if writers else sf.lit(None).cast(fields)  # the chain of `when` begins at the module's
    for number, writer in sorted(writers.items()):
        event = event.when(identity == number, _read(rest, writer, reader))
    reason = sf.when(value.isNull(), formats.NO_VALUE).when(identity.isNull(), formats.NOT_FRAMED)
    for number, problem in sorted(problems.items()):
        reason = reason.when(identity == number, problem)
    known = identity.isin(*writers) if writers else sf.lit(False)
    unknown = sf.concat(sf.lit(f"{formats.UNKNOWN_SCHEMA} "), identity.cast("string"))
    reason = reason.when(~known, unknown)
    if writers:
        corrupt = sf.concat(sf.lit("schema id "), identity.cast("string"), sf.lit(f": {UNREADABLE}"))
        reason = reason.when(sf.col("_event")[MARKER].isNull(), corrupt)
    with_id = records.withColumn("_id", formats.schema_id(value))
    return _finish(with_id.withColumn("_event", event), reason, fields).drop("_id")


def decode_bare(records: DataFrame, reader: str, fields: StructType) -> DataFrame:
    """Adds `event` and `reason`, for values without the registry's framing."""
    value = sf.col("value")
    parsed = records.withColumn("_event", _read(value, reader, reader))
    reason = sf.when(value.isNull(), formats.NO_VALUE).when(sf.col("_event")[MARKER].isNull(), UNREADABLE)
    return _finish(parsed, reason, fields)


def _finish(parsed: DataFrame, reason: Column, fields: StructType) -> DataFrame:
    landed = sf.struct(*(sf.col("_event")[name].alias(name) for name in fields.names))
    return parsed.withColumns({"reason": reason, "event": sf.when(reason.isNull(), landed)}).drop("_event")


def _read(value: Column, writer: str, reader: str) -> Column:
    column: Column = from_avro(value, writer, {"avroSchema": with_marker(reader), "mode": "PERMISSIVE"})
    return column


def _first_line(error: Exception) -> str:
    text = str(error)
    if not isinstance(error, PySparkException):  # of Py4J: Java's message is in the second line
        text = text.partition("\n")[2] or text
    return next((line.strip() for line in text.splitlines() if line.strip().strip(":")), "?")[:300]
