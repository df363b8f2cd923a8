"""The sticky assignment of a group whose members all subscribe to the same topics.

Called by `sticky`. Invariant of the result: nobody has two partitions more than anybody else, and no
partition that could have stayed within that went elsewhere. Members keep what they had up to their quota; the
rest goes around, first to those in a partition's rack (KIP-881), then to all.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from ottla.client.core.assignment import Assignments, PartitionRacks, Racks
from ottla.client.core.types import TopicPartition


class ConstrainedAssignment:
    def __init__(
        self,
        topics: Mapping[str, PartitionRacks],
        racks: Racks,
        owned: Mapping[str, list[TopicPartition]],
        disputed: Set[TopicPartition],
    ) -> None:
        self.moved: dict[TopicPartition, str] = {}
        """Partitions that one member may have still and another one gets."""
        self._all = [TopicPartition(topic, n) for topic in sorted(topics) for n in range(len(topics[topic]))]
        self._racks = racks
        self._owned = owned
        self._disputed = disputed
        self._given_up: dict[TopicPartition, str] = {}
        self._shares: Assignments = {name: [] for name in owned}
        self._least, self._larger_expected = divmod(len(self._all), len(owned))
        self._most = self._least + (self._larger_expected > 0)
        self._larger = 0
        """How many members have more than the least by now."""
        self._below: list[str] = []
        """Members that need more partitions."""
        self._exact: list[str] = []
        """Members that have the least, and could take one more."""

    def build(self) -> Assignments:
        for name, places in self._owned.items():
            self._keep(name, places)
        kept = {place for share in self._shares.values() for place in share}
        unassigned = self._racks.hardest_first(place for place in self._all if place not in kept)
        self._below.sort()
        self._exact.sort()
        if self._racks.matter:
            unassigned = self._hand_out_near(unassigned)
        self._hand_out(unassigned)
        assert not any(len(self._shares[name]) < self._least for name in self._shares)
        return self._shares

    def _keep(self, name: str, owned: list[TopicPartition]) -> None:
        places = []
        for place in sorted(owned, key=lambda place: (place.partition, place.topic)):
            if self._racks.mismatch(name, place):
                self._given_up[place] = name
            elif place not in self._disputed:
                places.append(place)
        if len(places) < self._least:
            self._below.append(name)
            quota = len(places)
        elif len(places) >= self._most and self._larger < self._larger_expected:
            self._one_more_is_larger()
            quota = self._most
        else:
            quota = self._least
            if self._larger < self._larger_expected:
                self._exact.append(name)
        self._shares[name] += places[:quota]
        for place in places[quota:]:
            self._given_up[place] = name

    def _one_more_is_larger(self) -> None:
        self._larger += 1
        if self._larger == self._larger_expected:
            self._exact.clear()

    def _hand_out_near(self, unassigned: list[TopicPartition]) -> list[TopicPartition]:
        """Around among members in each partition's rack; returns what is left."""
        left = []
        turn = 0
        for place in unassigned:
            name = None
            index = self._racks.next_near(place, self._below, turn)
            if index >= 0:
                name = self._below[index]
                count = len(self._shares[name]) + 1
                if count >= self._least:
                    del self._below[index]
                    if count < self._most and self._larger < self._larger_expected:
                        self._exact.append(name)
                else:
                    index += 1
                turn = index % len(self._below) if self._below else 0
            elif self._exact and (near := self._racks.next_near(place, self._exact, 0)) >= 0:
                name = self._exact[near]
                if len(self._shares[name]) + 1 == self._most:
                    del self._exact[near]
                    self._one_more_is_larger()
            if name is None:
                left.append(place)
            else:
                self._give(place, name)
        return left

    def _hand_out(self, unassigned: list[TopicPartition]) -> None:
        turn = 0
        for place in unassigned:
            if turn >= len(self._below):
                turn = 0
            if self._below:
                name = self._below[turn]
                turn += 1
            else:
                name = self._exact.pop(0)
            if self._give(place, name) == self._least:
                turn -= 1
                del self._below[turn]
                self._exact.append(name)

    def _give(self, place: TopicPartition, name: str) -> int:
        """How many the member has then."""
        share = self._shares[name]
        share.append(place)
        if self._given_up.get(place, name) != name or place in self._disputed:
            self.moved[place] = name
        return len(share)
