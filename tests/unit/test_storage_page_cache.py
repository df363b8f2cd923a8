"""Reads that would wait for the disk say so where waiting is forbidden, on real files that were evicted."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ottla.local.processes import wait_until
from ottla.ports.files import OS_FILES
from ottla.protocol.records import Record, build_batch
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.nonblocking_reads import (
    NonblockingReads,
    PageCacheMiss,
    blocking_allowed,
    pread,
    read_index_file,
)
from ottla.storage.segment_files import SegmentFile

MIB = 1 << 20


def evict(*paths: Path) -> None:
    """Take files out of the page cache; skips the test on a file system that lives there (tmpfs)."""
    for path in paths:
        fd = os.open(path, os.O_RDWR)
        try:
            evict_open(fd)
        finally:
            os.close(fd)


def evict_open(fd: int) -> None:
    """As often as it takes: what somebody just looks at or writes back stays."""

    def is_gone() -> bool:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return not OS_FILES.is_resident(fd, 0, 1)

    if not wait_until(is_gone, timeout_s=20):
        pytest.skip("this file system is memory")


def miss(attempt: Callable[[], object], *paths: Path) -> PageCacheMiss:
    """What `attempt` misses of files that were evicted. Asking for pages has them read, though nobody waits:
    in theory they may be there at once, so it may take more than one go."""
    for _ in range(20):
        evict(*paths)
        try:
            with NonblockingReads():
                attempt()
        except PageCacheMiss as e:
            return e
    raise AssertionError("what was evicted is always there")


@pytest.fixture
def file(tmp_path: Path) -> SegmentFile:
    (tmp_path / "file").write_bytes(os.urandom(2 * MIB))
    return SegmentFile(OS_FILES, tmp_path / "file")


def test_cached_pages_are_read_and_missing_ones_are_named(file: SegmentFile) -> None:
    with NonblockingReads():
        assert len(pread(OS_FILES, file.fd, 5000, 100)) == 5000
    cold = miss(lambda: pread(OS_FILES, file.fd, 5000, MIB), file.path)
    assert (cold.position, cold.length) == (MIB, 5000)
    OS_FILES.load(cold.file.fd, MIB, 5000)
    with NonblockingReads():
        assert pread(OS_FILES, file.fd, 5000, MIB) == os.pread(file.fd, 5000, MIB)


def test_a_range_of_which_a_part_is_in_memory_is_cold(file: SegmentFile) -> None:
    def begin_and_end() -> None:
        os.pread(file.fd, 4096, 0)
        os.pread(file.fd, 4096, MIB - 4096)

    def probe() -> None:
        begin_and_end()
        assert OS_FILES.is_resident(file.fd, 0, 4096)
        if not OS_FILES.is_resident(file.fd, 0, MIB):
            raise PageCacheMiss(OS_FILES, file.fd, 0, MIB)

    def read() -> None:
        begin_and_end()
        pread(OS_FILES, file.fd, MIB, 0)

    os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_RANDOM)  # nothing is read ahead
    assert miss(probe, file.path)
    assert miss(read, file.path)


def test_the_end_of_a_file_is_no_reason_to_wait(file: SegmentFile) -> None:
    with NonblockingReads():
        assert len(pread(OS_FILES, file.fd, 5000, 2 * MIB - 100)) == 100
        assert pread(OS_FILES, file.fd, 5000, 2 * MIB) == b""


def test_waiting_is_allowed_where_nobody_forbids_it(file: SegmentFile, tmp_path: Path) -> None:
    evict(file.path)
    assert len(pread(OS_FILES, file.fd, 5000, 100)) == 5000
    evict(file.path)
    assert len(read_index_file(OS_FILES, str(file.path))) == 2 * MIB


def test_a_read_that_began_without_waiting_may_wait_later() -> None:
    """A follower's fetch wakes others, and makes tasks, in the midst of a read."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        may_wait: list[bool] = []

        async def task() -> None:
            may_wait.append(blocking_allowed())

        with NonblockingReads():
            loop.call_soon(lambda: may_wait.append(blocking_allowed()))
            begun = loop.create_task(task())
            with NonblockingReads():
                pass
            assert not blocking_allowed()
        await begun
        assert may_wait == [True, True]

    asyncio.run(scenario())


def test_the_pages_of_a_deleted_file_can_still_be_fetched(file: SegmentFile) -> None:
    path = file.path
    del file
    cold = miss(lambda: read_index_file(OS_FILES, str(path)), path)
    path.unlink()
    OS_FILES.load(cold.file.fd, cold.position, cold.length)
    assert OS_FILES.is_resident(cold.file.fd, 0, 2 * MIB)


def test_without_nowait_the_pages_are_counted(file: SegmentFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, buffers: Sequence[bytearray], offset: int, flags: int) -> int:
        raise OSError(errno.EOPNOTSUPP, "as tmpfs says")

    monkeypatch.setattr(os, "preadv", refuse)
    assert OS_FILES.is_resident(file.fd, 100, MIB)
    with NonblockingReads():
        assert len(pread(OS_FILES, file.fd, 5000, 100)) == 5000
        assert len(pread(OS_FILES, file.fd, 5000, 2 * MIB - 100)) == 100
    evict_open(file.fd)
    assert not OS_FILES.is_resident(file.fd, 100, MIB)
    with NonblockingReads(), pytest.raises(PageCacheMiss):
        pread(OS_FILES, file.fd, 5000, MIB)
    OS_FILES.load(file.fd, 0, 2 * MIB)
    assert OS_FILES.is_resident(file.fd, 100, MIB)


def test_a_log_on_disk_is_looked_up_without_waiting(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=200_000, index_interval_bytes=4096)
    log = Log.open(tmp_path / "t-0", config)
    for number in range(400):
        batch = build_batch([Record(0, 1_000_000 + number, None, bytes(2000))])
        log.append_as_leader(batch, leader_epoch=0, now_ms=0)
    log.close(0)
    log = Log.open(tmp_path / "t-0", config, clean_shutdown=True)

    def look_up() -> tuple[int, int, object]:
        read = log.read(57, 100, up_to=400)
        return read.slices[0].position, read.size, log.offset_for_timestamp(1_000_123)

    cold = miss(look_up, *(path for path in (tmp_path / "t-0").iterdir() if path.stat().st_size))
    for _ in range(10):
        OS_FILES.load(cold.file.fd, cold.position, cold.length)
        try:
            with NonblockingReads():
                found = look_up()
                break
        except PageCacheMiss as e:
            cold = e
    else:
        raise AssertionError("it never has what it needs")
    assert found == look_up()
    assert found[2] == (123, 1_000_123, 0)
    assert blocking_allowed()
