"""Sensors of metrics: totals, and rates, averages and maxima over time windows, as in Kafka's clients.

Recorded by the request managers and the network, once for a batch or a request and never for a record; read
on demand. As in Kafka, `samples` windows of `window_s` are kept (metrics.num.samples,
metrics.sample.window.ms). A rate is taken over the elapsed time, at least over all windows but one, so that
it does not start too high. No clock is read here. Other threads may read: lists are replaced, never changed.

A producer's metrics have the names of Kafka's SenderMetricsRegistry. `sender` records them once a batch; they
are kept by topic, and those of the producer are sums over the topics. A consumer's have the names of Kafka's
consumer: `fetcher` and `Consumer` record fetched and returned records, polls and rebalances.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ottla.client.core.batches import Batch


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


class _TopicStats:
    __slots__ = ("bytes", "compression", "errors", "records", "retries")

    def __init__(self, window: Window) -> None:
        self.records = Stat(window)
        self.bytes = Stat(window)
        """One value for each batch."""
        self.compression = Stat(window)
        self.retries = Stat(window)
        self.errors = Stat(window)


class ProducerStats:
    """Records sends, retries and failures of batches. Times are recorded in seconds and reported in
    milliseconds, as in Kafka."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._topics: dict[str, _TopicStats] = {}
        self._queue_times_ms = Stat(window)
        self._record_sizes = Stat(window)
        self._records_per_request = Stat(window)
        self._splits = Stat(window)

    def _of(self, topic: str) -> _TopicStats:
        stats = self._topics.get(topic)
        if stats is None:
            stats = self._topics[topic] = _TopicStats(self._window)
        return stats

    def sent(self, batch: Batch, now: float) -> None:
        """A batch is sent, for the first time or again."""
        assert batch.data is not None
        count = batch.count
        topic = self._of(batch.tp.topic)
        topic.records.record(count, now)
        topic.bytes.record(len(batch.data), now)
        topic.compression.record(batch.compression_ratio, now)
        self._record_sizes.record(batch.size, now, count)
        if batch.attempts == 1:
            self._queue_times_ms.record((now - batch.created_at) * 1000, now)

    def requested(self, records: int, now: float) -> None:
        """A request with this number of records is sent."""
        self._records_per_request.record(records, now)

    def retried(self, batch: Batch, now: float) -> None:
        self._of(batch.tp.topic).retries.record(batch.count, now)

    def failed(self, batch: Batch, now: float) -> None:
        self._of(batch.tp.topic).errors.record(batch.count, now)

    def was_split(self, now: float) -> None:
        self._splits.record(1, now)

    def figures(self, now: float) -> MetricValues:
        """Metrics of the whole producer."""
        topics = list(self._topics.values())
        sizes = [topic.bytes for topic in topics]
        return {
            **_of_topics(topics, now),
            "batch-size-avg": average(sizes, now),
            "batch-size-max": maximum(sizes, now),
            "compression-rate-avg": average((topic.compression for topic in topics), now),
            **timed("record-queue-time", self._queue_times_ms, now),
            "record-size-avg": self._record_sizes.average(now),
            "records-per-request-avg": self._records_per_request.average(now),
            **happened("batch-split", self._splits, now=now),
        }

    def by_topic(self, now: float) -> dict[str, MetricValues]:
        return {
            name: {
                **_of_topics([stats], now),
                **summed("byte", stats.bytes, now=now),
                "compression-rate": stats.compression.average(now),
            }
            for name, stats in list(self._topics.items())
        }


def _of_topics(topics: list[_TopicStats], now: float) -> MetricValues:
    return {
        **summed("record-send", *(topic.records for topic in topics), now=now),
        **summed("record-retry", *(topic.retries for topic in topics), now=now),
        **summed("record-error", *(topic.errors for topic in topics), now=now),
    }


