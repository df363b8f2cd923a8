"""Messages with arbitrary values in every field that a version carries, for round trips.

One builder has two sources of choices: hypothesis, which shrinks failures, and a seeded `random.Random`,
where an external oracle checks all samples in one call.
"""

from __future__ import annotations

import random
from typing import Any, Protocol
from uuid import UUID

from hypothesis import strategies as st

from ottla.protocol import messages
from ottla.protocol.errors import ErrorCode
from ottla.protocol.types import Field, FieldType, Message, Struct, fields_of

RANGES = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
ELEMENTS_MAX = 3

MESSAGES: list[type[Message]] = list(messages.ALL)
CASES: list[tuple[type[Message], int]] = [
    (cls, version) for cls in MESSAGES for version in range(cls.min_version, cls.max_version + 1)
]
"""Every message class in every version."""
OWN_FIELDS = {("OffsetCommitRequest", "remove_members")}
"""Tagged fields that Kafka does not have."""


def case_id(case: object) -> str:
    return case.__name__ if isinstance(case, type) else f"v{case}"


class Choices(Protocol):
    """Where the values of a sample come from."""

    def integer(self, lowest: int, highest: int) -> int: ...
    def text(self) -> str: ...
    def blob(self) -> bytes: ...
    def number(self) -> float: ...


class RandomChoices:
    """Choices of a seeded generator; prefers edge values."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def integer(self, lowest: int, highest: int) -> int:
        if highest - lowest > 10 and self._random.random() < 0.3:
            return self._random.choice((lowest, highest, max(lowest, min(0, highest)), max(lowest, -1)))
        return self._random.randint(lowest, highest)

    def text(self) -> str:
        # Some lengths need a varint of two bytes.
        size = self._random.choice((0, 1, 5, 5, 126, 127, 128, 300))
        return "".join(self._random.choices("abcdefghij.-_ÄÖü日本\U0001f40a", k=size))

    def blob(self) -> bytes:
        return self._random.randbytes(self._random.choice((0, 1, 7, 127, 128, 300)))

    def number(self) -> float:
        return self._random.uniform(-1e9, 1e9)


class DrawnChoices:
    """Choices that hypothesis draws."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def integer(self, lowest: int, highest: int) -> int:
        return self._draw(st.integers(lowest, highest))

    def text(self) -> str:
        return self._draw(st.text(max_size=200))

    def blob(self) -> bytes:
        return self._draw(st.binary(max_size=200))

    def number(self) -> float:
        return self._draw(st.floats(allow_nan=False))


def build(
    cls: type[Struct], version: int, choices: Choices, *, for_kio: bool = False, own_fields: bool = True
) -> Any:
    """An instance of `cls`; `for_kio` keeps to values that kio's richer types can hold. Without `own_fields`
    (kio never has them) it has what Kafka's definitions have."""
    values: dict[str, Any] = {}
    for item in fields_of(cls):
        if version not in item.versions:
            continue
        if (for_kio or not own_fields) and (cls.__name__, item.name) in OWN_FIELDS:
            continue
        if version in item.nullable and choices.integer(0, 3) == 0:
            values[item.name] = None
        elif item.tag is None or choices.integer(0, 2):
            values[item.name] = _value(item.type, version, choices, item, for_kio)
    return cls(**values)


def _value(kind: FieldType, version: int, choices: Choices, item: Field, for_kio: bool) -> Any:
    wire = kind.wire
    if wire == "array":
        assert kind.element is not None
        count = choices.integer(0, ELEMENTS_MAX)
        return [_value(kind.element, version, choices, item, for_kio) for _ in range(count)]
    if wire == "struct":
        assert kind.struct is not None
        return build(kind.struct, version, choices, for_kio=for_kio)
    if for_kio and item.name.endswith("error_code"):
        return int(list(ErrorCode)[choices.integer(0, len(ErrorCode) - 1)])
    if for_kio and wire == "int64" and item.name.endswith("_ms"):
        return choices.integer(0, 2**40)
    if wire in RANGES:
        return choices.integer(*RANGES[wire])
    if wire == "bool":
        return bool(choices.integer(0, 1))
    if wire == "float64":
        return choices.number()
    if wire == "string":
        return choices.text()
    if wire == "uuid":
        return UUID(int=choices.integer(0, 2**128 - 1))
    return choices.blob()


def strategy(
    cls: type[Message], version: int, *, for_kio: bool = False, own_fields: bool = True
) -> st.SearchStrategy[Any]:
    """Instances of `cls` for hypothesis."""

    @st.composite
    def drawn(draw: st.DrawFn) -> Any:
        return build(cls, version, DrawnChoices(draw), for_kio=for_kio, own_fields=own_fields)

    return drawn()


def plain(value: Any) -> Any:
    """Nested dicts and lists in place of structs; views as bytes."""
    if isinstance(value, Struct):
        return {item.name: plain(getattr(value, item.name)) for item in fields_of(type(value))}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return bytes(value) if isinstance(value, memoryview) else value
