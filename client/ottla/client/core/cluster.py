"""What a client knows of the cluster: brokers, topics, leaders and coordinators; and what to ask next.

Called by the shell, which sends what `request` gives and hands the response to `take`, and by the cores,
which look leaders up and call `invalidate` when an answer says that they are wrong. Invariants:

* a partition's leader epoch never goes back while its topic keeps its id (KIP-320): older news is left aside;
* one Metadata request is on its way at most; failures and answers that bring nothing new are spaced out
  exponentially (KIP-580);
* a topic that nobody wants any more is forgotten with the next answer.
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
"""Key types of coordinators."""


class PartitionState:
    """A partition as it was last heard of."""

    __slots__ = ("isr", "leader", "offline", "replicas")

    def __init__(
        self, leader: Leader, replicas: tuple[int, ...], isr: tuple[int, ...], offline: tuple[int, ...]
    ) -> None:
        self.leader = leader
        """`node_id` -1 while there is none."""
        self.replicas = replicas
        self.isr = isr
        self.offline = offline


class TopicState:
    """A topic as it was last heard of."""

    __slots__ = ("error", "id", "internal", "partitions")

    def __init__(self) -> None:
        self.id: UUID | None = None
        self.internal = False
        self.error = ErrorCode.NONE
        """Why its partitions are not known, as of the last answer."""
        self.partitions: dict[int, PartitionState] = {}


class Cluster:
    """Times are seconds of one monotonic clock."""

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
        """With `metadata_max_idle_ms`, topics of `add` are let go when they were not used for so long."""
        self.nodes: dict[int, Node] = {}
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.version = 0
        """Grows with every change, so that a core can tell whether to look again."""
        self._uniform = uniform
        self._max_age_s = metadata_max_age_ms / 1000
        self._max_idle_s = math.inf if metadata_max_idle_ms is None else metadata_max_idle_ms / 1000
        self._backoff = retry_backoff_ms, retry_backoff_max_ms
        self._auto_create = allow_auto_topic_creation
        self._topics: dict[str, TopicState] = {}
        self._names: dict[UUID, str] = {}
        self.refusal: KafkaError | None = None
        """Why the brokers do not let us in, as of the last attempt."""
        self._wanted: dict[str, float] = {}
        """With the time of last use; infinite for those of `want`."""
        self._all = False
        self.all_listed = False
        """Whether all of the cluster's topics were told since `want` asked for them."""
        self._wanted_anew = False
        """Since the request on its way was made."""
        self._coordinators: dict[tuple[int, str], int] = {}
        self._stale = True
        """Everything has to be asked for anew."""
        self._new: set[str] = set()
        """Wanted, and never asked for."""
        self._asked: frozenset[str] | None = None
        """The topics of the request on its way; empty for all that is wanted."""
        self.refreshed_at = -math.inf
        """When metadata came last."""
        self._not_before = -math.inf
        self._failures = 0
        self._unchanged = 0

    # --- what is wanted ---

    def want(self, topics: Iterable[str] | None) -> None:
        """These topics are of interest from now on, no others; None: all of the cluster's."""
        self._all = topics is None
        self.all_listed = False
        self._wanted = dict.fromkeys(topics or (), math.inf)
        self._new &= self._wanted.keys()
        if topics is None:
            self._stale = True
            self._wanted_anew = self._asked is not None
        else:
            self._ask_for_new(self._wanted.keys() - self._topics.keys())

    def add(self, topic: str, now: float) -> None:
        """This topic is in use, too."""
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
        """All that is known; not to be changed."""
        return self._topics

    # --- what is known ---

    def leader(self, tp: tuple[str, int]) -> Leader | None:
        """None while there is none, or none that can be reached; that asks for news."""
        topic = self._topics.get(tp[0])
        state = None if topic is None else topic.partitions.get(tp[1])
        if state is None or state.leader.node_id not in self.nodes:
            return None
        return state.leader

    def partitions(self, topic: str) -> int | None:
        """How many partitions a topic has; None while that is not known."""
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
        """Why nothing is known of a topic; NONE as well when it was not asked for yet."""
        state = self._topics.get(topic)
        return ErrorCode.NONE if state is None else state.error

    # --- coordinators ---

    def coordinator(self, key_type: int, key: str) -> int | None:
        """The node that coordinates a group or a transactional id, if it is known."""
        return self._coordinators.get((key_type, key))

    def take_coordinator(self, key_type: int, key: str, node: Node) -> None:
        self.nodes.setdefault(node.id, node)
        self._coordinators[key_type, key] = node.id

    def forget_coordinator(self, key_type: int, key: str) -> None:
        self._coordinators.pop((key_type, key), None)

    # --- what is stale ---

    def invalidate(self, what: TopicPartition | str | None = None) -> None:
        """What is known of a partition, a topic or of the brokers has proved wrong: ask again soon."""
        self._stale = True

    def take_leader(self, tp: TopicPartition, leader: Leader, nodes: Iterable[Node] = ()) -> bool:
        """A broker has named who leads instead (KIP-951); whether that was news, and can be used."""
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
        """When `request` will have something to ask, if nothing happens before."""
        if self._asked is not None:
            return math.inf
        due = now if self._stale or self._new else self.refreshed_at + self._max_age_s
        return max(due, self._not_before)

    def request(self, now: float) -> m.MetadataRequest | None:
        """What to ask now, if anything; it has to be followed by `take` or `failed`."""
        if self._asked is not None or now < self.next_time(now):
            return None
        if now >= self.refreshed_at + self._max_age_s:
            self._unchanged = 0
        self._let_idle_topics_go(now)
        partial = self._new and not self._stale and now < self.refreshed_at + self._max_age_s
        names = frozenset(self._new) if partial else frozenset()
        self._asked = names
        self._new.clear()
        topics = None if self._all and not partial else sorted(names or self._wanted)
        asked = m.MetadataRequest.MetadataRequestTopic
        return m.MetadataRequest(
            topics=None if topics is None else [asked(name=name) for name in topics],
            allow_auto_topic_creation=self._auto_create,
        )

    def _let_idle_topics_go(self, now: float) -> None:
        idle = [topic for topic, used in self._wanted.items() if used + self._max_idle_s <= now]
        for topic in idle:
            del self._wanted[topic]
            self._new.discard(topic)

    def failed(self, now: float, refusal: KafkaError | None = None) -> None:
        """The request found nobody, or no answer; `refusal`: we were not let in."""
        assert self._asked is not None, "nothing was asked"
        self.refusal = refusal
        self._new |= self._asked & self._wanted.keys()
        self._stale = self._stale or not self._asked
        self._asked = None
        self._not_before = now + backoff_s(self._failures, *self._backoff, self._uniform)
        self._failures += 1

    def take(self, response: m.MetadataResponse, now: float) -> None:
        """The answer to the last request."""
        assert self._asked is not None, "nothing was asked"
        if not response.brokers:
            self.failed(now)  # a broker that has just started does not know anybody yet
            return
        partial, self._asked = bool(self._asked), None
        self.refusal = None
        self._failures = 0
        if not partial:
            self._stale, self._wanted_anew = self._wanted_anew, False
            self.refreshed_at = now
        changed = self._take_brokers(response)
        for topic in response.topics:
            changed |= self._take_topic(topic)
        if not partial:
            changed |= self._forget_all_but({topic.name for topic in response.topics})
            self.all_listed = self._all and not self._stale
        self._unchanged = 0 if changed else self._unchanged + 1
        if changed:
            self.version += 1
        # The first look at something that is not there yet is followed by the next one after a pause, too.
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

    def _take_topic(self, news: m.MetadataResponse.MetadataResponseTopic) -> bool:
        name = news.name
        if name is None or (not self._all and name not in self._wanted):
            return False
        before = self._topics.get(name)
        known = before or TopicState()
        self._topics[name] = known
        error = ErrorCode.of(news.error_code)
        changed = before is None or error is not known.error
        known.error = error
        if error is not ErrorCode.NONE:
            known.partitions = {}
            # Somebody may create it, or it has no leaders yet; what is forbidden is not asked for soon again.
            self._stale = self._stale or error.retriable
            return changed
        topic_id = None if news.topic_id == ZERO_UUID else news.topic_id
        created_anew = topic_id != known.id and None not in (topic_id, known.id)
        if known.id is not None:
            self._names.pop(known.id, None)
        known.id = topic_id
        if topic_id is not None:
            self._names[topic_id] = name
        known.internal = news.is_internal
        partitions: dict[int, PartitionState] = {}
        for entry in sorted(news.partitions, key=lambda p: p.partition_index):
            old = None if created_anew else known.partitions.get(entry.partition_index)
            partitions[entry.partition_index] = state = _newer(old, entry)
            changed |= old is None or state.leader != old.leader
            self._stale = self._stale or state.leader.node_id < 0
        changed |= len(partitions) != len(known.partitions)
        known.partitions = partitions
        return changed

    def _forget_all_but(self, named: set[str | None]) -> bool:
        gone = [topic for topic in self._topics if topic not in named]
        for topic in gone:
            topic_id = self._topics.pop(topic).id
            if topic_id is not None:
                self._names.pop(topic_id, None)
        return bool(gone)


def _newer(old: PartitionState | None, news: m.MetadataResponse.MetadataResponsePartition) -> PartitionState:
    """What to believe of a partition: brokers may lag behind each other."""
    if old is not None and 0 <= news.leader_epoch < old.leader.epoch:
        return old
    error = ErrorCode.of(news.error_code)
    leaderless = error is not ErrorCode.NONE and error is not ErrorCode.REPLICA_NOT_AVAILABLE
    node_id = -1 if leaderless else news.leader_id
    return PartitionState(
        Leader(node_id, news.leader_epoch),
        tuple(news.replica_nodes),
        tuple(news.isr_nodes),
        tuple(news.offline_replicas),
    )
