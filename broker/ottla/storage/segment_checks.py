"""Verifies one segment without a broker: its batches, and its indexes against them. Reads only.

Called by `log_checks`. Index entries are compared with the log as Kafka's DumpLogSegments does it; beyond
that, an index must not end too early. Of a log that a crash has left, the broker's recovery makes the indexes
anew (`loading`): then what is wrong with them is no error.
"""

from __future__ import annotations

import mmap
import os
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from ottla.protocol.records import (
    BATCH_HEADER,
    MAGIC_V2,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    verify_crc,
)
from ottla.storage.findings import Findings
from ottla.storage.indexes import OffsetIndex, TimeIndex
from ottla.storage.transaction_index import AbortedTransaction, TransactionIndex

_CHUNK_BYTES = 1 << 20


class Batch(NamedTuple):
    """One batch of a segment's file, or the bytes that are none."""

    position: int
    header: BatchHeader | None
    """None: from `position` on there is no batch."""
    problem: str | None
    is_torn: bool = False
    """The file ends before the batch does, as when a process dies while it writes."""


def read_batches(data: memoryview) -> Iterator[Batch]:
    """The batches of a segment with what is wrong with each; past one with a wrong checksum it goes on. Zeros
    up to the end are none: a file made longer in advance."""
    at, end = 0, len(data)
    while at < end:
        if at + RECORD_BATCH_OVERHEAD > end:
            if not _is_zero(data, at):
                yield Batch(at, None, f"{end - at} bytes are no whole batch", is_torn=True)
            return
        header = BatchHeader(*BATCH_HEADER.unpack_from(data, at))
        if header.magic in (0, 1) and header.batch_length > 0:
            yield Batch(at, None, f"a message of format v{header.magic}, from before Kafka 0.11")
            return
        if header.magic != MAGIC_V2 or header.size < RECORD_BATCH_OVERHEAD or header.last_offset_delta < 0:
            if not _is_zero(data, at):
                yield Batch(at, None, f"{end - at} bytes are no batches")
            return
        if at + header.size > end:
            problem = f"{end - at} bytes are no whole batch: its header says {header.size}"
            yield Batch(at, None, problem, is_torn=True)
            return
        yield Batch(at, header, None if verify_crc(data, at, header) else "the checksum is wrong")
        at += header.size


def _is_zero(data: memoryview, start: int) -> bool:
    chunks = (data[at : at + _CHUNK_BYTES] for at in range(start, len(data), _CHUNK_BYTES))
    return not any(bytes(chunk).strip(b"\0") for chunk in chunks)


@contextmanager
def mapped(path: Path) -> Iterator[memoryview]:
    """A file's bytes, read as they are needed. Raises OSError."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            yield memoryview(b"")
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data, memoryview(data) as view:
            yield view


class SegmentContents:
    """What indexes are compared with: a column for each fact of the segment's batches."""

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.size = 0
        """Bytes of batches."""
        self._positions, self._bases, self._lasts = array("q"), array("q"), array("q")
        self._timestamps, self._highest = array("q"), array("q")
        self._largest_batch = 0
        self.aborted: dict[int, AbortedTransaction | None] = {}
        """What has to be in the transaction index, by last offset; None if the log does not say all of it."""

    def note(self, position: int, header: BatchHeader) -> None:
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
        entries = _entries(path, OffsetIndex, findings, is_error=is_error)
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
                mends = problem.find("ends at") > 0 and self._begins_set(batch, offset, following)
                kind = "entries of several batches" if mends else "wrong entries"
                if mends:
                    problem += "; Apache Kafka's followers write such entries, and they do no harm"
                findings.add(path, problem, at=where, kind=kind, is_error=is_error and not mends)
            before = max(before, (relative, position))
        if is_sealed and self._ends_early(entries):
            problem = f"the last entry is for byte {before[1]} of {self.size}: it may have been cut"
            findings.add(path, problem, is_error=False)

    def _begins_set(self, batch: int, offset: int, following: int) -> bool:
        """Whether `offset` is the last one of batches that may have been appended together with this one, up
        to the position of the next entry: a follower of Kafka's before 4.0 notes those so."""
        last = bisect_left(self._lasts, offset)
        return (
            batch < last < len(self._lasts)
            and self._lasts[last] == offset
            and (self._positions[last] < following)
        )

    def _ends_early(self, entries: list[tuple[int, int]]) -> bool:
        """Whether more bytes follow the last entry than ever between two, with the largest batch to spare."""
        positions = [0, *(position for _, position in entries)]
        gaps = [after - before for before, after in pairwise(positions)]
        usual = max(gaps, default=self._largest_batch + (1 << 16))
        return self.size - positions[-1] > 2 * usual + self._largest_batch

    def check_time_index(self, path: Path, findings: Findings, *, is_sealed: bool, is_error: bool) -> None:
        entries = _entries(path, TimeIndex, findings, is_error=is_error)
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
                problem = f"timestamp {timestamp} at offset {offset}, which the log has not got"
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
        """The file is there only if something was aborted."""
        found: dict[int, AbortedTransaction] = {}
        if path.exists():
            index = TransactionIndex(path, self.base_offset)
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
                text = f"{_told(entry)}, and not {_told(expected)} as in the log"
                findings.add(path, text, at=f"offset {last_offset}", kind="wrong entries", is_error=is_error)
        for last_offset, entry in found.items():
            text = f"{_told(entry)}, where the log has no abort marker"
            findings.add(path, text, at=f"offset {last_offset}", kind="wrong entries", is_error=is_error)


def _told(aborted: AbortedTransaction) -> str:
    return (
        f"producer {aborted.producer_id} from {aborted.first_offset}, last stable offset "
        f"{aborted.last_stable_offset}"
    )


def index_entries(path: Path, kind: type[OffsetIndex | TimeIndex]) -> list[tuple[int, int]]:
    """The entries of an index as they are in its file, without the zeros of a file made longer in advance.
    Raises OSError, and ValueError for a file that is no whole number of entries."""
    data = path.read_bytes()
    if len(data) % kind.ENTRY.size:
        raise ValueError(f"{len(data)} bytes are not whole entries of {kind.ENTRY.size}")
    entries: list[tuple[int, int]] = []
    for entry in kind.ENTRY.iter_unpack(data):
        # As Kafka's tool: no later entry is about the segment's first offset.
        if entry == (0, 0) and not data[len(entries) * kind.ENTRY.size :].strip(b"\0"):
            break
        entries.append((entry[0], entry[1]))
    return entries


def _entries(
    path: Path, kind: type[OffsetIndex | TimeIndex], findings: Findings, *, is_error: bool
) -> list[tuple[int, int]] | None:
    try:
        return index_entries(path, kind)
    except FileNotFoundError:
        findings.add(path, "the file is missing", is_error=is_error)
    except ValueError as problem:
        findings.add(path, str(problem), is_error=is_error)
    return None
