"""The CPU usage of the event loop's thread over the last minute.

Kafka's dashboards show the idle share of its network and request handler threads; here one thread is both.
The broker's tick samples it once a second.
"""

from __future__ import annotations

from collections import deque

WINDOW_SAMPLES = 61


class LoopUsage:
    """See the module."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=WINDOW_SAMPLES)

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
