"""Record filters of `ottla consume`: by key, header, text, and by a path into JSON. Pure.

A path selects a part of a value (`user.address[0].city`, `["a.b"]` for names with dots), with an optional
comparison: `user.id=7`, `amount>=10`, `name~^A`; without one, any existing value matches. Values are compared
as JSON if they can be parsed, as text otherwise.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ottla.cli.record_values import as_bytes, plain

RecordFilter = Callable[[Any, Any, Sequence[tuple[str, bytes | None]]], bool]
"""(key, value, headers) -> whether the record matches."""

_STEP: Final = re.compile(r'\.?([^.\[\]=!<>~"\s]+)|\[(\d+)\]|\["([^"]*)"\]')
_COMPARED: Final = re.compile(r"\s*(==|!=|<=|>=|=|<|>|~)\s*(.*)", re.DOTALL)
_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MISSING: Final = object()


class BadFilter(ValueError):
    """A filter cannot be parsed."""


def by_key(text: str) -> RecordFilter:
    wanted = text.encode()
    return lambda key, value, headers: key is not None and as_bytes(key) == wanted


def by_key_pattern(text: str) -> RecordFilter:
    pattern = _pattern(text)
    return lambda key, value, headers: key is not None and pattern.search(as_bytes(key)) is not None


def by_text(text: str) -> RecordFilter:
    pattern = _pattern(text)
    return lambda key, value, headers: value is not None and pattern.search(as_bytes(value)) is not None


def by_header(text: str) -> RecordFilter:
    """`NAME` or `NAME=VALUE`."""
    name, equals, wanted = text.partition("=")
    if not name:
        raise BadFilter(f"header '{text}': must be NAME or NAME=VALUE")
    return lambda key, value, headers: any(
        each == name and (not equals or (found is not None and bytes(found) == wanted.encode()))
        for each, found in headers
    )


def by_path(text: str) -> RecordFilter:
    """Raises BadFilter."""
    steps, compares = _parse(text)

    def accepts(key: Any, value: Any, headers: object) -> bool:
        found = _select(_document(value), steps)
        return found is not _MISSING and compares(found)

    return accepts


def all_of(filters: Sequence[RecordFilter]) -> RecordFilter:
    return lambda key, value, headers: all(accepts(key, value, headers) for accepts in filters)


def _pattern(text: str) -> re.Pattern[bytes]:
    try:
        return re.compile(text.encode())
    except re.error as error:
        raise BadFilter(f"'{text}' is not a regular expression: {error}") from None


def _parse(text: str) -> tuple[list[str | int], Callable[[Any], bool]]:
    steps: list[str | int] = []
    at = 1 if text.startswith("$") else 0
    while found := _STEP.match(text, at):
        name, index, quoted = found.groups()
        steps.append(int(index) if index is not None else quoted if name is None else name)
        at = found.end()
    if not steps and not text.startswith("$"):
        raise BadFilter(f"'{text}': must begin with a path, as user.id or items[0]")
    rest = text[at:]
    if not rest.strip():
        return steps, lambda found: True
    compared = _COMPARED.fullmatch(rest)
    if compared is None:
        raise BadFilter(f"'{text}': after the path, '{rest}' is not a comparison (= != < <= > >= ~)")
    return steps, _comparison(*compared.groups())


def _comparison(sign: str, text: str) -> Callable[[Any], bool]:
    if sign == "~":
        pattern = _pattern(text)
        return lambda found: pattern.search(as_bytes(found)) is not None
    try:
        wanted = json.loads(text)
    except ValueError:
        wanted = text
    compare = _OPERATORS[sign]

    def compares(found: Any) -> bool:
        # `id=7` also matches the string "7"; strings and numbers have no order.
        as_text = isinstance(found, str) and compare in (operator.eq, operator.ne)
        try:
            return bool(compare(found, text if as_text and not isinstance(wanted, str) else wanted))
        except TypeError:
            return False

    return compares


def _document(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview | str):
        try:
            return json.loads(bytes(value) if not isinstance(value, str) else value)
        except (ValueError, RecursionError):
            return plain(value)
    return plain(value)


def _select(value: Any, steps: Sequence[str | int]) -> Any:
    for step in steps:
        if isinstance(step, int):
            if not isinstance(value, list) or step >= len(value):
                return _MISSING
            value = value[step]
        elif isinstance(value, dict) and step in value:
            value = value[step]
        else:
            return _MISSING
    return value
