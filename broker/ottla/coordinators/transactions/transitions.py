"""The transaction state machine: a table from (state, event) to a rule, which returns the next transaction
and effects.

Called by `coordinator`, which applies the effects in order and reports the result of a write as the next
event. Pure: the time is an argument, wall time in ms.

Theory of operation: a rule that changes the transaction sets the change as `pending` and returns `Write`;
`Stored` applies it. While a change is pending, requests get CONCURRENT_TRANSACTIONS and are retried. After
Prepare… is stored, Complete… is pending, and is written once every partition is `Marked`: a transaction has a
pending change from the start of its end until it is complete. Fencing a producer with an open transaction
aborts the transaction with the next epoch. No producer gets that epoch: the new producer retries, and gets
the epoch after it (KIP-360, KIP-588).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

from ottla.coordinators.transactions.transaction import (
    LAST_EPOCH,
    NO_EPOCH,
    NOT_STARTED,
    TRANSITIONS,
    Entry,
    State,
    TopicPartition,
    Transaction,
)
from ottla.protocol.errors import ErrorCode

# -- events ----------------------------------------------------------------------------------------------


class Init(NamedTuple):
    """InitProducerId."""

    timeout_ms: int
    given: tuple[int, int] | None
    """The producer's current id and epoch, if it continues after an error (KIP-360)."""
    fresh_producer_id: int | None = None
    """A new producer id, if a previous `Init` returned `NeedProducerId`."""


class Add(NamedTuple):
    """AddPartitionsToTxn, AddOffsetsToTxn: the producer will write to these partitions."""

    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]


class End(NamedTuple):
    """EndTxn: the producer commits or aborts."""

    producer_id: int
    producer_epoch: int
    commit: bool


class TimedOut(NamedTuple):
    """Periodic: abort the transaction if it has exceeded its timeout."""


class Expired(NamedTuple):
    """Periodic: remove the id if it was not used for this time (transactional.id.expiration.ms)."""

    expiration_ms: int


class Loaded(NamedTuple):
    """This broker became the coordinator and loaded the transaction from the log."""


class Stored(NamedTuple):
    """The record of the last write is replicated."""


class NotStored(NamedTuple):
    """The last write failed, or its result is unknown."""

    error: ErrorCode


class Marked(NamedTuple):
    """The markers of these partitions are written, or no longer needed."""

    partitions: frozenset[TopicPartition]


Event: TypeAlias = Init | Add | End | TimedOut | Expired | Loaded | Stored | NotStored | Marked

# -- effects ---------------------------------------------------------------------------------------------


class Respond(NamedTuple):
    """Complete the response. NONE is success."""

    error: ErrorCode


class Write(NamedTuple):
    """Append the pending entry to the log, and report Stored or NotStored."""

    entry: Entry


class WriteLater(NamedTuple):
    """Append the pending entry after a delay, because the previous attempt failed."""

    entry: Entry


class WriteTombstone(NamedTuple):
    """Append a tombstone, and report Stored, which removes the transaction, or NotStored."""


class SendMarkers(NamedTuple):
    """Have markers written to these partitions, and report them Marked."""

    commit: bool
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]


class NeedProducerId(NamedTuple):
    """Repeat the `Init` with a new producer id."""


Effect: TypeAlias = Respond | Write | WriteLater | WriteTombstone | SendMarkers | NeedProducerId
Step: TypeAlias = tuple[Transaction, list[Effect]]


def step(transaction: Transaction, event: Event, now_ms: int) -> Step:
    """The transaction after the event, and the effects."""
    check = _CHECKS.get(type(event))
    if check is not None:
        error = check(transaction, event)
        if error is not None:
            return transaction, [Respond(error)]
    rule = _TABLE[type(event)].get(transaction.entry.state, _nothing)
    return rule(transaction, event, now_ms)


def _nothing(transaction: Transaction, event: Event, now_ms: int) -> Step:
    return transaction, []


def _reject(error: ErrorCode) -> Callable[[Transaction, Any, int], Step]:
    return lambda transaction, event, now_ms: (transaction, [Respond(error)])


def _write(transaction: Transaction, entry: Entry) -> Step:
    assert transaction.pending is None
    assert entry.state in TRANSITIONS[transaction.entry.state], (transaction, entry)
    return replace(transaction, pending=entry), [Write(entry)]


# -- checks of the producer ------------------------------------------------------------------------------


