"""What the coordinator of transactions needs from the outside. The server implements these; tests have their
own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol, TypeAlias

from ottla.coordinators.ports import CoordinatorLog
from ottla.coordinators.transactions.transaction import TopicPartition


class TransactionLog(CoordinatorLog, Protocol):
    """The partitions of `__transaction_state`."""

    def leader_epoch(self, partition: int) -> int:
        """Of the leadership that this broker has now: the coordinator epoch that its markers carry."""
        ...


class Marker(NamedTuple):
    """The outcome of a producer's transaction, for the logs of some partitions."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    partitions: frozenset[TopicPartition]


class MarkerSender(Protocol):
    def send(
        self,
        marker: Marker,
        marked: Callable[[frozenset[TopicPartition]], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        """Have the marker appended by the partitions' leaders, trying again as long as it `is_wanted`.
        `marked` is called, maybe at once and maybe several times, with partitions that have it or are no
        more."""
        ...


class NoProducerId(Exception):
    """There is no producer id to be had now; asking again may help."""


NewProducerId: TypeAlias = Callable[[], Awaitable[int]]
"""A producer id that nobody had before. Raises NoProducerId."""
