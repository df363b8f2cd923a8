"""Filters of records: by text, key, header and JSON path. Pure.

A filter looks at what a reader may see: at decoded texts after the masks, so that it cannot find out what a
mask hides.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ottla_console.cluster.log_reader import LogRecord
from ottla_console.pages.records.decoding import MISSING, Rules, Shown, header_shown, shown
from ottla_console.views import json_paths
from ottla_console.views.json_paths import BadPath, Path

TEXT_MAX: Final = 300
PLACES: Final[Mapping[str, str]] = {
    "": "anywhere",
    "key": "in the key",
    "value": "in the value",
    "headers": "in headers",
}
FIELDS: Final = ("q", "in", "key", "header", "path", "equals")
"""Parameters of the URL that make a filter."""


@dataclass(frozen=True, slots=True)
class Filter:
    """What a reader looks for; empty texts for nothing."""

    text: str = ""
    place: str = ""
    key: str = ""
    header: str = ""
    """NAME, or NAME=VALUE."""
    path: str = ""
    equals: str = ""
    """Of what the path selects, as JSON or as text."""

    @classmethod
    def of(cls, params: Mapping[str, str]) -> Filter:
        given = {name: params.get(name, "").strip()[:TEXT_MAX] for name in FIELDS}
        place = given["in"] if given["in"] in PLACES else ""
        return cls(given["q"], place, given["key"], given["header"], given["path"], given["equals"])

    @property
    def empty(self) -> bool:
        return not (self.text or self.key or self.header or self.path)

    def accepting(self, rules: Rules, key: str, value: str) -> Callable[[LogRecord], bool]:
        """Whether a record matches; `key`, `value`: the decoders. Raises BadPath."""
        path = json_paths.of_reader(self.path) if self.path else None
        wanted = self.text.casefold()
        name, equals, header_value = self.header.partition("=")

        def accept(record: LogRecord) -> bool:
            if record.control:
                return False
            if self.key and (record.key is None or _text(shown(record.key, key, rules)) != self.key):
                return False
            if self.header and not any(
                each == name and (not equals or _text(header_shown(each, data, rules)) == header_value)
                for each, data in record.headers
            ):
                return False
            decoded = shown(record.value, value, rules) if path or self.place in ("", "value") else None
            if path and not (decoded and self._selects(path, decoded)):
                return False
            return not wanted or self._has(wanted, record, decoded, rules, key)

        return accept

    def _has(self, wanted: str, record: LogRecord, value: Shown | None, rules: Rules, key: str) -> bool:
        if self.place in ("", "value") and value is not None and _has(wanted, value):
            return True
        if self.place in ("", "key") and _has(wanted, shown(record.key, key, rules)):
            return True
        return self.place in ("", "headers") and any(
            wanted in name.casefold() or _has(wanted, header_shown(name, data, rules))
            for name, data in record.headers
        )

    def _selects(self, path: Path, decoded: Shown) -> bool:
        if decoded.document is MISSING:
            return False
        if not self.equals:
            return any(True for _ in path.values(decoded.document))
        return any(_as_text(each) == self.equals for each in path.values(decoded.document))


def _text(found: Shown) -> str:
    """A key or a header, as one writes it."""
    return found.document if isinstance(found.document, str) else found.text


def _has(wanted: str, found: Shown) -> bool:
    """Whether a text occurs in a value as it is shown, or as JSON without spaces."""
    if found.kind in ("null", "hidden", "masked"):
        return False
    if wanted in found.text.casefold():
        return True
    return (
        isinstance(found.document, dict | list)
        and wanted in json.dumps(found.document, ensure_ascii=False, separators=(",", ":")).casefold()
    )


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


__all__ = ["FIELDS", "PLACES", "BadPath", "Filter"]