def _check_init(transaction: Transaction, event: Init) -> ErrorCode | None:
    if transaction.pending is not None:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    entry = transaction.entry
    if event.given is None or entry.producer_epoch == NO_EPOCH or event.given[0] == entry.producer_id:
        return None
    # The response with its next producer id may have been lost.
    given_id, given_epoch = event.given
    if given_id == entry.last_producer_id and given_epoch >= LAST_EPOCH:
        return None
    return ErrorCode.PRODUCER_FENCED


def check_producer(transaction: Transaction, producer_id: int, producer_epoch: int) -> ErrorCode | None:
    """The error of a producer that is not the current one of the transactional id; None for the current
    one."""
    if producer_id != transaction.entry.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if producer_epoch != transaction.entry.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    return None


def _check_request(transaction: Transaction, event: Add | End) -> ErrorCode | None:
    error = check_producer(transaction, event.producer_id, event.producer_epoch)
    if error is None and transaction.pending is not None:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return error


# -- rules -----------------------------------------------------------------------------------------------


def _init(transaction: Transaction, event: Init, now_ms: int) -> Step:
    """Write the next epoch of the producer id, or epoch 0 of a new producer id."""
    entry = transaction.entry
    given_epoch = None if event.given is None else event.given[1]
    producer_id, epoch, last_epoch = entry.producer_id, entry.producer_epoch + 1, NO_EPOCH
    if entry.is_exhausted:
        if given_epoch is not None and given_epoch != entry.producer_epoch:
            return transaction, [Respond(ErrorCode.UNKNOWN_SERVER_ERROR)]
        if event.fresh_producer_id is None:
            return transaction, [NeedProducerId()]
        producer_id, epoch = event.fresh_producer_id, 0
        last_epoch = NO_EPOCH if given_epoch is None else entry.producer_epoch
    elif given_epoch is not None:
        if entry.producer_epoch in (NO_EPOCH, given_epoch):
            last_epoch = entry.producer_epoch
        elif given_epoch == entry.last_producer_epoch:
            # The response was lost, and no other producer used the id since: that would have set -1 here.
            epoch, last_epoch = entry.producer_epoch, entry.last_producer_epoch
        else:
            return transaction, [Respond(ErrorCode.PRODUCER_FENCED)]
    return _write(
        transaction,
        Entry(
            producer_id,
            epoch,
            event.timeout_ms,
            State.EMPTY,
            frozenset(),
            NOT_STARTED,
            now_ms,
            entry.producer_id,
            last_epoch,
        ),
    )


def _fence(transaction: Transaction, event: Init | TimedOut, now_ms: int) -> Step:
    """Abort with the next epoch, which no producer gets. The request is retried after the abort."""
    entry = transaction.entry
    epoch = entry.producer_epoch if transaction.fencing else entry.producer_epoch + 1
    fenced = replace(entry, producer_epoch=epoch, last_producer_epoch=NO_EPOCH)
    # The old epoch is fenced from now on, also if the write of the abort fails.
    transaction = replace(transaction, entry=fenced, fencing=True)
    return _write(transaction, replace(fenced, state=State.PREPARE_ABORT, updated_ms=now_ms))


def _fence_if_timed_out(transaction: Transaction, event: TimedOut, now_ms: int) -> Step:
    entry = transaction.entry
    if transaction.pending is not None or entry.started_ms + entry.timeout_ms >= now_ms:
        return transaction, []
    return _fence(transaction, event, now_ms)


def _begin(transaction: Transaction, event: Add, now_ms: int) -> Step:
    return _write(
        transaction,
        replace(
            transaction.entry,
            state=State.ONGOING,
            partitions=event.partitions,
            started_ms=now_ms,
            updated_ms=now_ms,
        ),
    )


def _add(transaction: Transaction, event: Add, now_ms: int) -> Step:
    entry = transaction.entry
    if event.partitions <= entry.partitions:
        return transaction, [Respond(ErrorCode.NONE)]
    partitions = entry.partitions | event.partitions
    return _write(transaction, replace(entry, partitions=partitions, updated_ms=now_ms))


def _end(transaction: Transaction, event: End, now_ms: int) -> Step:
    state = State.PREPARE_COMMIT if event.commit else State.PREPARE_ABORT
    return _write(transaction, replace(transaction.entry, state=state, updated_ms=now_ms))


def _repeat_end(*, committed: bool, error: ErrorCode) -> Callable[[Transaction, End, int], Step]:
    """A repeated request gets `error`; one with the other outcome gets INVALID_TXN_STATE."""

    def rule(transaction: Transaction, event: End, now_ms: int) -> Step:
        same = event.commit == committed
        return transaction, [Respond(error if same else ErrorCode.INVALID_TXN_STATE)]

    return rule


