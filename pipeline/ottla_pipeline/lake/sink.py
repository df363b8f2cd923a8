"""What both sinks have in common: what a batch came to, whose checkpoint it is, batches kept to look twice.

Called by the sinks and the jobs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as sf

from ottla_pipeline.decoding.formats import JsonFormat
from ottla_pipeline.filesystem import FileSystem
from ottla_pipeline.lake.config import DeltaSink, LakeConfig

OBSERVED_S = 10.0
EVENTS_MS = 50


@dataclass(frozen=True, slots=True)
class Landed:
    """What one change added."""

    events: int
    dead_letters: int
    files: int | None = None


class RecordCounts:
    """RecordCounts the events and the dead letters of a batch while it is written."""

    def __init__(self, classified: DataFrame) -> None:
        self._observation = Observation()
        bad = sf.col("reason").isNotNull()
        self._columns = (sf.count_if(~bad).alias("events"), sf.count_if(bad).alias("bad"))
        self._classified = classified
        self.counted = classified.observe(self._observation, *self._columns)

    def landed(self) -> Landed:
        """Once `counted` has been written. Spark loses what was observed where a plan gave no rows, and its
        own `get` waits for that without end: so it is counted anew if it has not come with Spark's events."""
        until = time.monotonic() + OBSERVED_S
        java: Any = self._observation._jo
        while not java.future().isCompleted() and time.monotonic() < until:
            if self._no_event_is_left():
                break
        if java.future().isCompleted():
            found = self._observation.get
            return Landed(found["events"], found["bad"])
        row = self._classified.agg(*self._columns).first()
        assert row is not None, "an aggregate without keys has one row"
        return Landed(row["events"], row["bad"])

    def _no_event_is_left(self) -> bool:
        """Whether Spark's listeners have had all its events, after a moment's wait: that of the writing's end
        was among them."""
        bus: Any = self._classified.sparkSession.sparkContext._jsc.sc().listenerBus()
        try:
            bus.waitUntilEmpty(EVENTS_MS)
        except Py4JError:  # a TimeoutException
            return False
        return True


class Lake(Protocol):
    """A sink, as the jobs use it."""

    files: FileSystem

    def check_owner(self) -> None: ...
    def land(self, records: DataFrame, batch_id: int) -> Landed | None: ...
    def add(self, records: DataFrame, *, replayed: bool) -> Landed: ...
    def origins(self) -> DataFrame | None: ...
    def dead_letters(self, *, with_replayed: bool = False) -> DataFrame | None: ...
    def mark(self, dead: DataFrame) -> None: ...


def query_id(files: FileSystem, checkpoint: str) -> str | None:
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
