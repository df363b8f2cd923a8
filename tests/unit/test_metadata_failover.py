"""A broker that restarts before its former session has ended waits for failover."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ottla.metadata import znodes
from ottla.metadata.memory import MemoryStore, MemoryTree
from ottla.metadata.registration import ensure_tree
from ottla.metadata.unclean_restart import can_fail_over, wait_for_failover
from ottla.metadata.znodes import BrokerInfo, Endpoint, PartitionState
from tests.worlds.clocks import run_in_virtual_time


def state(leader: int, isr: list[int]) -> PartitionState:
    return PartitionState(leader, 0, tuple(isr), 1)


def test_a_partition_can_fail_over_only_to_a_live_replica_in_sync() -> None:
    assert can_fail_over([state(1, [1, 2])], 1, {2, 3})
    assert not can_fail_over([state(1, [1, 2])], 1, {3})
    assert not can_fail_over([state(1, [1])], 1, {2})
    # As a follower it could be elected next, with what a crash of the machine has left of its log.
    assert can_fail_over([state(2, [1, 2])], 1, {2})
    assert not can_fail_over([state(2, [2, 3])], 1, {2, 3})


def run(scenario: Callable[[MemoryTree, MemoryStore], Awaitable[None]]) -> None:
    async def with_store() -> None:
        tree = MemoryTree()
        store = MemoryStore(tree)
        await store.connect()
        await ensure_tree(store)
        await asyncio.wait_for(scenario(tree, store), 90)

    run_in_virtual_time(with_store())


async def add_broker(store: MemoryStore, broker_id: int) -> None:
    info = BrokerInfo(broker_id, (Endpoint("PLAINTEXT", "h", 1),), None, 0)
    await store.create(znodes.broker_path(broker_id), znodes.encode_broker(info), ephemeral=True)


async def led_by(store: MemoryStore, leader: int, isr: tuple[int, ...] = (1, 2)) -> None:
    path = znodes.state_path("t", 0)
    data = znodes.encode_partition_state(state(leader, list(isr)))
    if await store.exists(path) is None:
        await store.create(path, data, make_parents=True)
    else:
        await store.set(path, data, -1)


def test_the_broker_waits_until_it_is_out_of_the_isr() -> None:
    async def scenario(tree: MemoryTree, store: MemoryStore) -> None:
        await add_broker(store, 2)
        await led_by(store, 1)
        waiting = asyncio.create_task(wait_for_failover(store, 1, [("t", 0)], session_timeout_s=10))
        await store.create(znodes.CONTROLLER, znodes.encode_controller(2, 0), ephemeral=True)
        done, _ = await asyncio.wait({waiting}, timeout=3)
        assert not done
        await led_by(store, 2)
        done, _ = await asyncio.wait({waiting}, timeout=3)
        assert not done, "it is still in sync, and would be elected next"
        await led_by(store, 2, isr=(2,))
        assert await waiting

    run(scenario)


def test_the_broker_waits_for_a_controller_even_without_leaderships() -> None:
    async def scenario(tree: MemoryTree, store: MemoryStore) -> None:
        await add_broker(store, 2)
        assert not await wait_for_failover(store, 1, [], session_timeout_s=0)
        await store.create(znodes.CONTROLLER, znodes.encode_controller(2, 0), ephemeral=True)
        assert await wait_for_failover(store, 1, [], session_timeout_s=0)

    run(scenario)


def test_a_topic_that_is_being_deleted_does_not_count() -> None:
    async def scenario(tree: MemoryTree, store: MemoryStore) -> None:
        await add_broker(store, 2)
        await led_by(store, 1)
        await store.create(znodes.CONTROLLER, znodes.encode_controller(2, 0), ephemeral=True)
        await store.create(f"{znodes.DELETE_TOPICS}/t")
        assert await wait_for_failover(store, 1, [("t", 0)], session_timeout_s=10)

    run(scenario)


def test_a_single_broker_does_not_wait() -> None:
    async def scenario(tree: MemoryTree, store: MemoryStore) -> None:
        await led_by(store, 1)
        assert await wait_for_failover(store, 1, [("t", 0)], session_timeout_s=10)

    run(scenario)


def test_the_broker_registers_when_no_failover_happens_in_time() -> None:
    async def scenario(tree: MemoryTree, store: MemoryStore) -> None:
        await add_broker(store, 2)
        await led_by(store, 1)
        await store.create(znodes.CONTROLLER, znodes.encode_controller(2, 0), ephemeral=True)
        assert not await wait_for_failover(store, 1, [("t", 0)], session_timeout_s=0)

    run(scenario)
