"""Requests that wait: acks=all for the high watermark, fetches for records, both until a deadline.

Callbacks and one timer, no task or future per request. Called by the produce and fetch handlers and the
broker's group log (to wait), and by replication as its ReplicationListener (to complete them).

- `ReplicationWait`: a queue of callbacks per partition, in the order of their offsets: the high watermark
  completes them from the front, and a check costs what it completes.
- `FetchWatcher`s are kept per partition, followers' (completed by appends) apart from consumers' (completed
  by the high watermark). Those of fetch sessions are not kept here: the session cache has the fetch that
  waits for a partition, and is notified of each change even while no fetch waits.
- Changes are collected, and processed after the loop has served the requests that had arrived: replication
  calls the listener within an append, one Produce request may change many partitions, and a Fetch that
  carries the records of several requests costs as much as one that carries a record.
- A producer with several requests in flight gets the responses to all that one fetch of the followers
  replicated, and sends as many requests again. So where the last round had several acks=all requests of a
  partition, followers' fetches are completed once as many wait, and after `GATHERED_S` at the latest: fetches
  are most of the cost of such a request.
- Deadlines are in buckets of `TICK_MS`, so a completed operation is removed at once (most complete long
  before their deadline, and an entry of the heap each would accumulate). The heap has buckets, and only the
  first has a timer.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from bisect import insort
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import Protocol

from ottla.protocol.errors import ErrorCode
from ottla.server.dispatch.fetch_sessions import FetchSessionCache, FetchWatcher

log = logging.getLogger(__name__)

TICK_MS = 10
GATHERED_S = 0.001
PartitionKey = tuple[str, int]


class WatchedPartition(Protocol):
    """The part of replication's Partition that the purgatory uses."""

    topic: str
    partition: int
    key: PartitionKey

    def enough_replicas_for(self, offset: int) -> tuple[bool, ErrorCode]: ...

    def follower_was_idle(self, broker_id: int, at_ms: int, leader_epoch: int) -> None: ...


class DelayedOperation(Protocol):
    """An operation with a deadline."""

    bucket: int

    def expire(self) -> None: ...


class ReplicationWait:
    """One partition's wait for replication up to `offset` (exclusive end: the high watermark to reach)."""

    __slots__ = ("bucket", "callback", "done", "key", "offset", "purgatory")

    def __init__(
        self, purgatory: Purgatory, key: PartitionKey, offset: int, callback: Callable[[ErrorCode], None]
    ) -> None:
        self.purgatory = purgatory
        self.key = key
        self.offset = offset
        self.callback = callback
        self.bucket = 0
        self.done = False

    def complete(self, error: ErrorCode) -> None:
        if not self.done:
            self.done = True
            self.purgatory.forget(self)
            try:
                self.callback(error)
            except Exception:
                # The other waits of the queue go on.
                log.exception("completing a produce to %s-%d failed", *self.key)

    def expire(self) -> None:
        self.complete(ErrorCode.REQUEST_TIMED_OUT)
        self.purgatory.prune(self.key)


