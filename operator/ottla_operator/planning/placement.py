"""Replica placement: a mutable assignment with load counts, and the rules for the best broker.

Used by `rebalance` (moves) and `topics` (new replicas). The best broker has, in this order: no replica of the
partition; a rack without one; the fewest replicas of the topic; the fewest replicas; the lowest id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from ottla_operator.planning.observed import PartitionKey

Racks = Mapping[int, str | None]
"""The brokers that may hold replicas, with their racks."""


class Unplaceable(Exception):
    """There are fewer brokers than replicas to place."""


class Layout:
    """Replica lists by partition, preferred leader first, with the load of each broker."""

    def __init__(
        self,
        assignment: Mapping[PartitionKey, Sequence[int]],
        racks: Racks,
        closed: Collection[int] = (),
    ) -> None:
        """`closed` brokers keep their replicas and get no new ones."""
        self.racks = dict(racks)
        self.open = [broker for broker in racks if broker not in closed]
        self.replicas: dict[PartitionKey, list[int]] = {key: list(r) for key, r in assignment.items()}
        self.load: Counter[int] = Counter()
        self.topic_load: Counter[tuple[str, int]] = Counter()
        self.on_broker: dict[int, set[PartitionKey]] = {}
        for key, replicas in self.replicas.items():
            for broker in replicas:
                self._count(key, broker, 1)

    def _count(self, key: PartitionKey, broker: int, change: int) -> None:
        self.load[broker] += change
        self.topic_load[key[0], broker] += change
        on_broker = self.on_broker.setdefault(broker, set())
        if change > 0:
            on_broker.add(key)
        else:
            on_broker.discard(key)

    def replace(self, key: PartitionKey, old: int, new: int) -> None:
        """Move a replica; the new one has the old one's position in the list."""
        replicas = self.replicas[key]
        assert new not in replicas, f"{key} has a replica on broker {new} already"
        replicas[replicas.index(old)] = new
        self._count(key, old, -1)
        self._count(key, new, 1)

    def add(self, key: PartitionKey, broker: int) -> None:
        replicas = self.replicas.setdefault(key, [])
        assert broker not in replicas, f"{key} has a replica on broker {broker} already"
        replicas.append(broker)
        self._count(key, broker, 1)

    def remove(self, key: PartitionKey, broker: int) -> None:
        self.replicas[key].remove(broker)
        self._count(key, broker, -1)

    def rack_spread(self, replicas: Sequence[int]) -> int:
        """The number of racks of the replicas; a broker without a rack counts as one."""
        return len({self.racks.get(broker) or broker for broker in replicas})

    def best_place(self, key: PartitionKey, *, instead_of: int | None = None) -> int:
        """The best broker for an additional replica, or for that on `instead_of`. Raises Unplaceable."""
        replicas = self.replicas.get(key, [])
        others = [broker for broker in replicas if broker != instead_of]
        candidates = [broker for broker in self.open if broker not in replicas]
        if not candidates:
            raise Unplaceable(
                f"{key[0]}-{key[1]} needs {len(others) + 1} replicas; {len(self.open)} brokers are available"
            )
        return min(
            candidates,
            key=lambda broker: (
                -self.rack_spread([*others, broker]),
                self.topic_load[key[0], broker],
                self.load[broker],
                broker,
            ),
        )

    def place_new(self, topic: str, first: int, count: int, factor: int) -> list[tuple[int, ...]]:
        """Replica lists for `count` new partitions of a topic from number `first`, with evenly spread
        leaders."""
        leaders: Counter[int] = Counter(
            replicas[0] for key, replicas in self.replicas.items() if replicas and key[0] == topic
        )
        placed: list[tuple[int, ...]] = []
        for number in range(first, first + count):
            key = (topic, number)
            for _ in range(factor):
                self.add(key, self.best_place(key))
            replicas = self.replicas[key]
            leader = min(replicas, key=lambda broker: (leaders[broker], self.load[broker], broker))
            replicas.remove(leader)
            replicas.insert(0, leader)
            leaders[leader] += 1
            placed.append(tuple(replicas))
        return placed
