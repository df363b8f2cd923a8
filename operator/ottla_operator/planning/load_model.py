"""A cluster's replicas with their loads: what each broker holds, and what a move would change.

Built and changed by `planning.rebalance`; the goals that it has to meet are in `planning.rebalance_goals`.
For speed (60,000 replicas in pure Python), brokers and partitions are numbered, and loads are lists by
number. Loads are whole numbers of bytes, so that their sums do not depend on the order of the moves.

A replica takes disk space and incoming traffic. Only the leader sends: to consumers, and to each follower
what producers send to the leader. The first replica of a list is the leader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from ottla_operator.planning.observed import PartitionKey, PartitionLoad


@dataclass(frozen=True, slots=True)
class BrokerCapacity:
    """A broker as a place for replicas; None: unknown or without a limit."""

    rack: str | None = None
    disk: float | None = None
    """Bytes."""
    network_in: float | None = None
    """Bytes per second."""
    network_out: float | None = None
    movable: bool = True
    """Replicas may be moved to and from it; False: it keeps what it has, and balances leave it out."""


class Metric(IntEnum):
    """What a broker has of each kind: first that of all replicas, then that of leaders."""

    REPLICAS = 0
    DISK = 1
    NETWORK_IN = 2
    POTENTIAL_OUT = 3
    """What it would send if it led all its partitions."""
    NETWORK_OUT = 4
    LEADERS = 5
    LEADER_IN = 6
    """What producers send to the partitions that it leads."""


LEADER_METRICS: Final = (Metric.NETWORK_OUT, Metric.LEADERS, Metric.LEADER_IN)
REPLICA_METRICS: Final = (Metric.REPLICAS, Metric.DISK, Metric.NETWORK_IN, Metric.POTENTIAL_OUT)

Replicas = dict[int, tuple[int, ...]]
"""Replica lists by partition number."""


class LoadModel:
    """Replica lists and the loads that follow from them."""

    def __init__(
        self,
        assignment: Mapping[PartitionKey, Sequence[int]],
        loads: Mapping[PartitionKey, PartitionLoad],
        brokers: Mapping[int, BrokerCapacity],
    ) -> None:
        """`brokers`: all brokers that may hold replicas. A partition with a replica elsewhere, or on a broker
        that is not movable, does not move."""
        self.ids = sorted(brokers)
        self.capacities = [brokers[broker] for broker in self.ids]
        number = {broker: n for n, broker in enumerate(self.ids)}
        self.movable = [n for n, capacity in enumerate(self.capacities) if capacity.movable]
        numbers: dict[str | int, int] = {}
        self.racks = [
            numbers.setdefault(n if c.rack is None else c.rack, len(numbers))
            for n, c in enumerate(self.capacities)
        ]
        """By broker; one without a rack is a rack of its own."""
        self.rack_count = max(1, len({self.racks[broker] for broker in self.movable}))
        """Racks that replicas can be spread over."""
        self._rack_excess: dict[tuple[int, ...], int] = {}
        movable = set(self.movable)
        self.keys: list[PartitionKey] = []
        self.replicas: list[list[int]] = []
        self.fixed: set[int] = set()
        topics: dict[str, int] = {}
        self.topic: list[int] = []
        none = PartitionLoad()
        sizes, ins, outs = [], [], []
        for key in sorted(assignment):
            known = [number[broker] for broker in assignment[key] if broker in number]
            if len(known) < len(assignment[key]) or not movable.issuperset(known) or not known:
                self.fixed.add(len(self.keys))
            load = loads.get(key, none)
            self.keys.append(key)
            self.replicas.append(known)
            self.topic.append(topics.setdefault(key[0], len(topics)))
            bytes_in = float(round(load.bytes_in))
            sizes.append(float(load.size))
            ins.append(bytes_in)
            outs.append(round(load.bytes_out) + max(0, len(assignment[key]) - 1) * bytes_in)
        ones = [1.0] * len(self.keys)
        self.values: tuple[list[float], ...] = (ones, sizes, ins, outs, outs, ones, ins)
        """By metric: what each partition adds to a broker."""
        self.load: tuple[list[float], ...] = tuple([0.0] * len(self.ids) for _ in Metric)
        """By metric: what each broker has."""
        self.held: list[set[int]] = [set() for _ in self.ids]
        """The partitions that have a replica on each broker."""
        self.topic_count: list[list[int]] = [[0] * len(self.ids) for _ in topics]
        self.partition_sizes = sizes
        for partition, replicas in enumerate(self.replicas):
            for position, broker in enumerate(replicas):
                self._count(partition, broker, 1, leads=position == 0)

    def _count(self, partition: int, broker: int, sign: int, *, leads: bool) -> None:
        for metric in REPLICA_METRICS:
            self.load[metric][broker] += sign * self.values[metric][partition]
        self.topic_count[self.topic[partition]][broker] += sign
        if sign > 0:
            self.held[broker].add(partition)
        else:
            self.held[broker].discard(partition)
        if leads:
            self._count_leader(partition, broker, sign)

    def _count_leader(self, partition: int, broker: int, sign: int) -> None:
        for metric in LEADER_METRICS:
            self.load[metric][broker] += sign * self.values[metric][partition]

    def move(self, partition: int, source: int, target: int) -> None:
        """Move a replica; the new one has the old one's position in the list."""
        replicas = self.replicas[partition]
        assert target not in replicas, f"{self.keys[partition]} has a replica on {self.ids[target]} already"
        position = replicas.index(source)
        replicas[position] = target
        self._count(partition, source, -1, leads=position == 0)
        self._count(partition, target, 1, leads=position == 0)

    def lead(self, partition: int, target: int) -> None:
        """Exchange the leader's position with that of the replica on `target`."""
        replicas = self.replicas[partition]
        source, position = replicas[0], replicas.index(target)
        replicas[0], replicas[position] = target, source
        self._count_leader(partition, source, -1)
        self._count_leader(partition, target, 1)

    def replace(self, partition: int, replicas: Sequence[int]) -> None:
        """Give a partition another list of replicas."""
        for position, broker in enumerate(self.replicas[partition]):
            self._count(partition, broker, -1, leads=position == 0)
        self.replicas[partition] = list(replicas)
        for position, broker in enumerate(replicas):
            self._count(partition, broker, 1, leads=position == 0)

    def rack_excess(self, replicas: Sequence[int]) -> int:
        """By how much a replica list misses an even spread over racks: racks that it could use and does not,
        and replicas that a rack has too many."""
        racks = tuple([self.racks[broker] for broker in replicas])
        found = self._rack_excess.get(racks)
        if found is None:
            found = self._rack_excess[racks] = _uneven(racks, self.rack_count)
        return found

    def snapshot(self) -> list[tuple[int, ...]]:
        """All replica lists."""
        return [tuple(replicas) for replicas in self.replicas]


def _uneven(racks: Sequence[int], available: int) -> int:
    if not racks:
        return 0
    counts = Counter(racks)
    most = -(-len(racks) // available)
    return min(len(racks), available) - len(counts) + sum(max(0, n - most) for n in counts.values())
