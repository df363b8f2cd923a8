"""Spark's checkpoints: the id of a query, and the offsets and watermarks of its batches.

Called on the driver by sinks, by the lake's backfill and by `windowing`. Spark writes `CHECKPOINT/offsets/N`
before batch N runs and uses it again after a crash: the end offsets, and the watermark. So these values are
the same in every run of the batch. It writes `CHECKPOINT/commits/N` after the batch. Offsets are those of the
next record, as in Kafka's consumer groups.

Two watermarks matter in a batch (Spark's stateful operators, since 3.5): a record is late by the watermark
of the *previous* batch; windows are closed by that of the batch itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from ottla_pipeline.filesystem import FileSystem

Offsets = dict[tuple[str, int], int]
"""By topic and partition."""
_NONE = "-"
_VERSION = "v1"


class OffsetRange(NamedTuple):
    """A range of offsets of one partition; `end` is exclusive."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class OffsetLogEntry:
    """One entry of the offset log: the watermark in microseconds since 1970, and the end offsets of each
    source."""

    watermark_us: int
    ends: tuple[Offsets | None, ...]


@dataclass(frozen=True, slots=True)
class BatchInputs:
    """The input of one batch. `sources` are in the order in which the plan reads them."""

    late_by_us: int
    watermark_us: int
    sources: tuple[tuple[OffsetRange, ...], ...]


def parse_offsets(text: str) -> Offsets:
    """Parses Spark's offset JSON, `{"topic": {"0": 23}}`. Raises AttributeError, TypeError or ValueError for
    the formats of other sources."""
    return {(topic, int(p)): int(at) for topic, parts in json.loads(text).items() for p, at in parts.items()}


def parse_entry(text: str) -> OffsetLogEntry:
    """Parses a file of `offsets/`: a version, a line about the batch, a line for each source."""
    version, about, *sources = text.splitlines()
    if version != _VERSION:
        raise ValueError(f"a checkpoint of version {version!r}; {_VERSION!r} is known")
    ends = tuple(None if line == _NONE else parse_offsets(line) for line in sources)
    return OffsetLogEntry(int(json.loads(about)["batchWatermarkMs"]) * 1000, ends)


def parse_initial(text: str) -> Offsets:
    """Parses a file of `sources/`, the start offsets of a source. Kafka's source puts a zero byte before
    it."""
    version, line = text.lstrip("\0").split("\n", 1)
    if version != _VERSION:
        raise ValueError(f"a source of version {version!r}; {_VERSION!r} is known")
    return parse_offsets(line)


def offset_ranges(start: Mapping[tuple[str, int], int], end: Offsets) -> tuple[OffsetRange, ...]:
    """The offsets between `start` and `end`; a partition without a start begins at 0."""
    return tuple(
        OffsetRange(topic, partition, start.get((topic, partition), 0), stop)
        for (topic, partition), stop in sorted(end.items())
        if stop > start.get((topic, partition), 0)
    )


def read_ranges(spark: SparkSession, options: Mapping[str, str], ranges: Iterable[OffsetRange]) -> DataFrame:
    """Exactly the records of these ranges; an error if some have been deleted."""
    partitions: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for one in ranges:
        partitions.setdefault(one.topic, []).append(one.partition)
        starts.setdefault(one.topic, {})[str(one.partition)] = one.start
        ends.setdefault(one.topic, {})[str(one.partition)] = one.end
    return (
        spark.read.format("kafka")
        .options(**options, includeHeaders="true", failOnDataLoss="true", assign=json.dumps(partitions))
        .options(startingOffsets=json.dumps(starts), endingOffsets=json.dumps(ends))
        .load()
    )


class Checkpoint:
    """The checkpoint of one query."""

    def __init__(self, files: FileSystem, folder: str) -> None:
        self._files = files
        self._folder = folder.rstrip("/")

    def query_id(self) -> str | None:
        """The id of the query, None before its first start."""
        path = f"{self._folder}/metadata"
        return str(json.loads(self._files.read(path))["id"]) if self._files.exists(path) else None

    def running_query_id(self) -> str:
        """The id of the query whose batch is running."""
        found = self.query_id()
        assert found is not None, "Spark writes the checkpoint's metadata before the first batch"
        return found

    def processed_offsets(self) -> Offsets | None:
        """The end offsets of the last completed batch; None if no batch has completed. For a query with one
        source."""
        done = [int(name) for name in self._files.names(f"{self._folder}/commits") if name.isdecimal()]
        return self._entry(max(done)).ends[0] if done else None

    def batch_inputs(self, batch_id: int) -> BatchInputs:
        """The input of a batch; its entry and the previous one must be in the log (Spark keeps 100)."""
        entry = self._entry(batch_id)
        before = self._entry(batch_id - 1) if batch_id else OffsetLogEntry(0, (None,) * len(entry.ends))
        sources = []
        for number, end in enumerate(entry.ends):
            start = before.ends[number]
            if start is None and end is not None:
                start = parse_initial(self._files.read(f"{self._folder}/sources/{number}/0"))
            sources.append(offset_ranges(start or {}, end or {}))
        return BatchInputs(before.watermark_us, entry.watermark_us, tuple(sources))

    def _entry(self, batch_id: int) -> OffsetLogEntry:
        return parse_entry(self._files.read(f"{self._folder}/offsets/{batch_id}"))