class Purgatory:
    """Implements replication's ReplicationListener."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sessions: FetchSessionCache) -> None:
        self._loop = loop
        self.sessions = sessions
        self.sessions.on_orphan = self._session_removed
        self._in_sessions = self.sessions.watching
        self._produces: dict[PartitionKey, deque[ReplicationWait]] = {}
        self._followers: dict[PartitionKey, dict[FetchWatcher, None]] = {}
        self._consumers: dict[PartitionKey, dict[FetchWatcher, None]] = {}
        self._buckets: dict[int, dict[DelayedOperation, None]] = {}
        self._bucket_heap: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_bucket = 0
        self._advanced: dict[PartitionKey, WatchedPartition] = {}
        self._appended: dict[PartitionKey, None] = {}
        self._woken: dict[tuple[FetchWatcher, PartitionKey], None] = {}
        self._drain_scheduled = False
        self._round_sizes: dict[PartitionKey, int] = {}
        """How many requests waited for the last round of replication, where there was more than one."""
        self._gathering: asyncio.TimerHandle | None = None
        # Called after the waiting requests were notified: coordinators load and unload.
        self.on_leader: list[Callable[[str, int], None]] = []
        self.on_not_leader: list[Callable[[str, int], None]] = []

    # --- waiting ------------------------------------------------------------------------------------

    def await_replication(
        self, key: PartitionKey, offset: int, timeout_ms: int, callback: Callable[[ErrorCode], None]
    ) -> None:
        """Call back once the high watermark of `key` reaches `offset`, with the error that prevents it, or
        with REQUEST_TIMED_OUT. The caller has checked that the high watermark is lower."""
        wait = ReplicationWait(self, key, offset, callback)
        queue = self._produces.get(key)
        if queue is None:
            queue = self._produces[key] = deque()
        if queue and offset < queue[-1].offset:  # a duplicate of an earlier batch
            insort(queue, wait, key=attrgetter("offset"))
        else:
            queue.append(wait)
        self._set_deadline(wait, timeout_ms)

    def watch_fetch(self, watcher: FetchWatcher, timeout_ms: int) -> None:
        """A fetch waits for changes of the partitions in `watched`, which is empty if it waits in a
        session."""
        table = self._followers if watcher.follower else self._consumers
        for key in watcher.watched:
            watchers = table.get(key)
            if watchers is None:
                watchers = table[key] = {}
            watchers[watcher] = None
        self._set_deadline(watcher, timeout_ms)

    def unwatch_fetch(self, watcher: FetchWatcher) -> None:
        """Remove a fetch that is completed or abandoned."""
        table = self._followers if watcher.follower else self._consumers
        for key in watcher.watched:
            watchers = table.get(key)
            if watchers is not None:
                watchers.pop(watcher, None)
                if not watchers:
                    del table[key]
        self.forget(watcher)

    def waiting(self) -> int:
        """How many deadlines are pending."""
        return sum(len(bucket) for bucket in self._buckets.values())

    def waiting_produces(self) -> int:
        """How many of them are waits for replication; the others are fetches."""
        return sum(isinstance(each, ReplicationWait) for bucket in self._buckets.values() for each in bucket)

    # --- replication's listener ---------------------------------------------------------------------

    def high_watermark_advanced(self, p: WatchedPartition) -> None:
        key = p.key
        if key in self._produces or key in self._consumers:
            self._advanced[key] = p
            self._schedule_drain()
        if key in self._in_sessions:
            # The next response to a follower has it, but a follower does not wait for it.
            self._notify_sessions(p, wake_followers=False)

    def log_appended(self, p: WatchedPartition, *, committed: bool) -> None:
        key = p.key
        if key in self._followers:
            self._appended[key] = None
            self._schedule_drain()
        if committed and (key in self._produces or key in self._consumers):
            self._advanced[key] = p
            self._schedule_drain()
        if key in self._in_sessions:
            self._notify_sessions(p, consumers=committed)

    def changed(self, p: WatchedPartition) -> None:
        key = p.key
        if key in self._consumers or key in self._followers:
            self._advanced[key] = p
            self._appended[key] = None
            self._schedule_drain()
        if key in self._in_sessions:
            self._notify_sessions(p)

    def became_leader(self, p: WatchedPartition) -> None:
        self._leadership_changed(p)
        for hook in self.on_leader:
            hook(p.topic, p.partition)

    def became_follower(self, p: WatchedPartition) -> None:
        self._leadership_changed(p)
        for hook in self.on_not_leader:
            hook(p.topic, p.partition)

    def stopped(self, p: WatchedPartition, deleted: bool) -> None:
        self.became_follower(p)

    def _leadership_changed(self, p: WatchedPartition) -> None:
        """Check every wait on `p`: a produce gets the error of the partition, or waits for the high watermark
        of the new epoch (its records are still in the log of a leader that was re-elected)."""
        key = p.key
        self._round_sizes.pop(key, None)
        if key in self._produces:
            self._advanced[key] = p
            self._schedule_drain()
        self.changed(p)

    def _notify_sessions(
        self, p: WatchedPartition, *, consumers: bool = True, wake_followers: bool = True
    ) -> None:
        woken = self.sessions.mark_dirty(p, consumers=consumers, wake_followers=wake_followers)
        if woken:
            key = p.key
            for watcher in woken:
                self._woken[watcher, key] = None
            self._schedule_drain()

    def _session_removed(self, watcher: FetchWatcher) -> None:
        """Respond to the fetch that waited in a removed session. Its client gets the error with the next
        one."""

        def respond() -> None:
            if not watcher.done:
                watcher.expire()

        self._loop.call_soon(respond)

    # --- waking -------------------------------------------------------------------------------------

    def _schedule_drain(self) -> None:
        if not self._drain_scheduled:
            self._drain_scheduled = True
            # Not in the next turn but in the one after it: the requests that have arrived are served first.
            self._loop.call_soon(self._loop.call_soon, self.drain)

    def drain(self) -> None:
        """Complete what the changes since the last call allow."""
        self._drain_scheduled = False
        advanced, self._advanced = self._advanced, {}
        appended, self._appended = self._appended, {}
        woken, self._woken = self._woken, {}
        for key, partition in advanced.items():
            self._complete_produces(key, partition)
            self._try_complete_all(self._consumers, key)
        for key in appended:
            self._try_complete_all(self._followers, key)
        for watcher, key in woken:
            if watcher.follower and not self._round_is_full(key):
                self._woken[watcher, key] = None
            else:
                self._try_complete(watcher, key)
        if not self._woken:
            if self._gathering is not None:
                self._gathering.cancel()
                self._gathering = None
        elif self._gathering is None:
            self._gathering = self._loop.call_later(GATHERED_S, self._gathered)

    def _round_is_full(self, key: PartitionKey) -> bool:
        size = len(self._produces.get(key, ()))
        if size and size < self._round_sizes.get(key, 1):
            return False
        if size > 1:
            self._round_sizes[key] = size
        return True

    def _gathered(self) -> None:
        """GATHERED_S have passed: there are fewer requests than in the round before."""
        self._gathering = None
        for _, key in self._woken:
            self._round_sizes.pop(key, None)
        self.drain()

    def _complete_produces(self, key: PartitionKey, partition: WatchedPartition) -> None:
        queue = self._produces.get(key)
        if queue is None:
            return
        while queue:
            wait = queue[0]
            if wait.done:
                queue.popleft()
                continue
            enough, error = partition.enough_replicas_for(wait.offset)
            if not enough and error == ErrorCode.NONE:
                break
            queue.popleft()
            wait.complete(error)
        if not queue and self._produces.get(key) is queue:
            del self._produces[key]

    def _try_complete_all(
        self, table: dict[PartitionKey, dict[FetchWatcher, None]], key: PartitionKey
    ) -> None:
        watchers = table.get(key)
        if watchers:
            for watcher in list(watchers):
                self._try_complete(watcher, key)

    def _try_complete(self, watcher: FetchWatcher, key: PartitionKey) -> None:
        if not watcher.done:
            try:
                watcher.try_complete(key)
            except Exception:
                log.exception("completing a fetch of %s-%d failed", *key)

    def prune(self, key: PartitionKey) -> None:
        """Drop expired waits at the front (a high watermark that never moves must not keep them)."""
        queue = self._produces.get(key)
        while queue and queue[0].done:
            queue.popleft()
        if queue is not None and not queue:
            del self._produces[key]

    # --- deadlines ----------------------------------------------------------------------------------

    def _set_deadline(self, delayed: DelayedOperation, timeout_ms: int) -> None:
        bucket = int(self._loop.time() * 1000 + timeout_ms) // TICK_MS + 1
        delayed.bucket = bucket
        members = self._buckets.get(bucket)
        if members is not None:
            members[delayed] = None
            return
        self._buckets[bucket] = {delayed: None}
        heapq.heappush(self._bucket_heap, bucket)
        if self._timer is None or bucket < self._timer_bucket:
            self._arm()

    def forget(self, delayed: DelayedOperation) -> None:
        members = self._buckets.get(delayed.bucket)
        if members is not None:
            members.pop(delayed, None)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        heap, buckets = self._bucket_heap, self._buckets
        while heap and not buckets[heap[0]]:
            # All its operations were completed in time.
            del buckets[heapq.heappop(heap)]
        if heap:
            self._timer_bucket = heap[0]
            self._timer = self._loop.call_at(self._timer_bucket * TICK_MS / 1000, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now_bucket = int(self._loop.time() * 1000) // TICK_MS
        # The loop may fire early by its clock's resolution: the bucket of the timer is due.
        now_bucket = max(now_bucket, self._timer_bucket)
        while self._bucket_heap and self._bucket_heap[0] <= now_bucket:
            members = self._buckets.pop(heapq.heappop(self._bucket_heap))
            for delayed in list(members):
                try:
                    delayed.expire()
                except Exception:
                    log.exception("a delayed operation could not be expired")
        self._arm()

    def close(self) -> None:
        """Remove all operations (the connections are closed already)."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        self._woken.clear()
        self._buckets.clear()
        self._bucket_heap.clear()
        self._produces.clear()
        self._followers.clear()
        self._consumers.clear()
