"""Finds the field that made the encoding of a message fail.

Called by `codec` after an encoder has failed: encoders leave checks to `struct`, and write many fields at
once, so the field has to be found afterwards.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ottla.protocol.types import FieldType, Message, Struct, fields_of
from ottla.protocol.wire import STRING_BYTES_MAX

_INTEGERS: dict[str, tuple[int, int]] = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
_CLASSES: dict[str, Any] = {
    "bool": object,  # any object has a truth value
    "float64": (int, float),
    "bytes": (bytes, bytearray, memoryview),
    "uuid": UUID,
}


def find_unencodable(message: Message, version: int) -> str:
    """The path of the first field that cannot be encoded and the reason; "" when none is found."""
    return _find_in_struct(message, version, "")


def _find_in_struct(value: Struct, version: int, path: str) -> str:
    for item in fields_of(type(value)):
        if version in item.versions:
            here = f"{path}.{item.name}" if path else item.name
            inner = getattr(value, item.name)
            if inner is None and version in item.nullable:
                continue
            problem = _find(item.type, inner, version, here)
            if problem:
                return problem
    return ""


def _find(kind: FieldType, value: Any, version: int, path: str) -> str:
    wire = kind.wire
    if kind.element is not None:
        if not isinstance(value, (list, tuple)):
            return f"{path} is {_show(value)}, not a list"
        found = (_find(kind.element, each, version, f"{path}[{at}]") for at, each in enumerate(value))
        return next((problem for problem in found if problem), "")
    if kind.struct is not None:
        if not isinstance(value, kind.struct):
            return f"{path} is {_show(value)}, not a {kind.struct.__qualname__}"
        return _find_in_struct(value, version, path)
    if wire in _INTEGERS:
        lowest, highest = _INTEGERS[wire]
        if not isinstance(value, int):
            return f"{path} is {_show(value)}, not an integer"
        return "" if lowest <= value <= highest else f"{path} is {value}, which {wire} cannot hold"
    if wire == "string":
        return _find_in_string(value, path)
    if wire == "records":
        return "" if hasattr(value, "__len__") else f"{path} is {_show(value)}, not bytes"
    return "" if isinstance(value, _CLASSES[wire]) else f"{path} is {_show(value)}, not of type {wire}"


def _find_in_string(value: Any, path: str) -> str:
    if not isinstance(value, str):
        return f"{path} is {_show(value)}, not a string"
    try:
        size = len(value.encode())
    except UnicodeEncodeError as problem:
        return f"{path} cannot be encoded: {problem.reason}"
    return (
        "" if size <= STRING_BYTES_MAX else f"{path} has {size} bytes; at most {STRING_BYTES_MAX} can be sent"
    )


def _show(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
