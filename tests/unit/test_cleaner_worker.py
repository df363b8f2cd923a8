"""The job of a cleaner's worker process, and the cleaner thread that follows it."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from ottla.ports.files import OS_FILES
from ottla.ports.workers import LoopWorkers, OsWorkers, Workers
from ottla.server.logs import cleaner_thread
from ottla.server.logs.cleaner_thread import Aborted, CleanerThread, CleaningTask, Failed, Outcome, Throttler
from ottla.storage.cleaner.planning import LogToClean, WorkerLimits
from ottla.storage.log import Log
from ottla.storage.log_config import INT64_MAX
from tests.worlds.cleaner_logs import NOW_MS, Found, in_memory_place, open_log, put, records, seal, survivors

WAIT_S: Final = 60.0
LIMITS: Final = WorkerLimits(24_000, load_factor=0.9, buffer_bytes=1024)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield from in_memory_place(tmp_path)


@pytest.fixture(params=["processes", "the loop"])
def workers(request: pytest.FixtureRequest) -> Workers:
    return OsWorkers() if request.param == "processes" else LoopWorkers(OS_FILES)


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaner_thread, "_PAUSE_S_MAX", 0.002)


def filled(place: Path) -> tuple[Log, list[Found]]:
    log = open_log(place)
    for number in range(60):
        put(log, (f"key-{number % 5}", f"{number}"))
    seal(log)
    log.truncated_to = INT64_MAX
    return log, records(log)


def task_for(log: Log) -> CleaningTask:
    end = log.segments[-1].base_offset
    dirty = log.first_dirty_offset or 0
    return CleaningTask(("compacted", 0), log, LogToClean(dirty if dirty < end else 0, end, 0, 0, 0))


class Cleaner:
    """One cleaner thread."""

    def __init__(
        self, workers: Workers, throttle: Throttler | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.throttle = throttle or Throttler(float("inf"), time.monotonic())
        self.moving = False
        self.threads = workers.threads("log-cleaner", 2)
        self.thread = CleanerThread(workers, self.threads, self.throttle, lambda key: self.moving, clock)

    def clean(self, log: Log) -> asyncio.Task[Outcome | Failed | Aborted]:
        return asyncio.get_running_loop().create_task(self.thread.clean(task_for(log), LIMITS, NOW_MS))

    async def done(self, log: Log) -> Outcome:
        outcome = await self.clean(log)
        assert isinstance(outcome, Outcome)
        return outcome


@asynccontextmanager
async def cleaner(
    workers: Workers, throttle: Throttler | None = None, clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[Cleaner]:
    made = Cleaner(workers, throttle, clock)
    try:
        yield made
    finally:
        made.thread.shut_down()
        await made.thread.process.stop()
        await made.threads.stop()


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(WAIT_S):
            await scenario()

    asyncio.run(whole())


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 (another task changes it)
        await asyncio.sleep(0.005)


def damage(path: str | Path) -> None:
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[:-1] + b"\xff")


def strays(log: Log) -> list[Path]:
    return list(log.directory.glob("*.cleaned"))


def test_one_process_does_one_job_after_the_other(place: Path, workers: Workers) -> None:
    async def scenario() -> None:
        log, written = filled(place)
        async with cleaner(workers) as each:
            outcome = await each.done(log)
            pids = each.thread.process.pids
            assert outcome.done.end_offset == log.first_dirty_offset == 60
            assert records(log) == survivors(written, 60)
            counts = outcome.done.counts
            assert (counts.records_read, counts.records_kept) == (60, 5)
            assert counts.bytes_read > counts.bytes_kept > 0
            put(log, ("key-0", "last"))
            seal(log)
            assert (await each.done(log)).done.end_offset == 61
            assert len(records(log)) == 5
            assert each.thread.process.pids == pids
            await each.thread.process.end_idle()
            assert not each.thread.process.pids

    run(scenario)


def test_an_aborted_job_is_followed_by_another(place: Path, workers: Workers) -> None:
    async def scenario() -> None:
        log, written = filled(place)
        async with cleaner(workers) as each:
            each.moving = True
            assert await each.clean(log) == Aborted()
            assert records(log) == written
            assert not strays(log)
            each.moving = False
            await each.done(log)
            assert records(log) == survivors(written, 60)

    run(scenario)


@pytest.mark.usefixtures("short_pauses")
def test_a_slow_job_is_aborted_when_its_log_is_truncated(place: Path, workers: Workers) -> None:
    async def scenario() -> None:
        log, written = filled(place)
        async with cleaner(workers, Throttler(1.0, time.monotonic())) as each:  # an hour and more
            cleaning = each.clean(log)
            await until(lambda: each.throttle.delay_s(0, time.monotonic()) > 0)
            log.truncated_to = 0
            assert await cleaning == Aborted()
            assert records(log) == written

    run(scenario)


@pytest.mark.usefixtures("short_pauses")
def test_a_slow_job_ends_with_its_thread_or_goes_faster_when_told(place: Path, workers: Workers) -> None:
    async def scenario() -> None:
        log, written = filled(place)
        async with cleaner(workers, Throttler(1.0, time.monotonic())) as each:
            cleaning = each.clean(log)
            await until(lambda: each.throttle.delay_s(0, time.monotonic()) > 0)
            each.thread.shut_down()
            assert await cleaning == Aborted()
            assert records(log) == written
        async with cleaner(workers, Throttler(1.0, time.monotonic())) as each:
            cleaning = each.clean(log)
            await until(lambda: each.throttle.delay_s(0, time.monotonic()) > 0)
            each.throttle.bytes_per_s = 1e12
            assert isinstance(await cleaning, Outcome)

    run(scenario)


@pytest.mark.usefixtures("short_pauses")
def test_cleaner_threads_share_one_rate(place: Path, workers: Workers) -> None:
    """As in Kafka, what is read to learn the keys counts, what is read to be written anew, what is kept."""
    now_s = 0.0

    def clock() -> float:
        return now_s

    async def scenario() -> None:
        nonlocal now_s
        logs = [filled(place / name)[0] for name in ("one", "other")]
        throttle = Throttler(sum(2 * log.size for log in logs) / 1.5, clock())
        async with cleaner(workers, throttle, clock) as one, cleaner(workers, throttle, clock) as other:
            both = asyncio.gather(one.done(logs[0]), other.done(logs[1]))
            while not both.done():
                await until(lambda: both.done() or throttle.delay_s(0, clock()) > 0)
                now_s += 0.05  # only while both must wait
            found = await both
        assert [each.done.end_offset for each in found] == [60, 60]
        assert now_s > 1.0

    run(scenario)


def test_files_that_are_gone_are_no_failure_and_damaged_ones_are(place: Path, workers: Workers) -> None:
    async def scenario() -> None:
        log, _ = filled(place)
        async with cleaner(workers) as each:
            path = log.segments[2].file.path
            damage(path)
            outcome = await each.clean(log)
            assert isinstance(outcome, Failed)
            assert os.path.basename(path) in outcome.message
            assert outcome.errno is None
            OS_FILES.unlink(path)
            assert await each.clean(log) == Aborted()

    run(scenario)


def test_a_failure_has_the_error_of_the_system(place: Path, workers: Workers) -> None:
    async def scenario() -> None:
        log, _ = filled(place)
        async with cleaner(workers) as each:
            path = log.segments[0].file.path
            OS_FILES.unlink(path)
            OS_FILES.mkdir(path)
            outcome = await each.clean(log)
            assert isinstance(outcome, Failed)
            assert outcome.errno is not None

    run(scenario)


@pytest.mark.usefixtures("short_pauses")
def test_a_killed_process_is_reported_and_another_takes_its_place(place: Path) -> None:
    async def scenario() -> None:
        log, written = filled(place)
        async with cleaner(OsWorkers(), Throttler(1.0, time.monotonic())) as each:
            cleaning = each.clean(log)
            await until(lambda: each.throttle.delay_s(0, time.monotonic()) > 0)
            os.kill(each.thread.process.pids[0], 9)
            each.throttle.bytes_per_s = 1e12
            outcome = await cleaning
            assert isinstance(outcome, Failed)
            assert outcome.errno == errno.ENOMEM
            assert "-9" in outcome.message
            assert not strays(log)
            await each.done(log)
            assert records(log) == survivors(written, 60)

    run(scenario)


def test_no_process_starts_after_the_end(place: Path, workers: Workers) -> None:
    async def scenario() -> None:
        log, written = filled(place)
        async with cleaner(workers) as each:
            each.thread.shut_down()
            assert await each.clean(log) == Aborted()
            assert records(log) == written

    run(scenario)
