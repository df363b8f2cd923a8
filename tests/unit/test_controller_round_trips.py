"""The controller's ZooKeeper round trips with thousands of partitions: a few for hundreds of partitions.

The store answers all outstanding requests together when no more come, as a distant one would: each such
answer is a round trip.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from ottla.controller.effects import BYTES_PER_MULTI_MAX, OPERATIONS_PER_MULTI_MAX, Effects
from ottla.metadata.memory import MemoryStore, MemoryTree
from ottla.metadata.store import Operation, OperationResult, SetData
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import AlterPartitionRequest, ControlledShutdownRequest
from tests.worlds.controller_harness import Cluster, run

T = TypeVar("T")

PER_TOPIC = 100
_QUIET_TURNS = 20
"""Turns of the loop that the asking may take from one request to the next."""


class DistantStore(MemoryStore):
    """Counts the round trips of one session, and the operations and multis in them."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.round_trips = self.operations = self.multis = 0
        self._answer: asyncio.Future[None] | None = None
        self._under_way: asyncio.Future[None] | None = None
        self._asked = 0

    async def _call(self, path: str, operation: Callable[[MemoryTree, int], T], *, writes: bool) -> T:
        self.operations += 1
        self._asked += 1
        if self._answer is None:
            self._answer = asyncio.get_running_loop().create_future()
            self._under_way = asyncio.ensure_future(self._go_and_come(self._answer))
        await asyncio.shield(self._answer)
        return await super()._call(path, operation, writes=writes)

    async def _go_and_come(self, answer: asyncio.Future[None]) -> None:
        asked = 0
        while asked < self._asked:
            asked = self._asked
            for _ in range(_QUIET_TURNS):
                await asyncio.sleep(0)
        self.round_trips += 1
        self._answer = None
        answer.set_result(None)

    async def multi(self, operations: list[Operation]) -> list[OperationResult]:  # type: ignore[override]
        self.multis += 1
        return await super().multi(operations)

    def start_counting(self) -> None:
        self.round_trips = self.operations = self.multis = 0


async def with_partitions(cluster: Cluster, count: int) -> None:
    for number in range(count // PER_TOPIC):
        placed = {p: [p % 3, (p + 1) % 3, (p + 2) % 3] for p in range(PER_TOPIC)}
        assert (await cluster.create(f"t{number}", assignments=placed)).error_code == ErrorCode.NONE


def store_of(cluster: Cluster, broker_id: int) -> DistantStore:
    store = cluster.nodes[broker_id].store
    assert isinstance(store, DistantStore)
    return store


def distant_cluster() -> Cluster:
    cluster = Cluster(3)
    cluster.make_store = DistantStore
    return cluster


def led_by(cluster: Cluster, topics: int) -> set[int | None]:
    return {cluster.leader(f"t{t}", p) for t in range(topics) for p in range(PER_TOPIC)}


@pytest.mark.parametrize("partitions", [PER_TOPIC, 2_000])
def test_a_failover_takes_as_many_round_trips_for_few_partitions_as_for_many(partitions: int) -> None:
    async def scenario() -> None:
        async with distant_cluster() as cluster:
            await with_partitions(cluster, partitions)
            for broker in (1, 2):
                store_of(cluster, broker).start_counting()
            await cluster.crash(0)
            await cluster.wait_until_quiet()
            await cluster.until(lambda: 0 not in led_by(cluster, partitions // PER_TOPIC))
            store = store_of(cluster, cluster.active.id)
            assert store.operations > partitions, "each partition's state was read"
            assert store.round_trips <= 25, "it took as many for a hundred partitions"
            assert store.multis <= 5

    run(scenario)


def test_elections_after_the_death_of_a_broker_take_few_round_trips() -> None:
    async def scenario() -> None:
        async with distant_cluster() as cluster:
            await with_partitions(cluster, 1_000)
            assert cluster.active.id == 0
            store_of(cluster, 0).start_counting()
            await cluster.crash(2)
            await cluster.wait_until_quiet()
            await cluster.until(lambda: 2 not in led_by(cluster, 10))
            assert store_of(cluster, 0).round_trips <= 10

    run(scenario)


def test_a_controlled_shutdown_takes_few_round_trips() -> None:
    async def scenario() -> None:
        async with distant_cluster() as cluster:
            await with_partitions(cluster, 1_000)
            store = store_of(cluster, 0)
            store.start_counting()
            answer = await cluster.controller.controlled_shutdown(
                ControlledShutdownRequest(broker_id=1, broker_epoch=cluster.nodes[1].epoch)
            )
            assert (answer.error_code, answer.remaining_partitions) == (ErrorCode.NONE, [])
            assert 1 not in led_by(cluster, 10)
            assert store.round_trips <= 5
            assert store.multis <= 5

    run(scenario)


def test_a_request_that_changes_many_isrs_takes_few_round_trips() -> None:
    async def scenario() -> None:
        async with distant_cluster() as cluster:
            await with_partitions(cluster, 600)
            store = store_of(cluster, 0)
            request = AlterPartitionRequest(broker_id=0, broker_epoch=cluster.nodes[0].epoch)
            for number in range(6):
                topic = cluster.controller._active.context.topics[f"t{number}"]  # type: ignore[union-attr]
                entry = AlterPartitionRequest.TopicData(topic_id=topic.topic_id)
                entry.partitions = [
                    AlterPartitionRequest.PartitionData(
                        partition_index=p,
                        leader_epoch=0,
                        partition_epoch=0,
                        new_isr_with_epochs=[AlterPartitionRequest.BrokerState(broker_id=0)],
                    )
                    for p in range(0, PER_TOPIC, 3)
                ]
                request.topics.append(entry)
            store.start_counting()
            answer = await cluster.controller.alter_partition(request)
            assert {p.error_code for topic in answer.topics for p in topic.partitions} == {ErrorCode.NONE}
            assert sum(len(topic.partitions) for topic in answer.topics) > 200
            assert store.multis == 1
            assert store.round_trips <= 5, "its own, and what the watches on new topics ask meanwhile"

    run(scenario)


def test_writes_keep_their_order_and_no_multi_grows_too_big() -> None:
    effects = Effects()
    big = b"x" * (BYTES_PER_MULTI_MAX // 3)
    for number in range(3_000):
        effects.write(SetData(f"/{number}", b""), SetData(f"/{number}/more", b""))
    for number in range(3):
        effects.write(SetData(f"/big/{number}", big))
    multis = effects.multis()
    assert [op.path for multi in multis for op in multi] == [op.path for w in effects.writes for op in w]
    assert max(len(multi) for multi in multis) <= OPERATIONS_PER_MULTI_MAX
    assert sum(any(op.path.startswith("/big") for op in multi) for multi in multis) == 2
    together = [{op.path.split("/")[1] for op in multi} for multi in multis]
    assert all(together[n].isdisjoint(together[n + 1] - {"big"}) for n in range(len(together) - 1))
    assert len(multis) < 10
