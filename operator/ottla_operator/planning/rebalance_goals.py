"""The goals of a rebalance and the limits that each one sets for the brokers' loads.

Used by `planning.rebalance`. Names, order of priority and default thresholds are those of Cruise Control,
without its CPU goals: brokers do not measure CPU time by partition. Hard goals must be met; soft goals are
met in their order, each one as far as those before it allow.

The cost of a goal is the load beyond its limits as a multiple of the mean load of a broker: 0 when it is met.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ottla_operator.planning.load_model import LEADER_METRICS, LoadModel, Metric


class Goal(StrEnum):
    """The goals, in their order."""

    RACK_AWARENESS = "RackAwareness"
    REPLICA_CAPACITY = "ReplicaCapacity"
    DISK_CAPACITY = "DiskCapacity"
    NETWORK_IN_CAPACITY = "NetworkInboundCapacity"
    NETWORK_OUT_CAPACITY = "NetworkOutboundCapacity"
    REPLICA_DISTRIBUTION = "ReplicaDistribution"
    POTENTIAL_NETWORK_OUT = "PotentialNetworkOutbound"
    DISK_USAGE = "DiskUsageDistribution"
    NETWORK_IN_USAGE = "NetworkInboundUsageDistribution"
    NETWORK_OUT_USAGE = "NetworkOutboundUsageDistribution"
    TOPIC_REPLICA_DISTRIBUTION = "TopicReplicaDistribution"
    LEADER_REPLICA_DISTRIBUTION = "LeaderReplicaDistribution"
    LEADER_BYTES_IN = "LeaderBytesInDistribution"


HARD_GOALS: Final = (
    Goal.RACK_AWARENESS,
    Goal.REPLICA_CAPACITY,
    Goal.DISK_CAPACITY,
    Goal.NETWORK_IN_CAPACITY,
    Goal.NETWORK_OUT_CAPACITY,
)
SOFT_GOALS: Final = tuple(goal for goal in Goal if goal not in HARD_GOALS)

METRICS: Final = {
    Goal.REPLICA_CAPACITY: Metric.REPLICAS,
    Goal.DISK_CAPACITY: Metric.DISK,
    Goal.NETWORK_IN_CAPACITY: Metric.NETWORK_IN,
    Goal.NETWORK_OUT_CAPACITY: Metric.NETWORK_OUT,
    Goal.REPLICA_DISTRIBUTION: Metric.REPLICAS,
    Goal.POTENTIAL_NETWORK_OUT: Metric.POTENTIAL_OUT,
    Goal.DISK_USAGE: Metric.DISK,
    Goal.NETWORK_IN_USAGE: Metric.NETWORK_IN,
    Goal.NETWORK_OUT_USAGE: Metric.NETWORK_OUT,
    Goal.LEADER_REPLICA_DISTRIBUTION: Metric.LEADERS,
    Goal.LEADER_BYTES_IN: Metric.LEADER_IN,
}
"""The load that a goal limits. The other two goals have their own rules."""

BALANCE_MARGIN: Final = 0.9
"""A plan aims at this share of the tolerated difference from the mean: a balanced cluster stays balanced."""

# Kafka's topics with few partitions may differ by so many replicas; those with many not by more.
_TOPIC_GAP_MIN, _TOPIC_GAP_MAX = 2, 40


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When a goal is met: capacities as the share of a broker's that may be used; balances as a multiple of
    the mean, 1.1: at most 10 % more and 10 % less."""

    replicas_max: int = 10_000
    disk_capacity: float = 0.8
    network_capacity: float = 0.8
    replicas: float = 1.1
    disk: float = 1.1
    network_in: float = 1.1
    network_out: float = 1.1
    leaders: float = 1.1
    topic_replicas: float = 3.0
    disk_gap: float = 0.0
    """Bytes; a smaller difference from the mean is not worth a move."""
    network_gap: float = 0.0
    """Bytes per second."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The loads by broker that a goal allows, without regard to heavy partitions."""

    goal: Goal
    metric: Metric
    low: Sequence[float]
    high: Sequence[float]
    mean: float
    tolerated: float = math.inf
    """By which share the load of a broker may exceed that of a partition that is heavier than the mean."""
    heavy: frozenset[int] = frozenset()
    """These partitions: no placement brings their brokers to the mean."""

    @property
    def hard(self) -> bool:
        return self.goal in HARD_GOALS

    def high_with(self, broker: int, model: LoadModel) -> float:
        """The upper limit of a broker, with the heavy partitions that count on it."""
        high = self.high[broker]
        for partition in self.heavy:
            replicas = model.replicas[partition]
            if replicas[0] == broker or (self.metric not in LEADER_METRICS and broker in replicas):
                high = max(high, model.values[self.metric][partition] * (1 + self.tolerated))
        return high


_BALANCES: Final = {
    Goal.REPLICA_DISTRIBUTION: "replicas",
    Goal.DISK_USAGE: "disk",
    Goal.NETWORK_IN_USAGE: "network_in",
    Goal.NETWORK_OUT_USAGE: "network_out",
    Goal.LEADER_REPLICA_DISTRIBUTION: "leaders",
    Goal.LEADER_BYTES_IN: "network_in",
}
COUNTS: Final = (Metric.REPLICAS, Metric.LEADERS)


