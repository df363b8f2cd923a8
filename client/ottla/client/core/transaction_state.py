"""A producer's transactional state: what its user and its sender ask for and are told.

The base of `Transactions`, which has the requests that bring it about. States and what may follow what are
those of Kafka's client (KIP-98, KIP-360, KIP-447):

    UNINITIALIZED → INITIALIZING → READY → IN_TRANSACTION → COMMITTING | ABORTING → READY
    IN_TRANSACTION, COMMITTING, INITIALIZING → ABORTABLE_ERROR → ABORTING
    any → FATAL_ERROR

An idempotent producer without transactions knows the first three only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from ottla.client.core.sequences import Sequence
from ottla.client.core.types import GroupMetadata, OffsetToCommit, TopicPartition
from ottla.client.errors import ClientError, IllegalStateError, TransactionAbortedError
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

Done = Callable[[BaseException | None], None]
"""Told once what came of a call."""

_EPOCH_MAX: Final = 32767
_FATAL_FOR_BATCHES: Final = frozenset(
    {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)


class State(Enum):
    UNINITIALIZED = "not initialized"
    INITIALIZING = "being initialized"
    READY = "ready"
    IN_TRANSACTION = "in a transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "failed: abort the transaction"
    FATAL_ERROR = "failed for good: close the producer"


class PendingOffsets:
    """A group's offsets that are to become part of the transaction."""

    __slots__ = ("added", "done", "group", "pending")

    def __init__(
        self, group: GroupMetadata, pending: dict[TopicPartition, OffsetToCommit], done: Done
    ) -> None:
        self.group = group
        self.pending = pending
        self.done = done
        self.added = False


class TransactionState:
    def __init__(self, *, transactional: bool) -> None:
        self.transactional = transactional
        self.state = State.UNINITIALIZED
        self.error: BaseException | None = None
        self.producer_id = NO_PRODUCER_ID
        self.epoch = NO_PRODUCER_EPOCH
        self._done: Done | None = None
        """Of initialize, commit or abort."""
        self._new: set[TopicPartition] = set()
        self._added: set[TopicPartition] = set()
        self._offsets: list[PendingOffsets] = []
        self._bump = False
        """The next step is a new epoch."""
        self._doomed: BaseException | None = None
        """Why an idempotent producer has got no id."""

    # --- what users call ---

    def initialize(self, done: Done) -> None:
        self._must_be("initialize transactions", State.UNINITIALIZED)
        self.state = State.INITIALIZING
        self._done = done

    def begin(self) -> None:
        self._must_be("begin a transaction", State.READY)
        self.state = State.IN_TRANSACTION

    def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetToCommit], group: GroupMetadata, done: Done
    ) -> None:
        self._must_be("send offsets", State.IN_TRANSACTION)
        if offsets:
            self._offsets.append(PendingOffsets(group, dict(offsets), done))
        else:
            done(None)

    def commit(self, done: Done) -> None:
        """As `abort`, it may be called again when the caller did not want to wait for the first call."""
        self._must_be("commit", State.IN_TRANSACTION, State.COMMITTING)
        self.state = State.COMMITTING
        self._done = done

    def abort(self, done: Done) -> None:
        self._must_be("abort", State.IN_TRANSACTION, State.ABORTABLE_ERROR, State.ABORTING)
        self.state = State.ABORTING
        self._done = done
        self._new.clear()
        self._end_offsets(IllegalStateError("the transaction is aborted"))

    def _must_be(self, what: str, *states: State) -> None:
        if not self.transactional:
            raise IllegalStateError(f"cannot {what}: transactional.id is not set")
        if self.error is not None and self.state not in states:
            raise self.error
        if self.state not in states:
            raise IllegalStateError(f"cannot {what}: the producer is {self.state.value}")

    def check_sending(self) -> None:
        """Raises IllegalStateError, or what went wrong, when no record may be sent now."""
        if self.state is State.FATAL_ERROR or (self.transactional and self.error is not None):
            assert self.error is not None
            raise self.error
        if self.transactional and self.state is not State.IN_TRANSACTION:
            raise IllegalStateError(f"cannot send: the producer is {self.state.value}; begin a transaction")

    # --- what the sender asks ---

    @property
    def verdict(self) -> BaseException | None:
        """What batches that are not on the wire have to end with, if they have to."""
        if self.state is State.ABORTING:
            return TransactionAbortedError("the transaction was aborted before the record was sent")
        if self.state in (State.ABORTABLE_ERROR, State.FATAL_ERROR):
            return self.error
        doomed, self._doomed = self._doomed, None
        return doomed

    @property
    def ending(self) -> bool:
        return self.state in (State.COMMITTING, State.ABORTING)

    def add(self, tp: TopicPartition) -> None:
        """A record goes to this partition."""
        if self.transactional and tp not in self._added:
            self._new.add(tp)

    def allows(self, tp: TopicPartition) -> bool:
        """Whether batches of this partition may be sent now."""
        if self.producer_id == NO_PRODUCER_ID:
            return False
        return not self.transactional or tp in self._added

    def restart(self, sequence: Sequence) -> None:
        """A partition's numbers have to begin anew: under a new epoch, or it is the transaction's end."""
        if self.transactional:
            sequence.unresolved = False
            self.abortable(ClientError("records that were sent are in doubt: abort, and send them again"))
            return
        if sequence.restarts:
            return
        sequence.restarts = True
        if self.epoch >= _EPOCH_MAX or self.producer_id == NO_PRODUCER_ID:
            self.producer_id, self.epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
            self.state = State.UNINITIALIZED
        else:
            self.epoch += 1

    def batch_failed(self, sequence: Sequence, error: BaseException) -> None:
        """A batch was refused for good."""
        code = error.code if isinstance(error, KafkaError) else None
        if self.transactional:
            if code in _FATAL_FOR_BATCHES:
                self.fatal(error)
            else:
                self.abortable(error)
        else:
            self.restart(sequence)

    def batch_expired(self, sequence: Sequence, error: BaseException) -> None:
        if self.transactional:
            self.abortable(error)

    def abortable(self, error: BaseException) -> None:
        """The transaction cannot be committed any more; after an abort all is well."""
        self._bump = True
        if self.state in (State.ABORTABLE_ERROR, State.ABORTING, State.FATAL_ERROR):
            return
        self.error = error
        self.state = State.ABORTABLE_ERROR
        self._finish(error)

    def fatal(self, error: BaseException) -> None:
        if self.state is State.FATAL_ERROR:
            return
        self.error = error
        self.state = State.FATAL_ERROR
        self._finish(error)

    def _finish(self, error: BaseException | None) -> None:
        done, self._done = self._done, None
        if error is not None:
            self._end_offsets(error)
        if done is not None:
            done(error)

    def _end_offsets(self, error: BaseException) -> None:
        offsets, self._offsets = self._offsets, []
        for entry in offsets:
            entry.done(error)

    def _ended(self) -> None:
        self.state = State.READY
        self.error = None
        self._added.clear()
        self._new.clear()
        self._finish(None)
