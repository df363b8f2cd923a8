"""Threads read pages that are not in the page cache: the event loop and other requests never wait for the
disk."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ottla.ports.files import OsFiles
from ottla.ports.workers import OsWorkers
from ottla.server.logs.page_cache_reader import AHEAD_BYTES, ATTEMPTS_MAX, PageCacheReader
from ottla.server.network.channel import SENDFILE_TURN_BYTES
from ottla.storage.nonblocking_reads import PageCacheMiss, blocking_allowed
from ottla.storage.segment_files import FileSlice, SegmentFile
from tests.worlds.connection_harness import Harness, framed

MIB = 1 << 20


class SlowDisk(OsFiles):
    """A disk that reads on request: `give` lets one more load complete."""

    def __init__(self) -> None:
        self.warm: list[range] = []
        self.loads: list[range] = []
        self.ahead: list[range] = []
        self.problem: OSError | None = None
        self._may_end = threading.Semaphore(0)
        self.on_loop = threading.get_ident()

    def is_resident(self, fd: int, position: int, length: int, *, exact: bool) -> bool:
        assert threading.get_ident() == self.on_loop
        return any(position in r and position + length - 1 in r for r in self.warm)

    def load(self, fd: int, position: int, length: int) -> None:
        assert threading.get_ident() != self.on_loop, "the loop waits for the disk"
        self.loads.append(range(position, position + length))
        assert self._may_end.acquire(timeout=60)
        if self.problem is not None:
            raise self.problem

    def load_ahead(self, fd: int, position: int, length: int) -> None:
        assert threading.get_ident() != self.on_loop, "asking takes its time too"
        self.warm.append(range(position, position + length))
        self.ahead.append(range(position, position + length))

    def give(self, loads: int = 1) -> None:
        self._may_end.release(loads)


@pytest.fixture
def run() -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        yield runner


async def until(condition: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + 60
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.001)


def segment(disk: SlowDisk, tmp_path: Path, size: int) -> tuple[SegmentFile, bytes]:
    content = os.urandom(size)
    (tmp_path / "segment").write_bytes(content)
    return SegmentFile(disk, tmp_path / "segment"), content


def test_other_requests_are_served_during_a_page_cache_miss(run: asyncio.Runner, tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = SlowDisk()
        with Harness() as h:
            file, content = segment(disk, tmp_path, 100_000)
            await h.send(framed(b"fetch") + framed(b"next"))
            await h.request(1)
            h.connection.respond((b"head", FileSlice(file, 100, 50_000), b"tail"))
            await until(lambda: disk.loads == [range(100, 50_100)])

            ours, other = socket.socketpair()
            ours.setblocking(False)
            other.setblocking(False)
            h.server.adopt(ours, "PLAINTEXT", ("10.0.0.8", 1))
            h.echo = True
            await h.loop.sock_sendall(other, framed(b"hot"))
            assert await asyncio.wait_for(h.loop.sock_recv(other, 100), 60) == framed(b"hot")
            assert h.requests == [b"fetch", b"hot"], "the cold one's next request waits for its answer"

            disk.give()
            expected = b"head" + content[100:50_100] + b"tail" + framed(b"next")
            assert await h.receive(len(expected)) == expected
            other.close()

    run.run(scenario())


def test_a_range_is_checked_in_chunks_and_loaded_chunks_are_sent(run: asyncio.Runner, tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = SlowDisk()
        with Harness() as h:
            file, content = segment(disk, tmp_path, 2 * MIB + 5000)
            disk.warm.append(range(MIB))
            disk.give(10)
            await h.send(framed(b"fetch"))
            await h.request(1)
            h.connection.respond((FileSlice(file, 0, len(content)), b"end"))
            assert await h.receive(len(content) + 3) == content + b"end"
            assert SENDFILE_TURN_BYTES == MIB
            assert disk.loads[0] == range(MIB, 2 * MIB)
            assert disk.warm.count(range(MIB, 2 * MIB)) == 0, "it was sent although it may be gone again"

    run.run(scenario())


def test_a_sequential_read_of_an_uncached_file_waits_once(run: asyncio.Runner, tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = SlowDisk()
        disk.give(1)
        cold = PageCacheReader(asyncio.get_running_loop(), OsWorkers())
        file, _ = segment(disk, tmp_path, 10)
        found = asyncio.Event()

        def done(problem: OSError | None) -> None:
            assert problem is None
            found.set()

        assert not cold.ensure_resident(FileSlice(file, 0, MIB), MIB, done)
        await asyncio.wait_for(found.wait(), 60)
        await until(lambda: disk.ahead == [range(MIB, MIB + AHEAD_BYTES)])
        for number in range(1, 40):
            position = number * MIB
            await until(lambda: file.read_ahead == disk.ahead[-1].stop)
            assert cold.ensure_resident(FileSlice(file, position, MIB), MIB, done), f"MiB {number}"
        assert len(disk.loads) == 1
        assert disk.ahead == [
            range(MIB + i * AHEAD_BYTES, MIB + (i + 1) * AHEAD_BYTES) for i in range(len(disk.ahead))
        ]
        await cold.stop()

    run.run(scenario())


def test_reads_of_cached_ranges_cause_no_read_ahead(run: asyncio.Runner, tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = SlowDisk()
        disk.warm.append(range(100 * MIB))
        cold = PageCacheReader(asyncio.get_running_loop(), OsWorkers())
        file, _ = segment(disk, tmp_path, 10)
        for number in range(99):
            assert cold.ensure_resident(FileSlice(file, number * MIB, MIB), MIB, lambda problem: None)
        assert disk.ahead == []
        assert cold.loads == 0
        await cold.stop()

    run.run(scenario())


def test_a_disk_that_fails_closes_the_connection_that_needed_it(run: asyncio.Runner, tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = SlowDisk()
        disk.problem = OSError(5, "Input/output error")
        disk.give()
        with Harness() as h:
            file, _ = segment(disk, tmp_path, 100_000)
            await h.send(framed(b"fetch"))
            await h.request(1)
            h.connection.respond((FileSlice(file, 0, 100_000),))
            assert await h.closed_by_server()

    run.run(scenario())


def test_a_closed_connection_is_left_alone(run: asyncio.Runner, tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = SlowDisk()
        with Harness() as h:
            file, _ = segment(disk, tmp_path, 100_000)
            await h.send(framed(b"fetch"))
            await h.request(1)
            h.connection.respond((FileSlice(file, 0, 100_000),))
            await until(lambda: len(disk.loads) == 1)
            h.connection.close()
            disk.give()
            await until(lambda: len(disk.ahead) == 1)
            await h.turns()
            assert await h.closed_by_server()

    run.run(scenario())


def unexpected(problem: BaseException) -> None:
    raise AssertionError("it failed") from problem


# --- lookups -----------------------------------------------------------------------------------------


def test_a_lookup_is_retried_when_its_pages_are_loaded(run: asyncio.Runner, tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = SlowDisk()
        cold = PageCacheReader(asyncio.get_running_loop(), OsWorkers())
        file, _ = segment(disk, tmp_path, 10)
        answers: list[str] = []
        misses = [(0, 4), (4, 4)]

        def lookup() -> str:
            if misses:
                raise PageCacheMiss(disk, file.fd, *misses.pop(0))
            return "found"

        cold.run_lookup(lookup, answers.append, unexpected)
        assert answers == []
        disk.give(2)
        await until(lambda: answers == ["found"])
        assert disk.loads == [range(4), range(4, 8)]
        await cold.stop()

    run.run(scenario())


def test_a_lookup_with_repeated_misses_is_made_on_the_loop(run: asyncio.Runner, tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = SlowDisk()
        disk.give(100)
        cold = PageCacheReader(asyncio.get_running_loop(), OsWorkers())
        file, _ = segment(disk, tmp_path, 10)
        tries: list[bool] = []

        def lookup() -> None:
            waits = blocking_allowed()
            tries.append(waits)
            if not waits:
                raise PageCacheMiss(disk, file.fd, 0, 4)

        cold.run_lookup(lookup, lambda _: None, unexpected)
        await until(lambda: len(tries) == ATTEMPTS_MAX + 1)
        assert tries == [False] * ATTEMPTS_MAX + [True]
        await cold.stop()

    run.run(scenario())


def test_a_response_may_cause_another_page_cache_miss(run: asyncio.Runner, tmp_path: Path) -> None:
    """The response may start the next request of its connection, whose pages are not loaded."""

    async def scenario() -> None:
        disk = SlowDisk()
        cold = PageCacheReader(asyncio.get_running_loop(), OsWorkers())
        file, _ = segment(disk, tmp_path, 10)
        misses = [(0, 4)]
        may_wait: list[bool] = []

        def lookup() -> None:
            if misses:
                raise PageCacheMiss(disk, file.fd, *misses.pop())

        def answer(_: None) -> None:
            may_wait.append(blocking_allowed())

        cold.run_lookup(lookup, answer, unexpected)
        disk.give()
        await until(lambda: bool(may_wait))
        cold.run_lookup(lookup, answer, unexpected)
        assert may_wait == [True, True]
        await cold.stop()

    run.run(scenario())


def test_an_error_of_a_deferred_lookup_is_reported(run: asyncio.Runner, tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = SlowDisk()
        disk.problem = OSError(5, "Input/output error")
        disk.give()
        cold = PageCacheReader(asyncio.get_running_loop(), OsWorkers())
        file, _ = segment(disk, tmp_path, 10)
        problems: list[BaseException] = []

        def lookup() -> None:
            raise PageCacheMiss(disk, file.fd, 0, 4)

        cold.run_lookup(lookup, lambda _: None, problems.append)
        await until(lambda: problems == [disk.problem])
        await cold.stop()

    run.run(scenario())


def test_many_misses_are_read_together(run: asyncio.Runner, tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = SlowDisk()
        cold = PageCacheReader(asyncio.get_running_loop(), OsWorkers())
        file, _ = segment(disk, tmp_path, 10)
        reported: list[OSError | None] = []
        cold.load([PageCacheMiss(disk, file.fd, at, 1) for at in range(3)], reported.append)
        await until(lambda: len(disk.loads) == 3)
        disk.give(2)
        await asyncio.sleep(0)
        assert reported == []
        disk.give(1)
        await until(lambda: reported == [None])
        await cold.stop()

    run.run(scenario())
