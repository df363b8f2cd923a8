"""The producer for code without an event loop: the same names, from any thread. See `ottla.client.blocking`.

Records wait in an inbox, which the loop's thread takes over whole: it is woken once for all that comes while
it is at work, and adds one record after the other without a task or a coroutine for each. A record whose
topic has to wait (for memory of its own, for metadata) is set aside with those of the topic that follow, so
that other topics go on; who sends to that topic waits meanwhile. Invariants: records of one thread and topic
keep their order; no more than INBOX_BYTES_MAX lie in the inbox, and as much again aside and in the hands of
the loop's thread, beside buffer.memory.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from ottla.client import producer as asynchronous
from ottla.client.core.accumulator import BEGUN, TOPIC_FULL, WAITS
from ottla.client.core.types import (
    GroupMetadata,
    Header,
    OffsetToCommit,
    ProducerRecord,
    RecordMetadata,
    TopicPartition,
)
from ottla.client.deliveries import Callback, DeliveryFuture, OnDelivery, complain
from ottla.client.errors import BufferExhaustedError, IllegalStateError
from ottla.client.loop_thread import LoopThread
from ottla.client.metrics import Metric
from ottla.wire.connection import resolve

INBOX_BYTES_MAX: Final = 512 * 1024
_INBOX_MAX: Final = 5_000
"""Records, whose sizes serializers have yet to decide."""

_Given: TypeAlias = tuple[Any, str, Any, Any, int | None, int | None, Sequence[Header]]
"""Who waits for its outcome, and what `send` takes."""


class Producer:
    """May be shared by threads; in transactions, one of them at a time."""

    def __init__(self, settings: Mapping[str, object] | None = None, /, **keywords: object) -> None:
        """As the asynchronous one. Raises ConfigError."""
        self._producer = asynchronous.Producer(settings, **keywords)
        self.config = self._producer.config
        self._thread: LoopThread | None = None
        self._inbox: list[_Given | asyncio.Future[None]] = []
        """Futures are resolved when all that was before them is handed over."""
        self._inbox_bytes = 0
        self._pumping = False
        """Whether somebody will look into the inbox."""
        self._aside: dict[str, deque[_Given]] = {}
        """Records that wait, by topic; filled and emptied by the loop's thread."""
        self._lock = threading.Lock()
        """Of these four."""
        self._room = threading.Condition(self._lock)
        self._waiting: set[asyncio.Task[None]] = set()
        """They send what is aside, one a topic."""
        self._outcomes = threading.Condition(threading.RLock())
        """The lock of all futures."""

    def start(self) -> None:
        """Raises ClientError, where a transactional id cannot be had."""
        if self._thread is not None:
            raise IllegalStateError("the producer is started already")
        self._thread = LoopThread(f"ottla-{self.config.client_id}")
        try:
            self._thread.run(self._producer.start())
        except BaseException:
            self._thread.stop()
            self._thread = None
            raise

    def stop(self, timeout_s: float | None = None) -> None:
        """Deliver what was sent, waiting so long at most, and close; what is left over fails."""
        thread = self._thread
        if thread is None:
            return
        thread.check_elsewhere()
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
                await self._handed_over()
        await self._producer.stop(None if until is None else max(until - now(), 0))
        await self._handed_over()  # what is left fails, since the producer has stopped

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
        """Hand a record over; the future resolves to where it was written, or raises what went wrong, a
        record that cannot be sent at all included. Blocks while records are made faster than brokers take
        them. Raises BufferExhaustedError after max.block.ms, IllegalStateError."""
        future = DeliveryFuture(self._outcomes)
        self._give(value, key, (future, topic, value, key, partition, timestamp_ms, headers))
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
        """Send a record and wait until it is written. Raises what `send` and its future do, and RuntimeError
        in a callback, which is called by the thread that would have to write it."""
        if self._thread is not None:
            self._thread.check_elsewhere()
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
        """As `send`, without a future: `on_delivery` is called in the producer's thread, which it must not
        block; a failure that nobody hears of is logged."""
        told = Callback(partial(complain, topic) if on_delivery is None else on_delivery)
        self._give(value, key, (told, topic, value, key, partition, timestamp_ms, headers))

    def _give(self, value: Any, key: Any, given: _Given) -> None:
        thread = self._thread
        if thread is None:
            raise IllegalStateError("the producer is not started")
        size = len(value) if value.__class__ is bytes else 0
        if key.__class__ is bytes:
            size += len(key)
        with self._lock:
            if self._aside and given[1] in self._aside:
                self._await_topic(given[1], thread)
            inbox = self._inbox
            if inbox and (len(inbox) >= _INBOX_MAX or self._inbox_bytes + size > INBOX_BYTES_MAX):
                self._await_room(size, thread)
                inbox = self._inbox  # it has gone, and this is the next one
            inbox.append(given)
            self._inbox_bytes += size
            if not self._pumping:
                self._pumping = True
                thread.call_soon(self._begin_pump)

    def _await_topic(self, topic: str, thread: LoopThread) -> None:
        """With the lock held."""
        most_s = self._patience_s(thread)
        if not self._room.wait_for(lambda: topic not in self._aside, most_s):
            raise BufferExhaustedError(f"{topic}: full, or not known, for {most_s:g} s (max.block.ms)")

    def _patience_s(self, thread: LoopThread) -> float:
        # In a callback there is none: its thread is the one that makes room.
        return 0 if thread.here else self.config.max_block_ms / 1000

    def _await_room(self, size: int, thread: LoopThread) -> None:
        """With the lock held."""
        most_s = self._patience_s(thread)

        def fits() -> bool:
            inbox = self._inbox
            room = len(inbox) < _INBOX_MAX and self._inbox_bytes + size <= INBOX_BYTES_MAX
            return room or not inbox

        if not self._room.wait_for(fits, most_s):
            raise BufferExhaustedError(
                f"buffer.memory={self.config.buffer_memory}: in use for {most_s:g} s (max.block.ms)"
            )

    def _begin_pump(self) -> None:
        """In the loop's thread, once for each time that `_pumping` becomes true."""
        self._pump_task = asyncio.get_running_loop().create_task(self._pump())

    async def _handed_over(self) -> None:
        """Returns when all that was given so far is with the producer."""
        reached = asyncio.get_running_loop().create_future()
        with self._lock:
            self._inbox.append(reached)
            if not self._pumping:
                self._pumping = True
                self._begin_pump()
        await reached
        if self._waiting:
            await asyncio.wait(self._waiting)

    async def _pump(self) -> None:
        """Hand over what lies in the inbox, until it is empty."""
        while True:
            with self._lock:
                taken, self._inbox = self._inbox, []
                self._inbox_bytes = 0
                if not taken:
                    self._pumping = False
                    return
                self._room.notify_all()
            await self._hand_over(taken)

    async def _hand_over(self, taken: list[_Given | asyncio.Future[None]]) -> None:
        producer, aside = self._producer, self._aside
        add, plain = producer.add, producer.plain
        for given in taken:
            if isinstance(given, asyncio.Future):
                resolve(given)
                continue
            try:
                if not plain:
                    sink, record = await producer.prepare(given[0], ProducerRecord(*given[1:]))
                    given = (sink, *record)
                if aside and given[1] in aside:
                    aside[given[1]].append(given)
                    continue
                result = add(*given)
                if result > BEGUN:
                    if result in (WAITS, TOPIC_FULL):
                        self._set_aside(result, given)
                    else:
                        await producer.follow_up(result, *given)
            except Exception as error:  # whatever it is, it is about this record
                given[0].set_exception(error)

    def _set_aside(self, result: int, given: _Given) -> None:
        """The topic has to wait: its records do so in a task of their own."""
        with self._lock:
            self._aside[given[1]] = deque([given])
        task = asyncio.get_running_loop().create_task(self._send_aside(given[1], result))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def _send_aside(self, topic: str, result: int) -> None:
        """`result`: what the accumulator has said to the first record."""
        producer, records = self._producer, self._aside[topic]
        until = asyncio.get_running_loop().time() + self.config.max_block_ms / 1000
        try:
            while records:
                given = records.popleft()
                try:
                    result = result or producer.add(*given)
                    if result > BEGUN:
                        await producer.follow_up(result, *given, until=until)
                except Exception as error:
                    given[0].set_exception(error)
                result = 0
        finally:
            with self._lock:
                del self._aside[topic]
                self._room.notify_all()

    # --- the rest, as the asynchronous one has it ---

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all that was sent has an outcome. Raises TimeoutError."""
        self._run(self._flush, timeout_s)

    async def _flush(self, timeout_s: float | None) -> None:
        async with asyncio.timeout(timeout_s):
            await self._handed_over()
            await self._producer.flush()

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """All that is sent within counts at once, or not at all."""
        self.begin_transaction()
        try:
            yield self
            self.commit_transaction()
        except BaseException:
            self._run(self._abort_if_possible)
            raise

    def begin_transaction(self) -> None:
        """What is sent from here on belongs together. Raises IllegalStateError, ProducerFencedError."""
        self._run(self._begin)

    async def _begin(self) -> None:
        self._producer.begin_transaction()

    def commit_transaction(self) -> None:
        """Deliver all that was sent and commit. Raises what made it impossible; RequestTimedOutError says
        that the outcome is not known yet: call it again."""
        self._run(self._commit)

    async def _commit(self) -> None:
        await self._handed_over()
        await self._producer.commit_transaction()

    def abort_transaction(self) -> None:
        """Nothing of it will be seen by who reads committed records; what was not sent yet fails."""
        self._run(self._abort)

    async def _abort(self) -> None:
        await self._handed_over()
        await self._producer.abort_transaction()

    async def _abort_if_possible(self) -> None:
        await self._handed_over()
        await self._producer.abort_if_possible()

    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetToCommit | int], group: GroupMetadata | str
    ) -> None:
        """Commit a group's offsets (the next to be read) with the transaction (KIP-447)."""
        self._run(self._producer.send_offsets_to_transaction, offsets, group)

    def partitions_for(self, topic: str) -> int:
        """How many partitions a topic has; it may be created by this. Raises RequestTimedOutError."""
        count: int = self._run(self._producer.partitions_for, topic)
        return count

    def leave_partition(self, topic: str) -> None:
        """Choose a partition anew for the topic's next records without a key, before batch.size is reached:
        any partition with a leader. Raises IllegalStateError."""
        self._run(self._leave_partition, topic)

    async def _leave_partition(self, topic: str) -> None:
        self._producer.leave_partition(topic)

    def metrics(self) -> dict[str, float]:
        """Read from another thread: each figure is right, their sum may not be."""
        return self._producer.metrics()

    def measurements(self) -> list[Metric]:
        """All figures, also those of each topic and broker."""
        return self._producer.measurements()

    def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._thread is None:
            raise IllegalStateError("the producer is not started")
        return self._thread.run(function(*arguments))
