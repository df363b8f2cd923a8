"""The consumer for code without an event loop: the same names. See `ottla.client.blocking`.

Heartbeats and fetches go on in the loop's thread meanwhile; rebalance listeners are called in the thread that
polls, where they may call the consumer. Invariant: one thread uses it at a time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, TypeVar

from ottla.client import consumer as asynchronous
from ottla.client.consumer import RebalanceCallback
from ottla.client.consumer_runtime import Records
from ottla.client.core.assigned import OffsetAndMetadata
from ottla.client.core.positions import OffsetAndTimestamp
from ottla.client.core.types import ConsumerRecord, GroupMetadata, TopicPartition
from ottla.client.errors import IllegalStateError
from ottla.client.loop_thread import LoopThread
from ottla.client.metrics import Metric
from ottla.client.offset_committer import Offsets, OnCommit
from ottla.wire.connection import resolve

T = TypeVar("T")
_Calls: TypeAlias = "SimpleQueue[Callable[[], None] | None]"
_ITERATION_S: Final = 0.5
"""How long an iteration waits at a time, so that Ctrl-C is heard."""


class Consumer:
    """The consumer for code without an event loop: made, it is started; for one thread at a time."""

    def __init__(
        self, settings: Mapping[str, object] | asynchronous.Consumer | None = None, /, **keywords: object
    ) -> None:
        """As the asynchronous one, and started; or one that is given, and not started yet. Raises
        ConfigError."""
        if isinstance(settings, asynchronous.Consumer):
            self._consumer = settings
        else:
            self._consumer = asynchronous.Consumer(settings, **keywords)
        self.config = self._consumer.config
        self._thread = LoopThread(f"consumer {self.config.client_id}")
        self._calls: _Calls | None = None
        """For the thread that waits in `_run`; None ends its waiting. One queue for each call, as listeners
        may call the consumer in their turn, and as what a call that was interrupted left is nobody's."""
        self._stopped = False
        self._run(self._consumer.start())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Have the loop do it, and meanwhile call listeners here. RuntimeError in the loop's thread."""
        if self._thread.here or self._thread.loop.is_closed():
            work.close()
            self._thread.check_elsewhere()
            raise IllegalStateError("the consumer is closed")
        calls: _Calls = SimpleQueue()
        outer, self._calls = self._calls, calls
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._thread.loop)
            future.add_done_callback(lambda _: calls.put(None))
            try:
                while (call := calls.get()) is not None:
                    call()
            except BaseException:
                future.cancel()
                raise
        finally:
            self._calls = outer
        return future.result()

    def _soon(self, function: Callable[[], T]) -> T:
        """The result of a function that has to be called in the loop's thread."""

        async def call() -> T:
            return function()

        return self._run(call())

    def _here(self, told: RebalanceCallback | None) -> RebalanceCallback | None:
        """A listener that is called by the thread that waits in `_run`."""
        if told is None:
            return None

        async def tell(partitions: list[TopicPartition]) -> None:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def call() -> None:
                problem = None
                try:
                    told(partitions)
                except Exception as error:
                    problem = error
                self._thread.call_soon(lambda: resolve(done, problem))

            assert self._calls is not None, "somebody polls"
            self._calls.put(call)
            await done

        return tell

    # --- life ---

    def stop(self, *, commit: bool = True, timeout_s: float = 30.0) -> None:
        """Commit what was read (with enable.auto.commit), leave the group, close."""
        if self._stopped:
            return
        self._thread.check_elsewhere()
        self._stopped = True
        try:
            self._run(self._consumer.stop(commit=commit, timeout_s=timeout_s))
        finally:
            self._thread.stop()

    close = stop

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(commit=kind is None)

    # --- what to read ---

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Take part in the group for these topics, or for those of a pattern; listeners are called by the
        thread that polls."""

        def subscribe() -> None:
            self._consumer.subscribe(
                topics,
                pattern=pattern,
                on_assigned=self._here(on_assigned),
                on_revoked=self._here(on_revoked),
                on_lost=self._here(on_lost),
            )

        self._soon(subscribe)

    def unsubscribe(self) -> None:
        """Leave the group, and give up what was assigned."""
        self._run(self._consumer.unsubscribe())

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read these partitions, instead of what was read before."""
        self._soon(lambda: self._consumer.assign(partitions))

    def assignment(self) -> frozenset[TopicPartition]:
        """What is read now."""
        return self._consumer.assignment()

    def subscription(self) -> frozenset[str]:
        """The topics that are subscribed to; of a pattern, those found so far."""
        return self._consumer.subscription()

    # --- reading ---

    def poll(self, timeout_s: float = 0.0, max_records: int | None = None) -> Records:
        """What has come, at most max.poll.records; waits so long for the first. Calls listeners, too."""
        return self._run(self._consumer.poll(timeout_s, max_records))

    def getone(self) -> ConsumerRecord:
        """The next record, however long it takes."""
        return next(iter(self))

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """All records, until the consumer is closed. What was not reached yet is not committed."""
        prefetched = self._consumer._prefetched
        while True:
            for rest in prefetched.each():
                yield from rest
            if self._stopped:
                return
            prefetched.add(self.poll(_ITERATION_S))

    # --- where it stands ---

    def seek(self, partition: tuple[str, int], offset: int | OffsetAndMetadata) -> None:
        """Read on from this offset."""
        self._soon(lambda: self._consumer.seek(partition, offset))

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Read on from the earliest record; without partitions, in all that are assigned."""
        self._soon(lambda: self._consumer.seek_to_beginning(*partitions))

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Read on from what is written next; without partitions, in all that are assigned."""
        self._soon(lambda: self._consumer.seek_to_end(*partitions))

    def seek_to_time(self, timestamp_ms: int, *partitions: tuple[str, int]) -> None:
        """Read on from the first record of that time or later; without partitions, in all."""
        self._soon(lambda: self._consumer.seek_to_time(timestamp_ms, *partitions))

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Give out nothing of these until `resume`."""
        self._soon(lambda: self._consumer.pause(*partitions))

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Give out records of these again."""
        self._soon(lambda: self._consumer.resume(*partitions))

    def paused(self) -> frozenset[TopicPartition]:
        """What `pause` has stopped."""
        return self._soon(self._consumer.paused)

    def position(self, partition: tuple[str, int]) -> int:
        """The offset of the next record that is given out. Looks it up, where it is not known yet."""
        return self._run(self._consumer.position(partition))

    def lag(self, partition: tuple[str, int]) -> int | None:
        """How many records follow the position, as far as the last fetch told; None before one."""
        return self._soon(lambda: self._consumer.lag(partition))

    def metrics(self) -> dict[str, float]:
        """Figures of the whole consumer by Kafka's names."""
        return self._soon(self._consumer.metrics)

    def measurements(self) -> list[Metric]:
        """Also from other threads than the one that polls."""
        return self._consumer.measurements()

    # --- commits, and offsets of logs ---

    def commit(self, offsets: Offsets | None = None) -> None:
        """Store how far was read, or what is given. Raises KafkaError."""
        self._run(self._consumer.commit(offsets))

    def commit_nowait(self, offsets: Offsets | None = None, on_done: OnCommit | None = None) -> None:
        """`on_done` is called in the loop's thread."""
        self._soon(lambda: self._consumer.commit_nowait(offsets, on_done))

    def committed(
        self, partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has stored; None where it has nothing."""
        return self._run(self._consumer.committed(partitions))

    def group_metadata(self) -> GroupMetadata:
        """What `Producer.send_offsets_to_transaction` asks for."""
        return self._soon(self._consumer.group_metadata)

    def offsets_for_times(
        self, timestamps_ms: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each time or later; None where there is none."""
        return self._run(self._consumer.offsets_for_times(timestamps_ms))

    def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """The earliest offset of each."""
        return self._run(self._consumer.beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """The offset of what will be written next; with read_committed, of the first open transaction."""
        return self._run(self._consumer.end_offsets(partitions))

    def partitions_for(self, topic: str) -> list[int]:
        """The numbers of a topic's partitions."""
        return self._run(self._consumer.partitions_for(topic))
