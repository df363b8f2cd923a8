"""Fetch sessions: partitions in incremental responses, notifications, and eviction."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

import pytest

from ottla.ports import OS_RANDOM
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import FetchRequest
from ottla.server.dispatch.fetch_sessions import (
    EVICTION_MS,
    NO_SESSION,
    READ_MAX,
    FetchContext,
    FetchSessionCache,
    FetchWatcher,
    FullFetch,
    IncrementalFetch,
    WantedPartition,
)
from ottla.server.handlers.fetch.response import FetchedPartition

IDS = {"a": UUID(int=1), "b": UUID(int=2)}
NAMES = {topic_id: name for name, topic_id in IDS.items()}
UNKNOWN = UUID(int=99)


@dataclass
class Log:
    """A fake partition: as much as sessions use."""

    topic: str = "a"
    partition: int = 0
    notified: list[tuple[int, int]] = field(default_factory=list)

    def follower_was_idle(self, broker_id: int, at_ms: int, leader_epoch: int) -> None:
        self.notified.append((broker_id, at_ms))


class Poll:
    """A fake long poll, as far as sessions use it."""

    done = False
    follower = True
    bucket = 0
    watched = ()

    def try_complete(self, key: tuple[str, int]) -> None: ...

    def expire(self) -> None: ...


class Broker:
    """Answers every fetch with high watermark 5, and records what it read."""

    def __init__(self, slots: int = 10, partitions_max: int = 100_000) -> None:
        self.cache = FetchSessionCache(OS_RANDOM, slots, partitions_max=partitions_max)
        self.names: dict[UUID, str] = dict(NAMES)
        self.now_ms = 1_000_000
        self.records: dict[tuple[str, int], int] = {}
        self.high_watermark: dict[tuple[str, int], int] = {}
        self.lagging: set[tuple[str, int]] = set()
        self.read: list[tuple[str, int]] = []

    def open(
        self,
        session_id: int,
        epoch: int,
        *wanted: tuple[str, int],
        forget: tuple[tuple[str, int], ...] = (),
        replica_id: int = -1,
        version: int = 16,
        offset: int = 5,
    ) -> FetchContext | ErrorCode:
        request = FetchRequest(
            session_id=session_id,
            session_epoch=epoch,
            topics=[
                FetchRequest.FetchTopic(
                    topic=topic,
                    topic_id=IDS.get(topic, UNKNOWN),
                    partitions=[FetchRequest.FetchPartition(partition=index, fetch_offset=offset)],
                )
                for topic, index in wanted
            ],
            forgotten_topics_data=[
                FetchRequest.ForgottenTopic(topic=topic, topic_id=IDS.get(topic, UNKNOWN), partitions=[index])
                for topic, index in forget
            ],
        )
        return self.cache.open(
            request, version, replica_id=replica_id, name_of=self.names.get, now_ms=self.now_ms
        )

    def answer(self, context: FetchContext | ErrorCode) -> tuple[int, list[tuple[str, int]]]:
        """(session id, the partitions in the response)."""
        assert not isinstance(context, ErrorCode), context
        answers = [self._answer(wanted) for wanted in context.to_read()]
        self.read = [self._name(answer.wanted) for answer in answers]
        chosen = context.choose(answers)
        context.commit(answers, self.now_ms)
        return context.session_id, [self._name(answer.wanted) for answer in chosen]

    def fetch(self, *request: object, **more: object) -> tuple[int, list[tuple[str, int]]]:
        return self.answer(self.open(*request, **more))  # type: ignore[arg-type]

    def _name(self, wanted: WantedPartition) -> tuple[str, int]:
        return wanted.topic or "?", wanted.asked.partition

    def _answer(self, wanted: WantedPartition) -> FetchedPartition:
        name = self._name(wanted)
        if wanted.topic is None:
            return FetchedPartition(wanted, ErrorCode.UNKNOWN_TOPIC_ID)
        high_watermark = self.high_watermark.get(name, 5)
        size = self.records.get(name, 0)
        caught_up = name not in self.lagging and not size
        return FetchedPartition(
            wanted, ErrorCode.NONE, high_watermark, high_watermark, 0, size=size, caught_up=caught_up
        )


A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)


def test_an_idle_session_reads_no_partition() -> None:
    broker = Broker()
    session, named = broker.fetch(0, 0, A0, A1, B0)
    assert named == [A0, A1, B0]
    assert broker.fetch(session, 1) == (session, [])
    assert broker.read == []


def test_a_changed_partition_is_read_and_only_changes_are_returned() -> None:
    broker = Broker()
    session, _ = broker.fetch(0, 0, A0, A1)
    broker.cache.mark_dirty(Log("a", 1), consumers=True, wake_followers=False)
    assert broker.fetch(session, 1) == (session, [])
    assert broker.read == [A1], "looked at, and found unchanged"
    broker.high_watermark[A1] = 6
    broker.cache.mark_dirty(Log("a", 1), consumers=True, wake_followers=False)
    assert broker.fetch(session, 2) == (session, [A1])
    assert broker.fetch(session, 3) == (session, [])


def test_unsatisfied_partitions_are_read_again() -> None:
    broker = Broker()
    broker.lagging.add(A0)
    session, _ = broker.fetch(0, 0, A0, A1)
    assert broker.fetch(session, 1) == (session, [])
    assert broker.read == [A0]
    broker.lagging.clear()
    broker.fetch(session, 2)
    broker.fetch(session, 3)
    assert broker.read == []


def test_partitions_with_records_move_to_the_end() -> None:
    broker = Broker()
    broker.records = {A0: 10, A1: 10, B0: 10}
    session, _ = broker.fetch(0, 0, A0, A1, B0)
    broker.records = {A0: 10}
    broker.fetch(session, 1)
    assert broker.read == [A0, A1, B0]
    broker.fetch(session, 2, A1, B0)
    assert broker.read == [A1, B0, A0]


def test_a_late_answered_poll_has_invalid_fetch_session_epoch() -> None:
    broker = Broker()
    session, _ = broker.fetch(0, 0, A0)
    waiting = broker.open(session, 1)
    assert broker.fetch(session, 2) == (session, [])
    assert isinstance(waiting, IncrementalFetch)
    broker.answer(waiting)
    assert waiting.error == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_a_throttled_response_leaves_the_session_unchanged() -> None:
    broker = Broker()
    session, _ = broker.fetch(0, 0, A0)
    broker.high_watermark[A0] = 6
    broker.cache.mark_dirty(Log(), consumers=True, wake_followers=True)
    context = broker.open(session, 1)
    assert isinstance(context, IncrementalFetch)
    assert len(context.choose([broker._answer(wanted) for wanted in context.to_read()])) == 1
    # ... and no commit: the next one says it.
    assert broker.fetch(session, 2) == (session, [A0])


def test_the_name_of_a_topic_may_be_learned_later() -> None:
    broker = Broker()
    del broker.names[IDS["b"]]
    session, named = broker.fetch(0, 0, A0, B0)
    assert named == [A0, ("?", 0)]
    assert broker.fetch(session, 1) == (session, [("?", 0)])
    broker.names[IDS["b"]] = "b"
    assert broker.fetch(session, 2) == (session, [B0])
    assert broker.fetch(session, 3) == (session, [])
    broker.high_watermark[B0] = 6
    broker.cache.mark_dirty(Log("b", 0), consumers=True, wake_followers=True)
    assert broker.fetch(session, 4) == (session, [B0])


def test_a_name_learned_by_an_evicted_session_is_dropped() -> None:
    broker = Broker(slots=1)
    del broker.names[IDS["b"]]
    session, _ = broker.fetch(0, 0, B0)
    late = broker.open(session, 1)
    broker.now_ms += EVICTION_MS + 1
    broker.fetch(0, 0, A0)
    broker.names[IDS["b"]] = "b"
    broker.answer(late)
    assert list(broker.cache.watching) == [A0], "it would be told of news for ever"


def test_forgotten_partitions_notify_no_session() -> None:
    broker = Broker()
    session, _ = broker.fetch(0, 0, A0, A1)
    broker.fetch(session, 1, forget=(A0,))
    assert set(broker.cache.watching) == {A1}
    assert broker.fetch(session, 2, forget=(A1,)) == (NO_SESSION, [])
    assert broker.cache.watching == {}
    assert broker.open(session, 3) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_the_epoch_wraps_to_one() -> None:
    broker = Broker()
    session, _ = broker.fetch(0, 0, A0)
    broker.cache._sessions[session].epoch = 0x7FFFFFFF
    broker.fetch(session, 0x7FFFFFFF)
    assert broker.fetch(session, 1) == (session, [])


# --- followers ---------------------------------------------------------------------------------------


def test_fetches_of_an_idle_follower_reach_the_leader_late() -> None:
    broker = Broker()
    session, _ = broker.fetch(0, 0, A0, replica_id=7)
    for epoch in range(1, 4):
        broker.now_ms += 500
        broker.fetch(session, epoch, replica_id=7)
    log = Log()
    broker.now_ms += 400
    broker.cache.mark_dirty(log, consumers=False, wake_followers=True)
    broker.cache.mark_dirty(log, consumers=False, wake_followers=True)
    assert log.notified == [(7, broker.now_ms - 400)], "once, and the time of its last poll"


def test_appends_wake_followers_and_high_watermarks_wake_consumers() -> None:
    broker = Broker()
    woken: dict[str, Poll] = {}
    for name, replica_id in (("follower", 7), ("consumer", -1)):
        session, _ = broker.fetch(0, 0, A0, replica_id=replica_id)
        context = broker.open(session, 1, replica_id=replica_id)
        assert isinstance(context, IncrementalFetch)
        woken[name] = context.session.waiting = Poll()
    appended = broker.cache.mark_dirty(Log(), consumers=False, wake_followers=True)
    advanced = broker.cache.mark_dirty(Log(), consumers=True, wake_followers=False)
    assert appended == [woken["follower"]]
    assert advanced == [woken["consumer"]]


@pytest.mark.parametrize("end", ["evicted", "begun anew", "forgotten"])
def test_the_end_of_a_session_records_the_last_fetch_of_an_idle_follower(end: str) -> None:
    """The follower's last recorded fetch may be hours old: the next records must not find it lagging since
    then."""
    broker = Broker(slots=1)
    log = Log()
    broker.cache.find = lambda topic, index: log if (topic, index) == A0 else None
    session, _ = broker.fetch(0, 0, A0, A1, replica_id=7)
    for epoch in range(1, 4):
        broker.now_ms += EVICTION_MS // 2
        broker.fetch(session, epoch, replica_id=7)
    polled_ms = broker.now_ms
    broker.now_ms += 400
    match end:
        case "evicted":
            broker.fetch(0, 0, A0, A1, B0, replica_id=8)
            assert broker.open(session, 4) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        case "begun anew":
            broker.open(session, 0, A1, replica_id=7)
        case "forgotten":
            broker.open(session, 4, forget=(A0,), replica_id=7)
    assert log.notified == [(7, polled_ms)]


def test_followers_with_pending_changes_are_not_recorded_as_caught_up() -> None:
    broker = Broker()
    log = Log()
    broker.cache.find = lambda topic, index: log
    broker.lagging.add(A0)
    session, _ = broker.fetch(0, 0, A0, replica_id=7)
    consumers, _ = broker.fetch(0, 0, A1)
    broker.open(session, 0, A0, replica_id=7)
    broker.open(consumers, 0, A1)
    assert log.notified == []


# --- eviction ----------------------------------------------------------------------------------------


def test_no_session_is_evicted_while_all_are_recent() -> None:
    broker = Broker(slots=1)
    session, _ = broker.fetch(0, 0, A0)
    assert broker.fetch(0, 0, A0, A1)[0] == NO_SESSION
    assert broker.fetch(session, 1) == (session, [])


def test_a_session_unused_for_two_minutes_is_evicted_first() -> None:
    broker = Broker(slots=2)
    stale, _ = broker.fetch(0, 0, A0, A1, replica_id=7)
    used, _ = broker.fetch(0, 0, A0)
    broker.now_ms += EVICTION_MS
    broker.fetch(used, 1)
    assert broker.fetch(0, 0, A0)[0] == NO_SESSION
    assert broker.cache.evictions == 0
    broker.now_ms += 1
    assert broker.fetch(0, 0, A0)[0] != NO_SESSION
    assert broker.cache.evictions == 1
    assert broker.cache.cached_partitions() == 2
    assert broker.open(stale, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_follower_evicts_the_smallest_of_the_consumers() -> None:
    broker = Broker(slots=2)
    big, _ = broker.fetch(0, 0, A0, A1)
    small, _ = broker.fetch(0, 0, A0)
    follower, _ = broker.fetch(0, 0, A0, replica_id=7)
    assert follower != NO_SESSION
    assert broker.open(small, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    broker.fetch(0, 0, A0, replica_id=8)
    assert broker.open(big, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert broker.fetch(0, 0, A0, replica_id=9)[0] == NO_SESSION, "followers are left, and young"


@pytest.mark.parametrize(("size", "evicts"), [(1, False), (2, False), (3, True)])
def test_a_larger_session_evicts_an_older_smaller_one(size: int, evicts: bool) -> None:
    broker = Broker(slots=1)
    old, _ = broker.fetch(0, 0, A0, A1)
    for epoch in range(1, 4):
        broker.now_ms += EVICTION_MS // 2
        broker.fetch(old, epoch)
    new, _ = broker.fetch(0, 0, *[("a", index) for index in range(size)])
    assert (new != NO_SESSION) == evicts


def test_a_broker_without_slots_makes_no_sessions() -> None:
    broker = Broker(slots=0)
    assert broker.fetch(0, 0, A0) == (NO_SESSION, [A0])
    assert isinstance(broker.open(0, -1, A0), FullFetch)


def test_a_poll_of_an_evicted_session_is_answered() -> None:
    broker = Broker(slots=1)
    orphans: list[FetchWatcher] = []
    broker.cache.on_orphan = orphans.append
    session, _ = broker.fetch(0, 0, A0)
    context = broker.open(session, 1)
    assert isinstance(context, IncrementalFetch)
    poll = context.session.waiting = Poll()
    broker.fetch(0, 0, A0, replica_id=7)
    assert orphans == [poll]


# --- how many partitions ----------------------------------------------------------------------------


def some(count: int, topic: str = "a") -> list[tuple[str, int]]:
    return [(topic, index) for index in range(count)]


def test_a_consumer_with_too_many_partitions_is_answered_without_a_session() -> None:
    broker = Broker(partitions_max=50)
    session, named = broker.fetch(0, 0, *some(11))
    assert session == NO_SESSION
    assert len(named) == 11
    assert not broker.cache.watching
    session, _ = broker.fetch(0, 0, *some(10))
    assert session != NO_SESSION


def test_a_session_that_grows_too_large_is_closed() -> None:
    broker = Broker(partitions_max=50)
    session, _ = broker.fetch(0, 0, *some(8))
    assert broker.open(session, 1, *some(3, "b")) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(broker.cache) == 0
    assert broker.cache.partitions == 0
    assert not broker.cache.watching


def test_the_partitions_of_all_consumer_sessions_are_limited_and_stale_sessions_are_evicted() -> None:
    broker = Broker(partitions_max=50)
    first, *_ = [broker.fetch(0, 0, *some(10))[0] for _ in range(5)]
    assert broker.cache.partitions == 50
    assert broker.fetch(0, 0, A0)[0] == NO_SESSION
    # One that forgets a partition makes room for one.
    broker.fetch(first, 1, forget=(A0,))
    assert broker.cache.partitions == 49
    another, _ = broker.fetch(0, 0, A0)
    assert another != NO_SESSION
    broker.now_ms += EVICTION_MS + 1
    broker.fetch(another, 1)
    assert broker.fetch(0, 0, *some(10))[0] != NO_SESSION
    assert broker.cache.partitions <= 50


def test_followers_have_as_many_partitions_as_they_follow() -> None:
    broker = Broker(partitions_max=50)
    session, _ = broker.fetch(0, 0, *some(500), replica_id=1)
    assert session != NO_SESSION
    assert broker.cache.partitions == 0
    assert broker.fetch(session, 1, *some(500, "b"), replica_id=1)[0] == session


def test_a_fetch_of_many_changed_partitions_serves_them_in_turn() -> None:
    broker = Broker()
    count = READ_MAX + 10
    session, _ = broker.fetch(0, 0, *some(count))
    for index in range(count):
        broker.cache.mark_dirty(Log("a", index), consumers=True, wake_followers=False)
    context = broker.open(session, 1)
    assert isinstance(context, IncrementalFetch)
    broker.answer(context)
    assert context.has_more
    assert len(broker.read) == READ_MAX
    context = broker.open(session, 2)
    assert isinstance(context, IncrementalFetch)
    broker.answer(context)
    assert not context.has_more
    assert sorted(broker.read) == some(count)[READ_MAX:]
