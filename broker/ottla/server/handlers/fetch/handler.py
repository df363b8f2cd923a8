"""Fetch, versions 0 to 17.

Behaviour: a consumer or a follower reads from many partitions. The response waits until `min_bytes` are
available, a partition has an error or a follower has diverged, or `max_wait_ms` is over. Limits are Kafka's:
each partition returns at most `partition_max_bytes`, all together at most `max_bytes` (and fetch.max.bytes),
but the first batch of the first partition with data is returned whole, whatever its size (KIP-74). Leader
epochs fence (KIP-320); the response tells a diverging follower the epoch's end offset (Fetch 12 and later).
From version 7 a fetch session stores the partitions, and the response has only those with changes (KIP-227).
From version 13 topics are named by id; an unknown id is UNKNOWN_TOPIC_ID. From version 16
NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH name the leader (KIP-951). Unknown partitions come last in a
response and do not end the wait. From version 11 a consumer with a rack may be redirected to a follower
(KIP-392, replica.selector.class), and followers serve consumers. Records go from the segment's file to the
socket (sendfile), small slices through a buffer; versions 0 to 3 get them converted (`down_conversion`).
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.metadata.cache import MetadataCache
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import FetchRequest, FetchResponse
from ottla.replication.fetcher import REPLICA_STATE_FROM
from ottla.replication.isr import UNKNOWN_EPOCH
from ottla.replication.manager import ReplicaManager
from ottla.replication.replica_selector import Selector, preferred_replica
from ottla.server.authorization.auth_helper import TopicAuthorizer
from ottla.server.dispatch.counters import TopicCounters
from ottla.server.dispatch.dispatcher import Request, Route
from ottla.server.dispatch.fetch_sessions import TOPIC_IDS_FROM, FetchContext, Wanted, WantedPartition
from ottla.server.dispatch.purgatory import PartitionKey, Purgatory
from ottla.server.handlers.fetch.down_conversion import DownConverter
from ottla.server.handlers.fetch.read import READ_COMMITTED, FetchRead, SelectReplica
from ottla.server.handlers.fetch.repeated import RepeatedFetches
from ottla.server.handlers.fetch.sender import FetchQuota, FetchSender
from ottla.server.logs.page_cache_reader import ATTEMPTS_MAX, PageCacheReader, attempt_weight


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
        converter: DownConverter,
        fetch_max_bytes: int,
        selector: Selector | None = None,
        authorizer: TopicAuthorizer | None = None,
        counters: TopicCounters | None = None,
    ) -> None:
        """`selector` is replica.selector.class; `authorizer` None: every client may read every topic."""
        self.authorizer = authorizer
        self.replicas = replicas
        self.purgatory = purgatory
        self.cache = cache
        self.clock = clock
        self.quota = quota
        self.page_cache_reader = page_cache_reader
        self.fetch_max_bytes = fetch_max_bytes
        self.selector = selector
        self._counters = TopicCounters() if counters is None else counters
        self.sender = FetchSender(replicas, cache, clock, quota, self._counters, converter)
        self._repeated: RepeatedFetches | None = None

    def serve_repeated(self, route: Route) -> None:
        """Offer the route's requests to `RepeatedFetches` first, if that can serve them on this broker."""
        if self.selector is None:
            self._repeated = RepeatedFetches(
                self.replicas,
                self.purgatory.sessions,
                self.cache,
                self.clock,
                self.quota,
                self._counters,
                route.counters,
                None if self.authorizer is None else self.authorizer.may_read_unlogged,
            )
            route.repeated = self._repeated.serve

    def handle(self, request: Request) -> None:
        message = request.decode(FetchRequest)
        self.serve(request, message, self.open(request, message))

    def open(
        self, request: Request, message: FetchRequest, wanted: Wanted | None = None
    ) -> FetchContext | ErrorCode:
        """The partitions to read, or the session's error; `wanted` as in `FetchSessionCache.open`."""
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
        read = self.new_read(request, message, context)
        read.read_initial()
        if read.is_satisfied(message.min_bytes) and not read.page_misses:
            if self._repeated is not None and read.size and not read.must_respond:
                self._repeated.remember(request.frame, request.version, message, read)
            self.sender.send(request, read)
        else:
            _DelayedFetch(self, request, read, message).start()

    def new_read(self, request: Request, message: FetchRequest, context: FetchContext) -> FetchRead:
        """A FetchRead of the request, with its limits."""
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
            select_replica=self._replica_selection(message.rack_id, request) if replica_id < 0 else None,
        )
        if self.authorizer is not None:
            read.is_authorized = self.authorizer.for_read(request, follower=read.follower)
        return read

    def _replica_selection(self, rack: str, request: Request) -> SelectReplica | None:
        """Finds a replica in a consumer's rack, which requests have from version 11 on."""
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


