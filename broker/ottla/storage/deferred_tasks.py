"""What logs leave for later, when a thread may block: files to remove or write, flushes, a checkpoint.

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
        self._works: dict[Callable[[], None], None] = {}
        self._recovery_point_fell = False

    def bury(self, paths: Iterable[Path], delay_ms: int) -> None:
        """Remove these files or folders, `delay_ms` (file.delete.delay.ms) from now."""
        with self._mutex:
            self._fresh += [(delay_ms, path) for path in paths]

    def work_soon(self, work: Callable[[], None]) -> None:
        """A segment was sealed, or an epoch began: call `work`, once, however often this was said before."""
        with self._mutex:
            self._works[work] = None

    def checkpoint_soon(self) -> None:
        """A log was truncated below its recovery point, and the checkpoint promises too much."""
        self._recovery_point_fell = True

    def any_due(self, now_ms: int) -> bool:
        """Cheap enough to ask at every tick."""
        return bool(
            self._fresh
            or self._works
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

    def take_works(self) -> list[Callable[[], None]]:
        with self._mutex:
            works, self._works = self._works, {}
        return list(works)

    def take_checkpoint(self) -> bool:
        """Whether the recovery points are to be written now."""
        fell, self._recovery_point_fell = self._recovery_point_fell, False
        return fell
