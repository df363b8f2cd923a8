"""A new record: the form, and its fields as bytes. Pure, except for `encode`, which may ask the registry."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ottla_console.cluster.problems import Problem

FORM_MAX: Final = 2 << 20
"""Bytes of the form."""
HEADERS_MAX: Final = 100
NULL: Final = "null"
CHOICES: Final[Mapping[str, str]] = {
    "text": "Text",
    "json": "JSON",
    "hex": "Hex",
    "schema": "Schema registry",
    NULL: "Null",
}

BySchema: TypeAlias = Callable[[str, Any], Awaitable[bytes]]
"""(subject, value) -> bytes in the registry's framing."""


class BadField(ValueError):
    """A field of the form cannot be sent; the message says which and why."""


@dataclass(frozen=True)
class Draft:
    """The fields of the form as texts."""

    key: str = ""
    key_as: str = "text"
    value: str = ""
    value_as: str = "text"
    headers: str = ""
    """A line for each: `name: value`."""
    partition: str = ""
    """Empty: by the key."""

    @classmethod
    def of(cls, form: Mapping[str, str]) -> Draft:
        key_as, value_as = form.get("key_as", ""), form.get("value_as", "")
        return cls(
            form.get("key", "").replace("\r\n", "\n"),
            key_as if key_as in CHOICES else "text",
            form.get("value", "").replace("\r\n", "\n"),
            value_as if value_as in CHOICES else "text",
            form.get("headers", "").replace("\r\n", "\n"),
            form.get("partition", ""),
        )

    def partition_of(self, count: int) -> int | None:
        """None: by the key. Raises BadField."""
        if not self.partition:
            return None
        digits = self.partition.isascii() and self.partition.isdigit() and len(self.partition) < 10
        if digits and int(self.partition) < count:
            return int(self.partition)
        raise BadField(f"Partition: a number from 0 to {count - 1}.")

    def header_list(self) -> list[tuple[str, bytes | None]]:
        """Raises BadField."""
        found: list[tuple[str, bytes | None]] = []
        for number, line in enumerate(self.headers.split("\n"), 1):
            if not line.strip():
                continue
            name, colon, value = line.partition(":")
            if not colon or not name.strip():
                raise BadField(f"Headers, line {number}: must be name: value.")
            found.append((name.strip(), value.strip().encode()))
        if len(found) > HEADERS_MAX:
            raise BadField(f"Headers: at most {HEADERS_MAX}.")
        return found


@dataclass(frozen=True)
class Form:
    """The page."""

    name: str
    partitions: int
    draft: Draft
    mistake: str
    problems: tuple[Problem, ...]
    schema: bool

    choices = CHOICES


async def encode(text: str, kind: str, what: str, subject: str, by_schema: BySchema | None) -> bytes | None:
    """A key or a value as bytes. Raises BadField, and what the registry raises."""
    if kind == NULL:
        return None
    if kind == "text":
        return text.encode("utf-8", "surrogatepass")
    if kind == "hex":
        try:
            return bytes.fromhex(text)
        except ValueError:
            raise BadField(f"{what}: hex digits in pairs, for example 00 ff.") from None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadField(f"{what}: not JSON: {error}.") from None
    if kind == "json":
        return text.encode("utf-8", "surrogatepass")
    if by_schema is None:
        raise BadField(f"{what}: no schema registry is configured for this cluster.")
    return await by_schema(subject, document)
