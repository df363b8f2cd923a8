"""From what `send` is given to a record in the accumulator: the half of `Producer` that makes records.

Interceptors see each record once, serializers make bytes of it, and whoever comes while buffer.memory is in
use waits in turn. Here is the producer's hot path: `add` costs as much as all else that is done for a record.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from ottla.client.core.accumulator import BATCH_FULL, BEGUN, NO_ROOM, WAITS
from ottla.client.core.config import ProducerConfig
from ottla.client.core.types import Header, ProducerRecord
from ottla.client.deliveries import Intercepted, telling
from ottla.client.errors import BufferExhaustedError, ClientError, IllegalStateError, SerializationError
from ottla.client.futures import resolve
from ottla.client.interceptors import ProducerInterceptors
from ottla.client.producer_parts import Engine
from ottla.client.producer_transactions import ProducerTransactions
from ottla.client.serialization import SchemaNeeded, serializing

_TURN_S: Final = 0.002
"""So long a sender may fill one batch after the other before it lets them go out: several in a request are a
fraction of the work, for the broker as well."""
_SCHEMAS_TRIED_MAX: Final = 3
"""A key's, a value's, and one that has changed meanwhile."""


class ProducerSending(ProducerTransactions):
    def __init__(self, config: ProducerConfig) -> None:
        super().__init__(config)
        self._key_serializer = serializing(config.key_serializer)
        self._value_serializer = serializing(config.value_serializer)
        self._interceptors: ProducerInterceptors[ProducerRecord] = ProducerInterceptors(config.interceptors)
        self.plain = not (self._key_serializer or self._value_serializer or self._interceptors)
        """Whether records are bytes as they come, which nobody wants to see."""
        self._stopping = False
        self._queueing = 0
        """How many senders wait for room: whoever comes later waits behind them."""
        self._room_lock = asyncio.Lock()
        self._room: asyncio.Future[None] | None = None
        """Awaited by whoever is next when buffer.memory is in use."""

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
        if not self.plain:
            await self._send_prepared(
                sink, ProducerRecord(topic, value, key, partition, timestamp_ms, headers)
            )
            return
        result = NO_ROOM
        if not self._queueing:
            result = self.add(sink, topic, value, key, partition, timestamp_ms, headers)
        if result > BEGUN:
            await self.follow_up(result, sink, topic, value, key, partition, timestamp_ms, headers)

    async def _send_prepared(self, sink: Any, record: ProducerRecord) -> None:
        """Through interceptors, once whatever comes, and serializers; schemas are looked up meanwhile."""
        if self._interceptors:
            record = self._interceptors.on_send(record)
            sink = Intercepted(self._interceptors, sink)
        with telling(sink):
            for _ in range(_SCHEMAS_TRIED_MAX):
                try:
                    record = self._serialized(record)
                    break
                except SchemaNeeded as needed:
                    await asyncio.to_thread(needed.look_up)
            else:
                raise SerializationError(f"{record.topic}: its schemas are missing, again and again")
            result = NO_ROOM if self._queueing else self.add(sink, *record)
            if result > BEGUN:
                await self.follow_up(result, sink, *record)

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
        engine = self._engine
        if engine is None or self._stopping:
            raise IllegalStateError("the producer is not started, or it is being stopped")
        if self._transactional:
            assert engine.transactions is not None
            engine.transactions.check_sending()
        if value.__class__ is not bytes and value is not None:
            value = _bytes("value", value)
        if key.__class__ is not bytes and key is not None:
            key = _bytes("key", key)
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000
        result = engine.append(topic, key, value, headers, partition, timestamp_ms, sink, engine.clock)
        if result:
            engine.driver.wake()
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
    ) -> None:
        """What the accumulator's answer asks of whoever sends."""
        if result == BATCH_FULL:
            engine = self._running()
            if engine.clock() >= engine.driver.turned_at + _TURN_S:
                await asyncio.sleep(0)  # what is full goes out while the next ones fill
        elif result == WAITS:
            await self._hear_of(topic, self._running())
        else:
            assert result == NO_ROOM
            await self._wait_for_room(
                partial(self.add, sink, topic, value, key, partition, timestamp_ms, headers)
            )

    async def _hear_of(self, topic: str, engine: Engine) -> None:
        """The record that was sent waits for news of its topic, and so does its sender."""
        if engine.cluster.partitions(topic) is None:
            with suppress(TimeoutError), engine.waiting("metadata-wait"):
                await engine.driver.metadata(self._max_block_s)

    async def _wait_for_room(self, add: Callable[[], int]) -> None:
        """Append as soon as there is room, in the order in which senders came."""
        loop = asyncio.get_running_loop()
        self._queueing += 1
        try:
            async with asyncio.timeout(self._max_block_s), self._room_lock:
                while add() == NO_ROOM:
                    self._room = loop.create_future()
                    await self._room
        except TimeoutError:
            raise BufferExhaustedError(
                f"buffer.memory={self.config.buffer_memory}: in use for max.block.ms, {self._max_block_s:g} s"
            ) from None
        finally:
            self._queueing -= 1

    def _tell_of_room(self) -> None:
        if self._room is not None:
            resolve(self._room)


def _bytes(what: str, given: object) -> bytes:
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    raise SerializationError(
        f"a {what} is {type(given).__name__}; without {what}.serializer it has to be bytes, or None"
    )
