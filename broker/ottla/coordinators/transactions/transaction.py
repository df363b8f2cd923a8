"""One transactional id: what is written down of it, and what is about to be.

`transitions` says what may happen to it, `records` writes it down, `inspection` shows it.

Invariants: only `TRANSITIONS` says which state follows which; what is not in the log yet is `pending`, and
there is one such thing at a time; epochs of a producer id only grow; partitions go as their markers are
written.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

TopicPartition: TypeAlias = tuple[str, int]

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
NOT_STARTED: Final = -1
LAST_EPOCH: Final = 2**15 - 2
"""The highest epoch that a producer gets: one more must be left, to fence it with."""


class State(IntEnum):
    """The numbers are those in `__transaction_state`."""

    EMPTY = 0
    """A producer has the id, and no transaction."""
    ONGOING = 1
    """Partitions were added, and may be written to."""
    PREPARE_COMMIT = 2
    """It will be committed, whatever happens now; markers are on their way."""
    PREPARE_ABORT = 3
    """It will be aborted, whatever happens now; markers are on their way."""
    COMPLETE_COMMIT = 4
    """Every marker of the commit was written."""
    COMPLETE_ABORT = 5
    """Every marker of the abort was written."""
    DEAD = 6
    """The id has expired; its tombstone is being written."""
    PREPARE_EPOCH_FENCE = 7
    """The producer is being fenced in the midst of its transaction. Passed through at once on the way from
    ONGOING to PREPARE_ABORT, never written and never seen, and a name that ListTransactions knows."""

    @property
    def shown(self) -> str:
        """As ListTransactions and DescribeTransactions show it."""
        return "".join(word.capitalize() for word in self.name.split("_"))


BY_NAME: Final = {state.shown: state for state in State}

TRANSITIONS: Final[dict[State, frozenset[State]]] = {
    State.EMPTY: frozenset({State.EMPTY, State.ONGOING, State.DEAD}),
    State.ONGOING: frozenset(
        {State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT, State.PREPARE_EPOCH_FENCE}
    ),
    State.PREPARE_EPOCH_FENCE: frozenset({State.PREPARE_ABORT}),
    State.PREPARE_COMMIT: frozenset({State.COMPLETE_COMMIT}),
    State.PREPARE_ABORT: frozenset({State.COMPLETE_ABORT}),
    State.COMPLETE_COMMIT: frozenset({State.EMPTY, State.ONGOING, State.DEAD}),
    State.COMPLETE_ABORT: frozenset({State.EMPTY, State.ONGOING, State.DEAD}),
    State.DEAD: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """What one record says of a transactional id; times are wall time in ms."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: State
    partitions: frozenset[TopicPartition]
    started_ms: int
    """When the first partition was added; -1 before."""
    updated_ms: int
    last_producer_id: int = NO_PRODUCER_ID
    """The producer id before this one, known to this coordinator alone: the record has no place for it."""
    last_producer_epoch: int = NO_EPOCH
    """The epoch that the producer itself gave up for this one (KIP-360); -1 if it was fenced."""

    @property
    def is_exhausted(self) -> bool:
        """Whether the next producer needs another producer id."""
        return self.producer_epoch >= LAST_EPOCH


@dataclass(frozen=True, slots=True)
class Transaction:
    transactional_id: str
    entry: Entry
    """As of the last record that is replicated; but partitions go as soon as their marker is written."""
    pending: Entry | None = None
    """The record that is being written, or will be once all markers are."""
    fencing: bool = False
    """The epoch is one to fence with, which nobody was given. Its record may be in the log or not, so that
    the next attempt fences with the same."""


def created(transactional_id: str, *, producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
    """A transactional id that nobody has used so far, before its first record."""
    return Transaction(
        transactional_id,
        Entry(producer_id, NO_EPOCH, timeout_ms, State.EMPTY, frozenset(), NOT_STARTED, now_ms),
    )
