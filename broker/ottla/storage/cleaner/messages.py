"""Messages between the broker and the cleaner's worker process: lines of JSON over its standard input and
output.

The broker (`ottla.server.logs`) sends a Job. For each group of segments the worker writes one `.cleaned`
segment, answers Cleaned, and waits until the broker has replaced the segments (Continue). A job ends with
Done, Failed or, after an Abort, Aborted.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from ottla.storage.cleaner.batch_filter import Counts


@dataclass(slots=True)
class Job:
    """Clean a log from its first segment up to `upper_bound`. Times are milliseconds, sizes bytes."""

    directory: str
    sources: list[tuple[int, int, int, int]]
    """The segments below `upper_bound`, in order, as `planning.SourceSegment`."""
    first_dirty: int
    upper_bound: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_bytes: int
    index_interval_bytes: int
    map_bytes: int
    """log.cleaner.dedupe.buffer.size, of one worker"""
    load_factor: float
    buffer_bytes: int
    """log.cleaner.io.buffer.size, of one worker"""
    aborted: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Aborted transactions that reach into the log below `upper_bound`, as `indexes.AbortedTransaction`."""
    producers: list[tuple[int, int, int]] = field(default_factory=list)
    """Producer id, offset and epoch of what active producers wrote last, as `batch_filter.LastOfProducer`."""


@dataclass(slots=True)
class Continue:
    """The broker has replaced the segments by the cleaned one."""


@dataclass(slots=True)
class Abort:
    """Stop the job: the log has changed."""


@dataclass(slots=True)
class Cleaned:
    """The `.cleaned` files with `size` bytes of log can replace the segments with these base offsets."""

    bases: list[int]
    size: int


@dataclass(slots=True)
class Done:
    """The log is cleaned before `end_offset`."""

    end_offset: int
    counts: Counts
    map_bytes_read: int
    map_utilization: float
    elapsed_ms: int
    index_elapsed_ms: int


@dataclass(slots=True)
class Failed:
    """The job has failed; `errno` is set for an OSError."""

    message: str
    errno: int | None = None


@dataclass(slots=True)
class Aborted:
    """The job was stopped by an Abort or because its files do not exist any more."""


Order = Job | Continue | Abort
Answer = Cleaned | Done | Failed | Aborted

_KINDS: dict[str, Any] = {
    kind.__name__: kind for kind in (Job, Continue, Abort, Cleaned, Done, Failed, Aborted)
}


def encode(message: Order | Answer) -> bytes:
    """Encode a message as one line."""
    return json.dumps([type(message).__name__, asdict(message)]).encode() + b"\n"


def decode(line: bytes) -> Any:
    """Decode a line. Raises ValueError for an invalid one."""
    try:
        name, fields = json.loads(line)
        message = _KINDS[name](**fields)
    except (KeyError, TypeError) as problem:
        raise ValueError(f"not a message: {line[:100]!r}") from problem
    if isinstance(message, Done):
        message.counts = Counts(**fields["counts"])
    return message
