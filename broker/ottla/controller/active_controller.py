"""The active controller: its state, its fenced writes, and its channels to the brokers.

Created by `controller` on election and closed on resignation. Decisions are made one at a time under `lock`;
`apply` writes their effects, then sends their requests.

Invariant: every write is in a multi that checks the version that /controller_epoch got with this election.
Once another broker is elected, no write of this controller can succeed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from random import Random
from typing import Any, Final, Protocol, TypeVar

from ottla.controller import leadership, loading, requests, topic_deletion
from ottla.controller.channels import Channels
from ottla.controller.context import ControllerContext
from ottla.controller.effects import Effects
from ottla.controller.topic_watches import TopicWatches
from ottla.metadata import znodes
from ottla.metadata.config import BrokerConfig
from ottla.metadata.inter_broker import LATEST, InterBrokerVersion
from ottla.metadata.policies import Policy
from ottla.metadata.store import (
    Check,
    Create,
    Delete,
    MetadataStore,
    Operation,
    OperationResult,
    SetData,
    StoreConflict,
    pipelined,
)
from ottla.metadata.znodes import BrokerInfo, TopicPartition
from ottla.ports import random_uuid
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode
from ottla.protocol.types import Message

log = logging.getLogger(__name__)

T = TypeVar("T")

_DELETES_PER_MULTI_MAX = 1000
NOT_CONTROLLER_MESSAGE: Final = "This is not the correct controller for this cluster."


class NotController(Exception):
    """This broker is not the controller, or resigned during the operation."""


class ControllerInterface(Protocol):
    """The part of `controller.Controller` that the modules of its request entry points use."""

    broker_id: int
    config: BrokerConfig
    create_topic_policy: Policy | None
    random: Random

    async def run_as_controller(self, work: Callable[[ActiveController], Awaitable[T]]) -> T:
        """Run `work` under the active controller's lock. Raises NotController."""


async def run_or_error(
    controller: ControllerInterface,
    work: Callable[[ActiveController], Awaitable[T]],
    on_error: Callable[[ErrorCode], T],
) -> T:
    """The result of `work` in the active controller, or `on_error` with the error code that prevented it."""
    try:
        return await controller.run_as_controller(work)
    except NotController:
        return on_error(ErrorCode.NOT_CONTROLLER)
    except Exception:  # logged by `run_as_controller`
        return on_error(ErrorCode.UNKNOWN_SERVER_ERROR)


