"""Produce, versions 0 to 11.

Behaviour: every partition of the request is appended on its own and has its own error. acks=1 answers after
the append, acks=all when the in-sync replicas have it or `timeout_ms` is over (REQUEST_TIMED_OUT; the records
stay in the log), acks=0 never answers, and closes the connection when a partition failed, so that the client
looks for new metadata. Any other acks is INVALID_REQUIRED_ACKS. From version 3 a partition's records are
exactly one batch of format 2, as Kafka asks; before, message sets of formats 0 and 1 are converted on the way
in (a named slow path). zstd needs version 7. Only the admin client may write to internal topics. From
version 10 an error that a new leader explains names that leader (KIP-951).

A client over its quota is told for how long to wait, and its connection is silent for that time (KIP-219),
also with acks=0.

Transactional batches begin a transaction in a partition only if its coordinator knows of it (KIP-890, see
`produce_transactions`). Without a transactional id in the request each is refused, where Kafka refuses all
partitions for one: TRANSACTIONAL_ID_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import NamedTuple, TypeAlias

from ottla.metadata.cache import MetadataCache
from ottla.protocol.compression import Codec
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import ProduceRequest, ProduceResponse
from ottla.protocol.records import CODEC_MASK, LOG_OVERHEAD, RECORD_BATCH_OVERHEAD, TRANSACTIONAL_FLAG
from ottla.protocol.topic_names import INTERNAL_TOPICS
from ottla.replication.manager import ReplicaManager
from ottla.replication.partition import Partition
from ottla.server.authorization.topic_access import TopicAccess
from ottla.server.dispatch.counters import TopicCounters
from ottla.server.dispatch.dispatcher import Request, Route
from ottla.server.dispatch.purgatory import Purgatory
from ottla.server.dispatch.throttling import ClientThrottle
from ottla.server.handlers.cluster.leaders import HINTED_ERRORS, LeaderHints
from ottla.server.handlers.produce.response import PACKED_FROM, pack
from ottla.server.handlers.produce.transactions import Admitted, TransactionGate
from ottla.server.logs.slow_appends import SlowAppends, Verdict
from ottla.storage.log_config import LogConfig
from ottla.storage.log_validator import ValidationDeferred, single_batch
from ottla.storage.record_validation import InvalidRecords

log = logging.getLogger(__name__)


ADMIN_CLIENT_ID = "__admin_client"
LEADER_HINTS_FROM = 10

_CHECKED_FIELDS = Struct(">8xi4xb4xh")
"""Of a batch of format 2: its length, magic and attributes."""
_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_NO_LOG_START = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    )
)
"""Errors of an append that come without the log's start offset; others tell it, as in Kafka."""

Wait: TypeAlias = tuple[tuple[str, int], int, ProduceResponse.PartitionProduceResponse]
"""A partition, and the offset that its high watermark has to reach."""


