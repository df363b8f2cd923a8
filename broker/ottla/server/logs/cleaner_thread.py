"""A cleaner thread: it runs cleaning jobs in a worker process and puts the cleaned segments in place.

Made by `log_cleaner`, which chooses the logs.

Invariant: no segment is replaced in a log that is closed, being moved, or truncated below the end of the
cleaned range.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from ottla.ports.files import Files
from ottla.protocol.errors import KafkaError
from ottla.server.logs.cleaner_process import CleanerProcess, ProcessDied
from ottla.storage.checkpoints import TopicPartition
from ottla.storage.cleaner.cleaner import remove_cleaned
from ottla.storage.cleaner.messages import Abort, Aborted, Cleaned, Continue, Done, Failed, Job
from ottla.storage.cleaner.planning import LogToClean, WorkerLimits, plan_job
from ottla.storage.cleaner.throttler import Throttler
from ottla.storage.indexes import CorruptIndex
from ottla.storage.log import Log
from ottla.storage.log_loader import open_cleaned
from ottla.storage.log_segment import LogSegment

Result = TypeVar("Result")

_POLL_S: Final = 1.0
"""How often a running job is checked for an abort."""


class CleaningTask(NamedTuple):
    """The cleaning of one log."""

    key: TopicPartition
    log: Log
    dirt: LogToClean

    @property
    def is_wanted(self) -> bool:
        return not self.log.closed and self.log.truncated_to >= self.dirt.first_uncleanable


class CleanerThread:
    """See the module. `is_moving` returns whether a partition's log is being moved to another directory."""

    def __init__(self, throttle: Throttler, is_moving: Callable[[TopicPartition], bool]) -> None:
        self.ended = asyncio.Event()
        self.is_dead = False
        """It failed for a reason other than a log."""
        self.last: Done | None = None
        """The last result."""
        self.process = CleanerProcess(throttle)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="log-cleaner")
        self._is_moving = is_moving

    async def call(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def shut_down(self) -> None:
        """Abort the running job and end the thread."""
        self.ended.set()
        self.process.shut_down()

    async def close(self) -> None:
        await self.call(self.process.stop)
        self._executor.shutdown(wait=False)

    def clean(self, task: CleaningTask, limits: WorkerLimits, now_ms: int) -> Done | Failed | Aborted:
        """Clean one log; never raises. Blocking."""
        outcome: Done | Failed | Aborted
        try:
            job, segments = plan_job(task.log, task.dirt, limits, now_ms)
        except Exception as problem:
            return _failure(problem)
        if not segments or not task.is_wanted:
            return Aborted()
        try:
            outcome = self._run_job(task, job, segments)
        except ProcessDied as problem:
            if self.ended.is_set():
                outcome = Aborted()
            else:
                outcome = Failed(f"the worker process died: {problem}", errno.ENOMEM)
        except Exception as problem:
            self.process.stop()
            outcome = _failure(problem)
        if isinstance(outcome, Done):
            task.log.mark_cleaned(outcome.end_offset)
        else:
            _remove_leftovers(task.log.log_dir.files, job)
        return outcome

    def _run_job(self, task: CleaningTask, job: Job, segments: list[LogSegment]) -> Done | Failed | Aborted:
        """Run the job and put each cleaned segment in place. Raises ProcessDied."""
        self.process.send(job)
        aborted = False
        while True:
            answer = self.process.receive(_POLL_S)
            if isinstance(answer, Done | Failed | Aborted):
                return answer
            if isinstance(answer, Cleaned) and not aborted:
                aborted = self._is_moving(task.key) or not _replace_segments(
                    task, job.directory, segments, answer
                )
                self.process.send(Abort() if aborted else Continue())
            elif not aborted and not task.is_wanted:
                aborted = True
                self.process.send(Abort())


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
