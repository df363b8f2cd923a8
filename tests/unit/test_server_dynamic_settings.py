"""A whole broker over the in-memory store: settings at its start, and their changes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ottla.metadata import znodes
from ottla.metadata.memory import MemoryStore, MemoryTree
from ottla.protocol.errors import KafkaError
from tests.worlds.running_broker import RunningBroker, run

WAIT_S = 60.0
SETTINGS = {"log.retention.hours": "1"}


async def put(tree: MemoryTree, path: str, data: bytes) -> None:
    store = MemoryStore(tree)
    await store.connect()
    await store.create(path, data, make_parents=True)
    await store.close()


def stored(tree: MemoryTree, entity_type: str, entity: str, settings: dict[str, str]) -> None:
    path = znodes.config_path(entity_type, entity)
    asyncio.run(put(tree, path, znodes.encode_config(settings)))


def test_a_default_reaches_the_topics_that_have_no_value_of_their_own(tmp_path: Path) -> None:
    async def scenario(it: RunningBroker) -> None:
        await it.admin.create_topic("plain", partitions=1, replication_factor=1)
        own = {"retention.ms": "5", "segment.bytes": "4000"}
        await it.admin.create_topic("own", partitions=1, replication_factor=1, config=own)
        assert it.log("plain").config.retention_ms == 3_600_000
        changed = {"log.retention.ms": "7000", "log.segment.bytes": "3000"}
        await it.admin.alter_broker_config(None, set_values=changed)
        await it.until(lambda: it.log("plain").config.retention_ms == 7000)
        assert it.log("plain").config.segment_bytes == 3000
        assert it.log("own").config.retention_ms == 5
        assert it.log("own").config.segment_bytes == 4000
        await it.admin.create_topic("later", partitions=1, replication_factor=1)
        assert it.log("later").config.retention_ms == 7000
        await it.admin.alter_topic_config("own", delete=["retention.ms"])
        await it.until(lambda: it.log("own").config.retention_ms == 7000)
        await it.admin.alter_broker_config(None, delete=["log.retention.ms"])
        await it.until(lambda: it.log("plain").config.retention_ms == 3_600_000)

    run(tmp_path, scenario, settings=SETTINGS)


def test_a_brokers_own_dynamic_setting_overrides_the_cluster_default(tmp_path: Path) -> None:
    async def scenario(it: RunningBroker) -> None:
        config = it.broker.config
        await it.admin.alter_broker_config(0, set_values={"message.max.bytes": "3000"})
        await it.until(lambda: config.get_int("message.max.bytes") == 3000)
        await it.admin.alter_broker_config(None, set_values={"message.max.bytes": "2000"})
        await it.until(lambda: config.of_cluster == {"message.max.bytes": "2000"})
        assert config.get_int("message.max.bytes") == 3000
        await it.admin.alter_broker_config(0, delete=["message.max.bytes"])
        await it.until(lambda: config.get_int("message.max.bytes") == 2000)

    run(tmp_path, scenario, settings=SETTINGS)


def test_refused_changes_are_not_stored(tmp_path: Path) -> None:
    async def scenario(it: RunningBroker) -> None:
        for name, value in (("num.partitions", "2"), ("log.segment.bytes", "1"), ("ssl.key.password", "x")):
            with pytest.raises(KafkaError):
                await it.admin.alter_broker_config(0, set_values={"log.retention.ms": "1", name: value})
        assert await it.broker.dynamic_configs.broker_config("0") == {}

    run(tmp_path, scenario, settings=SETTINGS)


def test_stored_settings_win_over_the_file_at_the_start(tmp_path: Path) -> None:
    tree = MemoryTree()
    stored(tree, "brokers", "<default>", {"log.retention.ms": "1000", "log.segment.bytes": "5000"})
    stored(tree, "brokers", "0", {"log.segment.bytes": "6000", "leader.replication.throttled.rate": "9"})
    stored(tree, "brokers", "1", {"log.segment.bytes": "7000"})

    async def scenario(it: RunningBroker) -> None:
        await it.admin.create_topic("t", partitions=1, replication_factor=1)
        assert it.log("t").config.retention_ms == 1000
        assert it.log("t").config.segment_bytes == 6000
        assert it.broker.replication.quotas.leader.limit == 9

    run(tmp_path, scenario, tree, settings=SETTINGS)


def test_manually_written_invalid_settings_do_not_prevent_the_start(tmp_path: Path) -> None:
    async def scenario(it: RunningBroker) -> None:
        await it.admin.create_topic("t", partitions=1, replication_factor=1)

    run(tmp_path, scenario, settings=SETTINGS)
    assert (tmp_path / "t-0").is_dir()
    tree = MemoryTree()
    stored(tree, "topics", "t", {"retention.ms": "soon", "segment.bytes": "3000", "no.such": "x"})
    asyncio.run(put(tree, znodes.topic_config_path("u"), b"{"))
    stored(tree, "brokers", "0", {"log.segment.bytes": "large", "num.partitions": "7", "broker.rack": "r"})
    asyncio.run(put(tree, znodes.config_path("brokers", "<default>"), b"[]"))
    # The log of the first run belongs to the first run's cluster.
    (tmp_path / "meta.properties").unlink()

    async def again(it: RunningBroker) -> None:
        log = it.broker.replication.replicas._logs.get("t", 0)
        assert log is not None
        assert (log.config.segment_bytes, log.config.retention_ms) == (3000, 3_600_000)
        assert it.broker.config.get_int("log.segment.bytes") == 1 << 30
        assert it.broker.config.get_int("num.partitions") == 1

    run(tmp_path, again, tree, settings=SETTINGS)


def test_an_unclean_election_may_be_allowed_while_the_controller_runs(tmp_path: Path) -> None:
    """A partition whose only in-sync replica is lost gets a leader from the remaining replicas."""
    tree = MemoryTree()
    topic = znodes.TopicAssignment({0: (0, 9)})
    asyncio.run(put(tree, znodes.topic_path("t"), znodes.encode_topic(topic)))
    state = znodes.PartitionState(9, 3, (9,), 1)
    asyncio.run(put(tree, znodes.state_path("t", 0), znodes.encode_partition_state(state)))

    async def scenario(it: RunningBroker) -> None:
        def leader() -> int:
            partition = it.broker.replication.cache.partition("t", 0)
            return -1 if partition is None else partition.leader

        await it.until(lambda: it.broker.replication.cache.partition("t", 0) is not None)
        assert leader() == -1
        await it.admin.alter_broker_config(None, set_values={"unclean.leader.election.enable": "true"})
        await it.until(lambda: leader() == 0)

    run(tmp_path, scenario, tree, settings=SETTINGS)
