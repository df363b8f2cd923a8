"""Fetch sessions (KIP-227): what a client has asked for already, so that it names only what changes.

Called by the fetch handler (`open`, then the context's `to_read`, `choose` and `commit`) and by the purgatory
(`mark`, on news of a partition). Pure: time is passed in, in milliseconds.

Three kinds of fetch, by the request's session epoch: a *full* one (0) names all it wants and begins a
session; a *final* one (-1) names all it wants and ends the session it names; an *incremental* one (1 and up)
goes on with its session, adds, alters and forgets partitions, and is answered with those alone that have
something to say: records, an error, a divergence, a high watermark or log start other than the last one said.

Kafka looks at every partition of a session at every fetch. Here a session keeps the set of those that could
have something to say (`dirty`), and a fetch looks at no others. A partition leaves the set when an answer has
said all there is (it is `settled`), and comes back when it is asked for anew or when replication has news of
it. What a leader learns from a follower's poll of a settled partition, that the follower is alive and has
everything, it is told late: with the news that ends that state, or when the session ends
(`Partition.follower_was_idle`).

Invariants: a partition of a cached session is in `watching` from the time its topic's name is known; one that
is not in `dirty` is settled; `_sessions` is in the order of last use.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence, Sized
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar
from uuid import UUID

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import FetchRequest

if TYPE_CHECKING:
    from ottla.server.dispatch.purgatory import FetchWatcher

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
TOPIC_IDS_FROM: Final = 13
EVICTION_MS: Final = 120_000
"""A session unused for longer is stale; one younger is not evicted for its small size."""
DEFAULT_SLOTS: Final = 1000
DEFAULT_PARTITIONS_MAX: Final = 100_000
SESSION_SHARE: Final = 5
"""One consumer's session may have this part of the partitions of all."""
READ_MAX: Final = 5000
"""Partitions that an incremental fetch looks at; it goes on with the others in the next one."""
_MAX_INT: Final = 0x7FFFFFFF

Key: TypeAlias = tuple[int | str, int]
"""A partition as the wire names it: by its topic's id (as an int) from version 13, before that by name."""
NameOf: TypeAlias = Callable[[UUID], str | None]
"""The name of the topic that has this id, if it is known here."""


class WatchedPartition(Protocol):
    """The part of replication's Partition that sessions look at."""

    topic: str
    partition: int

    def follower_was_idle(self, broker_id: int, at_ms: int) -> None: ...


Find: TypeAlias = Callable[[str, int], WatchedPartition | None]


class Answer(Protocol):
    """The part of a partition's answer that sessions look at."""

    wanted: WantedPartition
    error: ErrorCode
    high_watermark: int
    log_start_offset: int
    size: int
    diverging: tuple[int, int] | None
    preferred: int
    settled: bool
    """The same question will get the same answer until replication has news of the partition."""


class WantedPartition:
    """A partition of a fetch: what was asked last, and in a session, what was said last."""

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
    """Its place in the session's turn. This and what is above it: in a session alone."""
    log_state: tuple[int, int] | None
    """(leader epoch, bytes) of its log when last read, where a fetch waits for many bytes."""

    def __init__(self, topic: str | None, topic_id: UUID, asked: FetchRequest.FetchPartition) -> None:
        self.topic = topic
        """None as long as nobody here knows the topic of this id."""
        self.topic_id = topic_id
        self.asked = asked

    def key(self, by_topic_id: bool) -> Key:
        return (self.topic_id.int if by_topic_id else self.topic or ""), self.asked.partition

    def has_news(self, answer: Answer) -> bool:
        """Whether an incremental answer has to name this partition."""
        return (
            answer.size != 0
            or answer.high_watermark != self.high_watermark
            or answer.log_start_offset != self.log_start_offset
            or answer.error is not ErrorCode.NONE
            or answer.diverging is not None
            or answer.preferred >= 0
        )


Wanted: TypeAlias = dict[Key, WantedPartition]
A = TypeVar("A", bound=Answer)
_by_order = attrgetter("order")


class FetchSession:
    """One client's partitions, and where the conversation is."""

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
        """A follower's, which evicts those of consumers."""
        self.by_topic_id = by_topic_id
        self.created_ms = self.last_used_ms = now_ms
        self.epoch = 1
        """That of the next request."""
        self.partitions: Wanted = {}
        self.dirty: set[WantedPartition] = set()
        self.waiting: FetchWatcher | None = None
        """The long poll to wake with news."""
        self._last_order = 0

    def add(self, wanted: WantedPartition) -> None:
        wanted.session = self
        wanted.high_watermark = wanted.log_start_offset = -1
        wanted.log_state = None
        self.partitions[wanted.key(self.by_topic_id)] = wanted
        self.to_the_end(wanted)
        self.dirty.add(wanted)

    def to_the_end(self, wanted: WantedPartition) -> None:
        """Its turn is over: the size of an answer is limited, and the others come first next time."""
        self._last_order += 1
        wanted.order = self._last_order

    def said(self, answer: Answer) -> None:
        """`answer` goes out, or says nothing new."""
        wanted = answer.wanted
        # After an error, whatever comes is news.
        wanted.high_watermark = -1 if answer.error else answer.high_watermark
        wanted.log_start_offset = answer.log_start_offset
        if answer.settled:
            self.dirty.discard(wanted)