def limits_of(goal: Goal, model: LoadModel, thresholds: Thresholds, margin: float) -> Limits | None:
    """The limits of a goal; None when it does not apply, as with unknown capacities.

    `margin`: the share of the tolerated difference from the mean: BALANCE_MARGIN in a plan, 1 where a balance
    is judged.
    """
    metric = METRICS.get(goal)
    if metric is None or not model.movable:
        return None
    size = len(model.ids)
    load = model.load[metric]
    mean = sum(load[b] for b in model.movable) / len(model.movable)
    if goal in HARD_GOALS or goal is Goal.POTENTIAL_NETWORK_OUT:
        high = _capacities(goal, model, thresholds)
        if all(math.isinf(limit) for limit in high):
            return None
        return Limits(goal, metric, [0.0] * size, high, max(mean, 1e-9))
    tolerated = (getattr(thresholds, _BALANCES[goal]) - 1.0) * margin
    heavy: frozenset[int] = frozenset()
    if metric not in COUNTS:
        mean, heavy = _without_heavy(metric, model)
    shares = _shares(goal, model)
    highs, lows = [math.inf] * size, [0.0] * size
    gap = thresholds.disk_gap if metric is Metric.DISK else thresholds.network_gap
    for broker in model.movable:
        fair = mean * shares[broker]
        if metric in COUNTS:
            highs[broker] = math.ceil(fair * (1 + tolerated))
            lows[broker] = math.floor(fair * (1 - tolerated))
        else:
            difference = max(fair * tolerated, gap * margin)
            highs[broker] = fair + difference
            lows[broker] = max(0.0, fair - difference)
        if goal is Goal.LEADER_BYTES_IN:
            lows[broker] = 0.0
    return Limits(goal, metric, lows, highs, max(mean, 1e-9), tolerated, heavy)


def _without_heavy(metric: Metric, model: LoadModel) -> tuple[float, frozenset[int]]:
    """The mean load, and the partitions that alone exceed it. These are left out of the mean, with as many
    brokers as hold them: the others could not reach a mean that counts them."""
    values, load = model.values[metric], model.load[metric]
    total, brokers = sum(load[b] for b in model.movable), len(model.movable)
    heavy = set()
    for partition in heapq.nlargest(brokers, range(len(values)), key=values.__getitem__):
        copies = 1 if metric in LEADER_METRICS else len(model.replicas[partition])
        value = values[partition]
        if brokers <= copies or value * brokers <= total:
            break
        if partition not in model.fixed:
            heavy.add(partition)
            total -= value * copies
            brokers -= copies
    return total / brokers, frozenset(heavy)


def _capacities(goal: Goal, model: LoadModel, thresholds: Thresholds) -> list[float]:
    if goal is Goal.REPLICA_CAPACITY:
        return [float(thresholds.replicas_max)] * len(model.ids)
    found = []
    for capacity in model.capacities:
        if goal is Goal.DISK_CAPACITY:
            value, share = capacity.disk, thresholds.disk_capacity
        elif goal is Goal.NETWORK_IN_CAPACITY:
            value, share = capacity.network_in, thresholds.network_capacity
        else:
            value, share = capacity.network_out, thresholds.network_capacity
        found.append(math.inf if value is None else value * share)
    return found


def _shares(goal: Goal, model: LoadModel) -> list[float]:
    """Each broker's fair share as a multiple of the mean: of the disk by its capacity, else equal."""
    shares = [1.0] * len(model.ids)
    disks = [model.capacities[broker].disk for broker in model.movable]
    known = [disk for disk in disks if disk]
    if goal is Goal.DISK_USAGE and len(known) == len(disks):
        mean = sum(known) / len(known)
        for broker, disk in zip(model.movable, known, strict=True):
            shares[broker] = disk / mean
    return shares


def topic_limits(model: LoadModel, thresholds: Thresholds) -> list[tuple[int, int]]:
    """The fewest and the most replicas of each topic on one broker."""
    found = []
    tolerated = (thresholds.topic_replicas - 1.0) * BALANCE_MARGIN
    for counts in model.topic_count:
        mean = sum(counts[b] for b in model.movable) / max(1, len(model.movable))
        wide = min(max(mean * tolerated, _TOPIC_GAP_MIN), _TOPIC_GAP_MAX)
        found.append((max(0, math.floor(mean - wide)), math.ceil(mean + wide)))
    return found


def rack_cost(model: LoadModel) -> float:
    """The sum of what the partitions miss of an even spread over racks."""
    return float(sum(model.rack_excess(r) for p, r in enumerate(model.replicas) if p not in model.fixed))


def topic_cost(model: LoadModel, limits: Sequence[tuple[int, int]]) -> float:
    return float(
        sum(
            max(0, counts[broker] - high) + max(0, low - counts[broker])
            for counts, (low, high) in zip(model.topic_count, limits, strict=True)
            for broker in model.movable
        )
    )
