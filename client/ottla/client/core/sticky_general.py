"""The sticky assignment of a group whose members subscribe to different topics.

Called by `sticky`. Owned partitions stay. Unassigned ones go to the subscribed member with the fewest
partitions. Then partitions move from members with more to members with fewer until the balance does not
improve. The result is used only if it is better balanced than the previous assignment.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from typing import TypeAlias

from ottla.client.core.assignment import Assignments, PartitionRacks, Racks, Subscription
from ottla.client.core.java_order import JavaSet
from ottla.client.core.types import TopicPartition

_Share: TypeAlias = dict[TopicPartition, None]


class GeneralAssignment:
    def __init__(
        self,
        topics: Mapping[str, PartitionRacks],
        members: Mapping[str, Subscription],
        racks: Racks,
        owned: Mapping[str, list[TopicPartition]],
        earlier: Mapping[TopicPartition, str],
    ) -> None:
        self._sizes = {topic: len(partitions) for topic, partitions in topics.items()}
        self._racks = racks
        self._earlier = earlier
        self._topics_of = {
            name: dict.fromkeys(topic for topic in member.topics if topic in topics)
            for name, member in members.items()
        }
        self._members_of: dict[str, list[str]] = {topic: [] for topic in topics}
        for name, subscribed in self._topics_of.items():
            for topic in subscribed:
                self._members_of[topic].append(name)
        self._shares: dict[str, _Share] = {name: dict.fromkeys(owned[name]) for name in members}
        self._owner = {place: name for name, share in self._shares.items() for place in share}
        by_choice = sorted(topics, key=lambda topic: (len(self._members_of[topic]), topic))
        self._all = [TopicPartition(topic, n) for topic in by_choice for n in range(self._sizes[topic])]
        self._ranking: list[tuple[int, str]] = []
        """Members by the size of their shares."""
        self._movements = _Movements()

    def build(self) -> Assignments:
        revoked = self._give_up()
        unassigned = [place for place in self._all if place not in self._owner]
        self._ranking = sorted((len(share), name) for name, share in self._shares.items())
        fresh = self._ranking[-1][0] == 0
        self._assign(unassigned)
        movable = {topic for topic, names in self._members_of.items() if len(names) >= 2}
        fixed = self._set_aside(movable)
        before = {name: dict(share) for name, share in self._shares.items()}
        if self._shares:
            if not revoked:
                self._reassign([place for place in unassigned if place.topic in movable])
            if (
                self._reassign([place for place in self._all if place.topic in movable])
                and not fresh
                and _imbalance(self._shares) >= _imbalance(before)
            ):
                self._shares = before
        return {name: list(share) for name, share in (self._shares | fixed).items()}

    def _give_up(self) -> bool:
        """Take away what members may not have any more; whether there was any."""
        revoked = False
        for name, share in self._shares.items():
            for place in list(share):
                if place.topic not in self._topics_of[name] or self._racks.mismatch(name, place):
                    del share[place], self._owner[place]
                    revoked = True
        return revoked

    def _assign(self, unassigned: list[TopicPartition]) -> None:
        if self._racks.matter:
            near = self._racks.mismatch
            unassigned = [
                place for place in unassigned if not self._assign_one(place, lambda n, p: not near(n, p))
            ]
        for place in unassigned:
            self._assign_one(place, lambda name, place: True)

    def _assign_one(self, place: TopicPartition, may: Callable[[str, TopicPartition], bool]) -> bool:
        for _, name in self._ranking:
            if place.topic in self._topics_of[name] and may(name, place):
                self._rank_again(name, lambda share: share.setdefault(place))
                self._owner[place] = name
                return True
        return False

    def _rank_again(self, name: str, change: Callable[[_Share], object]) -> None:
        share = self._shares[name]
        del self._ranking[bisect_left(self._ranking, (len(share), name))]
        change(share)
        insort(self._ranking, (len(share), name))

    def _set_aside(self, movable: set[str]) -> dict[str, _Share]:
        """Members that can neither get nor lose anything."""
        fixed = {}
        for name, share in list(self._shares.items()):
            if len(share) >= self._limit(name) and not any(place.topic in movable for place in share):
                del self._ranking[bisect_left(self._ranking, (len(share), name))]
                fixed[name] = self._shares.pop(name)
        return fixed

    def _limit(self, name: str) -> int:
        return sum(self._sizes[topic] for topic in self._topics_of[name])

    def _reassign(self, places: list[TopicPartition]) -> bool:
        """Move partitions until it is balanced, or none can be moved any more; whether any was."""
        moved = False
        improved = True
        while improved:
            improved = False
            for place in places:
                if self._balanced():
                    break
                target = self._better_owner(place)
                if target is not None:
                    self._move(place, target)
                    moved = improved = True
        return moved

    def _better_owner(self, place: TopicPartition) -> str | None:
        shares = self._shares
        owner = self._owner[place]
        size = len(shares[owner])
        earlier = self._earlier.get(place)
        if earlier in shares and place.topic in self._topics_of[earlier] and size > len(shares[earlier]) + 1:
            return earlier
        if any(size > len(shares[other]) + 1 for other in self._members_of[place.topic]):
            return next(name for _, name in self._ranking if place.topic in self._topics_of[name])
        return None

    def _move(self, place: TopicPartition, target: str) -> None:
        place = self._movements.instead(place, self._owner[place], target)
        owner = self._owner[place]
        self._movements.add(place, owner, target)
        self._rank_again(owner, lambda share: share.pop(place))
        self._rank_again(target, lambda share: share.setdefault(place))
        self._owner[place] = target

    def _balanced(self) -> bool:
        """Whether no member could get a partition from a member that has at least two more."""
        if self._ranking[0][0] >= self._ranking[-1][0] - 1:
            return True
        for size, name in self._ranking:
            share = self._shares[name]
            if size == self._limit(name):
                continue
            for topic in self._topics_of[name]:
                for partition in range(self._sizes[topic]):
                    place = TopicPartition(topic, partition)
                    if place not in share and size + 1 < len(self._shares[self._owner[place]]):
                        return False
        return True


class _Movements:
    """Who gave what to whom, so that no partition of a topic goes one way and another one back."""

    def __init__(self) -> None:
        self._pair_of: dict[TopicPartition, tuple[str, str]] = {}
        self._places: dict[tuple[str, str, str], JavaSet] = {}

    def add(self, place: TopicPartition, owner: str, target: str) -> None:
        before = self._pair_of.pop(place, None)
        if before is not None:
            source, _ = before
            places = self._places[place.topic, *before]
            places.remove(place)
            if not places:
                del self._places[place.topic, *before]
            if source == target:
                return
            owner = source
        self._pair_of[place] = (owner, target)
        self._places.setdefault((place.topic, owner, target), JavaSet()).add(place)

    def instead(self, place: TopicPartition, owner: str, target: str) -> TopicPartition:
        """A partition of the topic that came from `target` to `owner`, if one did: it rather goes back."""
        if place in self._pair_of:
            owner, _ = self._pair_of[place]
        opposite = self._places.get((place.topic, target, owner))
        return opposite.first() if opposite else place


def _imbalance(shares: Mapping[str, Iterable[TopicPartition]]) -> int:
    sizes = [len(list(share)) for share in shares.values()]
    return sum(abs(one - other) for one, other in combinations(sizes, 2))
