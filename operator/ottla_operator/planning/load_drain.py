"""Moves replicas off brokers that leave, to those where they add least to the load.

Pure; called by `planning.rebalance_run` when the loads are known (`placement.drain` goes by numbers). The
heaviest replicas are placed first. The best broker has, in this order: no replica of the partition; a rack
that spreads it best; room in its capacities; the least load beyond what the goals tolerate; the smallest rise
of the sum of the squared loads.

Invariants (tested by property): as of `placement.drain`: only replicas on brokers that leave move, each one
once and to a broker that may take it; a partition keeps its replication factor, on distinct brokers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ottla_operator.planning.load_model import LEADER_METRICS, BrokerCapacity, LoadModel, Metric
from ottla_operator.planning.observed import PartitionKey, PartitionLoad, partition_name
from ottla_operator.planning.placement import Changes, Unplaceable
from ottla_operator.planning.rebalance_goals import HARD_GOALS, Thresholds, limits_of

_METRICS: Final = tuple(metric for metric in Metric if metric is not Metric.POTENTIAL_OUT)


def drain_by_load(
    assignment: Mapping[PartitionKey, Sequence[int]],
    loads: Mapping[PartitionKey, PartitionLoad],
    brokers: Mapping[int, BrokerCapacity],
    thresholds: Thresholds,
) -> Changes:
    """`brokers`: those that may hold replicas; all others leave. Raises Unplaceable."""
    leaving = {b for replicas in assignment.values() for b in replicas if b not in brokers}
    gone = BrokerCapacity(movable=False)
    model = LoadModel(assignment, loads, {**brokers, **dict.fromkeys(leaving, gone)})
    places = _Places(model, {model.ids.index(broker) for broker in leaving}, thresholds)
    start = model.snapshot()
    moving = [
        (partition, broker)
        for partition, replicas in enumerate(start)
        for broker in replicas
        if broker in places.leaving
    ]
    for partition, source in sorted(moving, key=lambda move: (-places.weight(*move), move)):
        model.move(partition, source, places.best(partition, source))
    return {
        key: tuple(model.ids[broker] for broker in model.replicas[partition])
        for partition, key in enumerate(model.keys)
        if tuple(model.replicas[partition]) != start[partition]
    }


class _Places:
    """The brokers that stay, as places for replicas."""

    def __init__(self, model: LoadModel, leaving: set[int], thresholds: Thresholds) -> None:
        self._model = model
        self.leaving = leaving
        limits = [limits_of(goal, model, thresholds, 1.0) for goal in HARD_GOALS]
        self._capacities = [(limit.metric, limit.high) for limit in limits if limit is not None]
        shares = _disk_shares(model)
        self._tolerated = {
            Metric.REPLICAS: thresholds.replicas,
            Metric.DISK: thresholds.disk,
            Metric.NETWORK_IN: thresholds.network_in,
            Metric.NETWORK_OUT: thresholds.network_out,
            Metric.LEADERS: thresholds.leaders,
            Metric.LEADER_IN: thresholds.network_in,
        }
        gaps = {Metric.DISK: thresholds.disk_gap, Metric.REPLICAS: 1.0, Metric.LEADERS: 1.0}
        self._fair: dict[Metric, list[float]] = {}
        """By metric: what each broker would have of an even load; at least what is worth a move."""
        for metric in _METRICS:
            mean = sum(model.load[metric]) / max(1, len(model.movable))
            floor = max(gaps.get(metric, thresholds.network_gap), 1e-9)
            self._fair[metric] = [
                max(mean * (share if metric is Metric.DISK else 1.0), floor) for share in shares
            ]

    def _adds(self, partition: int, source: int) -> list[tuple[Metric, float]]:
        leads = self._model.replicas[partition][0] == source
        return [
            (metric, self._model.values[metric][partition])
            for metric in _METRICS
            if leads or metric not in LEADER_METRICS
        ]

    def weight(self, partition: int, source: int) -> float:
        """The largest share of an even load that the replica brings."""
        adds = self._adds(partition, source)
        return max(value / self._fair[metric][source] for metric, value in adds)

    def best(self, partition: int, source: int) -> int:
        """The best broker for a replica that leaves `source`."""
        model = self._model
        replicas = model.replicas[partition]
        candidates = [broker for broker in model.movable if broker not in replicas]
        if not candidates:
            raise Unplaceable(
                f"{partition_name(model.keys[partition])} needs {len(replicas)} replicas; "
                f"{len(model.movable)} brokers are available"
            )
        others = [broker for broker in replicas if broker not in self.leaving]
        adds = self._adds(partition, source)

        def key(broker: int) -> tuple[int, int, float, float, int]:
            full = sum(
                model.load[metric][broker] + model.values[metric][partition] > high[broker]
                for metric, high in self._capacities
            )
            beyond = rise = 0.0
            for metric, value in adds:
                load, fair = model.load[metric][broker], self._fair[metric][broker]
                room = max(0.0, fair * self._tolerated[metric] - load)
                beyond += max(0.0, value - room) / fair
                rise += value * (2 * load + value) / (fair * fair)
            return model.rack_excess([*others, broker]), full, beyond, rise, broker

        return min(candidates, key=key)


def _disk_shares(model: LoadModel) -> list[float]:
    """Each broker's disk as a multiple of the mean of those that take replicas; 1 when one is unknown."""
    sizes = [model.capacities[broker].disk for broker in model.movable]
    known = [size for size in sizes if size]
    shares = [1.0] * len(model.ids)
    if len(known) == len(sizes):
        for broker, size in zip(model.movable, known, strict=True):
            shares[broker] = size * len(known) / sum(known)
    return shares
