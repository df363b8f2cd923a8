"""One term of office: the state, the fence, and the channels of an elected controller.

Made by the shell (`controller`) on election, closed on resignation, never revived. Decisions are taken one at
a time under `lock`; `carry_out` writes their effects, then sends their requests.

Invariant: every write is in a multi that checks the version of /controller_epoch which this term's election
left there. Once another broker is elected, no write of this term can succeed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ottla.controller import deletion, leadership, loading, requests
from ottla.controller.channels import Channels
from ottla.controller.effects import Effects
from ottla.controller.state import ClusterState
from ottla.controller.topic_watches import TopicWatches
from ottla.metadata import znodes
from ottla.metadata.inter_broker import LATEST, InterBrokerVersion
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
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
)
from ottla.protocol.types import Message

log = logging.getLogger(__name__)

_DELETES_PER_MULTI_MAX = 1000


class Term:
    """`wake` is called, with a reason, when an answer from a broker asks for a decision."""

    def __init__(
        self,
        state: ClusterState,
        store: MetadataStore,
        epoch_version: int,
        *,
        listener: str,
        unclean_by_default: Callable[[], bool],
        make_channels: Callable[[Callable[[BrokerInfo, Message, Any], None]], Channels],
        wake: Callable[[str], None],
        spoken: InterBrokerVersion = LATEST,
    ) -> None:
        """`spoken` is inter.broker.protocol.version."""
        self.state = state
        self.store = store
        self.lock = asyncio.Lock()
        self.closed = False
        self._epoch_version = epoch_version
        self._listener = listener
        self._spoken = spoken
        state.has_leader_recovery = spoken.has_leader_recovery
        self._unclean_by_default = unclean_by_default
        self._channels = make_channels(self._on_response)
        self._wake = wake
        self.stopped: list[tuple[int, dict[TopicPartition, ErrorCode]]] = []
        """Answers to StopReplica(delete) that wait to be taken in."""
        self.failed: list[tuple[int, list[TopicPartition], list[TopicPartition]]] = []
        """Replicas whose disk failed, and those that serve again, by the answers to LeaderAndIsr."""
        self.moves_of_node: dict[TopicPartition, tuple[int, ...]] = {}
        """The moves that /admin/reassign_partitions asks for, and that have begun."""
        self.modified_topics: dict[str, None] = {}
        """Topics whose node may have been written by others."""
        self.watches = TopicWatches(store, self._topic_modified)
        self._to_retry: list[tuple[int, list[TopicPartition]]] = []
        self._progress: asyncio.Future[None] | None = None
        self._told_here: asyncio.Future[Any] | None = None

    def close(self) -> None:
        self.closed = True
        self.watches.close()
        self._channels.close()
        self._note_progress()

    def _topic_modified(self, topic: str) -> None:
        self.modified_topics[topic] = None
        self._wake("partitions")

    # Writing.

    async def fenced(self, operations: Sequence[Operation]) -> list[OperationResult]:
        """One multi under this term's fence. Raises StoreConflict, StoreUnavailable."""
        results = await self.store.multi([self.fence, *operations])
        return results[1:]

    @property
    def fence(self) -> Check:
        return Check(znodes.CONTROLLER_EPOCH, self._epoch_version)

    async def carry_out(self, effects: Effects) -> dict[int, asyncio.Future[Any]]:
        """Write, then send. Returns, per broker, a future of its answer to UpdateMetadata if it gets one.

        Raises StoreConflict or StoreUnavailable when a write failed; the term must end then, because its
        state is ahead of the store.
        """
        await pipelined(lambda group: asyncio.ensure_future(self.fenced(group)), effects.multis())
        for topic in effects.removed_topics:
            await self._remove_topic(topic)
        acknowledged: dict[int, asyncio.Future[Any]] = {}
        if self.closed:
            return acknowledged
        for broker, messages in requests.build(self.state, effects, self._listener, self._spoken).items():
            for message in messages:
                answer = self._channels.send(broker, message)
                if answer is not None and isinstance(message, UpdateMetadataRequest):
                    acknowledged[broker] = answer
        self._told_here = acknowledged.get(self.state.controller_id, self._told_here)
        self._note_progress()
        if self.moves_of_node and any(not self._is_moving(*move) for move in self.moves_of_node.items()):
            self._wake("moves")
        return acknowledged

    def _is_moving(self, tp: TopicPartition, target: tuple[int, ...]) -> bool:
        assignment = self.state.assignment(tp)
        return assignment is not None and assignment.moving and assignment.target == target

    async def _remove_topic(self, topic: str) -> None:
        """Remove the nodes of a topic whose replicas are all gone; the request for it goes last."""
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
        await pipelined(lambda batch: asyncio.ensure_future(self.fenced(batch)), batches)
        last = [
            parent,
            znodes.topic_path(topic),
            znodes.topic_config_path(topic),
            znodes.delete_topic_path(topic),
        ]
        await self.fenced([Delete(path) for path in last if await self.store.exists(path) is not None])
        log.info("topic %s is deleted", topic)

    # Taking office, and what the decisions need to know from the store.

    async def load(self) -> None:
        await loading.load(self.store, self.state)
        await self.give_ids([topic for topic in self.state.topics if not self._has_id(topic)])
        self._channels.follow(self.state.brokers)
        await self.refresh_unclean()

    def _has_id(self, topic: str) -> bool:
        return self.state.topics[topic].topic_id.int != 0

    async def give_ids(self, topics: Iterable[str]) -> None:
        """Topics made by tools or brokers from before KIP-516 get their id now."""
        writes: list[list[Operation]] = []
        for name in topics:
            node = self.state.assign_id(name).node()
            writes.append([SetData(znodes.topic_path(name), znodes.encode_topic(node))])
        await pipelined(lambda group: asyncio.ensure_future(self.fenced(group)), writes)

    async def restore_topic(self, name: str, version: int) -> None:
        """Write a topic's node as the state has it, unless it is no longer of that version."""
        write = SetData(znodes.topic_path(name), znodes.encode_topic(self.state.topics[name].node()), version)
        try:
            await self.fenced([write])
        except StoreConflict as conflict:
            if conflict.failed != write:
                raise
            log.info("topic %s was changed again: %s", name, conflict.cause)  # and the watch tells of that

    async def ensure_feature_node(self) -> None:
        """As Kafka: the node's layout is that of inter.broker.protocol.version; features that somebody has
        finalized stay as they are."""
        version = self._spoken.feature_node
        found = await self.store.get(znodes.FEATURE)
        if found is None:
            await self.fenced([Create(znodes.FEATURE, znodes.encode_feature(version))])
        elif znodes.empty_feature_version(found[0]) not in (None, version):
            await self.fenced([SetData(znodes.FEATURE, znodes.encode_feature(version))])

    async def drop_nodes(self, paths: Iterable[str]) -> None:
        """Delete what has been read; who else deleted it does not matter."""
        there = [path for path in paths if await self.store.exists(path) is not None]
        if there:
            await self.fenced([Delete(path) for path in there])

    def follow_brokers(self) -> None:
        self._channels.follow(self.state.brokers)

    async def refresh_unclean(self) -> None:
        """Look up, for topics that are about to need it, whether they may lose records to go on."""
        topics = sorted(leadership.topics_without_live_isr(self.state))
        configs = await loading.read_topic_configs(self.store, topics)
        name = "unclean.leader.election.enable"
        default = "true" if self._unclean_by_default() else "false"
        self.state.unclean_topics = {t for t in topics if configs[t].get(name, default).lower() == "true"}

    # Answers of the brokers.

    def _on_response(self, broker: BrokerInfo, message: Message, response: Any) -> None:
        if isinstance(message, StopReplicaRequest) and isinstance(response, StopReplicaResponse):
            self._on_stopped(broker, message, response)
        elif isinstance(message, LeaderAndIsrRequest) and isinstance(response, LeaderAndIsrResponse):
            self._on_leader_and_isr(broker, response)
        elif response.error_code:
            # Stale epochs: the broker or the controller has changed since, and its successor will do.
            log.warning("broker %d refused %s: %r", broker.id, type(message).__name__, response)

    def _on_stopped(
        self, broker: BrokerInfo, message: StopReplicaRequest, response: StopReplicaResponse
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
            log.warning("broker %d could not delete replicas: %s", broker.id, failed)
            # A disk that has failed stays so until the broker starts anew, and is asked anew.
            again = [tp for tp, error in failed.items() if error is not ErrorCode.KAFKA_STORAGE_ERROR]
            self._to_retry.append((broker.id, again))
        if outcome:
            self.stopped.append((broker.id, outcome))
            self._wake("stopped")

    def _on_leader_and_isr(self, broker: BrokerInfo, response: LeaderAndIsrResponse) -> None:
        if response.error_code:
            log.warning("broker %d refused LeaderAndIsr: %r", broker.id, ErrorCode.of(response.error_code))
            return
        failed: list[TopicPartition] = []
        online: list[TopicPartition] = []
        offline_before = {*self.state.failed_replicas.get(broker.id, ())}
        offline_before.update(*(told for of, told, _ in self.failed if of == broker.id))
        # By name before version 5 of the request.
        answers = [(error.topic_name, error) for error in response.partition_errors]
        for entry in response.topics:
            topic = self.state.topic_by_id(entry.topic_id)
            name = topic.name if topic is not None else str(entry.topic_id)
            answers += [(name, error) for error in entry.partition_errors]
        for name, error in answers:
            if name in self.state.topics and error.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
                failed.append(TopicPartition(name, error.partition_index))
            elif not error.error_code and (name, error.partition_index) in offline_before:
                online.append(TopicPartition(name, error.partition_index))
            elif error.error_code:
                code = ErrorCode.of(error.error_code)
                # What a new controller repeats is refused by whoever knows it already: no news.
                known = code is ErrorCode.STALE_CONTROLLER_EPOCH
                level = logging.DEBUG if known else logging.WARNING
                log.log(level, "broker %d, %s-%d: %r", broker.id, name, error.partition_index, code)
        if failed:
            log.error("broker %d cannot serve %s: its disk failed", broker.id, failed)
        if online:
            log.info("broker %d serves %s again", broker.id, online)
        if failed or online:
            self.failed.append((broker.id, failed, online))
            self._wake("failed")

    def retry_deletions(self, effects: Effects) -> None:
        to_retry, self._to_retry = self._to_retry, []
        for broker, partitions in to_retry:
            deletion.retry(self.state, effects, broker, partitions)

    # Waiting for what later decisions bring about.

    async def shown_here(self, timeout_s: float) -> None:
        """Wait until this broker's own metadata shows what was decided so far, or the time is up."""
        if self._told_here is not None:
            await asyncio.wait([self._told_here], timeout=timeout_s)

    def _note_progress(self) -> None:
        progress, self._progress = self._progress, None
        if progress is not None and not progress.done():
            progress.set_result(None)

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for the state to fulfil the condition. False: time is up, or the term is over."""
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
