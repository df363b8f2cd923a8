"""Telling of outcomes: a batch's records one by one, to futures, functions and interceptors.

Called by the producers. Whatever waits for an outcome has `done`, `set_result` and `set_exception`, as the
futures of asyncio and of threads do; it is told once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, PENDING
from contextlib import contextmanager
from itertools import count, repeat
from operator import itemgetter
from typing import Any, TypeAlias

from ottla.client.core.accumulator import Outcome
from ottla.client.core.types import ProducerRecord, RecordMetadata
from ottla.client.interceptors import ProducerInterceptors

log = logging.getLogger("ottla.client")

OnDelivery: TypeAlias = Callable[[RecordMetadata | None, BaseException | None], None]
"""Called in the event loop's thread, once for a record: it has to be quick. One of both is None."""


class Callback:
    """A function in the place of a future."""

    __slots__ = ("_call",)

    def __init__(self, call: OnDelivery) -> None:
        self._call = call

    def done(self) -> bool:
        return False

    def set_result(self, metadata: RecordMetadata) -> None:
        self._tell(metadata, None)

    def set_exception(self, error: BaseException) -> None:
        self._tell(None, error)

    def _tell(self, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        try:
            self._call(metadata, error)
        except Exception:
            log.exception("on_delivery failed, told of %s", metadata or error)


class Intercepted:
    """What tells interceptors of an outcome, and then whoever waits for it."""

    __slots__ = ("_interceptors", "_record", "_sink", "_told")

    def __init__(
        self, interceptors: ProducerInterceptors[ProducerRecord], record: ProducerRecord, sink: Any
    ) -> None:
        self._interceptors = interceptors
        self._record = record
        self._sink = sink
        self._told = False

    def done(self) -> bool:
        return self._told

    def set_result(self, metadata: RecordMetadata) -> None:
        self._told = True
        self._interceptors.on_acknowledgement(metadata, None)
        if self._sink is not None and not self._sink.done():
            self._sink.set_result(metadata)

    def set_exception(self, error: BaseException) -> None:
        self.refused(error)
        if self._sink is not None and not self._sink.done():
            self._sink.set_exception(error)

    def refused(self, error: BaseException) -> None:
        """Interceptors hear of it; whoever sent it is told otherwise."""
        if not self._told:
            self._told = True
            topic, partition = self._record.topic, self._record.partition
            metadata = RecordMetadata(topic, -1 if partition is None else partition, -1, -1)
            self._interceptors.on_acknowledgement(metadata, error)


@contextmanager
def telling(sink: Any) -> Iterator[None]:
    """Interceptors are told of an error that `send` itself raises, too."""
    try:
        yield
    except Exception as error:
        if isinstance(sink, Intercepted):
            sink.refused(error)
        raise


def complain(topic: str, metadata: RecordMetadata | None, error: BaseException | None) -> None:
    """For records whose outcome nobody asked for: errors are not lost."""
    if error is not None:
        log.error("a record for topic %s was not delivered: %s", topic, error)


def settle(outcome: Outcome) -> None:
    """Tell all who wait for a batch's records; in one pass, it is done a million times a minute."""
    batch, base_offset, append_time_ms, error, faults = outcome
    if error is not None:
        for index, sink in enumerate(batch.sinks):
            if sink is not None and not sink.done():
                sink.set_exception(error if faults is None else _fault(faults, index, error))
        return
    assert len(batch.sinks) == len(batch.records), f"{batch!r} has {len(batch.sinks)} to tell"
    topic, partition = batch.tp
    offsets: Iterable[int] = repeat(-1) if base_offset < 0 else count(base_offset)
    own_times = map(itemgetter(0), batch.records)
    times: Iterable[int] = own_times if append_time_ms < 0 else repeat(append_time_ms)
    fields = zip(repeat(topic), repeat(partition), offsets, times, strict=False)
    # Records' metadata without a call of RecordMetadata for each, which takes twice as long.
    told = map(tuple.__new__, repeat(RecordMetadata), fields)
    for sink, metadata in zip(batch.sinks, told, strict=False):
        if sink is not None and not sink.done():
            sink.set_result(metadata)


def _fault(faults: dict[int, BaseException], index: int, error: BaseException) -> BaseException:
    """KIP-467: who was not at fault is told so."""
    if index in faults:
        return faults[index]
    return type(error)(f"not written, since other records of its batch were at fault: {error}")


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
