"""A broker's life over the in-memory store, in this process: start, restart, lost session, refusals, stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from ottla.metadata.config import BrokerConfig
from ottla.metadata.memory import MemoryStore, MemoryTree
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    CreateTopicsRequest,
    FetchRequest,
    FetchResponse,
    FindCoordinatorRequest,
    LeaderAndIsrRequest,
    MetadataRequest,
    MetadataResponse,
    OffsetCommitRequest,
    OffsetFetchRequest,
    ProduceRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from ottla.protocol.records import Record, build_batch, decode_records
from ottla.replication.fetcher import ReplicaFetcher
from ottla.server.assembly.broker import Broker, StartupError, new_event_loop
from ottla.wire.connection import BrokerConnection

pytestmark = pytest.mark.timeout(200)


def run(scenario: Awaitable[None]) -> None:
    async def main() -> None:
        async with asyncio.timeout(150):
            await scenario

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())


def make(tree: MemoryTree, directory: Path, broker_id: int = 0, port: int = 0, **settings: str) -> Broker:
    properties = {
        "broker.id": str(broker_id),
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": str(directory),
        "zookeeper.session.timeout.ms": "500",
        "controlled.shutdown.retry.backoff.ms": "100",
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    return Broker(BrokerConfig.from_properties(properties), store=MemoryStore(tree))


@contextlib.asynccontextmanager
async def running(broker: Broker) -> AsyncIterator[BrokerConnection]:
    await broker.start()
    try:
        with closing(await connect(broker)) as connection:
            yield connection
    finally:
        await broker.stop()


async def connect(broker: Broker) -> BrokerConnection:
    return await BrokerConnection.open("127.0.0.1", broker.endpoints[0].port, timeout_s=60)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():  # noqa: ASYNC110 (the condition is on the other side of a socket)
        await asyncio.sleep(0.01)


async def metadata(connection: BrokerConnection, topic: str) -> MetadataResponse.MetadataResponseTopic:
    asked = MetadataRequest.MetadataRequestTopic(name=topic)
    response: MetadataResponse = await connection.request(
        MetadataRequest(topics=[asked], allow_auto_topic_creation=False)
    )
    return response.topics[0]


async def create(connection: BrokerConnection, topic: str, *, replicas: int = 1, **config: str) -> None:
    row = CreateTopicsRequest.CreatableTopic(
        name=topic,
        num_partitions=1,
        replication_factor=replicas,
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=name.replace("_", "."), value=value)
            for name, value in config.items()
        ],
    )
    response = await connection.request(CreateTopicsRequest(topics=[row]))
    assert response.topics[0].error_code == 0, response

    async def has_leader() -> bool:
        found = await metadata(connection, topic)
        return found.error_code == 0 and found.partitions[0].leader_id >= 0

    await until(has_leader)


async def produce(connection: BrokerConnection, topic: str, *values: bytes, acks: int = -1) -> int:
    batch = build_batch([Record(i, 1_700_000_000_000, None, v, []) for i, v in enumerate(values)])
    part = ProduceRequest.PartitionProduceData(index=0, records=batch)
    row = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
    response = await connection.request(ProduceRequest(acks=acks, timeout_ms=60_000, topic_data=[row]))
    return int(response.responses[0].partition_responses[0].error_code)


async def fetch(connection: BrokerConnection, topic: str, offset: int = 0) -> FetchResponse.PartitionData:
    part = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    row = FetchRequest.FetchTopic(topic=topic, partitions=[part])
    response: FetchResponse = await connection.request(
        FetchRequest(max_wait_ms=200, min_bytes=1, topics=[row]), version=12
    )
    return response.responses[0].partitions[0]


async def read(connection: BrokerConnection, topic: str) -> list[bytes | None]:
    found = await fetch(connection, topic)
    assert found.error_code == 0
    assert found.records is not None
    return [record.value for record in decode_records(found.records)]


def test_a_restarted_broker_has_its_topics_records_and_settings(tmp_path: Path) -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        async with running(make(tree, tmp_path)) as connection:
            await create(connection, "kept", max_message_bytes="1000")
            assert await produce(connection, "kept", b"one", b"two") == 0
        assert (tmp_path / ".kafka_cleanshutdown").exists()
        broker = make(tree, tmp_path)
        async with running(broker) as connection:

            async def leads() -> bool:
                return (await metadata(connection, "kept")).error_code == 0

            await until(leads)
            assert await read(connection, "kept") == [b"one", b"two"]
            assert await produce(connection, "kept", b"x" * 2000) == ErrorCode.MESSAGE_TOO_LARGE
            assert await produce(connection, "kept", b"three") == 0
            assert await read(connection, "kept") == [b"one", b"two", b"three"]

    run(scenario())


def test_a_lost_session_is_followed_by_a_new_registration_and_a_new_election(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = make(MemoryTree(), tmp_path)
        async with running(broker) as connection:
            await create(connection, "before")
            epoch, term = broker.broker_epoch, broker.replication.controller.epoch
            store = broker.store
            assert isinstance(store, MemoryStore)
            store.expire()

            async def rejoined() -> bool:
                return broker.broker_epoch > epoch and broker.replication.controller.epoch > term

            await until(rejoined)
            assert await produce(connection, "before", b"still here") == 0
            await create(connection, "after")
            assert await produce(connection, "after", b"new") == 0

    run(scenario())


def test_a_session_lost_again_during_the_registration_is_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        broker = make(tree, tmp_path)
        async with running(broker):
            store, stand = broker.store, broker.replication.controller.start
            assert isinstance(store, MemoryStore)
            epochs: list[int] = []

            async def lose_it_again(broker_epoch: int) -> None:
                epochs.append(broker_epoch)
                if len(epochs) == 1:
                    store.expire()
                await stand(broker_epoch)

            broker.replication.controller.start = lose_it_again  # type: ignore[method-assign]
            store.expire()

            async def registered_at_last() -> bool:
                found = await store.exists("/brokers/ids/0")
                return len(epochs) == 2 and found is not None and found.ephemeral_owner == store.session_id

            await until(registered_at_last)

    run(scenario())


def test_a_broker_that_cannot_register_again_at_once_retries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        broker = make(MemoryTree(), tmp_path)
        async with running(broker):
            epoch, store = broker.broker_epoch, broker.store
            assert isinstance(store, MemoryStore)
            tries: list[int] = []

            async def fails_once(broker_epoch: int) -> None:
                tries.append(broker_epoch)
                if len(tries) == 1:
                    raise OSError(28, "no space left")

            monkeypatch.setattr("ottla.server.assembly.broker.REJOIN_RETRY_S", 0.01)
            broker.replication.controller.start = fails_once  # type: ignore[method-assign]
            store.expire()

            async def rejoined() -> bool:
                return len(tries) == 2

            await until(rejoined)
            assert broker.broker_epoch > epoch

    run(scenario())


def test_requests_with_the_broker_epoch_of_an_older_registration_are_stale(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = make(MemoryTree(), tmp_path)
        async with running(broker) as connection:
            old = broker.broker_epoch - 1
            for order in (
                LeaderAndIsrRequest(controller_epoch=9, broker_epoch=old),
                StopReplicaRequest(controller_epoch=9, broker_epoch=old),
                UpdateMetadataRequest(controller_epoch=9, broker_epoch=old),
            ):
                response = await connection.request(order)
                assert response.error_code == ErrorCode.STALE_BROKER_EPOCH, response
            response = await connection.request(
                UpdateMetadataRequest(controller_epoch=0, broker_epoch=broker.broker_epoch)
            )
            assert response.error_code == ErrorCode.STALE_CONTROLLER_EPOCH

    run(scenario())


def test_requests_to_the_wrong_broker_get_its_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        one, two = make(tree, tmp_path / "1", 1), make(tree, tmp_path / "2", 2)
        async with running(one) as first, running(two) as second:
            follower = second if one.replication.controller.is_active else first
            response = await follower.request(
                CreateTopicsRequest(topics=[CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1)])
            )
            assert response.topics[0].error_code == ErrorCode.NOT_CONTROLLER
            leader = first if one.replication.controller.is_active else second
            await create(leader, "t")

            async def known_to_both() -> bool:
                found = [await metadata(c, "t") for c in (first, second)]
                return all(topic.error_code == 0 for topic in found)

            await until(known_to_both)
            where = (await metadata(first, "t")).partitions[0].leader_id
            other = second if where == 1 else first
            assert await produce(other, "t", b"x") == ErrorCode.NOT_LEADER_OR_FOLLOWER
            part = ProduceRequest.PartitionProduceData(
                index=0, records=build_batch([Record(0, 0, None, b"x", [])])
            )
            row = ProduceRequest.TopicProduceData(name="t", partition_data=[part])
            refused = await other.request(
                ProduceRequest(acks=1, timeout_ms=100, topic_data=[row]), version=10
            )
            hint = refused.responses[0].partition_responses[0].current_leader
            assert hint.leader_id == where
            assert [node.node_id for node in refused.node_endpoints] == [where]

    run(scenario())


def test_a_long_poll_counts_records_appended_before_and_committed_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        gate, fetch_once = asyncio.Event(), ReplicaFetcher._fetch_once

        async def gated(fetcher: ReplicaFetcher) -> None:
            await gate.wait()
            await fetch_once(fetcher)

        monkeypatch.setattr(ReplicaFetcher, "_fetch_once", gated)
        tree = MemoryTree()
        one, two = make(tree, tmp_path / "1", 1), make(tree, tmp_path / "2", 2)
        async with running(one) as first, running(two) as second:

            async def both_there() -> bool:
                return len((await first.request(MetadataRequest(topics=[]))).brokers) == 2

            await until(both_there)
            await create(first if one.replication.controller.is_active else second, "t", replicas=2)
            where = (await metadata(first, "t")).partitions[0].leader_id
            leader, connection = (one, first) if where == 1 else (two, second)
            assert await produce(connection, "t", b"x" * 100, acks=1) == 0
            part = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
            row = FetchRequest.FetchTopic(topic="t", partitions=[part])
            poll = asyncio.ensure_future(
                connection.request(
                    FetchRequest(max_wait_ms=120_000, min_bytes=100, topics=[row]), version=12, timeout_s=150
                )
            )

            async def waits() -> bool:
                return ("t", 0) in leader.replication.purgatory._consumers

            await until(waits)
            gate.set()
            async with asyncio.timeout(60):
                response = await poll
            assert response.responses[0].partitions[0].high_watermark == 1
            assert response.responses[0].partitions[0].records

    run(scenario())


def test_groups_keep_their_partition_when_the_setting_of_their_number_changes(tmp_path: Path) -> None:
    """Kafka asks the topic, not the settings; else every committed offset would seem lost."""

    async def coordinated(connection: BrokerConnection, group: str) -> None:
        async def found() -> bool:
            response = await connection.request(FindCoordinatorRequest(coordinator_keys=[group]))
            return bool(response.coordinators[0].error_code == 0)

        await until(found)

    async def committed(connection: BrokerConnection, group: str) -> tuple[int, int]:
        asked = OffsetFetchRequest.OffsetFetchRequestTopics(name="t", partition_indexes=[0])
        row = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=[asked])
        response = await connection.request(OffsetFetchRequest(groups=[row]), version=8)
        [answer] = response.groups
        if answer.error_code:
            return answer.error_code, -1
        return 0, answer.topics[0].partitions[0].committed_offset

    async def scenario() -> None:
        tree, groups = MemoryTree(), [f"group-{i}" for i in range(5)]
        count = "offsets.topic.num.partitions"
        settings = {"offsets.topic.replication.factor": "1"}
        async with running(make(tree, tmp_path, **settings, **{count: "3"})) as connection:
            await create(connection, "t")
            for group in groups:
                await coordinated(connection, group)
                part = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
                row = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[part])
                commit = OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, topics=[row])

                async def accepted(commit: OffsetCommitRequest = commit) -> bool:
                    response = await connection.request(commit, version=8)
                    return bool(response.topics[0].partitions[0].error_code == 0)

                await until(accepted)
        async with running(make(tree, tmp_path, **settings, **{count: "7"})) as connection:
            for group in groups:
                async with asyncio.timeout(60):
                    await coordinated(connection, group)

                async def loaded(group: str = group) -> bool:
                    return (await committed(connection, group))[0] == 0

                await until(loaded)
                assert await committed(connection, group) == (0, 7)

    run(scenario())


def test_invalid_requests_get_kafkas_error_codes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make(MemoryTree(), tmp_path)) as connection:
            await create(connection, "t")
            assert await produce(connection, "t", b"x", acks=2) == ErrorCode.INVALID_REQUIRED_ACKS
            assert await produce(connection, "missing", b"x") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert (await fetch(connection, "missing")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert (await fetch(connection, "t", 99)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            internal = "__consumer_offsets"
            assert await produce(connection, internal, b"x") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            await create(connection, internal)
            assert await produce(connection, internal, b"x") == ErrorCode.INVALID_TOPIC_EXCEPTION

    run(scenario())


def test_acks_all_below_min_insync_replicas_waits_or_is_rejected(tmp_path: Path) -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        one, two = make(tree, tmp_path / "1", 1), make(tree, tmp_path / "2", 2)
        async with running(one) as first, running(two) as second:

            async def both_there() -> bool:
                return len((await first.request(MetadataRequest(topics=[]))).brokers) == 2

            await until(both_there)
            leader = first if one.replication.controller.is_active else second
            row = CreateTopicsRequest.CreatableTopic(
                name="t",
                assignments=[
                    CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2])
                ],
                num_partitions=-1,
                replication_factor=-1,
                configs=[CreateTopicsRequest.CreatableTopicConfig(name="min.insync.replicas", value="2")],
            )
            created = await leader.request(CreateTopicsRequest(topics=[row]))
            assert created.topics[0].error_code == 0

            async def leads() -> bool:
                found = one.replication.replicas.find("t", 0)
                return found is not None and found.is_leader and len(found.isr) == 2

            await until(leads)
            assert await produce(first, "t", b"replicated") == 0
            log = two.replication.replicas.find("t", 0)
            assert log is not None
            assert log.log.log_end_offset == 1, "acknowledged: the follower has it"
            second.close()
            await two.stop()

            async def shrunk() -> bool:
                found = one.replication.replicas.find("t", 0)
                return found is not None and len(found.isr) == 1

            await until(shrunk)
            assert await produce(first, "t", b"refused") == ErrorCode.NOT_ENOUGH_REPLICAS
            assert await produce(first, "t", b"taken", acks=1) == 0

    run(scenario())


# --- refusals --------------------------------------------------------------------------------------


async def refusal(broker: Broker) -> str:
    try:
        with pytest.raises(StartupError) as caught:
            await broker.start()
    finally:
        await broker.stop()
    return str(caught.value)


def test_a_port_in_use_a_locked_folder_and_a_foreign_folder_have_different_errors(tmp_path: Path) -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        first = make(tree, tmp_path / "first")
        async with running(first):
            port = first.endpoints[0].port
            taken = await refusal(make(tree, tmp_path / "second", 1, port))
            assert taken.startswith(f"cannot listen on PLAINTEXT://127.0.0.1:{port}: ")
            locked = await refusal(make(tree, tmp_path / "first"))
            assert "is held by another broker" in locked
        foreign = await refusal(make(tree, tmp_path / "first", broker_id=5))
        assert "belongs to another broker" in foreign
        other_cluster = await refusal(make(MemoryTree(), tmp_path / "first"))
        assert "belongs to another cluster" in other_cluster

    run(scenario())


def test_a_broker_id_that_is_in_use_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        async with running(make(tree, tmp_path / "first")):
            assert "broker id 0 is in use" in await refusal(make(tree, tmp_path / "second"))

    run(scenario())


def test_stopping_without_a_start_does_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = make(MemoryTree(), tmp_path)
        await broker.stop()
        await broker.stop()

    run(scenario())


def test_a_start_that_is_cancelled_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        broker = make(tree, tmp_path)
        starting = asyncio.ensure_future(broker.start())
        await asyncio.sleep(0)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await broker.stop()
        async with running(make(tree, tmp_path)) as connection:
            await create(connection, "t")

    run(scenario())
