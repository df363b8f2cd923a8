"""Which partition a keyed record goes to: the Java client's choice, so that keys stay where they are.

Called by the producer's partitioners, and by whoever has to know where a key is.
"""

from __future__ import annotations

from typing import Final

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Murmur2, 32 bits, with the seed that Kafka's clients use (`Utils.murmur2`), as an unsigned number."""
    value = (_SEED ^ len(data)) & _MASK
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k = (k ^ (k >> 24)) * _M & _MASK
        value = (value * _M & _MASK) ^ k
    if len(data) > whole:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    value = (value ^ (value >> 13)) * _M & _MASK
    return value ^ (value >> 15)


def key_hash(key: bytes) -> int:
    """What decides over a key's partition: the hash without its sign."""
    return murmur2(key) & 0x7FFFFFFF


def partition_for_key(key: bytes, partitions: int) -> int:
    """As the Java client's default partitioner: the key's hash, over the number of partitions."""
    return key_hash(key) % partitions
