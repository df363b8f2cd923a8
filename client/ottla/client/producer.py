"""The producer: sends records.

    async with Producer(bootstrap_servers="127.0.0.1:9092") as producer:
        delivery = await producer.send("orders", b"one", key=b"k")   # waits only while the buffer is full
        print(await delivery)                                        # RecordMetadata(topic='orders', …)

Settings are those of Kafka's producer (`ottla.client.core.config`). By default it is idempotent: records of a
partition are written once, in the order in which they were sent, also if brokers fail; the future of a record
that cannot be delivered within delivery.timeout.ms raises. It must be used from one thread and event loop
only: see `ottla.client.blocking`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from ottla.client.core.accumulator import BATCH_FULL, BUFFER_FULL, NEW_BATCH, NO_METADATA, BatchResult
from ottla.client.core.config import ProducerConfig
from ottla.client.core.transactions import Done, State, Transactions
from ottla.client.core.types import (
    GroupMetadata,
    Header,
    OffsetToCommit,
    ProducerRecord,
    RecordFields,
    RecordMetadata,
    TopicPartition,
)
from ottla.client.deliveries import (
    DeliveryCallback,
    InterceptedDelivery,
    OnDelivery,
    complete_deliveries,
    log_failure,
    report_send_error,
)
from ottla.client.errors import ClientError, IllegalStateError, RequestTimedOutError, SerializationError
from ottla.client.measurements import of_producer
from ottla.client.metrics import Metric, Reporting, of_client
from ottla.client.producer_runtime import ProducerRuntime
from ottla.client.record_preparation import BufferWaiters, RecordPreparer
from ottla.wire.connection import resolve

log = logging.getLogger("ottla.client")

_TURN_S: Final = 0.002
"""How long a sender may fill batches before it yields to the event loop: several batches in one request cost
client and broker much less."""


class Producer:
    """Sends records. Settings are Kafka's, as keywords or a mapping of dotted keys; see `ProducerConfig`."""

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
        """Read for each record: empty as long as no sender waits for memory."""
        self._metrics_reporting = Reporting(
            self.config.client_id,
            self.config.metric_reporters,
            self.config.window.window_s,
            self.measurements,
        )
        self._flushes: list[tuple[int, asyncio.Future[None]]] = []

    # --- life ---

    async def start(self) -> None:
        """Start the producer in the running event loop; connections are made when they are needed. A
        transactional producer initializes its transactional id, which fences earlier producers with the id.
        Raises ClientError."""
        if self._runtime is not None:
            raise IllegalStateError("the producer is started already")
        self._runtime = runtime = ProducerRuntime(self.config, self._on_batch_done)
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
        """Send all records, wait for their acknowledgements for at most the timeout, and close; records that
        are left fail. An open transaction is aborted."""
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
                    log.info(
                        "transactional.id=%s: aborting the open transaction before the producer closes",
                        self.config.transactional_id,
                    )
                    await self._call(transactions.abort, "the abort", "txn-abort")
                await self._flush(runtime)
        except (TimeoutError, ClientError) as problem:
            left = ", ".join(sorted({str(batch.tp) for batch in runtime.accumulator.incomplete}))
            log.warning(
                "%s: closed before all records were delivered (left: %s): %s",
                self.config.client_id,
                left or "records without a partition",
                problem or "timeout_s has passed",
            )
        finally:
            self._metrics_reporting.stop()
            runtime.network_loop.stop()
            error = IllegalStateError("the producer was stopped before the record was delivered")
            runtime.sender.fail_all(error, also_in_flight=True)
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
        """Append a record to a batch. The returned future resolves to its partition and offset, or raises the
        error. The call itself waits only while buffer.memory, or the topic's share of it, is in use.

        `value` None is a tombstone. Without `partition`, the partitioner chooses by the key, or the sticky
        partition. Raises BufferExhaustedError after max.block.ms (at once for a topic's share with
        block.on.topic.full=false), MessageTooLargeError, SerializationError, IllegalStateError.
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
        if not self._waiting_senders or not (result := self._waiters.check_queue(topic)):
            result = self.add(future, topic, value, key, partition, timestamp_ms, headers)
        if result > NEW_BATCH:
            await self.await_capacity(result, future, topic, value, key, partition, timestamp_ms, headers)
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
        """Send a record and wait until it is acknowledged. Raises as `send` and its future do."""
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
        """Append a record without waiting for anything. `on_delivery` is called with the result; without it,
        a failure is logged. Raises BufferExhaustedError at once if buffer.memory, or the topic's share of it,
        is in use: continue after `await flush()`, or use `send`. Raises SchemaNeeded for a schema that was
        not looked up yet, which `send` does."""
        delivery: Any = DeliveryCallback(partial(log_failure, topic) if on_delivery is None else on_delivery)
        if self.plain:
            self._add_now(delivery, topic, value, key, partition, timestamp_ms, headers)
            return
        record = ProducerRecord(topic, value, key, partition, timestamp_ms, headers)
        if self._preparer.interceptors:
            record = self._preparer.interceptors.on_send(record)
            delivery = InterceptedDelivery(self._preparer.interceptors, record, delivery)
        with report_send_error(delivery):
            self._add_now(delivery, *self._preparer.serialize(record))

    def _add_now(self, delivery: Any, topic: str, *record: Any) -> None:
        result = self.add(delivery, topic, *record)
        if result >= BUFFER_FULL:
            raise self._waiters.exhausted(topic, result)

    async def append_or_wait(self, delivery: Any, *fields: *RecordFields) -> None:
        """As `send`, with a delivery in place of the future: an object with `done`, `set_result` and
        `set_exception`, or None if nothing needs the result."""
        if not self.plain:
            await self._send_prepared(delivery, ProducerRecord(*fields))
            return
        result = self._waiters.check_queue(fields[0]) or self.add(delivery, *fields)
        if result > NEW_BATCH:
            await self.await_capacity(result, delivery, *fields)

    async def _send_prepared(self, delivery: Any, record: ProducerRecord) -> None:
        delivery, record = await self.prepare(delivery, record)
        with report_send_error(delivery):
            result = self._waiters.check_queue(record.topic) or self.add(delivery, *record)
            if result > NEW_BATCH:
                await self.await_capacity(result, delivery, *record)

    def add(
        self,
        delivery: Any,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Sequence[Header],
    ) -> int:
        """Append a record whose key and value are bytes to the accumulator. The result is that of
        `Accumulator.append`; pass it to `await_capacity` if it is above NEW_BATCH. Raises ClientError."""
        runtime = self._runtime
        if runtime is None or self._stopping:
            raise IllegalStateError("the producer is not started or is being closed")
        if self._transactional:
            assert runtime.transactions is not None
            runtime.transactions.check_sending()
        if value.__class__ is not bytes and value is not None:
            value = _bytes("value", value)
        if key.__class__ is not bytes and key is not None:
            key = _bytes("key", key)
        if timestamp_ms is None:
            timestamp_ms = runtime.wall_ms()
        result = runtime.append(topic, key, value, headers, partition, timestamp_ms, delivery, runtime.clock)
        if result:
            runtime.network_loop.wake()
        return result

    async def await_capacity(
        self, result: int, delivery: Any, *fields: *RecordFields, until: float | None = None
    ) -> None:
        """Wait as the result of `add` requires: let full batches be sent, wait for metadata, or wait for
        memory and append the record. `until`: the end of max.block.ms, for a sender that has waited before.
        Raises BufferExhaustedError."""
        if result == BATCH_FULL:
            runtime = self._running()
            if runtime.clock() >= runtime.network_loop.turned_at + _TURN_S:
                await asyncio.sleep(0)  # full batches are sent while the next ones fill
        elif result == NO_METADATA:
            await self._await_metadata(fields[0], self._running())
        else:
            await self._waiters.wait(result, fields[0], partial(self.add, delivery, *fields), until)

    async def _await_metadata(self, topic: str, runtime: ProducerRuntime) -> None:
        """Wait for metadata of a topic whose partitions are unknown, to limit the records that wait for a
        partition."""
        if runtime.cluster.partitions(topic) is None:
            with suppress(TimeoutError), runtime.waiting("metadata-wait"):
                await runtime.network_loop.metadata(self._max_block_s)

    # --- transactions ---

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """A transaction: committed at the end of the block, aborted if an exception leaves the block. Raises
        as `commit_transaction` does."""
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
        """Begin a transaction. Raises IllegalStateError, or ProducerFencedError if another producer uses the
        transactional id."""
        self._transactions().begin()

    async def commit_transaction(self) -> None:
        """Send all records of the transaction, wait for their acknowledgements, and commit. Raises the error
        that prevents the commit; the transaction must be aborted then. After RequestTimedOutError the outcome
        is unknown: call it again."""
        await self._call(self._transactions().commit, "the commit", "txn-commit")

    async def abort_transaction(self) -> None:
        """Abort the transaction: consumers with read_committed never read its records. Records that were not
        sent yet fail with TransactionAbortedError."""
        await self._call(self._transactions().abort, "the abort", "txn-abort")

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetToCommit | int],
        group: GroupMetadata | str,
    ) -> None:
        """Commit offsets of a group, those of the next records to read, in the transaction (KIP-447).
        `group`: the result of `Consumer.group_metadata()`, by which a fenced member is detected, or a group
        id."""
        transactions = self._transactions()
        metadata = GroupMetadata(group) if isinstance(group, str) else group
        given = {
            TopicPartition(*tp): OffsetToCommit(to) if isinstance(to, int) else to
            for tp, to in offsets.items()
        }
        await self._call(
            lambda done: transactions.send_offsets(given, metadata, done),
            "the group's coordinator",
            "txn-send-offsets",
        )

    def _transactions(self) -> Transactions:
        transactions = self._running().transactions
        if transactions is None or not self._transactional:
            raise IllegalStateError("transactional.id is not set")
        return transactions

    async def abort_if_possible(self) -> None:
        """Abort a transaction that is open or has failed; no effect otherwise."""
        transactions = self._transactions()
        if transactions.state is State.FATAL_ERROR:
            return
        if transactions.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR, State.ABORTING):
            await self.abort_transaction()

    async def _call(self, begin: Callable[[Done], None], what: str, counted: str) -> None:
        """Begin an operation and wait for its end, for at most max.block.ms."""
        runtime = self._running()
        ended: asyncio.Future[None] = runtime.loop.create_future()
        begin(partial(resolve, ended))
        runtime.network_loop.wake()
        try:
            with runtime.waiting(counted):
                async with asyncio.timeout(self._max_block_s):
                    await ended
        except TimeoutError:
            text = f"waited {self._max_block_s:g} s (max.block.ms) for {what}"
            raise RequestTimedOutError(text) from None

    # --- delivery results and flush ---

    def _on_batch_done(self, outcome: BatchResult) -> None:
        complete_deliveries(outcome)
        self._waiters.notify()
        if self._flushes:
            self._check_flushes()

    def _check_flushes(self) -> None:
        assert self._runtime is not None
        has_incomplete_up_to = self._runtime.accumulator.has_incomplete_up_to
        for number, done in self._flushes:
            if not has_incomplete_up_to(number):
                resolve(done)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Send all records without lingering, and wait until each record sent so far is acknowledged or has
        failed. Raises TimeoutError, which changes nothing."""
        runtime = self._running()
        async with asyncio.timeout(timeout_s):
            await self._flush(runtime)

    async def _flush(self, runtime: ProducerRuntime) -> None:
        accumulator = runtime.accumulator
        number = accumulator.last_number
        if not accumulator.has_incomplete_up_to(number):
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
        """The number of partitions of a topic; the topic may be created automatically. Raises
        RequestTimedOutError."""
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
        """Choose a new sticky partition for the topic's next record without a key, before batch.size is
        reached: any partition with a leader. Raises IllegalStateError."""
        self._running().accumulator.leave_partition(topic)

    def metrics(self) -> dict[str, float]:
        """Metrics of the whole producer by Kafka's names: totals since `start`; rates, averages and maxima
        over metrics.num.samples × metrics.sample.window.ms."""
        return of_client(self.measurements())

    def measurements(self) -> list[Metric]:
        """All metrics, those of each topic and broker included; none while the producer is not started."""
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
        f"a {what} is {type(given).__name__}; without {what}.serializer it must be bytes or None"
    )
