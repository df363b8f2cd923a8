"""The formats of records: their configuration (plain models), and the registry's framing of values.

    format: {type: json, fields: "id STRING, event_time TIMESTAMP"}
    format: {type: avro}                                   # registry's framing, subject <topic>-value
    format: {type: avro, framing: none, schemaFile: order.avsc}
    format: {type: jsonSchema, subject: orders, readerVersion: 3}

The reader schema is `schemaFile` if set, else version `readerVersion` of the subject, else the subject's
latest version. `subject` may contain `{topic}`.

A framed value has a zero byte, the writer schema's id in four bytes (big-endian), and the encoded value.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from ottla_pipeline.config.common import Model


class SchemaUnusable(Exception):
    """A schema cannot be used to read records; the message says which one and why."""


class JsonFormat(Model):
    """One JSON object per record; `fields` is Spark DDL. Other fields of the object are ignored."""

    type: Literal["json"]
    fields: str = Field(min_length=1)


class _Registered(Model):
    framing: Literal["registry", "none"] = "registry"
    subject: str = "{topic}-value"
    reader_version: int | None = Field(default=None, ge=1)
    schema_file: str | None = None

    @model_validator(mode="after")
    def _one_reader(self) -> Self:
        if self.framing == "none" and self.schema_file is None:
            raise ValueError("framing none needs schemaFile, because no registry is used")
        if self.schema_file is not None and self.reader_version is not None:
            raise ValueError("give schemaFile or readerVersion, not both")
        return self

    def subject_of(self, topic: str) -> str:
        return self.subject.replace("{topic}", topic)

    def schema_text(self) -> str | None:
        """The configured reader schema. Raises ValueError if the file is not JSON or cannot be read."""
        if self.schema_file is None:
            return None
        try:
            text = Path(self.schema_file).read_text()
            json.loads(text)
        except OSError as error:
            raise ValueError(f"schemaFile {self.schema_file}: {error.strerror}") from error
        except ValueError as error:
            raise ValueError(f"schemaFile {self.schema_file}: not JSON: {error}") from error
        return text


class AvroFormat(_Registered):
    """Avro's binary encoding, after a magic byte and a schema id (`framing: registry`) or without them."""

    type: Literal["avro"]


class JsonSchemaFormat(_Registered):
    """JSON that is validated with its writer's schema and decoded with the reader schema."""

    type: Literal["jsonSchema"]


Format = Annotated[JsonFormat | AvroFormat | JsonSchemaFormat, Field(discriminator="type")]


MAGIC = 0
HEADER_BYTES = 5

NO_VALUE = "no value"
UNKNOWN_SCHEMA = "unknown schema id"
NOT_FRAMED = "no schema id: not in the registry's framing"


def has_framing(value: Column) -> Column:
    """Whether a value may have the framing: at least five bytes, the first one zero."""
    return (sf.length(value) >= HEADER_BYTES) & (sf.hex(sf.substring(value, 1, 1)) == "00")


def schema_id(value: Column) -> Column:
    """The writer schema's id (a long); null if the value has no framing."""
    return sf.when(has_framing(value), sf.conv(sf.hex(sf.substring(value, 2, 4)), 16, 10).cast("long"))


def framed_body(value: Column) -> Column:
    """The bytes after the id."""
    return sf.substring(value, HEADER_BYTES + 1, 2**31 - 1)


def writer_ids(records: DataFrame) -> dict[str, set[int]]:
    """By topic, the schema ids of these records (an empty set for a topic without framed values).

    This reads the records once: persist them if they are read again.
    """
    found = records.select("topic", schema_id(sf.col("value")).alias("id")).distinct().collect()
    ids: dict[str, set[int]] = {}
    for row in found:
        ids.setdefault(row["topic"], set()).update(() if row["id"] is None else (row["id"],))
    return ids
