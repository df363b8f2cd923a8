"""A follower's handling of fetch responses: decisions first, then their effects on the replica.

Called by `fetcher`, which sends the requests, and by tests. Pure: a decision is a function of the replica's
log, the request and the response.

The rules (KIP-101, KIP-279, truncation on fetch of KIP-595): a follower fetches from its log end offset, with
its latest epoch and its leader epoch. If the leader's log does not have that epoch up to that offset, the
response has the largest epoch that both may have, and its end offset. The follower truncates to the lower end
offset of that epoch; if it does not have the epoch, it truncates to the end of the next lower one that it
has, and fetches again. High watermarks play no part. A leader before Fetch 12 is sent OffsetForLeaderEpoch
before the first fetch, with the same rules. If the offset is outside the leader's log, ListOffsets requests
the leader's end and start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import FetchRequest, FetchResponse, OffsetForLeaderEpochResponse
from ottla.replication.partition import NO_EPOCH, Partition

FIRST_RETRY_MS: Final = 50
"""A first error mostly comes from a leader that has not got its LeaderAndIsr yet. Waiting for the whole
replica.fetch.backoff.ms (1 s) would delay all acks=all produce requests after a failover."""


@dataclass(frozen=True, slots=True)
class Append:
    """Append the records (None without new ones), and apply the leader's high watermark and log start."""

    records: bytes | memoryview | None
    high_watermark: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class TruncateTo:
    """Truncate the records that the leader does not have, and fetch again."""

    offset: int


@dataclass(frozen=True, slots=True)
class TruncateFullyAndStartAt:
    """Delete all records, and start at the leader's log start offset: it is after this log's end."""

    offset: int


@dataclass(frozen=True, slots=True)
class RequestOffsets:
    """The fetch offset is outside the leader's log: request the log's start and end offsets."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Fetch again after a backoff."""

    error: ErrorCode


@dataclass(frozen=True, slots=True)
class Ignore:
    """The response belongs to an outdated request."""


Step: TypeAlias = Append | TruncateTo | TruncateFullyAndStartAt | RequestOffsets | Retry | Ignore


