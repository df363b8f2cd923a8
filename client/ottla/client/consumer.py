"""The consumer: reads topics, alone or as a member of a group.

    async with Consumer(bootstrap_servers="127.0.0.1:9092", group_id="readers") as consumer:
        consumer.subscribe(["orders"])
        async for record in consumer:
            print(record.partition, record.offset, record.value)

A shell over the cores in `ottla.client.core`: it awaits, calls the user's listener, and raises. All of it
runs in one event loop, from the caller's tasks and the network loop's callbacks; only heartbeats and fetches
go on between calls. Invariants: records and rebalances come in `poll` (and `async for`) only, so that
whatever was given out before is done with when partitions are revoked or offsets committed automatically; a
cancelled call leaves the consumer as if it had not been made, or will be finished by the next one: a listener
may be told twice then.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import Any, Final, Self

from ottla.client import errors
from ottla.client.consumer_offsets import ConsumerOffsets
from ottla.client.consumer_parts import Records
from ottla.client.core.types import ConsumerRecord, TopicPartition
from ottla.client.rebalance_listener import Listener
from ottla.client.serialization import SchemaNeeded

_FOREVER_S: Final = 3600.0
_STOP_TIMEOUT_S: Final = 30.0
_LEAVE_TIMEOUT_S: Final = 5.0


class Consumer(ConsumerOffsets):
    """Settings are Kafka's, as keywords or as a mapping of dotted keys; see `ConsumerConfig`."""

    # --- life ---

    async def start(self) -> None:
        """Begin to work in the running event loop. Returns at once: brokers are looked for meanwhile."""
        self._start()

    async def stop(self, *, commit: bool = True, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """Commit what was read (with enable.auto.commit), leave the group, close. A second call does nothing.

        `commit` False: the record that `async for` has given last does not count; it will be read again.
        """
        if self._closing:
            return
        self._closing = True
        try:
            if self._network_loop is not None:
                await self._leave_group(commit, timeout_s)
        finally:
            self._closed = True
            await self._shut()

    async def _leave_group(self, finished: bool, timeout_s: float) -> None:
        until = self._now() + timeout_s
        if self.config.enable_auto_commit:
            await self._commit_quietly(self._consumed(finished=finished), timeout_s)
        await self._until(lambda: self._offsets.idle, until - self._now())
        if self._member.active and self.config.leave_group_on_close:
            await self._give_up_everything("the consumer is being closed")
            await self._until(
                lambda: not self._member.leaving and not self._ephemeral.vanishing, _LEAVE_TIMEOUT_S
            )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop(commit=kind is None)

    # --- what to read ---

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assigned: Callable[[list[TopicPartition]], Any] | None = None,
        on_revoked: Callable[[list[TopicPartition]], Any] | None = None,
        on_lost: Callable[[list[TopicPartition]], Any] | None = None,
    ) -> None:
        """Read these topics, or those whose whole names fit the pattern, as a member of the group.

        The listeners, functions or coroutine functions, are called in `poll`: with partitions that are new,
        that are about to go to others (to commit them is still possible), or that have gone already.
        """
        if isinstance(topics, str):
            raise TypeError(f"topics are a list: [{topics!r}]")
        names = list(topics)
        if self.config.group_id is None:
            raise errors.IllegalStateError("to subscribe needs group.id; without a group, use assign()")
        if self._rebalancing.manual:
            raise errors.IllegalStateError("partitions are assigned by hand: unsubscribe() first")
        if bool(names) == (pattern is not None):
            raise errors.IllegalStateError("give topics or a pattern; to read nothing, unsubscribe()")
        self._listener = Listener(on_assigned, on_revoked, on_lost)
        self._rebalancing.subscribe(names, re.compile(pattern) if isinstance(pattern, str) else pattern)
        self._member.active = True
        self._wake()

    async def unsubscribe(self) -> None:
        """Leave the group, or give the assignment up."""
        self._check()
        if self._member.active:
            await self._give_up_everything("the consumer unsubscribed from all topics")
            self._member.active = False
        self._prefetched.clear()
        self._rebalancing.forget()
        self._wake()

    async def _give_up_everything(self, reason: str) -> None:
        """As in the last rebalance."""
        owned = list(self._assigned.partitions)
        lost = self._member.lost or self._member.joining
        await self._listener.taken(owned if lost else [], [] if lost else owned)
        self._assigned.assign(())
        self._member.leave(reason)
        if self.config.group_ephemeral:
            self._ephemeral.vanish()
        self._wake()

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read these partitions, whatever a group's others do. Each one that stays keeps its position."""
        if self._member.active:
            raise errors.IllegalStateError("the consumer subscribes to topics: unsubscribe() first")
        wanted = [TopicPartition(*each) for each in partitions]
        state = {tp: self._assigned.get(tp) for tp in wanted}
        self._rebalancing.assign(wanted)
        self._assigned.keep(each for each in state.values() if each is not None)
        self._prefetched.keep(wanted)
        self._wake()

    def assignment(self) -> frozenset[TopicPartition]:
        """What is read now."""
        return frozenset(self._assigned.partitions)

    def subscription(self) -> frozenset[str]:
        """The topics that are subscribed to; of a pattern, those found so far."""
        return self._rebalancing.topics

    # --- reading ---

    async def poll(self, timeout_s: float = 0.0, max_records: int | None = None) -> Records:
        """What has come, by partition: at once, or as soon as there is something, or nothing at the end of
        the time. At most max.poll.records. Takes part in rebalances, however long the listeners take.

        Raises what hinders reading, as ClientError; poll again to go on.
        """
        network_loop, wake_event = self._check()
        if self._closing:
            raise errors.IllegalStateError("the consumer is being closed")
        if self._polling:
            raise errors.IllegalStateError("another task polls this consumer")
        self._polling = True
        most = max_records or self.config.max_poll_records
        self._poll_stats.poll_begins(self._now())
        try:
            if self._prefetched:
                return self._prefetched.take()
            until = self._now() + timeout_s
            while True:
                await self._look_after_group()
                self._look_after_positions()
                self._auto_commit()
                try:
                    taken = self._buffer.take(most)
                except SchemaNeeded as needed:
                    await asyncio.to_thread(needed.look_up)
                    continue
                if self._buffer.freed:
                    self._buffer.freed = False
                    network_loop.wake()
                if taken:
                    self._count(taken)
                    return self._interceptors.on_consume(taken) if self._interceptors else taken
                if self._closing:
                    return {}
                if self._buffer.ready:
                    await asyncio.sleep(0)  # a batch of control records or of an aborted transaction
                elif not await wake_event.wait(until):
                    return {}
        finally:
            self._polling = False
            self._poll_stats.poll_ends(self._now())

    def _count(self, taken: Records) -> None:
        now = self._now()
        for tp, records in taken.items():
            self._fetch_stats.given_out(tp.topic, len(records), now)

    async def getone(self) -> ConsumerRecord:
        """The next record."""
        while (record := self._prefetched.next()) is None:
            self._prefetched.add(await self.poll(_FOREVER_S))
        return record

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """All records, until the consumer is closed. What was not reached yet is not committed."""
        prefetched = self._prefetched
        while True:
            for rest in prefetched.each():
                for record in rest:
                    yield record
            if self._closing:
                return
            prefetched.add(await self.poll(_FOREVER_S))

    async def _look_after_group(self) -> None:
        """What a member does in the caller's turn."""
        self._raise_problems()
        member = self._member
        if not member.active:
            return
        member.polled(self._now())
        self._rebalancing.look_at_metadata()
        while True:
            if member.joined is not None:
                await self._take_assignment()
            elif member.rejoin and not member.joining:
                if self._rebalancing.pattern is not None and not self._cluster.nodes:
                    return
                await self._prepare_to_join()
            else:
                return
            member.polled(self._now())

    async def _prepare_to_join(self) -> None:
        self._poll_stats.rebalance_begins(self._now())
        if self.config.enable_auto_commit and not self._member.lost:
            await self._commit_quietly(self._consumed_of_topics())
        change = self._rebalancing.before()
        await self._listener.taken(change.lost, change.revoked)
        self._rebalancing.given_up(change)
        if self._member.rejoin and not self._member.joining:
            self._rebalancing.join()
            self._wake()

    async def _take_assignment(self) -> None:
        joined = self._member.joined
        assert joined is not None
        change = self._rebalancing.after(joined)
        if change is None:
            self._member.joined = None
            return
        if change.revoked:
            if self.config.enable_auto_commit:
                await self._commit_quietly(self._consumed_of_topics())
            await self._listener.taken((), change.revoked)
        if self._member.joined is not joined:
            return  # the next rebalance, or the end of the membership, has overtaken it
        self._member.joined = None
        self._rebalancing.settled(joined, change)
        self._poll_stats.rebalance_ends(self._now())
        self._next_auto_commit = self._now() + self.config.auto_commit_interval_ms / 1000
        await self._listener.assigned(change.added)
        self._wake()
