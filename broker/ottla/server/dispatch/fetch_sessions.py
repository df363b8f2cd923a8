"""Fetch sessions (KIP-227): the partitions that a client has requested, so that its next requests name only
changes.

Called by the fetch handler (`open`, then the context's `to_read`, `choose` and `commit`) and by the purgatory
(`mark_dirty`, when a partition changes). Pure: time is passed in, in milliseconds.

The session epoch of a request says which of three kinds of fetch it is. A *full* fetch (0) names all its
partitions and begins a session. A *final* fetch (-1) names all its partitions and ends the session that it
names. An *incremental* fetch (1 and up) continues its session: it adds, changes and forgets partitions, and
the response has only those partitions that changed: with records, an error, a divergence, or another high
watermark or log start offset than in the last response.

Kafka looks at every partition of a session in every fetch. Here a session has the set of those that may have
changed (`dirty`), and a fetch looks at no others. A partition leaves the set when a response has everything
of it (`caught_up`), and is added when it is requested again or when replication changes it. A leader learns
from the fetch of a caught-up partition that the follower is alive and has everything. It learns that late
here: with the change that makes the partition dirty, or when the session ends
(`Partition.follower_was_idle`).

Invariants: a partition of a cached session is in `watching` once its topic's name is known; one that is not
in `dirty` is caught up; `_sessions` is in the order of last use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Sized
from functools import partial
from operator import attrgetter
from random import Random
from typing import Final, Protocol, TypeAlias, TypeVar
from uuid import UUID

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import FetchRequest

CONSUMER: Final = -1
"""The replica id of consumers."""
NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
TOPIC_IDS_FROM: Final = 13
EVICTION_MS: Final = 120_000
"""A session that is unused for longer is stale; a younger one is not evicted because of its small size."""
DEFAULT_SLOTS: Final = 1000
DEFAULT_PARTITIONS_MAX: Final = 100_000
SESSION_SHARE: Final = 5
"""One consumer's session may have 1/SESSION_SHARE of `partitions_max`."""
READ_MAX: Final = 5000
"""The partitions that one incremental fetch looks at; the others follow in the next one."""
_MAX_INT: Final = 0x7FFFFFFF

Key: TypeAlias = tuple[int | str, int]
"""A partition as in the request: topic id (as an int) from version 13 on, before that topic name; index."""
NameOf: TypeAlias = Callable[[UUID], str | None]
"""Topic id -> topic name; None if this broker does not know the id."""


class WatchedPartition(Protocol):
    """The part of replication's Partition that sessions use."""

    topic: str
    partition: int

    def follower_was_idle(self, broker_id: int, at_ms: int, leader_epoch: int) -> None: ...


Find: TypeAlias = Callable[[str, int], WatchedPartition | None]


class FetchWatcher(Protocol):
    """A fetch that waits for records in the purgatory."""

    bucket: int
    """The purgatory's, for its deadline."""
    done: bool
    follower: bool

    @property
    def watched(self) -> Iterable[tuple[str, int]]:
        """Its partitions; none if it waits in a session."""

    def try_complete(self, key: tuple[str, int]) -> None:
        """This partition has changed: respond if there is enough."""

    def expire(self) -> None:
        """The deadline has passed: respond with what there is."""


class PartitionResponse(Protocol):
    """The part of a partition's response that sessions use."""

    wanted: WantedPartition
    error: ErrorCode
    high_watermark: int
    log_start_offset: int
    size: int
    diverging: tuple[int, int] | None
    preferred: int
    caught_up: bool
    """Until replication changes the partition, the same request will have the same response."""


