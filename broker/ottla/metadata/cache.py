"""The cache of cluster metadata (MetadataCache), updated by the controller's UpdateMetadata requests.

Written by the handler of UpdateMetadata, read by the handlers of clients' requests. Until the first
UpdateMetadata it can have metadata that the broker read from the store itself (`load_initial`).
Invariants: only `update` and `load_initial` change it; returned values are immutable, so a reader can keep
them; topic ids and topic names map to each other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from ottla.metadata.znodes import TopicPartition, intern_brokers
from ottla.protocol.messages import UpdateMetadataRequest
from ottla.protocol.topics import is_legal_topic_name
from ottla.protocol.types import ZERO_UUID

log = logging.getLogger(__name__)

LEADER_DURING_DELETE = -2
"""The leader in UpdateMetadata of a partition whose topic is being deleted
(LeaderAndIsr.LeaderDuringDelete)."""

_SECURITY_PROTOCOLS = {0: "PLAINTEXT", 1: "SSL", 2: "SASL_PLAINTEXT", 3: "SASL_SSL"}


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """The address of one listener of a live broker."""

    id: int
    host: str
    port: int
    rack: str | None = None
    listener: str = "PLAINTEXT"
    security_protocol: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """The state of a partition. `leader` is -1 without a leader; `partition_epoch` is the node's version."""

    topic: str
    partition: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...]
    controller_epoch: int
    partition_epoch: int


class MetadataCache:
    """Live brokers, topics and partitions. `listener` is the default of `brokers`: the inter-broker
    listener."""

    def __init__(self, listener: str = "PLAINTEXT") -> None:
        self.listener = listener
        self.controller_id: int | None = None
        self.cluster_id: str | None = None
        self.is_initial = False
        """Whether the metadata was read from the store, before the first UpdateMetadata."""
        self.on_update: list[Callable[[], None]] = []
        self._brokers: dict[int, dict[str, BrokerEndpoint]] = {}
        self._topics: dict[str, dict[int, PartitionMetadata]] = {}
        self._ids: dict[str, UUID] = {}
        self._names: dict[UUID, str] = {}

    def update(self, request: UpdateMetadataRequest) -> list[tuple[str, int]]:
        """Apply the request, and return the partitions that it removed (topics being deleted).

        The first request of a controller has all metadata, so it replaces metadata from the store.
        """
        if self.is_initial:
            self._clear_topics()
            self.is_initial = False
        return self._apply(request)

    def load_initial(self, whole: UpdateMetadataRequest) -> None:
        """Set all metadata from the store, until the first `update`."""
        self._clear_topics()
        self.is_initial = True
        self._apply(whole)

    def _clear_topics(self) -> None:
        self._topics.clear()
        self._ids.clear()
        self._names.clear()

    def _apply(self, request: UpdateMetadataRequest) -> list[tuple[str, int]]:
        self.controller_id = request.controller_id if request.controller_id >= 0 else None
        self._brokers = {
            broker.id: {
                endpoint.listener: BrokerEndpoint(
                    broker.id,
                    endpoint.host,
                    endpoint.port,
                    broker.rack,
                    endpoint.listener,
                    _SECURITY_PROTOCOLS.get(endpoint.security_protocol, endpoint.listener),
                )
                for endpoint in broker.endpoints
            }
            for broker in request.live_brokers
        }
        removed: list[tuple[str, int]] = []
        for topic in request.topic_states:
            if not is_legal_topic_name(topic.topic_name):
                log.error("Ignoring %r in UpdateMetadata: not a legal topic name", topic.topic_name)
                continue
            if topic.topic_id != ZERO_UUID:
                self._remember_id(topic.topic_name, topic.topic_id)
            for state in topic.partition_states:
                if state.leader == LEADER_DURING_DELETE:
                    if self._remove(topic.topic_name, state.partition_index):
                        removed.append(TopicPartition(topic.topic_name, state.partition_index))
                else:
                    self._put(topic.topic_name, state)
        for callback in self.on_update:
            callback()
        return removed

    def _remember_id(self, topic: str, topic_id: UUID) -> None:
        before = self._ids.get(topic)
        if before is not None and before != topic_id:
            # The topic was deleted and created again while this broker was offline.
            self._names.pop(before, None)
            self._topics.pop(topic, None)
        self._ids[topic] = topic_id
        self._names[topic_id] = topic

    def _put(self, topic: str, state: UpdateMetadataRequest.UpdateMetadataPartitionState) -> None:
        self._topics.setdefault(topic, {})[state.partition_index] = PartitionMetadata(
            topic,
            state.partition_index,
            state.leader,
            state.leader_epoch,
            intern_brokers(state.isr),
            intern_brokers(state.replicas),
            intern_brokers(state.offline_replicas),
            state.controller_epoch,
            state.zk_version,
        )

    def _remove(self, topic: str, partition: int) -> bool:
        partitions = self._topics.get(topic, {})
        existed = partitions.pop(partition, None) is not None
        if not partitions:
            self._topics.pop(topic, None)
            topic_id = self._ids.pop(topic, None)
            if topic_id is not None:
                self._names.pop(topic_id, None)
        return existed

    def brokers(self, listener: str | None = None) -> list[BrokerEndpoint]:
        """The live brokers that have the listener, by id."""
        wanted = listener or self.listener
        return [endpoints[wanted] for _, endpoints in sorted(self._brokers.items()) if wanted in endpoints]

    def broker(self, broker_id: int, listener: str | None = None) -> BrokerEndpoint | None:
        return self._brokers.get(broker_id, {}).get(listener or self.listener)

    def alive(self) -> frozenset[int]:
        return frozenset(self._brokers)

    def is_alive(self, broker_id: int) -> bool:
        return broker_id in self._brokers

    def topics(self) -> list[str]:
        return list(self._topics)

    def partitions(self, topic: str) -> dict[int, PartitionMetadata] | None:
        """The topic's partitions by number, or None if the topic does not exist. Read-only."""
        return self._topics.get(topic)

    def partition(self, topic: str, partition: int) -> PartitionMetadata | None:
        return self._topics.get(topic, {}).get(partition)

    def topic_id(self, name: str) -> UUID | None:
        return self._ids.get(name)

    def topic_name(self, topic_id: UUID) -> str | None:
        return self._names.get(topic_id)
