"""Requests of this broker to the controller, whichever broker it is: a call if it is in this process, else a
request over one connection that is kept open.

Used by replication (AlterPartition), automatic topic creation, producer ids and controlled shutdown. The
caller retries: while no controller can be reached, ConnectionError is raised.
"""

from __future__ import annotations

from typing import Any

from ottla.controller.controller import Controller
from ottla.metadata.cache import BrokerEndpoint, MetadataCache
from ottla.protocol import messages as m
from ottla.protocol.types import Message
from ottla.replication.alter_partition import downgrade, highest_version
from ottla.wire.inter_broker import InterBrokerClient


class ControllerChannel:
    """See the module. Methods return the response, and raise what `InterBrokerConnection.request` raises."""

    def __init__(self, controller: Controller, cache: MetadataCache, inter_broker: InterBrokerClient) -> None:
        self._controller = controller
        self._cache = cache
        self._connection = inter_broker.connection(self._find_controller)
        self._timeout_s = inter_broker.request_timeout_s

    def _find_controller(self) -> BrokerEndpoint:
        controller_id = self._controller.controller_id
        node = None if controller_id is None else self._cache.broker(controller_id)
        if node is None:
            raise ConnectionError("no controller is known")
        return node

    async def alter_partition(self, request: m.AlterPartitionRequest) -> m.AlterPartitionResponse:
        version = highest_version(request)
        if self._controller.is_active:
            return await self._controller.alter_partition(request, version)
        connection = await self._connection.open()
        version = min(connection.version_of(m.AlterPartitionRequest.api_key), version)
        response: m.AlterPartitionResponse = await self._request(downgrade(request, version), version)
        return response

    async def create_topics(self, request: m.CreateTopicsRequest) -> m.CreateTopicsResponse:
        if self._controller.is_active:
            return await self._controller.create_topics(request)
        response: m.CreateTopicsResponse = await self._request(request)
        return response

    async def controlled_shutdown(self, request: m.ControlledShutdownRequest) -> m.ControlledShutdownResponse:
        if self._controller.is_active:
            return await self._controller.controlled_shutdown(request)
        response: m.ControlledShutdownResponse = await self._request(request)
        return response

    async def allocate_producer_ids(
        self, request: m.AllocateProducerIdsRequest
    ) -> m.AllocateProducerIdsResponse:
        if self._controller.is_active:
            return await self._controller.allocate_producer_ids(request)
        response: m.AllocateProducerIdsResponse = await self._request(request)
        return response

    async def _request(self, request: Message, version: int | None = None) -> Any:
        return await self._connection.request(request, version=version, timeout_s=self._timeout_s)

    def close(self) -> None:
        self._connection.close()
