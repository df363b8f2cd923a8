"""What members of a group tell each other: what they subscribe to and own, and who gets which partitions.

Called by `membership`, which carries it through the coordinator, and by the assignors, which decide. The
bytes are those of Kafka's consumer protocol (an int16 version, then the message), in its highest version:
readers of an older one leave out what they do not know (KIP-429, 792, 881).
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
"""A topic: for each of its partitions the racks that have a replica, as far as they are known."""
Assignments: TypeAlias = dict[str, list[TopicPartition]]
"""What each member gets, by its id."""


class Subscription(NamedTuple):
    """What a member told the others when it joined."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    """What its assignor added."""
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    """In which it got what it owns."""
    rack: str | None = None
    instance_id: str | None = None
    """Not part of the bytes: the coordinator tells it (KIP-345)."""


class Assignment(NamedTuple):
    """What a member is given."""

    partitions: Sequence[TopicPartition] = ()
    user_data: bytes | None = None
    """What the leader's assignor has to say to the member's."""


class Assignor(Protocol):
    """Decides who gets what (`partition.assignment.strategy`); one of its own for each consumer. As Java's
    ConsumerPartitionAssignor; a user's own needs `name` and `assign`."""

    @property
    def name(self) -> str:
        """All members of a group have to know an assignor of this name."""

    @property
    def cooperative(self) -> bool:
        """Whether its assignments may be reached without everybody giving up everything first (KIP-429). It
        must not give a partition to a member then as long as another one owns it. May be left out: False."""

    def subscription_user_data(self, topics: Collection[str]) -> bytes | None:
        """What the leader's assignor is to know of this member, which subscribes to `topics`. Called before
        each join. May be left out: None."""

    def assign(
        self, topics: Mapping[str, PartitionRacks], members: Mapping[str, Subscription]
    ) -> Mapping[str, Assignment | Sequence[TopicPartition]]:
        """Everybody's share of `topics`, the existing ones that somebody subscribes to, by the members' ids.
        Called by the group's leader. What it raises is raised by `poll`, and the group is joined again."""

    def on_assignment(self, assignment: Assignment, metadata: GroupMetadata) -> None:
        """This member's share of a finished rebalance. May be left out."""


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
    """Raises ProtocolError for bytes that are none."""
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
    """Raises ProtocolError for bytes that are none."""
    message = _decoded(m.ConsumerProtocolAssignment, data)
    return Assignment(_partitions(message.assigned_partitions), message.user_data)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Both in ascending order."""
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
    # Later versions only add to the end.
    return codec.decode(cls, min(version, cls.max_version), data, _VERSION.size)


_Rows: TypeAlias = Iterable[
    m.ConsumerProtocolSubscription.TopicPartition | m.ConsumerProtocolAssignment.TopicPartition
]


def _partitions(rows: _Rows) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(row.topic, partition) for row in rows for partition in row.partitions)


def worth_aligning(of_members: Set[str], of_partitions: Collection[frozenset[str]]) -> bool:
    """Whether some partition is in a rack of a member, and not every partition in every rack."""
    everywhere = frozenset().union(*of_partitions)
    return not of_members.isdisjoint(everywhere) and any(racks != everywhere for racks in of_partitions)


class Racks:
    """The racks of members and partitions, for assignors that consider all topics together."""

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
        """In the order of how many members could read them nearby."""
        return sorted(places, key=lambda place: self._members_near.get(place, 0))

    def next_near(self, place: TopicPartition, names: Sequence[str], first: int) -> int:
        """The index of the first of `names`, from `first` on and around, in the partition's rack; or -1."""
        racks = self.of_partitions.get(place, ())
        for step in range(len(names)):
            index = (first + step) % len(names)
            if self.of_members.get(names[index]) in racks:
                return index
        return -1
