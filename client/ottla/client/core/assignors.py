"""The range and round-robin assignors, the table of all assignors by name, and the adapter for assignors of
users.

Called by `rebalancing`. Results equal those of Kafka 3.9's Java client, racks included (KIP-881).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any, ClassVar, Final

from ottla.client.core.assignment import (
    Assignment,
    Assignments,
    Assignor,
    PartitionRacks,
    Subscription,
    worth_aligning,
)
from ottla.client.core.settings import ConfigError, Settings, made
from ottla.client.core.sticky import CooperativeStickyAssignor, StickyAssignor
from ottla.client.core.types import GroupMetadata, TopicPartition


class _StatelessAssignor:
    """The base of assignors that use only the subscriptions, and not the previous assignment."""

    cooperative: ClassVar[bool] = False

    def subscription_user_data(self, topics: Collection[str]) -> bytes | None:
        return None

    def on_assignment(self, assignment: Assignment, metadata: GroupMetadata) -> None:
        pass


class RangeAssignor(_StatelessAssignor):
    """Assigns each topic in ranges of partitions. Two topics with the same number of partitions and the same
    members are co-partitioned: equal partition numbers go to the same member."""

    name: ClassVar[str] = "range"

    def assign(
        self, topics: Mapping[str, PartitionRacks], members: Mapping[str, Subscription]
    ) -> Assignments:
        ordered = _in_order(members)
        ranges = [
            _TopicRanges(
                topic,
                racks,
                {name: members[name].rack or None for name in ordered if topic in members[name].topics},
            )
            for topic, racks in topics.items()
            if racks
        ]
        shares: Assignments = {name: [] for name in members}
        if any(topic.prefers_racks for topic in ranges):
            _align_racks(ranges, shares)
        for topic in ranges:
            topic.fill(shares, lambda name, partition: True)
        for share in shares.values():
            share.sort()
        return shares


class _TopicRanges:
    """The unassigned partitions of one topic, and the number of partitions that each member may still get."""

    def __init__(self, topic: str, racks: PartitionRacks, members: dict[str, str | None]) -> None:
        self.members = members
        """The racks of the members by member id, in the order of the assignment."""
        self.left = dict.fromkeys(range(len(racks)))
        self._topic = topic
        self._quota, self._larger = divmod(len(racks), len(members)) if members else (0, 0)
        self._taken = dict.fromkeys(members, 0)
        of_members = {rack for rack in members.values() if rack is not None}
        self.racks = racks if of_members else ()
        """The racks of the partitions; empty if no member has a rack."""
        self.prefers_racks = worth_aligning(of_members, self.racks)

    def matches(self, name: str, partition: int) -> bool:
        rack = self.members[name]
        return rack is None or (partition < len(self.racks) and rack in self.racks[partition])

    def room(self, name: str) -> int:
        return max(0, self._quota + (self._larger > 0) - self._taken[name])

    def take(self, name: str, partitions: Sequence[int], shares: Assignments) -> None:
        shares[name] += [TopicPartition(self._topic, partition) for partition in partitions]
        self._taken[name] += len(partitions)
        if self._taken[name] > self._quota:
            self._larger -= 1
        for partition in partitions:
            self.left.pop(partition, None)

    def fill(self, shares: Assignments, may: Callable[[str, int], bool]) -> None:
        for name in self.members:
            wanted = [partition for partition in self.left if may(name, partition)][: self.room(name)]
            if wanted:
                self.take(name, wanted, shares)


def _align_racks(ranges: Iterable[_TopicRanges], shares: Assignments) -> None:
    """Assign partitions to members in the rack of a replica, as far as the ranges stay balanced."""
    alike: defaultdict[tuple[frozenset[tuple[str, str | None]], int], list[_TopicRanges]] = defaultdict(list)
    for topic in ranges:
        alike[frozenset(topic.members.items()), len(topic.racks)].append(topic)
    for (_, partitions), topics in alike.items():
        if len(topics) > 1:
            _align_together(partitions, topics, shares)
        elif topics[0].prefers_racks:
            topics[0].fill(shares, topics[0].matches)


def _align_together(partitions: int, topics: Sequence[_TopicRanges], shares: Assignments) -> None:
    """Topics with the same members and number of partitions: equal partition numbers go to the same
    member."""
    remaining = dict.fromkeys(topics[0].members)
    for partition in range(partitions):
        for name in remaining:
            if all(topic.matches(name, partition) and topic.room(name) for topic in topics):
                for topic in topics:
                    topic.take(name, (partition,), shares)
                if not any(topic.room(name) for topic in topics):
                    del remaining[name]
                break


class RoundRobinAssignor(_StatelessAssignor):
    """Assigns all partitions of all topics in turn to the members that subscribe to them."""

    name: ClassVar[str] = "roundrobin"

    def assign(
        self, topics: Mapping[str, PartitionRacks], members: Mapping[str, Subscription]
    ) -> Assignments:
        shares: Assignments = {name: [] for name in members}
        turn = cycle(_in_order(members))
        for topic in sorted(topics):
            for partition in range(len(topics[topic])):
                name = next(name for name in turn if topic in members[name].topics)
                shares[name].append(TopicPartition(topic, partition))
        return shares


def _in_order(members: Mapping[str, Subscription]) -> list[str]:
    """Static members first, by group.instance.id, so that they keep their place under a new member id
    (KIP-345)."""

    def place(name: str) -> tuple[bool, str]:
        instance = members[name].instance_id
        return (instance is None, name if instance is None else instance)

    return sorted(members, key=place)


BY_NAME: Final[Mapping[str, Callable[[], Assignor]]] = {
    assignor.name: assignor
    for assignor in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
}


class UserAssignor:
    """Adapts an assignor of a user: optional methods are added, and its assignment is checked."""

    def __init__(self, given: Any) -> None:
        self._given = given
        self.name = str(given.name)
        self.cooperative = bool(getattr(given, "cooperative", False))

    def subscription_user_data(self, topics: Collection[str]) -> bytes | None:
        call = getattr(self._given, "subscription_user_data", None)
        found: bytes | None = None if call is None else call(topics)
        return found

    def on_assignment(self, assignment: Assignment, metadata: GroupMetadata) -> None:
        call = getattr(self._given, "on_assignment", None)
        if call is not None:
            call(assignment, metadata)

    def assign(
        self, topics: Mapping[str, PartitionRacks], members: Mapping[str, Subscription]
    ) -> dict[str, Assignment]:
        """An assignment for each member. Raises the exceptions of the assignor, and ValueError for an unknown
        member id."""
        shares = self._given.assign(topics, members)
        unknown = sorted(shares.keys() - members.keys())
        if unknown:
            raise ValueError(f"the assignor {self.name} assigns to {unknown[0]!r}, which is not a member")
        return {name: as_assignment(shares.get(name, ())) for name in members}


def as_assignment(share: Assignment | Sequence[TopicPartition]) -> Assignment:
    """An assignment from the result of an assignor for one member."""
    partitions, user_data = share if isinstance(share, Assignment) else (share, None)
    return Assignment(tuple(TopicPartition(*each) for each in partitions), user_data)


def assignors_of(strategies: Iterable[Any], settings: Settings) -> dict[str, Assignor]:
    """The assignors of partition.assignment.strategy by name, the preferred one first. Raises ConfigError."""
    key = "partition.assignment.strategy"
    found: dict[str, Assignor] = {}
    for given in strategies:
        assignor = BY_NAME[given]() if isinstance(given, str) else UserAssignor(made(key, given, settings))
        if assignor.name in found:
            raise ConfigError(key, assignor.name, "is the name of two assignors")
        found[assignor.name] = assignor
    return found
