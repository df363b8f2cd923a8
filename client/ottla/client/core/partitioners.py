"""Partitioners: the choice of a partition for a record, as in the Java client, in librdkafka, or by the user.

Called by the accumulator. A partitioner is a function of topic, key, value (as bytes) and the number of
partitions. If it returns None, the record goes to the sticky partition (KIP-794), which changes when a batch
is full and prefers partitions with short queues.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import accumulate, count
from typing import Final, TypeAlias

from ottla.client.core.backoff import Uniform

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
    """The hash of a key that determines its partition: murmur2 without the sign."""
    return murmur2(key) & 0x7FFFFFFF


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition of a key as the Java client's default partitioner chooses it."""
    return key_hash(key) % partitions


Partitioner: TypeAlias = Callable[[str, bytes | None, bytes | None, int], int | None]

_REMEMBERED_KEYS_MAX: Final = 16_384
_FNV_OFFSET: Final = 0x811C9DC5
_FNV_PRIME: Final = 0x01000193


class KeyHashCache:
    """Caches `key_hash` of keys. In Python, the hash of a key of ten bytes takes as long as all other work of
    sending its record."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}

    def __call__(self, key: bytes) -> int:
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _REMEMBERED_KEYS_MAX:
                self._known.clear()
            found = self._known[key] = key_hash(key)
        return found


def _murmur2(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int | None:
    return partition_for_key(key or b"", partitions)


def _murmur2_random(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int | None:
    return None if key is None else partition_for_key(key, partitions)


def _consistent(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int | None:
    return zlib.crc32(key or b"") % partitions


def _consistent_random(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int | None:
    return zlib.crc32(key) % partitions if key else None


def fnv1a(data: bytes) -> int:
    """FNV-1a, 32 bits, as the absolute value of a signed number, as in librdkafka and Sarama."""
    number = _FNV_OFFSET
    for byte in data:
        number = (number ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return number if number < 0x80000000 else 0x100000000 - number


def _fnv1a(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int | None:
    return fnv1a(key or b"") % partitions


def _fnv1a_random(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int | None:
    return None if key is None else fnv1a(key) % partitions


def _random(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int | None:
    return None


BY_NAME: Final[dict[str, Partitioner | None]] = {
    "default": None,
    "consistent": _consistent,
    "consistent_random": _consistent_random,
    "murmur2": _murmur2,
    "murmur2_random": _murmur2_random,
    "fnv1a": _fnv1a,
    "fnv1a_random": _fnv1a_random,
    "random": _random,
}
"""librdkafka's names; `default` is that of the Java client: murmur2 of a key, sticky without a key."""


class RoundRobin:
    """The partitions of a topic in turn, regardless of the key (KIP-369)."""

    def __init__(self) -> None:
        self._turns: defaultdict[str, count[int]] = defaultdict(count)

    def partition(self, topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int | None:
        return next(self._turns[topic]) % partitions


_JAVA_PACKAGE: Final = "org.apache.kafka.clients.producer."
BY_JAVA_CLASS: Final[dict[str, type[RoundRobin] | Partitioner]] = {
    f"{_JAVA_PACKAGE}RoundRobinPartitioner": RoundRobin,
    f"{_JAVA_PACKAGE}UniformStickyPartitioner": _random,
    f"{_JAVA_PACKAGE}internals.DefaultPartitioner": _murmur2_random,
}


class StickyPartitioner:
    """The current sticky partition of a topic, for records without a key (KIP-794)."""

    __slots__ = ("_adaptive", "_batch_size", "_uniform", "left", "partition")

    def __init__(self, batch_size: int, uniform: Uniform, *, adaptive: bool) -> None:
        self.partition: int | None = None
        self.left = 0
        """Bytes until the partition changes; the accumulator decrements it."""
        self._batch_size = max(batch_size, 1)
        self._uniform = uniform
        self._adaptive = adaptive

    def choose(self, partitions: Sequence[int], queued: Sequence[int]) -> int:
        """Choose the next partition from `partitions`, at least one. `queued`: the number of batches in the
        queue of each; shorter queues are more likely."""
        self.left = self._batch_size
        if self._adaptive and max(queued) != min(queued):
            most = max(queued) + 1
            table = list(accumulate(most - waiting for waiting in queued))
            at = bisect_right(table, int(self._uniform(0, table[-1])))
        else:
            at = int(self._uniform(0, len(partitions)))
        self.partition = partitions[min(at, len(partitions) - 1)]
        return self.partition
