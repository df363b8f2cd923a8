"""The disk of the simulation: what a loss of power, a full disk and a kill in a write leave.

The calls themselves have the contract test of the Files port.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from random import Random

import pytest

from ottla.ports.files import opened, read_file, sync_path, write_file
from ottla.simulation.disk import SECTOR_BYTES, ProcessFiles, SimulatedDisk
from ottla.simulation.loop import Process, ProcessKilled, SimulatedLoop

NEW = os.O_RDWR | os.O_CREAT


Machine = Callable[..., tuple[SimulatedDisk, Callable[[], ProcessFiles]]]


@pytest.fixture
def machine() -> Iterator[Machine]:
    """Makes disks: each by its seed, with a function that opens it by a new process."""
    with closing(SimulatedLoop()) as loop:

        def make(seed: int = 1) -> tuple[SimulatedDisk, Callable[[], ProcessFiles]]:
            disk = SimulatedDisk(loop, Random(seed), lambda: 0)
            return disk, lambda: ProcessFiles(disk, Process(loop, "process"))

        yield make


def test_what_was_synced_survives_a_loss_of_power(machine: Machine) -> None:
    for seed in range(20):
        disk, start = machine(seed)
        files = start()
        files.mkdir("/data")
        write_file(files, "/data/file", b"synced", sync=True)
        sync_path(files, "/data")
        disk.lose_power()
        assert read_file(start(), "/data/file") == b"synced"


def test_unsynced_writes_survive_are_lost_or_are_torn(machine: Machine) -> None:
    outcomes = set()
    new = bytes(range(1, 5)) * SECTOR_BYTES
    for seed in range(200):
        disk, start = machine(seed)
        files = start()
        write_file(files, "/file", b"\0" * len(new), sync=True)
        sync_path(files, "/")
        with opened(files, "/file", os.O_RDWR) as fd:
            files.pwrite(fd, new, 0)
            assert files.pread(fd, len(new), 0) == new
        disk.lose_power()
        content = read_file(start(), "/file")
        whole = len(content) - content.count(0)
        assert content == new[:whole] + b"\0" * (len(new) - whole)
        assert whole % SECTOR_BYTES == 0
        outcomes.add("lost" if whole == 0 else "whole" if whole == len(new) else "torn")
    assert outcomes == {"lost", "whole", "torn"}


def test_a_name_whose_directory_is_not_synced_may_be_lost_with_all_later_changes(machine: Machine) -> None:
    outcomes = set()
    for seed in range(100):
        disk, start = machine(seed)
        files = start()
        write_file(files, "/first", b"1", sync=True)
        write_file(files, "/second", b"2", sync=True)
        files.rename("/first", "/third")
        disk.lose_power()
        outcomes.add(tuple(start().listdir("/")))
    assert outcomes == {(), ("first",), ("first", "second"), ("second", "third")}


def test_a_killed_process_leaves_its_writes_in_the_page_cache_and_its_locks_free(machine: Machine) -> None:
    _, start = machine()
    files = start()
    fd = files.open("/file", NEW)
    files.lock(fd)
    files.pwrite(fd, b"unsynced", 0)
    files._process.kill()
    for call in (
        lambda: files.pread(fd, 1, 0),
        lambda: files.pwrite(fd, b"x", 0),
        lambda: files.exists("/file"),
    ):
        with pytest.raises(ProcessKilled):
            call()
    files.release_locks()
    again = start()
    assert read_file(again, "/file") == b"unsynced"
    again.lock(again.open("/file"))


def test_a_process_is_killed_in_the_middle_of_a_write(machine: Machine) -> None:
    lengths = set()
    for seed in range(30):
        disk, start = machine(seed)
        files = start()
        disk.on_kill = files._process.kill
        fd = files.open("/file", NEW)
        disk.kill_after = 1
        assert files.pwrite(fd, b"first", 0) == 5
        with pytest.raises(ProcessKilled):
            files.pwrite(fd, b"second", 5)
        disk.kill_after = -1
        content = read_file(start(), "/file")
        assert b"firstsecond".startswith(content)
        lengths.add(len(content))
    assert lengths <= set(range(5, 12))
    assert len(lengths) > 2


def test_a_full_disk_takes_what_fits_and_then_refuses(machine: Machine) -> None:
    disk, start = machine()
    files = start()
    fd = files.open("/file", NEW)
    files.pwrite(fd, b"x" * 100, 0)
    disk.capacity = disk.used + 10
    assert files.pwrite(fd, b"y" * 20, 100) == 10
    with pytest.raises(OSError, match="No space left") as refused:
        files.pwrite(fd, b"z", 110)
    assert refused.value.errno == errno.ENOSPC
    assert files.pwrite(fd, b"over", 0) == 4
    files.ftruncate(fd, 50)
    assert files.pwrite(fd, b"z", 50) == 1
    files.close(fd)
    files.unlink("/file")
    assert disk.used == 0


def test_errors_damage_and_replacement(machine: Machine) -> None:
    disk, start = machine()
    files = start()
    write_file(files, "/file", b"\0", sync=True)
    disk.fail_rate = 1.0
    with pytest.raises(OSError, match="Input/output error"):
        files.open("/file")
    disk.fail_rate = 0.0
    disk.flip_bit("/file", 0, 3)
    assert read_file(files, "/file") == b"\x08"
    disk.miss_rate = 1.0
    with opened(files, "/file") as fd:
        assert files.try_pread(fd, 1, 0) is None
        assert files.pread(fd, 1, 0) == b"\x08"
    disk.wipe()
    assert start().listdir("/") == []
