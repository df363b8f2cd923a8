"""Counters of the hot path (plain ints, read when Prometheus scrapes) and the CPU usage of the event loop.

Incremented by the produce and fetch handlers (`TopicCounters`) and by the dispatcher (`RequestCounters`).
Never reset; those of a topic without a replica on this broker are added to the sum of all topics.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

TIMED_EVERY = 16
"""One request in so many is timed: to read the clock twice costs more than the other counters together."""
TIMES_KEPT = 512
USAGE_SAMPLES = 61


class TopicCount:
    __slots__ = (
        "bytes_in",
        "bytes_out",
        "failed_fetches",
        "failed_produces",
        "fetches",
        "messages_in",
        "produces",
    )

    def __init__(self) -> None:
        self.bytes_in = self.bytes_out = self.messages_in = 0
        self.produces = self.fetches = self.failed_produces = self.failed_fetches = 0

    def add(self, other: TopicCount) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class TopicCounters(dict[str, TopicCount]):
    """Counters by topic, only of topics that exist: else clients could fill the memory with names."""

    def __init__(self) -> None:
        super().__init__()
        self.gone = TopicCount()
        """The sum of topics without a replica on this broker."""
        self.replicated_out = 0
        """Bytes that followers fetched of all topics."""

    def __missing__(self, topic: str) -> TopicCount:
        count = self[topic] = TopicCount()
        return count

    def forget(self, is_here: Callable[[str], bool]) -> None:
        for topic in [topic for topic in self if not is_here(topic)]:
            self.gone.add(self.pop(topic))

    def total(self) -> TopicCount:
        total = TopicCount()
        total.add(self.gone)
        for count in self.values():
            total.add(count)
        return total


class RequestCounters:
    """The requests of one API."""

    __slots__ = ("by_version", "times_ms")

    def __init__(self, max_version: int) -> None:
        self.by_version = [0] * (max_version + 1)
        self.times_ms: deque[float] = deque(maxlen=TIMES_KEPT)
        """From the receipt of the whole request to its response, of one request in TIMED_EVERY."""


class LoopUsage:
    """The CPU usage of the event loop's thread over the last minute, sampled by the broker's tick once a
    second. Kafka's dashboards show the idle share of its network and request handler threads; here one thread
    is both.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=USAGE_SAMPLES)

    def sample(self, now_s: float, cpu_s: float) -> None:
        """`cpu_s` is the thread's total CPU time."""
        self._samples.append((now_s, cpu_s))

    @property
    def idle_ratio(self) -> float:
        """0 to 1; 1 before the second sample."""
        if len(self._samples) < 2:
            return 1.0
        (first_s, first_cpu_s), (last_s, last_cpu_s) = self._samples[0], self._samples[-1]
        busy = (last_cpu_s - first_cpu_s) / max(last_s - first_s, 1e-9)
        return min(1.0, max(0.0, 1.0 - busy))