class WantedPartition:
    """A partition of a fetch: the last request for it and, in a session, the last response about it."""

    __slots__ = (
        "asked",
        "high_watermark",
        "log_start_offset",
        "log_state",
        "order",
        "session",
        "topic",
        "topic_id",
    )

    high_watermark: int
    log_start_offset: int
    session: FetchSession
    order: int
    """Its place in the session's round robin. This field and those above are set in a session only."""
    log_state: tuple[int, int] | None
    """(leader epoch, bytes) of its log at the last read, where a fetch waits for min_bytes above 1."""

    def __init__(self, topic: str | None, topic_id: UUID, asked: FetchRequest.FetchPartition) -> None:
        self.topic = topic
        """None while this broker does not know the topic id."""
        self.topic_id = topic_id
        self.asked = asked

    def key(self, by_topic_id: bool) -> Key:
        return (self.topic_id.int if by_topic_id else self.topic or ""), self.asked.partition

    def report_idle_follower(self, replica: WatchedPartition) -> None:
        """Report the session's last fetch, which skipped this partition, to the leader's replica."""
        session = self.session
        replica.follower_was_idle(session.replica_id, session.last_used_ms, self.asked.current_leader_epoch)

    def has_changed(self, response: PartitionResponse) -> bool:
        """Whether an incremental response has to include this partition."""
        return (
            response.size != 0
            or response.high_watermark != self.high_watermark
            or response.log_start_offset != self.log_start_offset
            or response.error is not ErrorCode.NONE
            or response.diverging is not None
            or response.preferred >= 0
        )


Wanted: TypeAlias = dict[Key, WantedPartition]
R = TypeVar("R", bound=PartitionResponse)
_by_order = attrgetter("order")


class FetchSession:
    """The partitions of one client's session, and its epoch."""

    __slots__ = (
        "_last_order",
        "by_topic_id",
        "created_ms",
        "dirty",
        "epoch",
        "id",
        "last_used_ms",
        "partitions",
        "privileged",
        "replica_id",
        "waiting",
    )

    def __init__(self, session_id: int, *, replica_id: int, by_topic_id: bool, now_ms: int) -> None:
        self.id = session_id
        self.replica_id = replica_id
        self.privileged = replica_id >= 0
        """Whether it is a follower's: these evict consumers' sessions."""
        self.by_topic_id = by_topic_id
        self.created_ms = self.last_used_ms = now_ms
        self.epoch = 1
        """The epoch of the next request."""
        self.partitions: Wanted = {}
        self.dirty: set[WantedPartition] = set()
        self.waiting: FetchWatcher | None = None
        """The fetch that waits for changes of these partitions."""
        self._last_order = 0

    def add(self, wanted: WantedPartition) -> None:
        wanted.session = self
        wanted.high_watermark = wanted.log_start_offset = -1
        wanted.log_state = None
        self.partitions[wanted.key(self.by_topic_id)] = wanted
        self.move_to_end(wanted)
        self.dirty.add(wanted)

    def move_to_end(self, wanted: WantedPartition) -> None:
        """Move a partition to the end of the round robin: the size of a response is limited, and the others
        come first in the next one."""
        self._last_order += 1
        wanted.order = self._last_order

    def record_response(self, response: PartitionResponse) -> None:
        """Remember `response` as the last response about its partition."""
        wanted = response.wanted
        # After an error, the next response has to include the partition.
        wanted.high_watermark = -1 if response.error else response.high_watermark
        wanted.log_start_offset = response.log_start_offset
        if response.caught_up:
            self.dirty.discard(wanted)


class FullFetch:
    """A fetch that names all its partitions. `begin` makes a session of its responses; None: no session."""

    __slots__ = ("_begin", "_wanted", "error", "session", "session_id")
    has_more = False

    def __init__(
        self, wanted: Wanted, begin: Callable[[Sequence[PartitionResponse], int], int] | None
    ) -> None:
        self._wanted = wanted
        self._begin = begin
        self.error = ErrorCode.NONE
        self.session: FetchSession | None = None
        self.session_id = NO_SESSION

    def __len__(self) -> int:
        return len(self._wanted)

    def to_read(self) -> Iterable[WantedPartition]:
        return self._wanted.values()

    def choose(self, responses: list[R]) -> list[R]:
        return responses

    def commit(self, responses: Sequence[PartitionResponse], now_ms: int) -> None:
        if self._begin is not None:
            self.session_id = self._begin(responses, now_ms)

    @property
    def begins(self) -> bool:
        """Whether `commit` made a session."""
        return self.session_id != NO_SESSION


