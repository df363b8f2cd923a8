"""Where a consumer stands, and what it commits: the half of `Consumer` that is about offsets.

Invariant: without `offsets`, what is committed is what was given out and reached; of a batch of which only
a part was reached by `async for`, that part.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeVar

from ottla.client import errors
from ottla.client.consumer_parts import ConsumerParts
from ottla.client.core.assigned import EARLIEST, LATEST, AssignedPartition, OffsetAndMetadata, Phase
from ottla.client.core.baseline import unknown_to_group
from ottla.client.core.positions import OffsetAndTimestamp
from ottla.client.core.types import GroupMetadata, TopicPartition
from ottla.protocol.errors import ErrorCode
from ottla.wire.futures import resolve

log = logging.getLogger(__name__)
T = TypeVar("T")

Offsets: TypeAlias = (
    Mapping[TopicPartition, int | OffsetAndMetadata] | Mapping[tuple[str, int], int | OffsetAndMetadata]
)
Committed: TypeAlias = Callable[[dict[TopicPartition, OffsetAndMetadata], Exception | None], Any]


class ConsumerOffsets(ConsumerParts):
    # --- commits ---

    async def commit(self, offsets: Offsets | None = None) -> None:
        """Store in the group how far it has read: everything up to here, or these offsets of next records.

        Tries again until default.api.timeout.ms. Raises CommitFailedError when the group has given the
        partitions to others, RebalanceInProgressError when it is about to: poll, and commit again.
        """
        wanted = self._to_commit(offsets)
        began = self._now()
        try:
            await self._committing(wanted, self.config.default_api_timeout_ms / 1000)
        finally:
            self._poll_stats.waited_s["commit-sync"] += self._now() - began

    def commit_nowait(self, offsets: Offsets | None = None, on_done: Committed | None = None) -> None:
        """Begin to, without waiting; `on_done` is called with the offsets, and the error or None. A failure
        is not followed by another try: a later commit covers it."""
        wanted = self._to_commit(offsets)

        def done(problem: Exception | None) -> None:
            if problem is None and self._interceptors:
                self._interceptors.on_commit(wanted)
            if on_done is not None:
                _tell(on_done, wanted, problem)
            elif problem is not None:
                log.warning(
                    "group %s: a commit of %s failed: %s", self.config.group_id, _named(wanted), problem
                )

        deadline = self._now() + self.config.default_api_timeout_ms / 1000
        self._offsets.commit(wanted, deadline, done, once=True)
        self._wake()

    def _to_commit(self, offsets: Offsets | None) -> dict[TopicPartition, OffsetAndMetadata]:
        self._check()
        self._check_group()
        if offsets is None:
            return self._consumed()
        wanted = {}
        for partition, offset in offsets.items():
            entry = OffsetAndMetadata(offset) if isinstance(offset, int) else offset
            if entry.offset < 0:
                raise ValueError(f"{TopicPartition(*partition)}: offset {entry.offset} must not be negative")
            wanted[TopicPartition(*partition)] = entry
        return wanted

    def _check_group(self) -> None:
        if self.config.group_id is None:
            raise errors.IllegalStateError("offsets are stored by groups: this consumer has no group.id")
        if self.config.group_ephemeral:
            raise errors.IllegalStateError(f"group {self.config.group_id} is ephemeral: it stores no offsets")

    def _consumed(self, *, finished: bool = True) -> dict[TopicPartition, OffsetAndMetadata]:
        """`finished`: the record that `async for` has given last counts."""
        return self._prefetched.before(self._assigned.consumed(), finished=finished)

    def _consumed_of_topics(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """For automatic commits, which are tried again: without deleted topics, in whose place others may be
        by then."""

        def exists(topic: str) -> bool:
            gone = self._cluster.error(topic) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return topic in self._cluster.topics and not gone

        return {tp: offset for tp, offset in self._assigned.consumed().items() if exists(tp.topic)}

    async def _committing(self, wanted: dict[TopicPartition, OffsetAndMetadata], timeout_s: float) -> None:
        deadline = self._now() + timeout_s
        await self._called(lambda done: self._offsets.commit(wanted, deadline, done))
        if self._interceptors:
            self._interceptors.on_commit(wanted)

    async def _commit_quietly(
        self, wanted: dict[TopicPartition, OffsetAndMetadata], timeout_s: float | None = None
    ) -> None:
        """What cannot be committed is read again: no reason to stop."""
        limit_s = self.config.default_api_timeout_ms / 1000 if timeout_s is None else timeout_s
        try:
            await self._committing(wanted, limit_s)
        except errors.ClientError as problem:
            self._automatic_commit_failed(wanted, problem)

    def _automatic_commit_failed(self, wanted: Iterable[TopicPartition], problem: Exception) -> None:
        log.warning(
            "group %s: an automatic commit of %s failed: %s", self.config.group_id, _named(wanted), problem
        )

    def _auto_commit(self) -> None:
        """Now and then, without waiting."""
        now = self._now()
        if not self.config.enable_auto_commit or now < self._next_auto_commit:
            return
        self._next_auto_commit = now + self.config.auto_commit_interval_ms / 1000
        wanted = self._consumed_of_topics()
        if wanted:
            self.commit_nowait(wanted, self._auto_committed)

    def _auto_committed(self, wanted: Iterable[TopicPartition], problem: Exception | None) -> None:
        if isinstance(problem, errors.RetriableError):
            self._next_auto_commit = self._now() + self.config.retry_backoff_ms / 1000
        elif problem is not None:
            self._automatic_commit_failed(wanted, problem)

    async def committed(
        self, partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed; None where it has nothing."""
        self._check()
        self._check_group()
        wanted = [TopicPartition(*each) for each in partitions]
        began = self._now()
        deadline = began + self.config.default_api_timeout_ms / 1000
        try:
            found: dict[TopicPartition, OffsetAndMetadata | None] = await self._called(
                lambda done: self._offsets.fetch(wanted, deadline, done)
            )
        finally:
            self._poll_stats.waited_s["committed"] += self._now() - began
        return found

    def group_metadata(self) -> GroupMetadata:
        """For a transactional producer, which commits the offsets in its transactions (KIP-447)."""
        self._check_group()
        member = self._member.current()
        return GroupMetadata(
            self.config.group_id or "", member.generation, member.member_id, member.instance_id
        )

    async def _called(self, begin: Callable[[Callable[[Any], None]], None]) -> Any:
        """Have a core do something; what comes of it."""
        self._check()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        begin(partial(resolve, future))
        self._wake()
        return await future

    # --- offsets of logs ---

    async def offsets_for_times(
        self, timestamps_ms: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of this time or later in each partition; None where there is none."""
        wanted = {TopicPartition(*each): time for each, time in timestamps_ms.items()}
        if any(time < 0 for time in wanted.values()):
            raise ValueError("timestamps must not be negative")
        found = await self._look_up(wanted)
        return {tp: offset if offset.offset >= 0 else None for tp, offset in found.items()}

    async def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """The offsets of the first records there are."""
        return await self._ends(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """The offsets after the last records; with read_committed, after the last decided one."""
        return await self._ends(partitions, LATEST)

    async def _ends(self, partitions: Iterable[tuple[str, int]], end: int) -> dict[TopicPartition, int]:
        found = await self._look_up({TopicPartition(*each): end for each in partitions})
        return {tp: offset.offset for tp, offset in found.items()}

    async def _look_up(
        self, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        self._check()
        results: dict[TopicPartition, OffsetAndTimestamp] = {}
        problems: list[Exception] = []

        def found(tp: TopicPartition, result: OffsetAndTimestamp | Exception) -> None:
            if isinstance(result, Exception):
                problems.append(result)
            else:
                results[tp] = result

        for tp in wanted:
            self._cluster.add(tp.topic, self._now())
        give_up = self._positions.look_up(wanted, found)
        try:
            timeout_s = self.config.default_api_timeout_ms / 1000
            await self._until(lambda: bool(problems) or len(results) == len(wanted), timeout_s)
        finally:
            give_up()
        if problems:
            raise problems[0]
        missing = wanted.keys() - results.keys()
        if missing:
            names = ", ".join(map(str, sorted(missing)))
            raise errors.RequestTimedOutError(f"no leader told the offsets of {names} in time")
        return results

    async def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic. Raises UnknownTopicOrPartitionError."""
        self._check()
        self._cluster.add(topic, self._now())

        def known() -> bool:
            return topic in self._cluster.topics

        timeout_s = self.config.default_api_timeout_ms / 1000
        await self._until(known, timeout_s)
        count = self._cluster.partitions(topic)
        if count is None:
            raise errors.UnknownTopicOrPartitionError(f"no topic {topic} is known")
        return list(range(count))

    # --- where it stands ---

    def seek(self, partition: tuple[str, int], offset: int | OffsetAndMetadata) -> None:
        """Read on from an offset."""
        state = self._state(partition)
        if not isinstance(offset, int):
            self._positions.begin(state, offset)
        elif offset < 0:
            raise ValueError(f"offset {offset}: must not be negative")
        else:
            state.seek(offset)
        self._prefetched.drop(state.tp)
        self._wake()

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """To the earliest record, in these partitions, or in all; found out when it is read."""
        self._reset(partitions, EARLIEST)

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """To what is written next, in these partitions, or in all; found out when it is read."""
        self._reset(partitions, LATEST)

    def seek_to_time(self, timestamp_ms: int, *partitions: tuple[str, int]) -> None:
        """To the first records of this time or later, in these partitions, or in all; to the end where
        there is none."""
        if timestamp_ms < 0:
            raise ValueError(f"timestamp {timestamp_ms}: must not be negative")
        self._reset(partitions, timestamp_ms)

    def _reset(self, partitions: Collection[tuple[str, int]], timestamp: int) -> None:
        for partition in partitions or self._assigned.partitions:
            state = self._state(partition)
            state.reset(timestamp)
            self._prefetched.drop(state.tp)
        self._wake()

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Nothing of these until they are resumed; they stay assigned."""
        for partition in partitions:
            self._state(partition).paused = True
        self._wake()

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Give out records of these again."""
        for partition in partitions:
            self._state(partition).paused = False
        self._wake()

    def paused(self) -> frozenset[TopicPartition]:
        """What `pause` has stopped."""
        return frozenset(state.tp for state in self._assigned if state.paused)

    async def position(self, partition: tuple[str, int]) -> int:
        """The offset of the next record that will be given out. Raises TimeoutError, ClientError."""
        state = self._state(partition)

        def known() -> bool:
            self._raise_problems()
            self._look_after_positions()
            return state.phase is Phase.FETCHING

        if not await self._until(known, self.config.default_api_timeout_ms / 1000):
            raise errors.RequestTimedOutError(f"the position in {state.tp} was not found in time")
        prefetched = self._prefetched.before({state.tp: OffsetAndMetadata(state.position)}, finished=True)
        return prefetched[state.tp].offset

    def lag(self, partition: tuple[str, int]) -> int | None:
        """How many records are behind the position, as of the last answer; None before the first one."""
        return self._fetcher.lags.get(TopicPartition(*partition))

    def _look_after_positions(self) -> None:
        """Find where to begin in partitions that are new."""
        waiting = self._assigned.in_phase(Phase.COMMITTED)
        if not waiting:
            return
        if self.config.group_id is None or self.config.group_ephemeral:
            self._positions.reset(waiting)
            self._wake()
            return
        asked = [state.tp for state in waiting if state.tp not in self._looking_for_committed]
        if asked:
            self._looking_for_committed.update(asked)
            self._fetch_committed(asked, asked, self._committed_found)

    def _fetch_committed(
        self,
        wanted: Iterable[TopicPartition],
        asked: list[TopicPartition],
        found: Callable[[list[TopicPartition], Mapping[TopicPartition, OffsetAndMetadata | None]], None],
    ) -> None:
        """The offsets of `wanted`, for the sake of the partitions `asked`, which wait for a position."""

        def answered(offsets: dict[TopicPartition, OffsetAndMetadata | None] | Exception) -> None:
            if not isinstance(offsets, Exception):
                found(asked, offsets)
                return
            self._looking_for_committed.difference_update(asked)
            if not getattr(offsets, "retriable", False):
                self._problems.append(offsets)

        self._offsets.fetch(wanted, self._now() + self.config.default_api_timeout_ms / 1000, answered)
        self._wake()

    def _committed_found(
        self, asked: list[TopicPartition], found: Mapping[TopicPartition, OffsetAndMetadata | None]
    ) -> None:
        without = []
        for tp in asked:
            offset = found.get(tp)
            if offset is None:
                without.append(tp)
            elif (state := self._waiting(tp)) is not None:
                self._positions.begin(state, offset)
        self._looking_for_committed.difference_update(asked)
        appeared = [tp for tp in without if self._baseline.appeared(tp)]
        others = [tp for tp in without if tp not in appeared]
        self._begin_anew(appeared, appeared=True)
        if self.config.auto_offset_reset == self.config.auto_offset_reset_new_partitions:
            self._begin_anew(others)
        elif others:
            # Perhaps the group has read their topics before they were there.
            numbers = {tp.topic: self._cluster.partitions(tp.topic) or 0 for tp in others}
            wanted = [TopicPartition(topic, n) for topic, count in numbers.items() for n in range(count)]
            self._looking_for_committed.update(others)
            self._fetch_committed(dict.fromkeys([*wanted, *others]), others, self._group_offsets_found)

    def _group_offsets_found(
        self, asked: list[TopicPartition], found: Mapping[TopicPartition, OffsetAndMetadata | None]
    ) -> None:
        """`found`: of all partitions of the topics."""
        self._looking_for_committed.difference_update(asked)
        committed: defaultdict[str, list[int]] = defaultdict(list)
        for tp, offset in found.items():
            if offset is not None:
                committed[tp.topic].append(tp.partition)
        for tp in asked:
            appeared = unknown_to_group(tp.partition, committed[tp.topic])
            self._begin_anew((tp,), appeared=appeared)

    def _waiting(self, tp: TopicPartition) -> AssignedPartition | None:
        """A partition that still waits for its committed offset."""
        state = self._assigned.get(tp)
        return None if state is None or state.phase is not Phase.COMMITTED else state

    def _begin_anew(self, partitions: Iterable[TopicPartition], *, appeared: bool = False) -> None:
        """The group has no offset there."""
        states = [state for tp in partitions if (state := self._waiting(tp)) is not None]
        if appeared and states:
            log.info("group %s: %s appeared since it subscribed", self.config.group_id, _named(partitions))
        try:
            self._positions.reset(states, appeared=appeared)
        except errors.ClientError as problem:
            self._problems.append(problem)

    def _raise_problems(self) -> None:
        for problems in (self._problems, self._member.problems, self._positions.problems):
            if problems:
                raise problems.pop(0)


def _named(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, partitions)) or "nothing"


def _tell(
    on_done: Committed, offsets: dict[TopicPartition, OffsetAndMetadata], problem: Exception | None
) -> None:
    """The user's function fails on its own account."""
    try:
        on_done(offsets, problem)
    except Exception:
        log.exception("on_done of a commit of %s failed", _named(offsets))
