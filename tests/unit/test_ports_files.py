"""The contract of the Files port, which every implementation of it keeps."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ottla.ports.files import (
    OS_FILES,
    Files,
    is_directory,
    opened,
    read_file,
    sync_if_exists,
    sync_path,
    unlink_if_exists,
    write_atomically,
    write_file,
)
from ottla.simulation.disk import ProcessFiles, SimulatedDisk
from ottla.simulation.loop import Process, SimulatedLoop

NEW = os.O_RDWR | os.O_CREAT


@pytest.fixture(params=["machine", "simulation"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Files]:
    if request.param == "machine":
        yield OS_FILES
        return
    with closing(SimulatedLoop()) as loop:
        simulated = ProcessFiles(SimulatedDisk(loop, random.Random(1), lambda: 0), Process(loop, "process"))
        simulated.mkdir(tmp_path)
        yield simulated


def test_bytes_are_where_they_were_written(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "file"
    with opened(files, path, NEW) as fd:
        assert files.pwrite(fd, b"0123456789", 0) == 10
        assert files.pwritev(fd, (b"ab", memoryview(b"cd")), 8) == 4
        assert files.pread(fd, 100, 6) == b"67abcd"
        assert files.pread(fd, 3, 20) == b""
        files.ftruncate(fd, 4)
        files.fsync(fd)
        files.fdatasync(fd)
        files.ftruncate(fd, 6)
        assert files.fstat(fd).size == 6
    assert read_file(files, path) == b"0123\0\0"
    files.truncate(path, 2)
    assert read_file(files, path) == b"01"
    with opened(files, path) as fd, files.view(fd) as data:
        assert bytes(data) == b"01"
    with opened(files, path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd, opened(files, path) as reader:
        assert files.fstat(fd).size == 0
        with files.view(reader) as data:
            assert bytes(data) == b""


def test_an_open_file_outlives_its_name(files: Files, tmp_path: Path) -> None:
    write_file(files, tmp_path / "old", b"old")
    fd = files.open(tmp_path / "old")
    copy = files.dup(fd)
    files.close(fd)
    write_file(files, tmp_path / "new", b"new")
    files.rename(tmp_path / "new", tmp_path / "old")
    assert files.pread(copy, 10, 0) == b"old"
    assert read_file(files, tmp_path / "old") == b"new"
    files.unlink(tmp_path / "old")
    assert files.pread(copy, 10, 0) == b"old"
    files.close(copy)
    with pytest.raises(OSError, match="Bad file descriptor"):
        files.pread(copy, 10, 0)


def test_directories_have_names_and_are_renamed_with_their_files(files: Files, tmp_path: Path) -> None:
    files.mkdir(tmp_path / "a" / "b")
    files.mkdir(tmp_path / "a" / "b")
    write_file(files, tmp_path / "a" / "b" / "2", b"two", sync=True)
    write_file(files, tmp_path / "a" / "b" / "1", b"one", sync=True)
    sync_path(files, tmp_path / "a" / "b")
    assert files.listdir(tmp_path / "a" / "b") == ["1", "2"]
    assert files.stat(tmp_path / "a").is_directory
    assert not is_directory(files, tmp_path / "a" / "b" / "1")
    assert not is_directory(files, tmp_path / "none")
    files.rename(tmp_path / "a", tmp_path / "c")
    assert not files.exists(tmp_path / "a")
    assert read_file(files, tmp_path / "c" / "b" / "2") == b"two"
    files.rmtree(tmp_path / "c")
    assert not files.exists(tmp_path / "c")


def test_a_missing_file_is_not_found(files: Files, tmp_path: Path) -> None:
    none = tmp_path / "none"
    for call in (files.open, files.stat, files.unlink, files.listdir, files.rmtree):
        with pytest.raises(FileNotFoundError):
            call(none)
    with pytest.raises(FileNotFoundError):
        files.rename(none, tmp_path / "other")
    with pytest.raises(FileNotFoundError):
        files.open(none / "file", NEW)
    with pytest.raises(FileNotFoundError):
        files.truncate(none, 0)
    unlink_if_exists(files, none)
    sync_if_exists(files, none)


def test_a_file_is_locked_while_it_is_open(files: Files, tmp_path: Path) -> None:
    first, second = (files.open(tmp_path / ".lock", NEW) for _ in range(2))
    files.lock(first)
    with pytest.raises(OSError, match="temporarily unavailable") as refused:
        files.lock(second)
    assert refused.value.errno in (errno.EAGAIN, errno.EACCES)
    files.close(first)
    files.lock(second)
    files.close(second)


def test_content_is_replaced_atomically(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write_atomically(files, path, "old\n")
    with opened(files, path) as fd:
        write_atomically(files, path, "new\n", sync=False)
        assert files.pread(fd, 10, 0) == b"old\n"
    assert read_file(files, path) == b"new\n"
    assert files.listdir(tmp_path) == ["checkpoint"]


def test_modification_times_and_the_space_of_the_disk_are_known(files: Files, tmp_path: Path) -> None:
    with opened(files, tmp_path / "file", NEW) as fd:
        files.set_mtime(fd, 1_700_000_000_123_000_000)
        assert files.fstat(fd).mtime_ns == files.stat(tmp_path / "file").mtime_ns == 1_700_000_000_123_000_000
    usage = files.disk_usage(tmp_path)
    assert 0 <= usage.free <= usage.total
    assert files.realpath(tmp_path) == files.realpath(tmp_path / "x" / "..")


def test_resident_ranges_are_read_without_waiting(files: Files, tmp_path: Path) -> None:
    write_file(files, tmp_path / "file", b"x" * 10_000)
    with opened(files, tmp_path / "file") as fd:
        files.advise_sequential(fd, 10_000)
        files.load(fd, 0, 10_000)
        files.load_ahead(fd, 0, 10_000)
        assert files.is_resident(fd, 0, 10_000)
        assert files.try_pread(fd, 10, 9_995) == b"x" * 5
