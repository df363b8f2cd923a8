"""The log cleaner: compacts logs (cleanup.policy=compact) in worker processes.

Made by the broker for leaders and followers alike: each replica cleans its own log. Up to log.cleaner.threads
worker processes run at a time, each only while there is a log to clean. The event loop collects the
partitions' last stable offsets and throttles the processes; measuring logs and replacing segments block, and
run in threads. A log whose cleaning fails is uncleanable from then on, and the other logs are cleaned.

As in Kafka, the cleaner also applies retention to compacted logs: after each round a thread deletes the
segments that `delete` in their cleanup.policy, or their log start offset, allows.

Invariants: no other component works on a log meanwhile (`LogMaintenance.try_lock_for_cleaning`); a log that
moves between directories is not cleaned; all threads together read and write no more than
log.cleaner.io.max.bytes.per.second.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from ottla.metadata.config import BrokerConfig
from ottla.ports import Ports
from ottla.protocol.errors import KafkaError
from ottla.replication.manager import ReplicaManager
from ottla.replication.partition import Partition
from ottla.server.logs.cleaner_thread import Aborted, CleanerThread, CleaningTask, Failed, Outcome, Throttler
from ottla.storage.cleaner.planning import CHECKPOINT_FILE, WorkerLimits, log_to_clean
from ottla.storage.log import Log
from ottla.storage.log_config import INT64_MAX
from ottla.storage.log_dir import LogDir
from ottla.storage.log_manager import LogManager

log = logging.getLogger("ottla.log_cleaner")

Key = tuple[str, int]

SETTINGS: Final = frozenset(
    f"log.cleaner.{name}"
    for name in (
        "threads",
        "dedupe.buffer.size",
        "io.buffer.load.factor",
        "io.buffer.size",
        "io.max.bytes.per.second",
        "backoff.ms",
    )
)
"""The settings whose changes `settings_changed` applies."""

WORK_THREADS: Final = 2
"""Threads for the blocking work of all cleaner threads on logs: measuring, replacing, retention."""
_PAUSE_S_MIN: Final = 0.01
_RETRY_MS: Final = 5 * 60 * 1000
"""After this time the cleaning of a log is retried that failed for lack of space, memory or descriptors."""
_RESOURCE_ERRNOS: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.ENFILE))
_INT_MAX: Final = 2**31 - 1


class Candidate(NamedTuple):
    key: Key
    log: Log
    last_stable_offset: int


class LogCleaner:
    """See the module. Methods belong to the event loop unless they say otherwise."""

    def __init__(
        self,
        config: BrokerConfig,
        logs: LogManager,
        replicas: ReplicaManager,
        ports: Ports,
    ) -> None:
        """The logs are loaded already."""
        self._config = config
        self._logs = logs
        self._replicas = replicas
        self._ports = ports
        self._clock = ports.clock.wall_ms
        self._work = ports.workers.threads("log-cleaner", WORK_THREADS)
        self._dirty_ratio_max = 0.0
        self._compaction_delay_ms_max = 0
        self._last_run_ms = 0
        self.uncleanable: dict[Key, Log] = {}
        """Logs whose cleaning has failed."""
        self._retry_after_ms: dict[Key, int] = {}
        """Logs whose cleaning is retried, and when, in ms."""
        self._choosing_lock = asyncio.Lock()
        self._throttle = Throttler(self._bytes_per_s, ports.clock.monotonic_s())
        self._threads: list[CleanerThread] = []
        self._thread_tasks: set[asyncio.Task[None]] = set()
        self._checkpoints: dict[LogDir, dict[Key, int]] = {}
        """The contents of the checkpoint files."""

    # --- life ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Read the checkpoints and start the threads. Blocking."""
        logs = self._logs.logs()
        for log_dir in self._logs.online_dirs():
            self._checkpoints[log_dir] = offsets = log_dir.read_offsets(CHECKPOINT_FILE)
            for key, offset in offsets.items():
                found = logs.get(key)
                if found is not None and found.log_dir is log_dir:
                    found.first_dirty_offset = offset
        self._last_run_ms = self._clock()
        if self._config.get_bool("log.cleaner.enable"):
            self._resize()

    def settings_changed(self) -> None:
        """Apply a change of one of `SETTINGS`: the rate to running jobs, too, the others to new jobs."""
        self._throttle.bytes_per_s = self._bytes_per_s
        if self._threads:
            self._resize()

    async def stop(self) -> None:
        """Abort running jobs. Segments stay unchanged, except those that are being replaced."""
        for thread in self._threads:
            thread.shut_down()
        self._threads.clear()
        await asyncio.gather(*self._thread_tasks)
        await self._work.stop()
        await asyncio.to_thread(self._write_checkpoints)

    def _resize(self) -> None:
        """Start or shut down threads to match log.cleaner.threads; replace dead ones."""
        wanted = self._config.get_int("log.cleaner.threads")
        threads = [thread for thread in self._threads if not thread.is_dead]
        for thread in threads[wanted:]:
            thread.shut_down()
        del threads[wanted:]
        while len(threads) < wanted:
            thread = CleanerThread(
                self._ports.workers,
                self._work,
                self._throttle,
                self._is_moving,
                self._ports.clock.monotonic_s,
            )
            threads.append(thread)
            task = asyncio.get_running_loop().create_task(self._run_thread(thread))
            self._thread_tasks.add(task)
            task.add_done_callback(self._thread_tasks.discard)
        self._threads = threads

    async def _run_thread(self, thread: CleanerThread) -> None:
        try:
            while not thread.ended.is_set():
                more = await self._clean_filthiest(thread)
                await self._apply_retention()
                if not more:
                    await thread.process.end_idle()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(thread.ended.wait(), self._pause_s)
        except Exception:
            log.exception("A cleaner thread died")
            thread.is_dead = True
        finally:
            await thread.process.stop()

    def metrics(self) -> dict[str, int]:
        """Kafka's metrics by name. Measures the uncleanable logs."""
        now_ms = self._clock()
        uncleanable = [each for each in self.uncleanable.values() if not each.closed]
        return _gauges(
            done=[thread.last for thread in self._threads if thread.last is not None],
            uncleanable=len(uncleanable),
            uncleanable_bytes=sum(
                log_to_clean(each, each.log_end_offset, now_ms).cleanable_bytes for each in uncleanable
            ),
            dirty_ratio_max=self._dirty_ratio_max,
            compaction_delay_ms_max=self._compaction_delay_ms_max,
            since_last_run_ms=now_ms - self._last_run_ms,
            dead_threads=sum(thread.is_dead for thread in self._threads),
        )

    @property
    def _pause_s(self) -> float:
        return max(_PAUSE_S_MIN, self._config.get_int("log.cleaner.backoff.ms") / 1000)

    @property
    def _bytes_per_s(self) -> float:
        return self._config.get_float("log.cleaner.io.max.bytes.per.second")

    @property
    def limits(self) -> WorkerLimits:
        """The memory limits of one worker: its share of the configured total."""
        config = self._config
        threads = max(1, config.get_int("log.cleaner.threads"))
        return WorkerLimits(
            map_bytes=min(config.get_int("log.cleaner.dedupe.buffer.size") // threads, _INT_MAX),
            load_factor=config.get_float("log.cleaner.io.buffer.load.factor"),
            buffer_bytes=config.get_int("log.cleaner.io.buffer.size") // threads,
        )

    # --- choosing -----------------------------------------------------------------------------------

    async def _clean_filthiest(self, thread: CleanerThread) -> bool:
        """Clean the log with the highest dirty ratio; whether to look for another one at once."""
        async with self._choosing_lock:
            now_ms = self._clock()
            chosen = await self._work.submit(self._grab_filthiest_log, self._candidates(now_ms), now_ms)
            if chosen is None or not self._logs.maintenance.try_lock_for_cleaning(chosen.key):
                return False
        try:
            outcome = await thread.clean(chosen, self.limits, now_ms)
        finally:
            self._logs.maintenance.unlock_for_cleaning(chosen.key)
        if isinstance(outcome, Outcome):
            thread.last = outcome
            _log_result(chosen, outcome)
        elif isinstance(outcome, Failed) and not chosen.log.closed:
            self._failed(chosen, outcome)
        # After an abort the log is changing: pause before the next attempt.
        return not isinstance(outcome, Aborted)

    def _candidates(self, now_ms: int) -> list[Candidate]:
        self._last_run_ms = now_ms
        self.uncleanable = {
            key: each for key, each in self.uncleanable.items() if self._logs.get(*key) is each
        }
        self._retry_after_ms = {key: until for key, until in self._retry_after_ms.items() if now_ms < until}
        candidates = []
        for partition in self._idle_compacted():
            key, candidate = partition.key, partition.log
            if key in self._retry_after_ms or not candidate.has_dirty_sealed_segments:
                continue
            candidate.truncated_to = INT64_MAX
            stable = candidate.last_stable_offset(partition.high_watermark)
            candidates.append(Candidate(key, candidate, stable))
        return candidates

    def _idle_compacted(self) -> Iterator[Partition]:
        """Partitions with a compacted log that is cleanable and that no other component works on."""
        for partition in self._replicas.partitions():
            key, each = partition.key, partition.log
            # The cheap test comes first: of 10,000 logs most are not compacted.
            if "compact" in each.config.cleanup_policy and not (
                self._logs.maintenance.is_locked_for_cleaning(key)
                or self.uncleanable.get(key) is each
                or each.closed
                or self._is_moving(key)
            ):
                yield partition

    def _grab_filthiest_log(self, candidates: list[Candidate], now_ms: int) -> CleaningTask | None:
        """In a thread, one at a time: write checkpoints, and find the filthiest log that is due."""
        self._write_checkpoints()
        tasks = []
        ratio_max, delay_ms_max = 0.0, 0
        for key, candidate, stable in candidates:
            try:
                dirt = log_to_clean(candidate, stable, now_ms)
            except Exception:
                log.exception("Marking %s-%d as uncleanable", *key)
                self.uncleanable[key] = candidate
                continue
            ratio_max = max(ratio_max, dirt.ratio)
            delay_ms_max = max(delay_ms_max, dirt.delay_ms)
            if dirt.is_due(candidate.config):
                tasks.append(CleaningTask(key, candidate, dirt))
        self._dirty_ratio_max = ratio_max
        if not tasks:
            return None
        self._compaction_delay_ms_max = delay_ms_max
        filthiest = max(tasks, key=lambda task: task.dirt.ratio)
        try:
            self._logs.registry.make_durable(filthiest.log, filthiest.dirt.first_uncleanable)
        except KafkaError as problem:
            log.warning("%s-%d cannot be cleaned: %s", *filthiest.key, problem)
            return None
        return filthiest

    def _is_moving(self, key: Key) -> bool:
        return self._logs.future_log(*key) is not None

    # --- retention ----------------------------------------------------------------------------------

    async def _apply_retention(self) -> None:
        """Delete old segments of compacted logs."""
        partitions = list(self._idle_compacted())
        logs = [(each.key, each.log, each.high_watermark) for each in partitions]
        await self._work.submit(self._delete_old_segments, logs, self._clock())
        self._replicas.notify_log_starts(partitions)

    def _delete_old_segments(self, logs: list[tuple[Key, Log, int]], now_ms: int) -> None:
        """In a thread. A log whose deletion fails is uncleanable, as in Kafka."""
        for key, each, high_watermark in logs:
            if not self._logs.maintenance.try_lock_for_cleaning(key):
                continue
            try:
                each.delete_old_segments(
                    now_ms=now_ms,
                    high_watermark=high_watermark,
                    policies=self._logs.maintenance.deletion_policies,
                )
            except Exception:
                if not each.closed:
                    log.exception("Retention of %s-%d failed: marking it as uncleanable", *key)
                    self.uncleanable[key] = each
            finally:
                self._logs.maintenance.unlock_for_cleaning(key)

    # --- cleaning -----------------------------------------------------------------------------------

    def _failed(self, task: CleaningTask, outcome: Failed) -> None:
        key = task.key
        if outcome.errno in _RESOURCE_ERRNOS:
            log.warning("Cleaning %s-%d failed, retrying later: %s", *key, outcome.message)
            self._retry_after_ms[key] = self._clock() + _RETRY_MS
            return
        log.warning("Cleaning %s-%d failed, marking it as uncleanable: %s", *key, outcome.message)
        self.uncleanable[key] = task.log
        if outcome.errno not in (None, errno.ENOENT):
            task.log.log_dir.fail(f"clean {task.log.directory.name}", OSError(outcome.errno, outcome.message))

    # --- checkpoints --------------------------------------------------------------------------------

    def _write_checkpoints(self) -> None:
        """In a thread: write the first dirty offsets of the directories where one has changed."""
        current: dict[LogDir, dict[Key, int]] = {log_dir: {} for log_dir in self._logs.online_dirs()}
        for key, each in self._logs.logs().items():
            if each.first_dirty_offset is not None and each.log_dir in current:
                current[each.log_dir][key] = each.first_dirty_offset
        for log_dir, offsets in current.items():
            if self._checkpoints.get(log_dir, {}) != offsets:
                log_dir.write_offsets(CHECKPOINT_FILE, offsets)
                self._checkpoints[log_dir] = offsets


def _log_result(task: CleaningTask, outcome: Outcome) -> None:
    done, counts = outcome.done, outcome.done.counts
    log.info(
        "Cleaned %s-%d from %d to %d: kept %d of %d records and %.1f of %.1f MiB, in %.1f s",
        *task.key,
        task.dirt.first_dirty,
        done.end_offset,
        counts.records_kept,
        counts.records_read,
        counts.bytes_kept / (1 << 20),
        counts.bytes_read / (1 << 20),
        outcome.elapsed_ms / 1000,
    )
    if counts.keyless:
        log.warning("Discarded records without a key of %s-%d: %d", *task.key, counts.keyless)


def _gauges(
    *,
    done: Sequence[Outcome],
    uncleanable: int,
    uncleanable_bytes: int,
    dirty_ratio_max: float,
    compaction_delay_ms_max: int,
    since_last_run_ms: int,
    dead_threads: int,
) -> dict[str, int]:
    """The gauges of kafka.log's LogCleaner and LogCleanerManager; `done` has the last result of each
    thread."""
    read = sum(each.done.counts.bytes_read for each in done)
    kept = sum(each.done.counts.bytes_kept for each in done)
    return {
        "uncleanable-partitions-count": uncleanable,
        "uncleanable-bytes": uncleanable_bytes,
        "max-dirty-percent": int(100 * dirty_ratio_max),
        "time-since-last-run-ms": since_last_run_ms,
        "cleaner-recopy-percent": int(100 * kept / max(read, 1)),
        "max-clean-time-secs": max((each.elapsed_ms // 1000 for each in done), default=0),
        "max-buffer-utilization-percent": max(
            (int(100 * each.done.map_utilization) for each in done), default=0
        ),
        "max-compaction-delay-secs": compaction_delay_ms_max // 1000,
        "DeadThreadCount": dead_threads,
    }
