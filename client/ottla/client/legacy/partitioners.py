"""The partitioners of Kafka 0.8, which choose the partition of a key by Java's hash code.

Called by the producer. The hash code is that of Java, so that keys are in the same partitions as with a Java
producer of that age. Current clients (`ottla.client`) have another hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from ottla.protocol.java_hash import INT32_MASK, absolute, as_int32, string_hash

_INT64: Final = 0xFFFF_FFFF_FFFF_FFFF


class Partitioner(Protocol):
    """Chooses partitions; named by partitioner.class. A function of the same arguments is allowed instead."""

    def partition(self, key: Any, partitions: int) -> int:
        """The partition of a key, from 0 to partitions - 1. The key is not None, and not encoded."""
        ...


class DefaultPartitioner:
    """hash(key) % partitions, with Java's hash of text, bytes and whole numbers."""

    def __init__(self, settings: Mapping[str, object] | None = None) -> None: ...

    def partition(self, key: Any, partitions: int) -> int:
        """The partition of a key. Raises TypeError for a key of another type."""
        return absolute(java_hash(key)) % partitions


class ByteArrayPartitioner:
    """hash(bytes) % partitions, with Java's Arrays.hashCode. The same as DefaultPartitioner, which in Java
    hashes the identity of a byte array, so that equal keys get different partitions there."""

    def __init__(self, settings: Mapping[str, object] | None = None) -> None: ...

    def partition(self, key: Any, partitions: int) -> int:
        """The partition of a key. Raises TypeError for a key of another type."""
        return absolute(java_hash(key)) % partitions


def java_hash(key: object) -> int:
    """Java's hashCode of a String, Boolean, Integer or Long, or Arrays.hashCode of bytes; signed."""
    if isinstance(key, str):
        return string_hash(key)
    if isinstance(key, bytes | bytearray | memoryview):
        value = 1
        for byte in bytes(key):
            value = 31 * value + (byte if byte < 0x80 else byte - 0x100) & INT32_MASK
    elif isinstance(key, bool):
        value = 1231 if key else 1237
    elif isinstance(key, int) and -(2**63) <= key < 2**63:
        wide = key & _INT64
        value = key & INT32_MASK if -(2**31) <= key < 2**31 else (wide ^ wide >> 32) & INT32_MASK
    else:
        raise TypeError(f"a key of type {type(key).__name__} has no Java hash code: set partitioner.class")
    return as_int32(value)
