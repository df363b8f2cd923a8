"""What brokers ask one another for transactions does not wait for what else they asked: three brokers over
the in-memory store, in this process."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from ottla.coordinators.interfaces import Marker
from ottla.metadata.memory import MemoryTree
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import CreateTopicsRequest
from ottla.server.coordination.transaction_verification import VerificationRequest
from ottla.wire.connection import BrokerConnection
from tests.interop.own.test_broker_life import make, metadata, run, running, until

ASKING, ASKED, STUCK = 1, 2, 3
pytestmark = pytest.mark.timeout(200)


async def create(connections: list[BrokerConnection], topic: str, *replicas: int) -> None:
    """A topic of one partition on these brokers; until all know of it."""
    row = CreateTopicsRequest.CreatableTopic(
        name=topic,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[
            CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=list(replicas))
        ],
    )

    async def created() -> bool:
        """By the controller, whoever that is."""
        answers = [await each.request(CreateTopicsRequest(topics=[row])) for each in connections]
        return any(answer.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS for answer in answers)

    async def known() -> bool:
        found = [await metadata(each, topic) for each in connections]
        return all(topic.partitions and topic.partitions[0].leader_id == replicas[0] for topic in found)

    await until(created)
    await until(known)


def test_a_marker_that_waits_for_replicas_blocks_no_verification(tmp_path: Path) -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        settings = {"replica_lag_time_max_ms": "600000", "request_timeout_ms": "600000"}
        brokers = {n: make(tree, tmp_path / str(n), n, **settings) for n in (ASKING, ASKED, STUCK)}
        async with AsyncExitStack() as stack:
            connections = [await stack.enter_async_context(running(each)) for each in brokers.values()]
            await create(connections, "__transaction_state", ASKED)
            await create(connections, "slow", ASKED, STUCK)
            await brokers[STUCK].replication.replicas.stop()
            marker = Marker(7, 0, 0, True, frozenset({("slow", 0)}))
            brokers[ASKING].coordinators.transactions.markers.send(marker, lambda marked: None, lambda: True)
            leader = brokers[ASKED].replication.replicas.partition("slow", 0)

            async def appended() -> bool:
                return leader.log.log_end_offset == 1

            await until(appended)
            verification = VerificationRequest("id", 8, 0, frozenset({("slow", 0)}), True)
            async with asyncio.timeout(60):
                errors = await brokers[ASKING].coordinators.transactions.add_partitions_manager.verify(
                    verification
                )
            assert errors == {("slow", 0): ErrorCode.INVALID_PRODUCER_ID_MAPPING}
            assert leader.high_watermark == 0, "the marker waits still"

    run(scenario())
