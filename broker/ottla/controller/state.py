"""What the controller knows: brokers, topics, leaders, and deletions under way.

Built by `loading` when this broker is elected, changed by the decision modules (`leadership`, `membership`,
`topics`, `deletion`, `reassignment`, `isr`) under the shell's lock, thrown away on resignation.

Invariants: every partition in `leaders` has an assignment; `LeaderAndIsr` is what the store holds once the
effects that came with it are written; a leader, where there is one, is a replica of its partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from ottla.metadata.znodes import (
    NO_LEADER,
    BrokerInfo,
    PartitionState,
    TopicAssignment,
    TopicPartition,
)

RECOVERED = 0
RECOVERING = 1
"""Leader recovery state after an unclean election, until the leader confirms (KIP-704)."""


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """A partition's leadership. `partition_epoch` is the version of its state node."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int
    controller_epoch: int
    recovery: int = RECOVERED

    def node(self) -> PartitionState:
        return PartitionState(self.leader, self.leader_epoch, self.isr, self.controller_epoch, self.recovery)


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where a partition's replicas are; while it moves, both where from and where to (KIP-455).

    `replicas` is the union; `adding` and `removing` say which of them come and go.
    """

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def moving(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        return tuple(r for r in self.replicas if r not in self.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        return tuple(r for r in self.replicas if r not in self.adding)

    def moved_to(self, target: Iterable[int]) -> Assignment:
        """The assignment while moving from this one's origin to `target`, target first."""
        wanted, origin = tuple(target), self.origin
        return Assignment(
            replicas=tuple(dict.fromkeys(wanted + origin)),
            adding=tuple(r for r in wanted if r not in origin),
            removing=tuple(r for r in origin if r not in wanted),
        )


@dataclass(slots=True)
class Topic:
    name: str
    topic_id: UUID
    assignments: dict[int, Assignment]

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
class Deletion:
    """A topic's deletion: which replicas were asked (by which broker epoch), and which have confirmed."""

    announced: bool = False
    asked: dict[tuple[int, int], int] = field(default_factory=dict)
    confirmed: set[tuple[int, int]] = field(default_factory=set)


def new_topic_id() -> UUID:
    """A random id; the two that the protocol reserves, 0 and 1, cannot come of it (they have no version)."""
    return uuid4()


class ClusterState:
    """The controller's whole knowledge, for one term of office."""

    def __init__(self, controller_id: int, controller_epoch: int) -> None:
        self.controller_id = controller_id
        self.controller_epoch = controller_epoch
        self.brokers: dict[int, BrokerInfo] = {}
        self.shutting_down: set[int] = set()
        self.topics: dict[str, Topic] = {}
        self._names: dict[UUID, str] = {}
        self.leaders: dict[TopicPartition, LeaderAndIsr] = {}
        self.deletions: dict[str, Deletion] = {}
        # Leaders that this term elected from outside the ISR, for metrics.
        self.unclean_elections = 0
        # Replicas that answered KAFKA_STORAGE_ERROR: alive broker, dead disk.
        self.failed_replicas: dict[int, set[TopicPartition]] = {}
        # Partitions whose state node makes no sense: nobody leads them until people have looked.
        self.damaged: set[TopicPartition] = set()
        # Which parents of state nodes exist, so that creating a state knows what goes with it.
        self.existing_paths: set[str] = set()
        # Whether inter.broker.protocol.version has the leader recovery state (KIP-704).
        self.has_leader_recovery = True
        # Topics that may elect a leader from outside the ISR; looked up when it is about to matter.
        self.unclean_topics: set[str] = set()

    def assignment(self, tp: TopicPartition) -> Assignment | None:
        topic = self.topics.get(tp.topic)
        return topic.assignments.get(tp.partition) if topic else None

    def partitions(self) -> Iterator[TopicPartition]:
        for topic in self.topics.values():
            yield from topic.partitions()

    def partitions_on(self, broker_ids: Iterable[int]) -> Iterator[tuple[TopicPartition, Assignment]]:
        """The partitions with a replica on any of the brokers."""
        wanted = set(broker_ids)
        for topic in self.topics.values():
            for partition, assignment in topic.assignments.items():
                if not wanted.isdisjoint(assignment.replicas):
                    yield TopicPartition(topic.name, partition), assignment

    def is_deleting(self, topic: str) -> bool:
        return topic in self.deletions

    def is_online(self, broker_id: int, tp: TopicPartition, *, also_leaving: bool = False) -> bool:
        """Can the replica serve? A broker in controlled shutdown can, but should get no more leaders."""
        return (
            broker_id in self.brokers
            and (also_leaving or broker_id not in self.shutting_down)
            and tp not in self.failed_replicas.get(broker_id, ())
        )

    def has_live_leader(self, tp: TopicPartition) -> bool:
        current = self.leaders.get(tp)
        return (
            current is not None
            and current.leader != NO_LEADER
            and self.is_online(current.leader, tp, also_leaving=True)
        )

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        return self.topics.get(self._names.get(topic_id, ""))

    def add_topic(self, topic: Topic) -> None:
        assert topic.name not in self.topics, f"{topic.name} exists"
        self.topics[topic.name] = topic
        self._names[topic.topic_id] = topic.name

    def assign_id(self, name: str) -> Topic:
        """Give an id to a topic that has none."""
        topic = self.topics[name]
        assert topic.topic_id.int == 0, f"{name} has an id"
        topic.topic_id = new_topic_id()
        self._names[topic.topic_id] = name
        return topic

    def forget_topic(self, name: str) -> None:
        topic = self.topics.pop(name, None)
        self.deletions.pop(name, None)
        self.unclean_topics.discard(name)
        if topic is None:
            return
        self._names.pop(topic.topic_id, None)
        for tp in topic.partitions():
            self.leaders.pop(tp, None)
            self.damaged.discard(tp)
        prefix = f"/brokers/topics/{name}/"
        self.existing_paths = {path for path in self.existing_paths if not path.startswith(prefix)}
