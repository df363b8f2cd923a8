"""The worker process: jobs over its standard input, answers over its output."""

from __future__ import annotations

import os
import resource
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cleaner_logs import Found, in_memory_place, job_for, open_log, put, records, seal, survivors

from ottla.ports.files import OS_FILES
from ottla.server.logs.cleaner_process import CleanerProcess, ProcessDied
from ottla.storage.cleaner.batch_filter import Counts
from ottla.storage.cleaner.messages import (
    Abort,
    Aborted,
    Answer,
    Cleaned,
    Continue,
    Done,
    Failed,
    Job,
    decode,
    encode,
)
from ottla.storage.cleaner.throttler import Throttler
from ottla.storage.log import Log
from ottla.storage.log_loader import open_cleaned
from ottla.storage.log_segment import LogSegment

WAIT_S = 60.0


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield from in_memory_place(tmp_path)


@pytest.fixture
def throttle() -> Iterator[Throttler]:
    made = Throttler.make(float("inf"), time.monotonic())
    yield made
    made.close()


@pytest.fixture
def process(throttle: Throttler) -> Iterator[CleanerProcess]:
    made = CleanerProcess(throttle)
    yield made
    made.stop()


def filled(place: Path) -> tuple[Log, list[Found]]:
    log = open_log(place)
    for number in range(60):
        put(log, (f"key-{number % 5}", f"{number}"))
    seal(log)
    return log, records(log)


def answer(process: CleanerProcess) -> Answer:
    found = process.receive(WAIT_S)
    assert found is not None
    return found


def swap(log: Log, segments: list[LogSegment], cleaned: Cleaned, end_offset: int) -> None:
    new = open_cleaned(OS_FILES, str(log.directory), cleaned.bases[0], log.config)
    assert new.size == cleaned.size
    old = [segment for segment in segments if segment.base_offset in cleaned.bases]
    assert log.replace_segments(old, new, end_offset)


def do(process: CleanerProcess, log: Log) -> Done:
    job, segments = job_for(log)
    process.send(job)
    while True:
        got = answer(process)
        if isinstance(got, Done):
            return got
        assert isinstance(got, Cleaned)
        swap(log, segments, got, job.upper_bound)
        process.send(Continue())


@pytest.mark.parametrize(
    "message",
    [
        Job("d", [(1, 2, 3, 4)], 1, 2, 3, 4, 5, 6, 7, 8, 0.9, 10, [(1, 2, 3, 4)], [(5, 6, 7)]),
        Continue(),
        Abort(),
        Cleaned([1, 2], 3),
        Done(7, Counts(1, 2, 3, 4, 5), 6, 0.5, 7, 8),
        Failed("why", 28),
        Aborted(),
    ],
    ids=lambda each: type(each).__name__,
)
def test_messages_are_lines(message: Any) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    found = decode(line)
    # JSON has no tuples.
    assert encode(found) == line
    assert type(found) is type(message)


@pytest.mark.parametrize("line", [b"", b"{}", b'["Job", {}]', b'["Else", {}]', b"Traceback\n"])
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a message|Expecting|unpack"):
        decode(line)


def test_one_job_after_the_other(place: Path, process: CleanerProcess) -> None:
    log, written = filled(place)
    done = do(process, log)
    first = process.pid
    assert done.end_offset == 60
    assert records(log) == survivors(written, 60)
    assert (done.counts.records_read, done.counts.records_kept) == (60, 5)
    assert done.counts.bytes_read > done.counts.bytes_kept > 0
    put(log, ("key-0", "last"))
    seal(log)
    log.first_dirty_offset = 60
    assert do(process, log).end_offset == 61
    assert len(records(log)) == 5
    assert process.pid == first


def test_a_job_that_is_given_up_is_followed_by_another(place: Path, process: CleanerProcess) -> None:
    log, written = filled(place)
    job, _ = job_for(log)
    process.send(job)
    assert isinstance(answer(process), Cleaned)
    process.send(Abort())
    assert isinstance(answer(process), Aborted)
    assert records(log) == written
    do(process, log)
    assert records(log) == survivors(written, 60)


