"""Sends records: asyncio's producer, over the cores of `ottla.client.core`.

    async with Producer(bootstrap_servers="127.0.0.1:9092") as producer:
        delivery = await producer.send("orders", b"one", key=b"k")   # waits for room only
        print(await delivery)                                        # RecordMetadata(topic='orders', …)

Settings are those of Kafka's producer (`ottla.client.core.config`). By default it is idempotent: records of a
partition are written once, in the order in which they were sent, whatever brokers do meanwhile; a record that
cannot be delivered within delivery.timeout.ms fails its future. Not safe for use from several threads or
event loops: see `ottla.client.blocking`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from ottla.client.core.accumulator import BATCH_FULL, BEGUN, NO_ROOM, WAITS, Outcome
from ottla.client.core.config import ProducerConfig
from ottla.client.core.transactions import Done, State, Transactions
from ottla.client.core.types import (
    GroupMetadata,
    Header,
    OffsetToCommit,
    ProducerRecord,
    RecordMetadata,
    TopicPartition,
)
from ottla.client.deliveries import Callback, Intercepted, OnDelivery, complain, settle, telling
from ottla.client.errors import ClientError, IllegalStateError, RequestTimedOutError, SerializationError
from ottla.client.measurements import of_producer
from ottla.client.metrics import Metric, Reporting, of_client
from ottla.client.producer_runtime import ProducerRuntime
from ottla.client.record_preparation import BufferWaiters, RecordPreparer
from ottla.wire.connection import resolve

log = logging.getLogger("ottla.client")

_TURN_S: Final = 0.002
"""A sender may fill batches for so long before it yields to let them go out: several in a request cost a
fraction of the work, for the broker as well."""


class Producer:
    """Writes records. Settings are Kafka's, as keywords or a mapping of dotted keys; see `ProducerConfig`."""

    def __init__(self, settings: Mapping[str, object] | None = None, /, **keywords: object) -> None:
        """Kafka's dotted keys in a mapping, or keywords with underscores. Raises ConfigError."""
        self.config = ProducerConfig.of(settings, **keywords)
        self._transactional = self.config.transactional_id is not None
        self._max_block_s = self.config.max_block_ms / 1000
        self._runtime: ProducerRuntime | None = None
        self._stopping = False
        self._preparer = RecordPreparer(self.config)
        self.plain, self.prepare = self._preparer.plain, self._preparer.prepare
        self._waiters = BufferWaiters(self.config)
        self._waiting_senders = self._waiters.queues
        """Looked at for each record: empty as long as no sender waits for memory."""
        self._metrics_reporting = Reporting(
            self.config.client_id,
            self.config.metric_reporters,
            self.config.window.window_s,
            self.measurements,
        )
        self._flushes: list[tuple[int, asyncio.Future[None]]] = []

    # --- life ---

    async def start(self) -> None:
        """Start it in the running event loop; connections are made when needed. A transactional producer is
        given its id here, and fences its predecessors. Raises ClientError, in that case."""
        if self._runtime is not None:
            raise IllegalStateError("the producer is started already")
        self._runtime = runtime = ProducerRuntime(self.config, self._settle)
        self._stopping = False
        runtime.network_loop.start([runtime.sender])
        self._metrics_reporting.start()
        if self._transactional:
            transactions = runtime.transactions
            assert transactions is not None
            try:
                await self._call(transactions.initialize, "the transactional id", "txn-init")
            except BaseException:
                await self.stop(0)
                raise

    async def stop(self, timeout_s: float | None = None) -> None:
        """Deliver what was sent, waiting so long at most, and close; what is left over fails. A transaction
        that is open is aborted."""
        runtime = self._runtime
        if runtime is None:
            return
        self._stopping = True
        try:
            async with asyncio.timeout(timeout_s):
                transactions = runtime.transactions
                if transactions is not None and transactions.state in (
                    State.IN_TRANSACTION,
                    State.ABORTABLE_ERROR,
                ):
                    log.info("transactional.id=%s: aborting, to stop", self.config.transactional_id)
                    await self._call(transactions.abort, "the abort", "txn-abort")
                await self._flush(runtime)
        except (TimeoutError, ClientError) as problem:
            left = ", ".join(sorted({str(batch.tp) for batch in runtime.accumulator.incomplete}))
            log.warning(
                "%s: stopped before all was delivered (left: %s): %s",
                self.config.client_id,
                left or "records without a partition",
                problem or "timeout_s is over",
            )
        finally:
            self._metrics_reporting.stop()
            runtime.network_loop.stop()
            error = IllegalStateError("the producer was stopped before the record was delivered")
            runtime.sender.give_up_all(error, also_on_wire=True)
            self._runtime = None
            self._waiters.notify()
            await runtime.network.close()
            self._preparer.interceptors.close()
            runtime.accumulator.close_partitioner()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # --- sending ---

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = (),
    ) -> asyncio.Future[RecordMetadata]:
        """Hand a record over; the future that is returned resolves to where it was written, or raises what
        went wrong. This call waits only while buffer.memory, or the topic's share of it, is in use.

        `value` None is a tombstone. Without `partition` it is chosen by the key, or as it suits. Raises
        BufferExhaustedError after max.block.ms (at once for a topic's share with block.on.topic.full=false),
        MessageTooLargeError, SerializationError, IllegalStateError.
        """
        runtime = self._runtime
        if runtime is None:
            raise IllegalStateError("the producer is not started")
        future: asyncio.Future[RecordMetadata] = asyncio.Future(loop=runtime.loop)
        if not self.plain:
            await self._send_prepared(
                future, ProducerRecord(topic, value, key, partition, timestamp_ms, headers)
            )
            return future
        if not self._waiting_senders or not (result := self._waiters.turn(topic)):
            result = self.add(future, topic, value, key, partition, timestamp_ms, headers)
        if result > BEGUN:
            await self.follow_up(result, future, topic, value, key, partition, timestamp_ms, headers)
        return future

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = (),
    ) -> RecordMetadata:
        """Send a record and wait until it is written. Raises what `send` and its future do."""
        future = await self.send(
            topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
        )
        return await future

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
        """Hand a record over without waiting for anything; `on_delivery` is called when its outcome is known,
        and a failure that nobody hears of is logged. Raises BufferExhaustedError at once when buffer.memory,
        or the topic's share of it, is in use: go on after `await flush()`, or use `send`; and SchemaNeeded
        for a schema that nobody has looked up yet, which `send` does."""
        sink: Any = Callback(partial(complain, topic) if on_delivery is None else on_delivery)
        if self.plain:
            self._add_now(sink, topic, value, key, partition, timestamp_ms, headers)
            return
        record = ProducerRecord(topic, value, key, partition, timestamp_ms, headers)
        if self._preparer.interceptors:
            record = self._preparer.interceptors.on_send(record)
            sink = Intercepted(self._preparer.interceptors, record, sink)
        with telling(sink):
            self._add_now(sink, *self._preparer.serialize(record))

    def _add_now(self, sink: Any, topic: str, *record: Any) -> None:
        result = self.add(sink, topic, *record)
        if result >= NO_ROOM:
            raise self._waiters.exhausted(topic, result)

    async def hand_over(
        self,
        sink: Any,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Sequence[Header],
    ) -> None:
        """As `send`, with whatever in the future's place has `done`, `set_result` and `set_exception` (None:
        nobody wants to know)."""
        record = ProducerRecord(topic, value, key, partition, timestamp_ms, headers)
        if not self.plain:
            await self._send_prepared(sink, record)
            return
        result = self._waiters.turn(topic) or self.add(sink, *record)
        if result > BEGUN:
            await self.follow_up(result, sink, *record)

    async def _send_prepared(self, sink: Any, record: ProducerRecord) -> None:
        sink, record = await self.prepare(sink, record)
        with telling(sink):
            result = self._waiters.turn(record.topic) or self.add(sink, *record)
            if result > BEGUN:
                await self.follow_up(result, sink, *record)

    def add(
        self,
        sink: Any,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Sequence[Header],
    ) -> int:
        """Give a record, whose key and value are bytes, to the accumulator; what that says has to be followed
        up. Raises ClientError."""
        runtime = self._runtime
        if runtime is None or self._stopping:
            raise IllegalStateError("the producer is not started, or it is being stopped")
        if self._transactional:
            assert runtime.transactions is not None
            runtime.transactions.check_sending()
        if value.__class__ is not bytes and value is not None:
            value = _bytes("value", value)
        if key.__class__ is not bytes and key is not None:
            key = _bytes("key", key)
        if timestamp_ms is None:
            timestamp_ms = runtime.wall_ms()
        result = runtime.append(topic, key, value, headers, partition, timestamp_ms, sink, runtime.clock)
        if result:
            runtime.network_loop.wake()
        return result

    async def follow_up(
        self,
        result: int,
        sink: Any,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Sequence[Header],
        until: float | None = None,
    ) -> None:
        """What the accumulator's answer asks of whoever sends. `until`: when max.block.ms is over, if the
        sender has waited before. Raises BufferExhaustedError."""
        if result == BATCH_FULL:
            runtime = self._running()
            if runtime.clock() >= runtime.network_loop.turned_at + _TURN_S:
                await asyncio.sleep(0)  # what is full goes out while the next ones fill
        elif result == WAITS:
            await self._await_metadata(topic, self._running())
        else:
            add = partial(self.add, sink, topic, value, key, partition, timestamp_ms, headers)
            await self._waiters.wait(result, topic, add, until)

    async def _await_metadata(self, topic: str, runtime: ProducerRuntime) -> None:
        """Wait for metadata of a topic whose partitions are unknown, so that few records wait for them."""
        if runtime.cluster.partitions(topic) is None:
            with suppress(TimeoutError), runtime.waiting("metadata-wait"):
                await runtime.network_loop.metadata(self._max_block_s)

    # --- transactions ---

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """All that is sent within counts at once, or not at all: committed at the end, aborted when an
        exception leaves the block. Raises what `commit_transaction` does."""
        self.begin_transaction()
        try:
            yield self
        except BaseException:
            await self.abort_if_possible()
            raise
        try:
            await self.commit_transaction()
        except BaseException:
            await self.abort_if_possible()
            raise

    def begin_transaction(self) -> None:
        """Raises IllegalStateError, or ProducerFencedError when another producer has the transactional id."""
        self._transactions().begin()

    async def commit_transaction(self) -> None:
        """Deliver all that was sent and commit. Raises what made it impossible: then the transaction has to
        be aborted. RequestTimedOutError says that the outcome is not known yet: call it again."""
        await self._call(self._transactions().commit, "the commit", "txn-commit")

    async def abort_transaction(self) -> None:
        """Records that were not sent yet fail with TransactionAbortedError."""
        await self._call(self._transactions().abort, "the abort", "txn-abort")

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetToCommit | int],
        group: GroupMetadata | str,
    ) -> None:
        """Commit a group's offsets (the next to be read) with the transaction (KIP-447). `group`: what
        `Consumer.group_metadata()` gives, by which a member that was fenced is found out; or a group's id."""
        transactions = self._transactions()
        who = GroupMetadata(group) if isinstance(group, str) else group
        given = {
            TopicPartition(*tp): OffsetToCommit(to) if isinstance(to, int) else to
            for tp, to in offsets.items()
        }
        await self._call(
            lambda done: transactions.send_offsets(given, who, done),
            "the group's coordinator",
            "txn-send-offsets",
        )

    def _transactions(self) -> Transactions:
        transactions = self._running().transactions
        if transactions is None or not self._transactional:
            raise IllegalStateError("transactional.id is not set")
        return transactions

    async def abort_if_possible(self) -> None:
        """End a transaction that is open or has failed; without effect when there is none."""
        transactions = self._transactions()
        if transactions.state is State.FATAL_ERROR:
            return
        if transactions.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR, State.ABORTING):
            await self.abort_transaction()

    async def _call(self, begin: Callable[[Done], None], what: str, counted: str) -> None:
        """Begin something and await its end, for max.block.ms."""
        runtime = self._running()
        ended: asyncio.Future[None] = runtime.loop.create_future()
        begin(partial(resolve, ended))
        runtime.network_loop.wake()
        try:
            with runtime.waiting(counted):
                async with asyncio.timeout(self._max_block_s):
                    await ended
        except TimeoutError:
            told = f"waited {self._max_block_s:g} s (max.block.ms) for {what}"
            raise RequestTimedOutError(told) from None

    # --- outcomes ---

    def _settle(self, outcome: Outcome) -> None:
        settle(outcome)
        self._waiters.notify()
        if self._flushes:
            self._check_flushes()

    def _check_flushes(self) -> None:
        assert self._runtime is not None
        has_before = self._runtime.accumulator.has_before
        for number, done in self._flushes:
            if not has_before(number):
                resolve(done)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Send everything at once, and wait until all that was sent so far has an outcome, good or bad.
        Raises TimeoutError, after which all goes on as before."""
        runtime = self._running()
        async with asyncio.timeout(timeout_s):
            await self._flush(runtime)

    async def _flush(self, runtime: ProducerRuntime) -> None:
        accumulator = runtime.accumulator
        number = accumulator.last_number
        if not accumulator.has_before(number):
            return
        done: asyncio.Future[None] = runtime.loop.create_future()
        waiting = number, done
        self._flushes.append(waiting)
        accumulator.flushing += 1
        runtime.network_loop.wake()
        try:
            with runtime.waiting("flush"):
                await done
        finally:
            accumulator.flushing -= 1
            self._flushes.remove(waiting)

    # --- metadata and metrics ---

    async def partitions_for(self, topic: str) -> int:
        """How many partitions a topic has; it may be created by this. Raises RequestTimedOutError."""
        runtime = self._running()
        runtime.cluster.add(topic, runtime.loop.time())
        try:
            async with asyncio.timeout(self._max_block_s):
                while (count := runtime.cluster.partitions(topic)) is None:
                    await runtime.network_loop.metadata(self._max_block_s)
        except TimeoutError:
            raise RequestTimedOutError(
                f"{topic} is not in the cluster's metadata after {self._max_block_s:g} s"
            ) from None
        return count

    def leave_partition(self, topic: str) -> None:
        """Choose a partition anew for the topic's next records without a key, before batch.size is reached:
        any partition with a leader. Raises IllegalStateError."""
        self._running().accumulator.leave_partition(topic)

    def metrics(self) -> dict[str, float]:
        """Figures of the whole producer by Kafka's names: totals since `start`; rates, averages and maxima
        over metrics.num.samples × metrics.sample.window.ms."""
        return of_client(self.measurements())

    def measurements(self) -> list[Metric]:
        """All figures, also those of each topic and broker; none while the producer is not started."""
        runtime = self._runtime
        if runtime is None:
            return []
        now = runtime.loop.time()
        return list(of_producer(runtime, now))

    def _running(self) -> ProducerRuntime:
        if self._runtime is None:
            raise IllegalStateError("the producer is not started")
        return self._runtime


def _bytes(what: str, given: object) -> bytes:
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    raise SerializationError(
        f"a {what} is {type(given).__name__}; without {what}.serializer it has to be bytes, or None"
    )