class ProduceHandler:
    def __init__(
        self,
        replicas: ReplicaManager,
        purgatory: Purgatory,
        cache: MetadataCache,
        clock: Callable[[], int],
        throttle: ClientThrottle,
        gate: TransactionGate,
        slow_appends: SlowAppends,
        access: TopicAccess | None = None,
        counters: TopicCounters | None = None,
    ) -> None:
        """Without `access` everybody may write everything."""
        self._counters = TopicCounters() if counters is None else counters
        self._access = access
        self._gate = gate
        self._slow_appends = slow_appends
        self._throttle = throttle
        self._replicas = replicas
        self._purgatory = purgatory
        self._cache = cache
        self._clock = clock

    def routes(self) -> list[Route]:
        return [Route(ProduceRequest, self.handle, error_response)]

    def handle(self, request: Request) -> None:
        message = request.decode(ProduceRequest)
        acks = message.acks
        if acks not in (0, 1, -1):
            refused_acks = error_response(message, request.version, ErrorCode.INVALID_REQUIRED_ACKS, None)
            refused_acks.throttle_time_ms = self._throttle.produced(request)
            request.respond(refused_acks)
            return
        if message.transactional_id is None:
            self._append(request, message, None)
        else:
            self._gate.admit(request, message, partial(self._append, request, message))

    def _append(self, request: Request, message: ProduceRequest, admitted: Admitted | None) -> None:
        """`admitted` has a verdict for each batch that could begin a transaction; None: there may be none."""
        acks = message.acks
        now_ms = self._clock()
        response = ProduceResponse()
        waits: list[Wait] = []
        failed = False
        hints = LeaderHints(
            self._cache, request.connection.listener, enabled=request.version >= LEADER_HINTS_FROM
        )
        may_write = None if self._access is None else self._access.writable(request)
        counters = self._counters
        slow: list[_Slow] = []
        for topic in message.topic_data:
            name = topic.name
            results: list[ProduceResponse.PartitionProduceResponse] = []
            response.responses.append(
                ProduceResponse.TopicProduceResponse(name=name, partition_responses=results)
            )
            denied = may_write is not None and not may_write(name)
            refused = denied or (name in INTERNAL_TOPICS and request.client_id != ADMIN_CLIENT_ID)
            for data in topic.partition_data:
                index = data.index
                result = ProduceResponse.PartitionProduceResponse(index=index, base_offset=-1)
                results.append(result)
                replica: Partition | None = None
                try:
                    if refused:
                        raise KafkaError(_DENIED, "") if denied else self._refusal(name, index)
                    found = self._replicas.partition(name, index)
                    records = _checked(data.records, request.version, admitted is not None)
                    guard = None
                    if admitted:
                        guard = admitted.get((name, index))
                        if isinstance(guard, KafkaError):
                            raise guard
                    replica = found
                    count = counters[name]
                    count.produces += 1
                    info = replica.append_as_leader(
                        records, required_acks=acks, now_ms=now_ms, guard=guard, allow_deferral=True
                    )
                    count.bytes_in += len(records)
                    count.messages_in += info.last_offset - info.first_offset + 1
                    result.base_offset = info.first_offset
                    result.log_append_time_ms = info.log_append_time
                    result.log_start_offset = info.log_start_offset
                    if acks == -1:
                        required = info.last_offset + 1
                        enough, error = replica.enough_replicas_for(required)
                        if error:
                            raise KafkaError(error)
                        if not enough:
                            waits.append(((name, index), required, result))
                except ValidationDeferred:
                    assert replica is not None
                    slow.append(_Slow(name, result, replica, records, guard))
                except Exception as e:
                    failed = True
                    self._failed(e, name, result, replica, hints)
        if slow:
            self._settle(_Appended(request, message, response, hints, waits, failed), slow)
        else:
            self._finish(request, message, response, hints, waits, failed)

    def _failed(
        self,
        error: Exception,
        topic: str,
        result: ProduceResponse.PartitionProduceResponse,
        replica: Partition | None,
        hints: LeaderHints,
    ) -> None:
        self._note_failure(error, topic, result, hints)
        if replica is not None:
            self._counters[topic].failed_produces += 1
            if result.error_code not in _NO_LOG_START:
                result.log_start_offset = replica.log.log_start_offset

    def _settle(self, appended: _Appended, slow: list[_Slow]) -> None:
        """Look into these batches elsewhere, and append them then. The request's bytes stay until then."""
        left = len(slow)

        def settled(one: _Slow, config: LogConfig, verdict: Verdict) -> None:
            nonlocal left
            try:
                if one.replica.log.config is not config:
                    look_into(one)  # by other rules than it would be kept by
                    return
                self._append_settled(appended, one, verdict)
                left -= 1
                if not left:
                    self._finish(
                        appended.request,
                        appended.message,
                        appended.response,
                        appended.hints,
                        appended.waits,
                        appended.failed,
                    )
            except Exception as e:
                appended.request.fail(e)

        def look_into(one: _Slow) -> None:
            config = one.replica.log.config
            self._slow_appends.submit(one.records, config, self._clock(), partial(settled, one, config))

        for one in slow:
            look_into(one)

    def _append_settled(self, appended: _Appended, one: _Slow, verdict: Verdict) -> None:
        result, acks = one.result, appended.message.acks
        try:
            if isinstance(verdict, KafkaError):
                raise verdict
            info = one.replica.append_as_leader(
                one.records, required_acks=acks, now_ms=self._clock(), guard=one.guard, validated=verdict
            )
            count = self._counters[one.topic]
            count.bytes_in += len(one.records)
            count.messages_in += info.last_offset - info.first_offset + 1
            result.base_offset = info.first_offset
            result.log_append_time_ms = info.log_append_time
            result.log_start_offset = info.log_start_offset
            if acks == -1:
                enough, error = one.replica.enough_replicas_for(info.last_offset + 1)
                if error:
                    raise KafkaError(error)
                if not enough:
                    appended.waits.append(((one.topic, result.index), info.last_offset + 1, result))
        except Exception as e:
            appended.failed = True
            self._failed(e, one.topic, result, one.replica, appended.hints)

    def _finish(
        self,
        request: Request,
        message: ProduceRequest,
        response: ProduceResponse,
        hints: LeaderHints,
        waits: list[Wait],
        failed: bool,
    ) -> None:
        """Answer, or wait for the replicas."""
        acks = message.acks
        if waits:
            pending = _Pending(request, response, hints, self._throttle, len(waits), failed=failed)
            timeout_ms = max(message.timeout_ms, 0)
            request.defer_response()
            for key, offset, result in waits:
                self._purgatory.await_replication(
                    key, offset, timeout_ms, partial(pending.settled, key, result)
                )
            return
        response.throttle_time_ms = self._throttle.produced(request, acks)
        if acks == 0:
            if failed:
                request.connection.close(
                    "a Produce with acks=0 failed: the client must look for new metadata"
                )
            else:
                request.respond_nothing()
            return
        if failed:
            _add_endpoints(response, hints)
            request.respond(response)
        else:
            _respond_success(request, response)

    def _refusal(self, topic: str, partition: int) -> KafkaError:
        """Why a client's batch for an internal topic is not taken."""
        if self._cache.partition(topic, partition) is None:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition} is not known")
        return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is internal")

    def _note_failure(
        self,
        error: Exception,
        topic: str,
        result: ProduceResponse.PartitionProduceResponse,
        hints: LeaderHints,
    ) -> None:
        if isinstance(error, KafkaError):
            code, detail = error.code, error.message or None
            if isinstance(error, InvalidRecords):
                result.record_errors = [
                    ProduceResponse.BatchIndexAndErrorMessage(
                        batch_index=each.batch_index, batch_index_error_message=each.message
                    )
                    for each in error.record_errors
                ]
        elif isinstance(error, OSError):
            log.error("append to %s-%d failed: %s", topic, result.index, error)
            code, detail = ErrorCode.KAFKA_STORAGE_ERROR, None
        else:
            log.error("append to %s-%d failed", topic, result.index, exc_info=error)
            code, detail = ErrorCode.UNKNOWN_SERVER_ERROR, None
        _set_error(result, topic, code, detail, hints)


