"""The audit's format in bytes: two headers on each record, and audit events as JSON.

Called by the adapters, which write them, and by the audit job, which reads them. Pure. The format is public:
docs/guides/pipeline/audit.md describes it for clients in other languages.

Headers, both short text:

    ottla-producer   web-17/5f3a9c0142d7e6b8     server, and a name of this one producer while it lives
    ottla-produced   1763840000123/45            time of the send call (epoch ms), and its number

Numbers begin at 0 for each producer, topic and tumbling window of the time in the header: so a record
has a unique name (producer, topic, window, number), whatever its key and value, and a duplicate differs from
another record.

An audit event is a JSON object, its key the producer's name. `windows` has the windows that changed since the
last acknowledged event; counts are totals of their window, not differences, so an event may be read twice:

    {"version": 1, "producer": "web-17/5f3a…", "server": "web-17", "report": 3, "published_at": 1763840060007,
     "window_ms": 60000, "final": false, "lost_reports": [],
     "windows": [{"topic": "orders", "start": 1763840000000, "acknowledged": 123, "failed": 0,
                  "in_flight": 0, "closed": true, "numbers": [[0, 122]]}]}

`report` counts a producer's events from 0, and `lost_reports` are those that were not acknowledged, whose
counts it has repeated: any other gap is an audit event that was lost later. A producer that stops without a
`final` event has died. `numbers` are the acknowledged ones as inclusive ranges; null while some are in
flight. `closed`: no further record of this window can be acknowledged. Readers ignore unknown keys; a change
of the meaning of these keys gets another version.

An audited consumer's event has `consumer` in place of `producer`, and the records that it has processed:

    {"version": 1, "consumer": "app-3/90be…", "server": "app-3", "application": "billing", "report": 7,
     "published_at": 1763840065000, "window_ms": 60000, "final": false, "unaudited": {"orders": 2},
     "windows": [{"topic": "orders", "producer": "web-17/5f3a…", "start": 1763840000000, "received": 4,
                  "rejected": 1, "first": 40, "numbers": "Bw=="}]}

A consumer may read a window long after its end, and again, so its counts are differences: each event holds
what was processed since the event before, and a reader adds an event once, by `consumer` and `report`. An
event that was not acknowledged is published again unchanged: there are no lost reports, and any gap is an
event that was lost. `numbers` is a bitmap in base64 (RFC 4648, section 4): bit i of byte j (bit 0 is the
lowest) stands for number `first` + 8j + i of that producer, topic and window. `received` counts copies too;
`rejected` of these are records that the application found invalid. `unaudited` counts records without the two
headers, by topic.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

VERSION: Final = 1
PRODUCER_HEADER: Final = "ottla-producer"
PRODUCED_HEADER: Final = "ottla-produced"
AUDIT_TOPIC: Final = "ottla.audit"
AT_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999: a later time in the header is invalid."""
RANGES_MAX: Final = 10_000
"""With more ranges than this, an event has no list: the audit compares the window's counts only."""


class EventError(Exception):
    """The bytes are not an audit event; the message says why."""


@dataclass(frozen=True, slots=True)
class WindowCount:
    """A producer's counts of one topic and window so far. `failed` records were not acknowledged; they may
    be in the topic nevertheless (after a time-out the outcome is unknown)."""

    topic: str
    start_ms: int
    acknowledged: int
    failed: int
    in_flight: int
    closed: bool
    numbers: tuple[tuple[int, int], ...] | None


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """A producer's report."""

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


@dataclass(frozen=True, slots=True)
class Receipt:
    """Records of one producer, topic and window that a consumer has processed since its previous report.
    Bit i of `bits` is number `first` + i; `received` includes duplicates; `rejected` counts invalid
    records."""

    topic: str
    producer: str
    start_ms: int
    received: int
    rejected: int
    first: int
    bits: int


