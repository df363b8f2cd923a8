"""Shared by both sinks: the counts of a batch, persisted batches; and their common interface.

Called by the sinks and the jobs.
"""

from __future__ import annotations

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
from ottla_pipeline.lake.config import DeltaSinkConfig, LakeConfig

OBSERVED_S = 10.0
EVENTS_MS = 50


@dataclass(frozen=True, slots=True)
class Landed:
    """The number of records (and files) that one change added."""

    events: int
    dead_letters: int
    files: int | None = None


class RecordCounts:
    """Counts the events and the dead letters of a batch while it is written."""

    def __init__(self, classified: DataFrame) -> None:
        self._observation = Observation()
        bad = sf.col("reason").isNotNull()
        self._columns = (sf.count_if(~bad).alias("events"), sf.count_if(bad).alias("bad"))
        self._classified = classified
        self.counted = classified.observe(self._observation, *self._columns)

    def landed(self) -> Landed:
        """The counts, after `counted` has been written. Spark loses an observation if a plan returned no
        rows, and its own `get` then waits forever; so the counts are computed again if Spark's events do
        not have them."""
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
        """Whether Spark's listeners have processed all events, after a short wait: the event of the
        finished write was among them."""
        bus: Any = self._classified.sparkSession.sparkContext._jsc.sc().listenerBus()
        try:
            bus.waitUntilEmpty(EVENTS_MS)
        except Py4JError:  # a TimeoutException
            return False
        return True


class Lake(Protocol):
    """The interface of a sink that the jobs use."""

    files: FileSystem

    def check_owner(self) -> None: ...
    def land(self, records: DataFrame, batch_id: int) -> Landed | None: ...
    def add(self, records: DataFrame, *, replayed: bool) -> Landed: ...
    def origins(self) -> DataFrame | None: ...
    def dead_letters(self, *, with_replayed: bool = False) -> DataFrame | None: ...
    def mark(self, dead: DataFrame) -> None: ...


@contextmanager
def persisted(records: DataFrame, config: LakeConfig) -> Iterator[DataFrame]:
    """The batch, persisted (in memory, then on disk) if it is read more than once."""
    tables = isinstance(config.sink, DeltaSinkConfig) and config.sink.tables == "perTopic"
    if isinstance(config.format, JsonFormat) and not tables:
        yield records
        return
    kept = records.persist()
    try:
        yield kept
    finally:
        kept.unpersist()
