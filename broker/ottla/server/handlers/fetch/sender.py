"""How the answer to a Fetch goes out: what of it is new to a session, the hints, the quotas, the bytes.

Called by ottla.server.handlers.fetch.handler when a request has been read for the last time. Until here
nothing was said; what a session remembers is said only in an answer that goes out whole.
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
from ottla.server.network.connection import Part
from ottla.storage.log_config import LogConfig

LEADER_HINTS_FROM: Final = 16
LOT: Final = 200
"""Partitions of a step."""


class FetchQuota(Protocol):
    """What holds consumers back (server.throttling)."""

    @property
    def limits_fetches(self) -> bool:
        """Whether any client has a quota."""

    def max_bytes(self, request: Request) -> int:
        """More than this at once would never get through."""

    def throttle_ms(self, request: Request, size: int) -> int:
        """Count an answer of `size` bytes; positive: how long the client, answered nothing, has to wait."""


class FetchSender:
    """Sends them."""

    def __init__(
        self,
        replicas: ReplicaManager,
        cache: MetadataCache,
        clock: Callable[[], int],
        quota: FetchQuota | None,
        counters: TopicCounters,
    ) -> None:
        self._counters = counters
        self._replicas = replicas
        self._cache = cache
        self._clock = clock
        self._quota = quota
        self._converter = DownConverter()

    def send(self, request: Request, read: FetchRead) -> None:
        context, version = read.context, request.version
        chosen = context.choose(read.answers)
        topics = by_topic(chosen)
        if version < ZSTD_FROM:
            if version < CONVERTED_BELOW:
                self._count(chosen, follower=read.follower)
                self._convert(request, read, topics)
                return
            refuse_zstd(topics, self._config_of)
        endpoints = self._name_leaders(request, chosen) if read.urgent else ()
        parts = build(
            version,
            request.correlation_id,
            topics,
            error=context.error,
            session_id=context.session_id,
            endpoints=endpoints,
        )
        if self._conclude(request, read, parts):
            self._count_sent(chosen, follower=read.follower)
            request.respond_raw(parts)

    def send_steps(self, request: Request, read: FetchRead) -> Generator[None, None, None]:
        """As `send`, for versions without conversion, in steps of some hundred partitions."""
        context, version = read.context, request.version
        hints = LeaderHints(self._cache, request.connection.listener, enabled=version >= LEADER_HINTS_FROM)
        body: list[Part] = []
        count = 0
        for at in range(0, len(read.answers), LOT):
            chosen = read.answers[at : at + LOT]
            topics = by_topic(chosen)
            if version < ZSTD_FROM:
                refuse_zstd(topics, self._config_of)
            if hints.enabled:
                self._name(chosen, hints)
            count += len(topics)
            body += build_topics(version, topics)
            yield
        parts = yield from frame(
            version, request.correlation_id, count, body, context.error, list(hints.endpoints.values())
        )
        if not self._conclude(request, read, parts):
            return
        for at in range(0, len(read.answers), LOT):
            self._count_sent(read.answers[at : at + LOT], follower=read.follower)
            yield
        if not request.abandoned:
            request.respond_raw(parts)

    def _conclude(self, request: Request, read: FetchRead, parts: list[Part]) -> bool:
        """Let the session remember an answer that is complete. False if the client's quota forbids it: then
        the client has been sent an empty answer, and the session stays as it was."""
        quota, context = self._quota, read.context
        if quota is not None and (quota.limits_fetches or request.meter is not None) and not read.follower:
            throttle_ms = quota.throttle_ms(request, size_of(parts, request.version))
            if throttle_ms > 0:
                self._send_nothing(request, read, throttle_ms)
                return False
        context.commit(read.answers, read.at_ms)
        if context.begins:
            begin_session(parts, request.version, context.session_id)
        return True

    def _send_nothing(self, request: Request, read: FetchRead, throttle_ms: int) -> None:
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

    def _name_leaders(self, request: Request, answers: list[FetchedPartition]) -> list[BrokerEndpoint]:
        if request.version < LEADER_HINTS_FROM:
            return []
        hints = LeaderHints(self._cache, request.connection.listener, enabled=True)
        self._name(answers, hints)
        return list(hints.endpoints.values())

    @staticmethod
    def _name(answers: list[FetchedPartition], hints: LeaderHints) -> None:
        for answer in answers:
            if answer.error in HINTED_ERRORS and answer.wanted.topic is not None:
                answer.current_leader = hints.leader_of(answer.wanted.topic, answer.index)

    def _convert(self, request: Request, read: FetchRead, topics: list[FetchedTopic]) -> None:
        """For clients without sessions that read only old formats."""
        throttle_ms = 0
        if self._quota is not None and not read.follower:
            throttle_ms = self._quota.throttle_ms(request, read.size)
        self._converter.respond(request, [] if throttle_ms else topics, self._config_of, throttle_ms)

    def _config_of(self, topic: str, partition: int) -> LogConfig | None:
        replica = self._replicas.find(topic, partition)
        return None if replica is None else replica.log.config

    def _count_sent(self, answers: list[FetchedPartition], *, follower: bool) -> None:
        self._count(answers, follower=follower)
        if follower and self._replicas.leader_quota.active:
            self._count_throttled(answers)

    def _count(self, answers: list[FetchedPartition], *, follower: bool) -> None:
        counters = self._counters
        for answer in answers:
            topic = answer.wanted.topic
            if topic is None or answer.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue
            count = counters[topic]
            count.fetches += 1
            if answer.error:
                count.failed_fetches += 1
            elif answer.size > 0:
                if follower:
                    counters.replicated_out += answer.size
                else:
                    count.bytes_out += answer.size

    def _count_throttled(self, answers: list[FetchedPartition]) -> None:
        quota = self._replicas.leader_quota
        sent = [a for a in answers if a.size and quota.is_throttled(a.wanted.topic or "", a.index)]
        quota.record(sum(answer.size for answer in sent), self._clock())
