"""Before a record is appended: interceptors and serializers, and senders that wait for buffer memory.

Called by `Producer`. Interceptors see each record once. A sender that finds buffer.memory, or the topic's
share of it, in use waits: behind the other senders of the topic, and behind those of other topics only when
no memory is free at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from ottla.client.core.accumulator import APPENDED, NO_ROOM, TOPIC_FULL
from ottla.client.core.config import ProducerConfig
from ottla.client.core.types import ProducerRecord
from ottla.client.deliveries import Intercepted, telling
from ottla.client.errors import BufferExhaustedError, ClientError, SerializationError
from ottla.client.interceptors import ProducerInterceptors, made_of
from ottla.client.serialization import SchemaNeeded, serializing
from ottla.wire.connection import resolve

_SCHEMAS_TRIED_MAX: Final = 3
"""The schema of the key, that of the value, and one that changed in between."""


class RecordPreparer:
    """Applies a producer's interceptors and serializers to records."""

    def __init__(self, config: ProducerConfig) -> None:
        """Raises ConfigError."""
        self._key_serializer = serializing(config.key_serializer)
        self._value_serializer = serializing(config.value_serializer)
        self.interceptors: ProducerInterceptors[ProducerRecord] = ProducerInterceptors(made_of(config))
        self.plain = not (self._key_serializer or self._value_serializer or self.interceptors)
        """Whether records are sent as they are: bytes, without interceptors."""

    async def prepare(self, sink: Any, record: ProducerRecord) -> tuple[Any, ProducerRecord]:
        """Through interceptors, once whatever comes, and serializers; schemas are looked up meanwhile. Gives
        what `add` takes; the sink tells interceptors, too. Raises SerializationError, ClientError."""
        if self.interceptors:
            record = self.interceptors.on_send(record)
            sink = Intercepted(self.interceptors, record, sink)
        with telling(sink):
            for _ in range(_SCHEMAS_TRIED_MAX):
                try:
                    return sink, self.serialize(record)
                except SchemaNeeded as needed:
                    await asyncio.to_thread(needed.look_up)
            raise SerializationError(f"{record.topic}: its schemas are missing, again and again")

    def serialize(self, record: ProducerRecord) -> ProducerRecord:
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


class _Queue:
    """Senders that wait for memory in turn; the first holds the lock."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.length = 0
        self._freed: asyncio.Future[None] | None = None

    async def memory_freed(self) -> None:
        self._freed = asyncio.get_running_loop().create_future()
        await self._freed

    def notify(self) -> None:
        if self._freed is not None:
            resolve(self._freed)


class BufferWaiters:
    """The senders that wait for buffer memory, in the order in which they came."""

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        self._max_block_s = config.max_block_ms / 1000
        self.queues: dict[str | None, _Queue] = {}
        """By topic; under None the first sender of each topic when all of buffer.memory is in use. A later
        sender waits behind those of its topic, and behind these."""

    def turn(self, topic: str) -> int:
        """NO_ROOM for whoever has to wait behind others, else APPENDED."""
        return NO_ROOM if topic in self.queues or None in self.queues else APPENDED

    async def wait(self, result: int, topic: str, add: Callable[[], int], until: float | None) -> None:
        """Append as soon as there is room, in the order in which senders came."""
        until = asyncio.get_running_loop().time() + self._max_block_s if until is None else until
        if topic in self.queues:
            result = NO_ROOM  # it may be otherwise when this one's turn comes
        try:
            async with asyncio.timeout_at(until), self._queue(topic) as queue:
                while result >= NO_ROOM:
                    if result == NO_ROOM:
                        result = await self._wait_for_memory(add)
                    elif not self._config.block_on_topic_full:
                        raise self.exhausted(topic, result)
                    else:
                        await queue.memory_freed()
                        result = NO_ROOM if None in self.queues else add()
        except TimeoutError:
            raise self.exhausted(topic, result, waited=True) from None

    async def _wait_for_memory(self, add: Callable[[], int]) -> int:
        async with self._queue(None) as queue:
            while (result := add()) == NO_ROOM:
                await queue.memory_freed()
        return result

    @asynccontextmanager
    async def _queue(self, topic: str | None) -> AsyncIterator[_Queue]:
        """Entered by one sender after the other."""
        queue = self.queues.setdefault(topic, _Queue())
        queue.length += 1
        try:
            async with queue.lock:
                yield queue
        finally:
            queue.length -= 1
            if not queue.length:
                del self.queues[topic]

    def exhausted(self, topic: str, result: int, *, waited: bool = False) -> BufferExhaustedError:
        """The error of a sender that the accumulator answers with NO_ROOM or TOPIC_FULL."""
        what = f"buffer.memory={self._config.buffer_memory}: all of it is in use"
        if result == TOPIC_FULL:
            what = f"{topic} holds its share of buffer.memory (buffer.memory.per.topic)"
        return BufferExhaustedError(what + (f" for max.block.ms, {self._max_block_s:g} s" if waited else ""))

    def notify(self) -> None:
        """Memory was freed: the first sender of each queue tries again."""
        for queue in self.queues.values():
            queue.notify()
