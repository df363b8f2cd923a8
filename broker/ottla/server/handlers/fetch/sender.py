"""Sends Fetch responses: chooses what a session has not seen, adds leader hints, applies quotas, packs the
bytes.

Called by ottla.server.handlers.fetch.handler after the last read of a request. A session's state changes only
with a response that is sent completely.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final, Protocol

from ottla.metadata.cache import BrokerEndpoint, MetadataCache
from ottla.protocol.errors import ErrorCode
from ottla.replication.manager import ReplicaManager
from ottla.server.dispatch.counters import TopicCounters
from ottla.server.dispatch.dispatcher import Request
from ottla.server.handlers.fetch.down_conversion import CONVERTED_BELOW, ZSTD_FROM, DownConverter, refuse_zstd
from ottla.server.handlers.fetch.read import FetchRead
from ottla.server.handlers.fetch.response import (
    FetchedPartition,
    FetchedTopic,
    begin_session,
    build,
    build_topics,
    by_topic,
    frame,
    size_of,
)
from ottla.server.handlers.leader_hints import HINTED_ERRORS, LeaderHints
from ottla.server.network.channel import Part
from ottla.storage.log_config import LogConfig

LEADER_HINTS_FROM: Final = 16
CHUNK_PARTITIONS: Final = 200
"""Partitions per time slice."""


class FetchQuota(Protocol):
    """The fetch quota of consumers (server.dispatch.throttling)."""

    @property
    def limits_fetches(self) -> bool:
        """Whether any client has a quota."""

    def max_bytes(self, request: Request) -> int:
        """The largest response that the quota can ever admit."""

    def throttle_ms(self, request: Request, size: int) -> int:
        """Record a response of `size` bytes; positive: the throttle time, and the response must be empty."""


class FetchSender:
    """See the module."""

    def __init__(
        self,
        replicas: ReplicaManager,
        cache: MetadataCache,
        clock: Callable[[], int],
        quota: FetchQuota | None,
        counters: TopicCounters,
        converter: DownConverter,
    ) -> None:
        self._counters = counters
        self._replicas = replicas
        self._cache = cache
        self._clock = clock
        self._quota = quota
        self._converter = converter

    def send(self, request: Request, read: FetchRead) -> None:
        context, version = read.context, request.version
        chosen = context.choose(read.fetched)
        topics = by_topic(chosen)
        if version < ZSTD_FROM:
            if version < CONVERTED_BELOW:
                self._count(chosen, follower=read.follower, converted=True)
                self._convert(request, read, topics)
                return
            refuse_zstd(topics, self._config_of)
        endpoints = self._leader_endpoints(request, chosen) if read.must_respond else ()
        parts = build(
            version,
            request.correlation_id,
            topics,
            error=context.error,
            session_id=context.session_id,
            endpoints=endpoints,
        )
        if self._commit_session(request, read, parts):
            self._count_sent(chosen, follower=read.follower)
            request.respond_raw(parts)

    def send_steps(self, request: Request, read: FetchRead) -> Generator[None, None, None]:
        """As `send`, in time slices, for versions without conversion."""
        context, version = read.context, request.version
        hints = LeaderHints(self._cache, request.connection.listener, enabled=version >= LEADER_HINTS_FROM)
        body: list[Part] = []
        count = 0
        for at in range(0, len(read.fetched), CHUNK_PARTITIONS):
            chosen = read.fetched[at : at + CHUNK_PARTITIONS]
            topics = by_topic(chosen)
            if version < ZSTD_FROM:
                refuse_zstd(topics, self._config_of)
            if hints.enabled:
                self._add_leader_hints(chosen, hints)
            count += len(topics)
            body += build_topics(version, topics)
            yield
        parts = yield from frame(
            version, request.correlation_id, count, body, context.error, list(hints.endpoints.values())
        )
        if not self._commit_session(request, read, parts):
            return
        for at in range(0, len(read.fetched), CHUNK_PARTITIONS):
            self._count_sent(read.fetched[at : at + CHUNK_PARTITIONS], follower=read.follower)
            yield
        if not request.abandoned:
            request.respond_raw(parts)

    def _commit_session(self, request: Request, read: FetchRead, parts: list[Part]) -> bool:
        """Update the session with a complete response. False if the client's quota is exceeded: then an empty
        response was sent, and the session is unchanged."""
        quota, context = self._quota, read.context
        if quota is not None and (quota.limits_fetches or request.meter is not None) and not read.follower:
            throttle_ms = quota.throttle_ms(request, size_of(parts, request.version))
            if throttle_ms > 0:
                self._send_throttled(request, read, throttle_ms)
                return False
        context.commit(read.fetched, read.read_at_ms)
        if context.begins:
            begin_session(parts, request.version, context.session_id)
        return True

    def _send_throttled(self, request: Request, read: FetchRead, throttle_ms: int) -> None:
        context = read.context
        request.respond_raw(
            build(
                request.version,
                request.correlation_id,
                [],
                error=context.error,
                session_id=context.session_id,
                throttle_ms=throttle_ms,
            )
        )

    def _leader_endpoints(self, request: Request, partitions: list[FetchedPartition]) -> list[BrokerEndpoint]:
        if request.version < LEADER_HINTS_FROM:
            return []
        hints = LeaderHints(self._cache, request.connection.listener, enabled=True)
        self._add_leader_hints(partitions, hints)
        return list(hints.endpoints.values())

    @staticmethod
    def _add_leader_hints(partitions: list[FetchedPartition], hints: LeaderHints) -> None:
        for partition in partitions:
            if partition.error in HINTED_ERRORS and partition.wanted.topic is not None:
                partition.current_leader = hints.leader_of(partition.wanted.topic, partition.index)

    def _convert(self, request: Request, read: FetchRead, topics: list[FetchedTopic]) -> None:
        """Respond with converted records, to clients that read only old formats and have no sessions."""
        throttle_ms = 0
        if self._quota is not None and not read.follower:
            throttle_ms = self._quota.throttle_ms(request, read.size)
        self._converter.respond(request, [] if throttle_ms else topics, self._config_of, throttle_ms)

    def _config_of(self, topic: str, partition: int) -> LogConfig | None:
        replica = self._replicas.find(topic, partition)
        return None if replica is None else replica.log.config

    def _count_sent(self, partitions: list[FetchedPartition], *, follower: bool) -> None:
        self._count(partitions, follower=follower)
        if follower and self._replicas.leader_quota.active:
            self._count_throttled(partitions)

    def _count(self, partitions: list[FetchedPartition], *, follower: bool, converted: bool = False) -> None:
        counters = self._counters
        for partition in partitions:
            topic = partition.wanted.topic
            error = partition.error
            if error and not converted:
                counters.fetch_errors[error] += 1
            if topic is None or error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue
            count = counters[topic]
            count.fetches += 1
            if error:
                count.failed_fetches += 1
            elif partition.size > 0:
                if follower:
                    counters.replicated_out += partition.size
                else:
                    count.bytes_out += partition.size

    def _count_throttled(self, partitions: list[FetchedPartition]) -> None:
        quota = self._replicas.leader_quota
        sent = [a for a in partitions if a.size and quota.is_throttled(a.wanted.topic or "", a.index)]
        quota.record(sum(partition.size for partition in sent), self._clock())
