"""Worker processes for schema checks, each with a time limit: `WorkerPool` in the registry, `main` in a
worker.

Called by `store`. A job that takes longer than JOB_S ends with its process, which is replaced. A client runs
one job at a time, so it cannot occupy every process.

A job is sent to the worker's standard input as pickles, one for each earlier version, so that the event
loop is not blocked; the result returns as JSON, because the worker processes untrusted texts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pickle
import resource
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any, BinaryIO, Final

from ottla_pipeline.registry.checks import Checker, Compare, Invalid, Job, Result, as_job
from ottla_pipeline.registry.errors import CheckFailed, Refused

log = logging.getLogger(__name__)
WORKERS: Final = 2
JOB_S: Final = 10.0
ALARM_S: Final = 60
START_S: Final = 60.0
WAITING_MAX: Final = 100
MEMORY_BYTES_MAX: Final = 2 << 30
_READY: Final = b"ready\n"
_SIZE_BYTES: Final = 4


class _Turn:
    """Serializes one client's jobs."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.jobs = 0


class WorkerPool:
    """The pool of worker processes. `job_s` is the time limit of one job."""

    def __init__(self, count: int = WORKERS, *, job_s: float = JOB_S) -> None:
        self._count = count
        self._job_s = job_s
        self._idle: asyncio.Queue[asyncio.subprocess.Process | None] = asyncio.Queue()
        self._turns: dict[str, _Turn] = {}
        self._waiting = 0
        self._running: set[asyncio.subprocess.Process] = set()

    async def start(self) -> None:
        for process in await asyncio.gather(*(self._launch() for _ in range(self._count))):
            self._idle.put_nowait(process)

    async def stop(self) -> None:
        for process in list(self._running):
            await self._end(process)

    async def run(self, job: Job, client: str) -> Result:
        """The result of a job. Raises Refused; CheckFailed if it exceeds a limit."""
        if self._waiting >= WAITING_MAX:
            raise Refused(429, f"{WAITING_MAX} schema checks are waiting; try again later")
        self._waiting += 1
        try:
            async with self._turn(client):
                process = await self._idle.get()
                try:
                    process = process or await self._launch()
                    result = await self._ask(process, job)
                except BaseException:
                    if process is not None:
                        await self._end(process)
                    process = None
                    raise
                finally:
                    self._idle.put_nowait(process)
                return result
        finally:
            self._waiting -= 1

    @contextlib.asynccontextmanager
    async def _turn(self, client: str) -> AsyncIterator[None]:
        turn = self._turns.setdefault(client, _Turn())
        turn.jobs += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.jobs -= 1
            if not turn.jobs:
                del self._turns[client]

    async def _ask(self, process: asyncio.subprocess.Process, job: Job) -> Result:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self._job_s):
                for frame in _frames(job):
                    process.stdin.write(len(frame).to_bytes(_SIZE_BYTES, "big") + frame)
                    await process.stdin.drain()
                    await asyncio.sleep(0)
                size = await process.stdout.readexactly(_SIZE_BYTES)
                data = await process.stdout.readexactly(int.from_bytes(size, "big"))
        except TimeoutError:
            log.warning("a check took longer than %.0f s; its process is replaced", self._job_s)
            raise CheckFailed(f"its check takes longer than {self._job_s:.0f} s") from None
        except (asyncio.IncompleteReadError, OSError):
            log.warning("the process of a check ended; it is replaced")
            raise CheckFailed("its check exceeded its memory limit, or failed") from None
        kind, value = json.loads(data)
        if kind == "invalid":
            return Invalid(value)
        return tuple(value) if isinstance(value, list) else value

    async def _launch(self) -> asyncio.subprocess.Process:
        command = [sys.executable, "-m", "ottla_pipeline.registry.worker"]
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
            self._running.add(process)
            assert process.stdout is not None
            async with asyncio.timeout(START_S):
                line = await process.stdout.readline()
        except (OSError, TimeoutError) as error:
            raise Refused(50001, f"no process for schema checks could be started: {error}") from None
        if line != _READY:
            await self._end(process)
            raise Refused(
                50001, "no process for schema checks could be started; the registry's log has the reason"
            )
        return process

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        self._running.discard(process)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _frames(job: Job) -> list[bytes]:
    kind = type(job).__name__
    if not isinstance(job, Compare):
        return [pickle.dumps((kind, tuple(job), 0))]
    head = pickle.dumps((kind, tuple(job._replace(earlier=())), len(job.earlier)))
    return [head, *(pickle.dumps(each) for each in job.earlier)]


def _read(stream: BinaryIO) -> Any:
    size = stream.read(_SIZE_BYTES)
    if len(size) < _SIZE_BYTES:
        raise EOFError
    return pickle.loads(stream.read(int.from_bytes(size, "big")))


def main() -> None:
    """Performs jobs until the standard input ends. Only results are written to standard output."""
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with contextlib.suppress(ValueError, OSError):  # a lower limit is in force
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    checker = Checker()
    results.write(_READY)
    results.flush()
    while True:
        try:
            kind, fields, more = _read(sys.stdin.buffer)
        except EOFError:
            return
        job = as_job(kind, fields)
        if isinstance(job, Compare):
            job = job._replace(earlier=tuple(_read(sys.stdin.buffer) for _ in range(more)))
        signal.alarm(ALARM_S)  # ends this process where the registry was killed
        try:
            result = checker.perform(job)
        except MemoryError:
            os._exit(1)
        signal.alarm(0)
        answer = ["invalid", result.reason] if isinstance(result, Invalid) else ["done", result]
        data = json.dumps(answer).encode()
        try:
            results.write(len(data).to_bytes(_SIZE_BYTES, "big") + data)
            results.flush()
        except BrokenPipeError:  # the registry was killed meanwhile
            os._exit(1)


if __name__ == "__main__":
    main()
