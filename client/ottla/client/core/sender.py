"""The sender: decides which Produce requests go to which broker, and handles their responses.

A request manager of the network loop, over the accumulator and the transaction state. A request has at most
one batch of each partition; each broker has at most max.in.flight.requests.per.connection requests.
Invariants:

* with idempotence, or with one request in flight, records of a partition are written in the order in which
  they were sent, also after retries;
* a batch is retried until it is acknowledged, a fatal error occurs, or delivery.timeout.ms has passed;
* batches are not drained for a broker that is not connected, so that they continue to grow.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ottla.client.core.accumulator import Accumulator, BatchResult, PartitionQueue
from ottla.client.core.backoff import Uniform
from ottla.client.core.batches import Batch
from ottla.client.core.cluster import Cluster
from ottla.client.core.config import ProducerConfig
from ottla.client.core.sequences import Sequence
from ottla.client.core.stats import ProducerStats
from ottla.client.core.transactions import Transactions
from ottla.client.core.types import Leader, Node, TopicPartition, UnsentRequest
from ottla.client.errors import ClientError, for_code
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import ProduceRequest, ProduceResponse

log = logging.getLogger(__name__)

_NONE: Final = int(ErrorCode.NONE)
_NOT_WRITTEN: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
"""Errors by which the leader says that it has not written the batch. After others it may have: with acks=all
it answers NOT_LEADER_OR_FOLLOWER also when it loses the leadership while the batch waits for replicas."""
_MOVED: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
"""Errors after which the leader may have changed."""


class _Sent(NamedTuple):
    """A Produce request in flight."""

    node_id: int
    batches: dict[tuple[str, int], Batch]


class Sender:
    """Kafka's Sender. Times are seconds."""

    def __init__(
        self,
        config: ProducerConfig,
        cluster: Cluster,
        accumulator: Accumulator,
        transactions: Transactions | None,
        *,
        uniform: Uniform,
        ready: Callable[[int], bool],
        ready_at: Callable[[int, float], float],
    ) -> None:
        """`transactions`: the producer id and its state; None without idempotence. `ready` and `ready_at` are
        those of the network."""
        self._cluster = cluster
        self._accumulator = accumulator
        self._transactions = transactions
        self._uniform = uniform
        self._ready = ready
        self._ready_at = ready_at
        self._acks = config.acks
        self._request_timeout_ms = config.request_timeout_ms
        self._request_max = config.max_request_size
        self._in_flight_max = config.max_in_flight_requests_per_connection
        self._retries = config.retries
        self._pause_s = config.retry_pause_s
        self._compression = config.codec, config.compression_level
        self._transactional_id = config.transactional_id
        self._availability_s = config.partitioner_availability_timeout_ms / 1000
        self.stats = ProducerStats(config.window)
        self._in_flight: dict[int, int] = defaultdict(int)
        self._unready_since: dict[int, float] = {}
        self._unresolved: dict[Sequence, None] = {}
        self._now = 0.0
        self._next = math.inf
        accumulator.is_available = self._available
        if transactions is not None:
            accumulator.on_unassigned_failed = transactions.record_lost

    def _available(self, node_id: int) -> bool:
        """KIP-794: whether a broker has accepted requests within partitioner.availability.timeout.ms."""
        since = self._unready_since.get(node_id)
        return not self._availability_s or since is None or self._now - since < self._availability_s

    @property
    def requests_in_flight(self) -> int:
        return sum(self._in_flight.values())

    # --- requests ---

    def poll(self, now: float) -> list[UnsentRequest]:
        self._now = now
        self._accumulator.refresh(now)
        self._expire_batches(now)
        out: list[UnsentRequest] = []
        transactions = self._transactions
        if transactions is not None:
            self._resolve_sequences(transactions)
            batch_error = transactions.batch_error
            if batch_error is not None:
                self.fail_all(batch_error)
            out += transactions.poll(now)
        self._next = self._accumulator.next_expiry()
        for node_id, queues in self._sendable_queues(now).items():
            self._send_to(node_id, queues, now, out)
        return out

    def next_time(self, now: float) -> float:
        if self._transactions is not None:
            return min(self._next, self._transactions.next_time(now))
        return self._next

    def _sendable_queues(self, now: float) -> dict[int, list[PartitionQueue]]:
        """The queues whose first batch may be sent now, by leader."""
        found: dict[int, list[PartitionQueue]] = {}
        ready_at, leader_of = self._accumulator.ready_at, self._cluster.leader
        ending = self._transactions is not None and self._transactions.ending
        for queue in list(self._accumulator.active):  # `_may_send` may empty a queue
            at = ready_at(queue)
            if at > now and not (ending and not queue.batches[0].attempts):
                self._next = min(self._next, at)
                continue
            leader = leader_of(queue.tp)
            if leader is None:
                self._cluster.invalidate(queue.tp)
                continue
            if self._may_send(queue):
                found.setdefault(leader.node_id, []).append(queue)
        return found

    def _may_send(self, queue: PartitionQueue) -> bool:
        if self._in_flight_max == 1 and queue.in_flight:
            return False
        transactions, sequence = self._transactions, queue.sequence
        if transactions is None:
            return True
        if not transactions.allows(queue.tp):
            return False
        if sequence.restarts:
            if sequence.on_wire:
                return False
            self._fail_maybe_written(queue)
            sequence.begin(transactions.producer_id, transactions.epoch)
            if not queue.batches:
                return False
        first = queue.batches[0]
        if sequence.is_of(transactions.producer_id, transactions.epoch):
            return sequence.may_send(first)
        if sequence.in_flight:
            # Batches with sequence numbers keep them and are sent first.
            return first.stamped and sequence.may_send(first)
        sequence.begin(transactions.producer_id, transactions.epoch)
        return sequence.may_send(first)

    def _fail_maybe_written(self, queue: PartitionQueue) -> None:
        """Fail the batches that an earlier attempt may have written: under the new epoch the broker would not
        recognize them, and write them again. Java's producer sends them again."""
        for batch in list(queue.sequence.in_flight):
            if batch.maybe_written:
                queue.sequence.drop(batch)
                self._accumulator.remove(queue, batch)
                message = "the broker has lost the producer's last batches; this one may have been written"
                self._complete_with_error(
                    batch, self._error(batch, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, message)
                )

    def _send_to(
        self, node_id: int, queues: list[PartitionQueue], now: float, out: list[UnsentRequest]
    ) -> None:
        if self._in_flight[node_id] >= self._in_flight_max:
            return
        if not self._ready(node_id):
            self._unready_since.setdefault(node_id, now)
            self._next = min(self._next, self._ready_at(node_id, now))
            return
        self._unready_since.pop(node_id, None)
        while queues and self._in_flight[node_id] < self._in_flight_max:
            batches = self._drain_queues(queues, now)
            out.append(self._request(node_id, batches, now))
            # Queues with further batches: the next request takes from them again.
            queues = [
                q for q in queues if q.batches and self._accumulator.ready_at(q) <= now and self._may_send(q)
            ]

    def _drain_queues(self, queues: list[PartitionQueue], now: float) -> list[Batch]:
        """Take one batch of each queue, as many as fit into a request, at least one."""
        batches: list[Batch] = []
        size = 0
        for queue in queues:
            first = queue.batches[0]
            # It may be smaller after compression; a batch above max.request.size is sent alone.
            if batches and size + (len(first.data) if first.data else first.size) > self._request_max:
                continue
            batch = self._accumulator.take(queue)
            if self._transactions is not None and not batch.stamped:
                queue.sequence.assign(batch)
            data = batch.encode(*self._compression, transactional=self._transactional_id is not None)
            size += len(data)
            batch.attempts += 1
            batch.in_flight = True
            leader = self._cluster.leader(batch.tp)
            assert leader is not None, f"{batch.tp} has a leader"
            batch.leader_epoch = leader.epoch
            queue.in_flight += 1
            batches.append(batch)
        return batches

    def _request(self, node_id: int, batches: list[Batch], now: float) -> UnsentRequest:
        self._in_flight[node_id] += 1
        topics: dict[str, list[ProduceRequest.PartitionProduceData]] = {}
        for batch in batches:
            assert batch.data is not None
            part = ProduceRequest.PartitionProduceData(
                index=batch.tp.partition, records=memoryview(batch.data)
            )
            topics.setdefault(batch.tp.topic, []).append(part)
            self.stats.sent(batch, now)
        self.stats.requested(sum(batch.count for batch in batches), now)
        request = ProduceRequest(
            transactional_id=self._transactional_id,
            acks=self._acks,
            timeout_ms=self._request_timeout_ms,
            topic_data=[
                ProduceRequest.TopicProduceData(name=name, partition_data=parts)
                for name, parts in topics.items()
            ],
        )
        sent = _Sent(node_id, {batch.tp: batch for batch in batches})
        return UnsentRequest(
            node_id,
            request,
            sent,
            self._request_timeout_ms / 1000,
            keeps=True,
            expects_response=self._acks != 0,
        )

    # --- responses ---

    def on_response(self, tag: Any, response: Any, now: float) -> None:
        if not isinstance(tag, _Sent):
            assert self._transactions is not None
            self._transactions.on_response(tag, response, now)
            return
        self._in_flight[tag.node_id] -= 1
        for tp in tag.batches:
            self._accumulator.queue_of(TopicPartition(*tp)).in_flight -= 1
        for batch in tag.batches.values():
            batch.in_flight = False
        if response is None:  # acks=0
            for batch in tag.batches.values():
                self._complete(batch, -1, -1)
        elif isinstance(response, BaseException):
            self._on_request_failed(tag, response, now)
        else:
            self._on_produce_response(tag, response, now)

    def _on_request_failed(self, sent: _Sent, problem: BaseException, now: float) -> None:
        """The connection was lost, the request timed out, or it could not be sent."""
        if isinstance(problem, KafkaError):
            code = problem.code
        elif isinstance(problem, OSError | TimeoutError):
            code = ErrorCode.NETWORK_EXCEPTION
        else:
            code = ErrorCode.UNKNOWN_SERVER_ERROR  # the request could not be encoded
        self._cluster.invalidate()
        for batch in sent.batches.values():
            batch.maybe_written = True
            self._retry_or_fail(batch, code, str(problem), now)

    def _on_produce_response(self, sent: _Sent, response: ProduceResponse, now: float) -> None:
        nodes = [Node(n.node_id, n.host, n.port, n.rack) for n in response.node_endpoints]
        left = dict(sent.batches)
        for topic in response.responses:
            for row in topic.partition_responses:
                batch = left.pop((topic.name, row.index), None)
                if batch is None:
                    continue
                if row.error_code == _NONE:
                    self._complete(batch, row.base_offset, row.log_append_time_ms)
                    continue
                leader = row.current_leader
                if leader.leader_id >= 0:
                    new_leader = Leader(leader.leader_id, leader.leader_epoch)
                    self._cluster.take_leader(batch.tp, new_leader, nodes)
                code = ErrorCode.of(row.error_code)
                if code not in _NOT_WRITTEN:
                    batch.maybe_written = True
                self._retry_or_fail(batch, code, row.error_message, now, row)
        for batch in left.values():
            self._retry_or_fail(
                batch, ErrorCode.UNKNOWN_SERVER_ERROR, "the response lacks the partition", now
            )

    def _complete(self, batch: Batch, offset: int, log_append_time_ms: int) -> None:
        if self._transactions is not None:
            self._accumulator.queue_of(batch.tp).sequence.acked(batch)
        if not batch.done:
            self._accumulator.complete(BatchResult(batch, offset, log_append_time_ms, None))

    def _retry_or_fail(
        self,
        batch: Batch,
        code: ErrorCode,
        message: str | None,
        now: float,
        row: ProduceResponse.PartitionProduceResponse | None = None,
    ) -> None:
        queue = self._accumulator.queue_of(batch.tp)
        if code in _MOVED:
            self._cluster.invalidate(batch.tp)
        if batch.done:  # it has expired in the meantime
            queue.sequence.drop(batch)
        elif code is ErrorCode.MESSAGE_TOO_LARGE and batch.count > 1:
            log.info("%r is too large for the broker: splitting it", batch)
            self.stats.was_split(now)
            self._accumulator.split_and_reenqueue(queue, batch)
        elif code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self._complete(batch, -1, -1)
        elif self._can_retry(queue, batch, code, row):
            log.info("%r: %s; retrying", batch, code.name)
            leader = self._cluster.leader(batch.tp)
            if leader is not None and leader.epoch > batch.leader_epoch >= 0:
                batch.backoff_until = now  # the leader has changed: retry at once (KIP-951)
            else:
                batch.backoff_until = now + self._pause_s(batch.attempts - 1, self._uniform)
            self.stats.retried(batch, now)
            self._accumulator.reenqueue(queue, batch)
        else:
            self._fail_refused(queue, batch, self._error(batch, code, message), row)

    def _can_retry(
        self,
        queue: PartitionQueue,
        batch: Batch,
        code: ErrorCode,
        row: ProduceResponse.PartitionProduceResponse | None,
    ) -> bool:
        transactions, sequence = self._transactions, queue.sequence
        if batch.attempts > self._retries:
            return False
        if transactions is None:
            return code.retriable
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            if not sequence.follows(batch) and not sequence.unresolved:
                return True  # an earlier batch was not written and is retried first
            if transactions.transactional:
                return False
            if sequence.in_flight and sequence.in_flight[0] is batch:
                transactions.restart(sequence)
            return True
        if code is ErrorCode.UNKNOWN_PRODUCER_ID and not transactions.transactional:
            transactions.restart(sequence)
            return True
        return code.retriable

    def _error(self, batch: Batch, code: ErrorCode, message: str | None) -> ClientError:
        return for_code(code, f"{batch.tp}: {message or code.message}")

    def _fail_refused(
        self,
        queue: PartitionQueue,
        batch: Batch,
        error: BaseException,
        row: ProduceResponse.PartitionProduceResponse | None,
    ) -> None:
        """Fail a batch after a fatal error; the sequence numbers of later batches have a gap before them."""
        if self._transactions is not None:
            queue.sequence.drop(batch)
            self._transactions.batch_failed(queue.sequence, error)
        record_errors: dict[int, BaseException] | None = None
        if row is not None and row.record_errors:
            code = ErrorCode.of(row.error_code)
            record_errors = {
                entry.batch_index: self._error(batch, code, entry.batch_index_error_message)
                for entry in row.record_errors
            }
        self._complete_with_error(batch, error, record_errors)

    def _complete_with_error(
        self, batch: Batch, error: BaseException, record_errors: dict[int, BaseException] | None = None
    ) -> None:
        self.stats.failed(batch, self._now)
        self._accumulator.complete(BatchResult(batch, -1, -1, error, record_errors))

    # --- expiry ---

    def _expire_batches(self, now: float) -> None:
        for batch in self._accumulator.expired(now):
            queue = self._accumulator.queue_of(batch.tp)
            error = self._accumulator.expiry_error(batch)
            self.fail_batch(queue, batch, error)

    def fail_batch(self, queue: PartitionQueue, batch: Batch, error: BaseException) -> None:
        """Fail a batch, whether or not the broker has written it."""
        if not batch.in_flight:
            self._accumulator.remove(queue, batch)
        if self._transactions is not None and batch.stamped:
            queue.sequence.unresolved = True
            self._unresolved[queue.sequence] = None
            if not batch.in_flight:
                queue.sequence.drop(batch)
        if self._transactions is not None:
            self._transactions.record_lost(error)
        self._complete_with_error(batch, error)

    def _resolve_sequences(self, transactions: Transactions) -> None:
        """Where batches have expired: when no other batch is in flight, check whether there is a gap."""
        for sequence in [s for s in self._unresolved if not s.in_flight]:
            del self._unresolved[sequence]
            if sequence.resolved():
                sequence.unresolved = False
            else:
                transactions.restart(sequence)

    def fail_all(self, error: BaseException, *, also_in_flight: bool = False) -> None:
        """Fail all batches: the producer is closed, or its transaction is aborted."""
        self._accumulator.fail_unassigned(error)
        for batch in list(self._accumulator.incomplete):
            if batch.in_flight and not also_in_flight:
                continue
            self.fail_batch(self._accumulator.queue_of(batch.tp), batch, error)
