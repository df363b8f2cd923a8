"""Delayed operations: completed by their condition, in bulk, or by their deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from ottla.ports import OS_RANDOM
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import FetchRequest
from ottla.protocol.types import ZERO_UUID
from ottla.server.dispatch.fetch_sessions import FetchSession, FetchSessionCache, WantedPartition
from ottla.server.dispatch.purgatory import TICK_MS, PartitionKey, Purgatory


class ManualLoop:
    """The parts of an event loop that the purgatory uses, under the test's clock."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.soon: list[Callable[[], Any]] = []
        self.timers: list[tuple[float, Callable[[], Any], ManualTimer]] = []
        self.timers_made = 0

    def time(self) -> float:
        return self.now_s

    def call_soon(self, callback: Callable[..., Any], *arguments: Any) -> None:
        self.soon.append(partial(callback, *arguments))

    def call_at(self, when_s: float, callback: Callable[[], Any]) -> ManualTimer:
        timer = ManualTimer()
        self.timers_made += 1
        self.timers.append((when_s, callback, timer))
        return timer

    def call_later(self, delay_s: float, callback: Callable[[], Any]) -> ManualTimer:
        return self.call_at(self.now_s + delay_s, callback)

    def turn(self) -> None:
        """Runs callbacks until none is left at this time."""
        while self.soon:
            soon, self.soon = self.soon, []
            for callback in soon:
                callback()

    def advance(self, ms: int) -> None:
        end = self.now_s + ms / 1000
        while True:
            due = [t for t in self.timers if t[0] <= end and not t[2].cancelled]
            if not due:
                break
            first = min(due, key=lambda t: t[0])
            self.timers.remove(first)
            self.now_s = max(self.now_s, first[0])
            first[1]()
        self.now_s = end

    def armed(self) -> int:
        return sum(not timer.cancelled for _, _, timer in self.timers)


class ManualTimer:
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakePartition:
    def __init__(self, topic: str = "t", partition: int = 0) -> None:
        self.topic = topic
        self.partition = partition
        self.key = (topic, partition)
        self.high_watermark = 0
        self.error = ErrorCode.NONE
        self.asked = 0

    def enough_replicas_for(self, offset: int) -> tuple[bool, ErrorCode]:
        self.asked += 1
        if self.error:
            return True, self.error
        return self.high_watermark >= offset, ErrorCode.NONE

    def follower_was_idle(self, broker_id: int, at_ms: int, leader_epoch: int) -> None: ...


class FakeFetch:
    def __init__(self, watched: list[PartitionKey], *, follower: bool = False) -> None:
        self.watched = watched
        self.follower = follower
        self.done = False
        self.bucket = 0
        self.notified: list[PartitionKey] = []
        self.expired = 0

    def try_complete(self, key: PartitionKey) -> None:
        self.notified.append(key)

    def expire(self) -> None:
        self.expired += 1


def make() -> tuple[ManualLoop, Purgatory]:
    loop = ManualLoop()
    return loop, Purgatory(loop, FetchSessionCache(OS_RANDOM))  # type: ignore[arg-type]


KEY = ("t", 0)


def test_a_produce_completes_when_the_high_watermark_reaches_its_end() -> None:
    loop, purgatory = make()
    p = FakePartition()
    outcomes: list[ErrorCode] = []
    purgatory.await_replication(KEY, 10, 30_000, outcomes.append)
    p.high_watermark = 9
    purgatory.high_watermark_advanced(p)
    loop.turn()
    assert outcomes == []
    p.high_watermark = 10
    purgatory.high_watermark_advanced(p)
    assert outcomes == [], "not in the midst of an append"
    loop.turn()
    assert outcomes == [ErrorCode.NONE]
    assert purgatory.waiting() == 0


def test_a_duplicate_does_not_wait_for_later_records() -> None:
    _, purgatory = make()
    partition = FakePartition()
    key = (partition.topic, partition.partition)
    completed: list[int] = []
    for offset in (267, 265, 270, 265):
        purgatory.await_replication(key, offset, 1000, lambda _, offset=offset: completed.append(offset))
    partition.high_watermark = 265
    purgatory.high_watermark_advanced(partition)
    purgatory.drain()
    assert completed == [265, 265]
    partition.high_watermark = 270
    purgatory.high_watermark_advanced(partition)
    purgatory.drain()
    assert completed == [265, 265, 267, 270]


def test_completion_costs_only_the_completed_operations() -> None:
    loop, purgatory = make()
    p = FakePartition()
    done: list[int] = []
    for offset in range(1, 5001):
        purgatory.await_replication(KEY, offset, 30_000, lambda _, o=offset: done.append(o))  # type: ignore[misc]
    p.high_watermark = 7
    for _ in range(100):
        purgatory.high_watermark_advanced(p)
    loop.turn()
    assert done == [1, 2, 3, 4, 5, 6, 7]
    assert p.asked == 8, "the events of a turn are one, and the rest of the queue is not looked at"
    assert loop.armed() == 1, "one timer, however many wait"


