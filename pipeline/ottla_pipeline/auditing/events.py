"""What audited producers say, in bytes: two headers on each record, and audit events as JSON.

Called by the adapters, which write them, and by the audit job, which reads them. Pure.

Headers, both short text:

    ottla-producer   web-17/5f3a9c0142d7e6b8     server, and a name of this one producer while it lives
    ottla-produced   1763840000123/45            when it was handed over (epoch ms), and its number

Numbers begin at 0 for each producer, topic and tumbling window of the time in the header: so a record
has a name (producer, topic, window, number) that no other has, whatever its key and value, and a copy is told
from another record.

An audit event is a JSON object, its key the producer's name. `windows` holds what has changed since the last
event that arrived; counts are totals of their window, never differences, so an event may be read twice:

    {"version": 1, "producer": "web-17/5f3a…", "server": "web-17", "report": 3, "published_at": 1763840060007,
     "window_ms": 60000, "final": false, "lost_reports": [],
     "windows": [{"topic": "orders", "start": 1763840000000, "acknowledged": 123, "failed": 0,
                  "in_flight": 0, "closed": true, "numbers": [[0, 122]]}]}

`report` counts a producer's events from 0, and `lost_reports` are those that it could not publish, whose
counts it has told again: any other gap is an audit event that was lost behind its back. A producer without a
`final` event that says nothing more has died. `numbers` are the acknowledged ones as inclusive ranges; null
while some are in flight. `closed`: nothing of this window can be acknowledged any more. Readers leave out
keys that they do not know; what changes the meaning of these keys gets another version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

VERSION: Final = 1
PRODUCER_HEADER: Final = "ottla-producer"
PRODUCED_HEADER: Final = "ottla-produced"
AUDIT_TOPIC: Final = "ottla.audit"
RANGES_MAX: Final = 10_000
"""More ranges than this are not listed: the window's count is compared without them."""


class EventError(Exception):
    """Bytes that are no audit event; the message says why."""


@dataclass(frozen=True, slots=True)
class WindowCount:
    """What one producer has sent to one topic in one window, so far. `failed` were not acknowledged: they may
    be there nevertheless (a timeout tells nothing), and nobody was promised that they are."""

    topic: str
    start_ms: int
    acknowledged: int
    failed: int
    in_flight: int
    closed: bool
    numbers: tuple[tuple[int, int], ...] | None


@dataclass(frozen=True, slots=True)
class AuditEvent:
    producer: str
    server: str
    report: int
    published_at_ms: int
    window_ms: int
    final: bool
    windows: tuple[WindowCount, ...]
    lost_reports: tuple[int, ...] = ()

    def to_json(self) -> bytes:
        windows = [
            {
                "topic": window.topic,
                "start": window.start_ms,
                "acknowledged": window.acknowledged,
                "failed": window.failed,
                "in_flight": window.in_flight,
                "closed": window.closed,
                "numbers": window.numbers,
            }
            for window in self.windows
        ]
        body = {
            "version": VERSION,
            "producer": self.producer,
            "server": self.server,
            "report": self.report,
            "published_at": self.published_at_ms,
            "window_ms": self.window_ms,
            "final": self.final,
            "lost_reports": self.lost_reports,
            "windows": windows,
        }
        return json.dumps(body, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, value: bytes | None) -> AuditEvent:
        """Raises EventError for anything but an event of a version that is known here."""
        try:
            body: Any = json.loads(value or b"null")
        except ValueError as error:
            raise EventError(f"not JSON: {error}") from None
        if not isinstance(body, Mapping):
            raise EventError("not a JSON object")
        version = body.get("version")
        if version != VERSION:
            raise EventError(f"version is {version!r}; known is {VERSION}")
        windows = body.get("windows")
        if not isinstance(windows, Sequence) or isinstance(windows, str):
            raise EventError("windows must be a list")
        window_ms = _count(body, "window_ms")
        if window_ms == 0:
            raise EventError("window_ms must be above 0")
        return cls(
            producer=_text(body, "producer"),
            server=_text(body, "server"),
            report=_count(body, "report"),
            published_at_ms=_count(body, "published_at"),
            window_ms=window_ms,
            final=_truth(body, "final"),
            windows=tuple(_window(window, window_ms) for window in windows),
            lost_reports=_numbers(body, "lost_reports"),
        )


def _window(body: Any, window_ms: int) -> WindowCount:
    if not isinstance(body, Mapping):
        raise EventError("a window must be an object")
    start_ms, acknowledged = _count(body, "start"), _count(body, "acknowledged")
    if start_ms % window_ms:
        raise EventError(f"start {start_ms} is no start of a window of {window_ms} ms")
    raw = body.get("numbers")
    numbers: tuple[tuple[int, int], ...] | None = None
    if raw is not None:
        try:
            numbers = tuple((int(first), int(last)) for first, last in raw)
        except (TypeError, ValueError):
            raise EventError(f"numbers must be pairs of numbers, not {raw!r}") from None
        edges = [edge for pair in numbers for edge in (pair[0], pair[1] + 1)]
        if edges != sorted(set(edges)) or any(edge < 0 for edge in edges):
            raise EventError("numbers must be ranges that ascend, with a gap between them")
        listed = sum(last - first + 1 for first, last in numbers)
        if listed != acknowledged:
            raise EventError(f"numbers are {listed}, acknowledged {acknowledged}")
    return WindowCount(
        topic=_text(body, "topic"),
        start_ms=start_ms,
        acknowledged=acknowledged,
        failed=_count(body, "failed"),
        in_flight=_count(body, "in_flight"),
        closed=_truth(body, "closed"),
        numbers=numbers,
    )


def _text(body: Mapping[str, Any], key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str) or not value:
        raise EventError(f"{key} must be a string that is not empty, not {value!r}")
    return value


def _count(body: Mapping[str, Any], key: str) -> int:
    value = body.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise EventError(f"{key} must be a whole number, not {value!r}")
    return value


def _numbers(body: Mapping[str, Any], key: str) -> tuple[int, ...]:
    value = body.get(key, ())
    if not isinstance(value, Sequence) or not all(type(number) is int for number in value):
        raise EventError(f"{key} must be a list of whole numbers, not {value!r}")
    return tuple(value)


def _truth(body: Mapping[str, Any], key: str) -> bool:
    value = body.get(key)
    if not isinstance(value, bool):
        raise EventError(f"{key} must be true or false, not {value!r}")
    return value
