"""Which partition a keyed message goes to, as Kafka 0.8 has it: by Java's hash of the key.

Called by the producer. Python's own `hash` of text differs from process to process; Java's does not, and so
keys stay where a Java producer has put them. It is not the hash of today's clients (`ottla.client`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

_INT32: Final = 0xFFFF_FFFF
_INT64: Final = 0xFFFF_FFFF_FFFF_FFFF
_SIGN: Final = 0x8000_0000


class Partitioner(Protocol):
    """Named by partitioner.class; a function of the same arguments will do."""

    def partition(self, key: Any, partitions: int) -> int:
        """One of 0 to partitions - 1, for a key that is not None and not encoded yet."""
        ...


class DefaultPartitioner:
    """hash(key) % partitions, with Java's hash of text, bytes and whole numbers."""

    def __init__(self, settings: Mapping[str, object] | None = None) -> None: ...

    def partition(self, key: Any, partitions: int) -> int:
        """Raises TypeError for a key of another kind: it needs a partitioner of its own."""
        return _abs(java_hash(key)) % partitions


class ByteArrayPartitioner(DefaultPartitioner):
    """Of bytes, as Java's has it, too. The Java `DefaultPartitioner` spreads bytes by where they lie in
    memory, the same key anywhere; here both do what was meant."""


def java_hash(key: object) -> int:
    """Java's hashCode of a String, Boolean, Integer or Long, or Arrays.hashCode of bytes; signed."""
    if isinstance(key, str):
        units = key.encode("utf-16-be", "surrogatepass")
        value = 0
        for at in range(0, len(units), 2):
            value = 31 * value + (units[at] << 8 | units[at + 1]) & _INT32
    elif isinstance(key, bytes | bytearray | memoryview):
        value = 1
        for byte in bytes(key):
            value = 31 * value + (byte if byte < 0x80 else byte - 0x100) & _INT32
    elif isinstance(key, bool):
        value = 1231 if key else 1237
    elif isinstance(key, int) and -(2**63) <= key < 2**63:
        wide = key & _INT64
        value = key & _INT32 if -(2**31) <= key < 2**31 else (wide ^ wide >> 32) & _INT32
    else:
        raise TypeError(f"a key of type {type(key).__name__} has no hash here: set partitioner.class")
    return value - 2 * _SIGN if value & _SIGN else value


def _abs(value: int) -> int:
    """Kafka's, which gives 0 for the smallest number, as it has no counterpart."""
    return 0 if value == -_SIGN else abs(value)
