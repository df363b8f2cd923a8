"""Maintenance windows: when a restart of a broker or of a ZooKeeper server may begin.

Pure; called by `planning.holds`. A window recurs on days of the week, at a local time of its time zone, for a
duration of elapsed time. Clocks that are set forward or back move its start as they move the day: a start
that is skipped comes after the change, by as much as it was after the change's beginning, and of a time that
comes twice it is the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from ottla_operator.resources.common import parse_duration_ms
from ottla_operator.resources.windows import WEEKDAYS, MaintenanceWindow

# Windows recur weekly; one begins a day later or earlier in UTC than in its zone.
_DAYS_AHEAD: Final = 8


def next_start_ms(windows: Sequence[MaintenanceWindow], now_ms: int) -> int | None:
    """When the next window begins; None while one is open, and without windows."""
    starts = []
    for window in windows:
        duration_ms = parse_duration_ms(window.duration)
        for start_ms in _starts(window, now_ms, duration_ms):
            if start_ms > now_ms:
                starts.append(start_ms)
                break
            if now_ms < start_ms + duration_ms:
                return None
    return min(starts, default=None)


def _starts(window: MaintenanceWindow, now_ms: int, duration_ms: int) -> Iterator[int]:
    """The starts of the window in order, from those that may still be open to the next one."""
    zone = ZoneInfo(window.time_zone)
    at = time.fromisoformat(window.start)
    first = datetime.fromtimestamp((now_ms - duration_ms) / 1000, zone).date() - timedelta(days=1)
    last = datetime.fromtimestamp(now_ms / 1000, zone).date() + timedelta(days=_DAYS_AHEAD)
    for number in range((last - first).days + 1):
        day = first + timedelta(days=number)
        if not window.days or WEEKDAYS[day.weekday()] in window.days:
            yield _utc_ms(day, at, zone)


def _utc_ms(day: date, at: time, zone: ZoneInfo) -> int:
    return int(datetime.combine(day, at, zone).astimezone(UTC).timestamp() * 1000)
