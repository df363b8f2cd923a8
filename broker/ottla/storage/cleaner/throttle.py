"""How long to pause so that reading and writing stay below a rate (log.cleaner.io.max.bytes.per.second).

Used by `worker`. Pure: time is passed in. As in Kafka, looked at every 300 ms; sooner where more was moved by
then than those allow.
"""

from __future__ import annotations

_INTERVAL_S = 0.3


class Throttle:
    """Counts bytes, read or written."""

    def __init__(self, bytes_per_s: float, now_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._began_s = now_s
        self._bytes = 0

    def delay_s(self, size: int, now_s: float) -> float:
        """`size` bytes were moved: how long to wait before the next are."""
        self._bytes += size
        elapsed_s = now_s - self._began_s
        if elapsed_s < _INTERVAL_S and self._bytes <= self.bytes_per_s * _INTERVAL_S:
            return 0.0
        wanted_s = self._bytes / self.bytes_per_s if self.bytes_per_s > 0 else 0.0
        if wanted_s <= elapsed_s:
            self.begin(now_s)
            return 0.0
        return wanted_s - elapsed_s

    def begin(self, now_s: float) -> None:
        """Count anew."""
        self._began_s = now_s
        self._bytes = 0
