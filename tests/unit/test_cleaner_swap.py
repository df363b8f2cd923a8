"""Cleaned segments take the place of others: whatever is interrupted, the log is the old or the new one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.ports.files import OS_FILES, OsFiles
from ottla.ports.files import Path as FilePath
from ottla.protocol.records import parse_batch_header
from ottla.storage.cleaner import cleaner
from ottla.storage.cleaner.offset_map import OffsetMap
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.log_loader import open_cleaned
from tests.worlds.cleaner_logs import (
    CONFIG,
    NOW_MS,
    Found,
    batches,
    clean,
    end_transaction,
    in_memory_place,
    job_for,
    open_log,
    put,
    records,
    run_steps,
    seal,
    survivors,
)

DAY_MS = 24 * 60 * 60 * 1000
MERGING = LogConfig(cleanup_policy="compact", segment_bytes=1200, index_interval_bytes=100)


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    yield from in_memory_place(tmp_path)


class Crash(BaseException):
    """The process is gone."""


def filled(directory: Path) -> tuple[Log, list[Found]]:
    """A log of several groups of several segments each, with transactions; closed as after a
    crash."""
    log = open_log(directory, CONFIG)
    for number in range(60):
        put(
            log, (f"key-{number % 9}", f"{number}"), (f"key-{number % 7}", "x" * 20), producer=(number % 3, 0)
        )
        if number == 10:
            put(log, ("aborted", "1"), producer=(9, 0), transactional=True)
            end_transaction(log, (9, 0), commit=False)
    seal(log)
    log.config = MERGING
    return log, records(log)


def check(log: Log, written: list[Found], end_offset: int) -> None:
    """It holds nothing that was not written, and what must be left; it can be read from every offset on."""
    found = records(log)
    assert set(found) <= set(written)
    assert set(found) >= {each for each in survivors(written, end_offset) if each[1] != b"aborted"}
    assert [offset for offset, _, _ in found] == sorted({offset for offset, _, _ in found})
    assert log.log_end_offset == end_offset
    for offset in range(end_offset):
        data = log.read(offset, 1, up_to=end_offset).to_bytes()
        assert parse_batch_header(data).last_offset >= offset


def strays(log: Log) -> list[str]:
    return sorted(
        path.name for path in log.directory.iterdir() if path.suffix in (".cleaned", ".swap", ".deleted")
    )


class Stumbling(OsFiles):
    """Files that can be renamed `left` times, until the process is gone."""

    left = 1 << 30

    def rename(self, old: FilePath, new: FilePath, /) -> None:
        if self.left == 0:
            raise Crash
        self.left -= 1
        os.rename(old, new)


@pytest.mark.budget(3)  # a crash after each rename
@pytest.mark.parametrize("is_flushed", [True, False], ids=["flushed", "recovery point unknown"])
def test_a_crash_after_any_rename_leaves_the_old_log_or_the_new(in_memory: Path, is_flushed: bool) -> None:
    log, written = filled(in_memory / "origin")
    end_offset = log.log_end_offset
    final = [each for each in survivors(written, end_offset) if each[1] != b"aborted"]
    sequences = {producer_id: log.producers.all()[producer_id].last_sequence for producer_id in range(3)}
    step = 1 if is_flushed else 5
    for steps in range(0, 1000, step):
        place = in_memory / f"crash-{steps}"
        shutil.copytree(in_memory / "origin", place)
        files = Stumbling()
        victim = open_log(place, MERGING, files=files)
        files.left = steps
        try:
            clean(victim)
        except Crash:
            pass
        else:
            break
        again = Log.open(
            victim.directory,
            MERGING,
            recovery_point=end_offset if is_flushed else None,
            clean_shutdown=False,
            now_ms=NOW_MS,
        )
        check(again, written, end_offset)
        assert strays(again) == []
        for producer_id, sequence in sequences.items():
            assert again.producers.all()[producer_id].last_sequence == sequence
        if steps % 5 == 0:
            clean(again)
            assert records(again) == final
        shutil.rmtree(place)
    assert steps > 30, "several segments, in more than one group"
    assert records(victim) == final


def test_a_crash_while_the_worker_writes_leaves_the_old_log(in_memory: Path) -> None:
    log, written = filled(in_memory)
    end_offset = log.log_end_offset
    job, _ = job_for(log)
    offsets = OffsetMap(job.map_bytes)
    end_of_map = run_steps(cleaner.build_map(OS_FILES, job, offsets))
    left = 9

    def count(step: cleaner.Step) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise Crash

    with pytest.raises(Crash):
        run_steps(cleaner.clean(OS_FILES, job, offsets, end_of_map), count)
    assert any(name.endswith(".cleaned") for name in strays(log))
    again = open_log(in_memory, MERGING, clean=False)
    assert strays(again) == []
    assert records(again) == written
    check(again, written, end_offset)


class Ready:
    """A log with a cleaned segment that waits to be put in place."""

    def __init__(self, directory: Path) -> None:
        self.log, self.written = filled(directory)
        job, self.segments = job_for(self.log)
        self.end_offset = job.upper_bound
        self.bases: list[int] = []
        offsets = OffsetMap(job.map_bytes)
        end_of_map = run_steps(cleaner.build_map(OS_FILES, job, offsets))

        def finished(step: cleaner.Step) -> None:
            if isinstance(step, cleaner.Cleaned):
                self.bases = self.bases or step.bases

        run_steps(cleaner.clean(OS_FILES, job, offsets, end_of_map), finished)
        assert len(self.bases) > 2

    def swap(self) -> bool:
        new = open_cleaned(OS_FILES, str(self.log.directory), self.bases[0], self.log.config)
        old = [segment for segment in self.segments if segment.base_offset in self.bases]
        return self.log.replace_segments(old, new, self.end_offset)


class TestWhatHappensMeanwhile:
    def test_cleaned_segments_replace_those_of_an_unchanged_log(self, in_memory: Path) -> None:
        ready = Ready(in_memory)
        assert ready.swap()
        assert [segment.base_offset for segment in ready.log.segments][:2] == [
            0,
            ready.segments[len(ready.bases)].base_offset,
        ]
        check(ready.log, ready.written, ready.end_offset)

    def test_a_truncation_of_cleaned_segments_prevents_the_swap(self, in_memory: Path) -> None:
        ready = Ready(in_memory)
        ready.log.first_dirty_offset = 30
        ready.log.truncate_to(16)
        assert not ready.swap()
        assert records(ready.log) == [each for each in ready.written if each[0] < 16]
        assert ready.log.first_dirty_offset == ready.log.segments[-1].base_offset <= 16
        ready.log.mark_cleaned(ready.end_offset)
        assert ready.log.first_dirty_offset <= 16

    def test_a_truncation_behind_the_cleaned_segments_does_not_prevent_the_swap(
        self, in_memory: Path
    ) -> None:
        ready = Ready(in_memory)
        put(ready.log, ("new", "1"))
        put(ready.log, ("new", "2"))
        ready.log.truncate_to(ready.log.log_end_offset - 1)
        assert ready.swap()
        ready.log.mark_cleaned(ready.end_offset)
        assert ready.log.first_dirty_offset == ready.end_offset

    def test_a_new_start_of_the_log_prevents_the_swap(self, in_memory: Path) -> None:
        ready = Ready(in_memory)
        ready.log.truncate_fully_and_start_at(7)
        assert not ready.swap()
        assert ready.log.log_end_offset == 7

    def test_retention_that_deletes_a_cleaned_segment_prevents_the_swap(self, in_memory: Path) -> None:
        ready = Ready(in_memory)
        ready.log.config = LogConfig(cleanup_policy="compact,delete", retention_bytes=ready.log.size - 500)
        assert ready.log.delete_old_segments(now_ms=NOW_MS, high_watermark=ready.end_offset)
        assert not ready.swap()
        start = ready.log.log_start_offset
        assert start > 0
        assert [each for each in ready.written if each[0] >= start] == records(ready.log)

    def test_the_swap_keeps_a_log_start_offset_that_was_raised(self, in_memory: Path) -> None:
        ready = Ready(in_memory)
        ready.log.maybe_increment_log_start_offset(9)
        assert ready.swap()
        assert ready.log.log_start_offset == 9
        assert min(offset for offset, _, _ in records(ready.log)) >= 9
        put(ready.log, ("new", "1"))
        assert ready.log.read(9, 1, up_to=ready.end_offset).size > 0

    def test_the_swap_leaves_a_new_topic_of_the_same_name_alone(self, in_memory: Path) -> None:
        ready = Ready(in_memory)
        directory = ready.log.directory
        ready.log.rename_for_deletion()
        fresh = Log.open(directory, MERGING, clean_shutdown=True, now_ms=NOW_MS)
        put(fresh, ("new", "1"))
        before = sorted(path.name for path in directory.iterdir())
        new = open_cleaned(OS_FILES, str(ready.log.directory), 0, ready.log.config)
        assert not ready.log.replace_segments(ready.segments[: len(ready.bases)], new, ready.end_offset)
        assert sorted(path.name for path in directory.iterdir()) == before

    def test_a_closed_log_is_not_swapped(self, in_memory: Path) -> None:
        ready = Ready(in_memory)
        ready.log.close(NOW_MS)
        assert not ready.swap()
        again = open_log(in_memory, MERGING)
        assert records(again) == ready.written


def test_a_reader_goes_on_reading_what_it_found_before(in_memory: Path) -> None:
    log, _ = filled(in_memory)
    log.close(NOW_MS)
    log = open_log(in_memory, MERGING)  # no index is in memory now
    found = log.read(20, 1 << 20, up_to=log.log_end_offset)
    segments = log.segments
    before = found.to_bytes()
    clean(log)
    for path in log.directory.glob("*.deleted"):
        path.unlink()
    assert found.to_bytes() == before
    # Whoever took the segments before the swap still finds offsets in them.
    old = next(segment for segment in segments if segment.base_offset > 20)
    assert old.position_of(old.base_offset) == 0
    assert old.time_index.last()[0] == NOW_MS
    assert old.txn_index.entries() is not None


def test_snapshots_go_with_their_segments(in_memory: Path) -> None:
    log, _ = filled(in_memory)
    for _ in range(5):
        clean(log)
    kept = sorted(int(path.stem) for path in log.directory.glob("*.snapshot"))
    assert set(kept) <= {segment.base_offset for segment in log.segments}
    assert log.segments[-1].base_offset in kept
    before = {key: (e.epoch, e.last_sequence, e.transaction_start) for key, e in log.producers.all().items()}
    log.close(NOW_MS)
    again = open_log(in_memory, MERGING)
    after = {key: (e.epoch, e.last_sequence, e.transaction_start) for key, e in again.producers.all().items()}
    assert after == before
    again.truncate_to(again.log_end_offset - 1)
    assert records(again)


def test_a_flush_that_began_before_does_no_harm(in_memory: Path) -> None:
    log, written = filled(in_memory)
    clean(log)
    log.flush()
    assert log.recovery_point == log.log_end_offset
    again = Log.open(
        log.directory, MERGING, recovery_point=log.recovery_point, clean_shutdown=False, now_ms=NOW_MS
    )
    check(again, written, log.log_end_offset)


def test_a_follower_takes_a_compacted_log_as_it_is(in_memory: Path) -> None:
    leader, _ = filled(in_memory / "leader")
    clean(leader)
    clean(leader, now_ms=NOW_MS + 2 * DAY_MS)
    follower = open_log(in_memory / "follower", MERGING)
    while follower.log_end_offset < leader.log_end_offset:
        data = leader.read(follower.log_end_offset, 700, up_to=leader.log_end_offset).to_bytes()
        follower.append_as_follower(data, now_ms=NOW_MS)
    assert batches(follower) == batches(leader)
    last = {key: entry.last_sequence for key, entry in leader.producers.all().items() if key < 9}
    assert {key: e.last_sequence for key, e in follower.producers.all().items() if key < 9} == last


def test_a_cleaned_segment_is_as_old_as_those_that_it_replaces(in_memory: Path) -> None:
    log, _ = filled(in_memory)
    first = log.segments[0]
    second = log.segments[1]
    for segment in log.segments[:-1]:
        os.utime(segment.file.path, (1_000_000 + segment.base_offset, 1_000_000 + segment.base_offset))
    clean(log)
    for at, segment in enumerate(log.segments[:-1]):
        end = log.segments[at + 1].base_offset
        assert 1_000_000 <= segment.file.path.stat().st_mtime < 1_000_000 + end
    assert second not in log.segments
    assert first not in log.segments
