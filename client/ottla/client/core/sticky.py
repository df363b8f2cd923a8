"""The sticky assignors: balanced assignments that keep as many partitions as possible where they were
(KIP-54, 429).

Called by `membership` through `assignors.BY_NAME`. Results equal those of Kafka 3.9's Java client: groups
whose members all subscribe to the same topics use `sticky_constrained`, others `sticky_general`. The previous
assignment comes from the members. If two members claim a partition, the one with the later generation keeps
it; with the same generation, neither does.
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


class PreviousAssignment(NamedTuple):
    """The partitions that a member claims to have owned."""

    owned: tuple[TopicPartition, ...]
    generation: int | None
    """None if the member did not send it."""


class _Claims(NamedTuple):
    owned: dict[str, list[TopicPartition]]
    """By member, in the order in which they are processed."""
    disputed: frozenset[TopicPartition]
    """Claimed by several members of the same generation."""
    latest_generation: int


class _StickyAssignor:
    name: ClassVar[str]

    def previously(self, member: Subscription) -> PreviousAssignment:
        raise NotImplementedError

    def assign(
        self, topics: Mapping[str, PartitionRacks], members: Mapping[str, Subscription]
    ) -> Assignments:
        return self._assign(topics, members)[0]

    def _assign(
        self, topics: Mapping[str, PartitionRacks], members: Mapping[str, Subscription]
    ) -> tuple[Assignments, dict[TopicPartition, str] | None]:
        """The assignment, and the partitions that move between members, if known."""
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
    """The eager one: all members revoke all partitions and get most of them back."""

    name: ClassVar[str] = "sticky"
    cooperative: ClassVar[bool] = False

    def __init__(self) -> None:
        self._share: bytes | None = None

    def subscription_user_data(self, topics: Collection[str]) -> bytes | None:
        return self._share

    def on_assignment(self, assignment: Assignment, metadata: GroupMetadata) -> None:
        self._share = encode_share(assignment.partitions, metadata.generation_id)

    def previously(self, member: Subscription) -> PreviousAssignment:
        # Not the owned partitions of the subscription: an eager member owns none when it joins.
        if not member.user_data:
            return PreviousAssignment((), None)
        try:
            return decode_share(member.user_data)
        except (ValueError, struct.error):
            return PreviousAssignment((), NO_GENERATION)


class CooperativeStickyAssignor(_StickyAssignor):
    """The cooperative one: a partition that moves is revoked first, and assigned in the next rebalance."""

    name: ClassVar[str] = "cooperative-sticky"
    cooperative: ClassVar[bool] = True

    def __init__(self) -> None:
        self._generation = NO_GENERATION

    def subscription_user_data(self, topics: Collection[str]) -> bytes | None:
        return _INT32.pack(self._generation)

    def on_assignment(self, assignment: Assignment, metadata: GroupMetadata) -> None:
        self._generation = metadata.generation_id

    def previously(self, member: Subscription) -> PreviousAssignment:
        if member.generation != NO_GENERATION:
            return PreviousAssignment(member.owned, member.generation)
        if member.user_data is None:
            return PreviousAssignment(member.owned, None)
        try:
            return PreviousAssignment(member.owned, _INT32.unpack_from(member.user_data)[0])
        except struct.error:
            return PreviousAssignment(member.owned, NO_GENERATION)

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
    before: Mapping[str, PreviousAssignment],
) -> _Claims:
    owned: dict[str, list[TopicPartition]] = {name: [] for name in members}
    owners: dict[TopicPartition, str] = {}
    disputed: set[TopicPartition] = set()
    latest = NO_GENERATION
    for name, (places, claimed_generation) in before.items():
        generation = NO_GENERATION if claimed_generation is None else claimed_generation
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


def _earlier_owners(before: Mapping[str, PreviousAssignment], latest: int) -> dict[TopicPartition, str]:
    """The owners of partitions in generations before the latest; the last of several."""
    owners: dict[TopicPartition, tuple[int, str]] = {}
    for name, (places, claimed_generation) in before.items():
        generation = NO_GENERATION if claimed_generation is None else claimed_generation
        if generation < latest:
            for place in places:
                if place not in owners or generation > owners[place][0]:
                    owners[place] = (generation, name)
    return {place: name for place, (_, name) in owners.items()}


def _moved(shares: Assignments, members: Mapping[str, Subscription]) -> dict[TopicPartition, str]:
    """Partitions that are assigned to one member while another still owns them."""
    given_up = {
        place for name, member in members.items() for place in member.owned if place not in set(shares[name])
    }
    return {
        place: name
        for name, share in shares.items()
        for place in share
        if place in given_up and place not in members[name].owned
    }


# --- user data of the StickyAssignor -----------------------------------------------------------------------


def encode_share(partitions: Sequence[TopicPartition], generation: int) -> bytes:
    """Version 1 of the user data: topics with their partitions, and the generation."""
    topics = by_topic(partitions)
    parts = [_INT32.pack(len(topics))]
    for topic, numbers in topics.items():
        name = topic.encode()
        parts += (_INT16.pack(len(name)), name, _INT32.pack(len(numbers)), *map(_INT32.pack, numbers))
    parts.append(_INT32.pack(generation))
    return b"".join(parts)


def decode_share(data: bytes) -> PreviousAssignment:
    """Decodes version 0, which has no generation, too. Raises struct.error, ValueError."""
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
    return PreviousAssignment(tuple(partitions), generation)
