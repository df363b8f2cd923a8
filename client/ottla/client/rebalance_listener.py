"""The user's functions that are told of a rebalance, as Kafka's ConsumerRebalanceListener.

Called by `Consumer`, within the user's own call of `poll`. An exception of theirs goes to that caller.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ottla.client.core.types import TopicPartition

Told: TypeAlias = Callable[[list[TopicPartition]], Any]
"""A function, or a coroutine function, which is awaited."""


class Listener:
    def __init__(
        self, on_assigned: Told | None = None, on_revoked: Told | None = None, on_lost: Told | None = None
    ) -> None:
        """Without `on_lost`, `on_revoked` is told of lost partitions, too."""
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._on_lost = on_lost or on_revoked

    async def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """After every rebalance, also if nothing is new."""
        await _tell(self._on_assigned, partitions)

    async def taken(self, lost: Sequence[TopicPartition], revoked: Sequence[TopicPartition]) -> None:
        if lost:
            await _tell(self._on_lost, lost)
        if revoked:
            await _tell(self._on_revoked, revoked)


async def _tell(told: Told | None, partitions: Sequence[TopicPartition]) -> None:
    if told is not None:
        result = told(list(partitions))
        if inspect.isawaitable(result):
            await result
