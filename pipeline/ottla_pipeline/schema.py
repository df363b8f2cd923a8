"""What an event looks like: its fields as Spark DDL, and which of them are its id and its time.

Read from a small JSON file (`--schema`) by the lake and audit jobs:

    {"fields": "id STRING, event_time TIMESTAMP, carrier STRING", "id": "id", "time": "event_time"}

Invariant: `id_field` and `time_field` are top-level fields; `split.check` holds them against the DDL once
Spark is there to parse it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


class SchemaError(Exception):
    """A schema that cannot be used; the message names the file or field and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class EventSchema:
    """An event's typed fields. Each event has a unique id (a string) and a time (a timestamp)."""

    fields: str = "id STRING, event_time TIMESTAMP"
    id_field: str = "id"
    time_field: str = "event_time"

    @classmethod
    def from_file(cls, path: Path) -> EventSchema:
        """Reads `path`; SchemaError on anything but a JSON object with the three known keys."""
        try:
            raw = json.loads(path.read_text())
        except OSError as error:
            raise SchemaError(f"{path}: {error.strerror}") from error
        except ValueError as error:
            raise SchemaError(f"{path}: not JSON: {error}") from error
        if not isinstance(raw, dict):
            raise SchemaError(f"{path}: must hold an object with fields, id and time")
        known = {"fields": "fields", "id": "id_field", "time": "time_field"}
        unknown = sorted(set(raw) - set(known))
        if unknown:
            raise SchemaError(f"{path}: unknown key {unknown[0]!r}; known are {', '.join(known)}")
        for key, value in raw.items():
            if not isinstance(value, str) or not value.strip():
                raise SchemaError(f"{path}: {key} must be a string that is not empty, not {value!r}")
        return cls(**{known[key]: value for key, value in raw.items()})
