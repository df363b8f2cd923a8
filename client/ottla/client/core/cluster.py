"""The metadata of the cluster: brokers, topics, leaders and coordinators, and which Metadata request to send
next.

The network loop sends what `request` returns and passes the response to `take`. The request managers look up
leaders and call `invalidate` if a response shows that they are stale. Invariants:

* the leader epoch of a partition never decreases while the topic keeps its id (KIP-320); older metadata is
  ignored;
* at most one Metadata request is in flight; failures and responses without changes are followed by
exponential
  backoff (KIP-580);
* a topic that is not wanted any more is removed with the next response.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final
from uuid import UUID

from ottla.client.core.backoff import Uniform, backoff_s
from ottla.client.core.types import Leader, Node, TopicPartition
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.types import ZERO_UUID

GROUP: Final = 0
TRANSACTION: Final = 1
"""Key types of FindCoordinator."""
_FATAL: Final = frozenset({ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED})


class PartitionState:
    """The state of a partition in the last metadata."""

    __slots__ = ("isr", "leader", "offline", "replicas")

    def __init__(
        self, leader: Leader, replicas: tuple[int, ...], isr: tuple[int, ...], offline: tuple[int, ...]
    ) -> None:
        self.leader = leader
        """`node_id` is -1 if there is no leader."""
        self.replicas = replicas
        self.isr = isr
        self.offline = offline


class TopicState:
    """The state of a topic in the last metadata."""

    __slots__ = ("error", "id", "internal", "partitions")

    def __init__(self) -> None:
        self.id: UUID | None = None
        self.internal = False
        self.error = ErrorCode.NONE
        """The error of the topic in the last metadata."""
        self.partitions: dict[int, PartitionState] = {}


class Cluster:
    """Kafka's Metadata. Times are seconds of one monotonic clock."""

    def __init__(
        self,
        *,
        uniform: Uniform,
        metadata_max_age_ms: int = 300_000,
        metadata_max_idle_ms: int | None = None,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 1_000,
        allow_auto_topic_creation: bool = True,
    ) -> None:
        """With `metadata_max_idle_ms`, topics of `add` are removed after they were unused for that time."""
        self.nodes: dict[int, Node] = {}
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.version = 0
        """Incremented with every change."""
        self._uniform = uniform
        self._max_age_s = metadata_max_age_ms / 1000
        self._max_idle_s = math.inf if metadata_max_idle_ms is None else metadata_max_idle_ms / 1000
        self._backoff = retry_backoff_ms, retry_backoff_max_ms
        self._auto_create = allow_auto_topic_creation
        self._topics: dict[str, TopicState] = {}
        self._names: dict[UUID, str] = {}
        self.authentication_error: KafkaError | None = None
        """The authentication error of the last attempt."""
        self._wanted: dict[str, float] = {}
        """The wanted topics with the time of their last use; infinite for those of `want`."""
        self._all = False
        self.all_listed = False
        """Whether all topics of the cluster were listed since `want(None)`."""
        self._wants_changed = False
        """Whether `want` was called after the request in flight was created."""
        self._coordinators: dict[tuple[int, str], int] = {}
        self._stale = True
        """Whether a full refresh is needed."""
        self._new: set[str] = set()
        """Wanted topics that were not requested yet."""
        self._in_flight: frozenset[str] | None = None
        """The topics of the request in flight; empty for all wanted topics."""
        self.refreshed_at = -math.inf
        """When the last full response was received."""
        self._not_before = -math.inf
        self._failures = 0
        self._unchanged = 0

    # --- wanted topics ---

    def want(self, topics: Iterable[str] | None) -> None:
        """Keep metadata of these topics, and no others; None: of all topics of the cluster."""
        self._all = topics is None
        self.all_listed = False
        self._wanted = dict.fromkeys(topics or (), math.inf)
        self._new &= self._wanted.keys()
        if topics is None:
            self._stale = True
            self._wants_changed = self._in_flight is not None
        else:
            self._ask_for_new(self._wanted.keys() - self._topics.keys())

    def add(self, topic: str, now: float) -> None:
        """Keep metadata of this topic, too."""
        known = self._wanted.get(topic)
        if known is None or known < now:
            self._wanted[topic] = now
        if known is None and topic not in self._topics:
            self._ask_for_new({topic})

    def _ask_for_new(self, topics: set[str]) -> None:
        if topics:
            self._new |= topics
            self._unchanged = 0
            self._not_before = -math.inf

    @property
    def topics(self) -> dict[str, TopicState]:
        """All known topics; must not be changed by callers."""
        return self._topics

    # --- look-ups ---

    def leader(self, tp: tuple[str, int]) -> Leader | None:
        """The leader of a partition; None if there is none, or if its broker is unknown."""
        topic = self._topics.get(tp[0])
        state = None if topic is None else topic.partitions.get(tp[1])
        if state is None or state.leader.node_id not in self.nodes:
            return None
        return state.leader

    def partitions(self, topic: str) -> int | None:
        """The number of partitions of a topic; None if it is unknown."""
        state = self._topics.get(topic)
        return len(state.partitions) if state is not None and state.partitions else None

    def partition(self, tp: TopicPartition) -> PartitionState | None:
        topic = self._topics.get(tp.topic)
        return None if topic is None else topic.partitions.get(tp.partition)

    def topic_id(self, topic: str) -> UUID | None:
        state = self._topics.get(topic)
        return None if state is None else state.id

    def topic_name(self, topic_id: UUID) -> str | None:
        return self._names.get(topic_id)

    def error(self, topic: str) -> ErrorCode:
        """The error of a topic in the metadata; NONE also if the topic was not requested yet."""
        state = self._topics.get(topic)
        return ErrorCode.NONE if state is None else state.error

    def fatal_error(self, topic: str) -> ErrorCode:
        """The error of a topic that no later metadata will lack, NONE if there is none. As in Java's clients
        all others may go: a broker of Kafka that has just started takes a topic for one to be created, and
        answers INVALID_REPLICATION_FACTOR."""
        error = self.error(topic)
        return error if error in _FATAL else ErrorCode.NONE

    # --- coordinators ---

    def coordinator(self, key_type: int, key: str) -> int | None:
        """The node that coordinates a group or a transactional id; None if it is unknown."""
        return self._coordinators.get((key_type, key))

    def take_coordinator(self, key_type: int, key: str, node: Node) -> None:
        self.nodes.setdefault(node.id, node)
        self._coordinators[key_type, key] = node.id

    def forget_coordinator(self, key_type: int, key: str) -> None:
        self._coordinators.pop((key_type, key), None)

    # --- refreshing ---

    def invalidate(self, what: TopicPartition | str | None = None) -> None:
        """The metadata of a partition, a topic or the brokers is stale: refresh it."""
        self._stale = True

    def take_leader(self, tp: TopicPartition, leader: Leader, nodes: Iterable[Node] = ()) -> bool:
        """Set a new leader that a broker has returned (KIP-951); False if it is not newer or its node is
        unknown."""
        for node in nodes:
            self.nodes[node.id] = node
        topic = self._topics.get(tp.topic)
        state = None if topic is None else topic.partitions.get(tp.partition)
        if state is None or leader.epoch <= state.leader.epoch or leader.node_id not in self.nodes:
            return False
        state.leader = leader
        self.version += 1
        return True

    def next_time(self, now: float) -> float:
        """When `request` will return a request if nothing changes before."""
        if self._in_flight is not None:
            return math.inf
        due = now if self._stale or self._new else self.refreshed_at + self._max_age_s
        return max(due, self._not_before)

    def request(self, now: float) -> m.MetadataRequest | None:
        """The Metadata request to send now, or None; `take` or `failed` must follow."""
        if self._in_flight is not None or now < self.next_time(now):
            return None
        if now >= self.refreshed_at + self._max_age_s:
            self._unchanged = 0
        self._remove_idle_topics(now)
        partial = self._new and not self._stale and now < self.refreshed_at + self._max_age_s
        names = frozenset(self._new) if partial else frozenset()
        self._in_flight = names
        self._new.clear()
        topics = None if self._all and not partial else sorted(names or self._wanted)
        topic_row = m.MetadataRequest.MetadataRequestTopic
        return m.MetadataRequest(
            topics=None if topics is None else [topic_row(name=name) for name in topics],
            allow_auto_topic_creation=self._auto_create,
        )

    def _remove_idle_topics(self, now: float) -> None:
        idle = [topic for topic, used in self._wanted.items() if used + self._max_idle_s <= now]
        for topic in idle:
            del self._wanted[topic]
            self._new.discard(topic)

    def failed(self, now: float, authentication_error: KafkaError | None = None) -> None:
        """The request failed; `authentication_error`: why authentication failed, if it did."""
        assert self._in_flight is not None, "no request is in flight"
        self.authentication_error = authentication_error
        self._new |= self._in_flight & self._wanted.keys()
        self._stale = self._stale or not self._in_flight
        self._in_flight = None
        self._not_before = now + backoff_s(self._failures, *self._backoff, self._uniform)
        self._failures += 1

    def take(self, response: m.MetadataResponse, now: float) -> None:
        """Process the response to the last request."""
        assert self._in_flight is not None, "no request is in flight"
        if not response.brokers:
            self.failed(now)  # a broker that has just started has no metadata yet
            return
        partial, self._in_flight = bool(self._in_flight), None
        self.authentication_error = None
        self._failures = 0
        if not partial:
            self._stale, self._wants_changed = self._wants_changed, False
            self.refreshed_at = now
        changed = self._take_brokers(response)
        for topic in response.topics:
            changed |= self._take_topic(topic)
        if not partial:
            changed |= self._remove_all_but({topic.name for topic in response.topics})
            self.all_listed = self._all and not self._stale
        self._unchanged = 0 if changed else self._unchanged + 1
        if changed:
            self.version += 1
        # The first response without a change is followed by a pause, too.
        pauses = max(self._unchanged - 1, 0)
        self._not_before = now + backoff_s(pauses, *self._backoff, self._uniform)
        if self._new:
            self._not_before = -math.inf

    def _take_brokers(self, response: m.MetadataResponse) -> bool:
        nodes = {b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
        changed = nodes != self.nodes
        self.nodes = nodes
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        return changed

    def _take_topic(self, update: m.MetadataResponse.MetadataResponseTopic) -> bool:
        name = update.name
        if name is None or (not self._all and name not in self._wanted):
            return False
        before = self._topics.get(name)
        known = before or TopicState()
        self._topics[name] = known
        error = ErrorCode.of(update.error_code)
        changed = before is None or error is not known.error
        known.error = error
        if error is not ErrorCode.NONE:
            known.partitions = {}
            # It may be created, or get a leader.
            self._stale = self._stale or error not in _FATAL
            return changed
        topic_id = None if update.topic_id == ZERO_UUID else update.topic_id
        created_anew = topic_id != known.id and None not in (topic_id, known.id)
        if known.id is not None:
            self._names.pop(known.id, None)
        known.id = topic_id
        if topic_id is not None:
            self._names[topic_id] = name
        known.internal = update.is_internal
        partitions: dict[int, PartitionState] = {}
        for entry in sorted(update.partitions, key=lambda p: p.partition_index):
            old = None if created_anew else known.partitions.get(entry.partition_index)
            partitions[entry.partition_index] = state = _newer(old, entry)
            changed |= old is None or state.leader != old.leader
            self._stale = self._stale or state.leader.node_id < 0
        changed |= len(partitions) != len(known.partitions)
        known.partitions = partitions
        return changed

    def _remove_all_but(self, named: set[str | None]) -> bool:
        gone = [topic for topic in self._topics if topic not in named]
        for topic in gone:
            topic_id = self._topics.pop(topic).id
            if topic_id is not None:
                self._names.pop(topic_id, None)
        return bool(gone)


def _newer(
    old: PartitionState | None, update: m.MetadataResponse.MetadataResponsePartition
) -> PartitionState:
    """The newer of the known and the received state: brokers may lag behind each other."""
    if old is not None and 0 <= update.leader_epoch < old.leader.epoch:
        return old
    error = ErrorCode.of(update.error_code)
    leaderless = error is not ErrorCode.NONE and error is not ErrorCode.REPLICA_NOT_AVAILABLE
    node_id = -1 if leaderless else update.leader_id
    return PartitionState(
        Leader(node_id, update.leader_epoch),
        tuple(update.replica_nodes),
        tuple(update.isr_nodes),
        tuple(update.offline_replicas),
    )
