"""The iteration order of Java's hash tables.

Called by the sticky assignors: where Kafka's iterate over a `HashMap` of members, the order decides which
member gets an additional partition. With the same order, a group gets the same assignment whether its leader
is a Java client or an Ottla client.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from ottla.client.core.types import TopicPartition
from ottla.protocol.java_hash import INT32_MASK, string_hash

_SMALLEST_TABLE: Final = 16


def in_java_order(names: Collection[str]) -> list[str]:
    """The keys in the iteration order of a `HashMap` into which they were inserted in this order."""
    buckets = _buckets(len(names))
    return sorted(names, key=lambda name: _spread(string_hash(name) & INT32_MASK) & (buckets - 1))


class JavaSet:
    """The part of `HashSet<TopicPartition>` that is needed: the first element of its iteration order."""

    def __init__(self) -> None:
        self._elements: dict[TopicPartition, None] = {}
        self._largest = 0  # a table never shrinks

    def __bool__(self) -> bool:
        return bool(self._elements)

    def add(self, element: TopicPartition) -> None:
        self._elements[element] = None
        self._largest = max(self._largest, len(self._elements))

    def remove(self, element: TopicPartition) -> None:
        del self._elements[element]

    def first(self) -> TopicPartition:
        buckets = _buckets(self._largest)
        return min(self._elements, key=lambda place: _spread(_hash_of_place(place)) & (buckets - 1))


def _buckets(size: int) -> int:
    """The table size: it doubles when more than three quarters are used."""
    buckets = _SMALLEST_TABLE
    while size > buckets * 3 // 4:
        buckets *= 2
    return buckets


def _hash_of_place(place: TopicPartition) -> int:
    return (31 * (31 + place.partition) + string_hash(place.topic)) & INT32_MASK


def _spread(value: int) -> int:
    return value ^ value >> 16