def test_losing_leadership_fails_every_delayed_operation() -> None:
    loop, purgatory = make()
    p = FakePartition()
    outcomes: list[ErrorCode] = []
    for offset in (5, 6, 7):
        purgatory.await_replication(KEY, offset, 30_000, outcomes.append)
    p.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    purgatory.became_follower(p)
    loop.turn()
    assert outcomes == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3


def test_an_operation_times_out_once_and_is_removed() -> None:
    loop, purgatory = make()
    p = FakePartition()
    outcomes: list[ErrorCode] = []
    purgatory.await_replication(KEY, 5, 100, outcomes.append)
    purgatory.await_replication(KEY, 6, 50_000, outcomes.append)
    loop.advance(99)
    assert outcomes == []
    loop.advance(1 + 2 * TICK_MS)
    assert outcomes == [ErrorCode.REQUEST_TIMED_OUT]
    p.high_watermark = 6
    purgatory.high_watermark_advanced(p)
    loop.turn()
    assert outcomes == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE]
    loop.advance(100_000)
    assert len(outcomes) == 2


def test_a_shorter_deadline_that_comes_later_is_kept() -> None:
    loop, purgatory = make()
    slow, quick = FakeFetch([KEY]), FakeFetch([KEY])
    purgatory.watch_fetch(slow, 30_000)
    purgatory.watch_fetch(quick, 500)
    loop.advance(500 + 2 * TICK_MS)
    assert (slow.expired, quick.expired) == (0, 1)
    assert loop.armed() == 1


def test_the_timer_is_cancelled_with_the_last_operation() -> None:
    loop, purgatory = make()
    for _ in range(300):  # a follower that polls for half a second at most, and is answered at once
        poll = FakeFetch([KEY], follower=True)
        purgatory.watch_fetch(poll, 500)
        loop.advance(TICK_MS)
        purgatory.unwatch_fetch(poll)
    late = FakeFetch([KEY])
    purgatory.watch_fetch(late, 500)
    assert loop.timers_made <= 10
    loop.advance(500 + TICK_MS)
    assert late.expired == 1
    assert loop.armed() == 0


def test_appends_wake_followers_and_the_high_watermark_wakes_consumers() -> None:
    loop, purgatory = make()
    p = FakePartition()
    follower, consumer = FakeFetch([KEY], follower=True), FakeFetch([KEY])
    purgatory.watch_fetch(follower, 500)
    purgatory.watch_fetch(consumer, 500)
    purgatory.log_appended(p, committed=False)
    loop.turn()
    assert (follower.notified, consumer.notified) == ([KEY], [])
    purgatory.high_watermark_advanced(p)
    loop.turn()
    assert (follower.notified, consumer.notified) == ([KEY], [KEY])


def test_a_poll_in_a_session_is_notified_without_watches() -> None:
    loop, purgatory = make()
    polls: dict[int, FakeFetch] = {}
    for replica_id in (7, -1):
        session = FetchSession(replica_id + 9, replica_id=replica_id, by_topic_id=False, now_ms=0)
        wanted = WantedPartition("t", ZERO_UUID, FetchRequest.FetchPartition(partition=0))
        session.add(wanted)
        purgatory.sessions.watching.setdefault(KEY, set()).add(wanted)
        session.dirty.clear()
        session.waiting = polls[replica_id] = FakeFetch([], follower=replica_id >= 0)
    p = FakePartition()
    purgatory.log_appended(p, committed=False)
    loop.turn()
    assert (polls[7].notified, polls[-1].notified) == ([KEY], [])
    purgatory.high_watermark_advanced(p)
    loop.turn()
    assert (polls[7].notified, polls[-1].notified) == ([KEY], [KEY])
    for poll in polls.values():
        poll.done = True
    purgatory.changed(p)
    loop.turn()
    assert (polls[7].notified, polls[-1].notified) == ([KEY], [KEY]), "nobody waits any more"


class Round:
    """A partition with a follower's session that waits, and producers."""

    def __init__(self) -> None:
        self.loop, self.purgatory = make()
        self.p = FakePartition()
        session = FetchSession(1, replica_id=7, by_topic_id=False, now_ms=0)
        wanted = WantedPartition("t", ZERO_UUID, FetchRequest.FetchPartition(partition=0))
        session.add(wanted)
        self.purgatory.sessions.watching[KEY] = {wanted}
        session.waiting = self.poll = FakeFetch([], follower=True)
        self.end = 0

    def produce(self, requests: int) -> None:
        for _ in range(requests):
            self.end += 1
            self.purgatory.log_appended(self.p, committed=False)
            self.purgatory.await_replication(KEY, self.end, 30_000, lambda _: None)
        self.loop.turn()

    def replicate(self) -> None:
        self.p.high_watermark = self.end
        self.purgatory.high_watermark_advanced(self.p)
        self.loop.turn()

    @property
    def woken(self) -> int:
        return len(self.poll.notified)


def test_a_round_has_as_many_requests_as_the_one_before() -> None:
    simulation = Round()
    simulation.produce(1)
    assert simulation.woken == 1
    simulation.replicate()
    simulation.produce(3)
    assert simulation.woken == 2, "one in the round before"
    simulation.replicate()
    for number in range(1, 4):
        assert simulation.woken == 2
        simulation.produce(1)
        assert simulation.woken == (3 if number == 3 else 2)
    assert simulation.loop.armed() == 1, "for the producers' deadline, and no other"


