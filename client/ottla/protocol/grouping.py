"""Groups partitions by topic, as messages and records have them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def by_topic(items: Iterable[tuple[tuple[str, int], T]]) -> dict[str, list[tuple[int, T]]]:
    """Items by (topic, partition) as topic -> [(partition, item)], in the given order."""
    grouped: dict[str, list[tuple[int, T]]] = {}
    for (topic, partition), item in items:
        grouped.setdefault(topic, []).append((partition, item))
    return grouped


def indexes_by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """Topics and their partitions in ascending order, so that the bytes of records are deterministic."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        grouped.setdefault(topic, []).append(partition)
    return grouped
