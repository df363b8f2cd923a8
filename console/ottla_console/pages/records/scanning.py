"""Scans partitions forwards or backwards for records, within limits. I/O comes in as `Read`.

Records of several partitions are merged by timestamp, without leaving the order of their offsets: each step
takes the record with the smallest (backwards: the largest) timestamp among the next ones of all partitions.
Invariants: a scan ends, since each read advances a partition, or the partition is left; memory is that of
one chunk for each partition and the records found; `low` and `high` say where the scans before and after
this one begin, so that paging neither repeats nor leaves out a record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from ottla.client import errors
from ottla.client.errors import ClientError
from ottla_console.cluster.log_reader import Fetched, LogRecord

Read: TypeAlias = Callable[[Mapping[int, int], int], Awaitable[Fetched]]
"""(offset by partition, bytes) -> what one fetch returns."""
Accept: TypeAlias = Callable[[LogRecord], bool]
Prepare: TypeAlias = Callable[[list[LogRecord]], Awaitable[None]]
"""Called with records before `Accept` is called with each of them."""

FETCH_BYTES: Final = 4 << 20
CHUNK_BYTES: Final = 2 << 20
CHUNK_BYTES_MIN: Final = 128 << 10
CHUNKS_BYTES: Final = 32 << 20
"""Of one partition, and of all, that a backward scan reads at a time."""
CHUNK_MIN: Final = 16
CHUNK_MAX: Final = 2_000
PAUSE_RECORDS: Final = 128
"""After so many records, other pages have a turn, and the time is looked at."""
IDLE_MAX: Final = 3
"""Reads in a row without data, after which a partition is left."""


class Stop(Enum):
    """Why a scan ended."""

    FOUND = "found"
    """As many records as wanted."""
    END = "end"
    """Nothing is left in this direction."""
    RECORDS = "records"
    BYTES = "bytes"
    SECONDS = "seconds"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one scan may take."""

    records: int = 100_000
    bytes: int = 64 << 20
    seconds: float = 4.0


@dataclass
class Slice:
    """What a scan found. Its records are in the order of the scan."""

    low: dict[int, int]
    """By partition, the offset before which an older scan begins."""
    high: dict[int, int]
    """By partition, the offset at which a newer scan begins."""
    records: list[LogRecord] = field(default_factory=list)
    scanned: int = 0
    bytes: int = 0
    oldest_ms: int | None = None
    """Of the scanned records."""
    newest_ms: int | None = None
    stop: Stop = Stop.END
    errors: dict[int, ClientError] = field(default_factory=dict)

    def take(self, record: LogRecord, accept: Accept | None) -> None:
        self.scanned += 1
        time = record.timestamp_ms
        self.oldest_ms = time if self.oldest_ms is None else min(time, self.oldest_ms)
        self.newest_ms = time if self.newest_ms is None else max(time, self.newest_ms)
        if accept is None or accept(record):
            self.records.append(record)


