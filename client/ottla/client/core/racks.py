"""Which members could read a partition from a replica of their own rack (KIP-881).

Called by the assignors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set

from ottla.client.core.assignment import PartitionRacks, Subscription
from ottla.client.core.types import TopicPartition


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