class WholeFetch:
    """A fetch that names all it wants. `begin` makes a session of what was answered; None: no session."""

    __slots__ = ("_begin", "_wanted", "error", "session", "session_id")
    has_more = False

    def __init__(self, wanted: Wanted, begin: Callable[[Sequence[Answer], int], int] | None) -> None:
        self._wanted = wanted
        self._begin = begin
        self.error = ErrorCode.NONE
        self.session: FetchSession | None = None
        self.session_id = NO_SESSION

    def __len__(self) -> int:
        return len(self._wanted)

    def to_read(self) -> Iterable[WantedPartition]:
        return self._wanted.values()

    def choose(self, answers: list[A]) -> list[A]:
        return answers

    def commit(self, answers: Sequence[Answer], now_ms: int) -> None:
        if self._begin is not None:
            self.session_id = self._begin(answers, now_ms)

    @property
    def begins(self) -> bool:
        """Whether `commit` made a session."""
        return self.session_id != NO_SESSION


class IncrementalFetch:
    """A fetch that goes on with a session."""

    __slots__ = ("_cache", "_epoch", "_name_of", "error", "has_more", "session", "session_id")
    begins = False

    def __init__(self, cache: FetchSessionCache, session: FetchSession, name_of: NameOf) -> None:
        self._cache = cache
        self._epoch = session.epoch
        self._name_of = name_of
        self.error = ErrorCode.NONE
        self.has_more = False
        """There are partitions that `to_read` left to the next fetch."""
        self.session = session
        self.session_id = session.id

    def __len__(self) -> int:
        return len(self.session.partitions)

    def to_read(self) -> Iterable[WantedPartition]:
        """Those that may have something to say, whose turn it is first."""
        wanted = sorted(self.session.dirty, key=_by_order)
        self.has_more = len(wanted) > READ_MAX
        if self.has_more:
            del wanted[READ_MAX:]
            for one in wanted:
                self.session.to_the_end(one)
        for one in wanted:
            if one.topic is None:
                self._cache.name(one, self._name_of(one.topic_id))
        return wanted

    def choose(self, answers: list[A]) -> list[A]:
        """The answers with news; none if the client has asked again meanwhile."""
        if self.session.epoch != self._epoch:
            self.error = ErrorCode.INVALID_FETCH_SESSION_EPOCH
            return []
        return [answer for answer in answers if answer.wanted.has_news(answer)]

    def commit(self, answers: Sequence[Answer], now_ms: int) -> None:
        if self.error:
            return
        session = self.session
        for answer in answers:
            if answer.size:
                session.to_the_end(answer.wanted)
            session.said(answer)


FetchContext: TypeAlias = WholeFetch | IncrementalFetch
"""What to read for a request (`to_read`; `len` counts all that it is about), which of the answers go out
(`choose`), and what is remembered once they do (`commit`, with all answers; then `session_id` is set)."""


