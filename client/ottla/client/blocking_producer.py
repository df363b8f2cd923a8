"""The producer for code without an event loop; see `ottla.client.blocking`.

`send` puts a record into an inbox. The thread of the event loop takes the whole inbox at once and appends the
records one by one, without a task or a coroutine for each; it is woken once for all records that arrive while
it works. A record whose topic has to wait (for the topic's share of buffer.memory, or for metadata) is held
back together with the following records of that topic, so that other topics proceed; threads that send to the
topic block. Invariants: records of one thread and topic keep their order; the inbox has at most
INBOX_BYTES_MAX bytes, and as many may be held back or being appended, in addition to buffer.memory.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, TypeVar

from ottla.client import producer as asynchronous
from ottla.client.core.accumulator import NEW_BATCH, NO_METADATA, TOPIC_FULL
from ottla.client.core.types import (
    Header,
    ProducerRecord,
    RecordFields,
    RecordMetadata,
)
from ottla.client.deliveries import DeliveryCallback, DeliveryFuture, OnDelivery, log_failure
from ottla.client.errors import BufferExhaustedError, IllegalStateError
from ottla.client.loop_thread import EventLoopThread, blocking, in_loop
from ottla.client.metrics import Metric
from ottla.wire.connection import resolve

INBOX_BYTES_MAX: Final = 512 * 1024
_INBOX_MAX: Final = 5_000
"""The limit in records: sizes are not known before serialization."""

T = TypeVar("T")
_SendArguments: TypeAlias = tuple[Any, *RecordFields]
"""The receiver of the delivery result, and the record."""


class Producer:
    """The calls of `ottla.client.Producer`, each of which blocks until it is done. Thread-safe; only one
    thread at a time may control transactions."""

    def __init__(self, settings: Mapping[str, object] | None = None, /, **keywords: object) -> None:
        """Kafka's dotted keys in a mapping, or keywords with underscores. Raises ConfigError."""
        self._client = asynchronous.Producer(settings, **keywords)
        self.config = self._client.config
        self._thread: EventLoopThread | None = None
        self._inbox: list[_SendArguments | asyncio.Future[None]] = []
        """Records to append. A future is resolved when all records before it are appended."""
        self._inbox_bytes = 0
        self._draining = False
        """Whether `_drain` is scheduled or runs."""
        self._held_back: dict[str, deque[_SendArguments]] = {}
        """Records that are held back, by topic; changed by the thread of the event loop only."""
        self._lock = threading.Lock()
        """Guards the four attributes above."""
        self._space = threading.Condition(self._lock)
        self._held_back_tasks: set[asyncio.Task[None]] = set()
        """They append the records that are held back; one task for each topic."""
        self._futures_lock = threading.Condition(threading.RLock())
        """The shared lock of all delivery futures."""

    def start(self) -> None:
        """Start the producer; a transactional producer initializes its transactional id. Raises
        ClientError."""
        if self._thread is not None:
            raise IllegalStateError("the producer is started already")
        self._thread = EventLoopThread(f"ottla-{self.config.client_id}")
        try:
            self._thread.run(self._client.start())
        except BaseException:
            self._thread.stop()
            self._thread = None
            raise

    def stop(self, timeout_s: float | None = None) -> None:
        """Send all records, wait for their acknowledgements for at most the timeout, and close; records that
        are left fail."""
        thread = self._thread
        if thread is None:
            return
        thread.check_not_current()
        try:
            thread.run(self._stop(timeout_s))
        finally:
            self._thread = None
            thread.stop()

    async def _stop(self, timeout_s: float | None) -> None:
        now = asyncio.get_running_loop().time
        until = None if timeout_s is None else now() + timeout_s
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._inbox_drained()
        await self._client.stop(None if until is None else max(until - now(), 0))
        await self._inbox_drained()  # the records that are left fail, because the producer is stopped

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- sending ---

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = (),
    ) -> Future[RecordMetadata]:
        """Send a record. The future resolves to its partition and offset, or raises the error; that includes
        records that cannot be sent at all. Blocks while the buffer is full. Raises BufferExhaustedError after
        max.block.ms, IllegalStateError."""
        future = DeliveryFuture(self._futures_lock)
        self._put(value, key, (future, topic, value, key, partition, timestamp_ms, headers))
        return future

    def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = (),
    ) -> RecordMetadata:
        """Send a record and wait until it is acknowledged. Raises as `send` and its future do, and
        RuntimeError in a callback, whose thread would have to send the record."""
        if self._thread is not None:
            self._thread.check_not_current()
        future = self.send(topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers)
        return future.result()

    def send_nowait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = (),
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Send a record as `send` does, without a future. `on_delivery` is called in the producer's thread
        and must not block; without it, a failure is logged."""
        delivery = DeliveryCallback(partial(log_failure, topic) if on_delivery is None else on_delivery)
        self._put(value, key, (delivery, topic, value, key, partition, timestamp_ms, headers))

    def _put(self, value: Any, key: Any, arguments: _SendArguments) -> None:
        thread = self._thread
        if thread is None:
            raise IllegalStateError("the producer is not started")
        size = len(value) if value.__class__ is bytes else 0
        if key.__class__ is bytes:
            size += len(key)
        with self._lock:
            if self._held_back and arguments[1] in self._held_back:
                self._wait_for_topic(arguments[1], thread)
            inbox = self._inbox
            if inbox and (len(inbox) >= _INBOX_MAX or self._inbox_bytes + size > INBOX_BYTES_MAX):
                self._wait_for_space(size, thread)
                inbox = self._inbox  # the event loop has taken the list and put a new one in its place
            inbox.append(arguments)
            self._inbox_bytes += size
            if not self._draining:
                self._draining = True
                thread.call_soon(self._start_draining)

    def _wait_for_topic(self, topic: str, thread: EventLoopThread) -> None:
        """Wait until no records of the topic are held back. The caller holds the lock."""
        most_s = self._block_s_max(thread)
        if not self._space.wait_for(lambda: topic not in self._held_back, most_s):
            raise BufferExhaustedError(
                f"{topic}: no memory or no metadata within {most_s:g} s (max.block.ms)"
            )

    def _block_s_max(self, thread: EventLoopThread) -> float:
        # A callback must not wait: its thread is the one that empties the inbox.
        return 0 if thread.is_current else self.config.max_block_ms / 1000

    def _wait_for_space(self, size: int, thread: EventLoopThread) -> None:
        """Wait until the inbox has space. The caller holds the lock."""
        most_s = self._block_s_max(thread)

        def fits() -> bool:
            inbox = self._inbox
            room = len(inbox) < _INBOX_MAX and self._inbox_bytes + size <= INBOX_BYTES_MAX
            return room or not inbox

        if not self._space.wait_for(fits, most_s):
            raise BufferExhaustedError(
                f"buffer.memory={self.config.buffer_memory}: in use for {most_s:g} s (max.block.ms)"
            )

    def _start_draining(self) -> None:
        """Called in the event loop once for each time that `_draining` becomes true."""
        self._drain_task = asyncio.get_running_loop().create_task(self._drain())

    async def _inbox_drained(self) -> None:
        """Wait until all records sent so far are appended."""
        reached = asyncio.get_running_loop().create_future()
        with self._lock:
            self._inbox.append(reached)
            if not self._draining:
                self._draining = True
                self._start_draining()
        await reached
        if self._held_back_tasks:
            await asyncio.wait(self._held_back_tasks)

    async def _drain(self) -> None:
        """Append the records of the inbox until it is empty."""
        while True:
            with self._lock:
                taken, self._inbox = self._inbox, []
                self._inbox_bytes = 0
                if not taken:
                    self._draining = False
                    return
                self._space.notify_all()
            await self._append_all(taken)

    async def _append_all(self, taken: list[_SendArguments | asyncio.Future[None]]) -> None:
        producer, held_back = self._client, self._held_back
        add, plain = producer.add, producer.plain
        for arguments in taken:
            if isinstance(arguments, asyncio.Future):
                resolve(arguments)
                continue
            try:
                if not plain:
                    delivery, record = await producer.prepare(arguments[0], ProducerRecord(*arguments[1:]))
                    arguments = (delivery, *record)
                if held_back and arguments[1] in held_back:
                    held_back[arguments[1]].append(arguments)
                    continue
                result = add(*arguments)
                if result > NEW_BATCH:
                    if result in (NO_METADATA, TOPIC_FULL):
                        self._hold_back(result, arguments)
                    else:
                        await producer.await_capacity(result, *arguments)
            except Exception as error:  # it concerns this record only
                arguments[0].set_exception(error)

    def _hold_back(self, result: int, arguments: _SendArguments) -> None:
        """Hold back the records of a topic that has to wait, and append them in a task of their own."""
        with self._lock:
            self._held_back[arguments[1]] = deque([arguments])
        task = asyncio.get_running_loop().create_task(self._append_held_back(arguments[1], result))
        self._held_back_tasks.add(task)
        task.add_done_callback(self._held_back_tasks.discard)

    async def _append_held_back(self, topic: str, result: int) -> None:
        """`result`: the accumulator's result for the first record."""
        producer, records = self._client, self._held_back[topic]
        until = asyncio.get_running_loop().time() + self.config.max_block_ms / 1000
        try:
            while records:
                arguments = records.popleft()
                try:
                    result = result or producer.add(*arguments)
                    if result > NEW_BATCH:
                        await producer.await_capacity(result, *arguments, until=until)
                except Exception as error:
                    arguments[0].set_exception(error)
                result = 0
        finally:
            with self._lock:
                del self._held_back[topic]
                self._space.notify_all()

    # --- flush and transactions ---

    def flush(self, timeout_s: float | None = None) -> None:
        """Send all records without lingering, and wait until each is acknowledged or has failed. Raises
        TimeoutError."""
        self._run(self._flush(timeout_s))

    async def _flush(self, timeout_s: float | None) -> None:
        async with asyncio.timeout(timeout_s):
            await self._after_inbox(self._client.flush)

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """A transaction: committed at the end of the block, aborted if an exception leaves the block."""
        self.begin_transaction()
        try:
            yield self
            self.commit_transaction()
        except BaseException:
            self._run(self._after_inbox(self._client.abort_if_possible))
            raise

    begin_transaction = in_loop(asynchronous.Producer.begin_transaction)

    def commit_transaction(self) -> None:
        """Send all records of the transaction, wait for their acknowledgements, and commit. Raises the error
        that prevents the commit; after RequestTimedOutError the outcome is unknown: call it again."""
        self._run(self._after_inbox(self._client.commit_transaction))

    def abort_transaction(self) -> None:
        """Abort the transaction: consumers with read_committed never read its records. Records that were not
        sent yet fail with TransactionAbortedError."""
        self._run(self._after_inbox(self._client.abort_transaction))

    send_offsets_to_transaction = blocking(asynchronous.Producer.send_offsets_to_transaction)

    async def _after_inbox(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call it when all records sent so far are appended."""
        await self._inbox_drained()
        await call()

    # --- metadata and metrics ---

    partitions_for = blocking(asynchronous.Producer.partitions_for)
    leave_partition = in_loop(asynchronous.Producer.leave_partition)

    def metrics(self) -> dict[str, float]:
        """Metrics of the whole producer by Kafka's names. The values are read while the producer works, so
        that sums may differ slightly."""
        return self._client.metrics()

    def measurements(self) -> list[Metric]:
        """All metrics, those of each topic and broker included; none while the producer is not started."""
        return self._client.measurements()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._thread is None:
            work.close()
            raise IllegalStateError("the producer is not started")
        return self._thread.run(work)
