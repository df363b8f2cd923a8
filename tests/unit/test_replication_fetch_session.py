"""A follower's fetch session and its leader's session always have the same partitions."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.ports import OS_RANDOM
from ottla.protocol import codec
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import FetchRequest, FetchResponse
from ottla.replication.fetch_session import FetchSessionHandler
from ottla.server.dispatch.fetch_sessions import FetchSessionCache
from ottla.server.handlers.fetch.response import FetchedPartition, by_topic

Key = tuple[str, int]
TOPICS = {UUID(int=1): "a", UUID(int=2): "b", UUID(int=3): "a"}
"""Topic a was deleted and made again."""


def asked(partition: int, offset: int = 0) -> FetchRequest.FetchPartition:
    return FetchRequest.FetchPartition(partition=partition, fetch_offset=offset, current_leader_epoch=1)


def answer_to(*keys: Key, session_id: int = 5, error: ErrorCode = ErrorCode.NONE) -> FetchResponse:
    ids = {"a": UUID(int=1), "b": UUID(int=2)}
    return FetchResponse(
        error_code=error,
        session_id=session_id,
        responses=[
            FetchResponse.FetchableTopicResponse(
                topic=topic,
                topic_id=ids[topic],
                partitions=[FetchResponse.PartitionData(partition_index=partition)],
            )
            for topic, partition in keys
        ],
    )


def established(*keys: Key) -> FetchSessionHandler:
    """A session of `keys` after its first response."""
    session = FetchSessionHandler(1)
    assert session.begin(by_topic_id=True)
    for topic, partition in keys:
        session.add((topic, partition), UUID(int=1 if topic == "a" else 2), asked(partition))
    request = session.request()
    assert request is not None
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert session.accept(answer_to(*keys)) is not None
    return session


def test_unchanged_partitions_are_not_sent_again() -> None:
    session = established(("a", 0), ("a", 1))
    assert not session.begin(by_topic_id=True)
    session.add(("a", 0), UUID(int=1), asked(0))
    session.add(("a", 1), UUID(int=1), asked(1, 7))
    session.add(("b", 0), UUID(int=2), asked(0))
    request = session.request()
    assert request is not None
    assert (request.session_id, request.session_epoch) == (5, 1)
    assert [(t.topic, [p.partition for p in t.partitions]) for t in request.topics] == [
        ("a", [1]),
        ("b", [0]),
    ]
    assert session.accept(answer_to()) == []


def test_a_topic_created_again_is_forgotten_under_its_old_id() -> None:
    session = established(("a", 0))
    session.begin(by_topic_id=True)
    session.add(("a", 0), UUID(int=3), asked(0))
    request = session.request()
    assert request is not None
    assert [t.topic_id for t in request.topics] == [UUID(int=3)]
    assert [(t.topic_id, t.partitions) for t in request.forgotten_topics_data] == [(UUID(int=1), [0])]


@pytest.mark.parametrize(
    ("error", "session_id"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 5),
        (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 5),
        (ErrorCode.UNKNOWN_SERVER_ERROR, 5),
    ],
)
def test_after_an_error_a_full_request_follows(error: ErrorCode, session_id: int) -> None:
    session = established(("a", 0))
    session.begin(by_topic_id=True)
    assert session.accept(answer_to(error=error, session_id=0)) is None
    assert session.begin(by_topic_id=True), "full"
    session.add(("a", 0), UUID(int=1), asked(0))
    request = session.request()
    assert request is not None
    assert (request.session_id, request.session_epoch) == (session_id, 0)
    assert len(request.topics) == 1


def test_a_response_about_other_partitions_is_refused() -> None:
    session = established(("a", 0))
    session.begin(by_topic_id=True)
    assert session.accept(answer_to(("b", 0))) is None
    assert session.begin(by_topic_id=True)


def test_a_full_response_must_have_all_partitions() -> None:
    session = FetchSessionHandler(1)
    session.begin(by_topic_id=True)
    session.add(("a", 0), UUID(int=1), asked(0))
    session.add(("a", 1), UUID(int=1), asked(1))
    assert session.accept(answer_to(("a", 0))) is None


def test_without_a_session_every_request_is_full() -> None:
    session = established(("a", 0))
    session.begin(by_topic_id=True)
    assert session.accept(answer_to(session_id=0)) == []
    assert session.begin(by_topic_id=True)
    assert session.id == 0


def test_a_change_between_names_and_ids_starts_another_session() -> None:
    session = established(("a", 0))
    assert session.begin(by_topic_id=False), "full"
    session.add(("a", 0), None, asked(0))
    request = session.request()
    assert request is not None
    assert (request.session_id, request.session_epoch) == (5, 0)
    assert session.accept(answer_to(("a", 0), session_id=6)) is not None
    assert not session.begin(by_topic_id=False)


class Both:
    """A follower's session and its leader's, joined by the codec."""

    def __init__(self) -> None:
        self.leader = FetchSessionCache(OS_RANDOM, 4)
        self.session = FetchSessionHandler(1)
        self.followed: dict[Key, tuple[UUID, int]] = {}
        self.changed: set[Key] = set()

    def round(self, *, version: int, lost: bool) -> None:
        full = self.session.begin(by_topic_id=version >= 13)
        for key in list(self.followed) if full else sorted(self.changed):
            if key in self.followed:
                topic_id, offset = self.followed[key]
                self.session.add(key, topic_id, asked(key[1], offset))
            else:
                self.session.remove(key)
        self.changed.clear()
        request = self.session.request()
        if request is None:
            return
        received = codec.decode(FetchRequest, version, codec.encode(request, version))
        response = self._serve(received, version)
        if lost:
            self.session.restart()
            return
        answers = self.session.accept(response)
        if answers is None:
            assert response.error_code
        elif self.followed:
            self._compare(version)

    def _serve(self, request: FetchRequest, version: int) -> FetchResponse:
        context = self.leader.open(request, version, replica_id=2, name_of=TOPICS.get, now_ms=0)
        if isinstance(context, ErrorCode):
            return FetchResponse(error_code=context)
        answers = [FetchedPartition(w, ErrorCode.NONE, 1, 1, 0, caught_up=True) for w in context.to_read()]
        chosen = context.choose(answers)
        context.commit(answers, 0)
        return FetchResponse(
            session_id=context.session_id,
            responses=[
                FetchResponse.FetchableTopicResponse(
                    topic=name,
                    topic_id=topic_id,
                    partitions=[FetchResponse.PartitionData(partition_index=row.index) for row in rows],
                )
                for name, topic_id, rows in by_topic(chosen)
            ],
        )

    def _compare(self, version: int) -> None:
        there = self.leader._sessions[self.session.id].partitions.values()
        seen = {((w.topic or "?"), w.asked.partition): (w.topic_id.int, w.asked.fetch_offset) for w in there}
        assert len(seen) == len(there)
        wanted = {
            key: (topic_id.int if version >= 13 else 0, offset)
            for key, (topic_id, offset) in self.followed.items()
        }
        assert seen == wanted


keys = st.sampled_from([("a", 0), ("a", 1), ("b", 0), ("b", 1)])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("follow"), keys, st.integers(0, 3)),
        st.tuples(st.just("recreate"), keys, st.integers(0, 3)),
        st.tuples(st.just("leave"), keys, st.just(0)),
        st.tuples(st.just("round"), st.sampled_from([12, 16]), st.integers(0, 9)),
        st.tuples(st.just("evict"), st.just(("", 0)), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(steps)
def test_leader_and_follower_have_the_same_partitions(scenario: list[tuple[str, object, int]]) -> None:
    both = Both()
    for what, subject, number in [*scenario, ("round", 16, 1), ("round", 16, 1), ("round", 16, 1)]:
        if what == "round":
            assert isinstance(subject, int)
            both.round(version=subject, lost=number == 0)
        elif what == "evict":
            for session in list(both.leader._sessions.values()):
                both.leader._remove(session)
        else:
            assert isinstance(subject, tuple)
            if what == "leave":
                both.followed.pop(subject, None)
            else:
                topic_id = UUID(int=2) if subject[0] == "b" else UUID(int=3 if what == "recreate" else 1)
                both.followed[subject] = (topic_id, number)
            both.changed.add(subject)
