"""Who a producer is, and how far its transaction is: ids, epochs, states, and the requests they take.

Called by the producer (begin, commit, …) and the sender, which polls it. Driven by the level, not by events:
`poll` looks at what is wanted and what is so, and sends the next request towards it; one is on its way at
most. What the user and the sender ask for and are told is `transaction_state`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, Final

from ottla.client.core import transaction_requests as requests
from ottla.client.core.backoff import Uniform
from ottla.client.core.cluster import GROUP, TRANSACTION, Cluster
from ottla.client.core.config import ProducerConfig
from ottla.client.core.transaction_state import PendingOffsets, State, TransactionState
from ottla.client.core.types import ANY_NODE, Node, Outgoing, TopicPartition
from ottla.client.errors import ClientError, CommitFailedError, ProducerFencedError, for_code
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from ottla.protocol.types import Message

log = logging.getLogger(__name__)

_CONCURRENT_PAUSE_S: Final = 0.02
_MOVED: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_FENCED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})
_ID_LOST: Final = frozenset({ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_ID_MAPPING})
_ABORTABLE: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        *_ID_LOST,
    }
)
_GROUP_MISMATCH: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})


class Transactions(TransactionState):
    """Times are seconds."""

    def __init__(
        self,
        config: ProducerConfig,
        cluster: Cluster,
        *,
        uniform: Uniform,
        incomplete: Callable[[], bool],
    ) -> None:
        """`incomplete`: whether there are records without an outcome."""
        super().__init__(transactional=config.transactional_id is not None)
        self._config = config
        self._id = config.transactional_id or ""
        self._timeout_ms = config.transaction_timeout_ms
        self._request_timeout_s = config.request_timeout_ms / 1000
        self._cluster = cluster
        self._uniform = uniform
        self._incomplete = incomplete
        self._started = False
        """The coordinator knows of the transaction."""
        self._asked: Message | None = None
        self._not_before = -math.inf
        self._attempts = 0

    def next_time(self, now: float) -> float:
        if self._asked is not None or self._not_before <= now:
            return math.inf  # an answer, or a change of what is wanted, wakes
        return self._not_before

    def poll(self, now: float) -> list[Outgoing]:
        if self._asked is not None or now < self._not_before or self.state is State.FATAL_ERROR:
            return []
        if not self.transactional and self.state is State.UNINITIALIZED and self._incomplete():
            self.state = State.INITIALIZING
        outgoing = self._next_request()
        if outgoing is None:
            return []
        self._asked = outgoing.message
        return [outgoing]

    def _next_request(self) -> Outgoing | None:
        """The next step towards what is wanted."""
        if self.state is State.INITIALIZING:
            return self._initialize()
        if self.state in (State.IN_TRANSACTION, State.COMMITTING):
            if self._new:
                add = requests.add_partitions(self._identity, self._new)
                return self._to_coordinator(add, version_max=requests.ADD_OF_ONE)
            if self._offsets:
                return self._send_offsets(self._offsets[0])
        if self.ending and not self._incomplete():
            if self._started:
                committed = self.state is State.COMMITTING
                return self._to_coordinator(requests.end(self._identity, committed=committed))
            if self._bump:
                return self._initialize()
            self._ended()
        return None

    def _initialize(self) -> Outgoing:
        request = m.InitProducerIdRequest(
            transactional_id=self._id if self.transactional else None,
            transaction_timeout_ms=self._timeout_ms if self.transactional else 2**31 - 1,
            producer_id=self.producer_id if self._bump else NO_PRODUCER_ID,
            producer_epoch=self.epoch if self._bump else NO_PRODUCER_EPOCH,
        )
        return self._to_coordinator(request) if self.transactional else self._outgoing(ANY_NODE, request)

    def _send_offsets(self, offsets: PendingOffsets) -> Outgoing:
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
    ) -> Outgoing:
        key = key or self._id
        node = self._cluster.coordinator(kind, key)
        if node is None or node not in self._cluster.nodes:
            find = m.FindCoordinatorRequest(key=key, key_type=kind)
            return self._outgoing(ANY_NODE, find, requests.FIND_ONE)
        return self._outgoing(node, request, version_max)

    def _outgoing(self, node: int, request: Message, version_max: int | None = None) -> Outgoing:
        return Outgoing(node, request, request, self._request_timeout_s, version_max, keeps=True)

    # --- answers ---

    def answered(self, request: Message, response: Any, now: float) -> None:
        assert request is self._asked, "one request is on its way"
        self._asked = None
        if isinstance(response, OSError | TimeoutError):  # also what stands for a lost connection
            self._forget_coordinator(request)
            self._later(now)
        elif isinstance(response, KafkaError):
            self._refused(response)
        elif isinstance(response, BaseException):
            self._refused(ClientError(str(response)))
        else:
            self._take(request, response, now)

    def _take(self, request: Message, response: Any, now: float) -> None:
        told = map(ErrorCode.of, requests.codes_of(request, response))
        codes = [code for code in told if code is not ErrorCode.NONE]
        if not codes:
            self._attempts = 0
            self._not_before = -math.inf
            self._succeeded(request, response)
            return
        # What is said of the others, that they were not tried, matters less.
        codes.sort(key=lambda code: code is ErrorCode.OPERATION_NOT_ATTEMPTED)
        code = codes[0]
        if isinstance(request, m.TxnOffsetCommitRequest):
            self._drop_committed(response)
        if code in _MOVED or (
            code is ErrorCode.REQUEST_TIMED_OUT and isinstance(request, m.TxnOffsetCommitRequest)
        ):
            self._forget_coordinator(request)
            self._later(now)
        elif code is ErrorCode.CONCURRENT_TRANSACTIONS and not self._added:
            self._not_before = now + _CONCURRENT_PAUSE_S  # the markers of the one before are being written
        elif code.retriable:
            self._later(now)
        else:
            self._refuse(request, code, getattr(response, "error_message", None))

    def _refuse(self, request: Message, code: ErrorCode, message: str | None) -> None:
        if code in _FENCED:
            self.fatal(ProducerFencedError(f"transactional.id={self._id}: a newer producer uses it"))
            return
        error: ClientError = for_code(code, message)
        if isinstance(request, m.TxnOffsetCommitRequest) and code in _GROUP_MISMATCH:
            error = CommitFailedError(f"the group has moved on without this consumer: {code.message}")
        if code in _ID_LOST:
            self._started = False  # nothing to end under this id
        if self.state is State.INITIALIZING or code not in _ABORTABLE:
            self._refused(error)
        else:
            self.abortable(error)

    def _refused(self, error: BaseException) -> None:
        """Nothing that is known to help."""
        if self.state is State.INITIALIZING:
            # It may be asked for again: somebody may have changed what is allowed.
            self.state = State.UNINITIALIZED
            if not self.transactional:
                self._doomed = error
            self._finish(error)
        else:
            self.fatal(error)

    def _later(self, now: float) -> None:
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
            self._bump = False
            self._ended()
        elif isinstance(request, m.AddPartitionsToTxnRequest):
            added = {
                TopicPartition(topic.name, partition)
                for topic in request.v3_and_below_topics
                for partition in topic.partitions
            }
            self._added |= added
            self._new -= added
            self._started = True
        elif isinstance(request, m.AddOffsetsToTxnRequest):
            self._started = True
            if self._offsets:
                self._offsets[0].added = True
        elif isinstance(request, m.TxnOffsetCommitRequest):
            if self._offsets:
                self._offsets.pop(0).done(None)
        elif isinstance(request, m.EndTxnRequest):
            self._started = False
            if not self._bump:
                self._ended()

    def _drop_committed(self, response: m.TxnOffsetCommitResponse) -> None:
        for topic in response.topics:
            for partition in topic.partitions:
                if partition.error_code == ErrorCode.NONE and self._offsets:
                    self._offsets[0].pending.pop(TopicPartition(topic.name, partition.partition_index), None)
