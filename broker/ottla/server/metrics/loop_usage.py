"""How busy the event loop is: the time of its thread on a processor, over a minute.

Kafka's dashboards show the share of time that its network and handler threads wait; a broker of ours has one
thread for both. Sampled once a second by the broker's tick.
"""

from __future__ import annotations

from collections import deque

WINDOW_SAMPLES = 61


class LoopUsage:
    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=WINDOW_SAMPLES)

    def sample(self, now_s: float, cpu_s: float) -> None:
        """`cpu_s` is the thread's time so far."""
        self._samples.append((now_s, cpu_s))

    @property
    def idle_ratio(self) -> float:
        """0 to 1; 1 before there is anything to tell."""
        if len(self._samples) < 2:
            return 1.0
        (first_s, first_cpu_s), (last_s, last_cpu_s) = self._samples[0], self._samples[-1]
        busy = (last_cpu_s - first_cpu_s) / max(last_s - first_s, 1e-9)
        return min(1.0, max(0.0, 1.0 - busy))
