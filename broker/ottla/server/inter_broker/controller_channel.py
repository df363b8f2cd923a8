"""This broker's way to the controller, wherever it is: in this process, or over one kept connection.

Called by replication (AlterPartition), automatic topic creation, producer ids and controlled shutdown. The
caller retries: while there is no controller to be reached, ConnectionError is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ottla.controller.controller import Controller
from ottla.metadata.cache import MetadataCache
from ottla.protocol.messages import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.types import Message
from ottla.replication.alter_partition import downgrade, highest_version
from ottla.wire.connection import BrokerConnection

Connect = Callable[[str, int], Awaitable[BrokerConnection]]


class ControllerChannel:
    def __init__(
        self, controller: Controller, cache: MetadataCache, connect: Connect, *, timeout_s: float
    ) -> None:
        self._controller = controller
        self._cache = cache
        self._connect = connect
        self._timeout_s = timeout_s
        self._lock = asyncio.Lock()
        self._connection: BrokerConnection | None = None
        self._connected_to: tuple[int, str, int] | None = None

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        if self._controller.is_active:
            return await self._controller.alter_partition(request, highest_version(request))
        connection = await self._remote()
        version = min(connection.version_of(AlterPartitionRequest.api_key), highest_version(request))
        response: AlterPartitionResponse = await self._ask(connection, downgrade(request, version), version)
        return response

    async def create_topics(self, request: CreateTopicsRequest) -> CreateTopicsResponse:
        if self._controller.is_active:
            return await self._controller.create_topics(request)
        response: CreateTopicsResponse = await self._ask(await self._remote(), request)
        return response

    async def controlled_shutdown(self, request: ControlledShutdownRequest) -> ControlledShutdownResponse:
        if self._controller.is_active:
            return await self._controller.controlled_shutdown(request)
        response: ControlledShutdownResponse = await self._ask(await self._remote(), request)
        return response

    async def allocate_producer_ids(self, request: AllocateProducerIdsRequest) -> AllocateProducerIdsResponse:
        if self._controller.is_active:
            return await self._controller.allocate_producer_ids(request)
        response: AllocateProducerIdsResponse = await self._ask(await self._remote(), request)
        return response

    async def _ask(self, connection: BrokerConnection, request: Message, version: int | None = None) -> Any:
        try:
            return await connection.request(request, version=version, timeout_s=self._timeout_s)
        except TimeoutError:
            # Nobody may be at the other end any more; the next request finds out with a new connection.
            connection.close()
            raise

    async def _remote(self) -> BrokerConnection:
        controller_id = self._controller.controller_id
        endpoint = None if controller_id is None else self._cache.broker(controller_id)
        if endpoint is None:
            raise ConnectionError("no controller is known")
        wanted = (endpoint.id, endpoint.host, endpoint.port)
        async with self._lock:
            if self._connection is not None and (self._connection.closed or self._connected_to != wanted):
                self._connection.close()
                self._connection = None
            if self._connection is None:
                self._connection = await self._connect(endpoint.host, endpoint.port)
                self._connected_to = wanted
            return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