class _Slow(NamedTuple):
    """A batch that is to be looked into elsewhere first."""

    topic: str
    result: ProduceResponse.PartitionProduceResponse
    replica: Partition
    records: bytes | memoryview
    guard: object | None


class _Appended:
    """A request of which some batches are yet to be looked into, and what became of the others."""

    __slots__ = ("failed", "hints", "message", "request", "response", "waits")

    def __init__(
        self,
        request: Request,
        message: ProduceRequest,
        response: ProduceResponse,
        hints: LeaderHints,
        waits: list[Wait],
        failed: bool,
    ) -> None:
        self.request = request
        self.message = message
        self.response = response
        self.hints = hints
        self.waits = waits
        self.failed = failed


class _Pending:
    """An acks=all request whose partitions wait for their high watermarks."""

    __slots__ = ("_failed", "_hints", "_remaining", "_request", "_response", "_throttle")

    def __init__(
        self,
        request: Request,
        response: ProduceResponse,
        hints: LeaderHints,
        throttle: ClientThrottle,
        remaining: int,
        *,
        failed: bool,
    ) -> None:
        self._failed = failed
        self._request = request
        self._response = response
        self._hints = hints
        self._throttle = throttle
        self._remaining = remaining

    def settled(
        self, key: tuple[str, int], result: ProduceResponse.PartitionProduceResponse, error: ErrorCode
    ) -> None:
        if error:
            self._failed = True
            _set_error(result, key[0], error, None, self._hints)
        self._remaining -= 1
        if self._remaining or self._request.abandoned:
            return
        self._response.throttle_time_ms = self._throttle.produced(self._request)
        if self._failed:
            _add_endpoints(self._response, self._hints)
            self._request.respond(self._response)
        else:
            _respond_success(self._request, self._response)


def _respond_success(request: Request, response: ProduceResponse) -> None:
    if request.version >= PACKED_FROM:
        request.respond_raw((pack(response, request.correlation_id),))
    else:
        request.respond(response)


def _checked(records: bytes | memoryview | None, version: int, transactional: bool) -> bytes | memoryview:
    """What of Kafka's rules about a partition's records depends on the request's version, and on whether it
    names a transactional id."""
    if version < 3:
        return records or b""
    if not records or len(records) < RECORD_BATCH_OVERHEAD:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            "Produce requests from version 3 must have exactly one record batch per partition",
        )
    length, magic, attributes = _CHECKED_FIELDS.unpack_from(records)
    if magic != 2:
        raise KafkaError(
            ErrorCode.INVALID_RECORD if 0 <= magic < 2 else ErrorCode.CORRUPT_MESSAGE,
            f"Produce requests from version 3 may not hold format {magic}",
        )
    if length + LOG_OVERHEAD != len(records):
        records = single_batch(memoryview(records))
    if attributes & TRANSACTIONAL_FLAG and not transactional:
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "")
    if version < 7 and attributes & CODEC_MASK == Codec.ZSTD:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7")
    return records


def _set_error(
    result: ProduceResponse.PartitionProduceResponse,
    topic: str,
    code: ErrorCode,
    detail: str | None,
    hints: LeaderHints,
) -> None:
    result.error_code = code
    result.error_message = detail
    result.base_offset = result.log_append_time_ms = result.log_start_offset = -1
    if code in HINTED_ERRORS:
        leader = hints.leader_of(topic, result.index)
        if leader is not None:
            result.current_leader = ProduceResponse.LeaderIdAndEpoch(
                leader_id=leader[0], leader_epoch=leader[1]
            )


def _add_endpoints(response: ProduceResponse, hints: LeaderHints) -> None:
    response.node_endpoints = [
        ProduceResponse.NodeEndpoint(node_id=e.id, host=e.host, port=e.port, rack=e.rack)
        for e in hints.endpoints.values()
    ]


def error_response(
    message: ProduceRequest, version: int, code: ErrorCode, detail: str | None
) -> ProduceResponse:
    return ProduceResponse(
        responses=[
            ProduceResponse.TopicProduceResponse(
                name=topic.name,
                partition_responses=[
                    ProduceResponse.PartitionProduceResponse(
                        index=p.index, error_code=code, error_message=detail, base_offset=-1
                    )
                    for p in topic.partition_data
                ],
            )
            for topic in message.topic_data
        ]
    )