class ActiveController:
    """The controller of one election; its number is the controller epoch."""

    def __init__(
        self,
        context: ControllerContext,
        store: MetadataStore,
        epoch_version: int,
        *,
        listener: str,
        unclean_by_default: Callable[[], bool],
        make_channels: Callable[[Callable[[BrokerInfo, Message, Any], None]], Channels],
        enqueue: Callable[[str], None],
        random: Random,
        inter_broker_protocol_version: InterBrokerVersion = LATEST,
    ) -> None:
        """`epoch_version` is the version of /controller_epoch after the election; `listener` is the
        inter-broker listener; `enqueue` queues an event when a response requires a decision."""
        self.context = context
        self.store = store
        self.lock = asyncio.Lock()
        self.closed = False
        self._epoch_version = epoch_version
        self._listener = listener
        self._inter_broker_protocol_version = inter_broker_protocol_version
        context.has_leader_recovery = inter_broker_protocol_version.has_leader_recovery
        self._unclean_by_default = unclean_by_default
        self._channels = make_channels(self._on_response)
        self._enqueue = enqueue
        self._random = random
        self.stopped: list[tuple[int, dict[TopicPartition, ErrorCode]]] = []
        """Queued results of StopReplica with deletion: broker id, error by partition."""
        self.failed: list[tuple[int, list[TopicPartition], list[TopicPartition]]] = []
        """Queued results of LeaderAndIsr: broker id, replicas that went offline, replicas that went
        online."""
        self.node_reassignments: dict[TopicPartition, tuple[int, ...]] = {}
        """Ongoing reassignments of /admin/reassign_partitions, with their target replicas."""
        self.modified_topics: dict[str, None] = {}
        """Topics whose node may have been changed by tools."""
        self.watches = TopicWatches(store, self._topic_modified)
        self._failed_deletions: list[tuple[int, list[TopicPartition]]] = []
        self._progress: asyncio.Future[None] | None = None
        self._local_metadata_update: asyncio.Future[Any] | None = None

    def close(self) -> None:
        self.closed = True
        self.watches.close()
        self._channels.close()
        self._signal_progress()

    def _topic_modified(self, topic: str) -> None:
        self.modified_topics[topic] = None
        self._enqueue("PartitionModifications")

    # Writing.

    async def fenced_multi(self, operations: Sequence[Operation]) -> list[OperationResult]:
        """Write one multi that checks the controller epoch. Raises StoreConflict, StoreUnavailable."""
        results = await self.store.multi([self.epoch_check, *operations])
        return results[1:]

    @property
    def epoch_check(self) -> Check:
        return Check(znodes.CONTROLLER_EPOCH, self._epoch_version)

    async def apply(self, effects: Effects) -> dict[int, asyncio.Future[Any]]:
        """Write the effects, send the requests, then write the last of the effects. Returns futures of
        UpdateMetadata responses by broker.

        Raises StoreConflict or StoreUnavailable when a write failed; the controller must resign then, because
        its state is ahead of the store.
        """
        await pipelined(lambda group: asyncio.ensure_future(self.fenced_multi(group)), effects.multis())
        for topic in effects.removed_topics:
            await self._delete_topic_nodes(topic)
        acknowledged: dict[int, asyncio.Future[Any]] = {}
        if self.closed:
            return acknowledged
        for broker, messages in requests.build_requests(
            self.context, effects, self._listener, self._inter_broker_protocol_version
        ).items():
            for message in messages:
                response = self._channels.send(broker, message)
                if response is not None and isinstance(message, m.UpdateMetadataRequest):
                    acknowledged[broker] = response
        await pipelined(lambda group: asyncio.ensure_future(self.fenced_multi(group)), effects.last_multis())
        self._local_metadata_update = acknowledged.get(
            self.context.controller_id, self._local_metadata_update
        )
        self._signal_progress()
        if self.node_reassignments and any(
            not self._is_moving(*move) for move in self.node_reassignments.items()
        ):
            self._enqueue("PartitionReassignment")
        return acknowledged

    def _is_moving(self, tp: TopicPartition, target: tuple[int, ...]) -> bool:
        assignment = self.context.assignment(tp)
        return assignment is not None and assignment.is_being_reassigned and assignment.target == target

    async def _delete_topic_nodes(self, topic: str) -> None:
        """Delete the nodes of a topic without replicas, and at last its mark in /admin/delete_topics."""
        parent = znodes.partitions_path(topic)
        children = await self.store.children(parent)
        deletes: list[Operation] = []
        for child in children:
            path = f"{parent}/{child}"
            deletes += [Delete(f"{path}/{name}") for name in await self.store.children(path)]
            deletes.append(Delete(path))
        batches = [
            deletes[at : at + _DELETES_PER_MULTI_MAX] for at in range(0, len(deletes), _DELETES_PER_MULTI_MAX)
        ]
        await pipelined(lambda batch: asyncio.ensure_future(self.fenced_multi(batch)), batches)
        last = [
            parent,
            znodes.topic_path(topic),
            znodes.topic_config_path(topic),
            znodes.delete_topic_path(topic),
        ]
        await self.fenced_multi([Delete(path) for path in last if await self.store.exists(path) is not None])
        log.info("Deletion of topic %s successfully completed", topic)

    # Loading, and reads and writes of single nodes.

    async def load(self) -> None:
        """Load the state from the store, and open channels to the live brokers."""
        await loading.load(self.store, self.context)
        await self.assign_topic_ids([topic for topic in self.context.topics if not self._has_id(topic)])
        self._channels.update_brokers(self.context.brokers)
        await self.refresh_unclean_topics()

    def _has_id(self, topic: str) -> bool:
        return self.context.topics[topic].topic_id.int != 0

    async def assign_topic_ids(self, topics: Iterable[str]) -> None:
        """Assign and write ids of topics that tools or brokers from before KIP-516 created."""
        writes: list[list[Operation]] = []
        for name in topics:
            node = self.context.assign_topic_id(name, random_uuid(self._random)).node()
            writes.append([SetData(znodes.topic_path(name), znodes.encode_topic(node))])
        await pipelined(lambda group: asyncio.ensure_future(self.fenced_multi(group)), writes)

    async def restore_topic_node(self, name: str, version: int) -> None:
        """Write a topic's node as the state has it, unless it is no longer of that version."""
        write = SetData(
            znodes.topic_path(name), znodes.encode_topic(self.context.topics[name].node()), version
        )
        try:
            await self.fenced_multi([write])
        except StoreConflict as conflict:
            if conflict.failed != write:
                raise
            # The watch triggers another PartitionModifications.
            log.info("Topic %s was changed concurrently: %s", name, conflict.cause)

    async def ensure_feature_node(self) -> None:
        """Write /feature in the format of inter.broker.protocol.version, unless it has finalized features."""
        version = self._inter_broker_protocol_version.feature_node
        found = await self.store.get(znodes.FEATURE)
        if found is None:
            await self.fenced_multi([Create(znodes.FEATURE, znodes.encode_feature(version))])
        elif znodes.empty_feature_version(found[0]) not in (None, version):
            await self.fenced_multi([SetData(znodes.FEATURE, znodes.encode_feature(version))])

    async def delete_nodes(self, paths: Iterable[str]) -> None:
        """Delete the nodes that still exist."""
        existing = [path for path in paths if await self.store.exists(path) is not None]
        if existing:
            await self.fenced_multi([Delete(path) for path in existing])

    def update_channels(self) -> None:
        self._channels.update_brokers(self.context.brokers)

    async def refresh_unclean_topics(self) -> None:
        """Read unclean.leader.election.enable of the topics with a partition whose ISR is offline."""
        topics = sorted(leadership.topics_without_live_isr(self.context))
        configs = await loading.read_topic_configs(self.store, topics)
        name = "unclean.leader.election.enable"
        default = "true" if self._unclean_by_default() else "false"
        self.context.unclean_topics = {t for t in topics if configs[t].get(name, default).lower() == "true"}

    # Responses of the brokers.

    def _on_response(self, broker: BrokerInfo, message: Message, response: Any) -> None:
        if isinstance(message, m.StopReplicaRequest) and isinstance(response, m.StopReplicaResponse):
            self._on_stopped(broker, message, response)
        elif isinstance(message, m.LeaderAndIsrRequest) and isinstance(response, m.LeaderAndIsrResponse):
            self._on_leader_and_isr(broker, response)
        elif response.error_code:
            # Stale epochs: the broker has restarted or another controller is active, which repeats the
            # request.
            log.warning("Broker %d rejected %s: %r", broker.id, type(message).__name__, response)

    def _on_stopped(
        self, broker: BrokerInfo, message: m.StopReplicaRequest, response: m.StopReplicaResponse
    ) -> None:
        errors = {
            TopicPartition(e.topic_name, e.partition_index): e.error_code for e in response.partition_errors
        }
        outcome = {
            tp: ErrorCode.of(response.error_code or errors.get(tp, ErrorCode.NONE))
            for topic in message.topic_states
            for partition in topic.partition_states
            if partition.delete_partition
            for tp in [TopicPartition(topic.topic_name, partition.partition_index)]
        }
        failed = {tp: error for tp, error in outcome.items() if error != ErrorCode.NONE}
        if failed:
            log.warning("Broker %d failed to delete replicas: %s", broker.id, failed)
            # A failed log directory stays offline until the broker restarts, and then the request is
            # repeated.
            to_retry = [tp for tp, error in failed.items() if error is not ErrorCode.KAFKA_STORAGE_ERROR]
            self._failed_deletions.append((broker.id, to_retry))
        if outcome:
            self.stopped.append((broker.id, outcome))
            self._enqueue("StopReplicaResponse")

    def _on_leader_and_isr(self, broker: BrokerInfo, response: m.LeaderAndIsrResponse) -> None:
        if response.error_code:
            log.warning("Broker %d rejected LeaderAndIsr: %r", broker.id, ErrorCode.of(response.error_code))
            return
        failed: list[TopicPartition] = []
        online: list[TopicPartition] = []
        offline_before = {*self.context.failed_replicas.get(broker.id, ())}
        offline_before.update(*(offline for from_id, offline, _ in self.failed if from_id == broker.id))
        # Versions before 5 have topic names instead of ids.
        errors = [(error.topic_name, error) for error in response.partition_errors]
        for entry in response.topics:
            topic = self.context.topic_by_id(entry.topic_id)
            name = topic.name if topic is not None else str(entry.topic_id)
            errors += [(name, error) for error in entry.partition_errors]
        for name, error in errors:
            if name in self.context.topics and error.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
                failed.append(TopicPartition(name, error.partition_index))
            elif not error.error_code and (name, error.partition_index) in offline_before:
                online.append(TopicPartition(name, error.partition_index))
            elif error.error_code:
                code = ErrorCode.of(error.error_code)
                # A broker returns this code if it already has the state that a new controller repeats.
                is_repeated = code is ErrorCode.STALE_CONTROLLER_EPOCH
                level = logging.DEBUG if is_repeated else logging.WARNING
                log.log(level, "Broker %d, %s-%d: %r", broker.id, name, error.partition_index, code)
        if failed:
            log.error("Replicas %s on broker %d are offline: a log directory failed", failed, broker.id)
        if online:
            log.info("Replicas %s on broker %d are online again", online, broker.id)
        if failed or online:
            self.failed.append((broker.id, failed, online))
            self._enqueue("LeaderAndIsrResponse")

    def retry_deletions(self, effects: Effects) -> None:
        """Request the deletion of replicas again whose brokers returned an error."""
        to_retry, self._failed_deletions = self._failed_deletions, []
        for broker, partitions in to_retry:
            topic_deletion.retry(self.context, effects, broker, partitions)

    # Waiting for the effects of decisions.

    async def wait_for_local_metadata(self, timeout_s: float) -> None:
        """Wait until this broker's own metadata cache has the last decision, at most `timeout_s`."""
        if self._local_metadata_update is not None:
            await asyncio.wait([self._local_metadata_update], timeout=timeout_s)

    def _signal_progress(self) -> None:
        progress, self._progress = self._progress, None
        if progress is not None and not progress.done():
            progress.set_result(None)

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until the condition is true. False after `timeout_s`, or if the controller resigned."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not condition():
            remaining_s = deadline - loop.time()
            if self.closed or remaining_s <= 0:
                return False
            if self._progress is None or self._progress.done():
                self._progress = loop.create_future()
            await asyncio.wait([self._progress], timeout=remaining_s)
        return True
