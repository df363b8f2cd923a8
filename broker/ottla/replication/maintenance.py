"""Periodic tasks of the replica manager: shrinking ISRs, checkpoints, flushes, retention.

Called by `manager`. Intervals use the monotonic clock; timestamps of records and files are compared with wall
time. Blocking tasks run in a thread, one batch at a time. Invariant: checkpointed high watermarks of
partitions without a LeaderAndIsr since the start are kept: a leader that lost its high watermark would return
fewer records to consumers than before (KAFKA-1647).
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
from ottla.storage.log_manager import LogManager

_logger = logging.getLogger(__name__)


class Interval:
    """A timer that is due once per `interval_ms`."""

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


class ReplicaMaintenance:
    """The periodic tasks and high watermark checkpoints of one ReplicaManager."""

    def __init__(
        self,
        partitions: Callable[[], Iterator[Partition]],
        config: BrokerConfig,
        logs: LogManager,
        notify_log_starts: Callable[[Iterable[Partition]], None],
    ) -> None:
        self._partitions = partitions
        self._log_starts_checked = notify_log_starts
        self._logs = logs
        self._checkpointed: dict[PartitionKey, int] = {}
        """Checkpointed high watermarks of partitions without a LeaderAndIsr since the start."""
        self._written: tuple[list[Log], list[int]] | None = None
        """Logs and high watermarks of the last checkpoint."""
        self._running: asyncio.Future[None] | None = None
        self._retention_ran = False
        self._isr_shrink = Interval(max(1, config.get_int("replica.lag.time.max.ms") // 2))
        self._high_watermarks = Interval(config.get_int("replica.high.watermark.checkpoint.interval.ms"))
        self._flushes = Interval(config.get_int("log.flush.scheduler.interval.ms"))
        self._checkpoints = Interval(config.get_int("log.flush.offset.checkpoint.interval.ms"))
        self._start_offsets = Interval(config.get_int("log.flush.start.offset.checkpoint.interval.ms"))
        self._retention = Interval(config.get_int("log.retention.check.interval.ms"))

    def pop_checkpointed(self, key: PartitionKey) -> int:
        """The checkpointed high watermark of a partition, 0 without one. Removes it: the partition has the
        current one from now on."""
        return self._checkpointed.pop(key, 0)

    def keep_checkpointed(self, partition: Partition) -> None:
        """Keep the high watermark of a partition that goes offline, whose log stays for the next start."""
        self._checkpointed[partition.key] = partition.high_watermark
        self._written = None

    def forget(self, key: PartitionKey) -> None:
        self._checkpointed.pop(key, None)
        self._written = None

    def start(self, monotonic_ms: int) -> None:
        self._checkpointed = dict(self._logs.read_high_watermarks())
        for interval in (
            self._isr_shrink,
            self._high_watermarks,
            self._flushes,
            self._checkpoints,
            self._start_offsets,
            self._retention,
        ):
            interval.start(monotonic_ms)

    def tick(self, monotonic_ms: int, now_ms: int) -> None:
        """`now_ms` is wall time."""
        if self._isr_shrink.is_due(monotonic_ms):
            for partition in self._partitions():
                partition.maybe_shrink_isr(monotonic_ms)
        if self._running is not None:
            return
        jobs: list[Callable[[], object]] = []
        if self._logs.has_deferred_tasks(monotonic_ms):
            jobs.append(partial(self._logs.run_deferred_tasks, monotonic_ms))
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
            self._retention_ran = True
        if jobs:
            self._running = asyncio.get_running_loop().run_in_executor(None, _run, jobs)
            self._running.add_done_callback(self._on_done)

    async def stop(self) -> None:
        if self._running is not None:
            await asyncio.wait([self._running])
        await asyncio.to_thread(self._logs.write_high_watermarks, self._snapshot())

    def _snapshot(self) -> dict[PartitionKey, int]:
        return self._checkpointed | {each.key: each.high_watermark for each in self._partitions()}

    def _write_high_watermarks(
        self, high_watermarks: dict[PartitionKey, int], written: tuple[list[Log], list[int]]
    ) -> None:
        self._logs.write_high_watermarks(high_watermarks)
        self._written = written

    def _on_done(self, done: asyncio.Future[None]) -> None:
        self._running = None
        if self._retention_ran:
            self._retention_ran = False
            self._log_starts_checked(self._partitions())


def _run(jobs: list[Callable[[], object]]) -> None:
    """Run the tasks, in a thread; a task that fails (with a full disk, for example) does not stop the
    others."""
    for job in jobs:
        try:
            job()
        except Exception:
            _logger.exception("A periodic task of the logs failed")
