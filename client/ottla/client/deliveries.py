"""Delivery reports: pass the result of a batch to the future, callback and interceptors of each of its
records.

Called by the producers. A receiver of a delivery report (`delivery`) has `done`, `set_result` and
`set_exception`, as the futures of asyncio and of threads do. Invariant: it is called once.
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

from ottla.client.core.accumulator import BatchResult
from ottla.client.core.types import ProducerRecord, RecordMetadata
from ottla.client.interceptors import ProducerInterceptors

log = logging.getLogger("ottla.client")

OnDelivery: TypeAlias = Callable[[RecordMetadata | None, BaseException | None], None]
"""Called in the thread of the event loop, once for each record; it must be quick. Exactly one argument is
None."""


class DeliveryCallback:
    """A delivery that calls a function."""

    __slots__ = ("_call",)

    def __init__(self, call: OnDelivery) -> None:
        self._call = call

    def done(self) -> bool:
        return False

    def set_result(self, metadata: RecordMetadata) -> None:
        self._call_back(metadata, None)

    def set_exception(self, error: BaseException) -> None:
        self._call_back(None, error)

    def _call_back(self, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        try:
            self._call(metadata, error)
        except Exception:
            log.exception("on_delivery failed for %s", metadata or error)


class InterceptedDelivery:
    """A delivery that calls the interceptors and then the delivery it wraps."""

    __slots__ = ("_delivery", "_interceptors", "_record", "_reported")

    def __init__(
        self, interceptors: ProducerInterceptors[ProducerRecord], record: ProducerRecord, delivery: Any
    ) -> None:
        self._interceptors = interceptors
        self._record = record
        self._delivery = delivery
        self._reported = False

    def done(self) -> bool:
        return self._reported

    def set_result(self, metadata: RecordMetadata) -> None:
        self._reported = True
        self._interceptors.on_acknowledgement(metadata, None)
        if self._delivery is not None and not self._delivery.done():
            self._delivery.set_result(metadata)

    def set_exception(self, error: BaseException) -> None:
        self.on_send_error(error)
        if self._delivery is not None and not self._delivery.done():
            self._delivery.set_exception(error)

    def on_send_error(self, error: BaseException) -> None:
        """Report an error that `send` itself raises to the interceptors; Kafka's `onSendError`."""
        if not self._reported:
            self._reported = True
            topic, partition = self._record.topic, self._record.partition
            metadata = RecordMetadata(topic, -1 if partition is None else partition, -1, -1)
            self._interceptors.on_acknowledgement(metadata, error)


@contextmanager
def report_send_error(delivery: Any) -> Iterator[None]:
    """Report an error that `send` raises to the interceptors, too."""
    try:
        yield
    except Exception as error:
        if isinstance(delivery, InterceptedDelivery):
            delivery.on_send_error(error)
        raise


def log_failure(topic: str, metadata: RecordMetadata | None, error: BaseException | None) -> None:
    """The `on_delivery` of records sent without one: logs failures."""
    if error is not None:
        log.error("a record for topic %s was not delivered: %s", topic, error)


def complete_deliveries(outcome: BatchResult) -> None:
    """Report the result of a batch to all its deliveries. One pass: it runs up to a million times a
    minute."""
    batch, base_offset, append_time_ms, error, record_errors = outcome
    if error is not None:
        for index, delivery in enumerate(batch.deliveries):
            if delivery is not None and not delivery.done():
                delivery.set_exception(
                    error if record_errors is None else _error_of_record(record_errors, index, error)
                )
        return
    assert len(batch.deliveries) == len(batch.records), f"{batch!r} has {len(batch.deliveries)} deliveries"
    topic, partition = batch.tp
    offsets: Iterable[int] = repeat(-1) if base_offset < 0 else count(base_offset)
    own_times = map(itemgetter(0), batch.records)
    times: Iterable[int] = own_times if append_time_ms < 0 else repeat(append_time_ms)
    fields = zip(repeat(topic), repeat(partition), offsets, times, strict=False)
    # Constructing RecordMetadata by tuple.__new__ takes half the time of calling the class.
    results = map(tuple.__new__, repeat(RecordMetadata), fields)
    for delivery, metadata in zip(batch.deliveries, results, strict=False):
        if delivery is not None and not delivery.done():
            delivery.set_result(metadata)


def _error_of_record(
    record_errors: dict[int, BaseException], index: int, error: BaseException
) -> BaseException:
    """The error of one record of a failed batch (KIP-467): records that were not at fault get an error that
    says so."""
    if index in record_errors:
        return record_errors[index]
    return type(error)(f"not written, since other records of its batch were at fault: {error}")


class DeliveryFuture(Future[RecordMetadata]):
    """A `concurrent.futures.Future` of the blocking producer that needs little memory.

    A standard Future creates a lock, a condition and two lists: two kilobytes, and as much time as all other
    work for a record. The futures of a producer share a lock and create the other attributes on demand.
    `wait`, `as_completed`, `asyncio.wrap_future`, callbacks and `cancel` work as usual. `lock` is a condition
    over a reentrant lock; nothing waits for the condition.
    """

    _condition: threading.Condition
    _state: str = PENDING
    _result: RecordMetadata | None = None
    _exception: BaseException | None = None
    _has_watchers: bool = False
    """Whether one of the following attributes is set."""
    _done_event: threading.Event | None = None
    """Set when the future is done, for callers that wait."""
    _own_waiters: list[Any] | None = None
    """The waiters of `wait` and `as_completed`."""
    _own_callbacks: list[Any] | None = None

    def __init__(self, lock: threading.Condition) -> None:
        self._condition = lock

    # The standard library uses these two attributes, with the lock held.

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        if self._own_waiters is None:
            self._own_waiters = []
            self._has_watchers = True
        return self._own_waiters

    @property
    def _done_callbacks(self) -> list[Any]:
        if self._own_callbacks is None:
            self._own_callbacks = []
            self._has_watchers = True
        return self._own_callbacks

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
        if self._has_watchers:
            self._notify()

    def set_exception(self, exception: BaseException | None) -> None:
        with self._condition:
            if self._state is not PENDING:
                return
            self._exception = exception
            self._state = FINISHED
        if self._has_watchers:
            self._notify()

    def _notify(self) -> None:
        """Notify the watchers; after the state is final, no watcher is added."""
        failed = self._exception is not None
        with self._condition:
            for waiter in self._own_waiters or ():
                if failed:
                    waiter.add_exception(self)
                else:
                    waiter.add_result(self)
        if self._done_event is not None:
            self._done_event.set()
        if self._own_callbacks:
            self._invoke_callbacks()  # type: ignore[attr-defined]

    def cancel(self) -> bool:
        """The record is sent nevertheless; only the future does not get the result."""
        cancelled = super().cancel()
        if cancelled and self._done_event is not None:
            self._done_event.set()
        return cancelled

    def result(self, timeout: float | None = None) -> RecordMetadata:
        # FINISHED is final, so that a result that is read late, as most are, needs no lock.
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
            event = self._done_event
            if event is None:
                event = self._done_event = threading.Event()
                self._has_watchers = True
        event.wait(timeout)
