"""Topics: the rules for names, as in Kafka's org.apache.kafka.common.internals.Topic, and partitions by
topic. Pure.

A topic's name is part of paths of log directories and znodes, and of lines in checkpoint files. Every source
of names is checked: requests of clients and of the controller, znodes, checkpoint files and directories.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, TypeVar

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
INTERNAL_TOPICS: Final = frozenset((OFFSETS_TOPIC, TRANSACTIONS_TOPIC))
TOPIC_NAME_LENGTH_MAX: Final = 249
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_problem(name: str) -> str | None:
    """The error of an illegal name, as in Kafka; None for a legal name."""
    if _LEGAL.fullmatch(name) and len(name) <= TOPIC_NAME_LENGTH_MAX and name not in (".", ".."):
        return None
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return f"the length of '{name}' is longer than the max allowed length {TOPIC_NAME_LENGTH_MAX}"
    return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"


def is_legal_topic_name(name: str) -> bool:
    return topic_name_problem(name) is None


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
