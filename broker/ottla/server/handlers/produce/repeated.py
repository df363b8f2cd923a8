"""Produce requests that equal an earlier one in all but correlation id and records: the hot path.

A client that writes to a partition sends the same header, acks, timeout, topic and partition again and again.
The produce handler remembers these bytes of a request of one partition that has succeeded (`remember`). The
dispatcher offers each Produce request to `serve` first, which compares the bytes in place of parsing and
decoding them, appends the records, and packs the response from a template.

`serve` handles only what succeeds. It leaves a request to the handler, with nothing changed, if the request
is another one, if the client may not write to the topic, or if the append fails: an append that raises has
not appended, so that the handler meets the same error. It is not used for a request that is to be logged or
traced. Requests with acks=all wait for their replicas as those of the handler do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Final, TypeAlias

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import ProduceRequest
from ottla.protocol.records import LOG_OVERHEAD, MAGIC_V2, RECORD_BATCH_OVERHEAD, TRANSACTIONAL_FLAG
from ottla.protocol.wire import write_varint
from ottla.replication.manager import ReplicaManager
from ottla.replication.partition import ACKS_ALL
from ottla.server.dispatch.counters import TIMED_EVERY, RequestCounters, RequestTimer, TopicCounters
from ottla.server.dispatch.dispatcher import respond_timed
from ottla.server.dispatch.purgatory import Purgatory
from ottla.server.dispatch.throttling import ClientThrottle
from ottla.server.network.channel import Connection, PendingResponse
from ottla.storage.log import LogAppendInfo

VERSIONS: Final = range(9, 12)
"""Their requests and responses have one layout."""
KEPT_MAX: Final = 4096
"""Remembered requests of a broker; all are forgotten when there are more."""
KEY_AT: Final = 8
"""The remembered bytes begin after API key, version and correlation id."""

RespondError: TypeAlias = Callable[
    [Connection, "PendingResponse | None", "RepeatedProduce", int, int, ErrorCode], None
]
"""(connection, its deferred response if there is one, request, correlation id, throttle time in ms, error)"""
MayWrite: TypeAlias = Callable[[Connection, str], bool]
"""Whether the client of the connection may write to the topic, and nothing has to be logged about it."""

_HEAD: Final = Struct(">hhih")  # API key, version, correlation id, length of the client id
_AFTER_CLIENT_ID: Final = 19
"""From the end of the client id's length: tagged fields, transactional id, acks, timeout, number of topics.
The name of a topic is next, its length first."""
_NAME_TO_RECORDS: Final = 5  # the length of the name is one more than its bytes; number of partitions, index
_NAME_BYTES_MAX: Final = 126  # of a length in one byte
CHECKED_FIELDS: Final = Struct(">8xi4xb4xh")
"""Fields of a batch of format 2: length, magic and attributes."""
_NO_TAGGED_FIELDS: Final = memoryview(b"\0\0\0")  # of partition, topic and request
NO_RECORD_ERRORS: Final = 1


class RepeatedProduce:
    """A remembered request, and its response but for what differs."""

    __slots__ = ("acks", "client_id", "index", "pack", "prefix", "size", "timeout_ms", "topic", "version")

    def __init__(
        self, version: int, client_id: str | None, topic: str, index: int, acks: int, timeout_ms: int
    ) -> None:
        self.version = version
        self.client_id = client_id
        self.topic = topic
        self.index = index
        self.acks = acks
        self.timeout_ms = timeout_ms
        name = topic.encode()
        # No tagged fields, one topic, its name, one partition.
        self.prefix = b"\0" + write_varint(2) + write_varint(len(name) + 1) + name + write_varint(2)
        # size, correlation id, prefix, index .. log start offset, no record errors, no tagged fields of the
        # partition and the topic, throttle time, no tagged fields
        layout = Struct(f">ii{len(self.prefix)}sihqqqBxxxix")
        self.pack = layout.pack
        self.size = layout.size - 4

    def response(self, correlation_id: int, info: LogAppendInfo, throttle_ms: int) -> bytes:
        """The frame of a response without an error."""
        return self.pack(
            self.size,
            correlation_id,
            self.prefix,
            self.index,
            0,
            info.first_offset,
            info.log_append_time,
            info.log_start_offset,
            NO_RECORD_ERRORS,
            throttle_ms,
        )


class RepeatedRequests:
    """See the module."""

    def __init__(
        self,
        replicas: ReplicaManager,
        purgatory: Purgatory,
        clock: Callable[[], int],
        throttle: ClientThrottle,
        counters: TopicCounters,
        requests: RequestCounters,
        respond_error: RespondError,
        may_write: MayWrite | None,
    ) -> None:
        """`requests`: the counters of the API. `respond_error` responds for records that were appended, and
        not replicated. `may_write` None: every client may."""
        self._may_write = may_write
        self._find = replicas.find
        self._purgatory = purgatory
        self._clock = clock
        self._throttle = throttle
        self._counters = counters
        self._requests = requests
        self._respond_error = respond_error
        self._kept: dict[bytes, RepeatedProduce] = {}

    def remember(
        self, frame: memoryview, version: int, client_id: str | None, message: ProduceRequest
    ) -> None:
        """Keep a request that has succeeded, if it is of one partition and `serve` can find it again."""
        if version not in VERSIONS or message.transactional_id is not None or message.acks == 0:
            return
        (topic,) = message.topic_data
        (data,) = topic.partition_data
        at = _records_at(frame, topic.name)
        if at == 0:
            return
        key = bytes(frame[KEY_AT:at])
        kept = self._kept
        if key not in kept:
            if len(kept) >= KEPT_MAX:
                kept.clear()
            kept[key] = RepeatedProduce(
                version, client_id, topic.name, data.index, message.acks, message.timeout_ms
            )

    def serve(
        self, connection: Connection, frame: memoryview, loop_clock: Callable[[], float] | None
    ) -> bool:
        """Append the records of a remembered request, and respond. False: nothing was done. `loop_clock`
        measures a sample of the requests; None: they are left to the handler."""
        try:
            api_key, version, correlation_id, client_bytes = _HEAD.unpack_from(frame)
            at = client_bytes + _AFTER_CLIENT_ID
            at += frame[at] + _NAME_TO_RECORDS
            repeated = self._kept.get(bytes(frame[KEY_AT:at]))
            if repeated is None or repeated.version != version or api_key:
                return False
            topic, may_write = repeated.topic, self._may_write
            if may_write is not None and not may_write(connection, topic):
                return False
            counts = self._requests.by_version
            number = counts[version] + 1
            timer: RequestTimer | None = None
            if not number % TIMED_EVERY:
                if loop_clock is None:
                    return False
                timer = RequestTimer(loop_clock, connection.active_s, self._requests)
            # The records' length + 1, a varint.
            length = frame[at] - 1
            at += 1
            if length >= 0x7F:
                more = frame[at]
                at += 1
                length += (more - 1) << 7
                if more >= 0x80:
                    most = frame[at]
                    at += 1
                    length += (most - 1) << 14
                    if most >= 0x80:
                        return False
            end = at + length
            if frame[end:] != _NO_TAGGED_FIELDS or length < RECORD_BATCH_OVERHEAD:
                return False
            records = frame[at:end]
            batch_bytes, magic, attributes = CHECKED_FIELDS.unpack_from(records)
            if magic != MAGIC_V2 or batch_bytes + LOG_OVERHEAD != length or attributes & TRANSACTIONAL_FLAG:
                return False
            acks = repeated.acks
            partition = self._find(topic, repeated.index)
            if partition is None:
                return False
            info = partition.append_as_leader(
                records, required_acks=acks, now_ms=self._clock(), allow_deferral=True
            )
        except Exception:
            return False  # The handler meets the same error, and responds.
        counts[version] = number
        count = self._counters[topic]
        count.produces += 1
        count.bytes_in += length
        count.messages_in += info.last_offset - info.first_offset + 1
        if acks == ACKS_ALL:
            offset = info.last_offset + 1
            enough, error = partition.enough_replicas_for(offset)
            if error:
                throttle_ms = self._throttle_ms(connection, repeated, len(frame))
                self._respond_error(connection, None, repeated, correlation_id, throttle_ms, error)
                return True
            if not enough:
                pending = connection.defer_response()
                if timer is not None:
                    timer.pause()
                replicated = partial(
                    self._replicated, connection, pending, repeated, correlation_id, info, timer, len(frame)
                )
                self._purgatory.await_replication(
                    partition.key, offset, max(repeated.timeout_ms, 0), replicated
                )
                return True
        throttle_ms = (
            self._throttle_ms(connection, repeated, len(frame)) if self._throttle.limits_produces else 0
        )
        parts = (repeated.response(correlation_id, info, throttle_ms),)
        respond_timed(connection, None, parts, timer)
        return True

    def _replicated(
        self,
        connection: Connection,
        pending: PendingResponse,
        repeated: RepeatedProduce,
        correlation_id: int,
        info: LogAppendInfo,
        timer: RequestTimer | None,
        request_bytes: int,
        error: ErrorCode,
    ) -> None:
        if connection.closed:
            return
        throttle_ms = self._throttle_ms(connection, repeated, request_bytes)
        if error:
            self._respond_error(connection, pending, repeated, correlation_id, throttle_ms, error)
            return
        parts = (repeated.response(correlation_id, info, throttle_ms),)
        respond_timed(connection, pending, parts, timer)

    def _throttle_ms(self, connection: Connection, repeated: RepeatedProduce, request_bytes: int) -> int:
        return self._throttle.produced_by(connection, repeated.client_id, request_bytes)


def _records_at(frame: memoryview, topic: str) -> int:
    """Where the length of the records is in a request of one partition; 0 if `serve` would not find it there:
    the header has tagged fields, or the topic's name is long."""
    _, _, _, client_bytes = _HEAD.unpack_from(frame)
    name = topic.encode()
    tagged = KEY_AT + 2 + client_bytes
    if client_bytes < 0 or len(name) > _NAME_BYTES_MAX or frame[tagged]:
        return 0
    at = int(client_bytes) + _AFTER_CLIENT_ID
    assert bytes(frame[at + 1 : at + 1 + len(name)]) == name
    return at + frame[at] + _NAME_TO_RECORDS
