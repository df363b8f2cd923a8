"""What the coordinator needs from the outside. The server implements these; tests have their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

from ottla.protocol.errors import ErrorCode

ACKS_ALL = -1
"""Answered once all replicas in sync have it; refused where those are too few."""
NO_ACKS = 0


@dataclass(frozen=True, slots=True)
class ClientContext:
    """Who sends a request. `client_host` in Kafka's form, a slash before the address: `/10.0.0.7`."""

    client_id: str
    client_host: str


class CoordinatorLog(Protocol):
    """The partitions of an internal topic: `__consumer_offsets` or `__transaction_state`."""

    @property
    def topic(self) -> str: ...

    def is_leader(self, partition: int) -> bool: ...

    async def append(
        self,
        partition: int,
        batch: bytes,
        *,
        acks: int = ACKS_ALL,
        timeout_ms: int | None = None,
        guard: object | None = None,
    ) -> ErrorCode:
        """Append; with acks=all answer within `timeout_ms`, or the log's own (REQUEST_TIMED_OUT). `guard`
        lets the first batch of a transaction in (see `storage.producers`).

        The append to the leader's own log must come before the first suspension, so that batches lie in
        the log in the order of the calls.
        """
        ...

    def read_all(self, partition: int) -> AsyncIterator[bytes | memoryview]:
        """Whole record batches, some at a time, from the log's start to its end. May raise KafkaError."""
        ...


class Cancellable(Protocol):
    def cancel(self) -> object: ...


class Scheduler(Protocol):
    def now_ms(self) -> int:
        """Time that only goes forward; its zero means nothing."""
        ...

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Cancellable: ...


class LoopScheduler:
    """The running event loop's own time."""

    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Cancellable:
        return asyncio.get_running_loop().call_later(delay_ms / 1000, callback)
