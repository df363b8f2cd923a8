"""What a replica manager does by the clock: shrink ISRs, write checkpoints, flush, delete old segments.

Made and ticked by `manager`. Intervals are counted by a clock that does not step; what records and files
say is compared with wall time. What blocks runs in a thread, one batch of jobs at a time. Invariant: what the
high watermark checkpoint says of a partition that the controller has not spoken of since the start is kept: a
leader that forgot its high watermark would show consumers less than it did (KAFKA-1647).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from ottla.metadata.config import BrokerConfig
from ottla.replication.partition import Partition
from ottla.replication.requests import PartitionKey
from ottla.storage.log import Log
from ottla.storage.manager import LogManager

_logger = logging.getLogger(__name__)


class Every:
    """Due once in each `interval_ms`."""

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._due_ms = 0

    def start(self, now_ms: int) -> None:
        self._due_ms = now_ms + self._interval_ms

    def is_due(self, now_ms: int) -> bool:
        if now_ms < self._due_ms:
            return False
        self._due_ms = now_ms + self._interval_ms
        return True


class Upkeep:
    """The timers and checkpoints of one ReplicaManager."""

    def __init__(
        self,
        partitions: Callable[[], Iterator[Partition]],
        config: BrokerConfig,
        logs: LogManager,
        log_starts_checked: Callable[[Iterable[Partition]], None],
    ) -> None:
        self._partitions = partitions
        self._log_starts_checked = log_starts_checked
        self._logs = logs
        self._checkpointed: dict[PartitionKey, int] = {}
        """Of partitions that the controller has not spoken of."""
        self._written: tuple[list[Log], list[int]] | None = None
        """Logs and their high watermarks as last written."""
        self._working: asyncio.Future[None] | None = None
        self._retained = False
        self._shrink = Every(max(1, config.get_int("replica.lag.time.max.ms") // 2))
        self._high_watermarks = Every(config.get_int("replica.high.watermark.checkpoint.interval.ms"))
        self._flushes = Every(config.get_int("log.flush.scheduler.interval.ms"))
        self._checkpoints = Every(config.get_int("log.flush.offset.checkpoint.interval.ms"))
        self._start_offsets = Every(config.get_int("log.flush.start.offset.checkpoint.interval.ms"))
        self._retention = Every(config.get_int("log.retention.check.interval.ms"))

    def take_checkpointed(self, key: PartitionKey) -> int:
        """The high watermark of the last checkpoint; 0 for a partition it does not have. From now on the
        partition has one of its own."""
        return self._checkpointed.pop(key, 0)

    def put_back(self, partition: Partition) -> None:
        """The partition goes, but its log stays for the next start."""
        self._checkpointed[partition.key] = partition.high_watermark
        self._written = None

    def forget(self, key: PartitionKey) -> None:
        self._checkpointed.pop(key, None)
        self._written = None

    def start(self, monotonic_ms: int) -> None:
        self._checkpointed = dict(self._logs.read_high_watermarks())
        for every in (
            self._shrink,
            self._high_watermarks,
            self._flushes,
            self._checkpoints,
            self._start_offsets,
            self._retention,
        ):
            every.start(monotonic_ms)

    def tick(self, monotonic_ms: int, now_ms: int) -> None:
        """`now_ms` is wall time."""
        if self._shrink.is_due(monotonic_ms):
            for partition in self._partitions():
                partition.maybe_shrink_isr(monotonic_ms)
        if self._working is not None:
            return
        jobs: list[Callable[[], object]] = []
        if self._logs.has_chores(now_ms):
            jobs.append(partial(self._logs.tend, now_ms))
        if self._high_watermarks.is_due(monotonic_ms):
            everything = list(self._partitions())
            current = [each.log for each in everything], [each.high_watermark for each in everything]
            if current != self._written:
                jobs.append(partial(self._write_high_watermarks, self._snapshot(), current))
        if self._flushes.is_due(monotonic_ms):
            jobs.append(partial(self._logs.flush_due, now_ms))
        if self._checkpoints.is_due(monotonic_ms):
            jobs.append(self._logs.write_checkpoints)
        if self._start_offsets.is_due(monotonic_ms):
            jobs.append(self._logs.write_start_offsets)
        if self._retention.is_due(monotonic_ms):
            jobs.append(partial(self._logs.cleanup, now_ms, self._snapshot()))
            self._retained = True
        if jobs:
            self._working = asyncio.get_running_loop().run_in_executor(None, _run, jobs)
            self._working.add_done_callback(self._worked)

    async def stop(self) -> None:
        if self._working is not None:
            await asyncio.wait([self._working])
        await asyncio.to_thread(self._logs.write_high_watermarks, self._snapshot())

    def _snapshot(self) -> dict[PartitionKey, int]:
        return self._checkpointed | {each.key: each.high_watermark for each in self._partitions()}

    def _write_high_watermarks(
        self, high_watermarks: dict[PartitionKey, int], written: tuple[list[Log], list[int]]
    ) -> None:
        self._logs.write_high_watermarks(high_watermarks)
        self._written = written

    def _worked(self, done: asyncio.Future[None]) -> None:
        self._working = None
        if self._retained:
            self._retained = False
            self._log_starts_checked(self._partitions())


def _run(jobs: list[Callable[[], object]]) -> None:
    """In a thread: one job that fails (a full disk, say) keeps none of the others from their turn."""
    for job in jobs:
        try:
            job()
        except Exception:
            _logger.exception("upkeep of the logs failed")
