"""The cluster as this broker knows it: what the controller's UpdateMetadata requests said.

Written by the handler of UpdateMetadata, read by everything that answers clients or finds leaders. Until the
controller has spoken for the first time, what the metadata store says may stand in (`stand_in`).
Invariants: only `update` and `stand_in` change it; the values handed out are immutable, so a reader may keep
them; a topic id and a topic name point at each other or at nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from ottla.metadata.sharing import shared
from ottla.metadata.znodes import TopicPartition
from ottla.protocol.messages import UpdateMetadataRequest
from ottla.protocol.topic_names import is_legal_topic_name
from ottla.protocol.types import ZERO_UUID

log = logging.getLogger(__name__)

LEADER_DURING_DELETE = -2
"""The leader that the controller names for a partition whose topic is being deleted."""

_SECURITY_PROTOCOLS = {0: "PLAINTEXT", 1: "SSL", 2: "SASL_PLAINTEXT", 3: "SASL_SSL"}


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """A live broker, by one of its listeners."""

    id: int
    host: str
    port: int
    rack: str | None = None
    listener: str = "PLAINTEXT"
    security_protocol: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """`leader` is -1 while there is none. `partition_epoch` is the version of the partition's node."""

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
    """`listener` is the one that `brokers()` gives by default: the inter-broker listener."""

    def __init__(self, listener: str = "PLAINTEXT") -> None:
        self.listener = listener
        self.controller_id: int | None = None
        self.cluster_id: str | None = None
        self.is_stand_in = False
        """Whether this is what the store said, and no controller."""
        self.on_update: list[Callable[[], None]] = []
        self._brokers: dict[int, dict[str, BrokerEndpoint]] = {}
        self._topics: dict[str, dict[int, PartitionMetadata]] = {}
        self._ids: dict[str, UUID] = {}
        self._names: dict[UUID, str] = {}

    def update(self, request: UpdateMetadataRequest) -> list[tuple[str, int]]:
        """Apply the request, and return the partitions that it removed (topics being deleted).

        A controller tells a broker everything first: nothing of what stood in for it is left.
        """
        if self.is_stand_in:
            self._clear_topics()
            self.is_stand_in = False
        return self._apply(request)

    def stand_in(self, whole: UpdateMetadataRequest) -> None:
        """Be what the store said of the whole cluster, until the first `update`."""
        self._clear_topics()
        self.is_stand_in = True
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
                log.error("UpdateMetadata names %r, which no topic can be called: ignored", topic.topic_name)
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
            # Deleted and created again while this broker was away: the old topic's partitions are gone.
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
            shared(state.isr),
            shared(state.replicas),
            shared(state.offline_replicas),
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
        """The topic's partitions by number, or None if there is no such topic. Do not change it."""
        return self._topics.get(topic)

    def partition(self, topic: str, partition: int) -> PartitionMetadata | None:
        return self._topics.get(topic, {}).get(partition)

    def topic_id(self, name: str) -> UUID | None:
        return self._ids.get(name)

    def topic_name(self, topic_id: UUID) -> str | None:
        return self._names.get(topic_id)
