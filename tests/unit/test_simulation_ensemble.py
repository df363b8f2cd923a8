"""ZooKeeper in the simulation: sessions end by silence, lost writes may have happened, watches go on.

The operations themselves have the contract test of the metadata store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from random import Random

import pytest

from ottla.metadata.store import StoreUnavailable
from ottla.simulation.ensemble import HOST, Ensemble, EnsembleStore
from ottla.simulation.loop import Process, SimulatedLoop
from ottla.simulation.network import SimulatedNetwork

TIMEOUT_S = 6.0
Scenario = Callable[["World"], Awaitable[None]]


class World:
    """An ensemble, and clients that are processes."""

    def __init__(self) -> None:
        self.loop = SimulatedLoop()
        self.network = SimulatedNetwork(self.loop, Random(1))
        self.ensemble = Ensemble(self.loop, self.network, Random(2), lambda: 0)

    async def client(self, name: str) -> tuple[Process, EnsembleStore]:
        process = Process(self.loop, name)
        store = EnsembleStore(self.ensemble, name, int(TIMEOUT_S * 1000))
        await process.create_task(store.connect())
        return process, store

    def data(self, path: str) -> bytes | None:
        node = self.ensemble.tree.find(path)
        return None if node is None else node.data


def run(scenario: Scenario) -> None:
    world = World()

    async def main() -> None:
        await scenario(world)

    with closing(world.loop):
        world.loop.run(main())


def test_a_session_lives_as_long_as_its_client() -> None:
    async def scenario(world: World) -> None:
        process, store = await world.client("a")
        await store.create("/me", ephemeral=True)
        await asyncio.sleep(10 * TIMEOUT_S)
        assert world.data("/me") is not None
        process.kill()
        await asyncio.sleep(TIMEOUT_S / 2)
        assert world.data("/me") is not None
        await asyncio.sleep(TIMEOUT_S)
        assert world.data("/me") is None

    run(scenario)


def test_a_paused_client_learns_after_it_resumes_that_its_session_has_ended() -> None:
    async def scenario(world: World) -> None:
        process, store = await world.client("a")
        expired: list[float] = []
        store.on_session_expired(lambda: expired.append(world.loop.time()))
        first = store.session_id
        process.pause()
        await asyncio.sleep(2 * TIMEOUT_S)
        assert first not in world.ensemble.sessions
        assert expired == []
        process.resume()
        await asyncio.sleep(1)
        assert len(expired) == 1
        assert store.session_id not in (0, first)

    run(scenario)


def test_a_client_that_is_cut_off_shortly_keeps_its_session() -> None:
    async def scenario(world: World) -> None:
        _, store = await world.client("a")
        first = store.session_id
        world.network.block("a", HOST)
        writing = asyncio.ensure_future(store.create("/late"))
        await asyncio.sleep(TIMEOUT_S / 2)
        assert world.data("/late") is None
        world.network.heal()
        await asyncio.sleep(TIMEOUT_S)
        assert store.session_id == first
        assert writing.done()
        assert await store.exists("/none") is None

    run(scenario)


def test_a_write_whose_answer_is_lost_has_happened_and_is_reported_as_unknown() -> None:
    async def scenario(world: World) -> None:
        _, store = await world.client("a")
        world.ensemble.break_after_rate = 1.0
        with pytest.raises(StoreUnavailable):
            await store.create("/after")
        world.ensemble.break_after_rate = 0.0
        world.ensemble.break_before_rate = 1.0
        with pytest.raises(StoreUnavailable):
            await store.create("/before")
        world.ensemble.break_before_rate = 0.0
        assert await store.exists("/after") is not None
        assert await store.exists("/before") is None

    run(scenario)


def test_a_watch_is_called_for_what_changed_while_its_client_was_disconnected() -> None:
    async def scenario(world: World) -> None:
        _, watcher = await world.client("a")
        _, writer = await world.client("b")
        called: list[float] = []
        await watcher.watch_data("/node", lambda: called.append(world.loop.time()))
        await writer.create("/node", b"1")
        await asyncio.sleep(0.1)
        assert len(called) == 1
        session = world.ensemble.sessions[watcher.session_id]
        assert session.connection is not None
        world.network.block(HOST, "a")
        world.ensemble.break_connection(session.connection)
        await writer.set("/node", b"2")
        await asyncio.sleep(1)
        assert len(called) == 1
        world.network.heal()
        await asyncio.sleep(TIMEOUT_S / 2)
        assert len(called) >= 2
        found = await watcher.get("/node")
        assert found is not None
        assert found[0] == b"2"
        called.clear()
        await writer.set("/node", b"3")
        await asyncio.sleep(0.1)
        assert len(called) == 1

    run(scenario)


def test_sessions_survive_an_outage_and_nothing_is_served_meanwhile() -> None:
    async def scenario(world: World) -> None:
        _, store = await world.client("a")
        await store.create("/me", ephemeral=True)
        first = store.session_id
        world.ensemble.set_available(False)
        await asyncio.sleep(0.1)
        with pytest.raises(StoreUnavailable):
            await store.set("/me", b"x")
        await asyncio.sleep(5 * TIMEOUT_S)
        world.ensemble.set_available(True)
        await store.set("/me", b"y")
        assert store.session_id == first
        assert world.data("/me") == b"y"

    run(scenario)


def test_a_client_that_reaches_nobody_is_told_so() -> None:
    async def scenario(world: World) -> None:
        world.ensemble.set_available(False)
        with pytest.raises(StoreUnavailable):
            await world.client("a")
        assert world.loop.time() == pytest.approx(TIMEOUT_S)

    run(scenario)
