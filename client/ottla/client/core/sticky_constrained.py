"""The sticky assignment of a group whose members all subscribe to the same topics.

Called by `sticky`. Invariant of the result: the numbers of partitions of two members differ by at most one,
and no partition moves without need. Members keep their partitions up to a quota; the rest is assigned in
turn, first to members in the rack of a partition (KIP-881), then to all.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from ottla.client.core.assignment import Assignments, PartitionRacks, Racks
from ottla.client.core.types import TopicPartition


class ConstrainedAssignment:
    """Computes one assignment; use `build`."""

    def __init__(
        self,
        topics: Mapping[str, PartitionRacks],
        racks: Racks,
        owned: Mapping[str, list[TopicPartition]],
        disputed: Set[TopicPartition],
    ) -> None:
        self.moved: dict[TopicPartition, str] = {}
        """Partitions that move between members; the previous owner may still own them."""
        self._all = [TopicPartition(topic, n) for topic in sorted(topics) for n in range(len(topics[topic]))]
        self._racks = racks
        self._owned = owned
        self._disputed = disputed
        self._previous_owner: dict[TopicPartition, str] = {}
        self._shares: Assignments = {name: [] for name in owned}
        self._quota_min, self._larger_expected = divmod(len(self._all), len(owned))
        self._quota_max = self._quota_min + (self._larger_expected > 0)
        self._larger = 0
        """The number of members that have more than the minimum so far."""
        self._below: list[str] = []
        """Members below the minimum."""
        self._exact: list[str] = []
        """Members at the minimum, which may get one more partition."""

    def build(self) -> Assignments:
        for name, places in self._owned.items():
            self._keep(name, places)
        kept = {place for share in self._shares.values() for place in share}
        unassigned = self._racks.hardest_first(place for place in self._all if place not in kept)
        self._below.sort()
        self._exact.sort()
        if self._racks.matter:
            unassigned = self._assign_in_racks(unassigned)
        self._assign_rest(unassigned)
        assert not any(len(self._shares[name]) < self._quota_min for name in self._shares)
        return self._shares

    def _keep(self, name: str, owned: list[TopicPartition]) -> None:
        places = []
        for place in sorted(owned, key=lambda place: (place.partition, place.topic)):
            if self._racks.mismatch(name, place):
                self._previous_owner[place] = name
            elif place not in self._disputed:
                places.append(place)
        if len(places) < self._quota_min:
            self._below.append(name)
            quota = len(places)
        elif len(places) >= self._quota_max and self._larger < self._larger_expected:
            self._count_larger()
            quota = self._quota_max
        else:
            quota = self._quota_min
            if self._larger < self._larger_expected:
                self._exact.append(name)
        self._shares[name] += places[:quota]
        for place in places[quota:]:
            self._previous_owner[place] = name

    def _count_larger(self) -> None:
        self._larger += 1
        if self._larger == self._larger_expected:
            self._exact.clear()

    def _assign_in_racks(self, unassigned: list[TopicPartition]) -> list[TopicPartition]:
        """Assign partitions in turn to members in their racks; returns the rest."""
        left = []
        turn = 0
        for place in unassigned:
            name = None
            index = self._racks.next_near(place, self._below, turn)
            if index >= 0:
                name = self._below[index]
                count = len(self._shares[name]) + 1
                if count >= self._quota_min:
                    del self._below[index]
                    if count < self._quota_max and self._larger < self._larger_expected:
                        self._exact.append(name)
                else:
                    index += 1
                turn = index % len(self._below) if self._below else 0
            elif self._exact and (near := self._racks.next_near(place, self._exact, 0)) >= 0:
                name = self._exact[near]
                if len(self._shares[name]) + 1 == self._quota_max:
                    del self._exact[near]
                    self._count_larger()
            if name is None:
                left.append(place)
            else:
                self._give(place, name)
        return left

    def _assign_rest(self, unassigned: list[TopicPartition]) -> None:
        turn = 0
        for place in unassigned:
            if turn >= len(self._below):
                turn = 0
            if self._below:
                name = self._below[turn]
                turn += 1
            else:
                name = self._exact.pop(0)
            if self._give(place, name) == self._quota_min:
                turn -= 1
                del self._below[turn]
                self._exact.append(name)

    def _give(self, place: TopicPartition, name: str) -> int:
        """Assign a partition; returns how many partitions the member has."""
        share = self._shares[name]
        share.append(place)
        if self._previous_owner.get(place, name) != name or place in self._disputed:
            self.moved[place] = name
        return len(share)
