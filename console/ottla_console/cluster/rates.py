"""Rates between two collections, and their history for charts. Pure.

Called by the collector after each collection. Records come from log end offsets, bytes from the sizes of
replicas, and what groups consume from their committed offsets, so that no metrics of brokers are needed.
A partition counts when both collections have it; what shrinks (retention, truncation, a rewind) counts as 0.
Bounded: `POINTS_MAX` points, in each of which at most `NAMES_MAX` topics and groups have values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from operator import itemgetter
from typing import Final, TypeVar

from ottla.client.admin_types import TopicPartition

K = TypeVar("K", bound=Hashable)
N = TypeVar("N", int, str)

POINTS_MAX: Final = 90
NAMES_MAX: Final = 2_000


@dataclass(frozen=True, slots=True)
class Counts:
    """The counters of one collection; None: not known."""

    at_s: float
    """Monotonic clock."""
    end_offsets: Mapping[TopicPartition, int] | None = None
    leader_bytes: Mapping[TopicPartition, int] | None = None
    """Sizes of the leaders' replicas."""
    replica_bytes: Mapping[tuple[int, TopicPartition], int] | None = None
    """Sizes of all replicas by broker."""
    committed: Mapping[tuple[str, TopicPartition], int] | None = None
    lags: Mapping[str, int] | None = None
    """By group."""
    leaders: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Point:
    """Rates per second between two collections, and lags at its end; None: not known."""

    at_s: float
    records_in: float | None = None
    bytes_in: float | None = None
    """Written by producers: of the leaders' replicas."""
    records_out: float | None = None
    """Committed by groups."""
    topic_records: Mapping[str, float] = field(default_factory=dict)
    """Above 0, by topic."""
    topic_bytes: Mapping[str, float] = field(default_factory=dict)
    broker_bytes: Mapping[int, float] = field(default_factory=dict)
    """Written to its disks, by broker."""
    broker_records_in: Mapping[int, float] = field(default_factory=dict)
    """Of the partitions that it leads, by broker."""
    broker_records_out: Mapping[int, float] = field(default_factory=dict)
    group_records: Mapping[str, float] = field(default_factory=dict)
    lags: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class History:
    """The newest points, oldest first."""

    points: tuple[Point, ...] = ()

    def with_point(self, point: Point) -> History:
        return History((*self.points, point)[-POINTS_MAX:])

    @property
    def last(self) -> Point | None:
        return self.points[-1] if self.points else None

    @property
    def span_ms(self) -> float:
        """The time that the points cover."""
        return 1000 * (self.points[-1].at_s - self.points[0].at_s) if self.points else 0.0

    def series(self, value: Callable[[Point], float | None]) -> list[float | None]:
        """A value of each point."""
        return [value(point) for point in self.points]

    def topic_records(self, topic: str) -> list[float | None]:
        return self.series(
            lambda point: None if point.records_in is None else point.topic_records.get(topic, 0.0)
        )

    def topic_bytes(self, topic: str) -> list[float | None]:
        return self.series(
            lambda point: None if point.bytes_in is None else point.topic_bytes.get(topic, 0.0)
        )

    def group_lag(self, group: str) -> list[float | None]:
        return self.series(lambda point: point.lags.get(group))

    def group_records(self, group: str) -> list[float | None]:
        return self.series(
            lambda point: None if point.records_out is None else point.group_records.get(group, 0.0)
        )


def point_between(before: Counts, after: Counts) -> Point:
    """The rates between two collections."""
    seconds = max(after.at_s - before.at_s, 1e-3)
    written = _growth(before.end_offsets, after.end_offsets)
    committed = _growth(before.committed, after.committed)
    topic_records = _by(written, lambda key: key.topic, seconds)
    topic_bytes = _by(_growth(before.leader_bytes, after.leader_bytes), lambda key: key.topic, seconds)
    broker_bytes = _by(_growth(before.replica_bytes, after.replica_bytes), lambda key: key[0], seconds)
    group_records = _by(committed, lambda key: key[0], seconds)
    return Point(
        after.at_s,
        None if topic_records is None else sum(topic_records.values()),
        None if topic_bytes is None else sum(topic_bytes.values()),
        None if group_records is None else sum(group_records.values()),
        _largest(topic_records),
        _largest(topic_bytes),
        broker_bytes or {},
        _by(written, lambda key: after.leaders.get(key, -1), seconds) or {},
        _by(committed, lambda key: after.leaders.get(key[1], -1), seconds) or {},
        _largest(group_records),
        _largest(after.lags),
    )


def _growth(before: Mapping[K, int] | None, after: Mapping[K, int] | None) -> Mapping[K, int] | None:
    """What has grown, by how much; None if either is unknown."""
    if before is None or after is None:
        return None
    return {key: value - before[key] for key, value in after.items() if key in before and value > before[key]}


def _by(growth: Mapping[K, int] | None, name: Callable[[K], N], seconds: float) -> dict[N, float] | None:
    if growth is None:
        return None
    found: defaultdict[N, float] = defaultdict(float)
    for key, value in growth.items():
        found[name(key)] += value / seconds
    return dict(found)


V = TypeVar("V", int, float)


def _largest(values: Mapping[str, V] | None) -> dict[str, V]:
    if values is None:
        return {}
    if len(values) <= NAMES_MAX:
        return dict(values)
    return dict(nlargest(NAMES_MAX, values.items(), key=itemgetter(1)))