class _DelayedFetch:
    """A request that waits for pages from disk or for changes of partitions (a purgatory FetchWatcher)."""

    __slots__ = (
        "_attempts",
        "_context",
        "_expired",
        "_handler",
        "_loading_pages",
        "_max_wait_ms",
        "_min_bytes",
        "_new_bytes",
        "_read",
        "_request",
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
        self._new_bytes = 0
        self._attempts = 0.0
        self._loading_pages = False  # threads load the pages that the last read missed
        self._expired = False  # `max_wait_ms` is over
        self.follower = read.follower
        self.watched: dict[PartitionKey, WantedPartition] = {}
        self.bucket = 0
        self.done = False

    def start(self) -> None:
        """Continue after the first read: load pages, respond, or wait."""
        if self._read.page_misses:
            self._load_pages(self._restart)
        elif self._max_wait_ms <= 0 or self._read.is_satisfied(self._min_bytes):
            self._respond()
        else:
            self._wait()

    def _restart(self) -> None:
        self._read.read_initial()
        self.start()

    def _respond(self) -> None:
        self._handler.sender.send(self._request, self._read)

    def _load_pages(self, read_again: Callable[[], None]) -> None:
        """Load the missed pages, then read again."""
        self._loading_pages = True
        self._attempts += attempt_weight(self._read.page_misses)

        def loaded(problem: OSError | None) -> None:
            self._loading_pages = False
            if self._request.abandoned:
                self._unwatch()
                return
            # After an error of the disk the read blocks, and reports the error itself.
            self._read.allow_blocking = problem is not None or self._attempts >= ATTEMPTS_MAX
            try:
                read_again()
            except Exception as e:
                self._unwatch()
                self._request.fail(e)

        self._handler.page_cache_reader.load(self._read.page_misses, loaded)

    # --- waiting ------------------------------------------------------------------------------------

    def _wait(self) -> None:
        session = self._context.session
        if session is not None:
            session.waiting = self
        else:
            for partition in self._read.fetched:
                wanted = partition.wanted
                if wanted.topic is not None and wanted not in self._read.unknown:
                    self.watched[wanted.topic, wanted.asked.partition] = wanted
        if self._min_bytes > 1:
            # Most changes do not reach min_bytes: keep the logs' sizes, to read again only if they may.
            for partition in self._read.fetched:
                partition.wanted.log_state = self._log_state(partition.wanted)
        self._handler.purgatory.watch_fetch(self, self._max_wait_ms)

    def _log_state(self, wanted: WantedPartition) -> tuple[int, int] | None:
        """(leader epoch, bytes) of a partition's log; None if its growth does not show the readable bytes."""
        replica = self._handler.replicas.find(wanted.topic or "", wanted.asked.partition)
        if replica is None or (not self.follower and replica.high_watermark < replica.log.log_end_offset):
            # Records that are not committed yet become readable without growth of the log.
            return None
        return replica.leader_epoch, replica.log.size

    def try_complete(self, key: PartitionKey) -> None:
        if self._request.abandoned:
            self._unwatch()
        elif self._loading_pages:
            return  # the read after the load includes the change
        elif self._min_bytes <= 1 or self._may_satisfy(self._wanted(key)):
            self._reread()

    def _wanted(self, key: PartitionKey) -> WantedPartition | None:
        session = self._context.session
        if session is None:
            return self.watched[key]
        watching = self._handler.purgatory.sessions.watching.get(key, ())
        return next((wanted for wanted in watching if wanted.session is session), None)

    def _may_satisfy(self, wanted: WantedPartition | None) -> bool:
        if wanted is None:
            return True
        before, now = wanted.log_state, self._log_state(wanted)
        wanted.log_state = now
        if before is None or now is None or before[0] != now[0] or now[1] < before[1]:
            return True  # another epoch, or segments were deleted meanwhile: sizes cannot be compared
        self._new_bytes += now[1] - before[1]
        return self._read.size + self._new_bytes >= self._min_bytes

    def expire(self) -> None:
        self._unwatch()
        self._expired = True
        if not self._request.abandoned and not self._loading_pages:
            self._reread()

    def _reread(self) -> None:
        """Read again; respond if the request is satisfied or expired. Handles all errors: no caller does."""
        try:
            self._new_bytes = 0
            self._read.reread()
            if self._read.page_misses:
                self._load_pages(self._reread)
            elif self._expired or self._read.is_satisfied(self._min_bytes):
                self._unwatch()
                self._respond()
        except Exception as e:
            self._unwatch()
            self._request.fail(e)

    def _unwatch(self) -> None:
        self.done = True
        session = self._context.session
        if session is not None and session.waiting is self:
            session.waiting = None
        self._handler.purgatory.unwatch_fetch(self)


def error_response(message: FetchRequest, version: int, code: ErrorCode, detail: str | None) -> FetchResponse:
    """As in Kafka: the top-level error from version 7, and, below version 13, the error of each partition."""
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
