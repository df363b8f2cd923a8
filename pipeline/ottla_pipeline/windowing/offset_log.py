"""The input of a batch: its offsets and watermarks, from Spark's offset log.

Called by `batch`, on the driver. Spark writes `CHECKPOINT/offsets/N` before batch N runs and uses it again
after a crash: the end offsets, and the watermark. So these values are the same in every run of the batch.

Two watermarks matter in a batch (Spark's stateful operators, since 3.5): a record is late by the watermark
of the *previous* batch; windows are closed by that of the batch itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ottla_pipeline.filesystem import FileSystem
from ottla_pipeline.progress import Offsets, parse_offsets

_NONE = "-"
_VERSION = "v1"


@dataclass(frozen=True, slots=True)
class OffsetLogEntry:
    """One entry of the offset log: the watermark in microseconds since 1970, and the end offsets of each
    source."""

    watermark_us: int
    ends: tuple[Offsets | None, ...]


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition; `end` is exclusive."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class BatchInputs:
    """The input of one batch. `sources` are in the order in which the plan reads them."""

    late_by_us: int
    watermark_us: int
    sources: tuple[tuple[Range, ...], ...]


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


def ranges(start: Offsets, end: Offsets) -> tuple[Range, ...]:
    """The offsets between `start` and `end`; a new partition was read from its beginning."""
    return tuple(
        Range(topic, partition, start.get((topic, partition), 0), stop)
        for (topic, partition), stop in sorted(end.items())
        if stop > start.get((topic, partition), 0)
    )


class OffsetLog:
    """The offset log of one checkpoint."""

    def __init__(self, files: FileSystem, checkpoint: str) -> None:
        self._files = files
        self._checkpoint = checkpoint.rstrip("/")

    def batch_inputs(self, batch_id: int) -> BatchInputs:
        """The input of a batch; its entry and the previous one must be in the log (Spark keeps 100)."""
        entry = self._entry(batch_id)
        before = self._entry(batch_id - 1) if batch_id else OffsetLogEntry(0, (None,) * len(entry.ends))
        sources = []
        for number, end in enumerate(entry.ends):
            start = before.ends[number]
            if start is None and end is not None:
                start = parse_initial(self._files.read(f"{self._checkpoint}/sources/{number}/0"))
            sources.append(ranges(start or {}, end or {}))
        return BatchInputs(before.watermark_us, entry.watermark_us, tuple(sources))

    def _entry(self, batch_id: int) -> OffsetLogEntry:
        return parse_entry(self._files.read(f"{self._checkpoint}/offsets/{batch_id}"))
