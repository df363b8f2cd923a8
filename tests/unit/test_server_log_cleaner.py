"""A whole broker cleans its logs in the worker process, with changing settings and under faults."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.metadata.memory import MemoryTree
from ottla.ports.files import OS_FILES
from ottla.storage.checkpoints import read_offsets
from ottla.storage.cleaner.planning import CHECKPOINT_FILE
from ottla.storage.log import Log
from tests.worlds.cleaner_logs import Found, in_memory_place, put, records, survivors
from tests.worlds.running_broker import RunningBroker, Scenario, run

WAIT_S = 60.0
SETTINGS = {"log.cleaner.backoff.ms": "50"}
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "2000", "min.cleanable.dirty.ratio": "0.01"}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield from in_memory_place(tmp_path)


async def create(running: RunningBroker, name: str, **config: str) -> Log:
    """A new topic's log, once it has a leader."""
    await running.admin.create_topic(name, partitions=1, replication_factor=1, config={**COMPACTED, **config})
    find = running.broker.replication.replicas.find
    await running.until(lambda: (found := find(name, 0)) is not None and found.is_leader)
    return running.log(name)


def fill(running: RunningBroker, name: str, count: int = 300) -> list[Found]:
    """Appends committed records; returns the records of the log."""
    log = running.log(name)
    for number in range(count):
        put(log, (f"key-{number % 10}", f"{number}"), now_ms=running.broker.ports.clock.wall_ms())
    running.broker.replication.replicas.partition(name, 0).high_watermark = log.log_end_offset
    return records(log)


async def cleaned(running: RunningBroker, name: str) -> None:
    log = running.log(name)
    await running.until(lambda: not log.has_dirty_sealed_segments)


def run_cleaner(path: Path, scenario: Scenario, tree: MemoryTree | None = None, **settings: str) -> None:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    run(path, scenario, tree, {**SETTINGS, **given})
    assert not list(path.rglob("*.cleaned"))
    assert not list(path.rglob("*.swap"))


def test_logs_are_cleaned_and_the_checkpoint_is_written(place: Path) -> None:
    tree = MemoryTree()

    async def first(running: RunningBroker) -> None:
        await create(running, "c")
        written = fill(running, "c")
        await cleaned(running, "c")
        log = running.log("c")
        assert log.first_dirty_offset == log.segments[-1].base_offset > 200
        assert records(log) == survivors(written, log.first_dirty_offset)
        assert len(records(log)) < 60
        await running.until(lambda: (place / CHECKPOINT_FILE).exists())
        await running.until(
            lambda: read_offsets(OS_FILES, place / CHECKPOINT_FILE) == {("c", 0): log.first_dirty_offset}
        )
        metrics = running.broker.replication.cleaner.metrics()
        assert metrics["cleaner-recopy-percent"] < 50
        assert metrics["max-buffer-utilization-percent"] == 0
        assert metrics["DeadThreadCount"] == metrics["uncleanable-partitions-count"] == 0

    async def second(running: RunningBroker) -> None:
        find = running.broker.replication.replicas.find
        await running.until(lambda: find("c", 0) is not None)
        log = running.log("c")
        assert log.first_dirty_offset == read_offsets(OS_FILES, place / CHECKPOINT_FILE)["c", 0] > 200

    run_cleaner(place, first, tree)
    run_cleaner(place, second, tree)


def test_uncommitted_records_are_not_cleaned(place: Path) -> None:
    async def scenario(running: RunningBroker) -> None:
        await create(running, "held")
        await create(running, "free")
        written = fill(running, "held")
        held = running.log("held")
        partition = running.broker.replication.replicas.partition("held", 0)
        partition.high_watermark = held.segments[1].base_offset
        fill(running, "free")
        await cleaned(running, "free")
        await running.until(lambda: (held.first_dirty_offset or 0) > 0)
        assert held.first_dirty_offset == held.segments[1].base_offset
        assert records(held) == survivors(written, held.first_dirty_offset)

    run_cleaner(place, scenario)


def test_a_log_that_cannot_be_cleaned_is_left_alone_and_the_rest_goes_on(place: Path) -> None:
    async def scenario(running: RunningBroker) -> None:
        await create(running, "broken")
        log = running.log("broken")
        written = fill(running, "broken", 10)
        path = log.segments[0].file.path
        running.broker.replication.replicas.partition("broken", 0).high_watermark = 0
        fill(running, "broken", 100)
        with path.open("r+b") as file:
            file.seek(70)
            file.write(b"\xff")
        await running.until(lambda: ("broken", 0) in running.broker.replication.cleaner.uncleanable)
        await create(running, "whole")
        fill(running, "whole")
        await cleaned(running, "whole")
        assert log.first_dirty_offset is None
        assert log.log_start_offset == written[0][0]
        metrics = running.broker.replication.cleaner.metrics()
        assert metrics["uncleanable-partitions-count"] == 1
        assert metrics["uncleanable-bytes"] == sum(segment.size for segment in log.segments[:-1])
        assert metrics["DeadThreadCount"] == 0
        # Another log of the same name has nothing to do with it.
        await running.admin.delete_topic("broken")
        await running.until(lambda: running.broker.replication.replicas.find("broken", 0) is None)
        await create(running, "broken")
        fill(running, "broken")
        await cleaned(running, "broken")
        assert not running.broker.replication.cleaner.uncleanable

    run_cleaner(place, scenario)


