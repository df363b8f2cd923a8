"""The timers of all groups behind one scheduled call.

Heartbeats move deadlines thousands of times for each one that passes. So moving a deadline to a later time
only stores the time; the heap is updated when the old time comes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from ottla.coordinators.effects import Timer
from ottla.coordinators.interfaces import Cancellable, Scheduler


@dataclass(slots=True)
class _Entry:
    deadline_ms: int
    queued_ms: int
    """The time of its entry in the heap: never after the deadline."""


class GroupTimers:
    """Calls `fire(timer)` once for each timer whose delay has passed, in the order of their deadlines."""

    def __init__(self, scheduler: Scheduler, fire: Callable[[Timer], None]) -> None:
        self._scheduler = scheduler
        self._fire = fire
        self._entries: dict[Timer, _Entry] = {}
        self._heap: list[tuple[int, int, Timer]] = []
        self._sequence = 0
        self._wakeup: Cancellable | None = None
        self._wakeup_ms = 0

    def __len__(self) -> int:
        return len(self._entries)

    def set(self, timer: Timer, delay_ms: int) -> None:
        deadline_ms = self._scheduler.now_ms() + delay_ms
        entry = self._entries.get(timer)
        if entry is None:
            self._entries[timer] = _Entry(deadline_ms, deadline_ms)
        elif deadline_ms >= entry.queued_ms:
            entry.deadline_ms = deadline_ms
            return
        else:
            entry.deadline_ms = entry.queued_ms = deadline_ms
        self._push(deadline_ms, timer)
        self._schedule_wakeup()

    def cancel(self, timer: Timer) -> None:
        self._entries.pop(timer, None)

    def close(self) -> None:
        self._entries.clear()
        self._heap.clear()
        self._cancel_wakeup()

    def _push(self, queued_ms: int, timer: Timer) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (queued_ms, self._sequence, timer))

    def _schedule_wakeup(self) -> None:
        if not self._heap:
            return
        first_ms = self._heap[0][0]
        if self._wakeup is not None:
            if self._wakeup_ms <= first_ms:
                return
            self._cancel_wakeup()
        delay_ms = max(first_ms - self._scheduler.now_ms(), 0)
        self._wakeup_ms = first_ms
        self._wakeup = self._scheduler.call_later(delay_ms, self._on_wakeup)

    def _cancel_wakeup(self) -> None:
        if self._wakeup is not None:
            self._wakeup.cancel()
            self._wakeup = None

    def _on_wakeup(self) -> None:
        self._wakeup = None
        now_ms = self._scheduler.now_ms()
        try:
            while self._heap and self._heap[0][0] <= now_ms:
                queued_ms, _, timer = heapq.heappop(self._heap)
                entry = self._entries.get(timer)
                if entry is None or entry.queued_ms != queued_ms:
                    continue  # Cancelled, or queued again for an earlier time.
                if entry.deadline_ms > now_ms:
                    entry.queued_ms = entry.deadline_ms
                    self._push(entry.deadline_ms, timer)
                else:
                    del self._entries[timer]
                    self._fire(timer)
        finally:
            self._schedule_wakeup()
