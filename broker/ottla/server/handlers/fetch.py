"""Fetch, versions 4 to 17.

Behaviour: a consumer or a follower reads from many partitions; the answer waits until `min_bytes` are
there, something is wrong or diverged, or `max_wait_ms` is over. Limits are Kafka's: each partition gives at
most `partition_max_bytes`, all together at most `max_bytes` (and fetch.max.bytes), but the first batch of
the first partition that has any goes out whole, however big (KIP-74). Epochs fence (KIP-320); a follower
that diverged is told where (Fetch 12 and later). From version 13 topics go by id, an unknown one is
UNKNOWN_TOPIC_ID. From version 16 NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH name the leader (KIP-951).
Records go from the segment's file to the socket (sendfile), small pieces through one buffer.

Left out on purpose: versions 0 to 3 (they want formats 0 and 1: advertised when there is down-conversion);
fetch sessions (KIP-227: every answer has session id 0, which tells the client to send whole requests; an
incremental one is FETCH_SESSION_ID_NOT_FOUND); a preferred read replica other than the leader; quotas.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from ottla.metadata.cache import MetadataCache
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import FetchRequest, FetchResponse
from ottla.protocol.types import ZERO_UUID
from ottla.replication.manager import ReplicaManager
from ottla.server.dispatch import Request, Route
from ottla.server.handlers.fetch_response import FetchedPartition, FetchedTopic, build
from ottla.server.handlers.leaders import HINTED_ERRORS, LeaderHints
from ottla.server.purgatory import PartitionKey, Purgatory

READ_COMMITTED = 1
LEADER_HINTS_FROM = 16
FOLLOWER_FETCH_FROM = 11


class FetchHandler:
    def __init__(
        self,
        replicas: ReplicaManager,
        purgatory: Purgatory,
        cache: MetadataCache,
        clock: Callable[[], int],
        *,
        fetch_max_bytes: int,
    ) -> None:
        self.replicas = replicas
        self.purgatory = purgatory
        self.cache = cache
        self.clock = clock
        self.fetch_max_bytes = fetch_max_bytes

    def routes(self) -> list[Route]:
        return [Route(FetchRequest, self.handle, error_response, versions=(4, FetchRequest.max_version))]

    def handle(self, request: Request) -> None:
        message = request.decode(FetchRequest)
        if message.session_epoch > 0:
            # We gave out no session: the client falls back to whole requests on this.
            request.respond(FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
            return
        fetch = _Fetch(self, request, message)
        fetch.read(first_time=True)
        if message.max_wait_ms <= 0 or fetch.ready() or not fetch.watched:
            fetch.respond()
        else:
            fetch.wait(message.max_wait_ms)


class _Fetch:
    """One request, read once or, when it waits, again on news (a purgatory FetchWatcher)."""

    __slots__ = (
        "_base_sizes",
        "_handler",
        "_max_bytes",
        "_message",
        "_min_bytes",
        "_names",
        "_replica_id",
        "_request",
        "_results",
        "_size",
        "_urgent",
        "bucket",
        "done",
        "follower",
        "watched",
    )

    def __init__(self, handler: FetchHandler, request: Request, message: FetchRequest) -> None:
        self._handler = handler
        self._request = request
        self._message = message
        version = request.version
        self._replica_id = message.replica_state.replica_id if version >= 15 else message.replica_id
        self._max_bytes = min(message.max_bytes, handler.fetch_max_bytes)
        self._min_bytes = min(message.min_bytes, self._max_bytes)
        if version >= 13:
            topic_name = handler.cache.topic_name
            self._names: list[str | None] = [topic_name(t.topic_id) for t in message.topics]
        else:
            self._names = [t.topic for t in message.topics]
        self.watched: list[PartitionKey] = []
        self.follower = self._replica_id >= 0
        self.bucket = 0
        self.done = False
        self._results: list[FetchedTopic] = []
        self._size = 0
        self._urgent = False
        self._base_sizes: dict[PartitionKey, tuple[int, int]] | None = None

    def read(self, *, first_time: bool) -> None:
        """Read every partition as of now; `first_time` also collects what to watch."""
        handler = self._handler
        version = self._request.version
        replicas = handler.replicas
        now_ms = handler.clock()
        read_committed = self._message.isolation_level == READ_COMMITTED
        # A consumer of Fetch 11 and later may read from a follower it was sent to (KIP-392).
        leader_only = self.follower or version < FOLLOWER_FETCH_FROM
        remaining = self._max_bytes
        min_one = True
        self._urgent = False
        self._size = 0
        self._results = results = []
        for topic, name in zip(self._message.topics, self._names, strict=True):
            fetched: list[FetchedPartition] = []
            results.append((topic.topic, topic.topic_id, fetched))
            for p in topic.partitions:
                index = p.partition
                if name is None:
                    fetched.append(FetchedPartition(index, ErrorCode.UNKNOWN_TOPIC_ID))
                    self._urgent = True
                    continue
                replica = replicas.find(name, index)
                if replica is None or (
                    version >= 13 and replica.topic_id not in (None, ZERO_UUID, topic.topic_id)
                ):
                    fetched.append(FetchedPartition(index, self._why_not(name, index, topic.topic_id)))
                    self._urgent = True
                    continue
                read = replica.read(
                    p.fetch_offset,
                    min(p.partition_max_bytes, remaining),
                    replica_id=self._replica_id,
                    current_leader_epoch=p.current_leader_epoch,
                    last_fetched_epoch=p.last_fetched_epoch if version >= 12 else -1,
                    read_committed=read_committed,
                    min_one=min_one,
                    now_ms=now_ms,
                    record_progress=first_time,
                    leader_only=leader_only,
                    follower_log_start_offset=p.log_start_offset,
                )
                if read.error or read.diverging is not None:
                    self._urgent = True
                data = read.read
                size = 0 if data is None else data.size
                fetched.append(
                    FetchedPartition(
                        index,
                        read.error,
                        read.high_watermark,
                        read.last_stable_offset,
                        read.log_start_offset,
                        None if data is None else data.slices,
                        size,
                        read.diverging if version >= 12 else None,
                    )
                )
                if size:
                    min_one = False
                    remaining = max(0, remaining - size)
                    self._size += size
                if first_time:
                    self.watched.append((name, index))

    def _why_not(self, topic: str, index: int, topic_id: UUID) -> ErrorCode:
        known = self._handler.cache.partitions(topic)
        if known is None or index not in known:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if self._request.version >= 13 and self._handler.cache.topic_id(topic) != topic_id:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def ready(self) -> bool:
        return self._urgent or self._size >= self._min_bytes

    def wait(self, max_wait_ms: int) -> None:
        if self._min_bytes > 1:
            # Most news will not be enough: remember where the logs stood, to read only when it may be.
            self._base_sizes = {key: self._base(key) for key in self.watched}
        self._handler.purgatory.watch_fetch(self, max_wait_ms)

    def _base(self, key: PartitionKey) -> tuple[int, int]:
        """What a partition's growth is measured from: its log as it is, once all of it may be read."""
        replica = self._handler.replicas.find(*key)
        if replica is not None and not self.follower and replica.high_watermark < replica.log.log_end_offset:
            # What is in the log and not committed yet counts as news when it is: anything may be enough.
            return replica.leader_epoch, 0
        return self._log_state(key)

    def _log_state(self, key: PartitionKey) -> tuple[int, int]:
        """(leader epoch, bytes) of a partition's log."""
        replica = self._handler.replicas.find(*key)
        return (-1, 0) if replica is None else (replica.leader_epoch, replica.log.size)

    def news(self, key: PartitionKey) -> None:
        if self._request.abandoned:
            self._leave()
            return
        if self._base_sizes is not None and not self._may_be_enough(key):
            return
        self._read_again(due=False)

    def _may_be_enough(self, key: PartitionKey) -> bool:
        assert self._base_sizes is not None
        if self._log_state(key)[0] != self._base_sizes[key][0]:
            return True
        grown = 0
        for watched, (_, base) in self._base_sizes.items():
            difference = self._log_state(watched)[1] - base
            if difference < 0:
                return True  # segments were deleted meanwhile: sizes say nothing
            grown += difference
        return self._size + grown >= self._min_bytes

    def expire(self) -> None:
        self._leave()
        if not self._request.abandoned:
            self._read_again(due=True)

    def _read_again(self, *, due: bool) -> None:
        """Answer if there is enough, or if it is time. No caller above could turn an error into an answer."""
        try:
            self.read(first_time=False)
            if due or self.ready():
                self._leave()
                self.respond()
        except Exception as e:
            self._leave()
            self._request.fail(e)

    def _leave(self) -> None:
        self.done = True
        self._handler.purgatory.unwatch_fetch(self)

    def respond(self) -> None:
        request = self._request
        hints = LeaderHints(
            self._handler.cache,
            request.connection.listener,
            enabled=self._urgent and request.version >= LEADER_HINTS_FROM,
        )
        if hints.enabled:
            for (_, _, partitions), name in zip(self._results, self._names, strict=True):
                for p in partitions:
                    if p.error in HINTED_ERRORS and name is not None:
                        p.current_leader = hints.leader_of(name, p.index)
        request.respond_raw(
            build(
                request.version,
                request.correlation_id,
                self._results,
                read_committed=self._message.isolation_level == READ_COMMITTED,
                endpoints=hints.endpoints.values(),
            )
        )


def error_response(message: FetchRequest, version: int, code: ErrorCode, detail: str | None) -> FetchResponse:
    """As Kafka: the top-level error from version 7, and every partition of a whole request too."""
    return FetchResponse(
        error_code=code,
        responses=[
            FetchResponse.FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    FetchResponse.PartitionData(
                        partition_index=p.partition, error_code=code, high_watermark=-1, records=b""
                    )
                    for p in topic.partitions
                ],
            )
            for topic in message.topics
        ],
    )
