"""Numbers, sizes, rates, times and names as text for people. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from ottla.logs import escaped

NONE: Final = "–"
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def number(value: float | None) -> str:
    """`12,345`; a dash for what is not known."""
    return NONE if value is None or value < 0 else f"{value:,.0f}"


def compact(value: float | None) -> str:
    """`1.2 M` for 1,234,567: numbers in charts and tiles."""
    if value is None or value < 0:
        return NONE
    for limit, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e4, " k")):
        if value >= limit:
            return f"{value / (1e3 if unit == ' k' else limit):.3g}{unit}"
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:.2g}"


def size(value: float | None) -> str:
    """`1.4 GiB`."""
    if value is None or value < 0:
        return NONE
    unit = 0
    while value >= 1024 and unit < len(_SIZES) - 1:
        value /= 1024
        unit += 1
    return f"{value:.0f} {_SIZES[unit]}" if unit == 0 or value >= 100 else f"{value:.1f} {_SIZES[unit]}"


def rate(value: float | None) -> str:
    """Records per second: `1,234/s`; below ten with a digit after the point."""
    if value is None:
        return NONE
    return f"{value:,.0f}/s" if value >= 10 or value == 0 else f"{value:.1f}/s"


def byte_rate(value: float | None) -> str:
    return NONE if value is None else f"{size(value)}/s"


def percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.0f} %"


def time(ms: int | None) -> str:
    """`2026-01-31 12:00:00` in UTC."""
    if ms is None or ms < 0:
        return NONE
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def duration(ms: float | None) -> str:
    """`250 ms`, `12 s`, `3 min`, `5 h`, `2 d`."""
    if ms is None or ms < 0:
        return NONE
    if ms < 1000:
        return f"{ms:.0f} ms"
    seconds = ms / 1000
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "min"), (48 * 3600, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def ago(at_ms: int, now_ms: int) -> str:
    """`3 min ago`; a dash for an unknown time."""
    return NONE if at_ms < 0 else f"{duration(max(0, now_ms - at_ms))} ago"


def count(value: int, noun: str, plural: str = "") -> str:
    """`1 topic`, `12 topics`."""
    return f"{value:,} {noun if value == 1 else plural or noun + 's'}"


def shown(name: str) -> str:
    """A name that clients chose, with escapes for what is not printable: controls, line breaks, overrides of
    the direction of text."""
    return escaped(name)


def broker_ids(ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, ids)) or NONE
