"""All deadlines of all groups behind one alarm.

Heartbeats move deadlines thousands of times for every one that passes. So moving one later only notes the
new time; the heap learns of it when the old time comes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from ottla.coordinators.effects import Timer
from ottla.coordinators.ports import Cancellable, Scheduler


@dataclass(slots=True)
class _Entry:
    deadline_ms: int
    queued_ms: int
    """When the heap will look at it: never after the deadline."""


class Deadlines:
    """Calls `fire(timer)` once for each timer whose delay has passed, in the order of their deadlines."""

    def __init__(self, scheduler: Scheduler, fire: Callable[[Timer], None]) -> None:
        self._scheduler = scheduler
        self._fire = fire
        self._entries: dict[Timer, _Entry] = {}
        self._heap: list[tuple[int, int, Timer]] = []
        self._sequence = 0
        self._alarm: Cancellable | None = None
        self._alarm_ms = 0

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
        self._arm()

    def cancel(self, timer: Timer) -> None:
        self._entries.pop(timer, None)

    def close(self) -> None:
        self._entries.clear()
        self._heap.clear()
        self._disarm()

    def _push(self, queued_ms: int, timer: Timer) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (queued_ms, self._sequence, timer))

    def _arm(self) -> None:
        if not self._heap:
            return
        first_ms = self._heap[0][0]
        if self._alarm is not None:
            if self._alarm_ms <= first_ms:
                return
            self._disarm()
        delay_ms = max(first_ms - self._scheduler.now_ms(), 0)
        self._alarm_ms = first_ms
        self._alarm = self._scheduler.call_later(delay_ms, self._ring)

    def _disarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _ring(self) -> None:
        self._alarm = None
        now_ms = self._scheduler.now_ms()
        try:
            while self._heap and self._heap[0][0] <= now_ms:
                queued_ms, _, timer = heapq.heappop(self._heap)
                entry = self._entries.get(timer)
                if entry is None or entry.queued_ms != queued_ms:
                    continue  # Cancelled, or queued anew for an earlier time.
                if entry.deadline_ms > now_ms:
                    entry.queued_ms = entry.deadline_ms
                    self._push(entry.deadline_ms, timer)
                else:
                    del self._entries[timer]
                    self._fire(timer)
        finally:
            self._arm()
