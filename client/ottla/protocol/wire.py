"""Functions that generated encoders and decoders call, and the sizes of fields.

Called by the code that `decoding` and `encoding` generate, and by `frames` for headers. Everything here is
on the hot path or close to it.
"""

from __future__ import annotations

from functools import lru_cache
from uuid import UUID

from ottla.protocol.types import ZERO_UUID

FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
STRING_BYTES_MAX = 0x7FFF
"""In bytes of UTF-8. Flexible versions could carry longer ones, but Kafka refuses them there too."""

ELEMENTS_MAX = 2**21
"""Array elements and tagged fields in one message, all levels together: more than the metadata update of a
cluster of 200,000 partitions has. Kafka has no limit; with this one a malicious frame of 100 MiB cannot
become gigabytes of objects."""

STEP_ELEMENTS = 200
"""Array elements that a decoder or encoder in steps goes through between two yields: about 0.2 ms."""
STEP_INTEGERS = 2**16
"""The same for numbers in an array of numbers."""

SIZES = {"?": 1, "b": 1, "B": 1, "x": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "d": 8, "16s": 16}


class Malformed(ValueError):
    """Raised inside generated decoders; `codec` turns it into `MalformedMessage` with the place."""


class TooMany(Malformed):
    """More array elements and tagged fields than the decoder takes."""


def read_varint(buffer: bytes | memoryview, position: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits: its value and the position after it."""
    byte = buffer[position]
    if byte < 128:
        return byte, position + 1
    return continue_varint(buffer, position + 1, byte)


def continue_varint(buffer: bytes | memoryview, position: int, first: int) -> tuple[int, int]:
    """The rest of a varint whose first byte is known to have the continuation bit."""
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            if value > 0xFFFFFFFF:
                raise Malformed("varint does not fit 32 bits")
            return value, position
    raise Malformed("varint longer than 5 bytes")


VARINTS = tuple(bytes((value,)) for value in range(128))
"""The varints of one byte, by value."""


def write_varint(value: int) -> bytes:
    """`value` (at least 0, below 2**32) as an unsigned varint."""
    if value < 128:
        return VARINTS[value]
    parts = bytearray()
    while value > 127:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


@lru_cache(maxsize=4096)
def uuid_of(data: bytes) -> UUID:
    """The UUID of 16 bytes; zero is always ZERO_UUID."""
    # Topic ids repeat in every request, and UUID's own constructor takes over a microsecond.
    return UUID(bytes=data) if any(data) else ZERO_UUID


class Unencodable(ValueError):
    """Raised inside generated encoders, with the field's path and what is wrong with its value."""


def refuse_absent(path: str) -> None:
    """For a value that is not the default, in a version that lacks the field."""
    raise Unencodable(f"{path} is set, but this version does not carry it")


def refuse_null(path: str) -> None:
    """For None in a version in which the field is not nullable."""
    raise Unencodable(f"{path} is None, which this version does not allow")


def refuse_long(path: str, size: int) -> None:
    """For a string that Kafka would reject."""
    raise Unencodable(f"{path} has {size} bytes; at most {STRING_BYTES_MAX} can be sent")
