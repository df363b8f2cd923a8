"""Computes reassignments that drain brokers, balance them or change a replication factor, with few moves.

Called by `planning.cluster` (drain, scale-up) and `planning.topics` (replication factor). Every result maps
the partitions that change to their complete new replica list, preferred leader first.

Invariants (tested by property): a partition keeps its replication factor, on distinct brokers that may hold
replicas; `balance` moves none into fewer racks than it was in; without racks the brokers' loads differ by at
most one after it, and it moves just the replicas that exceed the even share.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise

from ottla_operator.planning.observed import PartitionKey, PartitionState
from ottla_operator.planning.placement import Layout, Racks, Unplaceable

__all__ = ["Changes", "Unplaceable", "balance", "batch", "change_factor", "drain"]

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

    New replicas get the best places (`planning.placement`). Replicas are removed in this order: out of sync,
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
