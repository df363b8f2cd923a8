"""Threads and worker processes: slow work beside the event loop.

The components of a broker that read disks, shake hands or look into records take what they need from
`Workers`: each kind of work has its own bound, so that one kind cannot starve another. Results are futures of
the event loop. Threads and processes start with the first job.

A job of a process is a function of (files, *arguments) in a module that is cheap to import. Arguments and
result are pickled; a memoryview arrives as bytes, without another copy. A job that is a generator function
gives its steps to `answer`, a coroutine function on the event loop, and receives what that returns;
JobAborted out of `answer` closes the generator and ends the job. A process keeps no state between jobs. It
runs with a lower priority, within a limit of memory, and ends with the broker, however that ends
(`worker_process`). If it dies, its job fails with ProcessDied, and the next job gets a new process.

Not `concurrent.futures.ProcessPoolExecutor` (ADR 0098): for 300 KB it takes 0.7 ms of the broker's CPU a job
instead of 0.15, and it cannot end a process that is too slow.
"""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, Protocol, TypeVar

from ottla.ports.files import Files
from ottla.ports.worker_process import EXCEPTION, RESULT, STEP, Message, receive, send

T = TypeVar("T")
P = ParamSpec("P")

Job = Callable[Concatenate[Files, P], T | Generator[Any, Any, T]]
Answer = Callable[[Any], Awaitable[object]]


_EXIT_S: Final = 1.0
"""A process that has closed its pipes ends within this time, or is killed."""


class ProcessDied(Exception):
    """The process has ended before its job has; the message says how."""


class JobAborted(Exception):
    """Raised by `answer` to end a job; raised by `submit` for a job that was ended so."""


class ProcessLimits(NamedTuple):
    niceness: int
    memory_bytes_max: int = 0
    """Of address space; 0: no limit. A job that exceeds it raises MemoryError."""
    timeout_s: float | None = None
    """The process is killed if a step takes longer."""


class Threads(Protocol):
    """Threads for one kind of work. Belongs to the event loop."""

    def submit(self, work: Callable[..., T], /, *args: Any) -> asyncio.Future[T]:
        """Call `work` in a thread, after the jobs before it."""

    async def stop(self) -> None:
        """Drop the jobs that have not begun, and wait for the others."""


class Processes(Protocol):
    """Processes for one kind of work. Belongs to the event loop."""

    @property
    def pids(self) -> list[int]:
        """Of the processes that run."""

    def submit(self, job: Job[..., T], /, *args: Any, answer: Answer | None = None) -> asyncio.Future[T]:
        """Call `job` in a process, after the jobs before it. The future has the job's result or exception, or
        ProcessDied, JobAborted. The arguments must stay unchanged until then."""

    async def end_idle(self) -> None:
        """End the processes without a job; the next job starts a new one."""

    def kill(self) -> None:
        """Kill the processes for good; jobs raise ProcessDied."""

    async def stop(self) -> None:
        """`kill`, and wait for the end of the processes."""


class Workers(Protocol):
    """The interface."""

    def threads(self, name: str, count: int) -> Threads: ...

    def processes(self, name: str, count: int, limits: ProcessLimits) -> Processes: ...


class OsWorkers:
    """Threads and processes of this machine."""

    def threads(self, name: str, count: int) -> Threads:
        return OsThreads(name, count)

    def processes(self, name: str, count: int, limits: ProcessLimits) -> Processes:
        return OsProcesses(name, count, limits)


class OsThreads:
    def __init__(self, name: str, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)

    def submit(self, work: Callable[..., T], /, *args: Any) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._pool, work, *args)

    async def stop(self) -> None:
        await _shut_down(self._pool)


class OsProcesses:
    """Each process has a thread, which starts it and waits for it: the system ends the process if its thread
    ends."""

    def __init__(self, name: str, count: int, limits: ProcessLimits) -> None:
        self._limits = limits
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._mutex = threading.Lock()
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._killed = False

    @property
    def pids(self) -> list[int]:
        with self._mutex:
            return [process.pid for process in (*self._idle, *self._busy)]

    def submit(self, job: Job[..., T], /, *args: Any, answer: Answer | None = None) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        if answer is None:
            return loop.run_in_executor(self._pool, self._run, job, args, None)

        def answer_step(step: Any) -> Future[object]:
            async def answered() -> object:
                return await answer(step)

            return asyncio.run_coroutine_threadsafe(answered(), loop)

        return loop.run_in_executor(self._pool, self._run, job, args, answer_step)

    async def end_idle(self) -> None:
        with self._mutex:
            idle, self._idle = self._idle, []
        for process in idle:
            await asyncio.to_thread(process.end)

    def kill(self) -> None:
        with self._mutex:
            self._killed = True
            for process in (*self._idle, *self._busy):
                process.kill()

    async def stop(self) -> None:
        self.kill()
        await _shut_down(self._pool)
        await self.end_idle()

    # --- in a thread ---

    def _run(
        self, job: Job[..., T], args: tuple[Any, ...], answer: Callable[[Any], Future[object]] | None
    ) -> T:
        process = self._take()
        try:
            result: T = process.run(job, args, answer)
        except ProcessDied:
            process.end()
            raise
        finally:
            with self._mutex:
                self._busy.discard(process)
                if not process.ended:
                    self._idle.append(process)
        return result

    def _take(self) -> _Process:
        """An idle process, or a new one. Raises ProcessDied, and OSError if it cannot start."""
        with self._mutex:
            if self._killed:
                raise ProcessDied("it was shut down")
            process = self._idle.pop() if self._idle else _Process(self._limits)
            self._busy.add(process)
            return process


