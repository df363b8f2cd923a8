"""State transitions of a transaction, event by event, with the responses of Apache Kafka 3.9."""

from __future__ import annotations

import pytest

from ottla.coordinators.transactions import records
from ottla.coordinators.transactions.transaction import (
    LAST_EPOCH,
    TRANSITIONS,
    Entry,
    State,
    Transaction,
    created,
)
from ottla.coordinators.transactions.transitions import (
    Add,
    Effect,
    End,
    Event,
    Expired,
    Init,
    Loaded,
    Marked,
    NeedProducerId,
    NotStored,
    Respond,
    SendMarkers,
    Stored,
    TimedOut,
    Write,
    WriteLater,
    WriteTombstone,
    step,
)
from ottla.protocol.errors import ErrorCode

NOW = 1_000_000
PID, EPOCH = 7, 3
A, B = ("t", 0), ("t", 1)
BOTH = frozenset({A, B})


def transaction(state: State, *, epoch: int = EPOCH, pending: Entry | None = None) -> Transaction:
    partitions = BOTH if state in (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT) else frozenset()
    entry = Entry(PID, epoch, 60_000, state, partitions, NOW - 500, NOW - 100)
    return Transaction("tid", entry, pending)


def written(effects: list[Effect]) -> Entry:
    assert len(effects) == 1, effects
    assert isinstance(effects[0], Write), effects
    return effects[0].entry


def refused(state: State, event: Event) -> ErrorCode:
    before = transaction(state)
    after, effects = step(before, event, NOW)
    assert after == before, "a refusal changes nothing"
    assert len(effects) == 1
    assert isinstance(effects[0], Respond), effects
    return effects[0].error


