"""The sticky assignors: balanced, and each partition stays where it was as far as that allows (KIP-54, 429).

Called by `membership` through `assignors.BY_NAME`. The same results as those of Kafka 3.9's Java client:
groups whose members all subscribe to the same topics go through `sticky_constrained`, all others through
`sticky_general`. Who owned what comes from the members themselves; of two that claim a partition, the one of
the later generation is believed, and of the same generation neither.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

from ottla.client.core.assignment import (
    NO_GENERATION,
    Assignment,
    Assignments,
    PartitionRacks,
    Racks,
    Subscription,
    by_topic,
)
from ottla.client.core.java_order import in_java_order
from ottla.client.core.sticky_constrained import ConstrainedAssignment
from ottla.client.core.sticky_general import GeneralAssignment
from ottla.client.core.types import GroupMetadata, TopicPartition

log = logging.getLogger(__name__)

_INT32: Final = struct.Struct(">i")
_INT16: Final = struct.Struct(">h")


class Previously(NamedTuple):
    """What a member says it owned."""

    owned: tuple[TopicPartition, ...]
    generation: int | None
    """None where it did not say."""


class _Claims(NamedTuple):
    owned: dict[str, list[TopicPartition]]
    """By members, in the order in which they are considered."""
    disputed: frozenset[TopicPartition]
    """Claimed by several members of one generation."""
    latest_generation: int


class _StickyAssignor:
    name: ClassVar[str]

    def previously(self, member: Subscription) -> Previously:
        raise NotImplementedError

    def assign(
        self, topics: Mapping[str, PartitionRacks], members: Mapping[str, Subscription]
    ) -> Assignments:
        return self._assign(topics, members)[0]

    def _assign(
        self, topics: Mapping[str, PartitionRacks], members: Mapping[str, Subscription]
    ) -> tuple[Assignments, dict[TopicPartition, str] | None]:
        """The assignment, and the partitions that go from one member to another, if that is known."""
        members = {name: members[name] for name in in_java_order(members)}
        before = {name: self.previously(member) for name, member in members.items()}
        claims = _claims(topics, members, before)
        racks = Racks(topics, members)
        if len({frozenset(member.topics) for member in members.values()}) <= 1:
            constrained = ConstrainedAssignment(topics, racks, claims.owned, claims.disputed)
            return constrained.build(), constrained.moved
        earlier = _earlier_owners(before, claims.latest_generation)
        return GeneralAssignment(topics, members, racks, claims.owned, earlier).build(), None


class StickyAssignor(_StickyAssignor):
    """Everybody gives up everything, and gets most of it back."""

    name: ClassVar[str] = "sticky"
    cooperative: ClassVar[bool] = False

    def __init__(self) -> None:
        self._share: bytes | None = None

    def subscription_user_data(self, topics: Collection[str]) -> bytes | None:
        return self._share

    def on_assignment(self, assignment: Assignment, metadata: GroupMetadata) -> None:
        self._share = encode_share(assignment.partitions, metadata.generation_id)

    def previously(self, member: Subscription) -> Previously:
        # Not what the subscription says is owned: an eager member owns nothing any more when it joins.
        if not member.user_data:
            return Previously((), None)
        try:
            return decode_share(member.user_data)
        except (ValueError, struct.error):
            return Previously((), NO_GENERATION)


class CooperativeStickyAssignor(_StickyAssignor):
    """What goes to another member is first given up by its owner, and assigned in the next rebalance."""

    name: ClassVar[str] = "cooperative-sticky"
    cooperative: ClassVar[bool] = True

    def __init__(self) -> None:
        self._generation = NO_GENERATION

    def subscription_user_data(self, topics: Collection[str]) -> bytes | None:
        return _INT32.pack(self._generation)

    def on_assignment(self, assignment: Assignment, metadata: GroupMetadata) -> None:
        self._generation = metadata.generation_id

    def previously(self, member: Subscription) -> Previously:
        if member.generation != NO_GENERATION:
            return Previously(member.owned, member.generation)
        if member.user_data is None:
            return Previously(member.owned, None)
        try:
            return Previously(member.owned, _INT32.unpack_from(member.user_data)[0])
        except struct.error:
            return Previously(member.owned, NO_GENERATION)

    def assign(
        self, topics: Mapping[str, PartitionRacks], members: Mapping[str, Subscription]
    ) -> Assignments:
        shares, moved = self._assign(topics, members)
        if moved is None:
            moved = _moved(shares, members)
        for place, name in moved.items():
            shares[name].remove(place)
        return shares


def _claims(
    topics: Mapping[str, PartitionRacks],
    members: Mapping[str, Subscription],
    before: Mapping[str, Previously],
) -> _Claims:
    owned: dict[str, list[TopicPartition]] = {name: [] for name in members}
    owners: dict[TopicPartition, str] = {}
    disputed: set[TopicPartition] = set()
    latest = NO_GENERATION
    for name, (places, said_generation) in before.items():
        generation = NO_GENERATION if said_generation is None else said_generation
        latest = max(latest, generation)
        for place in places:
            if place.topic not in topics or place.partition >= len(topics[place.topic]):
                continue
            other = owners.get(place)
            if other is None:
                owned[name].append(place)
                owners[place] = name
                continue
            others_generation = members[other].generation
            log.debug(
                "members %s of generation %d and %s of generation %d both claim %s",
                name, generation, other, others_generation, place,
            )  # fmt: skip
            if generation < others_generation:
                continue
            if place in owned[other]:
                owned[other].remove(place)
            owners[place] = name
            if generation == others_generation:
                disputed.add(place)
            else:
                owned[name].append(place)
    return _Claims(owned, frozenset(disputed), latest)


def _earlier_owners(before: Mapping[str, Previously], latest: int) -> dict[TopicPartition, str]:
    """Who owned partitions in generations before the latest; of several the last one."""
    owners: dict[TopicPartition, tuple[int, str]] = {}
    for name, (places, said_generation) in before.items():
        generation = NO_GENERATION if said_generation is None else said_generation
        if generation < latest:
            for place in places:
                if place not in owners or generation > owners[place][0]:
                    owners[place] = (generation, name)
    return {place: name for place, (_, name) in owners.items()}


def _moved(shares: Assignments, members: Mapping[str, Subscription]) -> dict[TopicPartition, str]:
    """Partitions that somebody gets which somebody else has still."""
    given_up = {
        place for name, member in members.items() for place in member.owned if place not in set(shares[name])
    }
    return {
        place: name
        for name, share in shares.items()
        for place in share
        if place in given_up and place not in members[name].owned
    }


# --- what a StickyAssignor lets the leader's know ----------------------------------------------------------


def encode_share(partitions: Sequence[TopicPartition], generation: int) -> bytes:
    """Version 1 of its user data: topics with their partitions, and the generation."""
    topics = by_topic(partitions)
    parts = [_INT32.pack(len(topics))]
    for topic, numbers in topics.items():
        name = topic.encode()
        parts += (_INT16.pack(len(name)), name, _INT32.pack(len(numbers)), *map(_INT32.pack, numbers))
    parts.append(_INT32.pack(generation))
    return b"".join(parts)


def decode_share(data: bytes) -> Previously:
    """Also of version 0, which ends before the generation. Raises struct.error, ValueError."""
    partitions = []
    (topics,) = _INT32.unpack_from(data)
    at = 4
    for _ in range(topics):
        (length,) = _INT16.unpack_from(data, at)
        at += 2
        topic = data[at : at + length].decode()
        (count,) = _INT32.unpack_from(data, at + length)
        at += length + 4
        for _ in range(count):
            partitions.append(TopicPartition(topic, _INT32.unpack_from(data, at)[0]))
            at += 4
    generation = _INT32.unpack_from(data, at)[0] if at < len(data) else None
    return Previously(tuple(partitions), generation)
