"""What the partitions of one Fetch have to say, as of now: the loop over them, under the request's limits.

Called by ottla.server.handlers.fetch.handler, once when the request comes and again on news while it waits.
It says what is there and whether that is urgent; what goes out, and when, is for others to decide.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from copy import copy
from typing import Final, Protocol, TypeAlias, cast

from ottla.metadata.cache import MetadataCache
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.types import ZERO_UUID
from ottla.replication.isr import UNKNOWN_EPOCH
from ottla.replication.manager import ReplicaManager
from ottla.replication.partition import Partition
from ottla.replication.reads import read as read_replica
from ottla.server.dispatch.fetch_sessions import FetchContext, WantedPartition
from ottla.server.handlers.fetch.response import FetchedPartition
from ottla.server.logs.page_cache_reader import MISSES_MAX
from ottla.storage.page_cache import ColdRead, NoWaiting


class Lot(Protocol):
    """Some of the partitions of a fetch."""

    has_more: bool

    def __len__(self) -> int: ...

    def to_read(self) -> list[WantedPartition]: ...


Prefer: TypeAlias = Callable[[Partition, int, int], int | None]
"""(leader, fetch offset, now in ms) -> the broker that the consumer should ask instead, if any."""

_NO_PARTITIONS: Final[frozenset[WantedPartition]] = frozenset()
FOLLOWER_FETCH_FROM: Final = 11
STORAGE_ERROR_FROM: Final = 6
MIN_ONE_FROM: Final = 3
"""Before, a batch larger than what the client allows does not come at all (KIP-74)."""


class FetchRead:
    """The answers to one request, and what they amount to."""

    __slots__ = (
        "_absent",
        "_broker_epoch",
        "_cache",
        "_clock",
        "_prefer",
        "_read_committed",
        "_replica_id",
        "_replicas",
        "_version",
        "answers",
        "at_ms",
        "context",
        "follower",
        "max_bytes",
        "may_read",
        "may_wait",
        "min_one",
        "misses",
        "size",
        "unknown",
        "urgent",
    )

    def __init__(
        self,
        replicas: ReplicaManager,
        cache: MetadataCache,
        clock: Callable[[], int],
        context: FetchContext,
        *,
        version: int,
        replica_id: int,
        max_bytes: int,
        read_committed: bool,
        broker_epoch: int = UNKNOWN_EPOCH,
        prefer: Prefer | None = None,
    ) -> None:
        """`broker_epoch` is a follower's registration; `prefer` looks for a better replica for this consumer;
        None: the leader will do."""
        self._replicas = replicas
        self._cache = cache
        self._clock = clock
        self._version = version
        self._replica_id = replica_id
        self._broker_epoch = broker_epoch
        self._read_committed = read_committed
        self._prefer = prefer
        self.context = context
        self.follower = replica_id >= 0
        self.max_bytes = max_bytes
        self.min_one = version >= MIN_ONE_FROM
        """The first batch comes whole, however big."""
        self.answers: list[FetchedPartition] = []
        self.at_ms = 0
        """When they were read."""
        self.unknown: AbstractSet[WantedPartition] = _NO_PARTITIONS
        """Those unknown here when the request came. They come last, and do not end the wait."""
        self.size = 0
        """Bytes of records in all."""
        self.may_read: Callable[[str | None], bool] | None = None
        """Of a topic; None: no authorizer. What may not be read comes like the unknown, with an error."""
        self._absent: list[FetchedPartition] = []
        self.misses: list[ColdRead] = []
        """What has to come from the disk before there can be an answer: then it is to be read once more."""
        self.may_wait = False
        """Wait for the disk rather than miss something."""
        self.urgent = False
        """There is an error, a follower has diverged, a consumer is sent elsewhere: no waiting for more."""

    def has(self, min_bytes: int) -> bool:
        """Whether this is enough for a request that waits for `min_bytes`."""
        return self.urgent or self.size >= min(min_bytes, self.max_bytes)

    def first(self) -> None:
        """Read for the first time: a follower's progress counts."""
        unknown = self._read(record_progress=True)
        self.unknown = {answer.wanted for answer in unknown} if unknown else _NO_PARTITIONS
        self.answers += unknown
        if len(unknown) == len(self.context) or self.context.has_more:
            self.urgent = True  # nothing will come; also for who asks for nothing, as to end a session

    def again(self) -> None:
        """Read anew what may have something to say by now."""
        for answer in self._read(record_progress=False):
            if answer.wanted not in self.unknown:
                self.urgent = True
            self.answers.append(answer)
        if self.context.has_more:
            self.urgent = True

    # --- a fetch of many partitions, lot by lot (large_fetch) ----------------------------------------

    def begin(self) -> None:
        """Nothing is read yet."""
        self.answers, self.size, self.urgent, self._absent = [], 0, False, []
        self.unknown = set()
        self.at_ms = self._clock()

    def piece(self, lot: Lot) -> FetchRead:
        """Reads a lot, under the limits that are left."""
        piece = copy(self)
        piece.context = cast(FetchContext, lot)
        piece.max_bytes = max(0, self.max_bytes - self.size)
        piece.min_one = self.min_one and not self.size
        return piece

    def read_lot(self) -> list[FetchedPartition]:
        """Read a lot; return the answers for unknown partitions."""
        return self._read(record_progress=True)

    def add(self, piece: FetchRead, unknown: list[FetchedPartition]) -> None:
        """What was read of a lot."""
        self.answers += piece.answers
        self._absent += unknown
        self.unknown |= {answer.wanted for answer in unknown}
        self.size += piece.size
        self.urgent = self.urgent or piece.urgent

    def end(self) -> None:
        """All lots are read."""
        self.urgent = self.urgent or not self.answers
        self.answers += self._absent
        self._absent = []

    def _read(self, *, record_progress: bool) -> list[FetchedPartition]:
        self.misses = []
        if self.may_wait:
            return self._read_all(record_progress=record_progress)
        with NoWaiting():
            return self._read_all(record_progress=record_progress)

    def _read_all(self, *, record_progress: bool) -> list[FetchedPartition]:
        """Set `answers`, `size`, `urgent` and `misses`; return the answers for unknown partitions."""
        replicas, version, replica_id, follower = (
            self._replicas, self._version, self._replica_id, self.follower
        )  # fmt: skip
        read_committed, prefer, broker_epoch = self._read_committed, self._prefer, self._broker_epoch
        now_ms = self.at_ms = self._clock()
        # A consumer of Fetch 11 and later may read from a follower it was sent to (KIP-392).
        leader_only = follower or version < FOLLOWER_FETCH_FROM
        quota = replicas.leader_quota
        may_read = self.may_read
        throttled = follower and quota.active and quota.is_exceeded(now_ms)
        remaining = self.max_bytes
        min_one = self.min_one
        unknown: list[FetchedPartition] = []
        self.urgent = False
        self.size = 0
        self.answers = answers = []
        for wanted in self.context.to_read():
            asked = wanted.asked
            topic = wanted.topic
            if may_read is not None and not may_read(topic):
                unknown.append(FetchedPartition(wanted, ErrorCode.TOPIC_AUTHORIZATION_FAILED, aborted=()))
                continue
            replica = None if topic is None else replicas.find(topic, asked.partition)
            if replica is None or not _same_topic(replica, wanted):
                error = self._why_not(wanted, replica)
                if error in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                    unknown.append(FetchedPartition(wanted, error, aborted=()))
                else:
                    answers.append(FetchedPartition(wanted, error))
                    self.urgent = True
                continue
            settles = True
            if prefer is not None and replica.is_leader:
                chosen = prefer(replica, asked.fetch_offset, now_ms)
                if chosen is not None:
                    answers.append(_sent_elsewhere(replica, wanted, chosen))
                    self.urgent = True
                    continue
                # A replica that becomes the better one causes no news.
                settles = False
            try:
                read = read_replica(
                    replica,
                    asked.fetch_offset,
                    min(asked.partition_max_bytes, remaining),
                    replica_id=replica_id,
                    broker_epoch=broker_epoch,
                    current_leader_epoch=asked.current_leader_epoch,
                    last_fetched_epoch=asked.last_fetched_epoch,
                    read_committed=read_committed,
                    min_one=min_one,
                    now_ms=now_ms,
                    record_progress=record_progress,
                    leader_only=leader_only,
                    follower_log_start_offset=asked.log_start_offset,
                )
                aborted = None
                if read_committed and not read.error:
                    aborted = replica.log.aborted_transactions(asked.fetch_offset, read.read)
            except ColdRead as miss:
                self.misses.append(miss)
                if len(self.misses) == MISSES_MAX:
                    break
                continue
            if read.error or read.diverging is not None:
                read = read._replace(error=self._told(read.error))
                self.urgent = True
            data = read.read
            if throttled and replica_id not in replica.isr and quota.is_throttled(*replica.key):
                data = None
            size = 0 if data is None else data.size
            answers.append(
                FetchedPartition(
                    wanted,
                    read.error,
                    read.high_watermark,
                    read.last_stable_offset,
                    read.log_start_offset,
                    None if data is None else data.slices,
                    size,
                    read.diverging,
                    aborted,
                    settles and read.settled,
                )
            )
            if size:
                min_one = False
                remaining = max(0, remaining - size)
                self.size += size
        return unknown

    def _why_not(self, wanted: WantedPartition, replica: Partition | None) -> ErrorCode:
        """What is wrong with a partition that cannot be read here."""
        topic, index = wanted.topic, wanted.asked.partition
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if index not in (self._cache.partitions(topic) or ()):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if replica is not None:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        try:
            self._replicas.partition(topic, index)
        except KafkaError as problem:
            return self._told(problem.code)
        raise AssertionError(f"{topic}-{index} was not found, and is here")

    def _told(self, error: ErrorCode) -> ErrorCode:
        """An error as the request's version knows it."""
        if error == ErrorCode.KAFKA_STORAGE_ERROR and self._version < STORAGE_ERROR_FROM:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return error


def _sent_elsewhere(replica: Partition, wanted: WantedPartition, chosen: int) -> FetchedPartition:
    """No records, but the broker to ask; in an epoch that is not ours, neither."""
    error = replica.epoch_error(wanted.asked.current_leader_epoch)
    if error:
        return FetchedPartition(wanted, error)
    return FetchedPartition(
        wanted,
        ErrorCode.NONE,
        replica.high_watermark,
        replica.last_stable_offset,
        replica.log.log_start_offset,
        preferred=chosen,
    )


def _same_topic(replica: Partition, wanted: WantedPartition) -> bool:
    """Whether the replica is of the topic that is asked for, and not of another one of its name."""
    wanted_id = wanted.topic_id
    return wanted_id == ZERO_UUID or replica.topic_id in (wanted_id, None, ZERO_UUID)
