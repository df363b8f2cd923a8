"""A broker's registration: its node, its epoch, and who may have the id."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from ottla.metadata import znodes
from ottla.metadata.memory import MemoryStore, MemoryTree
from ottla.metadata.registration import AlreadyRegistered, BrokerRegistration, cluster_id, new_cluster_id
from ottla.metadata.znodes import Endpoint
from tests.worlds.clocks import run_in_virtual_time

ENDPOINTS = [Endpoint("PLAINTEXT", "host", 9092)]


def run(scenario: Callable[[MemoryTree], Coroutine[Any, Any, None]]) -> None:
    run_in_virtual_time(asyncio.wait_for(scenario(MemoryTree()), 120))


async def registration(tree: MemoryTree, broker_id: int = 1, wait_s: float = 10) -> BrokerRegistration:
    store = MemoryStore(tree)
    await store.connect()
    return BrokerRegistration(store, broker_id, ENDPOINTS, rack="r", clock=lambda: 123, wait_s=wait_s)


def test_registering_makes_the_tree_and_the_brokers_node() -> None:
    async def scenario(tree: MemoryTree) -> None:
        broker = await registration(tree)
        epoch = await broker.register()
        node = tree.find("/brokers/ids/1")
        assert node is not None
        assert node.czxid == epoch == broker.broker_epoch
        assert node.ephemeral_owner != 0
        value = json.loads(node.data)
        assert (value["endpoints"], value["rack"], value["timestamp"]) == (
            ["PLAINTEXT://host:9092"],
            "r",
            "123",
        )
        assert all(tree.find(path) is not None for path in znodes.PERSISTENT_PATHS)
        other = await registration(tree, 2)
        await other.register()

    run(scenario)


def test_brokers_share_the_cluster_id_that_the_first_one_made() -> None:
    async def scenario(tree: MemoryTree) -> None:
        ids = set()
        for seed in (1, 2):
            store = MemoryStore(tree)
            await store.connect()
            ids.add(await cluster_id(store, Random(seed)))
        assert len(ids) == 1

    run(scenario)


def test_an_id_in_use_by_a_live_broker_is_refused() -> None:
    async def scenario(tree: MemoryTree) -> None:
        first = await registration(tree)
        epoch = await first.register()
        second = await registration(tree, wait_s=0.01)
        with pytest.raises(AlreadyRegistered, match=r"broker id 1 .*broker\.id"):
            await second.register()
        node = tree.find("/brokers/ids/1")
        assert node is not None
        assert node.czxid == epoch

    run(scenario)


def test_a_broker_that_restarts_waits_for_the_end_of_its_earlier_session() -> None:
    async def scenario(tree: MemoryTree) -> None:
        before = await registration(tree)
        old_epoch = await before.register()
        again = await registration(tree)
        waiting = asyncio.ensure_future(again.register())
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.done()
        await before._store.close()
        assert await waiting > old_epoch

    run(scenario)


def test_after_a_lost_session_the_broker_has_a_new_epoch() -> None:
    async def scenario(tree: MemoryTree) -> None:
        broker = await registration(tree)
        first = await broker.register()
        assert await broker.register() == first, "registering twice in one session changes nothing"
        store = broker._store
        assert isinstance(store, MemoryStore)
        store.expire()
        assert await broker.register() > first
        await broker.unregister()
        assert tree.find("/brokers/ids/1") is None
        await broker.unregister()

    run(scenario)


def test_cluster_ids_look_like_kafkas() -> None:
    random = Random(1)
    for _ in range(200):
        made = new_cluster_id(random)
        assert len(made) == 22
        assert not made.startswith("-")


def test_after_a_crash_failover_happens_before_the_broker_registers_again() -> None:
    async def scenario(tree: MemoryTree) -> None:
        first = await registration(tree)
        await first.register()
        seen: list[bool] = []

        async def after_crash() -> None:
            seen.append(tree.find("/brokers/ids/1") is None)

        store = MemoryStore(tree)
        await store.connect()
        second = BrokerRegistration(store, 1, ENDPOINTS, clock=lambda: 1, wait_s=10, after_crash=after_crash)
        coming_back = asyncio.create_task(second.register())
        done, _ = await asyncio.wait({coming_back}, timeout=5)
        assert not done, "the id is still another's"
        await first.unregister()
        await coming_back
        assert seen == [True], "asked once, while nobody had the id"

    run(scenario)