def test_a_slow_job_hears_that_it_is_given_up_or_may_go_faster(
    place: Path, process: CleanerProcess, throttle: Throttler
) -> None:
    log, _ = filled(place)
    job, _ = job_for(log)
    throttle.bytes_per_s = 1.0  # an hour and more
    process.send(job)
    process.send(Abort())
    assert isinstance(answer(process), Aborted)
    process.send(job)
    throttle.bytes_per_s = 1e12
    assert isinstance(answer(process), Cleaned)


def test_processes_that_clean_at_once_share_one_rate(
    place: Path, process: CleanerProcess, throttle: Throttler
) -> None:
    """As in Kafka, what is read to learn the keys counts, what is read to be written anew, what is kept."""
    logs = [filled(place / name)[0] for name in ("one", "other")]
    throttle.bytes_per_s = sum(2 * log.size for log in logs) / 1.5
    second = CleanerProcess(throttle)
    try:
        with ThreadPoolExecutor(2) as pool:
            began = time.monotonic()
            done = list(pool.map(do, (process, second), logs))
            elapsed_s = time.monotonic() - began
    finally:
        second.stop()
    assert [each.end_offset for each in done] == [60, 60]
    assert elapsed_s > 1.0


def test_files_that_are_gone_are_no_failure_and_damaged_ones_are(
    place: Path, process: CleanerProcess
) -> None:
    log, _ = filled(place)
    job, segments = job_for(log)
    path = segments[2].file.path
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"\xff")
    process.send(job)
    got = answer(process)
    assert isinstance(got, Failed)
    assert path.name in got.message
    assert got.errno is None
    path.unlink()
    process.send(job)
    assert isinstance(answer(process), Aborted)


def test_it_says_which_error_the_system_gave(place: Path, process: CleanerProcess) -> None:
    log, _ = filled(place)
    job, segments = job_for(log)
    path = segments[0].file.path
    path.unlink()
    path.mkdir()
    process.send(job)
    got = answer(process)
    assert isinstance(got, Failed)
    assert got.errno is not None


def test_one_that_was_killed_is_told_of_and_another_takes_its_place(
    place: Path, process: CleanerProcess
) -> None:
    log, _ = filled(place)
    job, _ = job_for(log)
    process.send(job)
    assert isinstance(answer(process), Cleaned)
    assert process.pid is not None
    os.kill(process.pid, 9)
    with pytest.raises(ProcessDied, match="-9"):
        process.receive(WAIT_S)
    do(process, log)


def test_a_process_with_many_open_files_hears_answers_too(place: Path, process: CleanerProcess) -> None:
    log, _ = filled(place)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], min(4096, limits[1])), limits[1]))
    held: list[int] = []
    try:
        while not held or held[-1] < 1030:
            held.append(os.open(os.devnull, os.O_RDONLY))
        do(process, log)
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_none_is_started_after_the_end(place: Path, process: CleanerProcess) -> None:
    log, _ = filled(place)
    job, _ = job_for(log)
    process.send(job)
    process.shut_down()
    with pytest.raises(ProcessDied, match="shut down"):
        process.send(job)


@contextmanager
def read_end() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    try:
        yield reading, writing
    finally:
        os.close(reading)


def test_it_goes_with_the_broker_however_that_ends() -> None:
    """A parent is killed while its worker waits: the worker's output ends, for nobody holds it any more."""
    with read_end() as (reading, writing):
        script = (
            "import os, subprocess, sys, time\n"
            "from ottla.storage.cleaner.throttler import Throttler\n"
            "fd = Throttler.make(1.0, 0.0).fd\n"
            "command = [sys.executable, '-m', 'ottla.storage.cleaner.worker', str(os.getpid()), str(fd)]\n"
            "worker = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[fd],"
            f" stdout={writing}, stderr=subprocess.DEVNULL)\n"
            "print('up', flush=True)\n"
            "time.sleep(600)\n"
        )
        parent = subprocess.Popen([sys.executable, "-c", script], pass_fds=[writing], stdout=subprocess.PIPE)
        try:
            os.close(writing)
            assert parent.stdout is not None
            assert parent.stdout.readline() == b"up\n"
        finally:
            parent.kill()
            parent.communicate()
        poll = select.poll()
        poll.register(reading, select.POLLIN)
        assert poll.poll(WAIT_S * 1000), "the worker outlives the broker"
        assert os.read(reading, 1) == b""
