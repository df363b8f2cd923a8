"""Interfaces of the transaction coordinator: its log, the marker sender, and producer ids. Implemented by the
server (`server.coordination`), and by tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol, TypeAlias

from ottla.coordinators.interfaces import CoordinatorLog
from ottla.coordinators.transactions.transaction import TopicPartition


class TransactionLog(CoordinatorLog, Protocol):
    """The partitions of `__transaction_state`."""

    def leader_epoch(self, partition: int) -> int:
        """The partition's leader epoch on this broker: the coordinator epoch in its markers."""
        ...


class Marker(NamedTuple):
    """The transaction marker of a producer for some partitions: its transaction's outcome."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    partitions: frozenset[TopicPartition]


class MarkerSender(Protocol):
    """Sends transaction markers (TransactionMarkerChannelManager)."""

    def send(
        self,
        marker: Marker,
        marked: Callable[[frozenset[TopicPartition]], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        """Have the partitions' leaders append the marker, with retries while `is_wanted` returns True.

        `marked` is called once or several times, possibly before this returns, with partitions that have the
        marker or were deleted.
        """
        ...


class NoProducerId(Exception):
    """No producer id is available now; a retry may succeed."""


NewProducerId: TypeAlias = Callable[[], Awaitable[int]]
"""Returns an unused producer id. Raises NoProducerId."""
