"""Java's hash codes, by which Kafka chooses partitions. Pure.

Used for the coordinator of a group, for the order in which sticky assignors of Java iterate, and for the
partitioners of Kafka 0.8.
"""

from __future__ import annotations

import struct
from typing import Final

INT32_MASK: Final = 0xFFFF_FFFF
_SIGN: Final = 0x8000_0000


def string_hash(text: str) -> int:
    """String.hashCode: a step for each UTF-16 code unit."""
    value = 0
    for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be", "surrogatepass")):
        value = (31 * value + unit) & INT32_MASK
    return as_int32(value)


def as_int32(value: int) -> int:
    """The low 32 bits, signed."""
    value &= INT32_MASK
    return value - 2 * _SIGN if value & _SIGN else value


def absolute(hash_code: int) -> int:
    """Kafka's Utils.abs: 0 for the smallest 32-bit integer, which has no positive counterpart."""
    return 0 if hash_code == -_SIGN else abs(hash_code)
