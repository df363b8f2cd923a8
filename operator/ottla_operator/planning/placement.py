"""Replica placement: the best broker for a replica, and reassignments with few moves.

Used by the planners of clusters (drain, scale-up) and topics (new replicas, replication factor). The best
broker has, in this order: no replica of the partition; a rack without one; the fewest replicas of the topic;
the fewest replicas; the lowest id. Every reassignment maps the partitions that change to their complete new
replica list, preferred leader first.

Invariants (tested by property): a partition keeps its replication factor, on distinct brokers that may hold
replicas; `balance` moves none into fewer racks than it was in; without racks the brokers' loads differ by at
most one after it, and it moves just the replicas that exceed the even share.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise

from ottla_operator.planning.observed import PartitionKey, PartitionState

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
        """Add a replica at the end of the list."""
        replicas = self.replicas.setdefault(key, [])
        assert broker not in replicas, f"{key} has a replica on broker {broker} already"
        replicas.append(broker)
        self._count(key, broker, 1)

    def remove(self, key: PartitionKey, broker: int) -> None:
        """Remove a replica."""
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


# ---- reassignments

Changes = dict[PartitionKey, tuple[int, ...]]

# Partitions of one batch: enough to use all brokers, few enough to cancel, and to leave disk and network
# bandwidth to clients.
BATCH_PARTITIONS = 20


def _changes(layout: Layout, before: Mapping[PartitionKey, Sequence[int]]) -> Changes:
    return {
        key: tuple(replicas)
        for key, replicas in sorted(layout.replicas.items())
        if tuple(replicas) != tuple(before[key])
    }


def drain(
    assignment: Mapping[PartitionKey, Sequence[int]], staying: Racks, closed: Collection[int] = ()
) -> Changes:
    """Move replicas off every broker that is not in `staying`; no other replica moves. Raises Unplaceable."""
    layout = Layout(assignment, staying, closed)
    _drain(layout)
    return _changes(layout, assignment)


def _drain(layout: Layout) -> None:
    for key in sorted(layout.replicas):
        for broker in list(layout.replicas[key]):
            if broker not in layout.racks:
                layout.replace(key, broker, layout.best_place(key, instead_of=broker))


def balance(
    assignment: Mapping[PartitionKey, Sequence[int]], brokers: Racks, closed: Collection[int] = ()
) -> Changes:
    """Drain brokers that are not in `brokers`, then balance replicas and preferred leaders among the open
    ones."""
    layout = Layout(assignment, brokers, closed)
    _drain(layout)
    _even_out(layout)
    _spread_leaders(layout)
    return _changes(layout, assignment)


def _even_out(layout: Layout) -> None:
    """Move replicas from loaded to idle brokers until none differ by two.

    Each round takes the shortest chain of moves from a most loaded broker to one with at least two fewer;
    without racks a chain is always one move, since the loaded broker must hold a partition that the idle one
    does not.
    """
    while True:
        by_load = sorted(layout.open, key=lambda broker: (-layout.load[broker], broker))
        if not by_load or layout.load[by_load[0]] - layout.load[by_load[-1]] < 2:
            return
        for source in by_load:
            chain = _chain(
                layout.open,
                source,
                has_move=lambda a, b: _movable(layout, a, b) is not None,
                load=layout.load,
            )
            if chain and _move_along(layout, chain):
                break
        else:
            return


def _chain(
    brokers: Iterable[int],
    source: int,
    *,
    has_move: Callable[[int, int], bool],
    load: Counter[int],
) -> list[int] | None:
    """The shortest chain of possible moves from `source` to a broker with a load of at least two less;
    None: none."""
    order = sorted(brokers, key=lambda broker: (load[broker], broker))
    load_max = load[source] - 2
    if load[order[0]] > load_max:
        return None
    came_from: dict[int, int | None] = {source: None}
    queue = deque([source])
    while queue:
        here = queue.popleft()
        for there in order:
            if there in came_from or not has_move(here, there):
                continue
            came_from[there] = here
            if load[there] <= load_max:
                path = [there]
                step: int | None = here
                while step is not None:
                    path.append(step)
                    step = came_from[step]
                return path[::-1]
            queue.append(there)
    return None


def _movable(layout: Layout, source: int, target: int) -> PartitionKey | None:
    """The best partition to move from `source` to `target` without fewer racks; None: none."""
    candidates = layout.on_broker.get(source, set()) - layout.on_broker.get(target, set())
    best: tuple[int, PartitionKey] | None = None
    for key in candidates:
        replicas = layout.replicas[key]
        moved = [target if broker == source else broker for broker in replicas]
        if layout.rack_spread(moved) < layout.rack_spread(replicas):
            continue
        spread = layout.topic_load[key[0], target] - layout.topic_load[key[0], source]
        if best is None or (spread, key) < best:
            best = (spread, key)
    return best[1] if best is not None else None


def _move_along(layout: Layout, chain: Sequence[int]) -> bool:
    """Apply every move of the chain, or none. Returns whether it was applied."""
    done: list[tuple[PartitionKey, int, int]] = []
    for source, target in pairwise(chain):
        key = _movable(layout, source, target)
        if key is None:
            for moved, a, b in reversed(done):
                layout.replace(moved, b, a)
            return False
        layout.replace(key, source, target)
        done.append((key, source, target))
    return True


def _spread_leaders(layout: Layout) -> None:
    """Reorder replica lists until no two brokers' preferred leaderships differ by two, as far as it goes.

    No data moves; few partitions are touched, by the same shortest chains.
    """
    led: dict[int, set[PartitionKey]] = {broker: set() for broker in layout.open}
    for key, replicas in layout.replicas.items():
        if replicas[0] in led:
            led[replicas[0]].add(key)

    def handover(source: int, target: int) -> PartitionKey | None:
        return min((key for key in led[source] if target in layout.replicas[key]), default=None)

    while True:
        counts = Counter({broker: len(keys) for broker, keys in led.items()})
        by_load = sorted(counts, key=lambda broker: (-counts[broker], broker))
        for source in by_load:
            chain = _chain(
                led,
                source,
                has_move=lambda a, b: handover(a, b) is not None,
                load=counts,
            )
            if chain:
                break
        else:
            return
        for source, target in pairwise(chain):
            moved = handover(source, target)
            assert moved is not None, "a shortest chain hands over a different partition at each step"
            replicas = layout.replicas[moved]
            replicas.remove(target)
            replicas.insert(0, target)
            led[source].discard(moved)
            led[target].add(moved)


def change_factor(
    partitions: Iterable[PartitionState],
    factor: int,
    assignment: Mapping[PartitionKey, Sequence[int]],
    brokers: Racks,
    closed: Collection[int] = (),
) -> Changes:
    """The reassignment that gives each of the partitions `factor` replicas. Raises Unplaceable.

    New replicas get the best places (`Layout.best_place`). Replicas are removed in this order: out of sync,
    second of a rack, on the most loaded brokers. The preferred leader stays.
    """
    layout = Layout(assignment, brokers, closed)
    for partition in sorted(partitions, key=lambda p: p.key):
        key = partition.key
        while len(layout.replicas[key]) < factor:
            layout.add(key, layout.best_place(key))
        while len(layout.replicas[key]) > factor:
            layout.remove(key, _dispensable(layout, partition))
    return _changes(layout, assignment)


def _dispensable(layout: Layout, partition: PartitionState) -> int:
    replicas = layout.replicas[partition.key]
    return max(
        replicas[1:],
        key=lambda broker: (
            broker not in partition.isr,
            layout.rack_spread([other for other in replicas if other != broker]),
            layout.load[broker],
            broker,
        ),
    )


def batch(changes: Changes, limit: int = BATCH_PARTITIONS) -> Changes:
    """The first `limit` partitions of a reassignment."""
    return dict(sorted(changes.items())[:limit])
