"""Reads the partitions of one Fetch request, under the request's limits.

Called by ottla.server.handlers.fetch.handler when the request arrives, and again while it waits and
partitions change. The result is the fetched partitions and whether they must be responded at once; `sender`
sends them.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from copy import copy
from typing import Final, Protocol, TypeAlias, cast
from uuid import UUID

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
from ottla.storage.nonblocking_reads import NonblockingReads, PageCacheMiss


class PartitionChunk(Protocol):
    """Some of the partitions of a fetch."""

    has_more: bool

    def __len__(self) -> int: ...

    def to_read(self) -> list[WantedPartition]: ...


SelectReplica: TypeAlias = Callable[[Partition, int, int], int | None]
"""(leader, fetch offset, now in ms) -> the broker that the consumer should fetch from instead, if any."""

_NO_PARTITIONS: Final[frozenset[WantedPartition]] = frozenset()
READ_COMMITTED: Final = 1
"""An isolation level."""
FOLLOWER_FETCH_FROM: Final = 11
STORAGE_ERROR_FROM: Final = 6
MIN_ONE_FROM: Final = 3
"""Before, a batch larger than the client's limit is not returned at all (KIP-74)."""


class FetchRead:
    """The fetched partitions of one request, and whether they satisfy it."""

    __slots__ = (
        "_broker_epoch",
        "_cache",
        "_clock",
        "_read_committed",
        "_replica_id",
        "_replicas",
        "_select_replica",
        "_unknown_rows",
        "_version",
        "allow_blocking",
        "context",
        "fetched",
        "follower",
        "is_authorized",
        "max_bytes",
        "min_one",
        "must_respond",
        "page_misses",
        "read_at_ms",
        "size",
        "unknown",
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
        select_replica: SelectReplica | None = None,
    ) -> None:
        """`broker_epoch` is that of a follower's registration; `select_replica` finds a closer replica for
        this consumer; None: it reads from the leader."""
        self._replicas = replicas
        self._cache = cache
        self._clock = clock
        self._version = version
        self._replica_id = replica_id
        self._broker_epoch = broker_epoch
        self._read_committed = read_committed
        self._select_replica = select_replica
        self.context = context
        self.follower = replica_id >= 0
        self.max_bytes = max_bytes
        self.min_one = version >= MIN_ONE_FROM
        """The first batch is returned whole, whatever its size."""
        self.fetched: list[FetchedPartition] = []
        self.read_at_ms = 0
        """The time of the last read."""
        self.unknown: AbstractSet[WantedPartition] = _NO_PARTITIONS
        """Partitions that were unknown when the request arrived. They come last and do not end the wait."""
        self.size = 0
        """Bytes of records of all partitions."""
        self.is_authorized: Callable[[str | None], bool] | None = None
        """Whether a topic may be read; None: no authorizer. Denied partitions come last, with an error."""
        self._unknown_rows: list[FetchedPartition] = []
        self.page_misses: list[PageCacheMiss] = []
        """Pages that have to be loaded from disk before the request is read again and responded."""
        self.allow_blocking = False
        """Read from the disk instead of recording page misses."""
        self.must_respond = False
        """A partition has an error, a follower diverged, or a consumer is redirected: respond without
        waiting."""

    def is_satisfied(self, min_bytes: int) -> bool:
        """Whether the request can be responded: `min_bytes` are there, or it must not wait."""
        return self.must_respond or self.size >= min(min_bytes, self.max_bytes)

    def read_initial(self) -> None:
        """The first read; it records a follower's fetch offsets."""
        unknown = self._read(record_progress=True)
        self.unknown = {partition.wanted for partition in unknown} if unknown else _NO_PARTITIONS
        self.fetched += unknown
        if len(unknown) == len(self.context) or self.context.has_more:
            self.must_respond = (
                True  # nothing to wait for; also without partitions, as when a session is closed
            )

    def reread(self) -> None:
        """Read again the partitions that may have changed."""
        for partition in self._read(record_progress=False):
            if partition.wanted not in self.unknown:
                self.must_respond = True
            self.fetched.append(partition)
        if self.context.has_more:
            self.must_respond = True

    # --- a fetch of many partitions, chunk by chunk (large_fetch) ----------------------------------------

    def begin_chunks(self) -> None:
        """Start a read in chunks: clear the earlier results."""
        self.fetched, self.size, self.must_respond, self._unknown_rows = [], 0, False, []
        self.unknown = set()
        self.read_at_ms = self._clock()

    def for_chunk(self, chunk: PartitionChunk) -> FetchRead:
        """A FetchRead of one chunk, under the remaining limits."""
        chunk_read = copy(self)
        chunk_read.context = cast(FetchContext, chunk)
        chunk_read.max_bytes = max(0, self.max_bytes - self.size)
        chunk_read.min_one = self.min_one and not self.size
        return chunk_read

    def read_chunk(self) -> list[FetchedPartition]:
        """Read a chunk; return the rows of unknown partitions."""
        return self._read(record_progress=True)

    def add_chunk(self, chunk_read: FetchRead, unknown: list[FetchedPartition]) -> None:
        """Add the results of a chunk."""
        self.fetched += chunk_read.fetched
        self._unknown_rows += unknown
        self.unknown |= {partition.wanted for partition in unknown}
        self.size += chunk_read.size
        self.must_respond = self.must_respond or chunk_read.must_respond

    def end_chunks(self) -> None:
        """All chunks are read."""
        self.must_respond = self.must_respond or not self.fetched
        self.fetched += self._unknown_rows
        self._unknown_rows = []

    def _read(self, *, record_progress: bool) -> list[FetchedPartition]:
        self.page_misses = []
        if self.allow_blocking:
            return self._read_all(record_progress=record_progress)
        with NonblockingReads():
            return self._read_all(record_progress=record_progress)

    def _read_all(self, *, record_progress: bool) -> list[FetchedPartition]:
        """Set `fetched`, `size`, `must_respond` and `page_misses`; return the rows of unknown partitions."""
        replicas, version, replica_id, follower = (
            self._replicas, self._version, self._replica_id, self.follower
        )  # fmt: skip
        read_committed, select_replica, broker_epoch = (
            self._read_committed,
            self._select_replica,
            self._broker_epoch,
        )
        now_ms = self.read_at_ms = self._clock()
        # A consumer of Fetch 11 and later may read from a follower (KIP-392).
        leader_only = follower or version < FOLLOWER_FETCH_FROM
        quota = replicas.leader_quota
        is_authorized = self.is_authorized
        throttled = follower and quota.active and quota.is_exceeded(now_ms)
        remaining = self.max_bytes
        min_one = self.min_one
        unknown: list[FetchedPartition] = []
        find, record_progress = replicas.find, record_progress and follower
        self.must_respond = False
        self.size = 0
        self.fetched = partitions = []
        for wanted in self.context.to_read():
            asked = wanted.asked
            topic = wanted.topic
            if is_authorized is not None and not is_authorized(topic):
                unknown.append(FetchedPartition(wanted, ErrorCode.TOPIC_AUTHORIZATION_FAILED, aborted=()))
                continue
            replica = None if topic is None else find(topic, asked.partition)
            if replica is None or not (
                wanted.topic_id is ZERO_UUID or has_topic_id(replica, wanted.topic_id)
            ):
                error = self._error_for(wanted, replica)
                if error in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                    unknown.append(FetchedPartition(wanted, error, aborted=()))
                else:
                    partitions.append(FetchedPartition(wanted, error))
                    self.must_respond = True
                continue
            changes_notify = True  # every change of the response is an event of replication
            if select_replica is not None and replica.is_leader:
                chosen = select_replica(replica, asked.fetch_offset, now_ms)
                if chosen is not None:
                    partitions.append(_redirected(replica, wanted, chosen))
                    self.must_respond = True
                    continue
                changes_notify = False  # none is sent when another replica becomes preferred
            max_bytes = asked.partition_max_bytes
            try:
                read = read_replica(
                    replica,
                    asked.fetch_offset,
                    max_bytes if max_bytes < remaining else remaining,
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
            except PageCacheMiss as miss:
                self.page_misses.append(miss)
                if len(self.page_misses) == MISSES_MAX:
                    break
                continue
            error, high_watermark, last_stable, log_start, diverging, data, caught_up = read
            if error or diverging is not None:
                error = self._error_for_version(error)
                self.must_respond = True
            if throttled and replica_id not in replica.isr and quota.is_throttled(*replica.key):
                data = None
            size = 0 if data is None else data.size
            partitions.append(
                FetchedPartition(
                    wanted,
                    error,
                    high_watermark,
                    last_stable,
                    log_start,
                    None if data is None else data.slices,
                    size,
                    diverging,
                    aborted,
                    changes_notify and caught_up,
                )
            )
            if size:
                min_one = False
                remaining = max(0, remaining - size)
                self.size += size
        return unknown

    def _error_for(self, wanted: WantedPartition, replica: Partition | None) -> ErrorCode:
        """The error of a partition that cannot be read here."""
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
            return self._error_for_version(problem.code)
        raise AssertionError(f"{topic}-{index} was not found, and is here")

    def _error_for_version(self, error: ErrorCode) -> ErrorCode:
        """The error code that the request's version has for `error`."""
        if error == ErrorCode.KAFKA_STORAGE_ERROR and self._version < STORAGE_ERROR_FROM:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return error


def _redirected(replica: Partition, wanted: WantedPartition, chosen: int) -> FetchedPartition:
    """No records, but the preferred replica; with another leader epoch, an error."""
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


def has_topic_id(replica: Partition, wanted_id: UUID) -> bool:
    """Whether the replica has the requested topic id, and is not one of another topic of that name."""
    return wanted_id == ZERO_UUID or replica.topic_id in (wanted_id, None, ZERO_UUID)