class FetchSessionCache:
    """All sessions of this broker, at most `slots` (max.incremental.fetch.session.cache.slots); consumers'
    have `partitions_max` partitions together.

    Kafka shards its cache for its threads' sake, and evicts within a shard; here there is one.
    """

    def __init__(
        self,
        slots: int = DEFAULT_SLOTS,
        find: Find | None = None,
        *,
        partitions_max: int = DEFAULT_PARTITIONS_MAX,
    ) -> None:
        """`find` gives the replica of a partition here, for what its leader is told late."""
        self.slots = slots
        self.partitions_max = partitions_max
        self.partitions = 0
        """Of consumers' sessions, together."""
        self.find = find
        self.on_orphan: Callable[[FetchWatcher], None] | None = None
        """Called with the long poll of a session that is gone: no news will reach it any more."""
        self.watching: dict[tuple[str, int], set[WantedPartition]] = {}
        """Who wants to hear of a partition, by topic name and index."""
        self._sessions: dict[int, FetchSession] = {}

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
        """What `request` is to read, or what is wrong with its session. `wanted`, if it is known, is what
        `wanted_partitions` finds in the request."""
        by_topic_id = version >= TOPIC_IDS_FROM
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            # Whatever session it names is over.
            self._remove(self._sessions.get(request.session_id))
            if wanted is None:
                wanted = wanted_partitions(request, by_topic_id, name_of)
            if request.session_epoch == FINAL_EPOCH:
                return WholeFetch(wanted, None)
            return WholeFetch(wanted, partial(self._begin, replica_id, by_topic_id))
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
            and not self._has_room(session, wanted.keys() - session.partitions.keys(), now_ms)
        ):
            self._remove(session)
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        before = len(session.partitions)
        self._update(session, wanted, request.forgotten_topics_data)
        if not session.privileged:
            self.partitions += len(session.partitions) - before
        if not session.partitions:
            self._remove(session)
            return WholeFetch(wanted, None)
        session.replica_id = replica_id
        session.last_used_ms = now_ms
        self._sessions[session.id] = self._sessions.pop(session.id)
        session.epoch = session.epoch % _MAX_INT + 1
        return IncrementalFetch(self, session, name_of)

    def mark(self, p: WatchedPartition, *, consumers: bool, wake_followers: bool) -> list[FetchWatcher]:
        """There is news of `p`, for followers and maybe `consumers`. Returns the long polls to wake."""
        woken: list[FetchWatcher] = []
        for wanted in self.watching.get((p.topic, p.partition), ()):
            session = wanted.session
            if not (consumers or session.privileged):
                continue
            if wanted not in session.dirty:
                session.dirty.add(wanted)
                if session.privileged:
                    p.follower_was_idle(session.replica_id, session.last_used_ms)
            if session.waiting is not None and (wake_followers or not session.privileged):
                woken.append(session.waiting)
        return woken

    def name(self, wanted: WantedPartition, topic: str | None) -> None:
        """The topic of a partition's id is known now; None: still not."""
        if topic is not None:
            wanted.topic = topic
            if self._sessions.get(wanted.session.id) is wanted.session:  # it may be gone, and answered last
                self._watch(wanted)

    # --- beginning and end --------------------------------------------------------------------------

    def _begin(self, replica_id: int, by_topic_id: bool, answers: Sequence[Answer], now_ms: int) -> int:
        """Make a session of what was answered to a whole fetch; its id, NO_SESSION if there is no room."""
        if replica_id < 0 and not self._has_room(None, answers, now_ms):
            return NO_SESSION
        if len(self._sessions) >= self.slots and not self._evict(replica_id >= 0, len(answers), now_ms):
            return NO_SESSION
        session_id = random.randint(1, _MAX_INT)
        while session_id in self._sessions:
            session_id = random.randint(1, _MAX_INT)
        session = FetchSession(session_id, replica_id=replica_id, by_topic_id=by_topic_id, now_ms=now_ms)
        for answer in answers:
            session.add(answer.wanted)
            session.said(answer)
            self._watch(answer.wanted)
        self._sessions[session_id] = session
        if not session.privileged:
            self.partitions += len(session.partitions)
        return session_id

    def _has_room(self, session: FetchSession | None, more: Sized, now_ms: int) -> bool:
        """Whether a consumer's session, or a new one, may have `more` partitions; stale ones make room."""
        held = 0 if session is None else len(session.partitions)
        if held + len(more) > self.partitions_max // SESSION_SHARE:
            return False
        while self.partitions + len(more) > self.partitions_max:
            oldest = next((s for s in self._sessions.values() if not s.privileged), None)
            if oldest is None or oldest is session or now_ms - oldest.last_used_ms <= EVICTION_MS:
                return False
            self._remove(oldest)
        return True

    def _evict(self, privileged: bool, size: int, now_ms: int) -> bool:
        """Make room for a session of `size` partitions: a stale one goes, else one of less worth.

        Consumers' sessions, small ones first, are worth less than followers'. A follower's new session may
        evict any consumer's; apart from that, only those go that were used for longer than EVICTION_MS.
        """
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now_ms - oldest.last_used_ms > EVICTION_MS:
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
            self._tell_of_idleness(session, wanted)
        if session.waiting is not None and self.on_orphan is not None:
            self.on_orphan(session.waiting)

    def _tell_of_idleness(self, session: FetchSession, gone: WantedPartition) -> None:
        """What news would have told the leader: else the next records make the follower one that lags."""
        if session.privileged and self.find is not None and gone not in session.dirty:
            replica = None if gone.topic is None else self.find(gone.topic, gone.asked.partition)
            if replica is not None:
                replica.follower_was_idle(session.replica_id, session.last_used_ms)

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
                    self._tell_of_idleness(session, gone)
                    session.dirty.discard(gone)
                    self._unwatch(gone)

    def _watch(self, wanted: WantedPartition) -> None:
        if wanted.topic is not None:
            self.watching.setdefault((wanted.topic, wanted.asked.partition), set()).add(wanted)

    def _unwatch(self, wanted: WantedPartition) -> None:
        if wanted.topic is not None:
            name = (wanted.topic, wanted.asked.partition)
            watchers = self.watching[name]
            watchers.remove(wanted)
            if not watchers:
                del self.watching[name]


def wanted_partitions(request: FetchRequest, by_topic_id: bool, name_of: NameOf) -> Wanted:
    """The request's partitions; of one that comes twice, the later word counts."""
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
