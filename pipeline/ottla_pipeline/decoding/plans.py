"""Decoding plans: all that is needed to decode a batch of one format, and the decoding itself.

Called by jobs: `plan` (uses the registry), then `decode` (pure). Streams without `foreachBatch` plan once,
with `registered_ids`, and again when they meet a reason that begins with `formats.UNKNOWN_SCHEMA`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructType

from ottla.client.registry import NotRegistered, Schema, Version
from ottla_pipeline.decoding import avro, formats, json_schemas, json_values
from ottla_pipeline.decoding.formats import AvroFormat, JsonFormat, JsonSchemaFormat, SchemaUnusable

BARE = 0  # the place of the only schema, where there is no framing
_TYPES = {"avro": "AVRO", "jsonSchema": "JSON"}


class SchemaRegistry(Protocol):
    """The operations of a registry that plans use; `ottla.client.registry.RegistryClient` has them."""

    def schema(self, schema_id: int) -> Schema: ...
    def latest(self, subject: str) -> Version: ...
    def version(self, subject: str, version: int) -> Version: ...
    def versions(self, subject: str) -> list[int]: ...
    def referenced(self, schema: Schema) -> dict[str, Schema]: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """How to decode. `fields` are those of the event; `writers` are schemas by id, `problems` are reasons
    by id."""

    kind: str
    fields: StructType
    reader: str = ""
    framed: bool = False
    writers: Mapping[int, tuple[str, Mapping[str, str]]] = field(default_factory=dict)
    problems: Mapping[int, str] = field(default_factory=dict)


def plan(
    spark: SparkSession,
    form: JsonFormat | AvroFormat | JsonSchemaFormat,
    *,
    topic: str = "",
    registry: SchemaRegistry | None = None,
    ids: Iterable[int] = (),
) -> Plan:
    """The plan for records of one topic (or of several topics with one subject) that were written with the
    schemas `ids`.

    Raises SchemaUnusable if there is no usable reader schema, and the registry's errors if it does not
    respond. An id that is not registered is no error: it is the reason of its records.
    """
    if isinstance(form, JsonFormat):
        return Plan("json", ddl(form.fields))
    framed = form.framing == "registry"
    if framed and registry is None:
        raise SchemaUnusable(f"format {form.type}: framing registry needs the registry's url")
    try:
        text = form.schema_text()
    except ValueError as error:
        raise SchemaUnusable(str(error)) from error
    references: dict[str, str] = {}
    if text is None:
        assert registry is not None, "without a registry there is a schema file"
        text, references = _latest(registry, form, topic)
    if isinstance(form, AvroFormat):
        avro.set_decoder_limits(spark)
        reader = avro.inline_references(text, references)
        fields = avro.struct_of(spark, reader)
    else:
        reader = text
        fields = json_schemas.struct_of(text, references)
    writers: dict[int, tuple[str, Mapping[str, str]]] = {} if framed else {BARE: (reader, references)}
    problems: dict[int, str] = {}
    for number in sorted(set(ids)) if framed else ():
        assert registry is not None
        try:
            writers[number] = _writer(spark, registry, form, number, reader)
        except SchemaUnusable as error:
            problems[number] = f"schema id {number}: {error}"
        except NotRegistered:
            problems[number] = f"{formats.UNKNOWN_SCHEMA} {number}"
    return Plan(form.type, fields, reader, framed, writers, problems)


def registered_ids(registry: SchemaRegistry, subject: str) -> list[int]:
    """The ids of all versions of a subject, for streams whose ids cannot be determined before the start."""
    return [registry.version(subject, version).id for version in registry.versions(subject)]


def ddl(text: str) -> StructType:
    """Spark DDL as a struct (requires a running session). Raises SchemaUnusable."""
    try:
        found = StructType.fromDDL(text)
    except PySparkException as error:
        raise SchemaUnusable(f"fields {text!r} are no DDL: {str(error).splitlines()[0]}") from error
    if not isinstance(found, StructType):
        raise SchemaUnusable(f"fields {text!r} must be a list of columns, like 'id STRING'")
    return found


def decode(records: DataFrame, how: Plan, strings: Sequence[str] = ()) -> DataFrame:
    """Adds `event` and `reason` to Kafka's columns. `strings` are fields that must be JSON strings."""
    if how.kind == "json":
        return json_values.decode_json(records, sf.col("value"), how.fields, strings)
    if how.kind == "avro":
        if not how.framed:
            return avro.decode_bare(records, how.reader, how.fields)
        texts = {number: writer for number, (writer, _) in how.writers.items()}
        return avro.decode_framed(records, how.reader, how.fields, texts, how.problems)
    return _decode_json_schema(records, how, strings)


def _decode_json_schema(records: DataFrame, how: Plan, strings: Sequence[str]) -> DataFrame:
    value = sf.col("value")
    number = formats.schema_id(value) if how.framed else sf.lit(BARE).cast("long")
    body = formats.framed_body(value) if how.framed else value
    validate = sf.udf(json_schemas.Validation(how.writers), StringType())
    with_id = records.withColumns({"_id": number, "_body": body})
    validated = with_id.withColumn("_invalid", validate(sf.col("_body"), sf.col("_id")))
    # `reason` is now that of the JSON body; reasons of the framing and the schema take precedence.
    parsed = json_values.decode_json(validated, sf.col("_body"), how.fields, strings)
    identity = sf.col("_id")
    reason = sf.when(value.isNull(), formats.NO_VALUE).when(identity.isNull(), formats.NOT_FRAMED)
    for each, problem in sorted(how.problems.items()):
        reason = reason.when(identity == each, problem)
    known = identity.isin(*how.writers) if how.writers else sf.lit(False)
    reason = reason.when(~known, sf.concat(sf.lit(f"{formats.UNKNOWN_SCHEMA} "), identity.cast("string")))
    reason = reason.when(sf.col("_invalid").isNotNull(), sf.col("_invalid")).otherwise(sf.col("reason"))
    with_reason = parsed.withColumn("reason", reason)
    return with_reason.withColumn("event", sf.when(sf.col("reason").isNull(), sf.col("event"))).drop(
        "_id", "_body", "_invalid"
    )


def _latest(
    registry: SchemaRegistry, form: AvroFormat | JsonSchemaFormat, topic: str
) -> tuple[str, dict[str, str]]:
    subject = form.subject_of(topic)
    try:
        if form.reader_version is None:
            found = registry.latest(subject)
        else:
            found = registry.version(subject, form.reader_version)
    except NotRegistered as error:
        raise SchemaUnusable(f"subject {subject}: {error}") from error
    return _text(registry, found.schema, form.type, f"subject {subject}")


def _text(registry: SchemaRegistry, schema: Schema, kind: str, what: str) -> tuple[str, dict[str, str]]:
    if schema.type != _TYPES[kind]:
        raise SchemaUnusable(f"{what} is of type {schema.type}, not {_TYPES[kind]}")
    return schema.text, {name: other.text for name, other in registry.referenced(schema).items()}


def _writer(
    spark: SparkSession,
    registry: SchemaRegistry,
    form: AvroFormat | JsonSchemaFormat,
    number: int,
    reader: str,
) -> tuple[str, Mapping[str, str]]:
    text, references = _text(registry, registry.schema(number), form.type, "it")
    if isinstance(form, AvroFormat):
        text, references = avro.inline_references(text, references), {}
        problem = avro.check_writer(spark, text, reader)
        if problem is not None:
            raise SchemaUnusable(problem)
    else:
        json_schemas.validator_of(text, references)
    return text, references
