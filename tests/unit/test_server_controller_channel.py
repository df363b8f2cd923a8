"""Requests to the controller: one connection, kept while it answers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.metadata.cache import MetadataCache
from ottla.protocol.messages import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    UpdateMetadataRequest,
)
from ottla.server.coordination.controller_channel import ControllerChannel
from ottla.wire.inter_broker import InterBrokerClient


class Connection:
    def __init__(self, answers: bool) -> None:
        self.answers = answers
        self.closed = False

    async def request(self, message: Any, *, version: int | None = None, timeout_s: float) -> Any:
        if not self.answers:
            async with asyncio.timeout(timeout_s):
                await asyncio.Event().wait()
        return ControlledShutdownResponse()

    def version_of(self, api_key: int) -> int:
        return 3

    def close(self) -> None:
        self.closed = True


def test_a_connection_without_responses_is_not_used_again() -> None:
    async def scenario() -> None:
        connections: list[Connection] = []

        async def connect(host: str, port: int) -> Any:
            connections.append(Connection(answers=bool(connections)))
            return connections[-1]

        cache = MetadataCache()
        broker, endpoint = (
            UpdateMetadataRequest.UpdateMetadataBroker,
            UpdateMetadataRequest.UpdateMetadataEndpoint,
        )
        at = endpoint(host="there", port=9, listener="PLAINTEXT")
        cache.update(UpdateMetadataRequest(controller_id=1, live_brokers=[broker(id=1, endpoints=[at])]))
        elsewhere: Any = SimpleNamespace(is_active=False, controller_id=1)
        channel = ControllerChannel(
            elsewhere, cache, InterBrokerClient(cache.broker, connect, request_timeout_s=0.01)
        )
        with pytest.raises(TimeoutError):
            await channel.controlled_shutdown(ControlledShutdownRequest(broker_id=0))
        assert connections[0].closed
        await channel.controlled_shutdown(ControlledShutdownRequest(broker_id=0))
        await channel.controlled_shutdown(ControlledShutdownRequest(broker_id=0))
        assert len(connections) == 2

    asyncio.run(scenario())
