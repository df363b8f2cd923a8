"""Counters of the hot path (plain ints, read when Prometheus scrapes) and the CPU usage of the event loop.

Incremented by the produce and fetch handlers (`TopicCounters`) and by the dispatcher (`RequestCounters`).
Never reset; those of a topic without a replica on this broker are added to the sum of all topics.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

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
        self.fetch_errors: Counter[int] = Counter()
        """Partitions by error code, of responses that are sent without conversion."""
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


class PhaseTimes(NamedTuple):
    """Where the time of a request went, in ms; as the phases of Kafka's RequestMetrics."""

    total: float
    """From the receipt of the whole request to its response's last byte in the kernel."""
    queue: float
    """Before it was handled."""
    local: float
    """On the event loop."""
    remote: float
    """Waiting: for replicas, records, members of a group, other brokers, a thread."""
    response: float
    """Until the response is in the kernel: behind other responses, or while the client does not read."""
    throttle: float
    """For how long the client is not read afterwards, because of a quota."""


class RequestCounters:
    """The requests of one API."""

    __slots__ = ("by_version", "errors", "times_ms")

    def __init__(self, max_version: int) -> None:
        self.by_version = [0] * (max_version + 1)
        self.errors: Counter[int] = Counter()
        """Errors in responses, by code; for Fetch see also TopicCounters."""
        self.times_ms: deque[PhaseTimes] = deque(maxlen=TIMES_KEPT)
        """Of one request in TIMED_EVERY."""


class RequestTimer:
    """Measures the phases of one request. The loop leaves the request with `pause`, and continues with
    `resume`."""

    __slots__ = (
        "_begun_s",
        "_clock",
        "_counters",
        "_done",
        "_local_s",
        "_received_s",
        "_responded_s",
        "_since_s",
        "_throttle_s",
    )

    def __init__(
        self,
        clock: Callable[[], float],
        received_s: float,
        counters: RequestCounters,
        done: Callable[[PhaseTimes], None] | None = None,
    ) -> None:
        self._done = done
        self._clock = clock
        self._counters = counters
        self._received_s = received_s
        self._begun_s = self._since_s = self._responded_s = clock()
        self._local_s = self._throttle_s = 0.0

    def pause(self) -> None:
        if self._since_s:
            self._local_s += self._clock() - self._since_s
            self._since_s = 0.0

    def resume(self) -> None:
        self._since_s = self._clock()

    def respond(self, muted_until_s: float) -> None:
        """The response is ready. `muted_until_s`: until when the client is not read because of a quota."""
        self._responded_s = now_s = self._clock()
        if self._since_s:
            self._local_s += now_s - self._since_s
            self._since_s = 0.0
        if muted_until_s > now_s:
            self._throttle_s = muted_until_s - now_s

    def sent(self) -> None:
        """The response is in the kernel."""
        sent_s, begun_s = self._clock(), self._begun_s
        remote_s = self._responded_s - begun_s - self._local_s
        times = PhaseTimes(
            1000 * (sent_s - self._received_s),
            1000 * (begun_s - self._received_s),
            1000 * self._local_s,
            1000 * remote_s if remote_s > 0 else 0.0,
            1000 * (sent_s - self._responded_s),
            1000 * self._throttle_s,
        )
        self._counters.times_ms.append(times)
        if self._done is not None:
            self._done(times)


class LoopUsage:
    """The CPU usage of the event loop's thread over the last minute, sampled by the broker's tick once a
    second. Kafka's dashboards show the idle share of its network and request handler threads; here one thread
    is both.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=USAGE_SAMPLES)
        self.lags_s: deque[float] = deque(maxlen=USAGE_SAMPLES)
        """Of the last minute."""

    def sample(self, now_s: float, cpu_s: float, lag_s: float = 0.0) -> None:
        """`cpu_s` is the thread's total CPU time, `lag_s` by how much this call is late."""
        self._samples.append((now_s, cpu_s))
        self.lags_s.append(lag_s)

    @property
    def idle_ratio(self) -> float:
        """0 to 1; 1 before the second sample."""
        if len(self._samples) < 2:
            return 1.0
        (first_s, first_cpu_s), (last_s, last_cpu_s) = self._samples[0], self._samples[-1]
        busy = (last_cpu_s - first_cpu_s) / max(last_s - first_s, 1e-9)
        return min(1.0, max(0.0, 1.0 - busy))
