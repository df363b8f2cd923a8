"""Compacts logs (cleanup.policy=compact) beside all else: chooses, has a worker process clean, swaps.

Made by the broker, for leaders and followers alike: each replica cleans its own log. As many worker processes
as log.cleaner.threads run at once, each only while there is something to clean. What is done on the event
loop is to ask the partitions what is stable, and to pass messages on; measuring and swapping block, and are
done in threads. A log whose cleaning fails is left alone from then on, and the rest goes on.

As in Kafka, retention of compacted logs is the cleaner's too: after each turn a thread deletes what
`delete` in their cleanup.policy, or their start, lets go.

Invariants: nobody else works on a log meanwhile (`LogManager.claim`); nothing is cleaned while it is moved
between directories; all threads together read and write no more than log.cleaner.io.max.bytes.per.second.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from ottla.metadata.config import BrokerConfig
from ottla.replication.manager import ReplicaManager
from ottla.replication.partition import Partition
from ottla.server.logs.cleaner_metrics import gauges
from ottla.server.logs.cleaner_thread import CleanerThread, Task
from ottla.storage.cleaner.messages import Aborted, Done, Failed
from ottla.storage.cleaner.planning import CHECKPOINT_FILE, WorkerLimits, log_to_clean
from ottla.storage.cleaner.throttler import Throttler
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
"""Those that `settings_changed` is to be told of."""

_PAUSE_S_MIN: Final = 0.01
_REST_MS: Final = 5 * 60 * 1000
"""For so long a log is left alone whose cleaning failed for want of space or memory."""
_WANTS: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.ENFILE))
_INT_MAX: Final = 2**31 - 1


class Candidate(NamedTuple):
    key: Key
    log: Log
    last_stable_offset: int


class LogCleaner:
    """See the module. Everything but what says otherwise belongs to the event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        logs: LogManager,
        replicas: ReplicaManager,
        clock: Callable[[], int],
    ) -> None:
        """`clock` gives milliseconds. The logs are loaded already."""
        self._config = config
        self._logs = logs
        self._replicas = replicas
        self._clock = clock
        self._dirty_ratio_max = 0.0
        self._compaction_delay_ms_max = 0
        self._last_run_ms = 0
        self.uncleanable: dict[Key, Log] = {}
        """Logs whose cleaning has failed."""
        self._resting: dict[Key, int] = {}
        """Until when, in ms."""
        self._choosing = asyncio.Lock()
        self._throttle = Throttler.make(self._bytes_per_s, time.monotonic())
        self._threads: list[CleanerThread] = []
        self._running: set[asyncio.Task[None]] = set()
        self._written: dict[LogDir, dict[Key, int]] = {}
        """The checkpoint files as last written or read."""

    # --- life ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take up where the checkpoints say that the last broker came to. Blocking: reads them."""
        everything = self._logs.logs()
        for log_dir in self._logs.online_dirs():
            self._written[log_dir] = offsets = log_dir.read_offsets(CHECKPOINT_FILE)
            for key, offset in offsets.items():
                found = everything.get(key)
                if found is not None and found.log_dir is log_dir:
                    found.first_dirty_offset = offset
        self._last_run_ms = self._clock()
        if self._config.get_bool("log.cleaner.enable"):
            self._resize()

    def settings_changed(self) -> None:
        """One of `SETTINGS` has another value now. Jobs under way take over the rate, later ones all."""
        self._throttle.bytes_per_s = self._bytes_per_s
        if self._threads:
            self._resize()

    async def stop(self) -> None:
        """Give up what is under way. Segments stay as they are, but what is being put in place will be."""
        for thread in self._threads:
            thread.end()
        self._threads.clear()
        await asyncio.gather(*self._running)
        self._throttle.close()
        await asyncio.to_thread(self._write_checkpoints)

    def _resize(self) -> None:
        """Have as many threads as are wanted; those that died are made anew."""
        wanted = self._config.get_int("log.cleaner.threads")
        threads = [thread for thread in self._threads if not thread.is_dead]
        for thread in threads[wanted:]:
            thread.end()
        del threads[wanted:]
        while len(threads) < wanted:
            thread = CleanerThread(self._throttle, self._is_moving)
            threads.append(thread)
            task = asyncio.get_running_loop().create_task(self._run(thread))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        self._threads = threads

    async def _run(self, thread: CleanerThread) -> None:
        try:
            while not thread.ended.is_set():
                more = await self._clean_filthiest(thread)
                await self._apply_retention(thread)
                if not more:
                    await thread.call(thread.process.stop)
                    with suppress(TimeoutError):
                        await asyncio.wait_for(thread.ended.wait(), self._pause_s)
        except Exception:
            log.exception("a log cleaner died")
            thread.is_dead = True
        finally:
            await thread.close()

    def metrics(self) -> dict[str, int]:
        """Kafka's, by name. Looks at the logs that cannot be cleaned."""
        now_ms = self._clock()
        stuck = [each for each in self.uncleanable.values() if not each.closed]
        return gauges(
            done=[thread.last for thread in self._threads if thread.last is not None],
            uncleanable=len(stuck),
            uncleanable_bytes=sum(
                log_to_clean(each, each.log_end_offset, now_ms).cleanable_bytes for each in stuck
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
        """What one worker may take: its share of what all may."""
        config = self._config
        threads = max(1, config.get_int("log.cleaner.threads"))
        return WorkerLimits(
            map_bytes=min(config.get_int("log.cleaner.dedupe.buffer.size") // threads, _INT_MAX),
            load_factor=config.get_float("log.cleaner.io.buffer.load.factor"),
            buffer_bytes=config.get_int("log.cleaner.io.buffer.size") // threads,
        )

    # --- choosing -----------------------------------------------------------------------------------

    async def _clean_filthiest(self, thread: CleanerThread) -> bool:
        """Clean the log that needs it most; whether to look for another at once."""
        async with self._choosing:
            now_ms = self._clock()
            chosen = await thread.call(partial(self._choose, self._candidates(now_ms), now_ms))
            if chosen is None or not self._logs.maintenance.try_lock_for_cleaning(chosen.key):
                return False
        try:
            outcome = await thread.call(partial(thread.clean, chosen, self.limits, now_ms))
        finally:
            self._logs.maintenance.unlock_for_cleaning(chosen.key)
        if isinstance(outcome, Done):
            thread.last = outcome
            _report(chosen, outcome)
        elif isinstance(outcome, Failed) and not chosen.log.closed:
            self._failed(chosen, outcome)
        # A log that has changed meanwhile had better come to rest first.
        return not isinstance(outcome, Aborted)

    def _candidates(self, now_ms: int) -> list[Candidate]:
        self._last_run_ms = now_ms
        self.uncleanable = {
            key: each for key, each in self.uncleanable.items() if self._logs.get(*key) is each
        }
        self._resting = {key: until for key, until in self._resting.items() if now_ms < until}
        candidates = []
        for partition in self._free():
            key, candidate = partition.key, partition.log
            if key in self._resting or not candidate.has_dirty_sealed_segments:
                continue
            candidate.truncated_to = INT64_MAX
            stable = candidate.last_stable_offset(partition.high_watermark)
            candidates.append(Candidate(key, candidate, stable))
        return candidates

    def _free(self) -> Iterator[Partition]:
        """Partitions with a compacted log that is well, and that nobody works on."""
        for partition in self._replicas.partitions():
            key, each = partition.key, partition.log
            # The cheap test first: of 10,000 logs most are not compacted.
            if "compact" in each.config.cleanup_policy and not (
                self._logs.maintenance.is_locked_for_cleaning(key)
                or self.uncleanable.get(key) is each
                or each.closed
                or self._is_moving(key)
            ):
                yield partition

    def _choose(self, candidates: list[Candidate], now_ms: int) -> Task | None:
        """In a thread, one at a time: write down what changed, and find the filthiest log that is due."""
        self._write_checkpoints()
        tasks = []
        ratio_max, delay_ms_max = 0.0, 0
        for key, candidate, stable in candidates:
            try:
                dirt = log_to_clean(candidate, stable, now_ms)
            except Exception:
                log.exception("%s-%d cannot be cleaned, and is left alone", *key)
                self.uncleanable[key] = candidate
                continue
            ratio_max = max(ratio_max, dirt.ratio)
            delay_ms_max = max(delay_ms_max, dirt.delay_ms)
            if dirt.is_due(candidate.config):
                tasks.append(Task(key, candidate, dirt))
        self._dirty_ratio_max = ratio_max
        if not tasks:
            return None
        self._compaction_delay_ms_max = delay_ms_max
        return max(tasks, key=lambda task: task.dirt.ratio)

    def _is_moving(self, key: Key) -> bool:
        return self._logs.future_log(*key) is not None

    # --- retention ----------------------------------------------------------------------------------

    async def _apply_retention(self, thread: CleanerThread) -> None:
        """Delete what compacted logs let go."""
        partitions = list(self._free())
        logs = [(each.key, each.log, each.high_watermark) for each in partitions]
        await thread.call(partial(self._delete_old_segments, logs, self._clock()))
        self._replicas.log_starts_checked(partitions)

    def _delete_old_segments(self, logs: list[tuple[Key, Log, int]], now_ms: int) -> None:
        """In a thread. A log where that fails is uncleanable, as in Kafka."""
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
                    log.exception("retention of %s-%d failed, and it is left alone", *key)
                    self.uncleanable[key] = each
            finally:
                self._logs.maintenance.unlock_for_cleaning(key)

    # --- cleaning -----------------------------------------------------------------------------------

    def _failed(self, task: Task, outcome: Failed) -> None:
        key = task.key
        if outcome.errno in _WANTS:
            log.warning("cleaning %s-%d failed, and is tried again later: %s", *key, outcome.message)
            self._resting[key] = self._clock() + _REST_MS
            return
        log.warning("cleaning %s-%d failed, and it is left alone from now on: %s", *key, outcome.message)
        self.uncleanable[key] = task.log
        if outcome.errno not in (None, errno.ENOENT):
            task.log.log_dir.fail(f"clean {task.log.directory.name}", OSError(outcome.errno, outcome.message))

    # --- checkpoints --------------------------------------------------------------------------------

    def _write_checkpoints(self) -> None:
        """In a thread: write down where the logs' dirty parts begin, where that has changed."""
        current: dict[LogDir, dict[Key, int]] = {log_dir: {} for log_dir in self._logs.online_dirs()}
        for key, each in self._logs.logs().items():
            if each.first_dirty_offset is not None and each.log_dir in current:
                current[each.log_dir][key] = each.first_dirty_offset
        for log_dir, offsets in current.items():
            if self._written.get(log_dir, {}) != offsets:
                log_dir.write_offsets(CHECKPOINT_FILE, offsets)
                self._written[log_dir] = offsets


def _report(task: Task, done: Done) -> None:
    counts = done.counts
    log.info(
        "cleaned %s-%d from %d to %d: %d of %d records and %.1f of %.1f MiB are left, in %.1f s",
        *task.key,
        task.dirt.first_dirty,
        done.end_offset,
        counts.records_kept,
        counts.records_read,
        counts.bytes_kept / (1 << 20),
        counts.bytes_read / (1 << 20),
        done.elapsed_ms / 1000,
    )
    if counts.keyless:
        log.warning("%s-%d had %d records without a key, which are gone", *task.key, counts.keyless)
