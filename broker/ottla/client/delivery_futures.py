"""Futures of threads for what the blocking producer hands out: one a record, so they have to be small.

A `concurrent.futures.Future` makes a lock, a condition and two lists for itself, which is two kilobytes, and
takes as long to make and to resolve as all else that is done for a record. Here the futures of a producer
share their lock, and what few of them need is made when it is asked for. `wait`, `as_completed`,
`asyncio.wrap_future`, callbacks and `cancel` work as with any other.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, PENDING
from typing import Any

from ottla.client.core.types import RecordMetadata


class DeliveryFuture(Future[RecordMetadata]):
    """`lock` is a condition over a reentrant lock; nobody ever waits for the condition."""

    _condition: threading.Condition
    _state: str = PENDING
    _result: RecordMetadata | None = None
    _exception: BaseException | None = None
    _over: threading.Event | None = None
    """Of whoever waits for this one."""

    def __init__(self, lock: threading.Condition) -> None:
        self._condition = lock

    def __getattr__(self, name: str) -> Any:
        # The standard library's own code asks for these, with the lock held.
        if name in ("_waiters", "_done_callbacks"):
            made: list[Any] = []
            setattr(self, name, made)
            return made
        raise AttributeError(name)

    def done(self) -> bool:
        return self._state is not PENDING

    def set_result(self, result: RecordMetadata) -> None:
        with self._condition:
            if self._state is not PENDING:
                return
            self._result = result
            self._state = FINISHED
            for waiter in self.__dict__.get("_waiters", ()):
                waiter.add_result(self)
        self._told()

    def set_exception(self, exception: BaseException | None) -> None:
        with self._condition:
            if self._state is not PENDING:
                return
            self._exception = exception
            self._state = FINISHED
            for waiter in self.__dict__.get("_waiters", ()):
                waiter.add_exception(self)
        self._told()

    def cancel(self) -> bool:
        """The record is sent nevertheless: nobody hears of it any more."""
        cancelled = super().cancel()
        if cancelled and self._over is not None:
            self._over.set()
        return cancelled

    def _told(self) -> None:
        if self._over is not None:
            self._over.set()
        if "_done_callbacks" in self.__dict__:
            self._invoke_callbacks()

    def result(self, timeout: float | None = None) -> RecordMetadata:
        self._await_end(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._await_end(timeout)
        return super().exception(0)

    def _await_end(self, timeout: float | None) -> None:
        if self._state is not PENDING:
            return
        with self._condition:
            if self._state is not PENDING:
                return
            over = self._over
            if over is None:
                over = self._over = threading.Event()
        over.wait(timeout)
