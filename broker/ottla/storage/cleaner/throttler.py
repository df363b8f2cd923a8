"""Limits the bytes that the cleaner threads read and write (log.cleaner.io.max.bytes.per.second; Kafka's
Throttler).

All cleaner threads share one throttler, as in Kafka; it belongs to the broker's event loop, to which the
worker processes report bytes. Time is passed in. As in Kafka, the rate is checked every 300 ms, or earlier if
more bytes than allowed in that time were processed.
"""

from __future__ import annotations

_INTERVAL_S = 0.3


class Throttler:
    """`bytes_per_s` may change at any time; times are seconds of a clock that never steps."""

    def __init__(self, bytes_per_s: float, now_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._began_s = now_s
        self._moved = 0
        """Bytes processed since."""

    def delay_s(self, size: int, now_s: float) -> float:
        """Add `size` processed bytes. Returns the time to wait before the next. The caller calls it again
        after the wait, with 0: the counters or the rate may have changed."""
        rate = self.bytes_per_s
        self._moved += size
        elapsed_s = now_s - self._began_s
        if elapsed_s < _INTERVAL_S and self._moved <= rate * _INTERVAL_S:
            return 0.0
        pause_s = self._moved / rate - elapsed_s if rate > 0 else 0.0
        if pause_s <= 0:
            self._began_s, self._moved = now_s, 0
        return max(0.0, pause_s)
