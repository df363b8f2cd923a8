"""What brokers ask one another besides replicating: one connection to each, opened when it is needed.

Used for transactions (markers to the leaders of partitions, verification by coordinators) and for lost logs,
over connections of their own each. Not for requests to the controller (`controller_channel`), nor for
fetching.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from ottla.metadata.cache import BrokerEndpoint, MetadataCache
from ottla.protocol.types import Message
from ottla.wire.connection import BrokerConnection, UnsupportedApi

Connect: TypeAlias = Callable[[str, int], Awaitable[BrokerConnection]]


class Peers:
    def __init__(self, cache: MetadataCache, connect: Connect, *, timeout_s: float) -> None:
        self._cache = cache
        self._connect = connect
        self._timeout_s = timeout_s
        self._locks: dict[int, asyncio.Lock] = {}
        self._connections: dict[int, tuple[BrokerEndpoint, BrokerConnection]] = {}

    async def ask(self, broker_id: int, request: Message, *, least_version: int = 0) -> Any:
        """The broker's answer. Raises OSError, ConnectionLost, TimeoutError, and UnsupportedApi when it
        speaks no version from `least_version` on."""
        connection = await self._connection(broker_id)
        version = connection.version_of(request.api_key)
        if version < least_version:
            raise UnsupportedApi(f"broker {broker_id} serves {type(request).__name__} up to {version} only")
        try:
            return await connection.request(request, version=version, timeout_s=self._timeout_s)
        except TimeoutError:
            # Nobody may be at the other end any more; the next request finds out with a new connection.
            connection.close()
            raise

    async def _connection(self, broker_id: int) -> BrokerConnection:
        endpoint = self._cache.broker(broker_id)
        if endpoint is None:
            raise ConnectionError(f"broker {broker_id} is not there")
        async with self._locks.setdefault(broker_id, asyncio.Lock()):
            known = self._connections.get(broker_id)
            if known is not None:
                if known[0] == endpoint and not known[1].closed:
                    return known[1]
                known[1].close()
                del self._connections[broker_id]
            connection = await self._connect(endpoint.host, endpoint.port)
            self._connections[broker_id] = (endpoint, connection)
            return connection

    def close(self) -> None:
        for _, connection in self._connections.values():
            connection.close()
        self._connections.clear()
