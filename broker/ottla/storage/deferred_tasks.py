"""Work that logs defer to a thread that may block: file deletions, writes, flushes, a recovery point
checkpoint.

Logs and the log manager add tasks, mostly on the event loop. `LogMaintenance.run_deferred_tasks` executes
them in the maintenance thread. The clock is the caller's: the delay of a deletion begins at the next
`drain_deletions`.

Invariant: only renamed paths (`.deleted`, `-delete`) are scheduled for deletion, so that a file of another
log that has the old name now is never deleted.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterable
from pathlib import Path


class DeferredTasks:
    """A queue of deferred tasks; safe to use from any thread."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._new_deletions: list[tuple[int, Path]] = []
        """(delay in ms, path): deletions whose delay has not begun."""
        self._deletions: list[tuple[int, Path]] = []
        """A heap of (due time in ms, path)."""
        self._tasks: dict[Callable[[], None], None] = {}
        self._checkpoint_requested = False

    def schedule_delete(self, paths: Iterable[Path], delay_ms: int) -> None:
        """Delete these files or directories after `delay_ms` (file.delete.delay.ms)."""
        with self._mutex:
            self._new_deletions += [(delay_ms, path) for path in paths]

    def schedule(self, task: Callable[[], None]) -> None:
        """Call `task` once; a task that is scheduled already is not added again."""
        with self._mutex:
            self._tasks[task] = None

    def schedule_checkpoint(self) -> None:
        """Write the recovery point checkpoints: a log was truncated below its recovery point."""
        self._checkpoint_requested = True

    def has_due(self, now_ms: int) -> bool:
        """Whether a task is due. Cheap: called at every tick."""
        return bool(
            self._new_deletions
            or self._tasks
            or self._checkpoint_requested
            or (self._deletions and self._deletions[0][0] <= now_ms)
        )

    def drain_deletions(self, now_ms: int) -> list[Path]:
        """Remove and return the paths whose deletion is due."""
        due = []
        with self._mutex:
            for delay_ms, path in self._new_deletions:
                heapq.heappush(self._deletions, (now_ms + delay_ms, path))
            self._new_deletions = []
            while self._deletions and self._deletions[0][0] <= now_ms:
                due.append(heapq.heappop(self._deletions)[1])
        return due

    def drain(self) -> list[Callable[[], None]]:
        """Remove and return the scheduled tasks."""
        with self._mutex:
            tasks, self._tasks = self._tasks, {}
        return list(tasks)

    def drain_checkpoint(self) -> bool:
        """Whether a checkpoint was requested since the last call."""
        requested, self._checkpoint_requested = self._checkpoint_requested, False
        return requested
