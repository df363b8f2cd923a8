"""The configured format of a job's records. Plain models: nothing is looked up here.

    format: {type: json, fields: "id STRING, event_time TIMESTAMP"}
    format: {type: avro}                                   # registry's framing, subject <topic>-value
    format: {type: avro, framing: none, schemaFile: order.avsc}
    format: {type: jsonSchema, subject: orders, readerVersion: 3}

The reader schema is `schemaFile` if set, else version `readerVersion` of the subject, else the subject's
latest version. `subject` may contain `{topic}`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel


class _Model(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, alias_generator=to_camel, populate_by_name=True
    )


class JsonFormat(_Model):
    """One JSON object per record; `fields` is Spark DDL. Other fields of the object are ignored."""

    type: Literal["json"]
    fields: str = Field(min_length=1)


class _Registered(_Model):
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
