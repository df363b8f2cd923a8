"""Maintenance windows of a BrokerCluster: when restarts may begin (`planning.windows`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, get_args
from zoneinfo import ZoneInfo

from pydantic import Field

from ottla_operator.resources.common import Duration, Model, Problem, Rule, parse_duration_ms, rules

Weekday = Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
WEEKDAYS: Final[tuple[Weekday, ...]] = get_args(Weekday)
_SHORTEST_MS: Final = 60_000
_LONGEST_MS: Final = 7 * 24 * 3_600_000


class MaintenanceWindow(Model):
    model_config = rules(
        Rule(
            "duration must be between 1m and 168h",
            "duration(self.duration) >= duration('1m') && duration(self.duration) <= duration('168h')",
        )
    )

    days: list[Weekday] = Field(
        default_factory=list, description="The days on which the window begins. Default: every day."
    )
    start: str = Field(
        pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$",
        description="When the window begins, such as 22:30, in its time zone.",
    )
    duration: Duration = Field(
        max_length=32,
        description="How long it is open, such as 4h: between 1m and 168h, also across midnight.",
    )
    time_zone: str = Field(
        default="UTC",
        max_length=64,
        description="An IANA time zone, such as Europe/Berlin, with its daylight saving time. Default: UTC.",
    )


def window_problems(windows: Sequence[MaintenanceWindow], path: str) -> Iterator[Problem]:
    """Errors that the schema cannot express."""
    for n, window in enumerate(windows):
        if not _is_time_zone(window.time_zone):
            yield Problem(
                f"{path}[{n}].timeZone",
                f"{window.time_zone!r} is not a time zone: an IANA name such as Europe/Berlin, or UTC",
            )
        if not _SHORTEST_MS <= parse_duration_ms(window.duration) <= _LONGEST_MS:
            yield Problem(
                f"{path}[{n}].duration", f"{window.duration} is not allowed: must be between 1m and 168h"
            )


def _is_time_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        # Unknown; a folder of the zone data; not a relative path.
        return False
    return True