def test_the_cleaner_applies_retention_to_compacted_logs(place: Path) -> None:
    """As in Kafka's LogCleaner: at each of its runs, and not by log.retention.check.interval.ms."""

    async def scenario(running: RunningBroker) -> None:
        both = {"cleanup.policy": "compact,delete"}
        small = await create(running, "small", **both, **{"retention.bytes": "3000", "retention.ms": "-1"})
        old = await create(running, "old", **both, **{"retention.ms": "1000"})
        cut = await create(running, "cut", **{"min.cleanable.dirty.ratio": "1"})
        for log in (small, old, cut):
            for number in range(300):  # each key once: compaction lets none go
                put(
                    log,
                    (f"key-{number}", f"{number}"),
                    now_ms=running.broker.ports.clock.wall_ms(),
                    timestamp=1,
                )
        now_ms = running.broker.ports.clock.wall_ms()
        put(old, ("young", "x"), now_ms=now_ms, timestamp=now_ms + 10**9)
        cut.maybe_increment_log_start_offset(150)
        partitions = [
            running.broker.replication.replicas.partition(name, 0) for name in ("small", "old", "cut")
        ]
        for partition in partitions:
            partition.high_watermark = partition.log.log_end_offset
        await running.until(lambda: small.size < 3000 + 2000)
        await running.until(lambda: len(old.segments) == 1)
        await running.until(lambda: cut.segments[1].base_offset > 150)
        assert (small.size >= 3000, small.log_start_offset > 0) == (True, True)
        assert records(old)[-1][1] == b"young"
        assert cut.log_start_offset == 150
        assert cut.segments[0].base_offset <= 150
        # Who waits for it hears of it on the loop, a moment later.
        await running.until(
            lambda: all(each._notified_log_start == each.log.log_start_offset for each in partitions)
        )

    run_cleaner(place, scenario)


def test_a_topic_may_be_deleted_while_it_is_cleaned(place: Path) -> None:
    async def scenario(running: RunningBroker) -> None:
        await create(running, "gone")
        fill(running, "gone", 2000)
        cleaner = running.broker.replication.cleaner
        await running.until(lambda: ("gone", 0) in cleaner._logs.maintenance._locked_for_cleaning)
        await running.admin.delete_topic("gone")
        await running.until(lambda: running.broker.replication.replicas.find("gone", 0) is None)
        await create(running, "gone")
        written = fill(running, "gone")
        await cleaned(running, "gone")
        log = running.log("gone")
        assert log.first_dirty_offset is not None
        assert records(log) == survivors(written, log.first_dirty_offset)
        assert not cleaner.uncleanable

    # So slow that it is under way when the topic goes.
    run_cleaner(place, scenario, log_cleaner_io_max_bytes_per_second="100000")


def test_a_stop_cancels_the_running_job(place: Path) -> None:
    tree = MemoryTree()

    async def first(running: RunningBroker) -> None:
        await create(running, "slow")
        fill(running, "slow", 3000)
        await running.until(
            lambda: ("slow", 0) in running.broker.replication.cleaner._logs.maintenance._locked_for_cleaning
        )

    async def second(running: RunningBroker) -> None:
        await running.until(lambda: running.broker.replication.replicas.find("slow", 0) is not None)
        log = running.log("slow")
        await running.until(lambda: log.log_end_offset == 3000)
        partition = running.broker.replication.replicas.partition("slow", 0)
        await running.until(lambda: partition.is_leader and partition.high_watermark == 3000)
        written = {(offset, key, b"%d" % offset) for offset, key, _ in records(log)}
        assert written == set(records(log))
        await cleaned(running, "slow")
        assert log.first_dirty_offset is not None
        kept = [offset for offset, _, _ in records(log)]
        clean_to = log.first_dirty_offset
        assert kept == [*range(clean_to - 10, clean_to), *range(clean_to, 3000)]

    run_cleaner(place, first, tree, log_cleaner_io_max_bytes_per_second="1000")
    run_cleaner(place, second, tree)


def test_the_death_of_a_worker_fails_only_its_job(place: Path) -> None:
    async def scenario(running: RunningBroker) -> None:
        await create(running, "unlucky")
        fill(running, "unlucky", 3000)
        cleaner = running.broker.replication.cleaner
        process = cleaner._threads[0].process
        await running.until(
            lambda: ("unlucky", 0) in cleaner._logs.maintenance._locked_for_cleaning and process.pids
        )
        (victim,) = process.pids
        os.kill(victim, signal.SIGKILL)
        await running.until(lambda: ("unlucky", 0) in cleaner._retry_after_ms)
        # The next one is as fast as it likes.
        await running.admin.alter_broker_config(
            None, set_values={"log.cleaner.io.max.bytes.per.second": "1e9"}
        )
        await create(running, "lucky")
        fill(running, "lucky")
        await cleaned(running, "lucky")
        assert victim not in process.pids
        assert not cleaner.uncleanable
        assert cleaner.metrics()["DeadThreadCount"] == 0

    run_cleaner(place, scenario, log_cleaner_io_max_bytes_per_second="1000")


def test_a_disabled_cleaner_cleans_nothing(place: Path) -> None:
    async def scenario(running: RunningBroker) -> None:
        await create(running, "kept")
        written = fill(running, "kept")
        assert running.log("kept").has_dirty_sealed_segments
        assert not running.broker.replication.cleaner._threads
        assert records(running.log("kept")) == written
        # Nor has what lies below the start: that would be the cleaner's as well.
        running.log("kept").maybe_increment_log_start_offset(200)
        logs = running.broker.replication.cleaner._logs
        assert logs.cleanup(running.broker.ports.clock.wall_ms(), {("kept", 0): 300}) == 0

    run_cleaner(place, scenario, log_cleaner_enable="false")
