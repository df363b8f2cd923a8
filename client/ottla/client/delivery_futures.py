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
    _watched: bool = False
    """Whether there is any of the following."""
    _over: threading.Event | None = None
    """Of those who wait for this one."""
    _its_waiters: list[Any] | None = None
    """Of `wait` and `as_completed`."""
    _its_callbacks: list[Any] | None = None

    def __init__(self, lock: threading.Condition) -> None:
        self._condition = lock

    # The standard library's own code asks for these two, with the lock held.

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        if self._its_waiters is None:
            self._its_waiters = []
            self._watched = True
        return self._its_waiters

    @property
    def _done_callbacks(self) -> list[Any]:
        if self._its_callbacks is None:
            self._its_callbacks = []
            self._watched = True
        return self._its_callbacks

    def done(self) -> bool:
        return self._state is not PENDING

    def set_result(self, result: RecordMetadata) -> None:
        condition = self._condition
        condition.acquire()
        try:
            if self._state is not PENDING:
                return
            self._result = result
            self._state = FINISHED
        finally:
            condition.release()
        if self._watched:
            self._tell()

    def set_exception(self, exception: BaseException | None) -> None:
        with self._condition:
            if self._state is not PENDING:
                return
            self._exception = exception
            self._state = FINISHED
        if self._watched:
            self._tell()

    def _tell(self) -> None:
        """Nobody begins to watch any more."""
        failed = self._exception is not None
        with self._condition:
            for waiter in self._its_waiters or ():
                if failed:
                    waiter.add_exception(self)
                else:
                    waiter.add_result(self)
        if self._over is not None:
            self._over.set()
        if self._its_callbacks:
            self._invoke_callbacks()  # type: ignore[attr-defined]

    def cancel(self) -> bool:
        """The record is sent nevertheless: nobody hears of it any more."""
        cancelled = super().cancel()
        if cancelled and self._over is not None:
            self._over.set()
        return cancelled

    def result(self, timeout: float | None = None) -> RecordMetadata:
        # Nothing changes once this is the state: whoever asks for it late, as most do, needs no lock.
        if self._state is FINISHED and self._exception is None:
            assert self._result is not None
            return self._result
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
                self._watched = True
        over.wait(timeout)
