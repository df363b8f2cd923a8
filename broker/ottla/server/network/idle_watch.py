"""Which connections may have been idle for connections.max.idle.ms, without asking all of them each second.

Called by ottla.server.network.listener. A connection stands in the bucket of the second in which it would be
idle for too long if nothing came any more; then it is asked, and stands in a later one if something did. So
it is asked about once in that time, however many there are.
"""

from __future__ import annotations

from typing import Protocol

BUCKET_S = 1.0


class Watched(Protocol):
    """The part of a connection that this looks at."""

    idle_bucket: int

    def idle_for(self, now: float) -> float: ...

    def close(self, reason: str, level: int) -> None: ...


class IdleWatch:
    """Times are seconds of the loop's clock."""

    def __init__(self, idle_max_s: float) -> None:
        """0 or less: nobody is ever idle for too long."""
        self._max = idle_max_s
        self._buckets: dict[int, set[Watched]] = {}
        self.asked = 0
        """How often anybody was asked (for tests)."""

    def watch(self, connection: Watched, now: float) -> None:
        if self._max > 0:
            self._put(connection, now + self._max)

    def forget(self, connection: Watched) -> None:
        bucket = self._buckets.get(connection.idle_bucket)
        if bucket is not None:
            bucket.discard(connection)

    def idle(self, now: float) -> list[Watched]:
        """Those that are, which are forgotten with this."""
        found: list[Watched] = []
        due = int(now / BUCKET_S)
        for number in sorted(number for number in self._buckets if number <= due):
            for connection in self._buckets.pop(number):
                self.asked += 1
                idle_s = connection.idle_for(now)
                if idle_s >= self._max:
                    found.append(connection)
                else:
                    self._put(connection, now + self._max - idle_s)
        return found

    def _put(self, connection: Watched, at: float) -> None:
        connection.idle_bucket = int(at / BUCKET_S) + 1
        self._buckets.setdefault(connection.idle_bucket, set()).add(connection)
