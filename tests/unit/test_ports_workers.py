"""Threads and worker processes: results, errors, steps, limits and death."""

from __future__ import annotations

import asyncio
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest

from ottla.ports.files import OS_FILES
from ottla.ports.workers import (
    JobAborted,
    LoopWorkers,
    OsWorkers,
    ProcessDied,
    Processes,
    ProcessLimits,
    Workers,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage.record_validation import InvalidRecords, RecordError
from tests.worlds.worker_jobs import (
    closure,
    count,
    fail,
    much_memory,
    pid,
    pid_as_step,
    print_something,
    reversed_bytes,
)

WAIT_S: Final = 60.0
LIMITS: Final = ProcessLimits(niceness=1)


@pytest.fixture(params=["processes", "the loop"])
def workers(request: pytest.FixtureRequest) -> Workers:
    return OsWorkers() if request.param == "processes" else LoopWorkers(OS_FILES)


def run(
    workers: Workers,
    scenario: Callable[[Processes], Coroutine[Any, Any, None]],
    limits: ProcessLimits = LIMITS,
    processes: int = 2,
) -> None:
    async def whole() -> None:
        made = workers.processes("test", processes, limits)
        try:
            async with asyncio.timeout(WAIT_S):
                await scenario(made)
        finally:
            pids = made.pids
            await made.stop()
            assert not any(map(is_running, pids))

    asyncio.run(whole())


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_job_has_files_arguments_and_a_result(workers: Workers) -> None:
    async def scenario(processes: Processes) -> None:
        assert not processes.pids
        data = bytearray(os.urandom(300_000))
        assert bytes(await processes.submit(reversed_bytes, memoryview(data), 3)) == bytes(data)[::-1] * 3
        assert bytes(await processes.submit(reversed_bytes, b"", 3)) == b""
        found = await asyncio.gather(*[processes.submit(reversed_bytes, b"%d" % n, 1) for n in range(30)])
        assert [bytes(each) for each in found] == [(b"%d" % n)[::-1] for n in range(30)]

    run(workers, scenario)


@pytest.mark.parametrize(
    "problem",
    [
        OSError(28, "No space left on device", "/a/file"),
        FileNotFoundError(2, "No such file or directory"),
        MemoryError(),
        KafkaError(ErrorCode.CORRUPT_MESSAGE, "why"),
        InvalidRecords([RecordError(3, ErrorCode.INVALID_RECORD, "why")]),
    ],
    ids=lambda each: type(each).__name__,
)
def test_an_exception_is_raised_as_in_the_job(workers: Workers, problem: Exception) -> None:
    async def scenario(processes: Processes) -> None:
        with pytest.raises(type(problem)) as caught:
            await processes.submit(fail, problem)
        assert caught.value.args == problem.args
        assert {**vars(caught.value)} == {**vars(problem)}
        assert await processes.submit(pid) > 0

    run(workers, scenario)


def test_a_result_that_cannot_be_sent_is_an_error() -> None:
    async def scenario(processes: Processes) -> None:
        with pytest.raises(RuntimeError, match=r"pickle|local object"):
            await processes.submit(closure)
        assert await processes.submit(pid) > 0

    run(OsWorkers(), scenario)


def test_output_is_no_reply() -> None:
    async def scenario(processes: Processes) -> None:
        assert await processes.submit(print_something) == "reply"

    run(OsWorkers(), scenario)


def test_steps_are_answered(workers: Workers) -> None:
    async def scenario(processes: Processes) -> None:
        async def answer(step: int) -> int:
            await asyncio.sleep(0)
            return step * 10

        assert await processes.submit(count, 5, answer=answer) == 100
        assert await processes.submit(count, 0, answer=answer) == 0

    run(workers, scenario)


def test_a_job_is_aborted_by_its_answer_and_the_process_goes_on(workers: Workers) -> None:
    async def scenario(processes: Processes) -> None:
        steps: list[int] = []

        async def answer(step: int) -> int:
            steps.append(step)
            if step == 2:
                raise JobAborted
            return 0

        before = await processes.submit(pid)
        with pytest.raises(JobAborted):
            await processes.submit(count, 5, answer=answer)
        assert steps == [0, 1, 2]
        assert await processes.submit(pid) == before

    run(workers, scenario, processes=1)


def test_processes_run_at_once_and_no_more_than_allowed() -> None:
    async def scenario(processes: Processes) -> None:
        both, running = asyncio.Barrier(2), set[int]()

        async def answer(pid: int) -> None:
            assert pid not in running
            running.add(pid)
            assert len(running) <= 2
            await both.wait()
            running.discard(pid)

        pids = await asyncio.gather(*[processes.submit(pid_as_step, answer=answer) for _ in range(6)])
        assert len(set(pids)) == 2
        assert set(pids) == set(processes.pids)
        await processes.end_idle()
        assert not processes.pids
        assert not any(map(is_running, pids))
        assert await processes.submit(pid) not in pids

    run(OsWorkers(), scenario)


def test_a_job_of_a_process_that_dies_fails_and_the_next_gets_another() -> None:
    async def scenario(processes: Processes) -> None:
        victim = await processes.submit(pid)

        async def answer(pid: int) -> None:
            assert pid == victim
            os.kill(victim, signal.SIGKILL)

        with pytest.raises(ProcessDied, match="-9"):
            await processes.submit(pid_as_step, answer=answer)
        assert await processes.submit(pid) != victim

    run(OsWorkers(), scenario, processes=1)


def test_a_slow_process_is_killed() -> None:
    async def scenario(processes: Processes) -> None:
        with pytest.raises(ProcessDied, match="no answer in 50 ms"):
            await processes.submit(pid, WAIT_S)
        assert not processes.pids, "the next job gets another"

    run(OsWorkers(), scenario, ProcessLimits(niceness=1, timeout_s=0.05))


def test_a_job_that_takes_too_much_memory_fails_alone() -> None:
    async def scenario(processes: Processes) -> None:
        before = await processes.submit(pid)
        with pytest.raises(MemoryError):
            await processes.submit(much_memory)
        assert await processes.submit(pid) == before

    run(OsWorkers(), scenario, ProcessLimits(niceness=1, memory_bytes_max=512 << 20), processes=1)


def test_jobs_fail_once_the_processes_are_killed(workers: Workers) -> None:
    async def scenario(processes: Processes) -> None:
        async def answer(step: int) -> int:
            processes.kill()
            return 0

        with pytest.raises(ProcessDied):
            await processes.submit(count, 5, answer=answer)
        with pytest.raises(ProcessDied, match="shut down"):
            await processes.submit(pid)

    run(workers, scenario)


def test_a_broker_with_many_open_files_reads_replies() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], min(4096, limits[1])), limits[1]))
    held: list[int] = []

    async def scenario(processes: Processes) -> None:
        assert await processes.submit(pid) > 0

    try:
        while not held or held[-1] < 1030:
            held.append(os.open(os.devnull, os.O_RDONLY))
        run(OsWorkers(), scenario)
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_process_ends_with_the_broker_however_that_ends() -> None:
    """A parent is killed while its process waits: its error output ends, which no process holds any more."""
    reading, writing = os.pipe()
    script = (
        "import asyncio, os, time\n"
        "from ottla.ports.workers import OsWorkers, ProcessLimits\n"
        "from tests.worlds.worker_jobs import pid\n"
        "async def main():\n"
        "    processes = OsWorkers().processes('test', 1, ProcessLimits(1))\n"
        "    print(await processes.submit(pid), flush=True)\n"
        "    time.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=writing)
    try:
        os.close(writing)
        assert parent.stdout is not None
        assert int(parent.stdout.readline()) != parent.pid
    finally:
        parent.kill()
        parent.communicate()
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    assert poll.poll(WAIT_S * 1000), "the process outlives the broker"
    assert os.read(reading, 1) == b""
    os.close(reading)


def test_threads_run_no_more_jobs_at_once_than_allowed(workers: Workers) -> None:
    async def scenario() -> None:
        threads = workers.threads("test", 2)
        both, mutex = threading.Barrier(2, timeout=WAIT_S), threading.Lock()
        running = most = 0

        def work(number: int) -> int:
            nonlocal running, most
            with mutex:
                running += 1
                most = max(most, running)
            both.wait()
            time.sleep(0.01)  # in which a third one would begin; nothing waits for its end
            with mutex:
                running -= 1
            return number

        assert await asyncio.gather(*[threads.submit(work, n) for n in range(8)]) == list(range(8))
        assert most == 2
        has_begun, may_end = threading.Event(), threading.Event()
        begun = threads.submit(lambda: (has_begun.set(), may_end.wait(WAIT_S))[1])
        await asyncio.to_thread(has_begun.wait)
        stopping = asyncio.ensure_future(threads.stop())
        await asyncio.sleep(0)
        assert not stopping.done(), "it waits for the job that has begun"
        may_end.set()
        await stopping
        assert await begun
        with pytest.raises(RuntimeError):
            threads.submit(work, 1)

    asyncio.run(scenario())
