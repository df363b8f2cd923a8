"""Output formats of `ottla consume`: text, JSON lines, CSV, raw bytes, and templates. Pure."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from ottla.cli.record_values import as_bytes, plain
from ottla.client.core.types import ConsumerRecord

FORMATS: Final = ("text", "json", "csv", "raw")
_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_FIELD: Final = re.compile(r"\{(header:[^{}]+|\w+)\}")
_ESCAPES: Final = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\0": "\0", "\\\\": "\\"}


class DecodedRecord(NamedTuple):
    """A record with its key and value decoded."""

    record: ConsumerRecord
    key: Any
    value: Any


Formatter = Callable[[DecodedRecord], bytes]


def make_formatter(form: str, template: str | None, key_separator: str | None) -> Formatter:
    """The function that formats a record, with its line end. Raises ValueError for an invalid template."""
    if template is not None:
        return _by_template(template)
    if form == "json":
        return lambda shown: _json(_document(shown)) + b"\n"
    if form == "csv":
        return _csv
    if form == "raw":
        return lambda shown: as_bytes(shown.value)
    if key_separator is not None:
        separator = key_separator.encode()
        return lambda shown: as_bytes(shown.key) + separator + as_bytes(shown.value) + b"\n"
    return lambda shown: as_bytes(shown.value) + b"\n"


def header_line(form: str, template: str | None) -> bytes:
    """The header line of the output."""
    return ",".join(_COLUMNS).encode() + b"\r\n" if form == "csv" and template is None else b""


def _document(shown: DecodedRecord) -> dict[str, Any]:
    record = shown.record
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "key": plain(shown.key),
        "value": plain(shown.value),
        "headers": [[name, plain(value)] for name, value in record.headers],
    }


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _csv(shown: DecodedRecord) -> bytes:
    """RFC 4180; a null key or value is an empty field, headers are JSON."""
    row = _document(shown)
    text = io.StringIO()
    texts = {name: as_bytes(row[name]).decode() for name in ("key", "value", "headers")}
    csv.writer(text).writerow([texts.get(name, row[name]) for name in _COLUMNS])
    return text.getvalue().encode()


def _by_template(template: str) -> Formatter:
    text = re.sub(r"\\[ntr0\\]", lambda found: _ESCAPES[found[0]], template)
    parts = _FIELD.split(text)
    fields = [_field(name) for name in parts[1::2]]
    literals = [part.encode() for part in parts[::2]]

    def render(shown: DecodedRecord) -> bytes:
        out = [literals[0]]
        for field, literal in zip(fields, literals[1:], strict=True):
            out += (field(shown), literal)
        return b"".join(out) + b"\n"

    return render


def _field(name: str) -> Formatter:
    if name.startswith("header:"):
        wanted = name.removeprefix("header:")
        return lambda shown: as_bytes(_last(shown.record.headers, wanted))
    if name == "key":
        return lambda shown: as_bytes(shown.key)
    if name == "value":
        return lambda shown: as_bytes(shown.value)
    if name == "time":
        return lambda shown: _iso(shown.record.timestamp_ms).encode()
    if name not in _COLUMNS:
        raise ValueError(f"template: {{{name}}}; allowed: {', '.join((*_COLUMNS, 'time', 'header:NAME'))}")
    return lambda shown: as_bytes(_document(shown)[name])


def _last(headers: Sequence[tuple[str, bytes | None]], name: str) -> bytes | None:
    found = [value for each, value in headers if each == name]
    return found[-1] if found else None


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
