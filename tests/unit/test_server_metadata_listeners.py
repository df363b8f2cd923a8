"""Metadata about a live leader that does not have the client's listener."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ottla.metadata import znodes
from ottla.metadata.config import BrokerConfig
from ottla.metadata.memory import MemoryStore, MemoryTree
from ottla.metadata.znodes import BrokerInfo, Endpoint
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import MetadataRequest, MetadataResponse
from ottla.server.assembly.broker import Broker, new_event_loop
from ottla.wire.connection import BrokerConnection

SETTINGS = {
    "broker.id": "0",
    "listeners": "PLAINTEXT://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUTSIDE:PLAINTEXT",
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], MetadataResponse]:
    """(listener, version) -> Metadata of a topic that is led by broker 9, which has no OUTSIDE."""
    path: Path = tmp_path_factory.mktemp("broker")

    async def scenario() -> dict[tuple[str, int], MetadataResponse]:
        tree = MemoryTree()
        other = MemoryStore(tree)
        await other.connect()
        info = BrokerInfo(9, (Endpoint("PLAINTEXT", "127.0.0.1", 1),))
        await other.create(znodes.BROKER_IDS, make_parents=True)
        await other.create(znodes.broker_path(9), znodes.encode_broker(info), ephemeral=True)
        topic = znodes.TopicAssignment({0: (9,)})
        await other.create(znodes.topic_path("t"), znodes.encode_topic(topic), make_parents=True)
        state = znodes.encode_partition_state(znodes.PartitionState(9, 0, (9,), 1))
        await other.create(znodes.state_path("t", 0), state, make_parents=True)
        config = BrokerConfig.from_properties({**SETTINGS, "log.dirs": str(path)})
        broker = Broker(config, store=MemoryStore(tree))
        await broker.start()
        try:
            return {
                (endpoint.listener, version): await ask(endpoint.port, version)
                for endpoint in broker.endpoints
                for version in (5, 6, 12)
            }
        finally:
            await broker.stop()

    async def ask(port: int, version: int) -> MetadataResponse:
        connection = await BrokerConnection.open("127.0.0.1", port, client_id="test")
        try:
            wanted = [MetadataRequest.MetadataRequestTopic(name="t")]
            answer: MetadataResponse = await connection.request(
                MetadataRequest(topics=wanted), version=version
            )
            return answer
        finally:
            connection.close()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(asyncio.wait_for(scenario(), 120))


@pytest.mark.parametrize(
    ("version", "error"),
    [
        (5, ErrorCode.LEADER_NOT_AVAILABLE),
        (6, ErrorCode.LISTENER_NOT_FOUND),
        (12, ErrorCode.LISTENER_NOT_FOUND),
    ],
)
def test_a_leader_without_the_listener_is_not_named(
    answers: dict[tuple[str, int], MetadataResponse], version: int, error: ErrorCode
) -> None:
    answer = answers["OUTSIDE", version]
    assert [broker.node_id for broker in answer.brokers] == [0]
    (partition,) = answer.topics[0].partitions
    assert (partition.error_code, partition.leader_id) == (error, -1)
    assert partition.replica_nodes == [9]
    assert partition.offline_replicas == [], "it is alive"


def test_a_leader_is_named_on_its_own_listeners(answers: dict[tuple[str, int], MetadataResponse]) -> None:
    answer = answers["PLAINTEXT", 12]
    assert [broker.node_id for broker in answer.brokers] == [0, 9]
    (partition,) = answer.topics[0].partitions
    assert (partition.error_code, partition.leader_id) == (ErrorCode.NONE, 9)