OVER = (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
PREPARED = (State.PREPARE_COMMIT, State.PREPARE_ABORT)
LIVE = (*OVER, State.ONGOING, *PREPARED)
EVENTS: tuple[Event, ...] = (
    Init(1, None),
    Add(PID, EPOCH, BOTH),
    End(PID, EPOCH, True),
    TimedOut(),
    Expired(0),
)


@pytest.mark.parametrize("state", LIVE)
def test_every_transition_is_in_the_diagram(state: State) -> None:
    for event in (*EVENTS, Loaded()):
        after, effects = step(transaction(state), event, NOW + 10**9)
        if after.pending is not None:
            assert after.pending.state in TRANSITIONS[state], event
        assert effects or after == transaction(state), "what changes has an effect"


@pytest.mark.parametrize("state", LIVE)
def test_requests_during_an_append_get_concurrent_transactions(state: State) -> None:
    before = transaction(state, pending=transaction(State.ONGOING).entry)
    for event in EVENTS[:3]:
        assert step(before, event, NOW) == (before, [Respond(ErrorCode.CONCURRENT_TRANSACTIONS)])
    for event in EVENTS[3:]:
        assert step(before, event, NOW + 10**9) == (before, [])


@pytest.mark.parametrize("state", LIVE)
def test_another_producer_is_refused(state: State) -> None:
    for producer_id, epoch, error in (
        (PID + 1, EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (PID, EPOCH - 1, ErrorCode.PRODUCER_FENCED),
        (PID, EPOCH + 1, ErrorCode.PRODUCER_FENCED),
    ):
        assert refused(state, Add(producer_id, epoch, BOTH)) is error
        assert refused(state, End(producer_id, epoch, commit=True)) is error


@pytest.mark.parametrize(
    ("state", "commit", "answer"),
    [
        (State.EMPTY, True, ErrorCode.INVALID_TXN_STATE),
        (State.EMPTY, False, ErrorCode.INVALID_TXN_STATE),
        (State.PREPARE_COMMIT, True, ErrorCode.CONCURRENT_TRANSACTIONS),
        (State.PREPARE_COMMIT, False, ErrorCode.INVALID_TXN_STATE),
        (State.PREPARE_ABORT, False, ErrorCode.CONCURRENT_TRANSACTIONS),
        (State.PREPARE_ABORT, True, ErrorCode.INVALID_TXN_STATE),
        (State.COMPLETE_COMMIT, True, ErrorCode.NONE),
        (State.COMPLETE_COMMIT, False, ErrorCode.INVALID_TXN_STATE),
        (State.COMPLETE_ABORT, False, ErrorCode.NONE),
        (State.COMPLETE_ABORT, True, ErrorCode.INVALID_TXN_STATE),
    ],
)
def test_end_txn_without_an_ongoing_transaction(state: State, commit: bool, answer: ErrorCode) -> None:
    assert refused(state, End(PID, EPOCH, commit)) is answer


@pytest.mark.parametrize("state", PREPARED)
def test_requests_wait_for_a_prepared_transaction(state: State) -> None:
    assert refused(state, Init(60_000, None)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert refused(state, Add(PID, EPOCH, BOTH)) is ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize("state", OVER)
def test_the_first_partitions_begin_a_transaction(state: State) -> None:
    _, effects = step(transaction(state), Add(PID, EPOCH, BOTH), NOW)
    entry = written(effects)
    assert (entry.state, entry.partitions) == (State.ONGOING, BOTH)
    assert (entry.started_ms, entry.updated_ms) == (NOW, NOW)


def test_partitions_are_added_and_known_ones_cause_no_append() -> None:
    _, effects = step(transaction(State.ONGOING), Add(PID, EPOCH, frozenset({("u", 0)})), NOW)
    entry = written(effects)
    assert entry.partitions == BOTH | {("u", 0)}
    assert entry.started_ms == NOW - 500, "it began before"
    assert refused(State.ONGOING, Add(PID, EPOCH, frozenset({A}))) is ErrorCode.NONE


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_is_prepared_then_marked_then_complete(commit: bool) -> None:
    prepared, complete = (
        (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)
        if commit
        else (State.PREPARE_ABORT, State.COMPLETE_ABORT)
    )
    now, effects = step(transaction(State.ONGOING), End(PID, EPOCH, commit), NOW)
    assert written(effects).state is prepared
    now, effects = step(now, Stored(), NOW)
    assert effects == [Respond(ErrorCode.NONE), SendMarkers(commit, PID, EPOCH, BOTH)]
    now, effects = step(now, Marked(frozenset({A})), NOW)
    assert (effects, now.entry.partitions) == ([], {B})
    now, effects = step(now, Marked(frozenset({B})), NOW + 5)
    entry = written(effects)
    assert (entry.state, entry.partitions) == (complete, frozenset())
    assert step(now, Marked(BOTH), NOW) == (now, []), "a marker that was sent twice"
    now, effects = step(now, NotStored(ErrorCode.COORDINATOR_NOT_AVAILABLE), NOW)
    assert effects == [WriteLater(entry)], "there is no way back"
    now, effects = step(now, Stored(), NOW)
    assert (now.entry.state, now.pending) == (complete, None)


def test_a_failed_end_may_be_retried() -> None:
    before = transaction(State.ONGOING)
    now, _ = step(before, End(PID, EPOCH, commit=True), NOW)
    after = step(now, NotStored(ErrorCode.COORDINATOR_NOT_AVAILABLE), NOW)
    assert after == (before, [Respond(ErrorCode.COORDINATOR_NOT_AVAILABLE)])


def test_a_new_coordinator_continues_a_prepared_transaction() -> None:
    for state in PREPARED:
        now, effects = step(transaction(state), Loaded(), NOW)
        assert effects == [SendMarkers(state is State.PREPARE_COMMIT, PID, EPOCH, BOTH)]
        assert now.pending is not None
    for state in (*OVER, State.ONGOING):
        assert step(transaction(state), Loaded(), NOW) == (transaction(state), [])


class TestInit:
    def epochs(self, state: Transaction, event: Init) -> tuple[int, int, int]:
        """Of the written record: producer id, epoch, last epoch."""
        _, effects = step(state, event, NOW)
        entry = written(effects)
        assert (entry.state, entry.partitions, entry.started_ms) == (State.EMPTY, frozenset(), -1)
        assert entry.timeout_ms == event.timeout_ms
        return entry.producer_id, entry.producer_epoch, entry.last_producer_epoch

    def test_the_first_epoch_is_0_and_each_init_increments_it(self) -> None:
        first = created("tid", producer_id=PID, timeout_ms=1, now_ms=NOW)
        assert self.epochs(first, Init(9, None)) == (PID, 0, -1)
        for state in OVER:
            assert self.epochs(transaction(state), Init(9, None)) == (PID, EPOCH + 1, -1)

    def test_a_producer_that_continues_after_an_error_keeps_its_id(self) -> None:
        assert self.epochs(transaction(State.EMPTY), Init(9, (PID, EPOCH))) == (PID, EPOCH + 1, EPOCH)
        assert refused(State.EMPTY, Init(9, (PID, EPOCH - 1))) is ErrorCode.PRODUCER_FENCED
        assert refused(State.EMPTY, Init(9, (PID + 1, EPOCH))) is ErrorCode.PRODUCER_FENCED

    def test_a_lost_response_is_repeated(self) -> None:
        now, _ = step(transaction(State.EMPTY), Init(9, (PID, EPOCH)), NOW)
        now, _ = step(now, Stored(), NOW)
        assert self.epochs(now, Init(9, (PID, EPOCH))) == (PID, EPOCH + 1, EPOCH)
        now, _ = step(now, Init(9, None), NOW)
        now, _ = step(now, Stored(), NOW)
        _, effects = step(now, Init(9, (PID, EPOCH)), NOW)
        assert effects == [Respond(ErrorCode.PRODUCER_FENCED)], "another one came in between"

    def test_the_last_epoch_is_followed_by_another_producer_id(self) -> None:
        last = transaction(State.COMPLETE_COMMIT, epoch=LAST_EPOCH)
        assert step(last, Init(9, None), NOW) == (last, [NeedProducerId()])
        assert self.epochs(last, Init(9, None, 8)) == (8, 0, -1)
        assert self.epochs(last, Init(9, (PID, LAST_EPOCH), 8)) == (8, 0, LAST_EPOCH)
        now, _ = step(last, Init(9, (PID, LAST_EPOCH), 8), NOW)
        now, _ = step(now, Stored(), NOW)
        assert self.epochs(now, Init(9, (PID, LAST_EPOCH))) == (8, 0, LAST_EPOCH), "a retry"

    def test_an_open_transaction_is_aborted_under_an_unassigned_epoch(self) -> None:
        now, effects = step(transaction(State.ONGOING), Init(9, None), NOW)
        entry = written(effects)
        assert (entry.state, entry.producer_epoch, entry.timeout_ms) == (
            State.PREPARE_ABORT,
            EPOCH + 1,
            60_000,
        )
        _, effects = step(now, End(PID, EPOCH, commit=True), NOW)
        assert effects == [Respond(ErrorCode.PRODUCER_FENCED)], "from this moment on"
        now, effects = step(now, Stored(), NOW)
        markers = SendMarkers(False, PID, EPOCH + 1, BOTH)
        assert effects == [Respond(ErrorCode.CONCURRENT_TRANSACTIONS), markers]
        now, _ = step(now, Marked(BOTH), NOW)
        now, _ = step(now, Stored(), NOW)
        assert now.entry.state is State.COMPLETE_ABORT
        assert self.epochs(now, Init(9, None)) == (PID, EPOCH + 2, -1)

    def test_a_fence_that_may_not_have_been_written_is_repeated_with_the_same_epoch(self) -> None:
        now, _ = step(transaction(State.ONGOING), Init(9, None), NOW)
        now, effects = step(now, NotStored(ErrorCode.COORDINATOR_NOT_AVAILABLE), NOW)
        assert effects == [Respond(ErrorCode.COORDINATOR_NOT_AVAILABLE)]
        _, effects = step(now, Init(9, None), NOW)
        assert written(effects).producer_epoch == EPOCH + 1


def test_a_transaction_is_aborted_after_its_timeout() -> None:
    before = transaction(State.ONGOING)
    assert step(before, TimedOut(), NOW - 500 + 60_000) == (before, [])
    _, effects = step(before, TimedOut(), NOW - 500 + 60_001)
    entry = written(effects)
    assert (entry.state, entry.producer_epoch) == (State.PREPARE_ABORT, EPOCH + 1)


@pytest.mark.parametrize("state", OVER)
def test_an_unused_id_expires(state: State) -> None:
    before = transaction(state)
    assert step(before, Expired(1000), NOW + 899) == (before, [])
    dying, effects = step(before, Expired(1000), NOW + 900)
    assert effects == [WriteTombstone()]
    assert step(dying, Init(9, None), NOW)[1] == [Respond(ErrorCode.CONCURRENT_TRANSACTIONS)]
    assert step(dying, Stored(), NOW)[0].entry.state is State.DEAD
    assert step(dying, NotStored(ErrorCode.NOT_COORDINATOR), NOW)[0] == before


@pytest.mark.parametrize("state", [*LIVE])
def test_records_survive_a_round_trip(state: State) -> None:
    entry = transaction(state).entry
    assert records.parse_value(records.value_bytes(entry)) == entry
    assert records.parse_key(records.key_bytes("tid")) == "tid"
