"""The iteration order of Java's hash tables.

Called by the sticky assignors: where Kafka's iterate over a `HashMap` of members, the order decides which
member gets an additional partition. With the same order, a group gets the same assignment whether its leader
is a Java client or an Ottla client.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from ottla.client.core.types import TopicPartition

_SMALLEST_TABLE: Final = 16
_MASK: Final = 0xFFFF_FFFF


def in_java_order(names: Collection[str]) -> list[str]:
    """The keys in the iteration order of a `HashMap` into which they were inserted in this order."""
    buckets = _buckets(len(names))
    return sorted(names, key=lambda name: _spread(_hash(name)) & (buckets - 1))


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


def _hash(text: str) -> int:
    units = text.encode("utf-16-be")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & _MASK
    return value


def _hash_of_place(place: TopicPartition) -> int:
    return (31 * (31 + place.partition) + _hash(place.topic)) & _MASK


def _spread(value: int) -> int:
    return value ^ value >> 16
