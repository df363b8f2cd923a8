"""What happens before a record is appended: interceptors, serializers, and the wait for buffer memory.

Called by `Producer`. Interceptors see each record once. A sender that finds buffer.memory, or the topic's
share of it, in use waits behind the other senders of the topic; it waits behind senders of other topics only
if no memory is free at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from ottla.client.core.accumulator import APPENDED, BUFFER_FULL, TOPIC_FULL
from ottla.client.core.config import ProducerConfig
from ottla.client.core.types import ProducerRecord
from ottla.client.deliveries import InterceptedDelivery, report_send_error
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
        """Whether records are appended unchanged: without serializers and interceptors."""

    async def prepare(self, delivery: Any, record: ProducerRecord) -> tuple[Any, ProducerRecord]:
        """Apply the interceptors, once, and the serializers; missing schemas are looked up. Returns the
        arguments of `add`; the returned delivery reports to the interceptors, too. Raises SerializationError,
        ClientError."""
        if self.interceptors:
            record = self.interceptors.on_send(record)
            delivery = InterceptedDelivery(self.interceptors, record, delivery)
        with report_send_error(delivery):
            for _ in range(_SCHEMAS_TRIED_MAX):
                try:
                    return delivery, self.serialize(record)
                except SchemaNeeded as needed:
                    await asyncio.to_thread(needed.look_up)
            raise SerializationError(
                f"{record.topic}: its schemas are still missing after {_SCHEMAS_TRIED_MAX} look-ups"
            )

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
    """Senders that wait for memory in turn; the first one holds the lock."""

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
        """By topic. The key None has the first sender of each topic while buffer.memory is exhausted. A new
        sender waits behind those of its topic and behind these."""

    def check_queue(self, topic: str) -> int:
        """BUFFER_FULL for a sender that has to wait behind others, else APPENDED."""
        return BUFFER_FULL if topic in self.queues or None in self.queues else APPENDED

    async def wait(self, result: int, topic: str, add: Callable[[], int], until: float | None) -> None:
        """Append as soon as there is memory, in the order in which senders came. Raises
        BufferExhaustedError."""
        until = asyncio.get_running_loop().time() + self._max_block_s if until is None else until
        if topic in self.queues:
            result = BUFFER_FULL  # it may be otherwise when this one's check_queue comes
        try:
            async with asyncio.timeout_at(until), self._queue(topic) as queue:
                while result >= BUFFER_FULL:
                    if result == BUFFER_FULL:
                        result = await self._wait_for_memory(add)
                    elif not self._config.block_on_topic_full:
                        raise self.exhausted(topic, result)
                    else:
                        await queue.memory_freed()
                        result = BUFFER_FULL if None in self.queues else add()
        except TimeoutError:
            raise self.exhausted(topic, result, waited=True) from None

    async def _wait_for_memory(self, add: Callable[[], int]) -> int:
        async with self._queue(None) as queue:
            while (result := add()) == BUFFER_FULL:
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
        """The error of a sender for which the accumulator returned BUFFER_FULL or TOPIC_FULL."""
        what = f"buffer.memory={self._config.buffer_memory}: all of it is in use"
        if result == TOPIC_FULL:
            what = f"{topic} uses its share of buffer.memory (buffer.memory.per.topic)"
        return BufferExhaustedError(what + (f" for max.block.ms, {self._max_block_s:g} s" if waited else ""))

    def notify(self) -> None:
        """Memory was freed: the first sender of each queue tries again."""
        for queue in self.queues.values():
            queue.notify()
