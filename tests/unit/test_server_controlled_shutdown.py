"""Controlled shutdown with a controller that never answers."""

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
from ottla.protocol.messages import UpdateMetadataRequest
from ottla.server.assembly import controlled_shutdown
from ottla.server.assembly.controlled_shutdown import ControlledShutdown
from ottla.server.coordination.controller_channel import ControllerChannel
from ottla.wire.inter_broker import InterBrokerClient


class Silence:
    """A connection to a stopped broker: no error and no response."""

    closed = False

    async def request(self, message: Any, *, version: int | None = None, timeout_s: float) -> Any:
        await asyncio.Event().wait()

    def version_of(self, api_key: int) -> int:
        return 3

    def close(self) -> None:
        self.closed = True


def test_the_wait_ends_when_the_metadata_store_is_gone_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controlled_shutdown, "WITHOUT_STORE_S", 0.02)

    async def scenario() -> None:
        tree = MemoryTree()
        store = MemoryStore(tree)
        await store.connect()
        await ensure_path(store, f"{znodes.BROKER_IDS}/1")
        asked = asyncio.Event()

        async def connect(host: str, port: int) -> Any:
            asked.set()
            return Silence()

        cache = MetadataCache()
        broker, endpoint = (
            UpdateMetadataRequest.UpdateMetadataBroker,
            UpdateMetadataRequest.UpdateMetadataEndpoint,
        )
        at = endpoint(host="there", port=9, listener="PLAINTEXT")
        cache.update(UpdateMetadataRequest(controller_id=1, live_brokers=[broker(id=1, endpoints=[at])]))
        elsewhere: Any = SimpleNamespace(is_active=False, controller_id=1)
        channel = ControllerChannel(
            elsewhere, cache, InterBrokerClient(cache.broker, connect, request_timeout_s=3600)
        )
        config = BrokerConfig.from_properties(
            {"broker.id": "0", "log.dirs": "unused", "zookeeper.connect": "unused"}
        )
        leaving = asyncio.create_task(ControlledShutdown(config, channel, elsewhere, store).run(1))
        await asked.wait()
        done, _ = await asyncio.wait({leaving}, timeout=0.2)
        assert not done, "while the store answers, the controller may yet answer"
        tree.available = False
        async with asyncio.timeout(90):
            await leaving

    asyncio.run(scenario())
