"""What both sinks have in common: what a batch came to, whose checkpoint it is, batches kept to look twice.

Called by the sinks and the jobs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame

from ottla_pipeline.decoding.formats import JsonFormat
from ottla_pipeline.lake.config import DeltaSink, LakeConfig
from ottla_pipeline.lake.files import Files


@dataclass(frozen=True, slots=True)
class Landed:
    """What one change added."""

    events: int
    dead_letters: int
    files: int | None = None


class Lake(Protocol):
    """A sink, as the jobs use it."""

    files: Files

    def check_owner(self) -> None: ...
    def land(self, records: DataFrame, batch_id: int) -> Landed | None: ...
    def add(self, records: DataFrame, *, replayed: bool) -> Landed: ...
    def origins(self) -> DataFrame | None: ...
    def dead_letters(self, *, with_replayed: bool = False) -> DataFrame | None: ...
    def mark(self, dead: DataFrame) -> None: ...


def query_id(files: Files, checkpoint: str) -> str | None:
    """The id that Spark gave the query of this checkpoint, None before its first start."""
    path = f"{checkpoint}/metadata"
    return str(json.loads(files.read(path))["id"]) if files.exists(path) else None


@contextmanager
def persisted(records: DataFrame, config: LakeConfig) -> Iterator[DataFrame]:
    """A batch that is kept (in memory, then on disk) if it has to be read more than once."""
    tables = isinstance(config.sink, DeltaSink) and config.sink.tables == "perTopic"
    if isinstance(config.format, JsonFormat) and not tables:
        yield records
        return
    kept = records.persist()
    try:
        yield kept
    finally:
        kept.unpersist()
