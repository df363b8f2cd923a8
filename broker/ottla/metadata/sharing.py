"""Sets of brokers that thousands of partitions have in common, kept once.

Called where partitions' replicas and ISRs are kept for long: the metadata cache, the controller's state, the
replicas themselves. A cluster has few different ones, and each tuple of three costs 64 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

KEPT_MAX = 4096


def shared(brokers: Iterable[int]) -> tuple[int, ...]:
    """The same object for the same brokers in the same order."""
    return _the_one(tuple(brokers))


@lru_cache(KEPT_MAX)
def _the_one(brokers: tuple[int, ...]) -> tuple[int, ...]:
    return brokers
