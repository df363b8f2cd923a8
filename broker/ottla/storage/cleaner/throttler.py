"""Limits the bytes that the cleaner threads read and write (log.cleaner.io.max.bytes.per.second; Kafka's
Throttler).

All cleaner workers share one throttler, as in Kafka: its counters are in memory that the broker, which sets
the rate, shares with its worker processes, which report bytes. Time is passed in. As in Kafka, the rate is
checked every 300 ms, or earlier if more bytes than allowed in that time were processed.

Invariant: the counters are accessed with the file lock held; the system releases it when its holder dies.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct

_INTERVAL_S = 0.3
_RATE = Struct("d")
"""The rate in bytes per second."""
_COUNTS = Struct("dd")
"""The start of the period, in seconds of the monotonic clock, and the bytes processed since."""


class Throttler:
    """Counts bytes, together with all processes that have the descriptor `fd`."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._memory = mmap.mmap(fd, _RATE.size + _COUNTS.size)

    @classmethod
    def make(cls, bytes_per_s: float, now_s: float) -> Throttler:
        fd = os.memfd_create("log-cleaner-throttle")
        os.ftruncate(fd, _RATE.size + _COUNTS.size)
        made = cls(fd)
        made.bytes_per_s = bytes_per_s
        made._reset_counts(now_s)
        return made

    def close(self) -> None:
        self._memory.close()
        os.close(self.fd)

    @property
    def bytes_per_s(self) -> float:
        rate: float = _RATE.unpack_from(self._memory)[0]
        return rate

    @bytes_per_s.setter
    def bytes_per_s(self, rate: float) -> None:
        with self._locked():
            _RATE.pack_into(self._memory, 0, rate)

    def delay_s(self, size: int, now_s: float) -> float:
        """Add `size` processed bytes. Returns the time to wait before the next. The caller calls it again
        after the wait, with 0: the counters or the rate may have changed."""
        with self._locked():
            rate = self.bytes_per_s
            began_s, moved = _COUNTS.unpack_from(self._memory, _RATE.size)
            moved += size
            _COUNTS.pack_into(self._memory, _RATE.size, began_s, moved)
            elapsed_s = now_s - began_s
            if elapsed_s < _INTERVAL_S and moved <= rate * _INTERVAL_S:
                return 0.0
            pause_s: float = moved / rate - elapsed_s if rate > 0 else 0.0
            if pause_s <= 0:
                self._reset_counts(now_s)
            return max(0.0, pause_s)

    def _reset_counts(self, now_s: float) -> None:
        _COUNTS.pack_into(self._memory, _RATE.size, now_s, 0.0)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.lockf(self.fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self.fd, fcntl.LOCK_UN)
