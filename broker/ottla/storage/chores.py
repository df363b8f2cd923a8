"""What logs leave for later, when a thread may block: files to remove, flushes, a checkpoint to write.

Filled by logs and their manager, mostly on the event loop; worked off by `LogManager.tend`, in the upkeep
thread. Knows no clock: the delay of what is buried begins at the next `take_due`.

Invariant: only paths that are renamed (`.deleted`, `-delete`) are buried, so that a name which has come to
be another log's is never removed.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterable
from pathlib import Path


class Chores:
    """See the module."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._fresh: list[tuple[int, Path]] = []
        self._buried: list[tuple[int, Path]] = []
        """A heap of (time due in ms, path)."""
        self._flushes: dict[Callable[[], None], None] = {}
        self._recovery_point_fell = False

    def bury(self, paths: Iterable[Path], delay_ms: int) -> None:
        """Remove these files or folders, `delay_ms` (file.delete.delay.ms) from now."""
        with self._mutex:
            self._fresh += [(delay_ms, path) for path in paths]

    def flush_soon(self, flush: Callable[[], None]) -> None:
        """A segment was sealed: call `flush`, once, however often this was said before."""
        with self._mutex:
            self._flushes[flush] = None

    def checkpoint_soon(self) -> None:
        """A log was truncated below its recovery point, and the checkpoint promises too much."""
        self._recovery_point_fell = True

    def any_due(self, now_ms: int) -> bool:
        """Cheap enough to ask at every tick."""
        return bool(
            self._fresh
            or self._flushes
            or self._recovery_point_fell
            or (self._buried and self._buried[0][0] <= now_ms)
        )

    def take_due(self, now_ms: int) -> list[Path]:
        """What is to be removed by now."""
        due = []
        with self._mutex:
            for delay_ms, path in self._fresh:
                heapq.heappush(self._buried, (now_ms + delay_ms, path))
            self._fresh = []
            while self._buried and self._buried[0][0] <= now_ms:
                due.append(heapq.heappop(self._buried)[1])
        return due

    def take_flushes(self) -> list[Callable[[], None]]:
        with self._mutex:
            flushes, self._flushes = self._flushes, {}
        return list(flushes)

    def take_checkpoint(self) -> bool:
        """Whether the recovery points are to be written now."""
        fell, self._recovery_point_fell = self._recovery_point_fell, False
        return fell
