"""Interfaces of the coordinators: log, clock, marker sender, producer ids. Implemented by the server, and by
tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from ottla.coordinators.offsets import TopicPartition
from ottla.protocol.errors import ErrorCode

ACKS_ALL = -1
"""Completed once all in-sync replicas have the batch; rejected below min.insync.replicas."""
NO_ACKS = 0


@dataclass(frozen=True, slots=True)
class ClientContext:
    """The client of a request. `client_host` has a slash before the address as in Kafka: `/10.0.0.7`."""

    client_id: str
    client_host: str


class CoordinatorLog(Protocol):
    """The partitions of an internal topic: `__consumer_offsets` or `__transaction_state`."""

    @property
    def topic(self) -> str: ...

    def is_leader(self, partition: int) -> bool: ...

    def append(
        self,
        partition: int,
        batch: bytes,
        *,
        acks: int = ACKS_ALL,
        timeout_ms: int | None = None,
        guard: object | None = None,
    ) -> asyncio.Future[ErrorCode]:
        """Append a batch to the local log in this call, so that batches are there in the order of the calls.
        The future completes when `acks` is satisfied; with acks=all with REQUEST_TIMED_OUT after `timeout_ms`
        or the log's timeout. It has no exception.

        `guard` is the verification guard for the first batch of a transaction (see `storage.producer_state`).
        """
        ...

    def read_all(self, partition: int) -> AsyncIterator[bytes | memoryview]:
        """Buffers of whole record batches, from the log's start to its end. May raise KafkaError."""
        ...


class Cancellable(Protocol):
    """A scheduled call."""

    def cancel(self) -> object: ...


class Scheduler(Protocol):
    """A monotonic clock with scheduled calls."""

    def now_ms(self) -> int:
        """Monotonic time in ms; its zero is arbitrary."""
        ...

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Cancellable: ...


class LoopScheduler:
    """The clock of the running event loop."""

    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Cancellable:
        return asyncio.get_running_loop().call_later(delay_ms / 1000, callback)


# -- of the transaction coordinator ------------------------------------------------------------------------


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
