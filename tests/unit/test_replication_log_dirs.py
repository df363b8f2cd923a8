"""A replica manager with two log directories: replicas move between them, and one of them fails."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ottla.ports.files import OsFiles
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.quotas.broker import ReplicationQuota
from ottla.quotas.rates import Windows
from tests.worlds.replication_brokers import TOPIC, Brokers, error_of, until
from tests.worlds.replication_cluster import values_of


def run_scenario(path: Path, scenario: Callable[[Brokers], Awaitable[None]]) -> None:
    """One broker, with the log directories `a` and `b`."""

    async def whole() -> None:
        brokers = Brokers(path, count=1, log_dirs=f"{path / 'a'},{path / 'b'}")
        try:
            await scenario(brokers)
        finally:
            await brokers.stop()

    asyncio.run(whole())


def directory_of(brokers: Brokers, partition: int = 0) -> str:
    return brokers[1].manager.partition(TOPIC, partition).log.directory.parent.name


def other(brokers: Brokers, path: Path, partition: int = 0) -> Path:
    return path / ("b" if directory_of(brokers, partition) == "a" else "a")


def alter(brokers: Brokers, target: Path, partition: int = 0, topic: str = TOPIC) -> ErrorCode:
    return brokers[1].manager.moves.alter(topic, partition, str(target))


def test_a_leader_moves_while_it_is_written_to(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.leader_and_isr(leader=1, epoch=0, isr=[1])
        for n in range(30):
            brokers[1].produce(f"v{n}")
        target = other(brokers, tmp_path)
        assert alter(brokers, target) is ErrorCode.NONE
        written = 30

        def moved() -> bool:
            nonlocal written
            brokers[1].produce(f"v{written}")
            written += 1
            return directory_of(brokers) == target.name

        await until(moved)
        brokers[1].produce("last")
        partition = brokers[1].manager.partition(TOPIC, 0)
        assert values_of(partition) == [*(f"v{n}" for n in range(written)), "last"]
        assert partition.high_watermark == written + 1
        assert brokers[1].logs.future_logs() == {}

    run_scenario(tmp_path, scenario)


def test_a_throttled_move_waits_and_can_be_cancelled(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.leader_and_isr(leader=1, epoch=0, isr=[1])
        for _ in range(30):
            brokers[1].produce("x" * 100_000)
        manager, logs = brokers[1].manager, brokers[1].logs
        manager.moves.quota = quota = ReplicationQuota(Windows())
        quota.limit = 1.0
        source, target = directory_of(brokers), other(brokers, tmp_path)
        assert alter(brokers, target) is ErrorCode.NONE
        future = logs.future_log(TOPIC, 0)
        assert future is not None
        await until(lambda: future.log_end_offset > 0)
        assert alter(brokers, target) is ErrorCode.NONE, "it is on its way"
        assert logs.future_log(TOPIC, 0) is future
        assert 0 < future.log_end_offset < 30
        assert alter(brokers, tmp_path / source) is ErrorCode.NONE, "it is there: the move is over"
        assert logs.future_log(TOPIC, 0) is None
        assert directory_of(brokers) == source

        assert alter(brokers, target) is ErrorCode.NONE
        quota.limit = None
        await until(lambda: directory_of(brokers) == target.name)

    run_scenario(tmp_path, scenario)


def test_invalid_target_directories_are_refused(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.leader_and_isr(leader=1, epoch=0, isr=[1])
        assert alter(brokers, tmp_path / "nowhere") is ErrorCode.LOG_DIR_NOT_FOUND
        assert alter(brokers, tmp_path / "a", topic="x" * 249) is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert alter(brokers, tmp_path / "a", topic="unknown") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run_scenario(tmp_path, scenario)


def test_a_future_replica_is_created_in_the_requested_directory(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        for target in ("b", "a", "b"):
            for partition in range(2):
                alter(brokers, tmp_path / target, partition)
        brokers.leader_and_isr(leader=1, epoch=0, isr=[1], partitions=2)
        assert [directory_of(brokers, partition) for partition in range(2)] == ["b", "b"]

    run_scenario(tmp_path, scenario)


def test_a_directory_that_fails_takes_its_replicas_offline_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(brokers: Brokers) -> None:
        manager, logs = brokers[1].manager, brokers[1].logs
        loop = asyncio.get_running_loop()
        logs.registry.on_dir_failed = lambda path: loop.call_soon_threadsafe(manager.drop_failed_directories)
        brokers.leader_and_isr(leader=1, epoch=0, isr=[1], partitions=4)
        here = [p for p in range(4) if directory_of(brokers, p) == "a"]
        there = [p for p in range(4) if directory_of(brokers, p) == "b"]
        assert len(here) == len(there) == 2
        broken = manager.partition(TOPIC, here[0])

        def full(fd: int, buffers: object, offset: int) -> int:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        with monkeypatch.context() as patch:
            patch.setattr(OsFiles, "pwritev", staticmethod(full))
            with pytest.raises(KafkaError) as refused:
                brokers[1].produce("lost", partition=here[0])
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        await until(lambda: manager.find(TOPIC, here[0]) is None)
        for partition in here:
            with pytest.raises(KafkaError) as refused:
                manager.partition(TOPIC, partition)
            assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert broken.enough_replicas_for(1) == (True, ErrorCode.KAFKA_STORAGE_ERROR)
        for partition in there:
            brokers[1].produce("kept", partition=partition)
            assert values_of(manager.partition(TOPIC, partition)) == ["kept"]

        [topic] = brokers.leader_and_isr(leader=1, epoch=1, isr=[1], partitions=4)[1].topics
        errors = {row.partition_index: row.error_code for row in topic.partition_errors}
        assert errors == {
            **dict.fromkeys(here, ErrorCode.KAFKA_STORAGE_ERROR),
            **dict.fromkeys(there, ErrorCode.NONE),
        }
        assert alter(brokers, tmp_path / "a", there[0]) is ErrorCode.KAFKA_STORAGE_ERROR
        assert alter(brokers, tmp_path / "b", here[0]) is ErrorCode.KAFKA_STORAGE_ERROR

    run_scenario(tmp_path, scenario)


def test_an_existing_replica_is_not_created_again_while_a_directory_is_offline(tmp_path: Path) -> None:
    async def first(brokers: Brokers) -> None:
        brokers.leader_and_isr(leader=1, epoch=0, isr=[1])
        brokers[1].produce("a")
        assert directory_of(brokers) == "a"

    async def second(brokers: Brokers) -> None:
        answer = brokers.leader_and_isr(leader=1, epoch=1, isr=[1])[1]
        assert error_of(answer) is ErrorCode.KAFKA_STORAGE_ERROR

    async def third(brokers: Brokers) -> None:
        assert error_of(brokers.leader_and_isr(leader=1, epoch=2, isr=[1])[1]) is ErrorCode.NONE
        assert values_of(brokers[1].manager.partition(TOPIC, 0)) == ["a"]

    run_scenario(tmp_path, first)
    (tmp_path / "a").rename(tmp_path / "away")
    (tmp_path / "a").write_text("no directory")
    run_scenario(tmp_path, second)
    (tmp_path / "a").unlink()
    (tmp_path / "away").rename(tmp_path / "a")
    run_scenario(tmp_path, third)


def test_a_move_interrupted_by_a_restart_continues_after_leader_and_isr(tmp_path: Path) -> None:
    async def first(brokers: Brokers) -> None:
        brokers.leader_and_isr(leader=1, epoch=0, isr=[1])
        for _ in range(30):
            brokers[1].produce("x" * 100_000)
        brokers[1].manager.moves.quota.limit = 1.0
        assert alter(brokers, other(brokers, tmp_path)) is ErrorCode.NONE
        future = brokers[1].logs.future_log(TOPIC, 0)
        assert future is not None
        await until(lambda: future.log_end_offset > 0)

    async def second(brokers: Brokers) -> None:
        assert brokers[1].logs.future_log(TOPIC, 0) is not None
        brokers.leader_and_isr(leader=1, epoch=1, isr=[1])
        target = other(brokers, tmp_path).name
        await until(lambda: directory_of(brokers) == target)
        assert values_of(brokers[1].manager.partition(TOPIC, 0)) == ["x" * 100_000] * 30

    run_scenario(tmp_path, first)
    run_scenario(tmp_path, second)
