"""The records of a topic in memory, in place of the console's reader of records."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.client.core.types import RecordMetadata
from ottla_console.cluster.log_reader import Fetched, Headers, LogReader, LogRecord


class Log:
    """Partitions in memory. A fetch returns batches of `batch` records, up to its bytes; like a broker it
    begins with the batch that has the offset, and returns at least one batch."""

    def __init__(
        self, partitions: Mapping[int, list[LogRecord]], ends: Mapping[int, int], batch: int = 5
    ) -> None:
        self.partitions = partitions
        self.ends = dict(ends)
        self.batch = batch
        self.reads = 0
        self.bytes = 0

    async def read(self, offsets: Mapping[int, int], bytes_max: int) -> Fetched:
        self.reads += 1
        got = Fetched()
        for partition, offset in offsets.items():
            end = offset
            records: list[LogRecord] = []
            while end < self.ends[partition] and (
                end == offset or sum(r.size for r in records) < bytes_max // 8
            ):
                end = min(end - end % self.batch + self.batch, self.ends[partition])
                records = [each for each in self.partitions[partition] if offset <= each.offset < end]
            if end > offset:
                got.records[partition], got.next[partition] = records, end
                got.bytes += sum(each.size for each in records)
        self.bytes += got.bytes
        return got


class FakeLogs(LogReader):
    """The records of `log`, for every topic."""

    def __init__(self, log: Log | None = None) -> None:
        super().__init__({})
        records = {p: [LogRecord(p, o, o, b"k", b"v") for o in range(990, 1000)] for p in range(3)}
        self.log = log or Log(records, dict.fromkeys(range(3), 1000))
        self.failure: Exception | None = None
        self.produced: list[tuple[bytes | None, bytes | None, Headers, int | None]] = []

    async def produce(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers, partition: int | None
    ) -> RecordMetadata:
        if self.failure is not None:
            raise self.failure
        self.produced.append((key, value, headers, partition))
        return RecordMetadata(topic, partition or 0, 999, 0)

    async def fetch(
        self, topic: str, offsets: Mapping[int, int], bytes_max: int, *, committed: bool = False
    ) -> Fetched:
        if self.failure is not None:
            raise self.failure
        return await self.log.read(offsets, bytes_max)
