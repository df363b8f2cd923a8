"""How long to pause so that reading and writing stay below a rate (log.cleaner.io.max.bytes.per.second).

One for all cleaner threads, as in Kafka: its counts are in memory that the broker, which sets the rate,
shares with its `worker` processes, which move bytes. Time is passed in. As in Kafka, looked at every 300 ms;
sooner where more was moved by then than those allow.

Invariant: the counts are read and written under the file's lock, which the system takes from whoever dies.
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
"""Bytes a second."""
_COUNTS = Struct("dd")
"""Since when, in seconds of the monotonic clock, and how many bytes were moved since."""


class Throttle:
    """Counts bytes, read or written, with all others that have the descriptor `fd`."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._memory = mmap.mmap(fd, _RATE.size + _COUNTS.size)

    @classmethod
    def make(cls, bytes_per_s: float, now_s: float) -> Throttle:
        fd = os.memfd_create("log-cleaner-throttle")
        os.ftruncate(fd, _RATE.size + _COUNTS.size)
        made = cls(fd)
        made.bytes_per_s = bytes_per_s
        made._count_anew(now_s)
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
        """`size` bytes were moved: how long to wait before the next are. To be asked again then, with 0, for
        others may have moved some, or the rate be another."""
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
                self._count_anew(now_s)
            return max(0.0, pause_s)

    def _count_anew(self, now_s: float) -> None:
        _COUNTS.pack_into(self._memory, _RATE.size, now_s, 0.0)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.lockf(self.fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self.fd, fcntl.LOCK_UN)
