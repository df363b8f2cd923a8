"""Sensors of metrics: totals, and rates, averages and maxima over time windows, as in Kafka's clients.

Recorded by the request managers and the network, once for a batch or a request and never for a record; read
on demand. As in Kafka, `samples` windows of `window_s` are kept (metrics.num.samples,
metrics.sample.window.ms). A rate is taken over the elapsed time, at least over all windows but one, so that
it does not start too high. No clock is read here. Other threads may read: lists are replaced, never changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple


class Window(NamedTuple):
    """The length and the number of sample windows."""

    window_s: float = 30.0
    samples: int = 2


class _Sample:
    __slots__ = ("began", "count", "last", "most", "total")

    def __init__(self, now: float) -> None:
        self.began = self.last = now
        self.count = 0
        self.total = 0.0
        self.most = -math.inf


class Stat:
    """A sensor. Averages and maxima are NaN if nothing was recorded."""

    __slots__ = ("_ends", "_samples", "_window", "count", "last", "total")

    def __init__(self, window: Window) -> None:
        self._window = window
        self._samples: list[_Sample] = []
        self._ends = -math.inf
        """When the current window ends."""
        self.count = 0
        """The number of recorded events."""
        self.total = 0.0
        """The sum of the recorded values."""
        self.last = -math.inf
        """The time of the last record."""

    def record(self, value: float, now: float, count: int = 1) -> None:
        """`count`: the number of events of which `value` is the sum."""
        if now >= self._ends:
            self._samples = [*self._samples[-self._window.samples :], _Sample(now)]
            self._ends = now + self._window.window_s
        sample = self._samples[-1]
        sample.last = self.last = now
        sample.count += count
        sample.total += value
        if value > sample.most:
            sample.most = value
        self.count += count
        self.total += value

    def _recent(self, now: float) -> list[_Sample]:
        oldest = now - self._window.samples * self._window.window_s
        return [sample for sample in self._samples if sample.last > oldest]

    def average(self, now: float) -> float:
        return average((self,), now)

    def maximum(self, now: float) -> float:
        return maximum((self,), now)

    def rate(self, now: float) -> float:
        """The sum of values per second."""
        recent = self._recent(now)
        return sum(sample.total for sample in recent) / self._elapsed_s(recent, now)

    def frequency(self, now: float) -> float:
        """The number of events per second."""
        recent = self._recent(now)
        return sum(sample.count for sample in recent) / self._elapsed_s(recent, now)

    def _elapsed_s(self, recent: list[_Sample], now: float) -> float:
        window_s, least = self._window.window_s, self._window.samples - 1
        elapsed_s = now - recent[0].began if recent else 0.0
        full = int(elapsed_s / window_s)
        return max(elapsed_s + max(least - full, 0) * window_s, 0.001)


def average(stats: Iterable[Stat], now: float) -> float:
    """The average over several sensors."""
    recent = [sample for stat in stats for sample in stat._recent(now)]
    count = sum(sample.count for sample in recent)
    return sum(sample.total for sample in recent) / count if count else math.nan


def maximum(stats: Iterable[Stat], now: float) -> float:
    return max((sample.most for stat in stats for sample in stat._recent(now)), default=math.nan)


MetricValues = dict[str, float]


def timed(name: str, stat: Stat, now: float) -> MetricValues:
    """`name`-avg and -max."""
    return {f"{name}-avg": stat.average(now), f"{name}-max": stat.maximum(now)}


def happened(name: str, *stats: Stat, now: float) -> MetricValues:
    """`name`-rate and -total, of the number of events."""
    return {
        f"{name}-rate": sum(stat.frequency(now) for stat in stats),
        f"{name}-total": sum(stat.count for stat in stats),
    }


def summed(name: str, *stats: Stat, now: float) -> MetricValues:
    """`name`-rate and -total, of the values."""
    return {
        f"{name}-rate": sum(stat.rate(now) for stat in stats),
        f"{name}-total": sum(stat.total for stat in stats),
    }


class RequestStats:
    """Metrics of a network client: requests and latencies by API and by broker; connections. Times are
    recorded in seconds and reported in milliseconds, as in Kafka."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self.opened = Stat(window)
        self.closed = Stat(window)
        self._apis: dict[int, Stat] = {}
        self._throttled: dict[int, Stat] = {}
        self._nodes: dict[int, tuple[Stat, Stat]] = {}

    def sent(self, node_id: int, now: float) -> None:
        self._node(node_id)[0].record(1, now)

    def record_response(
        self, node_id: int, api_key: int, took_s: float, throttle_ms: int, now: float
    ) -> None:
        took_ms = took_s * 1000
        self._node(node_id)[1].record(took_ms, now)
        self.of(api_key).record(took_ms, now)
        self.throttled(api_key).record(throttle_ms, now)

    def _node(self, node_id: int) -> tuple[Stat, Stat]:
        stats = self._nodes.get(node_id)
        if stats is None:
            stats = self._nodes[node_id] = Stat(self._window), Stat(self._window)
        return stats

    def of(self, api_key: int) -> Stat:
        """The latencies of an API in milliseconds."""
        stat = self._apis.get(api_key)
        if stat is None:
            stat = self._apis[api_key] = Stat(self._window)
        return stat

    def throttled(self, api_key: int) -> Stat:
        """The throttle times of an API in milliseconds."""
        stat = self._throttled.get(api_key)
        if stat is None:
            stat = self._throttled[api_key] = Stat(self._window)
        return stat

    def figures(self, now: float) -> MetricValues:
        """Metrics of the whole client."""
        nodes = list(self._nodes.values())
        return {
            **happened("connection-creation", self.opened, now=now),
            **happened("connection-close", self.closed, now=now),
            **happened("request", *(sent for sent, _ in nodes), now=now),
            **happened("response", *(answered for _, answered in nodes), now=now),
        }

    def by_node(self, now: float) -> dict[str, MetricValues]:
        return {
            f"node-{node_id}": {
                **happened("request", sent, now=now),
                **happened("response", answered, now=now),
                **timed("request-latency", answered, now),
            }
            for node_id, (sent, answered) in list(self._nodes.items())
        }
