"""Bytes to messages and back, for every message class and version.

Called by `frames`, by the server's handlers, the client, and by the coordinators for their records.
Each (class, version, direction) is compiled on first use and kept on the class; see `decoding` and
`encoding`.

A decoder does not trust its input: for any bytes it returns a message or raises `MalformedMessage`.
Memory is allocated only for values that are in the input, whatever a length or a count claims. Python's
objects are larger than their bytes, though. The limit, which the tests measure: a message takes at most 64
bytes of memory for each byte of input; the maximum is for arrays of structs with only empty arrays (56).
Arrays of int32 take 12, and record batches, which are views, nothing. Beyond 2 MiB of input, `ELEMENTS_MAX`
limits memory and time.

`decode_steps` and `encode_steps` do the same as generators, for a caller with other work between two steps.

An encoder refuses what the version cannot say (`UnencodableMessage`) rather than drop it, unless the table
calls the field ignorable.

After an encoder has failed, the field that made it fail is searched for: encoders leave checks to `struct`,
and write many fields at once.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from types import TracebackType
from typing import Any, TypeVar
from uuid import UUID

from ottla.protocol.decoding import compile_decoder
from ottla.protocol.encoding import compile_encoder
from ottla.protocol.errors import MalformedMessage, TooManyElements, UnencodableMessage, UnknownVersion
from ottla.protocol.types import FieldType, Message, Struct, fields_of
from ottla.protocol.wire import ELEMENTS_MAX, STRING_BYTES_MAX, Malformed, TooMany, Unencodable

M = TypeVar("M", bound=Message)

JOINED_PARTS_MIN = 1024
_UNENCODABLE = (Unencodable, struct.error, AttributeError, TypeError, UnicodeError, OverflowError)
_MALFORMED = (struct.error, IndexError, Malformed, UnicodeDecodeError)

Buffer = bytes | bytearray | memoryview
"""Memoryviews must be contiguous and of single bytes (format `B`)."""


def encode(message: Message, version: int) -> bytes:
    """The body of `message` in `version`, without any header.

    Raises UnknownVersion, or UnencodableMessage naming the field at fault.
    """
    return b"".join(encode_parts(message, version))


def encode_parts(message: Message, version: int) -> list[bytes | memoryview]:
    """As `encode`, but as pieces to be sent one after the other: record batches are passed on, not copied.

    Anything with a length may stand in a `records` field here, and comes back in its place.
    """
    cls = type(message)
    encoder = cls._encoders.get(version)
    if encoder is None:
        _check_version(cls, version)
        encoder = cls._encoders[version] = compile_encoder(cls, version)
    parts: list[bytes | memoryview] = []
    try:
        encoder(message, parts)
    except _UNENCODABLE as problem:
        raise _unencodable(message, version, problem) from problem
    return parts


def encode_steps(message: Message, version: int) -> Generator[None, None, list[bytes | memoryview]]:
    """As `encode_parts`, in steps of some hundred elements; the parts of a step become one."""
    cls = type(message)
    encoder = cls._step_encoders.get(version)
    if encoder is None:
        _check_version(cls, version)
        encoder = cls._step_encoders[version] = compile_encoder(cls, version, in_steps=True)
    parts: list[bytes | memoryview] = []
    joined: list[bytes | memoryview] = []
    try:
        for _ in encoder(message, parts):
            if len(parts) > JOINED_PARTS_MIN:
                joined.append(b"".join(parts))
                parts.clear()
            yield
    except _UNENCODABLE as problem:
        raise _unencodable(message, version, problem) from problem
    joined.append(b"".join(parts))
    return joined


def _unencodable(message: Message, version: int, problem: BaseException) -> UnencodableMessage:
    found = str(problem)
    if not isinstance(problem, Unencodable):
        found = find_unencodable(message, version) or found
    return UnencodableMessage(f"{type(message).__name__} v{version}: {found}")


def decode(cls: type[M], version: int, buffer: Buffer, offset: int = 0) -> M:
    """The message that starts at `offset` of `buffer`; bytes after it are ignored.

    Fields of type records are views into `buffer`. Raises UnknownVersion or MalformedMessage.
    """
    return decode_from(cls, version, buffer, offset)[0]


def decode_from(cls: type[M], version: int, buffer: Buffer, offset: int = 0) -> tuple[M, int]:
    """As `decode`, with the offset at which the message ends."""
    size = len(buffer)
    # Every element takes at least a byte: elements have to be counted in larger inputs only.
    decoders = cls._decoders if size <= cls.counted_from_bytes else cls._counting_decoders
    decoder = decoders.get(version)
    if decoder is None:
        _check_version(cls, version)
        limit = None if decoders is cls._decoders else cls.elements_max
        decoder = decoders[version] = compile_decoder(cls, version, limit)
    try:
        result: tuple[M, int] = decoder(buffer, offset, size)
    except _MALFORMED as problem:
        raise _malformed(cls, version, problem) from None
    return result


def decode_steps(cls: type[M], version: int, buffer: Buffer, offset: int = 0) -> Generator[None, None, M]:
    """As `decode`, in steps of some hundred elements. `buffer` may not change meanwhile."""
    decoder = cls._step_decoders.get(version)
    if decoder is None:
        _check_version(cls, version)
        decoder = cls._step_decoders[version] = compile_decoder(cls, version, ELEMENTS_MAX, in_steps=True)
    try:
        result: tuple[M, int] = yield from decoder(buffer, offset, len(buffer))
    except _MALFORMED as problem:
        raise _malformed(cls, version, problem) from None
    return result[0]


def _malformed(cls: type[Message], version: int, problem: BaseException) -> MalformedMessage:
    where, position = _place(problem.__traceback__)
    if isinstance(problem, (Malformed, UnicodeDecodeError)):
        what = f"{where}: {problem}"
    else:
        what = f"ends within {where or 'its first field'}"
    kind = TooManyElements if isinstance(problem, TooMany) else MalformedMessage
    return kind(f"{cls.__name__} v{version}", what, position)


def _check_version(cls: type[Message], version: int) -> None:
    if not cls.min_version <= version <= cls.max_version:
        raise UnknownVersion(
            f"{cls.__name__} has versions {cls.min_version} to {cls.max_version}, not {version}"
        )


def _place(traceback: TracebackType | None) -> tuple[str, int]:
    """The field a generated function was at when it failed, and the position in the buffer (-1: none)."""
    while traceback is not None:
        frame = traceback.tb_frame
        paths = frame.f_globals.get("PATHS")
        if isinstance(paths, tuple):
            position = frame.f_locals.get("pos", -1)
            return paths[traceback.tb_lineno - 1], position if isinstance(position, int) else -1
        traceback = traceback.tb_next
    return "", -1


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
