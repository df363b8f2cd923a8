"""Finds the connections that are idle for connections.max.idle.ms, without a look at all of them each second.

Called by ottla.server.network.listener. A connection is in the bucket of the second in which it would reach
the limit if no byte came. When that second has come it is looked at, and moved to a later bucket if bytes
came. So each connection is looked at about once in connections.max.idle.ms.
"""

from __future__ import annotations

from typing import Protocol

BUCKET_S = 1.0


class Watched(Protocol):
    """The part of a connection that IdleWatch uses."""

    idle_bucket: int

    def idle_for(self, now: float) -> float: ...

    def close(self, reason: str, level: int) -> None: ...


class IdleWatch:
    """Times are seconds of the loop's clock."""

    def __init__(self, idle_max_s: float) -> None:
        """0 or less: no limit."""
        self._max = idle_max_s
        self._buckets: dict[int, set[Watched]] = {}
        self.checks = 0
        """How often a connection was looked at (for tests)."""

    def watch(self, connection: Watched, now: float) -> None:
        if self._max > 0:
            self._put(connection, now + self._max)

    def forget(self, connection: Watched) -> None:
        bucket = self._buckets.get(connection.idle_bucket)
        if bucket is not None:
            bucket.discard(connection)

    def idle(self, now: float) -> list[Watched]:
        """The connections that are idle for too long; they are not watched any more."""
        found: list[Watched] = []
        due = int(now / BUCKET_S)
        for number in sorted(number for number in self._buckets if number <= due):
            for connection in self._buckets.pop(number):
                self.checks += 1
                idle_s = connection.idle_for(now)
                if idle_s >= self._max:
                    found.append(connection)
                else:
                    self._put(connection, now + self._max - idle_s)
        return found

    def _put(self, connection: Watched, at: float) -> None:
        connection.idle_bucket = int(at / BUCKET_S) + 1
        self._buckets.setdefault(connection.idle_bucket, set()).add(connection)
