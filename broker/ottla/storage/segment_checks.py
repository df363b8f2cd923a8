"""Checks one segment offline: its batches, and its indexes against them. Reads only.

Called by `log_checks`. Index entries are compared with the log as Kafka's DumpLogSegments does it; in
addition, an index must not end too early. After a crash, the broker's recovery rebuilds the indexes
(`log_loader`): then their problems are notes, not errors.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from ottla.ports.files import Files, opened, read_file
from ottla.protocol.records import (
    BATCH_HEADER,
    MAGIC_V2,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    verify_crc,
)
from ottla.storage.indexes import AbortedTransaction, OffsetIndex, TimeIndex, TransactionIndex

_CHUNK_BYTES = 1 << 20

FINDINGS_PER_KIND_MAX = 10
"""The maximum number of findings of one kind that are listed for a file; the others are counted."""


class Finding(NamedTuple):
    """One problem of a file in a log directory."""

    path: Path
    at: str
    """The place in the file: `offset 12`, `byte 300`, `line 3`; empty for the whole file."""
    problem: str
    is_error: bool
    """False for a note: a broker's start repairs the problem, or brokers ignore it."""

    def __str__(self) -> str:
        where = f"{self.at}: " if self.at else ""
        return f"{self.path}: {'' if self.is_error else 'note: '}{where}{self.problem}"


class Findings:
    """Collects findings, at most `FINDINGS_PER_KIND_MAX` of one kind in one file."""

    def __init__(self) -> None:
        self._found: list[Finding] = []
        self._counts: Counter[tuple[Path, str]] = Counter()

    def add(self, path: Path, problem: str, *, at: str = "", kind: str = "", is_error: bool = True) -> None:
        """Add a finding. `kind` groups findings with different texts."""
        self._counts[path, kind or problem] += 1
        if self._counts[path, kind or problem] <= FINDINGS_PER_KIND_MAX:
            self._found.append(Finding(path, at, problem, is_error))

    def all(self) -> list[Finding]:
        more = [
            Finding(
                path, "", f"{count - FINDINGS_PER_KIND_MAX} more findings of this kind: {kind}", is_error=True
            )
            for (path, kind), count in self._counts.items()
            if count > FINDINGS_PER_KIND_MAX
        ]
        return self._found + more


class Batch(NamedTuple):
    """One batch of a segment's file, or bytes that are not a batch."""

    position: int
    header: BatchHeader | None
    """None if there is no batch from `position` on."""
    problem: str | None
    is_torn: bool = False
    """The file ends within the batch, as after a crash during a write."""


def read_batches(data: memoryview) -> Iterator[Batch]:
    """The batches of a segment, each with its problem. Batches after a wrong checksum are included. Zeros at
    the end are ignored: the file was preallocated."""
    at, end = 0, len(data)
    while at < end:
        if at + RECORD_BATCH_OVERHEAD > end:
            if not _is_zero(data, at):
                yield Batch(at, None, f"{end - at} bytes are not a complete batch", is_torn=True)
            return
        header = BatchHeader(*BATCH_HEADER.unpack_from(data, at))
        if header.magic in (0, 1) and header.batch_length > 0:
            yield Batch(at, None, f"a message of format v{header.magic}, from before Kafka 0.11")
            return
        if header.magic != MAGIC_V2 or header.size < RECORD_BATCH_OVERHEAD or header.last_offset_delta < 0:
            if not _is_zero(data, at):
                yield Batch(at, None, f"{end - at} bytes are not batches")
            return
        if at + header.size > end:
            problem = f"{end - at} bytes are not a complete batch: its header says {header.size}"
            yield Batch(at, None, problem, is_torn=True)
            return
        yield Batch(at, header, None if verify_crc(data, at, header) else "the checksum is wrong")
        at += header.size


def _is_zero(data: memoryview, start: int) -> bool:
    chunks = (data[at : at + _CHUNK_BYTES] for at in range(start, len(data), _CHUNK_BYTES))
    return not any(bytes(chunk).strip(b"\0") for chunk in chunks)