@dataclass
class Scan:
    """The parameters of a scan."""

    read: Read
    now_s: Callable[[], float]
    want: int
    limits: Limits = Limits()
    accept: Accept | None = None
    prepare: Prepare | None = None

    async def forwards(self, offsets: Mapping[int, int], ends: Mapping[int, int]) -> Slice:
        """From `offsets` to before `ends`, the oldest first."""
        found = Slice(dict(offsets), dict(offsets))
        at = dict(offsets)
        """Where the next read of each partition begins."""
        buffers: dict[int, list[LogRecord]] = {}
        idle = dict.fromkeys(offsets, 0)
        deadline = self.now_s() + self.limits.seconds
        while len(found.records) < self.want:
            empty = {p: at[p] for p in at if at[p] < ends[p] and not buffers.get(p) and p not in found.errors}
            if empty:
                if (stop := self._limit(found, deadline)) is not None:
                    found.stop = stop
                    break
                got = await self._fetch(empty, found)
                for p in empty:
                    listed = [each for each in got.records.get(p, []) if each.offset < ends[p]]
                    await self._prepare(listed)
                    buffers[p] = listed[::-1]
                    moved = got.next.get(p, at[p])
                    idle[p] = 0 if moved > at[p] else idle[p] + 1
                    at[p] = moved
                    if not listed:
                        found.high[p] = min(moved, ends[p])
                    if idle[p] >= IDLE_MAX:
                        found.errors[p] = errors.RequestTimedOutError(f"partition {p} returned no data")
                continue
            ready = [listed for listed in buffers.values() if listed]
            if not ready:
                return found
            if (stop := await self._pause(found, deadline)) is not None:
                found.stop = stop
                break
            chosen = min(ready, key=lambda listed: (listed[-1].timestamp_ms, listed[-1].partition))
            record = chosen.pop()
            found.high[record.partition] = record.offset + 1
            if not chosen and at[record.partition] >= ends[record.partition]:
                found.high[record.partition] = ends[record.partition]
            found.take(record, self.accept)
        else:
            found.stop = Stop.FOUND
        return found

    async def backwards(self, offsets: Mapping[int, int], starts: Mapping[int, int]) -> Slice:
        """From before `offsets` down to `starts`, the newest first."""
        found = Slice(dict(offsets), dict(offsets))
        low = dict(offsets)
        """Down to where each partition has been read."""
        buffers: dict[int, list[LogRecord]] = {}
        size = dict.fromkeys(offsets, min(max(2 * self.want // max(len(offsets), 1), CHUNK_MIN), CHUNK_MAX))
        chunk_bytes = min(CHUNK_BYTES, max(CHUNK_BYTES_MIN, CHUNKS_BYTES // max(len(offsets), 1)))
        deadline = self.now_s() + self.limits.seconds
        while len(found.records) < self.want:
            empty = [p for p in low if low[p] > starts[p] and not buffers.get(p) and p not in found.errors]
            if empty:
                if (stop := self._limit(found, deadline)) is not None:
                    found.stop = stop
                    break
                chunk = {p: (max(starts[p], low[p] - size[p]), low[p]) for p in empty}
                complete = await self._chunk(chunk, size, found, chunk_bytes)
                for p, listed in complete.items():
                    await self._prepare(listed)
                    buffers[p] = listed
                    low[p] = chunk[p][0]
                    if not listed:
                        found.low[p] = low[p]
                continue
            ready = [listed for listed in buffers.values() if listed]
            if not ready:
                return found
            if (stop := await self._pause(found, deadline)) is not None:
                found.stop = stop
                break
            chosen = max(ready, key=lambda listed: (listed[-1].timestamp_ms, listed[-1].partition))
            record = chosen.pop()
            found.low[record.partition] = low[record.partition] if not chosen else record.offset
            found.take(record, self.accept)
        else:
            found.stop = Stop.FOUND
        return found

    async def _chunk(
        self, chunk: Mapping[int, tuple[int, int]], size: dict[int, int], found: Slice, bytes_max: int
    ) -> dict[int, list[LogRecord]]:
        """All records of ranges of offsets, and the size of the next ones. A range that turns out to have
        more bytes is left out: its part with the new size is read next."""
        at = {p: first for p, (first, _) in chunk.items()}
        listed: dict[int, list[LogRecord]] = {p: [] for p in chunk}
        bytes_read = dict.fromkeys(chunk, 0)
        idle = dict.fromkeys(chunk, 0)
        reading = set(chunk)
        while reading:
            got = await self._fetch({p: at[p] for p in reading}, found)
            for p in sorted(reading):
                first, end = chunk[p]
                records = got.records.get(p, [])
                moved = got.next.get(p, at[p])
                idle[p] = 0 if moved > at[p] else idle[p] + 1
                at[p] = moved
                listed[p] += [each for each in records if each.offset < end]
                bytes_read[p] += sum(each.size for each in records)
                if p in found.errors:
                    reading.discard(p)
                    del listed[p]
                elif idle[p] >= IDLE_MAX:
                    found.errors[p] = errors.RequestTimedOutError(f"partition {p} returned no data")
                    reading.discard(p)
                    del listed[p]
                elif moved >= end:
                    reading.discard(p)
                    if 2 * bytes_read[p] < bytes_max:
                        size[p] = min(2 * size[p], CHUNK_MAX)
                elif bytes_read[p] > bytes_max and size[p] > 1:
                    average = bytes_read[p] / max(moved - first, 1)
                    size[p] = max(1, min(size[p] // 2, int(bytes_max / average)))
                    reading.discard(p)
                    del listed[p]
        return listed

    async def _fetch(self, offsets: Mapping[int, int], found: Slice) -> Fetched:
        got = await self.read(offsets, FETCH_BYTES)
        found.bytes += got.bytes
        found.errors |= got.errors
        return got

    async def _prepare(self, records: list[LogRecord]) -> None:
        if self.prepare is not None and records:
            await self.prepare(records)

    async def _pause(self, found: Slice, deadline: float) -> Stop | None:
        """Give other pages a turn now and then. Returns why no further record is looked at, or None."""
        if found.scanned >= self.limits.records:
            return Stop.RECORDS
        if found.scanned % PAUSE_RECORDS == PAUSE_RECORDS - 1:
            await asyncio.sleep(0)
            if self.now_s() >= deadline:
                return Stop.SECONDS
        return None

    def _limit(self, found: Slice, deadline: float) -> Stop | None:
        if found.bytes >= self.limits.bytes:
            return Stop.BYTES
        if self.now_s() >= deadline:
            return Stop.SECONDS
        return None