class _Process:
    """One process, which serves one job at a time."""

    def __init__(self, limits: ProcessLimits) -> None:
        command = (
            sys.executable, "-m", "ottla.ports.worker_process",
            str(os.getpid()), str(limits.niceness), str(limits.memory_bytes_max),
        )  # fmt: skip
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self._process.pid
        self.ended = False
        self._timeout_ms = None if limits.timeout_s is None else limits.timeout_s * 1000
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self._readable = select.poll()  # select.select supports no descriptors above 1023
        self._readable.register(self._out.fileno(), select.POLLIN)

    def run(
        self, job: Callable[..., Any], args: tuple[Any, ...], answer: Callable[[Any], Future[object]] | None
    ) -> Any:
        """Raises what the job raises, ProcessDied and JobAborted."""
        self._send((job, args))
        while True:
            kind, value = self._receive()
            if kind == RESULT:
                return value
            if kind == EXCEPTION:
                raise value
            assert kind == STEP
            assert answer is not None, "the job has steps"
            problem: BaseException | None = None
            reply: object = None
            try:
                reply = answer(value).result()
            except BaseException as e:
                problem = e
            self._send((problem is None, reply))
            if problem is not None:
                self._receive()
                raise problem

    def _send(self, message: Message) -> None:
        try:
            send(self._in, message)
        except (OSError, ValueError) as problem:  # ValueError: the pipe is closed
            raise self._died() from problem

    def _receive(self) -> Message:
        try:
            if not self._readable.poll(self._timeout_ms):
                self.kill()
                raise ProcessDied(f"no answer in {self._timeout_ms:.0f} ms")
            message = receive(self._out)
        except (OSError, ValueError) as problem:
            raise self._died() from problem
        if message is None:
            raise self._died()
        return message

    def _died(self) -> ProcessDied:
        """After the end of its output, or of its input."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_S)
        self.kill()
        return ProcessDied(f"exit status {self._process.wait()}")

    def kill(self) -> None:
        """From any thread."""
        self._process.kill()

    def end(self) -> None:
        """Kill the process and wait for its end."""
        self.ended = True
        self._process.kill()
        self._process.wait()
        for pipe in (self._in, self._out):
            with suppress(OSError, ValueError):  # what is buffered cannot be written
                pipe.close()


async def _shut_down(pool: ThreadPoolExecutor) -> None:
    await asyncio.to_thread(pool.shutdown, wait=True, cancel_futures=True)


class LoopWorkers:
    """Runs jobs of threads in the event loop's executor and jobs of processes in the same process, for
    simulations and tests."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def threads(self, name: str, count: int) -> Threads:
        return OsThreads(name, count)

    def processes(self, name: str, count: int, limits: ProcessLimits) -> Processes:
        return LoopProcesses(self._files, count)


class LoopProcesses:
    """See `LoopWorkers`."""

    def __init__(self, files: Files, count: int) -> None:
        self._files = files
        self._slots = asyncio.Semaphore(count)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._killed = False

    @property
    def pids(self) -> list[int]:
        return []

    def submit(self, job: Job[..., T], /, *args: Any, answer: Answer | None = None) -> asyncio.Future[T]:
        task = asyncio.get_running_loop().create_task(self._run(job, args, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def end_idle(self) -> None:
        pass

    def kill(self) -> None:
        self._killed = True
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        self.kill()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, job: Callable[..., Any], args: tuple[Any, ...], answer: Answer | None) -> Any:
        try:
            async with self._slots:
                if self._killed:
                    raise ProcessDied("it was shut down")
                run = asyncio.get_running_loop().run_in_executor
                result = await run(None, job, self._files, *args)
                if not isinstance(result, Generator):
                    return result
                assert answer is not None, "the job has steps"
                reply: object = None
                try:
                    while True:
                        is_over, value = await run(None, _advance, result, reply)
                        if is_over:
                            return value
                        reply = await answer(value)
                finally:
                    result.close()
        except asyncio.CancelledError:
            if self._killed:
                raise ProcessDied("it was shut down") from None
            raise


def _advance(steps: Generator[Any, Any, Any], reply: object) -> tuple[bool, Any]:
    """(False, the next step) or (True, the result)."""
    try:
        return False, steps.send(reply)
    except StopIteration as end:
        return True, end.value
