"""Fetches for a connector's streams: one consumer of today, in an event loop in a thread of its own.

Called by the coordinations, which say what is to be read. Invariants: a stream holds
queued.max.message.chunks chunks at most, its partitions are paused while it is full; after `stop` nothing
of what was being read comes out of any stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from ottla.client.consumer import Consumer
from ottla.client.core.types import ConsumerRecord, TopicPartition
from ottla.client.errors import ClientError
from ottla.client.legacy.streams import KafkaStream, Progress
from ottla.client.loop_thread import EventLoopThread

log = logging.getLogger(__name__)
T = TypeVar("T")

_POLL_S: Final = 3600.0
_AFTER_PROBLEM_S: Final = 1.0
_POSITION_WAIT_S: Final = 1.0


class Feed:
    """Methods are for other threads and block; coroutines are for its own loop."""

    def __init__(self, settings: Mapping[str, object], name: str, streams: Collection[KafkaStream]) -> None:
        """Raises ConfigError."""
        self._streams = streams
        self.consumer = Consumer(settings)
        self._thread = EventLoopThread(name)
        self._progress: dict[TopicPartition, Progress] = {}
        self._pump: asyncio.Task[None] | None = None
        self._thread.run(self.consumer.start())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """In the loop; what it returns or raises."""
        return self._thread.run(work)

    def close(self) -> None:
        """Leave, without another commit."""
        self.run(self._stop_pump())
        self.run(self.consumer.stop(commit=False))
        self._thread.stop()

    # --- what is read ---

    def begin(self, wanted: Mapping[TopicPartition, tuple[KafkaStream, int | None]]) -> None:
        """Read partitions from offsets on; from where auto.offset.reset says for None."""
        self.run(self._begin(wanted))

    async def _begin(self, wanted: Mapping[TopicPartition, tuple[KafkaStream, int | None]]) -> None:
        # Without an await: what is assigned has its position before anybody looks for a committed one.
        self.forget_here()
        self.consumer.assign(wanted)
        for tp, (stream, offset) in wanted.items():
            self.take_on(tp, stream, offset)
            if offset is not None:
                self.consumer.seek(tp, offset)
            elif self.consumer.config.auto_offset_reset == "earliest":
                self.consumer.seek_to_beginning(tp)
            else:
                self.consumer.seek_to_end(tp)
        self.start()

    def stop(self) -> None:
        """Read nothing more, and take back what no stream has given out. What was consumed can still be
        committed."""
        self.run(self._stop())

    async def _stop(self) -> None:
        await self._hold()
        self.consumer.assign(())

    def hold(self) -> None:
        """Fetch nothing more, and take back what no stream has given out; assigned is what was."""
        self.run(self._hold())

    async def _hold(self) -> None:
        await self._stop_pump()
        self.clear()
        await self._find_positions()

    def forget(self) -> None:
        """What was read is committed, or others commit it from here on."""

        async def forget() -> None:
            self.forget_here()

        self.run(forget())

    async def _stop_pump(self) -> None:
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)

    # --- for the loop ---

    def start(self) -> None:
        if self._pump is None:
            self._pump = asyncio.get_running_loop().create_task(self._go_on())

    def take_on(self, tp: TopicPartition, stream: KafkaStream, offset: int | None) -> None:
        self._progress[tp] = Progress(tp, stream, offset)

    def clear(self) -> None:
        for stream in self._streams:
            stream.clear()

    def forget_here(self) -> None:
        """There is nothing to be committed any more."""
        self._progress.clear()

    async def _go_on(self) -> None:
        while True:
            try:
                records = await self.consumer.poll(_POLL_S)
            except ClientError as problem:
                self._tell(problem)
                await asyncio.sleep(_AFTER_PROBLEM_S)
                continue
            for tp, chunk in records.items():
                self._put(tp, chunk)

    def _put(self, tp: TopicPartition, chunk: list[ConsumerRecord]) -> None:
        progress = self._progress.get(tp)
        if progress is None:
            return
        stream = progress.stream
        if not stream.put(progress, chunk, partial(self._thread.call_soon, partial(self._resume, stream))):
            self.consumer.pause(*self._partitions(stream))

    def _resume(self, stream: KafkaStream) -> None:
        self.consumer.resume(*self._partitions(stream))

    def _partitions(self, stream: KafkaStream) -> list[TopicPartition]:
        assigned = self.consumer.assignment()
        return [tp for tp, each in self._progress.items() if each.stream is stream and tp in assigned]

    def _tell(self, problem: ClientError) -> None:
        if getattr(problem, "retriable", False):
            log.info("reading goes on after: %s", problem)
            return
        log.warning("reading is held up: %s", problem)
        place = getattr(problem, "topic", None), getattr(problem, "partition", None)
        affected = [each.stream for tp, each in self._progress.items() if tp == place]
        for stream in affected or self._streams:
            stream.fail(problem)

    # --- how far it has been read ---

    def consumed(self) -> dict[TopicPartition, int]:
        """The offsets of the next messages, of all partitions where that is known."""
        return self.run(self.consumed_here())

    async def consumed_here(self) -> dict[TopicPartition, int]:
        await self._find_positions()
        return {tp: each.consumed for tp, each in self._progress.items() if each.consumed is not None}

    async def _find_positions(self) -> None:
        """Of partitions of which no message has come: an end to begin at is worth a commit."""
        assigned = self.consumer.assignment()
        unknown = [each for tp, each in self._progress.items() if each.consumed is None and tp in assigned]
        if unknown:
            await asyncio.gather(*map(self._find_position, unknown))

    async def _find_position(self, progress: Progress) -> None:
        try:
            async with asyncio.timeout(_POSITION_WAIT_S):
                position = await self.consumer.position(progress.tp)
        except (TimeoutError, ClientError) as problem:
            log.info("%s: no position yet: %s", progress.tp, problem or "no answer")
            return
        if progress.consumed is None:
            progress.consumed = position

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """In Kafka. Raises ClientError."""
        if offsets:
            self.run(self.consumer.commit(offsets))

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | None]:
        """In Kafka. Raises ClientError."""
        if not partitions:
            return {}
        found = self.run(self.consumer.committed(partitions))
        return {tp: None if offset is None else offset.offset for tp, offset in found.items()}