class FetchStats:
    """Fetched and returned records, by topic and node."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._sizes = Stat(window)
        self._nodes: dict[int, Stat] = {}
        self._topics: dict[str, tuple[Stat, Stat]] = {}

    def _of(self, topic: str) -> tuple[Stat, Stat]:
        """The returned records and the fetched bytes of a topic."""
        stats = self._topics.get(topic)
        if stats is None:
            stats = self._topics[topic] = Stat(self._window), Stat(self._window)
        return stats

    def record_response(self, node_id: int, size: int, now: float) -> None:
        """A Fetch response with this many bytes of records."""
        self._sizes.record(size, now)
        stat = self._nodes.get(node_id)
        if stat is None:
            stat = self._nodes[node_id] = Stat(self._window)
        stat.record(size, now)

    def record_fetched(self, topic: str, size: int, now: float) -> None:
        """Bytes of fetched records of a topic, as stored by the broker."""
        self._of(topic)[1].record(size, now)

    def record_consumed(self, topic: str, records: int, now: float) -> None:
        self._of(topic)[0].record(records, now)

    def figures(self, now: float) -> MetricValues:
        topics = list(self._topics.values())
        consumed = summed("records-consumed", *(records for records, _ in topics), now=now)
        answers = self._sizes.frequency(now)
        return {
            **consumed,
            **summed("bytes-consumed", *(sizes for _, sizes in topics), now=now),
            **timed("fetch-size", self._sizes, now),
            "records-per-request-avg": consumed["records-consumed-rate"] / answers if answers else math.nan,
        }

    def by_node(self, now: float) -> dict[str, MetricValues]:
        """Bytes by replica (KIP-392). Kafka counts all received bytes, as incoming-byte."""
        return {
            f"node-{number}": summed("fetch-byte", stat, now=now)
            for number, stat in list(self._nodes.items())
        }

    def by_topic(self, now: float) -> dict[str, MetricValues]:
        return {
            name: {
                **summed("records-consumed", records, now=now),
                **summed("bytes-consumed", sizes, now=now),
                **timed("fetch-size", sizes, now),
            }
            for name, (records, sizes) in list(self._topics.items())
        }


class PollStats:
    """Intervals and idle ratio of polls, and rebalances."""

    def __init__(self, window: Window) -> None:
        self._between_ms = Stat(window)
        self._idle = Stat(window)
        self._rebalances_ms = Stat(window)
        self._began = -math.inf
        self._ended = -math.inf
        self._rebalance_began = math.inf
        self.waited_s = {"commit-sync": 0.0, "committed": 0.0}
        """The time that callers have waited in these calls."""

    @contextmanager
    def waiting(self, call: str, clock: Callable[[], float]) -> Iterator[None]:
        """Count the time of a call in `waited_s`."""
        began = clock()
        try:
            yield
        finally:
            self.waited_s[call] += clock() - began

    def poll_begins(self, now: float) -> None:
        if self._began > -math.inf:
            self._between_ms.record((now - self._began) * 1000, now)
        self._began = now

    def poll_ends(self, now: float) -> None:
        """The idle ratio is the time in `poll` divided by the time since the end of the previous poll
        (KIP-517)."""
        if self._ended > -math.inf and now > self._ended:
            self._idle.record((now - self._began) / (now - self._ended), now)
        self._ended = now

    def rebalance_begins(self, now: float) -> None:
        self._rebalance_began = min(self._rebalance_began, now)

    def rebalance_ends(self, now: float) -> None:
        self._rebalances_ms.record((now - min(self._rebalance_began, now)) * 1000, now)
        self._rebalance_began = math.inf

    def figures(self, now: float) -> MetricValues:
        return {
            **timed("time-between-poll", self._between_ms, now),
            "last-poll-seconds-ago": now - self._began if self._began > -math.inf else -1.0,
            "poll-idle-ratio-avg": self._idle.average(now),
            **{f"{name}-time-ns-total": waited_s * 1e9 for name, waited_s in self.waited_s.items()},
        }

    def group_figures(self, now: float) -> MetricValues:
        stat = self._rebalances_ms
        return {
            **timed("rebalance-latency", stat, now),
            "rebalance-latency-total": stat.total,
            "rebalance-total": stat.count,
            "rebalance-rate-per-hour": stat.frequency(now) * 3600,
            "last-rebalance-seconds-ago": now - stat.last if stat.count else -1.0,
        }