class IncrementalFetch:
    """A fetch that continues a session."""

    __slots__ = ("_cache", "_epoch", "_name_of", "error", "has_more", "session", "session_id")
    begins = False

    def __init__(self, cache: FetchSessionCache, session: FetchSession, name_of: NameOf) -> None:
        self._cache = cache
        self._epoch = session.epoch
        self._name_of = name_of
        self.error = ErrorCode.NONE
        self.has_more = False
        """Whether `to_read` left partitions to the next fetch."""
        self.session = session
        self.session_id = session.id

    def __len__(self) -> int:
        return len(self.session.partitions)

    def to_read(self) -> Iterable[WantedPartition]:
        """The partitions that may have changed, in the order of the round robin."""
        wanted = sorted(self.session.dirty, key=_by_order)
        self.has_more = len(wanted) > READ_MAX
        if self.has_more:
            del wanted[READ_MAX:]
            for one in wanted:
                self.session.move_to_end(one)
        for one in wanted:
            if one.topic is None:
                self._cache.set_topic(one, self._name_of(one.topic_id))
        return wanted

    def choose(self, responses: list[R]) -> list[R]:
        """The responses of partitions that changed; none if the client has sent another fetch meanwhile."""
        if self.session.epoch != self._epoch:
            self.error = ErrorCode.INVALID_FETCH_SESSION_EPOCH
            return []
        return [response for response in responses if response.wanted.has_changed(response)]

    def commit(self, responses: Sequence[PartitionResponse], now_ms: int) -> None:
        if self.error:
            return
        session = self.session
        for response in responses:
            if response.size:
                session.move_to_end(response.wanted)
            session.record_response(response)


FetchContext: TypeAlias = FullFetch | IncrementalFetch
"""The partitions to read for a request (`to_read`; `len` counts all of them), the choice of responses to send
(`choose`), and the update of the session once they are sent (`commit`, with all responses; it sets
`session_id`)."""


