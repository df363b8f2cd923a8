"""The controller's state (ControllerContext): brokers, topics, leaders, and ongoing deletions.

Loaded by `loading` when this broker is elected, changed by the decision modules (`leadership`,
`broker_changes`, `topics`, `topic_deletion`, `reassignment`, `isr`) under the active controller's lock,
dropped on resignation.

Invariants: every partition in `leaders` has an assignment; a `LeaderAndIsr` is equal to the store's once the
effects of its decision are written; a leader is a replica of its partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from ottla.metadata.znodes import (
    NO_LEADER,
    BrokerInfo,
    PartitionState,
    TopicAssignment,
    TopicPartition,
)

RECOVERED = 0
RECOVERING = 1
"""Leader recovery state after an unclean election, until the leader has recovered (KIP-704)."""


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """A partition's leader and ISR with their epochs. `partition_epoch` is the version of its state node."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int
    controller_epoch: int
    recovery: int = RECOVERED

    def node(self) -> PartitionState:
        return PartitionState(self.leader, self.leader_epoch, self.isr, self.controller_epoch, self.recovery)


@dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    """A partition's replicas; during a reassignment the union of original and target replicas (KIP-455).

    `adding` and `removing` are empty unless the partition is being reassigned.
    """

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def is_being_reassigned(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        return tuple(r for r in self.replicas if r not in self.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        return tuple(r for r in self.replicas if r not in self.adding)

    def reassign_to(self, target: Iterable[int]) -> ReplicaAssignment:
        """The assignment during a reassignment from this one's origin to `target`, target replicas first."""
        wanted, origin = tuple(target), self.origin
        return ReplicaAssignment(
            replicas=tuple(dict.fromkeys(wanted + origin)),
            adding=tuple(r for r in wanted if r not in origin),
            removing=tuple(r for r in origin if r not in wanted),
        )


@dataclass(slots=True)
class Topic:
    """A topic with its id and the assignments of its partitions."""

    name: str
    topic_id: UUID
    assignments: dict[int, ReplicaAssignment]

    def node(self) -> TopicAssignment:
        return TopicAssignment(
            {p: a.replicas for p, a in self.assignments.items()},
            {p: a.adding for p, a in self.assignments.items() if a.adding},
            {p: a.removing for p, a in self.assignments.items() if a.removing},
            self.topic_id,
        )

    def partitions(self) -> Iterator[TopicPartition]:
        return (TopicPartition(self.name, p) for p in sorted(self.assignments))


@dataclass(slots=True)
class TopicDeletion:
    """The progress of a topic's deletion. Replicas are pairs of partition and broker id."""

    announced: bool = False
    """Whether UpdateMetadata has announced the deletion to the brokers."""
    requested: dict[tuple[int, int], int] = field(default_factory=dict)
    """Broker epochs by the replicas that were requested to be deleted."""
    confirmed: set[tuple[int, int]] = field(default_factory=set)
    """Replicas whose deletion the broker has confirmed."""


class ControllerContext:
    """The controller's state from its election to its resignation."""

    def __init__(self, controller_id: int, controller_epoch: int) -> None:
        self.controller_id = controller_id
        self.controller_epoch = controller_epoch
        self.brokers: dict[int, BrokerInfo] = {}
        self.shutting_down: set[int] = set()
        self.topics: dict[str, Topic] = {}
        self._names: dict[UUID, str] = {}
        self.leaders: dict[TopicPartition, LeaderAndIsr] = {}
        self.deletions: dict[str, TopicDeletion] = {}
        self.elections = self.unclean_elections = 0
        """The number of leaders elected from outside the ISR, for metrics."""
        self.failed_replicas: dict[int, set[TopicPartition]] = {}
        """Offline replicas on live brokers: LeaderAndIsr returned KAFKA_STORAGE_ERROR for them."""
        self.invalid_partitions: set[TopicPartition] = set()
        """Partitions with an invalid state node. They get no leader until an operator repairs the node."""
        self.existing_paths: set[str] = set()
        """Existing parents of missing state nodes: the others are created together with the state."""
        self.has_leader_recovery = True
        """Whether inter.broker.protocol.version has the leader recovery state (KIP-704)."""
        self.unclean_topics: set[str] = set()
        """Topics that allow unclean elections, among those with an offline ISR."""

    def assignment(self, tp: TopicPartition) -> ReplicaAssignment | None:
        topic = self.topics.get(tp.topic)
        return topic.assignments.get(tp.partition) if topic else None

    def partitions(self) -> Iterator[TopicPartition]:
        for topic in self.topics.values():
            yield from topic.partitions()

    def partitions_on(self, broker_ids: Iterable[int]) -> Iterator[tuple[TopicPartition, ReplicaAssignment]]:
        """The partitions with a replica on any of the brokers."""
        wanted = set(broker_ids)
        for topic in self.topics.values():
            for partition, assignment in topic.assignments.items():
                if not wanted.isdisjoint(assignment.replicas):
                    yield TopicPartition(topic.name, partition), assignment

    def is_deleting(self, topic: str) -> bool:
        return topic in self.deletions

    def is_online(self, broker_id: int, tp: TopicPartition, *, include_shutting_down: bool = False) -> bool:
        """Whether the broker is live and the replica's log directory is online.

        A broker in controlled shutdown counts with `include_shutting_down` only: it serves its replicas, and
        gets no new leaders.
        """
        return (
            broker_id in self.brokers
            and (include_shutting_down or broker_id not in self.shutting_down)
            and tp not in self.failed_replicas.get(broker_id, ())
        )

    def has_live_leader(self, tp: TopicPartition) -> bool:
        current = self.leaders.get(tp)
        return (
            current is not None
            and current.leader != NO_LEADER
            and self.is_online(current.leader, tp, include_shutting_down=True)
        )

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        return self.topics.get(self._names.get(topic_id, ""))

    def add_topic(self, topic: Topic) -> None:
        assert topic.name not in self.topics, f"{topic.name} exists"
        self.topics[topic.name] = topic
        self._names[topic.topic_id] = topic.name

    def assign_topic_id(self, name: str, topic_id: UUID) -> Topic:
        """Assign a new id to a topic without one (created before KIP-516)."""
        topic = self.topics[name]
        assert topic.topic_id.int == 0, f"{name} has an id"
        topic.topic_id = topic_id
        self._names[topic_id] = name
        return topic

    def remove_topic(self, name: str) -> None:
        topic = self.topics.pop(name, None)
        self.deletions.pop(name, None)
        self.unclean_topics.discard(name)
        if topic is None:
            return
        self._names.pop(topic.topic_id, None)
        for tp in topic.partitions():
            self.leaders.pop(tp, None)
            self.invalid_partitions.discard(tp)
        prefix = f"/brokers/topics/{name}/"
        self.existing_paths = {path for path in self.existing_paths if not path.startswith(prefix)}
