"""Illegal topic names are refused at every entry point."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from ottla.metadata import znodes
from ottla.metadata.cache import MetadataCache
from ottla.metadata.dynamic_configs import DynamicConfigs
from ottla.metadata.memory import MemoryStore, MemoryTree
from ottla.metadata.registration import ensure_tree
from ottla.ports.files import OS_FILES
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest
from ottla.protocol.topics import is_legal_topic_name, topic_name_problem
from ottla.storage.checkpoints import RECOVERY_POINT_FILE, REPLICATION_FILE, read_offsets
from ottla.storage.log_config import LogConfig
from ottla.storage.log_dir import parse_future_directory, parse_partition_directory
from ottla.storage.log_manager import LogManager
from tests.worlds.controller_harness import Cluster, run
from tests.worlds.replication_brokers import TOPIC, Brokers
from tests.worlds.storage_logs import NOW_MS, append

ILLEGAL = ("", ".", "..", "../x", "../../../x", "/x", "a/b", "a b", "a\nb", "a\n", "a\0b", "ä", "x" * 250)


@pytest.mark.parametrize("name", ["a", "x" * 249, "...", "..a", "A.b_c-9", "-", "__consumer_offsets"])
def test_a_legal_name_is_accepted(name: str) -> None:
    assert is_legal_topic_name(name)


@pytest.mark.parametrize("name", ILLEGAL)
def test_an_illegal_name_has_a_problem(name: str) -> None:
    assert topic_name_problem(name) is not None


def everything_under(path: Path) -> set[Path]:
    return set(path.rglob("*"))


async def with_one_broker(path: Path, scenario: Any) -> None:
    brokers = Brokers(path, count=1)
    try:
        await scenario(brokers)
    finally:
        await brokers.stop()


def order(topic: str, partition: int = 0) -> LeaderAndIsrRequest.LeaderAndIsrTopicState:
    return LeaderAndIsrRequest.LeaderAndIsrTopicState(
        topic_name=topic,
        partition_states=[
            LeaderAndIsrRequest.LeaderAndIsrPartitionState(
                partition_index=partition, leader=1, isr=[1], replicas=[1], is_new=True, controller_epoch=1
            )
        ],
    )


@pytest.mark.parametrize(("name", "partition"), [*((name, 0) for name in ILLEGAL), ("legal", -1)])
def test_leader_and_isr_makes_no_log_outside_the_log_directories(
    tmp_path: Path, name: str, partition: int
) -> None:
    async def scenario(brokers: Brokers) -> None:
        replicas = brokers[1].manager
        before = everything_under(tmp_path)
        request = LeaderAndIsrRequest(
            controller_id=1, controller_epoch=1, topic_states=[order(name, partition), order("good")]
        )
        response = replicas.apply_leader_and_isr(request, 2)
        codes = {row.topic_name: row.error_code for row in response.partition_errors}
        assert codes == {name: ErrorCode.INVALID_TOPIC_EXCEPTION, "good": ErrorCode.NONE}
        made = everything_under(tmp_path) - before
        assert {path.name for path in made if path.is_dir()} == {"good-0"}
        assert replicas.offline_count == 0, "the disk is not to blame"

    asyncio.run(with_one_broker(tmp_path / "a" / "b" / "c", scenario))


def test_stop_replica_deletes_only_this_brokers_logs(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.leader_and_isr(leader=1, epoch=0, isr=[1])
        (tmp_path / "victim-0").mkdir()
        before = everything_under(tmp_path)
        state = StopReplicaRequest.StopReplicaPartitionState(
            partition_index=0, leader_epoch=-2, delete_partition=True
        )
        names = [*ILLEGAL, "../victim", "../../victim", str(tmp_path / "victim")]
        topics = [
            StopReplicaRequest.StopReplicaTopicState(topic_name=name, partition_states=[state])
            for name in names
        ]
        request = StopReplicaRequest(controller_id=1, controller_epoch=1, topic_states=topics)
        response = brokers[1].manager.apply_stop_replica(request, 4)
        # There is no such replica here, so that a controller of another kind can finish the deletion.
        assert {row.error_code for row in response.partition_errors} == {ErrorCode.NONE}
        assert everything_under(tmp_path) == before
        assert brokers[1].logs.get(TOPIC, 0) is not None

    asyncio.run(with_one_broker(tmp_path / "logs", scenario))


@pytest.mark.parametrize("name", ILLEGAL)
def test_alter_replica_log_dirs_refuses_illegal_names(tmp_path: Path, name: str) -> None:
    async def scenario(brokers: Brokers) -> None:
        (log_dir,) = brokers[1].logs.log_dirs
        code = brokers[1].manager.moves.alter(name, 0, str(log_dir))
        assert code is ErrorCode.INVALID_TOPIC_EXCEPTION

    asyncio.run(with_one_broker(tmp_path, scenario))


def test_update_metadata_skips_illegal_names(caplog: pytest.LogCaptureFixture) -> None:
    cache = MetadataCache()
    state = UpdateMetadataRequest.UpdateMetadataPartitionState(leader=1, replicas=[1], isr=[1])
    topics = [
        UpdateMetadataRequest.UpdateMetadataTopicState(topic_name=name, partition_states=[state])
        for name in (*ILLEGAL, "good")
    ]
    cache.update(UpdateMetadataRequest(controller_id=1, topic_states=topics))
    assert cache.topics() == ["good"]
    assert "../../../x" in caplog.text


def test_the_log_manager_makes_no_path_of_an_illegal_name(tmp_path: Path) -> None:
    logs = LogManager([tmp_path / "logs"], 1, "c1")
    logs.load(NOW_MS)
    before = everything_under(tmp_path)
    for name, partition in [*((name, 0) for name in ILLEGAL), ("legal", -1)]:
        with pytest.raises(KafkaError) as refused:
            logs.get_or_create(name, partition, LogConfig(), NOW_MS)
        assert refused.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert everything_under(tmp_path) == before
    logs.close(NOW_MS)


def test_directories_and_checkpoint_lines_with_illegal_names_are_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logs = LogManager([tmp_path], 1, "c1")
    logs.load(NOW_MS)
    append(logs.get_or_create("good", 0, LogConfig(), NOW_MS), "a")
    logs.write_high_watermarks({("good", 0): 1})
    logs.close(NOW_MS)
    for name in ("a b-0", "ä-0", "..-0"):
        (tmp_path / name).mkdir()
    for file in (RECOVERY_POINT_FILE, REPLICATION_FILE):
        (tmp_path / file).write_text("0\n3\n../../x 0 5\ngood 0 1\nä 1 7\n")
    again = LogManager([tmp_path], 1, "c1")
    again.load(NOW_MS)
    assert list(again.logs()) == [("good", 0)]
    assert again.read_high_watermarks() == {("good", 0): 1}
    assert read_offsets(OS_FILES, tmp_path / REPLICATION_FILE) == {("good", 0): 1}
    assert "../../x" in caplog.text
    assert "is not a partition directory" in caplog.text
    again.close(NOW_MS)


def test_a_directory_of_a_partition_has_a_legal_name() -> None:
    assert parse_partition_directory("good-topic-12") == ("good-topic", 12)
    assert parse_partition_directory("..-0") is None
    assert parse_partition_directory("a b-0") is None
    assert parse_future_directory("good-0.abc-future") == ("good", 0)
    assert parse_future_directory("..-0.abc-future") is None


def test_settings_of_illegal_topics_are_not_read(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        tree = MemoryTree(lambda: NOW_MS)
        store = MemoryStore(tree)
        await store.connect()
        await ensure_tree(store)
        setting = znodes.encode_config({"retention.ms": "1"})
        await store.create(znodes.topic_config_path("a b"), setting)
        await store.create(znodes.topic_config_path("good"), setting)
        by_topic: dict[str, dict[str, str]] = {}
        configs = DynamicConfigs(store, by_topic.__setitem__)
        with caplog.at_level(logging.WARNING):
            await configs.start()
            assert by_topic == {"good": {"retention.ms": "1"}}
            assert "'a b'" in caplog.text
            caplog.clear()
            by_topic.clear()
            await configs.load_topics(["../brokers", "a\nb", "good"])
        assert list(by_topic) == ["good"]
        assert "../brokers" in caplog.text
        await configs.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("entity", ["topics/../brokers/0", "topics//x", "topics/", "brokers/..", "./topics"])
def test_a_change_of_settings_names_an_entity_under_config(entity: str) -> None:
    assert (
        znodes.decode_config_change(znodes.encode_config_change("users/a/clients/b")) == "users/a/clients/b"
    )
    with pytest.raises(znodes.InvalidNode):
        znodes.decode_config_change(znodes.encode_config_change(entity))


def test_the_controller_ignores_topic_nodes_with_illegal_names(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            tool = MemoryStore(cluster.tree)
            await tool.connect()
            node = znodes.encode_topic(znodes.TopicAssignment({0: (1,)}))
            await tool.create(znodes.topic_path("a b"), node)
            await tool.create(znodes.topic_path("good"), node)
            await cluster.until(lambda: cluster.leader("good") == 1)
            assert cluster.state("a b") is None
            assert "'a b'" in caplog.text
            await cluster.crash(cluster.active.id)
            await cluster.wait_until_quiet()
            assert not (await cluster.create("later", partitions=1, replication_factor=1)).error_code
            assert cluster.state("a b") is None
            await tool.close()

    run(scenario)
