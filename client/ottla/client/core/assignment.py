"""The messages of the consumer protocol: subscriptions and assignments of group members.

Called by `membership`, which sends them through the coordinator, and by the assignors. The bytes are those of
Kafka's consumer protocol (an int16 version, then the message) in its highest version: readers of older
versions ignore unknown fields (KIP-429, 792, 881).
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

from ottla.client.core.types import GroupMetadata, TopicPartition
from ottla.protocol import codec
from ottla.protocol import messages as m
from ottla.protocol.errors import ProtocolError

NO_GENERATION: Final = -1
_VERSION: Final = struct.Struct(">h")

PartitionRacks: TypeAlias = Sequence[frozenset[str]]
"""For each partition of a topic, the racks of its replicas, as far as they are known."""
Assignments: TypeAlias = dict[str, list[TopicPartition]]
"""The partitions of each member, by member id."""


class Subscription(NamedTuple):
    """The subscription of a member, sent in JoinGroup."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    """Data of the assignor of the member."""
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    """The generation in which it got the owned partitions."""
    rack: str | None = None
    instance_id: str | None = None
    """Not encoded: the coordinator adds it (KIP-345)."""


class Assignment(NamedTuple):
    """The assignment of a member."""

    partitions: Sequence[TopicPartition] = ()
    user_data: bytes | None = None
    """Data of the assignor of the leader for that of the member."""


class Assignor(Protocol):
    """Decides the assignment of a group (`partition.assignment.strategy`); each consumer has an instance of
    its own. It corresponds to Java's ConsumerPartitionAssignor; an assignor of a user needs `name` and
    `assign` only."""

    @property
    def name(self) -> str:
        """The name of the protocol; all members of a group need an assignor with this name."""

    @property
    def cooperative(self) -> bool:
        """Whether the cooperative protocol is used (KIP-429): members keep their partitions during a
        rebalance. The assignor must not assign a partition then while another member owns it. Optional, False
        by default."""

    def subscription_user_data(self, topics: Collection[str]) -> bytes | None:
        """Data for the assignor of the leader, sent with the subscription to `topics`. Called before each
        join. Optional, None by default."""

    def assign(
        self, topics: Mapping[str, PartitionRacks], members: Mapping[str, Subscription]
    ) -> Mapping[str, Assignment | Sequence[TopicPartition]]:
        """The partitions of each member, by member id. `topics`: the existing topics to which some member
        subscribes. Called on the leader of the group. An exception is raised by `poll`, after which the
        member joins again."""

    def on_assignment(self, assignment: Assignment, metadata: GroupMetadata) -> None:
        """The assignment of this member in a finished rebalance. Optional."""


def encode_subscription(subscription: Subscription) -> bytes:
    message = m.ConsumerProtocolSubscription
    owned = [
        message.TopicPartition(topic=topic, partitions=partitions)
        for topic, partitions in by_topic(subscription.owned).items()
    ]
    return _encoded(
        message(
            topics=sorted(subscription.topics),
            user_data=subscription.user_data,
            owned_partitions=owned,
            generation_id=subscription.generation,
            rack_id=subscription.rack,
        )
    )


def decode_subscription(data: bytes, instance_id: str | None = None) -> Subscription:
    """Raises ProtocolError for invalid bytes."""
    message = _decoded(m.ConsumerProtocolSubscription, data)
    return Subscription(
        topics=tuple(message.topics),
        user_data=message.user_data,
        owned=_partitions(message.owned_partitions),
        generation=max(message.generation_id, NO_GENERATION),
        rack=message.rack_id,
        instance_id=instance_id,
    )


def encode_assignment(partitions: Iterable[TopicPartition], user_data: bytes | None = None) -> bytes:
    message = m.ConsumerProtocolAssignment
    assigned = [
        message.TopicPartition(topic=topic, partitions=numbers)
        for topic, numbers in by_topic(partitions).items()
    ]
    return _encoded(message(assigned_partitions=assigned, user_data=user_data))


def decode_assignment(data: bytes) -> Assignment:
    """Raises ProtocolError for invalid bytes."""
    message = _decoded(m.ConsumerProtocolAssignment, data)
    return Assignment(_partitions(message.assigned_partitions), message.user_data)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partitions grouped by topic, both in ascending order."""
    grouped: defaultdict[str, list[int]] = defaultdict(list)
    for topic, partition in sorted(partitions):
        grouped[topic].append(partition)
    return dict(grouped)


_P = TypeVar("_P", m.ConsumerProtocolSubscription, m.ConsumerProtocolAssignment)


def _encoded(message: _P) -> bytes:
    version = type(message).max_version
    return _VERSION.pack(version) + codec.encode(message, version)


def _decoded(cls: type[_P], data: bytes) -> _P:
    if len(data) < _VERSION.size:
        raise ProtocolError(f"{len(data)} bytes are no {cls.__name__}")
    (version,) = _VERSION.unpack_from(data)
    if version < cls.min_version:
        raise ProtocolError(f"{cls.__name__} has no version {version}")
    # Later versions only append fields.
    return codec.decode(cls, min(version, cls.max_version), data, _VERSION.size)


_Rows: TypeAlias = Iterable[
    m.ConsumerProtocolSubscription.TopicPartition | m.ConsumerProtocolAssignment.TopicPartition
]


def _partitions(rows: _Rows) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(row.topic, partition) for row in rows for partition in row.partitions)


def worth_aligning(of_members: Set[str], of_partitions: Collection[frozenset[str]]) -> bool:
    """Whether some partition is in the rack of a member, and not every partition in every rack."""
    everywhere = frozenset().union(*of_partitions)
    return not of_members.isdisjoint(everywhere) and any(racks != everywhere for racks in of_partitions)


class Racks:
    """The racks of members and partitions, for assignors that assign all topics together."""

    def __init__(self, topics: Mapping[str, PartitionRacks], members: Mapping[str, Subscription]) -> None:
        racks = {name: member.rack for name, member in members.items() if member.rack}
        of_partitions: dict[TopicPartition, frozenset[str]] = {}
        if racks:
            of_partitions = {
                TopicPartition(topic, partition): found
                for topic, partitions in topics.items()
                for partition, found in enumerate(partitions)
            }
        members_in = Counter(racks.values())
        self._members_near = {
            place: sum(members_in[rack] for rack in found) for place, found in of_partitions.items()
        }
        matters = worth_aligning(set(racks.values()), of_partitions.values())
        self.of_members: Mapping[str, str] = racks if matters else {}
        self.of_partitions: Mapping[TopicPartition, frozenset[str]] = of_partitions if matters else {}

    @property
    def matter(self) -> bool:
        return bool(self.of_members)

    def mismatch(self, name: str, place: TopicPartition) -> bool:
        rack = self.of_members.get(name)
        return rack is not None and rack not in self.of_partitions.get(place, ())

    def hardest_first(self, places: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Partitions in the ascending order of the number of members in their racks."""
        return sorted(places, key=lambda place: self._members_near.get(place, 0))

    def next_near(self, place: TopicPartition, names: Sequence[str], first: int) -> int:
        """The index of the first of `names`, cyclically from `first`, that is in a rack of the partition; -1
        if there is none."""
        racks = self.of_partitions.get(place, ())
        for step in range(len(names)):
            index = (first + step) % len(names)
            if self.of_members.get(names[index]) in racks:
                return index
        return -1
