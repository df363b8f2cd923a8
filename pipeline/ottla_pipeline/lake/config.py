"""The lake's configuration: one file for the job itself and for the commands that look after its lake.

name: flights
kafka: {bootstrap: "127.0.0.1:9092"}
source: {topicPattern: 'flights\\..*'}
format: {type: json, fields: "id STRING, event_time TIMESTAMP, carrier STRING"}
event: {id: id, time: event_time}
sink: {type: parquet, path: /data/lake}
checkpoint: /data/checkpoint
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from ottla.client.registry import RegistryClient
from ottla_pipeline.config.common import Interval, JobConfig, Model, RegistryConfig, TopicsConfig
from ottla_pipeline.decoding.formats import Format, JsonFormat

Path = Annotated[str, Field(min_length=1)]
FieldPath = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$")]


class EventConfig(Model):
    """The fields (`a` or `a.b`) with an event's id and time. With `id`, a record without an id is no
    event; without `time`, Kafka's timestamp determines an event's partition."""

    id: FieldPath | None = None
    """The field with the id."""
    time: FieldPath | None = None
    """The field with the time."""


class Compaction(Model):
    """Files below `smallerThanMb` are small; a partition with at least `minFiles` of them is rewritten."""

    smaller_than_mb: Annotated[int, Field(ge=1)] = 64
    """The size below which a file is small."""
    min_files: Annotated[int, Field(ge=2)] = 4
    """How many small files a partition must have."""


class _SinkConfig(Model):
    path: Path
    dead_letters: Path | None = None
    writers_per_folder: Annotated[int, Field(ge=1)] = 1
    """Number of tasks, and files, of a batch for each date and topic; more than 1 helps where one topic has
    most of the records."""

    @property
    def dead_letters_path(self) -> str:
        return self.dead_letters or f"{self.path.rstrip('/')}-dead-letters"


class ParquetSinkConfig(_SinkConfig):
    """One table, by event date and topic, with a commit log beside its files."""

    type: Literal["parquet"]


class DeltaSinkConfig(_SinkConfig):
    """A Delta table for each topic below `path`; or one for all of them, at `path`."""

    type: Literal["delta"]
    tables: Literal["perTopic", "one"] = "perTopic"
    """A table for each topic, or one for all."""


class LakeConfig(JobConfig):
    """The configuration of the lake job, and of `lake-compact`, `replay` and `backfill` on the same lake."""

    JOB: ClassVar[str] = "lake"

    source: TopicsConfig
    """The topics."""
    format: Format
    """How records are decoded."""
    registry: RegistryConfig | None = None
    """The schema registry, for formats that need one."""
    event: EventConfig = EventConfig()
    """Where an event has its id and time."""
    sink: Annotated[ParquetSinkConfig | DeltaSinkConfig, Field(discriminator="type")]
    """Where rows are written."""
    compaction: Compaction = Compaction()
    """What lake-compact rewrites."""
    min_offsets_per_trigger: Annotated[int, Field(ge=1)] | None = None
    """Records that a batch waits for, at most maxTriggerDelay."""
    max_trigger_delay: Interval | None = None
    """How long it waits for them."""

    @model_validator(mode="after")
    def _a_registry(self) -> LakeConfig:
        framed = not isinstance(self.format, JsonFormat) and self.format.framing == "registry"
        if framed and self.registry is None:
            raise ValueError(f"format {self.format.type} with framing registry needs a registry")
        if self.max_trigger_delay is not None and self.min_offsets_per_trigger is None:
            raise ValueError("maxTriggerDelay says how long minOffsetsPerTrigger may wait: give both")
        return self

    def read_options(self) -> dict[str, str]:
        """Options of Spark's Kafka source."""
        least, delay = self.min_offsets_per_trigger, self.max_trigger_delay
        return {
            **self.source_options(self.source),
            "includeHeaders": "true",
            **({"minOffsetsPerTrigger": str(least)} if least is not None else {}),
            **({"maxTriggerDelay": delay} if delay is not None else {}),
        }

    def registry_client(self) -> RegistryClient | None:
        """The configured registry's client. Raises ValueError for settings that the client rejects,
        OSError for a missing file."""
        return None if self.registry is None else self.registry.client()

    @property
    def strings(self) -> tuple[str, ...]:
        """The fields that JSON must contain as strings."""
        return tuple(name for name in (self.event.id, self.event.time) if name is not None)
