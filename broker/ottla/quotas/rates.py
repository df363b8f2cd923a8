"""Rates over the last seconds, with the arithmetic of Kafka's metrics (3.9).

Used by `clients` and `broker`. A rate is a ring of samples; a sample is a time window and the amount
recorded in it. Kafka divides by the time since the oldest sample's start, which is nearly always a little
longer than the nominal window. Throttle times depend on it, so the arithmetic here is exactly the same; a
test compares it with Kafka's classes.

Invariants: a sample is reset once nothing was recorded in it for `samples` windows; if the clock steps back,
a sample is kept (its age is negative).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Windows:
    """`samples` windows of `window_ms` each: `quota.window.num` and `quota.window.size.seconds`."""

    samples: int = 11
    window_ms: int = 1000


class _Sample:
    """One time window."""

    __slots__ = ("last_ms", "start_ms", "total")

    def __init__(self, now_ms: int) -> None:
        self.reset(now_ms)

    def reset(self, now_ms: int) -> None:
        self.start_ms = self.last_ms = now_ms
        self.total = 0.0


class Rate:
    """Amount per second over the windows, as Kafka's `Rate` (client quotas) or `SimpleRate` (replication
    quotas) measures it."""

    __slots__ = ("_current", "_is_simple", "_samples", "windows")

    def __init__(self, windows: Windows, *, is_simple: bool = False) -> None:
        self.windows = windows
        self._is_simple = is_simple
        self._samples: list[_Sample] = []
        self._current = 0

    def record(self, amount: float, now_ms: int) -> None:
        """Record `amount`; a negative one undoes an earlier record."""
        samples = self._samples
        if not samples:
            samples.append(_Sample(now_ms))
        sample = samples[self._current]
        if now_ms - sample.start_ms >= self.windows.window_ms:
            sample = self._advance(now_ms)
        sample.total += amount
        sample.last_ms = now_ms

    def _advance(self, now_ms: int) -> _Sample:
        # One sample more than the windows: the oldest may overlap the measured time.
        self._current = (self._current + 1) % (self.windows.samples + 1)
        if self._current == len(self._samples):
            self._samples.append(_Sample(now_ms))
        else:
            self._samples[self._current].reset(now_ms)
        return self._samples[self._current]

    def measure(self, now_ms: int) -> tuple[float, int]:
        """(amount per second, the measured time in ms)."""
        total, elapsed_ms = self._sum(now_ms)
        window_ms = self._window_ms(elapsed_ms)
        return total / (window_ms / 1000), window_ms

    def _sum(self, now_ms: int) -> tuple[float, int]:
        """(sum of the samples, ms since the start of the oldest); resets old samples."""
        if not self._samples:
            self._samples.append(_Sample(now_ms))
        forgotten_ms = self.windows.samples * self.windows.window_ms
        total = 0.0
        oldest_ms = now_ms
        for sample in self._samples:
            if now_ms - sample.last_ms >= forgotten_ms:
                sample.reset(now_ms)
            total += sample.total
            if sample.start_ms < oldest_ms:
                oldest_ms = sample.start_ms
        return total, now_ms - oldest_ms

    def _window_ms(self, elapsed_ms: int) -> int:
        window_ms = self.windows.window_ms
        if self._is_simple:
            return max(elapsed_ms, window_ms)
        # A new rate is measured over all windows but one, as if nothing had been recorded before.
        missing = self.windows.samples - 1 - elapsed_ms // window_ms
        if missing > 0:
            elapsed_ms += missing * window_ms
        return max(elapsed_ms, 1)
