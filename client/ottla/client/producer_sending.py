"""From what `send` is given to a record in the accumulator: the half of `Producer` that makes records.

Interceptors see each record once, serializers make bytes of it, and whoever comes while buffer.memory, or the
topic's share of it, is in use waits in turn: behind the other senders of the topic, and behind those of other
topics only when there is no memory for anybody. Here is the producer's hot path: `add` costs as much as all
else that is done for a record.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

from ottla.client.core.accumulator import APPENDED, BATCH_FULL, BEGUN, NO_ROOM, TOPIC_FULL, WAITS
from ottla.client.core.config import ProducerConfig
from ottla.client.core.types import Header, ProducerRecord
from ottla.client.deliveries import Intercepted, telling
from ottla.client.errors import BufferExhaustedError, ClientError, IllegalStateError, SerializationError
from ottla.client.interceptors import ProducerInterceptors, made_of
from ottla.client.producer_runtime import ProducerRuntime
from ottla.client.producer_transactions import ProducerTransactions
from ottla.client.serialization import SchemaNeeded, serializing
from ottla.wire.futures import resolve

_TURN_S: Final = 0.002
"""So long a sender may fill one batch after the other before it lets them go out: several in a request are a
fraction of the work, for the broker as well."""
_SCHEMAS_TRIED_MAX: Final = 3
"""A key's, a value's, and one that has changed meanwhile."""


class _Queue:
    """Senders that wait for memory; the first has the lock."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.length = 0
        self._freed: asyncio.Future[None] | None = None

    async def memory_freed(self) -> None:
        self._freed = asyncio.get_running_loop().create_future()
        await self._freed

    def tell(self) -> None:
        if self._freed is not None:
            resolve(self._freed)


class ProducerSending(ProducerTransactions):
    def __init__(self, config: ProducerConfig) -> None:
        super().__init__(config)
        self._key_serializer = serializing(config.key_serializer)
        self._value_serializer = serializing(config.value_serializer)
        self._interceptors: ProducerInterceptors[ProducerRecord] = ProducerInterceptors(made_of(config))
        self.plain = not (self._key_serializer or self._value_serializer or self._interceptors)
        """Whether records are bytes as they come, which nobody wants to see."""
        self._stopping = False
        self._queueing: dict[str | None, _Queue] = {}
        """Senders that wait for room, by topic; under None the first of each topic when all of buffer.memory
        is in use. Whoever comes later waits behind those of the topic, and behind these."""

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
        result = self._turn(topic) or self.add(sink, *record)
        if result > BEGUN:
            await self.follow_up(result, sink, *record)

    async def _send_prepared(self, sink: Any, record: ProducerRecord) -> None:
        sink, record = await self.prepare(sink, record)
        with telling(sink):
            result = self._turn(record.topic) or self.add(sink, *record)
            if result > BEGUN:
                await self.follow_up(result, sink, *record)

    async def prepare(self, sink: Any, record: ProducerRecord) -> tuple[Any, ProducerRecord]:
        """Through interceptors, once whatever comes, and serializers; schemas are looked up meanwhile. Gives
        what `add` takes; the sink tells interceptors, too. Raises SerializationError, ClientError."""
        if self._interceptors:
            record = self._interceptors.on_send(record)
            sink = Intercepted(self._interceptors, record, sink)
        with telling(sink):
            for _ in range(_SCHEMAS_TRIED_MAX):
                try:
                    return sink, self._serialized(record)
                except SchemaNeeded as needed:
                    await asyncio.to_thread(needed.look_up)
            raise SerializationError(f"{record.topic}: its schemas are missing, again and again")

    def _serialized(self, record: ProducerRecord) -> ProducerRecord:
        """Raises SerializationError, SchemaNeeded."""
        key, value = record.key, record.value
        try:
            if self._key_serializer is not None:
                key = self._key_serializer(record.topic, key)
            if self._value_serializer is not None:
                value = self._value_serializer(record.topic, value)
        except ClientError:
            raise
        except Exception as problem:
            raise SerializationError(f"{record.topic}: {type(problem).__name__}: {problem}") from problem
        return record._replace(key=key, value=value)

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
            timestamp_ms = time.time_ns() // 1_000_000
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
            await self._hear_of(topic, self._running())
        else:
            add = partial(self.add, sink, topic, value, key, partition, timestamp_ms, headers)
            await self._wait_for_room(result, topic, add, until)

    async def _hear_of(self, topic: str, runtime: ProducerRuntime) -> None:
        """The record that was sent waits for news of its topic, and so does its sender."""
        if runtime.cluster.partitions(topic) is None:
            with suppress(TimeoutError), runtime.waiting("metadata-wait"):
                await runtime.network_loop.metadata(self._max_block_s)

    def _turn(self, topic: str) -> int:
        """NO_ROOM for whoever has to wait behind others, else APPENDED."""
        return NO_ROOM if topic in self._queueing or None in self._queueing else APPENDED

    async def _wait_for_room(
        self, result: int, topic: str, add: Callable[[], int], until: float | None
    ) -> None:
        """Append as soon as there is room, in the order in which senders came."""
        until = asyncio.get_running_loop().time() + self._max_block_s if until is None else until
        if topic in self._queueing:
            result = NO_ROOM  # it may be otherwise when this one's turn comes
        try:
            async with asyncio.timeout_at(until), self._queue(topic) as queue:
                while result >= NO_ROOM:
                    if result == NO_ROOM:
                        result = await self._wait_for_memory(add)
                    elif not self.config.block_on_topic_full:
                        raise self._exhausted(topic, result)
                    else:
                        await queue.memory_freed()
                        result = NO_ROOM if None in self._queueing else add()
        except TimeoutError:
            raise self._exhausted(topic, result, waited=True) from None

    async def _wait_for_memory(self, add: Callable[[], int]) -> int:
        async with self._queue(None) as queue:
            while (result := add()) == NO_ROOM:
                await queue.memory_freed()
        return result

    @asynccontextmanager
    async def _queue(self, topic: str | None) -> AsyncIterator[_Queue]:
        """Entered by one sender after the other."""
        queue = self._queueing.setdefault(topic, _Queue())
        queue.length += 1
        try:
            async with queue.lock:
                yield queue
        finally:
            queue.length -= 1
            if not queue.length:
                del self._queueing[topic]

    def _exhausted(self, topic: str, result: int, *, waited: bool = False) -> BufferExhaustedError:
        """The error of a sender that the accumulator answers with NO_ROOM or TOPIC_FULL."""
        what = f"buffer.memory={self.config.buffer_memory}: all of it is in use"
        if result == TOPIC_FULL:
            what = f"{topic} holds its share of buffer.memory (buffer.memory.per.topic)"
        return BufferExhaustedError(what + (f" for max.block.ms, {self._max_block_s:g} s" if waited else ""))

    def _tell_of_room(self) -> None:
        for queue in self._queueing.values():
            queue.tell()


def _bytes(what: str, given: object) -> bytes:
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    raise SerializationError(
        f"a {what} is {type(given).__name__}; without {what}.serializer it has to be bytes, or None"
    )
