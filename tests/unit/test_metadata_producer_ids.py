"""Producer ids: blocks do not overlap, and a broker assigns the ids of its block."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ottla.metadata import znodes
from ottla.metadata.memory import MemoryStore, MemoryTree
from ottla.metadata.producer_ids import (
    BLOCK_SIZE,
    NoBlock,
    ProducerIdBlock,
    ProducerIds,
    ProducerIdsExhausted,
    allocate_block,
)
from ottla.metadata.store import Check, StoreConflict

WAIT_S = 60.0


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 120))


async def store_of(tree: MemoryTree) -> MemoryStore:
    store = MemoryStore(tree)
    await store.connect()
    return store


class Blocks:
    """A fake controller that answers on request."""

    def __init__(self, *, answers: bool = True) -> None:
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.broken = False
        if answers:
            self.may_answer.set()

    async def ask(self) -> ProducerIdBlock:
        self.asked += 1
        if self.broken:
            raise ConnectionError("no controller is known")
        first = (self.asked - 1) * 10
        await self.may_answer.wait()
        return ProducerIdBlock(first, 10)


def test_blocks_taken_at_once_by_several_brokers_do_not_overlap() -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        stores = [await store_of(tree) for _ in range(3)]
        taken = await asyncio.gather(
            *(allocate_block(store, broker) for broker, store in enumerate(stores) for _ in range(5))
        )
        assert sorted(block.first for block in taken) == [n * BLOCK_SIZE for n in range(15)]

    run(scenario)


def test_blocks_continue_after_those_of_kafka() -> None:
    async def scenario() -> None:
        store = await store_of(MemoryTree())
        await store.create(znodes.PRODUCER_ID_BLOCK)  # as a broker leaves it at start
        assert await allocate_block(store, 1) == ProducerIdBlock(0, 1000)
        await store.set(
            znodes.PRODUCER_ID_BLOCK,
            b'{"version":1,"broker":0,"block_start":"4000","block_end":"4999"}',
        )
        assert await allocate_block(store, 1) == ProducerIdBlock(5000, 1000)
        last = 2**63 - 1
        await store.set(znodes.PRODUCER_ID_BLOCK, znodes.encode_producer_id_block(0, last - 999, last))
        with pytest.raises(ProducerIdsExhausted):
            await allocate_block(store, 1)

    run(scenario)


def test_a_controller_that_has_been_replaced_takes_no_block() -> None:
    async def scenario() -> None:
        store = await store_of(MemoryTree())
        await store.create(znodes.CONTROLLER_EPOCH, b"1")
        assert await allocate_block(store, 1, checks=[Check(znodes.CONTROLLER_EPOCH, 0)])
        await store.set(znodes.CONTROLLER_EPOCH, b"2")
        with pytest.raises(StoreConflict):
            await allocate_block(store, 1, checks=[Check(znodes.CONTROLLER_EPOCH, 0)])
        assert await allocate_block(store, 1, checks=[Check(znodes.CONTROLLER_EPOCH, 1)]) == (1000, 1000)

    run(scenario)


def test_a_broker_asks_for_its_next_block_before_it_needs_it() -> None:
    async def scenario() -> None:
        blocks = Blocks()
        ids = ProducerIds(blocks.ask)
        assert [await ids.next(WAIT_S) for _ in range(9)] == list(range(9))
        assert blocks.asked == 1
        assert await ids.next(WAIT_S) == 9
        blocks.may_answer.clear()
        await asyncio.sleep(0)  # the task that asks takes its turn
        assert blocks.asked == 2
        blocks.may_answer.set()
        assert [await ids.next(WAIT_S) for _ in range(3)] == [10, 11, 12]
        assert blocks.asked == 2

    run(scenario)


def test_concurrent_waiters_get_distinct_ids() -> None:
    async def scenario() -> None:
        blocks = Blocks(answers=False)
        ids = ProducerIds(blocks.ask)
        waiting = [asyncio.ensure_future(ids.next(WAIT_S)) for _ in range(25)]
        await asyncio.sleep(0)
        blocks.may_answer.set()
        assert sorted(await asyncio.gather(*waiting)) == list(range(25))

    run(scenario)


def test_ids_wait_for_a_controller() -> None:
    async def scenario() -> None:
        blocks = Blocks()
        blocks.broken = True
        ids = ProducerIds(blocks.ask)
        with pytest.raises(NoBlock):
            await ids.next(WAIT_S)
        blocks.broken = False
        assert await ids.next(WAIT_S) == 10

    run(scenario)


def test_a_cancelled_waiter_leaves_its_id_to_the_next() -> None:
    async def scenario() -> None:
        blocks = Blocks(answers=False)
        ids = ProducerIds(blocks.ask)
        with pytest.raises(NoBlock):
            await ids.next(0.0)
        blocks.may_answer.set()
        assert await ids.next(WAIT_S) == 0
        assert blocks.asked == 1

    run(scenario)


def test_a_block_that_comes_before_the_last_one_is_not_used() -> None:
    async def scenario() -> None:
        async def ask() -> ProducerIdBlock:
            return ProducerIdBlock(0, 1)

        ids = ProducerIds(ask)
        assert await ids.next(WAIT_S) == 0
        with pytest.raises(NoBlock):
            await ids.next(WAIT_S)

    run(scenario)
