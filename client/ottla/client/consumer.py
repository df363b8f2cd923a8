"""The consumer: reads topics, alone or as a member of a consumer group.

    async with Consumer(bootstrap_servers="127.0.0.1:9092", group_id="readers") as consumer:
        consumer.subscribe(["orders"])
        async for record in consumer:
            print(record.partition, record.offset, record.value)

Its rules are in `ottla.client.core`, without I/O; this class waits, calls the rebalance listener, and raises
errors. Everything runs in one event loop: the caller's tasks and the callbacks of the network loop.
Heartbeats and fetches continue between calls. Invariants: records are returned and rebalances are completed
in `poll` (and `async for`) only, so that the records of earlier polls are processed when partitions are
revoked or offsets are committed automatically. A cancelled call has no effect, or the next call completes it;
a listener may be called twice then.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from ottla.client import errors
from ottla.client.consumer_records import PrefetchedRecords
from ottla.client.consumer_runtime import ConsumerRuntime, Records
from ottla.client.core.assigned import EARLIEST, LATEST, OffsetAndMetadata, Phase
from ottla.client.core.consumer_config import ConsumerConfig
from ottla.client.core.positions import OffsetAndTimestamp
from ottla.client.core.types import ConsumerRecord, GroupMetadata, TopicPartition
from ottla.client.interceptors import ConsumerInterceptors, made_of
from ottla.client.metrics import Metric, of_client
from ottla.client.offset_committer import OffsetCommitter, Offsets, OnCommit
from ottla.client.position_initializer import PositionInitializer
from ottla.client.serialization import SchemaNeeded

_FOREVER_S: Final = 3600.0
_STOP_TIMEOUT_S: Final = 30.0
_LEAVE_TIMEOUT_S: Final = 5.0

RebalanceCallback: TypeAlias = Callable[[list[TopicPartition]], Any]
"""A function, or a coroutine function, which is awaited."""


class Consumer:
    """Reads records. Settings are Kafka's, as keywords or a mapping of dotted keys; see `ConsumerConfig`."""

    def __init__(self, settings: Mapping[str, object] | None = None, /, **keywords: object) -> None:
        """Kafka's dotted keys in a mapping, or keywords with underscores. Raises ConfigError."""
        self.config = ConsumerConfig.of(settings, **keywords)
        self._runtime = runtime = ConsumerRuntime(self.config)
        self._assigned = runtime.assigned
        self._member = runtime.member
        self._rebalancing = runtime.rebalancing
        self._interceptors: ConsumerInterceptors[Records] = ConsumerInterceptors(made_of(self.config))
        self._prefetched = PrefetchedRecords()
        self._committer = OffsetCommitter(runtime, self._prefetched, self._interceptors)
        self._initializer = PositionInitializer(runtime)
        self._listener = RebalanceListener()
        self._polling = False
        self._closing = False

    # --- life ---

    async def start(self) -> None:
        """Start the consumer in the running event loop. Returns at once; connections are made in the
        background."""
        self._runtime.start()

    async def stop(self, *, commit: bool = True, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """Commit the consumed offsets (with enable.auto.commit), leave the group, and close. A second call
        does nothing.

        `commit` False: the last record that `async for` has returned does not count as processed, and is read
        again.
        """
        if self._closing:
            return
        self._closing = True
        try:
            if self._runtime.started:
                await self._commit_and_leave(commit, timeout_s)
        finally:
            await self._runtime.close()
            self._interceptors.close()

    async def _commit_and_leave(self, finished: bool, timeout_s: float) -> None:
        runtime = self._runtime
        until = runtime.now() + timeout_s
        await self._committer.auto_commit(self._committer.consumed(finished=finished), timeout_s)
        await runtime.wait_until(lambda: runtime.offsets.idle, until - runtime.now())
        if self._member.active and self.config.leave_group_on_close:
            await self._leave_group("the consumer is being closed")
            await runtime.wait_until(
                lambda: not self._member.leaving and not runtime.ephemeral.deleting, _LEAVE_TIMEOUT_S
            )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop(commit=kind is None)

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
        group.

        The callbacks are those of Kafka's ConsumerRebalanceListener, functions or coroutine functions. `poll`
        calls them: with newly assigned partitions; with partitions that are about to be revoked, whose
        offsets can still be committed; and with partitions that were lost. Without `on_lost`, `on_revoked`
        gets lost partitions, too.
        """
        if isinstance(topics, str):
            raise TypeError(f"topics must be a list: [{topics!r}]")
        names = list(topics)
        if self.config.group_id is None:
            raise errors.IllegalStateError("subscribe() needs group.id; without a group, use assign()")
        if self._rebalancing.manual:
            raise errors.IllegalStateError("partitions are assigned manually: call unsubscribe() first")
        if bool(names) == (pattern is not None):
            raise errors.IllegalStateError("give either topics or a pattern; to end it, call unsubscribe()")
        self._listener = RebalanceListener(on_assigned, on_revoked, on_lost)
        self._rebalancing.subscribe(names, re.compile(pattern) if isinstance(pattern, str) else pattern)
        self._member.active = True
        self._runtime.wake()

    async def unsubscribe(self) -> None:
        """End the subscription and leave the group, or end the manual assignment."""
        self._runtime.check_started()
        if self._member.active:
            await self._leave_group("the consumer unsubscribed from all topics")
            self._member.active = False
        self._prefetched.clear()
        self._rebalancing.unsubscribe()
        self._runtime.wake()

    async def _leave_group(self, reason: str) -> None:
        """Revoke all partitions and send LeaveGroup."""
        owned = list(self._assigned.partitions)
        lost = self._member.lost or self._member.joining
        await self._listener.on_removed(lost=owned if lost else (), revoked=() if lost else owned)
        self._assigned.assign(())
        self._member.leave(reason)
        if self.config.group_ephemeral:
            self._runtime.ephemeral.delete()
        self._runtime.wake()

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read these partitions, without group management, instead of those assigned before. A partition that
        was assigned before keeps its position."""
        if self._member.active:
            raise errors.IllegalStateError("the consumer subscribes to topics: call unsubscribe() first")
        wanted = [TopicPartition(*each) for each in partitions]
        states = [self._assigned.get(tp) for tp in wanted]
        self._rebalancing.assign(wanted)
        self._assigned.keep(state for state in states if state is not None)
        self._prefetched.keep(wanted)
        self._runtime.wake()

    def assignment(self) -> frozenset[TopicPartition]:
        """The assigned partitions."""
        return frozenset(self._assigned.partitions)

    def subscription(self) -> frozenset[str]:
        """The subscribed topics; of a pattern, the matching topics found so far."""
        return self._rebalancing.topics

    # --- records ---

    async def poll(self, timeout_s: float = 0.0, max_records: int | None = None) -> Records:
        """The next records by partition, at most max.poll.records. Waits until there are some, or for the
        timeout. Takes part in rebalances; callbacks of the listener may take longer than the timeout.

        Raises ClientError for what prevents reading; a further poll continues.
        """
        runtime, buffer = self._runtime, self._runtime.buffer
        network_loop, wake_event = runtime.check_started()
        if self._closing:
            raise errors.IllegalStateError("the consumer is being closed")
        if self._polling:
            raise errors.IllegalStateError("another task polls this consumer")
        self._polling = True
        records_max = max_records or self.config.max_poll_records
        runtime.poll_stats.poll_begins(runtime.now())
        try:
            if self._prefetched:
                return self._prefetched.take()
            until = runtime.now() + timeout_s
            while True:
                await self._rebalance_if_needed()
                self._initializer.initialize()
                self._committer.auto_commit_if_due()
                try:
                    taken = buffer.take(records_max)
                except SchemaNeeded as needed:
                    await asyncio.to_thread(needed.look_up)
                    continue
                if buffer.freed:
                    buffer.freed = False
                    network_loop.wake()
                if taken:
                    self._record_consumed(taken)
                    return self._interceptors.on_consume(taken) if self._interceptors else taken
                if self._closing:
                    return {}
                if buffer.ready:
                    await asyncio.sleep(0)  # the batch had control records or aborted records only
                elif not await wake_event.wait(until):
                    return {}
        finally:
            self._polling = False
            runtime.poll_stats.poll_ends(runtime.now())

    def _record_consumed(self, taken: Records) -> None:
        now = self._runtime.now()
        for tp, records in taken.items():
            self._runtime.fetch_stats.record_consumed(tp.topic, len(records), now)

    async def getone(self) -> ConsumerRecord:
        """The next record; waits for it."""
        while (record := self._prefetched.next()) is None:
            self._prefetched.add(await self.poll(_FOREVER_S))
        return record

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """All records, until the consumer is closed. Commits cover only records that iteration has
        returned."""
        prefetched = self._prefetched
        while True:
            for rest in prefetched.each():
                for record in rest:
                    yield record
            if self._closing:
                return
            prefetched.add(await self.poll(_FOREVER_S))

    # --- rebalances ---

    async def _rebalance_if_needed(self) -> None:
        """The part of a rebalance that runs in the caller's task: callbacks and commits."""
        self._runtime.raise_problems()
        member = self._member
        if not member.active:
            return
        now = self._runtime.now()
        member.polled(now)
        self._rebalancing.on_metadata_update()
        self._rebalancing.reassign_withheld(now)
        while True:
            if member.joined is not None:
                await self._complete_join()
            elif member.rejoin and not member.joining:
                if self._rebalancing.pattern is not None and not self._runtime.cluster.nodes:
                    return
                await self._prepare_join()
            else:
                return
            member.polled(self._runtime.now())

    async def _prepare_join(self) -> None:
        """Commit, revoke partitions, and send JoinGroup; Kafka's `onJoinPrepare`."""
        self._runtime.poll_stats.rebalance_begins(self._runtime.now())
        if not self._member.lost:
            await self._committer.auto_commit()
        change = self._rebalancing.before_join()
        await self._listener.on_removed(lost=change.lost, revoked=change.revoked)
        self._rebalancing.remove(change)
        if self._member.rejoin and not self._member.joining:
            self._rebalancing.join()
            self._runtime.wake()

    async def _complete_join(self) -> None:
        """Take the new assignment; Kafka's `onJoinComplete`."""
        joined = self._member.joined
        assert joined is not None
        change = self._rebalancing.after_join(joined)
        if change is None:
            self._member.joined = None
            return
        if change.revoked:
            await self._committer.auto_commit()
            await self._listener.on_removed(lost=(), revoked=change.revoked)
        if self._member.joined is not joined:
            return  # superseded by the next rebalance or the end of the membership
        self._member.joined = None
        self._rebalancing.take_assignment(joined, change)
        self._runtime.poll_stats.rebalance_ends(self._runtime.now())
        self._committer.restart_interval()
        await self._listener.on_assigned(change.added)
        self._runtime.wake()

    # --- commits ---

    async def commit(self, offsets: Offsets | None = None) -> None:
        """Commit the offsets of all records returned so far, or the given offsets of the next records to
        read.

        Retries until default.api.timeout.ms. Raises CommitFailedError if the group has assigned the
        partitions to other members, RebalanceInProgressError if a rebalance has begun: poll, and commit
        again.
        """
        wanted = self._committer.offsets_to_commit(offsets)
        with self._runtime.poll_stats.waiting("commit-sync", self._runtime.now):
            await self._committer.commit(wanted, self.config.default_api_timeout_ms / 1000)

    def commit_nowait(self, offsets: Offsets | None = None, on_done: OnCommit | None = None) -> None:
        """Commit as `commit` does, without waiting: `on_done` is called with the offsets, and the error or
        None. A failure is not retried, because a later commit covers it."""
        self._committer.commit_nowait(self._committer.offsets_to_commit(offsets), on_done)

    async def committed(
        self, partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offsets of the group; None for a partition without one."""
        self._runtime.check_started()
        self._runtime.check_group()
        with self._runtime.poll_stats.waiting("committed", self._runtime.now):
            return await self._committer.committed([TopicPartition(*each) for each in partitions])

    def group_metadata(self) -> GroupMetadata:
        """The membership, for a transactional producer that commits the offsets in its transactions
        (KIP-447)."""
        self._runtime.check_group()
        member = self._member.current()
        return GroupMetadata(
            self.config.group_id or "", member.generation, member.member_id, member.instance_id
        )

    # --- offsets of logs ---

    async def offsets_for_times(
        self, timestamps_ms: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record with this timestamp or a later one in each partition; None if there is none."""
        wanted = {TopicPartition(*each): time for each, time in timestamps_ms.items()}
        if any(time < 0 for time in wanted.values()):
            raise ValueError("timestamps must not be negative")
        found = await self._list_offsets(wanted)
        return {tp: offset if offset.offset >= 0 else None for tp, offset in found.items()}

    async def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """The log start offsets."""
        return await self._list_ends(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """The high watermarks; with read_committed, the last stable offsets."""
        return await self._list_ends(partitions, LATEST)

    async def _list_ends(self, partitions: Iterable[tuple[str, int]], end: int) -> dict[TopicPartition, int]:
        found = await self._list_offsets({TopicPartition(*each): end for each in partitions})
        return {tp: offset.offset for tp, offset in found.items()}

    async def _list_offsets(
        self, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        runtime = self._runtime
        runtime.check_started()
        results: dict[TopicPartition, OffsetAndTimestamp] = {}
        problems: list[Exception] = []

        def found(tp: TopicPartition, result: OffsetAndTimestamp | Exception) -> None:
            if isinstance(result, Exception):
                problems.append(result)
            else:
                results[tp] = result

        for tp in wanted:
            runtime.cluster.add(tp.topic, runtime.now())
        cancel = runtime.positions.look_up(wanted, found)
        try:
            timeout_s = self.config.default_api_timeout_ms / 1000
            await runtime.wait_until(lambda: bool(problems) or len(results) == len(wanted), timeout_s)
        finally:
            cancel()
        if problems:
            raise problems[0]
        missing = wanted.keys() - results.keys()
        if missing:
            names = ", ".join(map(str, sorted(missing)))
            raise errors.RequestTimedOutError(f"no leader returned the offsets of {names} in time")
        return results

    async def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic. Raises UnknownTopicOrPartitionError."""
        runtime = self._runtime
        runtime.check_started()
        runtime.cluster.add(topic, runtime.now())
        timeout_s = self.config.default_api_timeout_ms / 1000
        await runtime.wait_until(lambda: topic in runtime.cluster.topics, timeout_s)
        count = runtime.cluster.partitions(topic)
        if count is None:
            raise errors.UnknownTopicOrPartitionError(f"topic {topic} is not in the metadata")
        return list(range(count))

    # --- positions ---

    def seek(self, partition: tuple[str, int], offset: int | OffsetAndMetadata) -> None:
        """Set the position of a partition."""
        state = self._runtime.partition_state(partition)
        if not isinstance(offset, int):
            self._runtime.positions.begin(state, offset)
        elif offset < 0:
            raise ValueError(f"offset {offset} must not be negative")
        else:
            state.seek(offset)
        self._prefetched.drop(state.tp)
        self._runtime.wake()

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Set the positions to the log start offsets; without arguments, of all assigned partitions. The
        offsets are looked up when the partitions are read."""
        self._reset(partitions, EARLIEST)

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Set the positions to the ends of the logs; without arguments, of all assigned partitions. The
        offsets are looked up when the partitions are read."""
        self._reset(partitions, LATEST)

    def seek_to_time(self, timestamp_ms: int, *partitions: tuple[str, int]) -> None:
        """Set the positions to the first records with this timestamp or a later one, or to the end if there
        is none; without partitions, of all assigned ones."""
        if timestamp_ms < 0:
            raise ValueError(f"timestamp {timestamp_ms} must not be negative")
        self._reset(partitions, timestamp_ms)

    def _reset(self, partitions: Collection[tuple[str, int]], timestamp: int) -> None:
        for partition in partitions or self._assigned.partitions:
            state = self._runtime.partition_state(partition)
            state.reset(timestamp)
            self._prefetched.drop(state.tp)
        self._runtime.wake()

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Stop reading these partitions until `resume`; they stay assigned."""
        for partition in partitions:
            self._runtime.partition_state(partition).paused = True
        self._runtime.wake()

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Read these partitions again."""
        for partition in partitions:
            self._runtime.partition_state(partition).paused = False
        self._runtime.wake()

    def paused(self) -> frozenset[TopicPartition]:
        """The paused partitions."""
        return frozenset(state.tp for state in self._assigned if state.paused)

    async def position(self, partition: tuple[str, int]) -> int:
        """The offset of the next record to read. Raises TimeoutError, ClientError."""
        runtime = self._runtime
        state = runtime.partition_state(partition)

        def known() -> bool:
            runtime.raise_problems()
            self._initializer.initialize()
            return state.phase is Phase.FETCHING

        if not await runtime.wait_until(known, self.config.default_api_timeout_ms / 1000):
            raise errors.RequestTimedOutError(f"the position in {state.tp} was not found in time")
        prefetched = self._prefetched.before({state.tp: OffsetAndMetadata(state.position)}, finished=True)
        return prefetched[state.tp].offset

    def lag(self, partition: tuple[str, int]) -> int | None:
        """The number of records after the position, as of the last fetch; None before the first fetch."""
        return self._runtime.fetcher.lags.get(TopicPartition(*partition))

    # --- metrics ---

    def metrics(self) -> dict[str, float]:
        """Metrics of the whole consumer by Kafka's names: totals since `start`; rates, averages and maxima
        over metrics.num.samples x metrics.sample.window.ms."""
        return of_client(self.measurements())

    def measurements(self) -> list[Metric]:
        """All metrics, those of each topic, partition and broker included; none before `start`."""
        return self._runtime.measurements()


class RebalanceListener:
    """Calls the user's callbacks of a rebalance, in the caller's `poll`; their exceptions are raised
    there."""

    def __init__(
        self,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._on_lost = on_lost or on_revoked

    async def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Called after every rebalance, without partitions if none is new."""
        await _call(self._on_assigned, partitions)

    async def on_removed(self, *, lost: Sequence[TopicPartition], revoked: Sequence[TopicPartition]) -> None:
        """Called if there are lost or revoked partitions."""
        if lost:
            await _call(self._on_lost, lost)
        if revoked:
            await _call(self._on_revoked, revoked)


async def _call(callback: RebalanceCallback | None, partitions: Sequence[TopicPartition]) -> None:
    if callback is not None:
        result = callback(list(partitions))
        if inspect.isawaitable(result):
            await result
