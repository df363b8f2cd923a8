"""The consumer for code without an event loop; see `ottla.client.blocking`.

Heartbeats and fetches continue in the thread of the event loop. The thread that polls calls the callbacks of
a rebalance, which may call the consumer. Invariant: one thread uses a consumer at a time.
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
from ottla.client.core.types import ConsumerRecord, TopicPartition
from ottla.client.errors import IllegalStateError
from ottla.client.loop_thread import EventLoopThread, blocking, in_loop
from ottla.client.metrics import Metric
from ottla.wire.connection import resolve

T = TypeVar("T")
_Calls: TypeAlias = "SimpleQueue[Callable[[], None] | None]"
_ITERATION_S: Final = 0.5
"""The timeout of each poll of an iteration. It is short so that Ctrl-C ends the iteration."""


class Consumer:
    """The calls of `ottla.client.Consumer`, each of which blocks until it is done. Not thread-safe.

    `on_done` of `commit_nowait` is called in the consumer's own thread, other callbacks in the thread of the
    caller.
    """

    def __init__(
        self, settings: Mapping[str, object] | asynchronous.Consumer | None = None, /, **keywords: object
    ) -> None:
        """Starts a consumer with these settings, or the given asynchronous one. Raises ConfigError."""
        if isinstance(settings, asynchronous.Consumer):
            self._client = settings
        else:
            self._client = asynchronous.Consumer(settings, **keywords)
        self.config = self._client.config
        self._thread = EventLoopThread(f"consumer {self.config.client_id}")
        self._calls: _Calls | None = None
        """Functions that the thread in `_run` has to call; None ends its wait. Each call of `_run` has a
        queue of its own: callbacks may call the consumer, and an interrupted call leaves entries behind."""
        self._stopped = False
        self._run(self._client.start())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop, and call the functions of `_calls` until it is done. Raises
        RuntimeError in the thread of the event loop."""
        if self._thread.is_current or self._thread.loop.is_closed():
            work.close()
            self._thread.check_not_current()
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

    def _in_polling_thread(self, callback: RebalanceCallback | None) -> RebalanceCallback | None:
        """A callback for the asynchronous consumer that has the user's one called by the thread in `_run`."""
        if callback is None:
            return None

        async def call_and_wait(partitions: list[TopicPartition]) -> None:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def call() -> None:
                problem = None
                try:
                    callback(partitions)
                except Exception as error:
                    problem = error
                self._thread.call_soon(lambda: resolve(done, problem))

            assert self._calls is not None, "a thread polls"
            self._calls.put(call)
            await done

        return call_and_wait

    # --- life ---

    def stop(self, *, commit: bool = True, timeout_s: float = 30.0) -> None:
        """Commit the consumed offsets (with enable.auto.commit), leave the group, and close. A second call
        does nothing. `commit` and `timeout_s` as in `ottla.client.Consumer.stop`."""
        if self._stopped:
            return
        self._thread.check_not_current()
        self._stopped = True
        try:
            self._run(self._client.stop(commit=commit, timeout_s=timeout_s))
        finally:
            self._thread.stop()

    close = stop

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(commit=kind is None)

    # --- subscription and assignment ---

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Subscribe to topics, or to all topics whose whole names match the pattern, as a member of the
        group. The thread that polls calls the callbacks, as in `ottla.client.Consumer.subscribe`."""

        on_assigned, on_revoked, on_lost = map(self._in_polling_thread, (on_assigned, on_revoked, on_lost))

        async def subscribe() -> None:
            self._client.subscribe(
                topics, pattern=pattern, on_assigned=on_assigned, on_revoked=on_revoked, on_lost=on_lost
            )

        self._run(subscribe())

    unsubscribe = blocking(asynchronous.Consumer.unsubscribe)
    assign = in_loop(asynchronous.Consumer.assign)

    def assignment(self) -> frozenset[TopicPartition]:
        """The assigned partitions."""
        return self._client.assignment()

    def subscription(self) -> frozenset[str]:
        """The subscribed topics; of a pattern, the matching topics found so far."""
        return self._client.subscription()

    # --- records ---

    poll = blocking(asynchronous.Consumer.poll)

    def getone(self) -> ConsumerRecord:
        """The next record; waits for it."""
        return next(iter(self))

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """All records, until the consumer is closed. Commits cover only records that iteration has
        returned."""
        prefetched = self._client._prefetched
        while True:
            for rest in prefetched.each():
                yield from rest
            if self._stopped:
                return
            prefetched.add(self.poll(_ITERATION_S))

    # --- commits ---

    commit = blocking(asynchronous.Consumer.commit)
    commit_nowait = in_loop(asynchronous.Consumer.commit_nowait)
    committed = blocking(asynchronous.Consumer.committed)
    group_metadata = in_loop(asynchronous.Consumer.group_metadata)

    # --- offsets of logs ---

    offsets_for_times = blocking(asynchronous.Consumer.offsets_for_times)
    beginning_offsets = blocking(asynchronous.Consumer.beginning_offsets)
    end_offsets = blocking(asynchronous.Consumer.end_offsets)
    partitions_for = blocking(asynchronous.Consumer.partitions_for)

    # --- positions ---

    seek = in_loop(asynchronous.Consumer.seek)
    seek_to_beginning = in_loop(asynchronous.Consumer.seek_to_beginning)
    seek_to_end = in_loop(asynchronous.Consumer.seek_to_end)
    seek_to_time = in_loop(asynchronous.Consumer.seek_to_time)
    pause = in_loop(asynchronous.Consumer.pause)
    resume = in_loop(asynchronous.Consumer.resume)
    paused = in_loop(asynchronous.Consumer.paused)
    position = blocking(asynchronous.Consumer.position)
    lag = in_loop(asynchronous.Consumer.lag)

    # --- metrics ---

    metrics = in_loop(asynchronous.Consumer.metrics)

    def measurements(self) -> list[Metric]:
        """All metrics, those of each topic, partition and broker included; may be called by any thread."""
        return self._client.measurements()
