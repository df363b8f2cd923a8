"""Filters of records: by text, key, header and JSON path. Pure.

A filter looks at what a reader may see: at decoded texts after the masks, so that it cannot find out what a
mask hides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ottla_console.cluster.log_reader import LogRecord
from ottla_console.pages.records.decoding import (
    AUTO,
    MISSING,
    Rules,
    Shown,
    document_of,
    header_shown,
    searchable,
    shown,
)
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
        wanted = _compact(self.text.casefold())
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
            if path and not self._selects(path, document_of(record.value, value, rules)):
                return False
            return not wanted or any(
                wanted in _compact(each.casefold()) for each in self._texts(record, rules, key, value)
            )

        return accept

    def _texts(self, record: LogRecord, rules: Rules, key: str, value: str) -> Iterator[str]:
        """Where the text may occur."""
        if self.place in ("", "value"):
            yield searchable(record.value, value, rules)
        if self.place in ("", "key"):
            yield searchable(record.key, key, rules)
        if self.place in ("", "headers"):
            for name, data in record.headers:
                yield name
                if name.lower() not in rules.headers:
                    yield searchable(data, AUTO, rules)

    def _selects(self, path: Path, document: Any) -> bool:
        if document is MISSING:
            return False
        found = path.values(document)
        return any(not self.equals or _as_text(each) == self.equals for each in found)


def _text(found: Shown) -> str:
    """A key or a header, as one writes it."""
    return found.document if isinstance(found.document, str) else found.text


def _compact(text: str) -> str:
    """JSON is found with and without spaces."""
    return text.replace('": ', '":').replace(", ", ",")


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


__all__ = ["FIELDS", "PLACES", "BadPath", "Filter"]
