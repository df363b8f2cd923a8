"""What a job's configuration says of its records' format. Plain models: nothing is looked up here.

    format: {type: json, fields: "id STRING, event_time TIMESTAMP"}
    format: {type: avro}                                   # registry's framing, subject <topic>-value
    format: {type: avro, framing: none, schemaFile: order.avsc}
    format: {type: jsonSchema, subject: orders, readerVersion: 3}

Reader schema: `schemaFile` if given, else `readerVersion` of the subject, else the subject's latest.
`subject` may hold `{topic}`.
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
    """One JSON object a record; `fields` is Spark DDL. Fields that the DDL lacks are left out."""

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
            raise ValueError("framing none needs schemaFile: no registry is asked")
        if self.schema_file is not None and self.reader_version is not None:
            raise ValueError("give schemaFile or readerVersion, not both")
        return self

    def subject_of(self, topic: str) -> str:
        return self.subject.replace("{topic}", topic)

    def schema_text(self) -> str | None:
        """The configured reader schema. Raises ValueError for a file that holds none."""
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
    """Avro's binary encoding, behind a magic byte and a schema id (`framing: registry`) or bare."""

    type: Literal["avro"]


class JsonSchemaFormat(_Registered):
    """JSON that is validated by the schema it was written with, and lands as the reader schema says."""

    type: Literal["jsonSchema"]


Format = Annotated[JsonFormat | AvroFormat | JsonSchemaFormat, Field(discriminator="type")]