@contextmanager
def viewed(files: Files, path: Path) -> Iterator[memoryview]:
    """A context with the content of a segment's file. Raises OSError."""
    with opened(files, path) as fd, files.view(fd) as data:
        yield data


class SegmentContents:
    """The facts of a segment's batches, in columns, to compare indexes with."""

    def __init__(self, files: Files, base_offset: int) -> None:
        self._files = files
        self.base_offset = base_offset
        self.size = 0
        """Bytes of batches."""
        self._positions, self._bases, self._lasts = array("q"), array("q"), array("q")
        self._timestamps, self._highest = array("q"), array("q")
        self._largest_batch = 0
        self.aborted: dict[int, AbortedTransaction | None] = {}
        """The expected entries of the transaction index by last offset; None if the log does not contain all
        facts."""

    def add_batch(self, position: int, header: BatchHeader) -> None:
        self._positions.append(position)
        self._bases.append(header.base_offset)
        self._lasts.append(header.last_offset)
        self._timestamps.append(header.max_timestamp)
        self._highest.append(max(header.max_timestamp, self.max_timestamp))
        self._largest_batch = max(self._largest_batch, header.size)
        self.size = position + header.size

    @property
    def max_timestamp(self) -> int:
        return self._highest[-1] if self._highest else -1

    # --- indexes ---------------------------------------------------------------------------------

    def check_offset_index(self, path: Path, findings: Findings, *, is_sealed: bool, is_error: bool) -> None:
        entries = _entries(self._files, path, OffsetIndex, findings, is_error=is_error)
        if entries is None:
            return
        before = (-1, -1)
        for at, (relative, position) in enumerate(entries):
            offset, where = self.base_offset + relative, f"entry {at}"
            batch = bisect_left(self._positions, position)
            problem = None
            if relative <= before[0] or position <= before[1]:
                problem = f"offset {offset} at {position} does not ascend"
            elif batch == len(self._positions) or self._positions[batch] != position:
                problem = f"offset {offset} at {position}, where no batch begins"
            elif self._lasts[batch] != offset:
                problem = f"offset {offset} at {position}, where the batch ends at {self._lasts[batch]}"
            if problem is not None:
                following = entries[at + 1][1] if at + 1 < len(entries) else self.size
                is_harmless = "ends at" in problem and self._begins_set(batch, offset, following)
                kind = "entries of several batches" if is_harmless else "wrong entries"
                if is_harmless:
                    problem += "; Apache Kafka's followers write such entries, and they do no harm"
                findings.add(path, problem, at=where, kind=kind, is_error=is_error and not is_harmless)
            before = max(before, (relative, position))
        if is_sealed and self._ends_early(entries):
            problem = f"the last entry is for byte {before[1]} of {self.size}: it may have been cut"
            findings.add(path, problem, is_error=False)

    def _begins_set(self, batch: int, offset: int, following: int) -> bool:
        """Whether `offset` is the last offset of batches that may have been appended together with this one,
        before the next entry's position. Followers of Kafka before 4.0 write such entries."""
        last = bisect_left(self._lasts, offset)
        return (
            batch < last < len(self._lasts)
            and self._lasts[last] == offset
            and (self._positions[last] < following)
        )

    def _ends_early(self, entries: list[tuple[int, int]]) -> bool:
        """Whether more bytes follow the last entry than are between any two entries, with a reserve of the
        largest batch."""
        positions = [0, *(position for _, position in entries)]
        gaps = [after - before for before, after in pairwise(positions)]
        usual = max(gaps, default=self._largest_batch + (1 << 16))
        return self.size - positions[-1] > 2 * usual + self._largest_batch

    def check_time_index(self, path: Path, findings: Findings, *, is_sealed: bool, is_error: bool) -> None:
        entries = _entries(self._files, path, TimeIndex, findings, is_error=is_error)
        if entries is None:
            return
        before = (-1, -1)
        for at, (timestamp, relative) in enumerate(entries):
            offset = self.base_offset + relative
            batch = bisect_left(self._lasts, offset)
            problem = None
            if timestamp <= before[0] or relative < before[1]:
                problem = f"timestamp {timestamp} at offset {offset} does not ascend"
            elif batch == len(self._lasts) or self._bases[batch] > offset:
                problem = f"timestamp {timestamp} at offset {offset}, which is not in the log"
            elif self._timestamps[batch] != timestamp or self._highest[batch] != timestamp:
                problem = (
                    f"timestamp {timestamp} at offset {offset}, where the log has {self._highest[batch]}"
                )
            if problem is not None:
                findings.add(path, problem, at=f"entry {at}", kind="wrong entries", is_error=is_error)
            elif self._lasts[first := bisect_left(self._highest, timestamp)] != offset:
                problem = (
                    f"offset {offset}, where the first batch with {timestamp} ends at {self._lasts[first]}"
                )
                findings.add(path, problem, at=f"entry {at}", kind="later offsets", is_error=False)
            before = max(before, (timestamp, relative))
        if is_sealed and before[0] < self.max_timestamp:
            problem = f"ends at timestamp {before[0]}, before the segment's largest, {self.max_timestamp}"
            findings.add(path, problem, is_error=is_error)

    def check_transaction_index(self, path: Path, findings: Findings, *, is_error: bool) -> None:
        """Check the transaction index; its file exists only if a transaction was aborted."""
        found: dict[int, AbortedTransaction] = {}
        if self._files.exists(path):
            index = TransactionIndex(self._files, path, self.base_offset)
            try:
                index.check()
                found = {aborted.last_offset: aborted for aborted in index.entries()}
            except Exception as problem:
                findings.add(path, str(problem).removeprefix(f"{path}: "), is_error=is_error)
                return
        for last_offset, expected in self.aborted.items():
            entry = found.pop(last_offset, None)
            if entry is None and expected is not None:
                problem_text = f"the transaction of producer {expected.producer_id} aborted there is missing"
                findings.add(path, problem_text, at=f"offset {last_offset}", is_error=is_error)
            elif entry is not None and expected is not None and entry != expected:
                text = f"{_describe(entry)}, and not {_describe(expected)} as in the log"
                findings.add(path, text, at=f"offset {last_offset}", kind="wrong entries", is_error=is_error)
        for last_offset, entry in found.items():
            text = f"{_describe(entry)}, where the log has no abort marker"
            findings.add(path, text, at=f"offset {last_offset}", kind="wrong entries", is_error=is_error)