def test_a_smaller_round_waits_a_millisecond_once() -> None:
    simulation = Round()
    simulation.produce(5)
    simulation.replicate()
    simulation.produce(2)
    assert simulation.woken == 1
    simulation.loop.advance(1)
    simulation.loop.turn()
    assert simulation.woken == 2
    simulation.replicate()
    simulation.produce(2)
    assert simulation.woken == 3, "two in the round before"
    simulation.replicate()
    simulation.produce(1)
    simulation.loop.advance(1)
    simulation.replicate()
    simulation.produce(1)
    assert simulation.woken == 5


def test_records_without_waiting_producers_are_not_gathered() -> None:
    simulation = Round()
    simulation.produce(5)
    simulation.replicate()
    simulation.purgatory.log_appended(simulation.p, committed=False)
    simulation.loop.turn()
    assert simulation.woken == 2


def test_a_fetch_is_notified_only_of_watched_partitions_until_it_is_removed() -> None:
    loop, purgatory = make()
    fetch = FakeFetch([("t", 0), ("t", 1)])
    purgatory.watch_fetch(fetch, 500)
    purgatory.high_watermark_advanced(FakePartition("t", 2))
    purgatory.high_watermark_advanced(FakePartition("t", 1))
    loop.turn()
    assert fetch.notified == [("t", 1)]
    purgatory.unwatch_fetch(fetch)
    purgatory.high_watermark_advanced(FakePartition("t", 1))
    loop.turn()
    loop.advance(1000)
    assert fetch.notified == [("t", 1)]
    assert fetch.expired == 0
    assert purgatory.waiting() == 0


def test_leadership_hooks_are_called_at_once() -> None:
    _, purgatory = make()
    notified: list[tuple[str, str, int]] = []
    purgatory.on_leader.append(lambda topic, partition: notified.append(("leader", topic, partition)))
    purgatory.on_not_leader.append(lambda topic, partition: notified.append(("not", topic, partition)))
    purgatory.became_leader(FakePartition("__consumer_offsets", 3))
    purgatory.became_follower(FakePartition("__consumer_offsets", 3))
    purgatory.stopped(FakePartition("__consumer_offsets", 4), deleted=True)
    assert notified == [
        ("leader", "__consumer_offsets", 3),
        ("not", "__consumer_offsets", 3),
        ("not", "__consumer_offsets", 4),
    ]


def test_a_deadline_on_a_real_loop_is_kept() -> None:
    async def scenario() -> float:
        loop = asyncio.get_running_loop()
        purgatory = Purgatory(loop, FetchSessionCache(OS_RANDOM))
        responded: asyncio.Future[ErrorCode] = loop.create_future()
        began = loop.time()
        purgatory.await_replication(KEY, 1, 50, responded.set_result)
        assert await asyncio.wait_for(responded, 60) == ErrorCode.REQUEST_TIMED_OUT
        return loop.time() - began

    assert 0.05 <= asyncio.run(scenario()) < 20


def test_a_failing_operation_does_not_affect_others() -> None:
    """For example an unreadable disk: all other operations, also later ones, are completed."""

    class Failing(FakeFetch):
        def try_complete(self, key: PartitionKey) -> None:
            raise OSError("no such device")

        def expire(self) -> None:
            raise OSError("no such device")

    def fail(error: ErrorCode) -> None:
        raise OSError("no such device")

    loop, purgatory = make()
    p = FakePartition()
    outcomes: list[ErrorCode] = []
    fetch = FakeFetch([KEY])
    purgatory.watch_fetch(Failing([KEY]), 100)
    purgatory.watch_fetch(fetch, 100)
    purgatory.await_replication(KEY, 1, 30_000, fail)
    purgatory.await_replication(KEY, 1, 30_000, outcomes.append)
    p.high_watermark = 1
    purgatory.high_watermark_advanced(p)
    loop.turn()
    assert outcomes == [ErrorCode.NONE]
    assert fetch.notified == [KEY]
    purgatory.await_replication(KEY, 2, 100, outcomes.append)
    later = FakeFetch([KEY])
    purgatory.watch_fetch(later, 200)
    loop.advance(150)
    assert (fetch.expired, later.expired, outcomes[1:]) == (1, 0, [ErrorCode.REQUEST_TIMED_OUT])
    loop.advance(100)
    assert later.expired == 1


def test_a_poll_of_a_removed_session_is_answered_in_the_next_iteration() -> None:
    """No notification would reach it: its client would wait until the deadline."""
    loop, purgatory = make()
    poll, answered = FakeFetch([]), FakeFetch([])
    purgatory.watch_fetch(poll, 30_000)
    for orphan in (poll, answered):
        assert purgatory.sessions.on_orphan is not None
        purgatory.sessions.on_orphan(orphan)
    assert poll.expired == 0, "not in the midst of what evicted it"
    answered.done = True
    loop.turn()
    assert (poll.expired, answered.expired) == (1, 0)
