"""Requests between brokers and the controller: LeaderAndIsr 0 to 7, StopReplica 0 to 4, UpdateMetadata 0 to
8, ControlledShutdown 0 to 3, AlterPartition 0 to 3.

Behaviour: the controller's requests have the broker epoch of this broker's registration. An older one was
meant for an earlier registration: STALE_BROKER_EPOCH. A controller epoch older than the last seen is
STALE_CONTROLLER_EPOCH. ControlledShutdown and AlterPartition are for the controller; any other broker
responds NOT_CONTROLLER.

The controller resends a request that timed out, and the first copy may still arrive. Epochs make such a
duplicate harmless unless its topic was deleted and created again, because the new topic starts at leader
epoch 0. So requests that create or delete a replica, or have another topic id than this broker, are checked
against the metadata store first (`metadata.stored_topics`). The controller's requests are applied one at a
time, in the order of arrival: under the lock, the store includes the effects of every earlier request.

Left out on purpose: the KRaft fields (type, isKRaftController), which have no meaning in ZooKeeper mode, are
ignored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from ottla.controller.controller import Controller
from ottla.metadata.cache import MetadataCache
from ottla.metadata.store import StoreError, StoreUnavailable
from ottla.metadata.stored_topics import StoredTopics
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.types import ZERO_UUID
from ottla.replication.manager import ReplicaManager
from ottla.replication.requests import partition_states
from ottla.server.dispatch.dispatcher import Request, Route
from ottla.server.logs.lost_logs import LostLogDetector

log = logging.getLogger(__name__)

UNKNOWN_EPOCH = -1
STORE_RETRY_S: Final = 1.0
TOPIC_IDS_FROM = 5
"""The first version of LeaderAndIsr whose response has topic ids."""
PARTITION_STATES_FROM = 3
"""The first version of StopReplica with leader epochs of partitions."""


class InterBrokerRequestsHandler:
    """See the module."""

    def __init__(
        self,
        replicas: ReplicaManager,
        cache: MetadataCache,
        controller: Controller,
        broker_epoch: Callable[[], int],
        load_topic_configs: Callable[[list[str]], Awaitable[None]],
        read_topics: Callable[[Collection[str]], Awaitable[StoredTopics]],
        lost_logs: LostLogDetector,
        on_topics_deleted: Callable[[set[str]], None],
    ) -> None:
        """`read_topics` reads topics from the metadata store."""
        self._replicas = replicas
        self._cache = cache
        self._controller = controller
        self._broker_epoch = broker_epoch
        self._load_topic_configs = load_topic_configs
        self._read_topics = read_topics
        self._lost_logs = lost_logs
        self._one_at_a_time = asyncio.Lock()
        self._on_topics_deleted = on_topics_deleted

    def routes(self) -> list[Route]:
        return [
            Route(m.LeaderAndIsrRequest, self.leader_and_isr, _leader_and_isr_error),
            Route(m.StopReplicaRequest, self.stop_replica, _stop_replica_error),
            Route(m.UpdateMetadataRequest, self.update_metadata, _update_metadata_error),
            Route(m.ControlledShutdownRequest, self.controlled_shutdown, _controlled_shutdown_error),
            Route(m.AlterPartitionRequest, self.alter_partition, _alter_partition_error),
        ]

    def _fencing_error(
        self, message: m.LeaderAndIsrRequest | m.StopReplicaRequest | m.UpdateMetadataRequest
    ) -> ErrorCode:
        """The error of a request for an earlier registration of this broker, or of an old controller, or
        NONE."""
        if message.broker_epoch != UNKNOWN_EPOCH and message.broker_epoch < self._broker_epoch():
            return ErrorCode.STALE_BROKER_EPOCH
        if self._replicas.is_stale_controller(message.controller_epoch):
            log.warning(
                "Rejecting a request of controller %d with the stale epoch %d",
                message.controller_id,
                message.controller_epoch,
            )
            return ErrorCode.STALE_CONTROLLER_EPOCH
        return ErrorCode.NONE

    async def leader_and_isr(self, request: Request) -> m.LeaderAndIsrResponse:
        message = request.decode(m.LeaderAndIsrRequest)
        async with self._one_at_a_time:
            if error := self._fencing_error(message):
                return m.LeaderAndIsrResponse(error_code=error)
            stored = await self._stored(self._replicas.states_to_verify(message, request.version), request)
            # A log is created with its topic's settings, which may not be loaded yet.
            new = sorted(topic for topic, found in stored.items() if found is not None)
            if new:
                try:
                    await self._load_topic_configs(new)
                except StoreError as e:
                    log.warning("Cannot read the settings of %s, using defaults: %s", ", ".join(new), e)
            missing = self._replicas.missing_logs(message, request.version, stored)
            lost = await self._lost_logs.find(missing)
            response = self._replicas.apply_leader_and_isr(message, request.version, stored, lost)
            self._lost_logs.notify_later(lost)
            return response

    async def stop_replica(self, request: Request) -> m.StopReplicaResponse:
        message = request.decode(m.StopReplicaRequest)
        async with self._one_at_a_time:
            if error := self._fencing_error(message):
                return m.StopReplicaResponse(error_code=error)
            stored = await self._stored(self._replicas.stops_to_verify(message, request.version), request)
            return self._replicas.apply_stop_replica(message, request.version, stored)

    async def _stored(self, topics: Collection[str], request: Request) -> StoredTopics:
        """Read the topics from the store; retry while it is unavailable and the controller waits for the
        response. Raises KafkaError when the controller has closed the connection."""
        names = sorted(topics)
        while True:
            try:
                return await self._read_topics(names)
            except StoreUnavailable as e:
                log.warning("Waiting for the metadata store to verify %s: %s", ", ".join(names), e)
                await asyncio.sleep(STORE_RETRY_S)
                if request.abandoned:
                    raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the controller has given up") from e

    async def update_metadata(self, request: Request) -> m.UpdateMetadataResponse:
        message = request.decode(m.UpdateMetadataRequest)
        async with self._one_at_a_time:
            if error := self._fencing_error(message):
                return m.UpdateMetadataResponse(error_code=error)
            self._replicas.update_controller_epoch(message.controller_epoch)
            await self._remove_stale_topics(message, request)
            removed = self._cache.update(message)
            deleted = {topic for topic, _ in removed if self._cache.partitions(topic) is None}
            if deleted:
                self._on_topics_deleted(deleted)
            return m.UpdateMetadataResponse()

    async def _remove_stale_topics(self, message: m.UpdateMetadataRequest, request: Request) -> None:
        """Remove from a late duplicate the topics that have been deleted and created again since."""
        mismatched = {
            topic.topic_name
            for topic in message.topic_states
            if topic.topic_id != ZERO_UUID
            and self._cache.topic_id(topic.topic_name) not in (None, topic.topic_id)
        }
        if not mismatched:
            return
        stored = await self._stored(mismatched, request)
        stale = {
            name
            for name in mismatched
            if (found := stored.get(name)) is not None and found.node.topic_id == self._cache.topic_id(name)
        }
        if stale:
            log.warning("Ignoring the metadata of deleted topics %s", ", ".join(sorted(stale)))
            message.topic_states = [t for t in message.topic_states if t.topic_name not in stale]

    async def controlled_shutdown(self, request: Request) -> m.ControlledShutdownResponse:
        message = request.decode(m.ControlledShutdownRequest)
        return await self._controller.controlled_shutdown(message)

    async def alter_partition(self, request: Request) -> m.AlterPartitionResponse:
        return await self._controller.alter_partition(
            request.decode(m.AlterPartitionRequest), request.version
        )


def _leader_and_isr_error(
    message: m.LeaderAndIsrRequest, version: int, code: ErrorCode, detail: str | None
) -> m.LeaderAndIsrResponse:
    row = m.LeaderAndIsrResponse.LeaderAndIsrPartitionError
    response = m.LeaderAndIsrResponse(error_code=code)
    if version >= TOPIC_IDS_FROM:
        response.topics = [
            m.LeaderAndIsrResponse.LeaderAndIsrTopicError(
                topic_id=topic.topic_id,
                partition_errors=[
                    row(partition_index=p.partition_index, error_code=code) for p in topic.partition_states
                ],
            )
            for topic in message.topic_states
        ]
    else:
        response.partition_errors = [
            row(topic_name=state.topic, partition_index=state.partition, error_code=code)
            for state in partition_states(message, version)
        ]
    return response


def _stop_replica_error(
    message: m.StopReplicaRequest, version: int, code: ErrorCode, detail: str | None
) -> m.StopReplicaResponse:
    if version == 0:
        keys = [(each.topic_name, each.partition_index) for each in message.ungrouped_partitions]
    elif version < PARTITION_STATES_FROM:
        keys = [(topic.name, index) for topic in message.topics for index in topic.partition_indexes]
    else:
        keys = [(t.topic_name, p.partition_index) for t in message.topic_states for p in t.partition_states]
    row = m.StopReplicaResponse.StopReplicaPartitionError
    return m.StopReplicaResponse(
        error_code=code,
        partition_errors=[row(topic_name=t, partition_index=p, error_code=code) for t, p in keys],
    )


def _update_metadata_error(
    message: m.UpdateMetadataRequest, version: int, code: ErrorCode, detail: str | None
) -> m.UpdateMetadataResponse:
    return m.UpdateMetadataResponse(error_code=code)


def _controlled_shutdown_error(
    message: m.ControlledShutdownRequest, version: int, code: ErrorCode, detail: str | None
) -> m.ControlledShutdownResponse:
    return m.ControlledShutdownResponse(error_code=code)


def _alter_partition_error(
    message: m.AlterPartitionRequest, version: int, code: ErrorCode, detail: str | None
) -> m.AlterPartitionResponse:
    return m.AlterPartitionResponse(error_code=code)
