"""Fetch, versions 0 to 17.

Behaviour: a consumer or a follower reads from many partitions; the answer waits until `min_bytes` are
there, something is wrong or diverged, or `max_wait_ms` is over. Limits are Kafka's: each partition gives at
most `partition_max_bytes`, all together at most `max_bytes` (and fetch.max.bytes), but the first batch of
the first partition that has any goes out whole, however big (KIP-74). Epochs fence (KIP-320); a follower
that diverged is told where (Fetch 12 and later). From version 7 a session remembers what was asked, and the
answer has only what is new (KIP-227). From version 13 topics go by id, an unknown one is UNKNOWN_TOPIC_ID.
From version 16 NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH name the leader (KIP-951). Unknown
partitions come last in an answer, and do not hasten it. From version 11 a consumer that says in which rack
it is may be sent to a follower (KIP-392, replica.selector.class), and followers serve consumers. Records go
from the segment's file to the socket (sendfile), small pieces through one buffer; versions 0 to 3 get them
converted (down_conversion).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.metadata.cache import MetadataCache
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import FetchRequest, FetchResponse
from ottla.replication.fetcher import REPLICA_STATE_FROM
from ottla.replication.isr import UNKNOWN_EPOCH
from ottla.replication.manager import ReplicaManager
from ottla.replication.replica_selector import Selector, preferred_replica
from ottla.server.authorization.auth_helper import TopicAuthorizer
from ottla.server.dispatch.counters import TopicCounters
from ottla.server.dispatch.dispatcher import Request
from ottla.server.dispatch.fetch_sessions import TOPIC_IDS_FROM, FetchContext, Wanted, WantedPartition
from ottla.server.dispatch.purgatory import PartitionKey, Purgatory
from ottla.server.handlers.fetch.read import FetchRead, Prefer
from ottla.server.handlers.fetch.sender import FetchQuota, FetchSender
from ottla.server.logs.page_cache_reader import TRIES_MAX, PageCacheReader, tried

READ_COMMITTED: Final = 1


class FetchHandler:
    def __init__(
        self,
        replicas: ReplicaManager,
        purgatory: Purgatory,
        cache: MetadataCache,
        clock: Callable[[], int],
        quota: FetchQuota | None = None,
        *,
        page_cache_reader: PageCacheReader,
        fetch_max_bytes: int,
        selector: Selector | None = None,
        authorizer: TopicAuthorizer | None = None,
        counters: TopicCounters | None = None,
    ) -> None:
        """`selector` is replica.selector.class; without `access` everybody may read everything."""
        self.authorizer = authorizer
        self.replicas = replicas
        self.purgatory = purgatory
        self.cache = cache
        self.clock = clock
        self.quota = quota
        self.page_cache_reader = page_cache_reader
        self.fetch_max_bytes = fetch_max_bytes
        self.selector = selector
        self.answers = FetchSender(
            replicas, cache, clock, quota, TopicCounters() if counters is None else counters
        )

    def handle(self, request: Request) -> None:
        message = request.decode(FetchRequest)
        self.serve(request, message, self.open(request, message))

    def open(
        self, request: Request, message: FetchRequest, wanted: Wanted | None = None
    ) -> FetchContext | ErrorCode:
        """What is to be read, or what is wrong with the session; `wanted` as in `FetchSessionCache.open`."""
        version = request.version
        return self.purgatory.sessions.open(
            message,
            version,
            replica_id=_replica(message, version)[0],
            name_of=self.cache.topic_name,
            now_ms=self.clock(),
            wanted=wanted,
        )

    def serve(self, request: Request, message: FetchRequest, context: FetchContext | ErrorCode) -> None:
        if isinstance(context, ErrorCode):
            request.respond(FetchResponse(error_code=context))
            return
        read = self.reading(request, message, context)
        read.first()
        if read.has(message.min_bytes) and not read.misses:
            self.answers.send(request, read)
        else:
            _Fetch(self, request, read, message).start()

    def reading(self, request: Request, message: FetchRequest, context: FetchContext) -> FetchRead:
        """Reads for the request, under its limits."""
        version = request.version
        replica_id, broker_epoch = _replica(message, version)
        max_bytes = min(message.max_bytes, self.fetch_max_bytes)
        if self.quota is not None and self.quota.limits_fetches and replica_id < 0:
            max_bytes = min(max_bytes, self.quota.max_bytes(request))
        read = FetchRead(
            self.replicas,
            self.cache,
            self.clock,
            context,
            version=version,
            replica_id=replica_id,
            broker_epoch=broker_epoch,
            max_bytes=max_bytes,
            read_committed=message.isolation_level == READ_COMMITTED,
            prefer=self._preference(message.rack_id, request) if replica_id < 0 else None,
        )
        if self.authorizer is not None:
            read.may_read = self.authorizer.for_read(request, follower=read.follower)
        return read

    def _preference(self, rack: str, request: Request) -> Prefer | None:
        """What looks for a replica near a consumer, which has a rack from version 11 on."""
        selector = self.selector
        if selector is None or not rack:
            return None
        cache, listener = self.cache, request.connection.listener

        def rack_of(broker_id: int) -> str | None:
            broker = cache.broker(broker_id, listener)
            return None if broker is None else broker.rack

        return lambda leader, offset, now_ms: preferred_replica(
            selector, leader, rack, rack_of, offset, now_ms
        )


def _replica(message: FetchRequest, version: int) -> tuple[int, int]:
    """The follower's broker id and broker epoch (KIP-903); a consumer's id is -1."""
    if version >= REPLICA_STATE_FROM:
        return message.replica_state.replica_id, message.replica_state.replica_epoch
    return message.replica_id, UNKNOWN_EPOCH


class _Fetch:
    """A request that waits, for the disk or for news (as a purgatory FetchWatcher)."""

    __slots__ = (
        "_context",
        "_due",
        "_grown",
        "_handler",
        "_loading",
        "_max_wait_ms",
        "_min_bytes",
        "_read",
        "_request",
        "_tries",
        "bucket",
        "done",
        "follower",
        "watched",
    )

    def __init__(
        self, handler: FetchHandler, request: Request, read: FetchRead, message: FetchRequest
    ) -> None:
        self._handler = handler
        self._request = request
        self._read = read
        self._context = read.context
        self._max_wait_ms = message.max_wait_ms
        self._min_bytes = min(message.min_bytes, read.max_bytes)
        self._grown = 0
        self._tries = 0.0
        self._loading = False  # a thread reads what the last read missed
        self._due = False  # it is time to answer, whatever there is
        self.follower = read.follower
        self.watched: dict[PartitionKey, WantedPartition] = {}
        self.bucket = 0
        self.done = False

    def start(self) -> None:
        """Go on after the first read."""
        if self._read.misses:
            self._load(self._start_again)
        elif self._max_wait_ms <= 0 or self._read.has(self._min_bytes):
            self._answer()
        else:
            self._wait()

    def _start_again(self) -> None:
        self._read.first()
        self.start()

    def _answer(self) -> None:
        self._handler.answers.send(self._request, self._read)

    def _load(self, read_again: Callable[[], None]) -> None:
        """Some of it has to come from the disk first."""
        self._loading = True
        self._tries += tried(self._read.misses)

        def loaded(problem: OSError | None) -> None:
            self._loading = False
            if self._request.abandoned:
                self._leave()
                return
            # After an error too: then the read itself runs into it, and says so.
            self._read.may_wait = problem is not None or self._tries >= TRIES_MAX
            try:
                read_again()
            except Exception as e:
                self._leave()
                self._request.fail(e)

        self._handler.page_cache_reader.fetch(self._read.misses, loaded)

    # --- waiting ------------------------------------------------------------------------------------

    def _wait(self) -> None:
        session = self._context.session
        if session is not None:
            session.waiting = self
        else:
            for answer in self._read.answers:
                wanted = answer.wanted
                if wanted.topic is not None and wanted not in self._read.unknown:
                    self.watched[wanted.topic, wanted.asked.partition] = wanted
        if self._min_bytes > 1:
            # Most news will not be enough: remember where the logs stand, to read only when it may be.
            for answer in self._read.answers:
                answer.wanted.log_state = self._log_state(answer.wanted)
        self._handler.purgatory.watch_fetch(self, self._max_wait_ms)

    def _log_state(self, wanted: WantedPartition) -> tuple[int, int] | None:
        """(leader epoch, bytes) of a partition's log; None if its growth says nothing."""
        replica = self._handler.replicas.find(wanted.topic or "", wanted.asked.partition)
        if replica is None or (not self.follower and replica.high_watermark < replica.log.log_end_offset):
            # What is in the log and not committed yet counts as news when it is.
            return None
        return replica.leader_epoch, replica.log.size

    def news(self, key: PartitionKey) -> None:
        if self._request.abandoned:
            self._leave()
        elif self._loading:
            return  # it will read what there is by then
        elif self._min_bytes <= 1 or self._may_be_enough(self._wanted(key)):
            self._read_again()

    def _wanted(self, key: PartitionKey) -> WantedPartition | None:
        session = self._context.session
        if session is None:
            return self.watched[key]
        watching = self._handler.purgatory.sessions.watching.get(key, ())
        return next((wanted for wanted in watching if wanted.session is session), None)

    def _may_be_enough(self, wanted: WantedPartition | None) -> bool:
        if wanted is None:
            return True
        before, now = wanted.log_state, self._log_state(wanted)
        wanted.log_state = now
        if before is None or now is None or before[0] != now[0] or now[1] < before[1]:
            return True  # another epoch, or segments were deleted meanwhile: sizes say nothing
        self._grown += now[1] - before[1]
        return self._read.size + self._grown >= self._min_bytes

    def expire(self) -> None:
        self._leave()
        self._due = True
        if not self._request.abandoned and not self._loading:
            self._read_again()

    def _read_again(self) -> None:
        """Answer if there is enough, or if it is time. No caller above could turn an error into an answer."""
        try:
            self._grown = 0
            self._read.again()
            if self._read.misses:
                self._load(self._read_again)
            elif self._due or self._read.has(self._min_bytes):
                self._leave()
                self._answer()
        except Exception as e:
            self._leave()
            self._request.fail(e)

    def _leave(self) -> None:
        self.done = True
        session = self._context.session
        if session is not None and session.waiting is self:
            session.waiting = None
        self._handler.purgatory.unwatch_fetch(self)


def error_response(message: FetchRequest, version: int, code: ErrorCode, detail: str | None) -> FetchResponse:
    """As Kafka: the top-level error from version 7, and every partition of a request by names too."""
    topics = message.topics if version < TOPIC_IDS_FROM else []
    return FetchResponse(
        error_code=code,
        session_id=message.session_id,
        responses=[
            FetchResponse.FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    FetchResponse.PartitionData(
                        partition_index=p.partition, error_code=code, high_watermark=-1
                    )
                    for p in topic.partitions
                ],
            )
            for topic in topics
        ],
    )
