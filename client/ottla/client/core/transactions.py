"""A producer's id, epoch and transactional state, and the requests that change them (KIP-98, 360, 447).

Called by the producer (`begin`, `commit`, …) and by the sender, which polls it. Each `poll` compares the
wanted with the actual state and sends the next request towards it; at most one request is in flight. States
and transitions are those of Kafka's TransactionManager:

    UNINITIALIZED → INITIALIZING → READY → IN_TRANSACTION → COMMITTING | ABORTING → READY
    IN_TRANSACTION, COMMITTING, INITIALIZING → ABORTABLE_ERROR → ABORTING
    any → FATAL_ERROR

An idempotent producer without transactions has the first three only.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final

from ottla.client.core import transaction_requests as requests
from ottla.client.core.backoff import Uniform
from ottla.client.core.cluster import GROUP, TRANSACTION, Cluster
from ottla.client.core.config import ProducerConfig
from ottla.client.core.sequences import Sequence
from ottla.client.core.types import (
    ANY_NODE,
    GroupMetadata,
    Node,
    OffsetToCommit,
    TopicPartition,
    UnsentRequest,
)
from ottla.client.errors import (
    ClientError,
    CommitFailedError,
    IllegalStateError,
    ProducerFencedError,
    TransactionAbortedError,
    for_code,
)
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from ottla.protocol.types import Message

Done = Callable[[BaseException | None], None]
"""Called once with the error of an operation, or None."""

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
    """The states of the transaction manager."""

    UNINITIALIZED = "not initialized"
    INITIALIZING = "being initialized"
    READY = "ready"
    IN_TRANSACTION = "in a transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "failed: abort the transaction"
    FATAL_ERROR = "failed for good: close the producer"


class PendingOffsets:
    """Offsets of a group to commit in the transaction."""

    __slots__ = ("added", "done", "group", "pending")

    def __init__(
        self, group: GroupMetadata, pending: dict[TopicPartition, OffsetToCommit], done: Done
    ) -> None:
        self.group = group
        self.pending = pending
        self.done = done
        self.added = False


log = logging.getLogger(__name__)

_CONCURRENT_PAUSE_S: Final = 0.02
_MOVED: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_FENCED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})
_UNKNOWN_ID: Final = frozenset({ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_ID_MAPPING})
_ABORTABLE: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        *_UNKNOWN_ID,
    }
)
_GROUP_MISMATCH: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})


class Transactions:
    """Kafka's TransactionManager. Times are seconds."""

    def __init__(
        self,
        config: ProducerConfig,
        cluster: Cluster,
        *,
        uniform: Uniform,
        incomplete: Callable[[], bool],
    ) -> None:
        """`incomplete`: whether there are incomplete records."""
        self.transactional = config.transactional_id is not None
        self.state = State.UNINITIALIZED
        self.error: BaseException | None = None
        self.producer_id = NO_PRODUCER_ID
        self.epoch = NO_PRODUCER_EPOCH
        self._done: Done | None = None
        """The callback of initialize, commit or abort."""
        self._pending_partitions: set[TopicPartition] = set()
        self._partitions: set[TopicPartition] = set()
        self._offsets: list[PendingOffsets] = []
        self._epoch_bump_required = False
        """The next InitProducerId has to bump the epoch."""
        self._init_error: BaseException | None = None
        """The error of InitProducerId of an idempotent producer without transactions."""
        self._config = config
        self._id = config.transactional_id or ""
        self._timeout_ms = config.transaction_timeout_ms
        self._request_timeout_s = config.request_timeout_ms / 1000
        self._cluster = cluster
        self._uniform = uniform
        self._incomplete = incomplete
        self._transaction_started = False
        """The coordinator has started the transaction."""
        self._in_flight_request: Message | None = None
        self._not_before = -math.inf
        self._attempts = 0

    # --- calls of the producer ---

    def initialize(self, done: Done) -> None:
        self._check_state("initialize transactions", State.UNINITIALIZED)
        self.state = State.INITIALIZING
        self._done = done

    def begin(self) -> None:
        self._check_state("begin a transaction", State.READY)
        self.state = State.IN_TRANSACTION

    def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetToCommit], group: GroupMetadata, done: Done
    ) -> None:
        self._check_state("send offsets", State.IN_TRANSACTION)
        if offsets:
            self._offsets.append(PendingOffsets(group, dict(offsets), done))
        else:
            done(None)

    def commit(self, done: Done) -> None:
        """Begin to commit. It may be called again if the caller did not wait for the first call."""
        self._check_state("commit", State.IN_TRANSACTION, State.COMMITTING)
        self.state = State.COMMITTING
        self._done = done

    def abort(self, done: Done) -> None:
        self._check_state("abort", State.IN_TRANSACTION, State.ABORTABLE_ERROR, State.ABORTING)
        self.state = State.ABORTING
        self._done = done
        self._pending_partitions.clear()
        self._end_offsets(IllegalStateError("the transaction is aborted"))

    def _check_state(self, what: str, *states: State) -> None:
        if not self.transactional:
            raise IllegalStateError(f"cannot {what}: transactional.id is not set")
        if self.error is not None and self.state not in states:
            raise self.error
        if self.state not in states:
            raise IllegalStateError(f"cannot {what}: the producer is {self.state.value}")

    def check_sending(self) -> None:
        """Raises IllegalStateError, or the error of the producer, if no record may be sent now."""
        if self.state is State.FATAL_ERROR or (self.transactional and self.error is not None):
            assert self.error is not None
            raise self.error
        if self.transactional and self.state is not State.IN_TRANSACTION:
            raise IllegalStateError(f"cannot send: the producer is {self.state.value}; begin a transaction")

    # --- calls of the sender ---

    @property
    def batch_error(self) -> BaseException | None:
        """The error for batches that are not in flight, if they have to fail."""
        if self.state is State.ABORTING:
            return TransactionAbortedError("the transaction was aborted before the record was sent")
        if self.state in (State.ABORTABLE_ERROR, State.FATAL_ERROR):
            return self.error
        error, self._init_error = self._init_error, None
        return error

    @property
    def ending(self) -> bool:
        return self.state in (State.COMMITTING, State.ABORTING)

    def add(self, tp: TopicPartition) -> None:
        """A record was appended to this partition."""
        if self.transactional and tp not in self._partitions:
            self._pending_partitions.add(tp)

    def allows(self, tp: TopicPartition) -> bool:
        """Whether batches of this partition may be sent now."""
        if self.producer_id == NO_PRODUCER_ID:
            return False
        return not self.transactional or tp in self._partitions

    def restart(self, sequence: Sequence) -> None:
        """Restart the sequence numbers of a partition under a new epoch; with transactions, the transaction
        fails."""
        if self.transactional:
            sequence.unresolved = False
            self.abortable(
                ClientError("it is unknown whether sent records were written: abort the transaction")
            )
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
        """A batch failed with a fatal error."""
        code = error.code if isinstance(error, KafkaError) else None
        if self.transactional:
            if code in _FATAL_FOR_BATCHES:
                self.fatal(error)
            else:
                self.abortable(error)
        else:
            self.restart(sequence)

    def record_lost(self, error: BaseException) -> None:
        """A record has failed whose outcome is not known, or that was never sent: without it the transaction
        is not to be committed (Java's TransactionManager.handleFailedBatch)."""
        if self.transactional:
            self.abortable(error)

    def abortable(self, error: BaseException) -> None:
        """The transaction cannot be committed any more and has to be aborted."""
        self._epoch_bump_required = True
        if self.state in (State.ABORTABLE_ERROR, State.ABORTING, State.FATAL_ERROR):
            return
        self.error = error
        self.state = State.ABORTABLE_ERROR
        self._complete_call(error)

    def fatal(self, error: BaseException) -> None:
        if self.state is State.FATAL_ERROR:
            return
        self.error = error
        self.state = State.FATAL_ERROR
        self._complete_call(error)

    def _complete_call(self, error: BaseException | None) -> None:
        done, self._done = self._done, None
        if error is not None:
            self._end_offsets(error)
        if done is not None:
            done(error)

    def _end_offsets(self, error: BaseException) -> None:
        offsets, self._offsets = self._offsets, []
        for entry in offsets:
            entry.done(error)

    def _on_ended(self) -> None:
        self.state = State.READY
        self.error = None
        self._partitions.clear()
        self._pending_partitions.clear()
        self._complete_call(None)

    def next_time(self, now: float) -> float:
        if self._in_flight_request is not None or self._not_before <= now:
            return math.inf  # a response or a change of the state wakes the loop
        return self._not_before

    def poll(self, now: float) -> list[UnsentRequest]:
        if self._in_flight_request is not None or now < self._not_before or self.state is State.FATAL_ERROR:
            return []
        if not self.transactional and self.state is State.UNINITIALIZED and self._incomplete():
            self.state = State.INITIALIZING
        unsent = self._next_request()
        if unsent is None:
            return []
        self._in_flight_request = unsent.message
        return [unsent]

    def _next_request(self) -> UnsentRequest | None:
        """The next request towards the wanted state."""
        if self.state is State.INITIALIZING:
            return self._initialize()
        if self.state in (State.IN_TRANSACTION, State.COMMITTING):
            if self._pending_partitions:
                add = requests.add_partitions(self._identity, self._pending_partitions)
                return self._to_coordinator(add, version_max=requests.ADD_PARTITIONS_VERSION_MAX)
            if self._offsets:
                return self._send_offsets(self._offsets[0])
        if self.ending and not self._incomplete():
            if self._transaction_started:
                committed = self.state is State.COMMITTING
                return self._to_coordinator(requests.end(self._identity, committed=committed))
            if self._epoch_bump_required:
                return self._initialize()
            self._on_ended()
        return None

    def _initialize(self) -> UnsentRequest:
        request = m.InitProducerIdRequest(
            transactional_id=self._id if self.transactional else None,
            transaction_timeout_ms=self._timeout_ms if self.transactional else 2**31 - 1,
            producer_id=self.producer_id if self._epoch_bump_required else NO_PRODUCER_ID,
            producer_epoch=self.epoch if self._epoch_bump_required else NO_PRODUCER_EPOCH,
        )
        return self._to_coordinator(request) if self.transactional else self._unsent(ANY_NODE, request)

    def _send_offsets(self, offsets: PendingOffsets) -> UnsentRequest:
        if not offsets.added:
            return self._to_coordinator(requests.add_offsets(self._identity, offsets.group))
        group = offsets.group
        commit = requests.commit_offsets(self._identity, group, offsets.pending)
        return self._to_coordinator(commit, GROUP, group.group_id)

    @property
    def _identity(self) -> requests.Identity:
        return requests.Identity(self._id, self.producer_id, self.epoch)

    def _to_coordinator(
        self, request: Message, kind: int = TRANSACTION, key: str = "", version_max: int | None = None
    ) -> UnsentRequest:
        key = key or self._id
        node = self._cluster.coordinator(kind, key)
        if node is None or node not in self._cluster.nodes:
            find = m.FindCoordinatorRequest(key=key, key_type=kind)
            return self._unsent(ANY_NODE, find, requests.FIND_COORDINATOR_VERSION_MAX)
        return self._unsent(node, request, version_max)

    def _unsent(self, node: int, request: Message, version_max: int | None = None) -> UnsentRequest:
        return UnsentRequest(node, request, request, self._request_timeout_s, version_max, keeps=True)

    # --- responses ---

    def on_response(self, request: Message, response: Any, now: float) -> None:
        assert request is self._in_flight_request, "one request is in flight"
        self._in_flight_request = None
        if isinstance(response, OSError | TimeoutError):  # including ConnectionLost
            self._forget_coordinator(request)
            self._retry_later(now)
        elif isinstance(response, KafkaError):
            self._on_fatal_response(response)
        elif isinstance(response, BaseException):
            self._on_fatal_response(ClientError(str(response)))
        else:
            self._on_success_or_code(request, response, now)

    def _on_success_or_code(self, request: Message, response: Any, now: float) -> None:
        returned = map(ErrorCode.of, requests.codes_of(request, response))
        codes = [code for code in returned if code is not ErrorCode.NONE]
        if not codes:
            self._attempts = 0
            self._not_before = -math.inf
            self._succeeded(request, response)
            return
        # OPERATION_NOT_ATTEMPTED only says that another partition failed.
        codes.sort(key=lambda code: code is ErrorCode.OPERATION_NOT_ATTEMPTED)
        code = codes[0]
        if isinstance(request, m.TxnOffsetCommitRequest):
            self._drop_committed(response)
        if code in _MOVED or (
            code is ErrorCode.REQUEST_TIMED_OUT and isinstance(request, m.TxnOffsetCommitRequest)
        ):
            self._forget_coordinator(request)
            self._retry_later(now)
        elif code is ErrorCode.CONCURRENT_TRANSACTIONS and not self._partitions:
            self._not_before = (
                now + _CONCURRENT_PAUSE_S
            )  # the markers of the previous transaction are being written
        elif code.retriable:
            self._retry_later(now)
        else:
            self._on_error_code(request, code, getattr(response, "error_message", None))

    def _on_error_code(self, request: Message, code: ErrorCode, message: str | None) -> None:
        if code in _FENCED:
            self.fatal(ProducerFencedError(f"transactional.id={self._id}: a newer producer uses it"))
            return
        error: ClientError = for_code(code, message)
        if isinstance(request, m.TxnOffsetCommitRequest) and code in _GROUP_MISMATCH:
            error = CommitFailedError(f"the group has rebalanced: {code.message}")
        if code in _UNKNOWN_ID:
            self._transaction_started = False  # there is no transaction to end under this id
        if self.state is State.INITIALIZING or code not in _ABORTABLE:
            self._on_fatal_response(error)
        else:
            self.abortable(error)

    def _on_fatal_response(self, error: BaseException) -> None:
        """An error after which no retry is known to help."""
        if self.state is State.INITIALIZING:
            # The producer may initialize again: permissions may have changed.
            self.state = State.UNINITIALIZED
            if not self.transactional:
                self._init_error = error
            self._complete_call(error)
        else:
            self.fatal(error)

    def _retry_later(self, now: float) -> None:
        self._not_before = now + self._config.retry_pause_s(self._attempts, self._uniform)
        self._attempts += 1

    def _forget_coordinator(self, request: Message) -> None:
        if isinstance(request, m.TxnOffsetCommitRequest):
            self._cluster.forget_coordinator(GROUP, request.group_id)
        else:
            self._cluster.forget_coordinator(TRANSACTION, self._id)

    def _succeeded(self, request: Message, response: Any) -> None:
        if isinstance(request, m.FindCoordinatorRequest):
            node = Node(response.node_id, response.host, response.port)
            self._cluster.take_coordinator(request.key_type, request.key, node)
        elif isinstance(request, m.InitProducerIdRequest):
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
            log.debug("producer id %d, epoch %d", self.producer_id, self.epoch)
            self._epoch_bump_required = False
            self._on_ended()
        elif isinstance(request, m.AddPartitionsToTxnRequest):
            added = {
                TopicPartition(topic.name, partition)
                for topic in request.v3_and_below_topics
                for partition in topic.partitions
            }
            self._partitions |= added
            self._pending_partitions -= added
            self._transaction_started = True
        elif isinstance(request, m.AddOffsetsToTxnRequest):
            self._transaction_started = True
            if self._offsets:
                self._offsets[0].added = True
        elif isinstance(request, m.TxnOffsetCommitRequest):
            if self._offsets:
                self._offsets.pop(0).done(None)
        elif isinstance(request, m.EndTxnRequest):
            self._transaction_started = False
            if not self._epoch_bump_required:
                self._on_ended()

    def _drop_committed(self, response: m.TxnOffsetCommitResponse) -> None:
        for topic in response.topics:
            for partition in topic.partitions:
                if partition.error_code == ErrorCode.NONE and self._offsets:
                    self._offsets[0].pending.pop(TopicPartition(topic.name, partition.partition_index), None)
