"""Requests to the controller over one connection, and controlled shutdown without a response."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.metadata import znodes
from ottla.metadata.cache import MetadataCache
from ottla.metadata.config import BrokerConfig
from ottla.metadata.memory import MemoryStore, MemoryTree
from ottla.metadata.store import ensure_path
from ottla.protocol.messages import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    UpdateMetadataRequest,
)
from ottla.server.assembly.controlled_shutdown import WITHOUT_STORE_S, ControlledShutdown
from ottla.server.coordination.controller_channel import ControllerChannel
from ottla.wire.inter_broker import InterBrokerClient
from tests.worlds.clocks import run_in_virtual_time

NOT_ACTIVE: Any = SimpleNamespace(is_active=False, controller_id=1)


class FakeConnection:
    """Without responses it behaves as one to a stopped broker: no error and no response."""

    def __init__(self, *, responds: bool) -> None:
        self.responds = responds
        self.requested = asyncio.Event()
        self.closed = False

    async def request(self, message: Any, *, version: int | None = None, timeout_s: float) -> Any:
        self.requested.set()
        if not self.responds:
            async with asyncio.timeout(timeout_s):
                await asyncio.Event().wait()
        return ControlledShutdownResponse()

    def version_of(self, api_key: int) -> int:
        return 3

    def close(self) -> None:
        self.closed = True


def make_channel(connections: list[FakeConnection], request_timeout_s: float) -> ControllerChannel:
    """A channel to controller 1; its connections are taken from the list."""
    unused = iter(connections)

    async def connect(host: str, port: int) -> Any:
        return next(unused)

    cache = MetadataCache()
    broker = UpdateMetadataRequest.UpdateMetadataBroker
    at = UpdateMetadataRequest.UpdateMetadataEndpoint(host="there", port=9, listener="PLAINTEXT")
    cache.update(UpdateMetadataRequest(controller_id=1, live_brokers=[broker(id=1, endpoints=[at])]))
    client = InterBrokerClient(cache.broker, connect, request_timeout_s=request_timeout_s)
    return ControllerChannel(NOT_ACTIVE, cache, client)


def test_a_connection_without_responses_is_not_used_again() -> None:
    async def scenario() -> None:
        connections = [FakeConnection(responds=False), FakeConnection(responds=True)]
        channel = make_channel(connections, 0.01)
        with pytest.raises(TimeoutError):
            await channel.controlled_shutdown(ControlledShutdownRequest(broker_id=0))
        assert connections[0].closed
        await channel.controlled_shutdown(ControlledShutdownRequest(broker_id=0))
        await channel.controlled_shutdown(ControlledShutdownRequest(broker_id=0))

    run_in_virtual_time(scenario())


def test_controlled_shutdown_ends_when_the_metadata_store_is_unavailable_too() -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        store = MemoryStore(tree)
        await store.connect()
        await ensure_path(store, f"{znodes.BROKER_IDS}/1")
        connection = FakeConnection(responds=False)
        channel = make_channel([connection], 3600)
        config = BrokerConfig.from_properties(
            {"broker.id": "0", "log.dirs": "unused", "zookeeper.connect": "unused"}
        )
        leaving = asyncio.create_task(ControlledShutdown(config, channel, NOT_ACTIVE, store).run(1))
        await connection.requested.wait()
        done, _ = await asyncio.wait({leaving}, timeout=10 * WITHOUT_STORE_S)
        assert not done, "while the store is available, the controller may still respond"
        tree.available = False
        async with asyncio.timeout(90):
            await leaving

    run_in_virtual_time(scenario())
