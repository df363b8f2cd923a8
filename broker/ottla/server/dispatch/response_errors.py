"""Counts the errors in a response, at any depth of the message, for metrics (Kafka's ErrorsPerSec).

Called by the dispatcher for each response that is a message. A Fetch encodes its responses itself, and counts
their errors; a Produce does so for responses without an error.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Final, NamedTuple

from ottla.protocol.types import Struct, fields_of

_FIELD: Final = "error_code"


class _Places(NamedTuple):
    """Where a struct has error codes: itself, and its fields by name."""

    here: bool
    structs: tuple[tuple[str, _Places], ...]
    arrays: tuple[tuple[str, _Places], ...]


@cache
def _places(cls: type[Struct]) -> _Places | None:
    """None if it has none at any depth."""
    structs: list[tuple[str, _Places]] = []
    arrays: list[tuple[str, _Places]] = []
    for field in fields_of(cls):
        kind = field.type
        element = kind if kind.element is None else kind.element
        found = None if element.struct is None else _places(element.struct)
        if found is not None:
            (structs if kind.element is None else arrays).append((field.name, found))
    here = any(field.name == _FIELD for field in fields_of(cls))
    return _Places(here, tuple(structs), tuple(arrays)) if here or structs or arrays else None


def count_errors(message: Struct, counts: Counter[int]) -> None:
    """Count the codes other than NONE."""
    places = _places(type(message))
    if places is not None:
        _count(message, places, counts)


def _count(struct: Struct, places: _Places, counts: Counter[int]) -> None:
    if places.here and (code := getattr(struct, _FIELD)):
        counts[code] += 1
    for name, nested in places.structs:
        found = getattr(struct, name)
        if found is not None:
            _count(found, nested, counts)
    for name, nested in places.arrays:
        for item in getattr(struct, name) or ():
            _count(item, nested, counts)
