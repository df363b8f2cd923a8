"""What happens to a transaction: a table from (state, event) to a rule, which returns the next one, and
effects.

Called by `coordinator`, which carries the effects out in order and reports how writing went, as the next
event. Pure: the time comes in as wall time in ms.

Theory of operation: a rule that changes anything makes the change `pending` and asks to `Write` it; `Stored`
makes it so. While something is pending all others hear CONCURRENT_TRANSACTIONS and come again. After Prepare…
is stored the pending record is that of Complete…, which is written once every partition is `Marked`: so a
transaction is pending from the moment its end is decided until it is over. Fencing a producer that is in the
midst of its transaction is an abort under the next epoch; nobody is given that epoch, and the new producer,
which is told to come again, gets the one after (KIP-360, KIP-588).
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
    """A producer wants to begin under the id (InitProducerId)."""

    timeout_ms: int
    given: tuple[int, int] | None
    """The producer id and epoch that it has, if it goes on after an error (KIP-360)."""
    fresh_producer_id: int | None = None
    """In case one is needed."""


class Add(NamedTuple):
    """The producer is about to write to these (AddPartitionsToTxn, AddOffsetsToTxn)."""

    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]


class End(NamedTuple):
    """The producer commits or aborts (EndTxn)."""

    producer_id: int
    producer_epoch: int
    commit: bool


class TimedOut(NamedTuple):
    """Someone looks whether the transaction has outlived its timeout."""


class Expired(NamedTuple):
    """Someone looks whether nobody used the id for so long (transactional.id.expiration.ms)."""

    expiration_ms: int


class Loaded(NamedTuple):
    """This broker became its coordinator, and read it from the log."""


class Stored(NamedTuple):
    """What was to be written is replicated."""


class NotStored(NamedTuple):
    """What was to be written is not, or not known to be."""

    error: ErrorCode


class Marked(NamedTuple):
    """The markers in these partitions are written, or no longer needed."""

    partitions: frozenset[TopicPartition]


Event: TypeAlias = Init | Add | End | TimedOut | Expired | Loaded | Stored | NotStored | Marked

# -- effects ---------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """Tell who asked. NONE: it is as was asked for."""

    error: ErrorCode


class Write(NamedTuple):
    """Append the pending entry to the log, and report Stored or NotStored."""

    entry: Entry


class WriteLater(NamedTuple):
    """The same, after a while: the log could not take it."""

    entry: Entry


class WriteTombstone(NamedTuple):
    """Append a tombstone, and report Stored (the transaction is no more then) or NotStored."""


class SendMarkers(NamedTuple):
    """Have the outcome written to these partitions, and report them Marked."""

    commit: bool
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]


class NeedProducerId(NamedTuple):
    """Ask again, with a fresh producer id."""


Effect: TypeAlias = Answer | Write | WriteLater | WriteTombstone | SendMarkers | NeedProducerId
Step: TypeAlias = tuple[Transaction, list[Effect]]


def step(transaction: Transaction, event: Event, now_ms: int) -> Step:
    """The transaction after the event, and what there is to do."""
    guard = _GUARDS.get(type(event))
    if guard is not None:
        error = guard(transaction, event)
        if error is not None:
            return transaction, [Answer(error)]
    rule = _TABLE[type(event)].get(transaction.entry.state, _nothing)
    return rule(transaction, event, now_ms)


def _nothing(transaction: Transaction, event: Event, now_ms: int) -> Step:
    return transaction, []


def _refuse(error: ErrorCode) -> Callable[[Transaction, Any, int], Step]:
    return lambda transaction, event, now_ms: (transaction, [Answer(error)])


def _write(transaction: Transaction, entry: Entry) -> Step:
    assert transaction.pending is None
    assert entry.state in TRANSITIONS[transaction.entry.state], (transaction, entry)
    return replace(transaction, pending=entry), [Write(entry)]


# -- who may ask -----------------------------------------------------------------------------------------


def _guard_init(transaction: Transaction, event: Init) -> ErrorCode | None:
    if transaction.pending is not None:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    entry = transaction.entry
    if event.given is None or entry.producer_epoch == NO_EPOCH or event.given[0] == entry.producer_id:
        return None
    # It may have missed the answer by which it got the next producer id.
    given_id, given_epoch = event.given
    if given_id == entry.last_producer_id and given_epoch >= LAST_EPOCH:
        return None
    return ErrorCode.PRODUCER_FENCED


def check_producer(transaction: Transaction, producer_id: int, producer_epoch: int) -> ErrorCode | None:
    """Whether this is the producer that has the transactional id now."""
    if producer_id != transaction.entry.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if producer_epoch != transaction.entry.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    return None


def _guard_producer(transaction: Transaction, event: Add | End) -> ErrorCode | None:
    error = check_producer(transaction, event.producer_id, event.producer_epoch)
    if error is None and transaction.pending is not None:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return error


# -- rules -----------------------------------------------------------------------------------------------


def _init(transaction: Transaction, event: Init, now_ms: int) -> Step:
    """Give the next epoch of the producer id, or the first one of the next producer id."""
    entry = transaction.entry
    given_epoch = None if event.given is None else event.given[1]
    producer_id, epoch, last_epoch = entry.producer_id, entry.producer_epoch + 1, NO_EPOCH
    if entry.is_exhausted:
        if given_epoch is not None and given_epoch != entry.producer_epoch:
            return transaction, [Answer(ErrorCode.UNKNOWN_SERVER_ERROR)]
        if event.fresh_producer_id is None:
            return transaction, [NeedProducerId()]
        producer_id, epoch = event.fresh_producer_id, 0
        last_epoch = NO_EPOCH if given_epoch is None else entry.producer_epoch
    elif given_epoch is not None:
        if entry.producer_epoch in (NO_EPOCH, given_epoch):
            last_epoch = entry.producer_epoch
        elif given_epoch == entry.last_producer_epoch:
            # It missed the answer, and nobody else came meanwhile: that would have left -1 here.
            epoch, last_epoch = entry.producer_epoch, entry.last_producer_epoch
        else:
            return transaction, [Answer(ErrorCode.PRODUCER_FENCED)]
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
    """Abort under the next epoch, which nobody gets. Who asked comes again when it is over."""
    entry = transaction.entry
    epoch = entry.producer_epoch if transaction.fencing else entry.producer_epoch + 1
    fenced = replace(entry, producer_epoch=epoch, last_producer_epoch=NO_EPOCH)
    # From now on, and whether the abort can be written or not, nobody else adds or ends anything.
    transaction = replace(transaction, entry=fenced, fencing=True)
    return _write(transaction, replace(fenced, state=State.PREPARE_ABORT, updated_ms=now_ms))


def _fence_late(transaction: Transaction, event: TimedOut, now_ms: int) -> Step:
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
        return transaction, [Answer(ErrorCode.NONE)]
    partitions = entry.partitions | event.partitions
    return _write(transaction, replace(entry, partitions=partitions, updated_ms=now_ms))


def _end(transaction: Transaction, event: End, now_ms: int) -> Step:
    state = State.PREPARE_COMMIT if event.commit else State.PREPARE_ABORT
    return _write(transaction, replace(transaction.entry, state=state, updated_ms=now_ms))


def _end_again(*, committed: bool, error: ErrorCode) -> Callable[[Transaction, End, int], Step]:
    """A repetition is answered with `error`; the other outcome is out of the question."""

    def rule(transaction: Transaction, event: End, now_ms: int) -> Step:
        same = event.commit == committed
        return transaction, [Answer(error if same else ErrorCode.INVALID_TXN_STATE)]

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
        # Kafka goes on showing when the last transaction began.
        entry = replace(entry, started_ms=before.started_ms)
    stored = replace(transaction, entry=entry, pending=None)
    if entry.state not in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
        return stored, [Answer(ErrorCode.NONE)]
    error = ErrorCode.CONCURRENT_TRANSACTIONS if transaction.fencing else ErrorCode.NONE
    prepared, effects = _send_markers(stored, Loaded(), now_ms)
    return prepared, [Answer(error), *effects]


def _send_markers(transaction: Transaction, event: Loaded, now_ms: int) -> Step:
    """From here on, only one outcome is possible."""
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
        return transaction, []  # Its completion is being written.
    rest = entry.partitions - event.partitions
    return replace(transaction, entry=replace(entry, partitions=rest)), [] if rest else [Write(complete)]


def _not_stored(transaction: Transaction, event: NotStored, now_ms: int) -> Step:
    """What is decided stays decided. All else can be asked for again."""
    entry = transaction.pending
    assert entry is not None
    if entry.state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT):
        return transaction, [WriteLater(entry)]
    return replace(transaction, pending=None), [Answer(event.error)]


_Rule: TypeAlias = Callable[[Transaction, Any, int], Step]

_OVER: Final = (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
_PREPARED: Final = (State.PREPARE_COMMIT, State.PREPARE_ABORT)
_WAIT: Final = _refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
_INVALID: Final = _refuse(ErrorCode.INVALID_TXN_STATE)

_GUARDS: Final[dict[type[Any], Callable[[Transaction, Any], ErrorCode | None]]] = {
    Init: _guard_init,
    Add: _guard_producer,
    End: _guard_producer,
}

_TABLE: Final[dict[type[Any], dict[State, _Rule]]] = {
    Init: {**dict.fromkeys(_OVER, _init), State.ONGOING: _fence, **dict.fromkeys(_PREPARED, _WAIT)},
    Add: {**dict.fromkeys(_OVER, _begin), State.ONGOING: _add, **dict.fromkeys(_PREPARED, _WAIT)},
    End: {
        State.EMPTY: _INVALID,
        State.ONGOING: _end,
        State.PREPARE_COMMIT: _end_again(committed=True, error=ErrorCode.CONCURRENT_TRANSACTIONS),
        State.PREPARE_ABORT: _end_again(committed=False, error=ErrorCode.CONCURRENT_TRANSACTIONS),
        State.COMPLETE_COMMIT: _end_again(committed=True, error=ErrorCode.NONE),
        State.COMPLETE_ABORT: _end_again(committed=False, error=ErrorCode.NONE),
    },
    TimedOut: {State.ONGOING: _fence_late},
    Expired: dict.fromkeys(_OVER, _expire),
    Loaded: dict.fromkeys(_PREPARED, _send_markers),
    Stored: dict.fromkeys(State, _stored),
    NotStored: dict.fromkeys(State, _not_stored),
    Marked: dict.fromkeys(_PREPARED, _marked),
}
"""Where there is no rule, nothing happens."""