def _describe(aborted: AbortedTransaction) -> str:
    return (
        f"producer {aborted.producer_id} from {aborted.first_offset}, last stable offset "
        f"{aborted.last_stable_offset}"
    )


def index_entries(files: Files, path: Path, kind: type[OffsetIndex | TimeIndex]) -> list[tuple[int, int]]:
    """The entries of an index file, without the zeros of a preallocated file. Raises OSError, and ValueError
    for an incomplete entry."""
    data = read_file(files, path)
    if len(data) % kind.ENTRY.size:
        raise ValueError(f"{len(data)} bytes are not whole entries of {kind.ENTRY.size}")
    entries: list[tuple[int, int]] = []
    for entry in kind.ENTRY.iter_unpack(data):
        # Like Kafka's tool: no later entry has the segment's first offset. A single one is no padding: it is
        # that of a first batch with timestamp 0.
        at = len(entries) * kind.ENTRY.size
        if entry == (0, 0) and len(data) > kind.ENTRY.size and not data[at:].strip(b"\0"):
            break
        entries.append((entry[0], entry[1]))
    return entries


def _entries(
    files: Files, path: Path, kind: type[OffsetIndex | TimeIndex], findings: Findings, *, is_error: bool
) -> list[tuple[int, int]] | None:
    try:
        return index_entries(files, path, kind)
    except FileNotFoundError:
        findings.add(path, "the file is missing", is_error=is_error)
    except ValueError as problem:
        findings.add(path, str(problem), is_error=is_error)
    return None