def _expire(transaction: Transaction, event: Expired, now_ms: int) -> Step:
    entry = transaction.entry
    if transaction.pending is not None or entry.updated_ms > now_ms - event.expiration_ms:
        return transaction, []
    return replace(transaction, pending=replace(entry, state=State.DEAD)), [WriteTombstone()]


def _stored(transaction: Transaction, event: Stored, now_ms: int) -> Step:
    entry, before = transaction.pending, transaction.entry
    assert entry is not None
    if entry.state is State.EMPTY:
        # As Kafka, keep the start time of the last transaction.
        entry = replace(entry, started_ms=before.started_ms)
    stored = replace(transaction, entry=entry, pending=None)
    if entry.state not in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
        return stored, [Respond(ErrorCode.NONE)]
    error = ErrorCode.CONCURRENT_TRANSACTIONS if transaction.fencing else ErrorCode.NONE
    prepared, effects = _send_markers(stored, Loaded(), now_ms)
    return prepared, [Respond(error), *effects]


def _send_markers(transaction: Transaction, event: Loaded, now_ms: int) -> Step:
    """Send the markers of a prepared transaction; its outcome can no longer change."""
    entry = transaction.entry
    commit = entry.state is State.PREPARE_COMMIT
    complete = replace(
        entry,
        state=State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT,
        partitions=frozenset(),
        updated_ms=now_ms,
    )
    completing = replace(transaction, pending=complete, fencing=False)
    if not entry.partitions:
        return completing, [Write(complete)]
    return completing, [SendMarkers(commit, entry.producer_id, entry.producer_epoch, entry.partitions)]


def _marked(transaction: Transaction, event: Marked, now_ms: int) -> Step:
    entry, complete = transaction.entry, transaction.pending
    assert complete is not None
    assert complete.state in TRANSITIONS[entry.state]
    if not entry.partitions:
        return transaction, []  # The record of the completion is being written.
    rest = entry.partitions - event.partitions
    return replace(transaction, entry=replace(entry, partitions=rest)), [] if rest else [Write(complete)]


def _not_stored(transaction: Transaction, event: NotStored, now_ms: int) -> Step:
    """Retry the write of a completion. All other changes are dropped; the request gets the error."""
    entry = transaction.pending
    assert entry is not None
    if entry.state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT):
        return transaction, [WriteLater(entry)]
    return replace(transaction, pending=None), [Respond(event.error)]


_Rule: TypeAlias = Callable[[Transaction, Any, int], Step]

_NOT_OPEN: Final = (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
_PREPARED: Final = (State.PREPARE_COMMIT, State.PREPARE_ABORT)
_CONCURRENT: Final = _reject(ErrorCode.CONCURRENT_TRANSACTIONS)
_INVALID: Final = _reject(ErrorCode.INVALID_TXN_STATE)

_CHECKS: Final[dict[type[Any], Callable[[Transaction, Any], ErrorCode | None]]] = {
    Init: _check_init,
    Add: _check_request,
    End: _check_request,
}

_TABLE: Final[dict[type[Any], dict[State, _Rule]]] = {
    Init: {**dict.fromkeys(_NOT_OPEN, _init), State.ONGOING: _fence, **dict.fromkeys(_PREPARED, _CONCURRENT)},
    Add: {**dict.fromkeys(_NOT_OPEN, _begin), State.ONGOING: _add, **dict.fromkeys(_PREPARED, _CONCURRENT)},
    End: {
        State.EMPTY: _INVALID,
        State.ONGOING: _end,
        State.PREPARE_COMMIT: _repeat_end(committed=True, error=ErrorCode.CONCURRENT_TRANSACTIONS),
        State.PREPARE_ABORT: _repeat_end(committed=False, error=ErrorCode.CONCURRENT_TRANSACTIONS),
        State.COMPLETE_COMMIT: _repeat_end(committed=True, error=ErrorCode.NONE),
        State.COMPLETE_ABORT: _repeat_end(committed=False, error=ErrorCode.NONE),
    },
    TimedOut: {State.ONGOING: _fence_if_timed_out},
    Expired: dict.fromkeys(_NOT_OPEN, _expire),
    Loaded: dict.fromkeys(_PREPARED, _send_markers),
    Stored: dict.fromkeys(State, _stored),
    NotStored: dict.fromkeys(State, _not_stored),
    Marked: dict.fromkeys(_PREPARED, _marked),
}
"""A pair of event and state without a rule changes nothing."""