@dataclass(frozen=True, slots=True)
class ConsumerEvent:
    """A consumer's report."""

    consumer: str
    server: str
    application: str
    report: int
    published_at_ms: int
    window_ms: int
    final: bool
    receipts: tuple[Receipt, ...]
    unaudited: Mapping[str, int]

    def to_json(self) -> bytes:
        windows = [
            {
                "topic": receipt.topic,
                "producer": receipt.producer,
                "start": receipt.start_ms,
                "received": receipt.received,
                "rejected": receipt.rejected,
                "first": receipt.first,
                "numbers": b64encode(_bytes_of(receipt.bits)).decode(),
            }
            for receipt in self.receipts
        ]
        body = {
            "version": VERSION,
            "consumer": self.consumer,
            "server": self.server,
            "application": self.application,
            "report": self.report,
            "published_at": self.published_at_ms,
            "window_ms": self.window_ms,
            "final": self.final,
            "unaudited": dict(self.unaudited),
            "windows": windows,
        }
        return json.dumps(body, separators=(",", ":")).encode()


def read(value: bytes | None) -> AuditEvent | ConsumerEvent:
    """Parses an audit event. Raises EventError for anything but an event of a known version."""
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
    if "consumer" in body:
        return ConsumerEvent(
            consumer=_text(body, "consumer"),
            server=_text(body, "server"),
            application=_text(body, "application"),
            report=_count(body, "report"),
            published_at_ms=_count(body, "published_at"),
            window_ms=window_ms,
            final=_truth(body, "final"),
            receipts=tuple(_receipt(window, window_ms) for window in windows),
            unaudited=_counts(body, "unaudited"),
        )
    return AuditEvent(
        producer=_text(body, "producer"),
        server=_text(body, "server"),
        report=_count(body, "report"),
        published_at_ms=_count(body, "published_at"),
        window_ms=window_ms,
        final=_truth(body, "final"),
        windows=tuple(_window(window, window_ms) for window in windows),
        lost_reports=_numbers(body, "lost_reports"),
    )


def name_of(headers: Iterable[tuple[str, bytes | None]]) -> tuple[str, int, int] | None:
    """The producer, time (epoch ms) and number in a record's headers; None if they are absent or invalid."""
    producer = produced = None
    for name, value in headers:
        if name == PRODUCER_HEADER and producer is None:
            producer = value
        elif name == PRODUCED_HEADER and produced is None:
            produced = value
    if not producer or produced is None:
        return None
    at, separator, number = produced.partition(b"/")
    if not separator or not at.isdigit() or not number.isdigit():
        return None
    at_ms = int(at)
    return (producer.decode(errors="replace"), at_ms, int(number)) if at_ms <= AT_MS_MAX else None


def _bytes_of(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def _start(body: Mapping[str, Any], window_ms: int) -> int:
    start_ms = _count(body, "start")
    if start_ms % window_ms:
        raise EventError(f"start {start_ms} is no start of a window of {window_ms} ms")
    return start_ms


def _receipt(body: Any, window_ms: int) -> Receipt:
    if not isinstance(body, Mapping):
        raise EventError("a window must be an object")
    numbers, received, rejected = body.get("numbers"), _count(body, "received"), _count(body, "rejected")
    try:
        bits = int.from_bytes(b64decode(numbers or "", validate=True), "little")
    except (TypeError, ValueError):
        raise EventError(f"numbers must be a bitmap in base64, not {numbers!r}") from None
    if not 0 < bits.bit_count() <= received:
        raise EventError(f"numbers are {bits.bit_count()}, received {received}")
    if rejected > received:
        raise EventError(f"rejected are {rejected}, received {received}")
    return Receipt(
        topic=_text(body, "topic"),
        producer=_text(body, "producer"),
        start_ms=_start(body, window_ms),
        received=received,
        rejected=rejected,
        first=_count(body, "first"),
        bits=bits,
    )


def _window(body: Any, window_ms: int) -> WindowCount:
    if not isinstance(body, Mapping):
        raise EventError("a window must be an object")
    start_ms, acknowledged = _start(body, window_ms), _count(body, "acknowledged")
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


def _counts(body: Mapping[str, Any], key: str) -> dict[str, int]:
    value = body.get(key, {})
    if not isinstance(value, Mapping):
        raise EventError(f"{key} must be an object, not {value!r}")
    return {name: _count(value, name) for name in value}


def _truth(body: Mapping[str, Any], key: str) -> bool:
    value = body.get(key)
    if not isinstance(value, bool):
        raise EventError(f"{key} must be true or false, not {value!r}")
    return value
