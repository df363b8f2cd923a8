"""Fetches records for the streams of a connector, with one `ottla.client.Consumer` in an event loop thread.

The two coordinations call it with the partitions to read. Invariants: a stream queues at most
queued.max.message.chunks chunks, and its partitions are paused while it is full; after `stop` no stream
returns records that were queued before.
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
from ottla.client.legacy.streams import KafkaStream, PartitionTopicInfo
from ottla.client.loop_thread import EventLoopThread

log = logging.getLogger(__name__)
T = TypeVar("T")

_POLL_S: Final = 3600.0
_ERROR_BACKOFF_S: Final = 1.0
_POSITION_TIMEOUT_S: Final = 1.0


class ConsumerFetcher:
    """The fetcher of one connector. Other threads call the blocking methods; the rest runs in its event
    loop."""

    def __init__(self, settings: Mapping[str, object], name: str, streams: Collection[KafkaStream]) -> None:
        """Raises ConfigError."""
        self._streams = streams
        self.consumer = Consumer(settings)
        self._thread = EventLoopThread(name)
        self._partition_infos: dict[TopicPartition, PartitionTopicInfo] = {}
        self._poll_task: asyncio.Task[None] | None = None
        self._thread.run(self.consumer.start())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop; returns its result, or raises its exception."""
        return self._thread.run(work)

    def close(self) -> None:
        """Stop the consumer and the thread, without a commit."""
        self.run(self._stop_polling())
        self.run(self.consumer.stop(commit=False))
        self._thread.stop()

    # --- partitions ---

    def start_fetching(self, partitions: Mapping[TopicPartition, tuple[KafkaStream, int | None]]) -> None:
        """Read these partitions from the given offsets; None: the position by auto.offset.reset."""
        self.run(self._start_fetching(partitions))

    async def _start_fetching(
        self, partitions: Mapping[TopicPartition, tuple[KafkaStream, int | None]]
    ) -> None:
        # Without an await, so that no other task fetches committed offsets before the positions are set.
        self.drop_offsets_in_loop()
        self.consumer.assign(partitions)
        for tp, (stream, offset) in partitions.items():
            self.add_partition(tp, stream, offset)
            if offset is not None:
                self.consumer.seek(tp, offset)
            elif self.consumer.config.auto_offset_reset == "earliest":
                self.consumer.seek_to_beginning(tp)
            else:
                self.consumer.seek_to_end(tp)
        self.start()

    def stop(self) -> None:
        """Stop fetching, unassign all partitions and clear the streams. Consumed offsets can still be
        committed."""
        self.run(self._stop())

    async def _stop(self) -> None:
        await self._suspend()
        self.consumer.assign(())

    def suspend(self) -> None:
        """Stop fetching and clear the streams; the assignment stays."""
        self.run(self._suspend())

    async def _suspend(self) -> None:
        await self._stop_polling()
        self.clear()
        await self._find_positions()

    def drop_offsets(self) -> None:
        """Drop the consumed offsets: they are committed, or their partitions have other owners."""

        async def drop() -> None:
            self.drop_offsets_in_loop()

        self.run(drop())

    async def _stop_polling(self) -> None:
        task, self._poll_task = self._poll_task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # --- in the event loop ---

    def start(self) -> None:
        """Start the task that polls; does nothing if it runs."""
        if self._poll_task is None:
            self._poll_task = asyncio.get_running_loop().create_task(self._poll_loop())

    def add_partition(self, tp: TopicPartition, stream: KafkaStream, offset: int | None) -> None:
        """Add a partition; `offset`: the next one to consume, None if it is not known yet."""
        self._partition_infos[tp] = PartitionTopicInfo(tp, stream, offset)

    def clear(self) -> None:
        """Drop the records that the streams have queued."""
        for stream in self._streams:
            stream.clear()

    def drop_offsets_in_loop(self) -> None:
        """As `drop_offsets`."""
        self._partition_infos.clear()

    async def _poll_loop(self) -> None:
        while True:
            try:
                records = await self.consumer.poll(_POLL_S)
            except ClientError as problem:
                self._report(problem)
                await asyncio.sleep(_ERROR_BACKOFF_S)
                continue
            for tp, chunk in records.items():
                self._deliver(tp, chunk)

    def _deliver(self, tp: TopicPartition, chunk: list[ConsumerRecord]) -> None:
        info = self._partition_infos.get(tp)
        if info is None:
            return
        stream = info.stream
        if not stream.put(info, chunk, partial(self._thread.call_soon, partial(self._resume, stream))):
            self.consumer.pause(*self._partitions(stream))

    def _resume(self, stream: KafkaStream) -> None:
        self.consumer.resume(*self._partitions(stream))

    def _partitions(self, stream: KafkaStream) -> list[TopicPartition]:
        assigned = self.consumer.assignment()
        return [tp for tp, each in self._partition_infos.items() if each.stream is stream and tp in assigned]

    def _report(self, problem: ClientError) -> None:
        if getattr(problem, "retriable", False):
            log.info("the fetch is retried after an error: %s", problem)
            return
        log.warning("the fetch failed: %s", problem)
        failed = getattr(problem, "topic", None), getattr(problem, "partition", None)
        affected = [each.stream for tp, each in self._partition_infos.items() if tp == failed]
        for stream in affected or self._streams:
            stream.fail(problem)

    # --- offsets ---

    def consumed_offsets(self) -> dict[TopicPartition, int]:
        """The offset of the next message of each partition, where it is known."""
        return self.run(self.consumed_in_loop())

    async def consumed_in_loop(self) -> dict[TopicPartition, int]:
        """As `consumed_offsets`, for callers in the event loop."""
        await self._find_positions()
        return {
            tp: each.consumed_offset
            for tp, each in self._partition_infos.items()
            if each.consumed_offset is not None
        }

    async def _find_positions(self) -> None:
        """Get the positions of partitions without a consumed message, so that they are committed too."""
        assigned = self.consumer.assignment()
        unknown = [
            each
            for tp, each in self._partition_infos.items()
            if each.consumed_offset is None and tp in assigned
        ]
        if unknown:
            await asyncio.gather(*map(self._find_position, unknown))

    async def _find_position(self, info: PartitionTopicInfo) -> None:
        try:
            async with asyncio.timeout(_POSITION_TIMEOUT_S):
                position = await self.consumer.position(info.tp)
        except (TimeoutError, ClientError) as problem:
            log.info("%s: no position yet: %s", info.tp, problem or "timed out")
            return
        if info.consumed_offset is None:
            info.consumed_offset = position

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets to Kafka. Raises ClientError."""
        if offsets:
            self.run(self.consumer.commit(offsets))

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | None]:
        """The offsets that are committed in Kafka, None where there is none. Raises ClientError."""
        if not partitions:
            return {}
        found = self.run(self.consumer.committed(partitions))
        return {tp: None if offset is None else offset.offset for tp, offset in found.items()}