class FollowerFetch:
    """One partition's state in a fetcher: which leader epoch it follows, and when it may fetch next."""

    __slots__ = (
        "caught_up",
        "due_ms",
        "failures",
        "fetch_offset",
        "leader_epoch",
        "leader_high_watermark",
        "partition",
    )

    def __init__(self, partition: Partition) -> None:
        assert not partition.is_leader
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.fetch_offset = -1
        self.caught_up = False
        """Whether the follower has all committed records: then it is never throttled."""
        self.due_ms = 0
        self.failures = 0
        self.leader_high_watermark = -1
        """As of the leader's last response; -1 before the first."""

    @property
    def lag(self) -> int:
        """The committed records that the follower does not have yet."""
        return max(0, self.leader_high_watermark - self.partition.log.log_end_offset)

    def request(self, max_bytes: int, *, detects_divergence: bool = True) -> FetchRequest.FetchPartition:
        """The fetch of this partition from its log end offset; with `detects_divergence`, its latest epoch is
        part of it (Fetch 12 and later)."""
        log = self.partition.log
        latest = log.latest_epoch if detects_divergence else None
        self.fetch_offset = log.log_end_offset
        return FetchRequest.FetchPartition(
            partition=self.partition.partition,
            current_leader_epoch=self.leader_epoch,
            fetch_offset=self.fetch_offset,
            last_fetched_epoch=NO_EPOCH if latest is None else latest,
            log_start_offset=log.log_start_offset,
            partition_max_bytes=max_bytes,
        )

    @property
    def is_current(self) -> bool:
        """Whether the partition still follows in the same leader epoch."""
        return not self.partition.is_leader and self.partition.leader_epoch == self.leader_epoch

    def decide(self, response: FetchResponse.PartitionData) -> Step:
        """The step for the leader's response to `request`."""
        log = self.partition.log
        if not self.is_current or log.log_end_offset != self.fetch_offset:
            return Ignore()
        if response.error_code == ErrorCode.NONE:
            diverging = response.diverging_epoch
            if diverging.epoch >= 0:
                return TruncateTo(self._common_end(diverging.epoch, diverging.end_offset))
            return Append(response.records, response.high_watermark, response.log_start_offset)
        if response.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return RequestOffsets()
        return Retry(ErrorCode.of(response.error_code))

    def decide_on_end(self, leader_end: int) -> TruncateTo | None:
        """Out of range: truncate if the leader's log ends before this one (after an unclean election). None:
        the leader's start must be requested."""
        return TruncateTo(leader_end) if leader_end < self.partition.log.log_end_offset else None

    def decide_on_epoch(self, end: OffsetForLeaderEpochResponse.EpochEndOffset | None) -> tuple[Step, bool]:
        """The step before the first fetch from a leader without Fetch 12, and whether it is the last one.

        `end` is the leader's end of this replica's latest epoch, None if it has no epoch. The rules are those
        of a diverging fetch; without epochs, the replica truncates to its high watermark (KIP-101).
        """
        partition = self.partition
        log = partition.log
        if not self.is_current:
            return Ignore(), True
        if end is None and log.latest_epoch is not None:
            return Retry(ErrorCode.UNKNOWN_SERVER_ERROR), False
        if end is not None and end.error_code != ErrorCode.NONE:
            return Retry(ErrorCode.of(end.error_code)), False
        if end is None or end.end_offset < 0:
            return TruncateTo(min(partition.high_watermark, log.log_end_offset)), True
        if end.leader_epoch < 0:
            return TruncateTo(min(end.end_offset, log.log_end_offset)), True
        own_epoch, _ = log.end_offset_for_epoch(end.leader_epoch)
        is_all = own_epoch < 0 or own_epoch == end.leader_epoch
        return TruncateTo(self._common_end(end.leader_epoch, end.end_offset)), is_all

    def decide_on_start(self, leader_start: int) -> TruncateFullyAndStartAt | Retry:
        """Out of range, and not after the leader's end: start over if the leader's log starts after this
        end."""
        if leader_start > self.partition.log.log_end_offset:
            return TruncateFullyAndStartAt(leader_start)
        return Retry(ErrorCode.OFFSET_OUT_OF_RANGE)

    def _common_end(self, epoch: int, leader_end: int) -> int:
        """The highest offset up to which this log can agree with a leader's, whose `epoch` ends at
        `leader_end`."""
        log = self.partition.log
        own_epoch, own_end = log.end_offset_for_epoch(epoch)
        if own_epoch < 0:
            return min(leader_end, log.log_end_offset)
        if own_epoch != epoch:
            # This log does not have that epoch; the next fetch compares the one before it.
            return min(own_end, log.log_end_offset)
        return min(own_end, leader_end, log.log_end_offset)

    def apply(self, step: Step, *, now_ms: int, monotonic_ms: int, backoff_ms: int) -> None:
        """Apply a step to the replica. `now_ms` is wall time, for the log. Raises the log's errors."""
        partition = self.partition
        match step:
            case Append(records, high_watermark, log_start_offset):
                partition.append_as_follower(
                    records or b"",
                    leader_high_watermark=high_watermark,
                    leader_log_start=log_start_offset,
                    now_ms=now_ms,
                )
                self.caught_up = partition.log.log_end_offset >= high_watermark
                self.failures = 0
            case TruncateTo(offset):
                partition.truncate_to(offset)
                self.failures = 0
            case TruncateFullyAndStartAt(offset):
                partition.truncate_fully_and_start_at(offset)
                self.failures = 0
            case Retry():
                self.postpone(monotonic_ms, backoff_ms)
            case RequestOffsets() | Ignore():
                pass

    def postpone(self, monotonic_ms: int, backoff_ms: int) -> None:
        """Fetch again after a pause that doubles with each error, at most `backoff_ms`
        (replica.fetch.backoff.ms)."""
        self.due_ms = monotonic_ms + min(backoff_ms, FIRST_RETRY_MS << min(self.failures, 16))
        self.failures += 1
