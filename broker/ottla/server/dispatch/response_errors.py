"""Counts the errors in a response, at any depth of the message, for metrics (Kafka's ErrorsPerSec).

Called by the dispatcher for each response that is a message. A Fetch encodes its responses itself, and counts
their errors; a Produce does so for responses without an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

from ottla.protocol.types import Struct, fields_of

Count: TypeAlias = Callable[[Any, Counter[int]], None]
"""Counts the codes other than NONE of a struct."""


@cache
def error_counter(cls: type[Struct]) -> Count | None:
    """The function for structs of a class; None if they have no error code at any depth. Most responses have
    one code, or none: looking for others would cost more than their encoding."""
    has_code = False
    nested: list[tuple[str, Count, bool]] = []
    for field in fields_of(cls):
        has_code = has_code or field.name == "error_code"
        kind = field.type
        element = kind if kind.element is None else kind.element
        count = None if element.struct is None else error_counter(element.struct)
        if count is not None:
            nested.append((field.name, count, kind.element is not None))

    def count_code(struct: Any, counts: Counter[int]) -> None:
        if struct.error_code:
            counts[struct.error_code] += 1

    def count_nested(struct: Any, counts: Counter[int]) -> None:
        if has_code and struct.error_code:
            counts[struct.error_code] += 1
        for name, count, is_array in nested:
            found = getattr(struct, name)
            for each in found or () if is_array else () if found is None else (found,):
                count(each, counts)

    return count_nested if nested else count_code if has_code else None
