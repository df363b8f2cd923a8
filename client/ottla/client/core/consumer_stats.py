"""Metrics of a consumer, by the names of Kafka's consumer.

Recorded by `fetcher` and `Consumer`: fetched and returned records, polls and rebalances; read by
`Consumer.metrics` and `measurements`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ottla.client.core.stats import MetricValues, Stat, Window, summed, timed


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
