"""One transactional id (TransactionMetadata): its last record, and its pending record.

Changed by `transitions`, written by `records`, described by `requests`.

Invariants: state transitions are those of `TRANSITIONS`; a change that is not in the log yet is `pending`, at
most one at a time; epochs of a producer id only grow; a partition is removed when its marker is written.
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
"""The highest epoch that a producer gets: the next one is reserved for fencing it."""


class State(IntEnum):
    """The numbers are those in `__transaction_state`."""

    EMPTY = 0
    """A producer has the id, without a transaction."""
    ONGOING = 1
    """The transaction has partitions."""
    PREPARE_COMMIT = 2
    """The transaction will be committed; its markers are being written."""
    PREPARE_ABORT = 3
    """The transaction will be aborted; its markers are being written."""
    COMPLETE_COMMIT = 4
    """All markers of the commit are written."""
    COMPLETE_ABORT = 5
    """All markers of the abort are written."""
    DEAD = 6
    """The id has expired; its tombstone is being written."""
    PREPARE_EPOCH_FENCE = 7
    """The producer of an open transaction is being fenced. Never written and never returned, because ONGOING
    changes to PREPARE_ABORT at once; ListTransactions accepts its name as a filter."""

    @property
    def api_name(self) -> str:
        """The name in ListTransactions and DescribeTransactions."""
        return "".join(word.capitalize() for word in self.name.split("_"))


BY_NAME: Final = {state.api_name: state for state in State}

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
    """The content of one record of a transactional id; times are wall time in ms."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: State
    partitions: frozenset[TopicPartition]
    started_ms: int
    """When the first partition was added; -1 before."""
    updated_ms: int
    last_producer_id: int = NO_PRODUCER_ID
    """The previous producer id. It is in memory only: the record has no field for it."""
    last_producer_epoch: int = NO_EPOCH
    """The previous epoch of the same producer (KIP-360); -1 if that producer was fenced."""

    @property
    def is_exhausted(self) -> bool:
        """Whether the next producer needs a new producer id, because the epochs are used up."""
        return self.producer_epoch >= LAST_EPOCH


@dataclass(frozen=True, slots=True)
class Transaction:
    """The state of a transactional id in its coordinator."""

    transactional_id: str
    entry: Entry
    """The last replicated record, without the partitions whose marker is written."""
    pending: Entry | None = None
    """The record that is being written, or that follows after all markers."""
    fencing: bool = False
    """Whether the epoch is used for fencing, and no producer has it. Its record may be in the log or not, so
    the next attempt fences with the same epoch."""


def created(transactional_id: str, *, producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
    """A new transactional id, before its first record."""
    return Transaction(
        transactional_id,
        Entry(producer_id, NO_EPOCH, timeout_ms, State.EMPTY, frozenset(), NOT_STARTED, now_ms),
    )