class FetchSessionCache:
    """The sessions of this broker, at most `slots` (max.incremental.fetch.session.cache.slots). Consumers'
    sessions have at most `partitions_max` partitions in total.

    Kafka shards its cache because of its threads, and evicts within a shard; here there is one.
    """

    def __init__(
        self,
        random: Random,
        slots: int = DEFAULT_SLOTS,
        find: Find | None = None,
        *,
        partitions_max: int = DEFAULT_PARTITIONS_MAX,
    ) -> None:
        """`find` returns this broker's replica of a partition, to report the fetches of followers late."""
        self._random = random
        self.slots = slots
        self.partitions_max = partitions_max
        self.partitions = 0
        """The partitions of consumers' sessions in total."""
        self.find = find
        self.on_orphan: Callable[[FetchWatcher], None] | None = None
        """Called with the waiting fetch of a session that was removed: no change will complete it."""
        self.watching: dict[tuple[str, int], dict[WantedPartition, None]] = {}
        """The sessions' partitions, by topic name and index."""
        self._sessions: dict[int, FetchSession] = {}
        self.evictions = 0
        """Sessions that were removed in favour of others."""

    def cached_partitions(self) -> int:
        """The partitions of all sessions, followers' too."""
        return sum(len(session.partitions) for session in self._sessions.values())

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self,
        request: FetchRequest,
        version: int,
        *,
        replica_id: int,
        name_of: NameOf,
        now_ms: int,
        wanted: Wanted | None = None,
    ) -> FetchContext | ErrorCode:
        """The context of `request`, or the error of its session. `wanted`, if given, is what
        `wanted_partitions` finds in the request."""
        by_topic_id = version >= TOPIC_IDS_FROM
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            # It ends the session that it names.
            self._remove(self._sessions.get(request.session_id))
            if wanted is None:
                wanted = wanted_partitions(request, by_topic_id, name_of)
            if request.session_epoch == FINAL_EPOCH:
                return FullFetch(wanted, None)
            return FullFetch(wanted, partial(self._begin, replica_id, by_topic_id))
        session = self._sessions.get(request.session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != request.session_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.by_topic_id != by_topic_id:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        if wanted is None:
            wanted = wanted_partitions(request, by_topic_id, name_of)
        if (
            wanted
            and not session.privileged
            and not self._has_capacity(session, wanted.keys() - session.partitions.keys(), now_ms)
        ):
            self._remove(session)
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        before = len(session.partitions)
        self._update(session, wanted, request.forgotten_topics_data)
        if not session.privileged:
            self.partitions += len(session.partitions) - before
        if not session.partitions:
            self._remove(session)
            return FullFetch(wanted, None)
        session.replica_id = replica_id
        self._use(session, now_ms)
        return IncrementalFetch(self, session, name_of)

    def _use(self, session: FetchSession, now_ms: int) -> None:
        session.last_used_ms = now_ms
        self._sessions[session.id] = self._sessions.pop(session.id)
        session.epoch = session.epoch % _MAX_INT + 1

    def only_partition(self, session_id: int, epoch: int) -> WantedPartition | None:
        """The partition of a consumer's session that has no other, if `epoch` is that of its next request."""
        session = self._sessions.get(session_id)
        if session is None or session.epoch != epoch or session.privileged or len(session.partitions) != 1:
            return None
        (wanted,) = session.partitions.values()
        return wanted

    def record_only(
        self,
        wanted: WantedPartition,
        asked: FetchRequest.FetchPartition,
        high_watermark: int,
        log_start_offset: int,
        now_ms: int,
    ) -> None:
        """The session of the `only_partition` had a request that named it, and a response with records: what
        `open` and `IncrementalFetch.commit` do then."""
        session = wanted.session
        session.replica_id = CONSUMER
        self._use(session, now_ms)
        wanted.asked = asked
        wanted.high_watermark = high_watermark
        wanted.log_start_offset = log_start_offset
        session.move_to_end(wanted)
        session.dirty.add(wanted)

    def mark_dirty(self, p: WatchedPartition, *, consumers: bool, wake_followers: bool) -> list[FetchWatcher]:
        """`p` has changed, for followers and maybe `consumers`. Returns the waiting fetches to complete."""
        woken: list[FetchWatcher] = []
        for wanted in self.watching.get((p.topic, p.partition), ()):
            session = wanted.session
            if not (consumers or session.privileged):
                continue
            if wanted not in session.dirty:
                session.dirty.add(wanted)
                if session.privileged:
                    wanted.report_idle_follower(p)
            if session.waiting is not None and (wake_followers or not session.privileged):
                woken.append(session.waiting)
        return woken

    def set_topic(self, wanted: WantedPartition, topic: str | None) -> None:
        """Set the name of a partition's topic; None: it is not known yet."""
        if topic is not None:
            wanted.topic = topic
            if self._sessions.get(wanted.session.id) is wanted.session:  # it may have been removed
                self._watch(wanted)

    # --- beginning and end --------------------------------------------------------------------------

    def _begin(
        self, replica_id: int, by_topic_id: bool, responses: Sequence[PartitionResponse], now_ms: int
    ) -> int:
        """Make a session of the responses to a full fetch; returns its id, NO_SESSION if the cache is
        full."""
        if replica_id < 0 and not self._has_capacity(None, responses, now_ms):
            return NO_SESSION
        if len(self._sessions) >= self.slots and not self._evict(replica_id >= 0, len(responses), now_ms):
            return NO_SESSION
        session_id = self._random.randint(1, _MAX_INT)
        while session_id in self._sessions:
            session_id = self._random.randint(1, _MAX_INT)
        session = FetchSession(session_id, replica_id=replica_id, by_topic_id=by_topic_id, now_ms=now_ms)
        for response in responses:
            session.add(response.wanted)
            session.record_response(response)
            self._watch(response.wanted)
        self._sessions[session_id] = session
        if not session.privileged:
            self.partitions += len(session.partitions)
        return session_id

    def _has_capacity(self, session: FetchSession | None, more: Sized, now_ms: int) -> bool:
        """Whether a consumer's session, None for a new one, may have `more` partitions; removes stale
        sessions."""
        held = 0 if session is None else len(session.partitions)
        if held + len(more) > self.partitions_max // SESSION_SHARE:
            return False
        while self.partitions + len(more) > self.partitions_max:
            oldest = next((s for s in self._sessions.values() if not s.privileged), None)
            if oldest is None or oldest is session or now_ms - oldest.last_used_ms <= EVICTION_MS:
                return False
            self.evictions += 1
            self._remove(oldest)
        return True

    def _evict(self, privileged: bool, size: int, now_ms: int) -> bool:
        """Remove a session for a new one of `size` partitions: a stale one, else one of lower priority.
        Returns whether there is one.

        Consumers' sessions have a lower priority than followers', small ones the lowest. A follower's new
        session evicts any consumer's; other sessions are evicted only after a use for EVICTION_MS.
        """
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now_ms - oldest.last_used_ms > EVICTION_MS:
            self.evictions += 1
            self._remove(oldest)
            return True
        least = min(
            (
                (session.privileged, len(session.partitions), session.id)
                for session in self._sessions.values()
                if session.last_used_ms - session.created_ms > EVICTION_MS
                or (privileged and not session.privileged)
            ),
            default=None,
        )
        if least is None or (privileged, size, 0) < least:
            return False
        self.evictions += 1
        self._remove(self._sessions[least[2]])
        return True

    def _remove(self, session: FetchSession | None) -> None:
        if session is None:
            return
        del self._sessions[session.id]
        if not session.privileged:
            self.partitions -= len(session.partitions)
        for wanted in session.partitions.values():
            self._unwatch(wanted)
            self._report_idle_follower(session, wanted)
        if session.waiting is not None and self.on_orphan is not None:
            self.on_orphan(session.waiting)

    def _report_idle_follower(self, session: FetchSession, gone: WantedPartition) -> None:
        """Report the follower's fetches to the leader's replica, as a change would have done: else the
        follower would lag from the next records on."""
        if session.privileged and self.find is not None and gone not in session.dirty:
            replica = None if gone.topic is None else self.find(gone.topic, gone.asked.partition)
            if replica is not None:
                gone.report_idle_follower(replica)

    def _update(
        self, session: FetchSession, wanted: Wanted, forgotten: Iterable[FetchRequest.ForgottenTopic]
    ) -> None:
        for key, new in wanted.items():
            known = session.partitions.get(key)
            if known is None:
                session.add(new)
                self._watch(new)
            else:
                known.asked = new.asked
                session.dirty.add(known)
        for topic in forgotten:
            head = topic.topic_id.int if session.by_topic_id else topic.topic
            for index in topic.partitions:
                gone = session.partitions.pop((head, index), None)
                if gone is not None:
                    self._report_idle_follower(session, gone)
                    session.dirty.discard(gone)
                    self._unwatch(gone)

    def _watch(self, wanted: WantedPartition) -> None:
        if wanted.topic is not None:
            self.watching.setdefault((wanted.topic, wanted.asked.partition), {})[wanted] = None

    def _unwatch(self, wanted: WantedPartition) -> None:
        if wanted.topic is not None:
            name = (wanted.topic, wanted.asked.partition)
            watchers = self.watching[name]
            del watchers[wanted]
            if not watchers:
                del self.watching[name]


def wanted_partitions(request: FetchRequest, by_topic_id: bool, name_of: NameOf) -> Wanted:
    """The request's partitions; of a partition that is named twice, the last one."""
    wanted: Wanted = {}
    for topic in request.topics:
        topic_id = topic.topic_id
        if by_topic_id:
            name = name_of(topic_id)
            for asked in topic.partitions:
                wanted[topic_id.int, asked.partition] = WantedPartition(name, topic_id, asked)
        else:
            name = topic.topic
            for asked in topic.partitions:
                wanted[name, asked.partition] = WantedPartition(name, topic_id, asked)
    return wanted
