"""A cleaner thread, as Kafka calls it: it runs cleaning jobs in a worker process, one at a time, and puts the
cleaned segments in place. Blocking work on logs is done in threads.

Made by `log_cleaner`, which chooses the logs.

Invariant: no segment is replaced in a log that is closed, being moved, or truncated below the end of the
cleaned range.

The throttler limits the bytes that the cleaner threads read and write (log.cleaner.io.max.bytes.per.second;
Kafka's Throttler). All threads share one, as in Kafka; it belongs to the broker's event loop, to which the
worker processes report bytes. Time is passed in. As in Kafka, the rate is checked every 300 ms, or earlier if
more bytes than allowed in that time were processed.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from ottla.ports.files import Files
from ottla.ports.workers import JobAborted, ProcessDied, ProcessLimits, Threads, Workers
from ottla.protocol.errors import KafkaError
from ottla.storage.checkpoints import TopicPartition
from ottla.storage.cleaner.cleaner import Cleaned, Done, LogCleaningError, Step, clean_log, remove_cleaned
from ottla.storage.cleaner.planning import Job, LogToClean, WorkerLimits, plan_job
from ottla.storage.indexes import CorruptIndex
from ottla.storage.log import Log
from ottla.storage.log_loader import open_cleaned
from ottla.storage.log_segment import LogSegment

_INTERVAL_S = 0.3


class Throttler:
    """`bytes_per_s` may change at any time; times are seconds of a clock that never steps."""

    def __init__(self, bytes_per_s: float, now_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._began_s = now_s
        self._moved = 0
        """Bytes processed since."""

    def delay_s(self, size: int, now_s: float) -> float:
        """Add `size` processed bytes. Returns the time to wait before the next. The caller calls it again
        after the wait, with 0: the counters or the rate may have changed."""
        rate = self.bytes_per_s
        self._moved += size
        elapsed_s = now_s - self._began_s
        if elapsed_s < _INTERVAL_S and self._moved <= rate * _INTERVAL_S:
            return 0.0
        pause_s = self._moved / rate - elapsed_s if rate > 0 else 0.0
        if pause_s <= 0:
            self._began_s, self._moved = now_s, 0
        return max(0.0, pause_s)


LIMITS: Final = ProcessLimits(niceness=10)
_PAUSE_S_MAX: Final = 1.0
"""The throttler is consulted again after at most this pause: the rate or the log may have changed."""


class CleaningTask(NamedTuple):
    """The cleaning of one log."""

    key: TopicPartition
    log: Log
    dirt: LogToClean

    @property
    def is_wanted(self) -> bool:
        return not self.log.closed and self.log.truncated_to >= self.dirt.first_uncleanable


class Outcome(NamedTuple):
    """The result of a cleaning, and how long it took."""

    done: Done
    elapsed_ms: int


class Failed(NamedTuple):
    """The cleaning has failed; `errno` is set for an OSError."""

    message: str
    errno: int | None = None


class Aborted(NamedTuple):
    """The cleaning was stopped: the log has changed, or its files do not exist any more."""


class CleanerThread:
    """See the module. `is_moving` returns whether a partition's log is being moved to another directory."""

    def __init__(
        self,
        workers: Workers,
        threads: Threads,
        throttle: Throttler,
        is_moving: Callable[[TopicPartition], bool],
        clock: Callable[[], float],
    ) -> None:
        """`threads` do the blocking work on logs; `clock` gives seconds that never step."""
        self.ended = asyncio.Event()
        self.is_dead = False
        """It failed for a reason other than a log."""
        self.last: Outcome | None = None
        """The last result."""
        self.process = workers.processes("log-cleaner", 1, LIMITS)
        self._threads = threads
        self._throttle = throttle
        self._is_moving = is_moving
        self._clock = clock

    def shut_down(self) -> None:
        """Abort the running job and end the thread."""
        self.ended.set()
        self.process.kill()

    async def clean(
        self, task: CleaningTask, limits: WorkerLimits, now_ms: int
    ) -> Outcome | Failed | Aborted:
        """Clean one log; never raises."""
        began_s = self._clock()
        try:
            job, segments = await self._threads.submit(plan_job, task.log, task.dirt, limits, now_ms)
        except Exception as problem:
            return _failure(problem)
        if not segments or not task.is_wanted:
            return Aborted()
        outcome = await self._run_job(task, job, segments)
        if isinstance(outcome, Done):
            await self._threads.submit(task.log.mark_cleaned, outcome.end_offset)
            return Outcome(outcome, int((self._clock() - began_s) * 1000))
        await self._threads.submit(_remove_leftovers, task.log.log_dir.files, job)
        return outcome

    async def _run_job(
        self, task: CleaningTask, job: Job, segments: list[LogSegment]
    ) -> Done | Failed | Aborted:
        """Run the job in the worker process, and put each cleaned segment in place."""
        problems: list[Exception] = []

        async def follow(step: Step) -> None:
            if not isinstance(step, Cleaned):
                await self._wait_for_throttle(task, step)
                return
            try:
                replaced = not self._is_moving(task.key) and await self._threads.submit(
                    _replace_segments, task, job.directory, segments, step
                )
            except Exception as problem:
                problems.append(problem)
                raise JobAborted from problem
            if not replaced:
                raise JobAborted

        try:
            return await self.process.submit(clean_log, job, answer=follow)
        except JobAborted:
            return _failure(problems[0]) if problems else Aborted()
        except ProcessDied as problem:
            if self.ended.is_set():
                return Aborted()
            return Failed(f"the worker process died: {problem}", errno.ENOMEM)
        except FileNotFoundError:
            return Aborted()
        except (OSError, LogCleaningError, KafkaError) as problem:
            return _failure(problem)._replace(message=f"{job.directory}: {problem}")
        except Exception as problem:
            return Failed(f"{job.directory}: {problem!r}")

    async def _wait_for_throttle(self, task: CleaningTask, size: int) -> None:
        """Wait as long as the throttle demands after `size` bytes. Raises JobAborted when the log has changed
        or the thread ends."""
        delay_s = self._throttle.delay_s(size, self._clock())
        while not self.ended.is_set() and task.is_wanted:
            if delay_s <= 0:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self.ended.wait(), min(delay_s, _PAUSE_S_MAX))
            delay_s = self._throttle.delay_s(0, self._clock())
        raise JobAborted


def _failure(problem: Exception) -> Failed:
    return Failed(str(problem) or repr(problem), problem.errno if isinstance(problem, OSError) else None)


def _replace_segments(
    task: CleaningTask, directory: str, segments: list[LogSegment], cleaned: Cleaned
) -> bool:
    """Replace segments by a `.cleaned` one; False if the log was closed or moved meanwhile."""
    if not task.is_wanted or str(task.log.directory) != directory:
        return False
    old = [segment for segment in segments if segment.base_offset in set(cleaned.bases)]
    try:
        new = open_cleaned(task.log.log_dir.files, directory, cleaned.bases[0], task.log.config)
        if new.size != cleaned.size:
            raise CorruptIndex(f"{new.file.path}: {new.size} bytes, and {cleaned.size} were written")
        return task.log.replace_segments(old, new, task.dirt.first_uncleanable)
    except (OSError, KafkaError):
        if task.log.closed:
            return False
        raise


def _remove_leftovers(files: Files, job: Job) -> None:
    directory = Path(job.directory)
    if files.exists(directory):
        for base_offset, *_ in job.sources:
            with suppress(OSError):
                remove_cleaned(files, directory, base_offset)
