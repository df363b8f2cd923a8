"""What a follower does with a leader's answer: decisions first, then their effects on the replica.

Called by `fetcher`, which carries requests and answers, and by tests, which carry them by hand. Pure: the
decision is a function of the replica's log, the request and the answer.

The rules (KIP-101, KIP-279, KIP-595's truncation on fetch): a follower fetches from its log end, naming its
latest epoch and the leader epoch it was told. If the leader's log does not hold that epoch up to that offset,
the leader says what is the largest epoch they may share and where it ends, and the follower truncates to the
end of what they share of it; if it does not know that epoch either it truncates to the next lower one it
knows, and asks again. High watermarks have no say in it. A leader from before Fetch 12 cannot say so; it is
asked by OffsetForLeaderEpoch before the first fetch, and the rules are the same. If the offset lies outside
the leader's log, the leader's end is looked up, and its start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import FetchRequest, FetchResponse, OffsetForLeaderEpochResponse
from ottla.replication.offsets import NO_EPOCH
from ottla.replication.partition import Partition

FIRST_RETRY_MS: Final = 50
"""A first refusal is mostly a leader that has not heard of its leadership yet; waiting the whole
replica.fetch.backoff.ms (1 s) for it would hold up every acks=all produce after a failover."""


@dataclass(frozen=True, slots=True)
class Append:
    """Take the records (None: there are none new), the leader's high watermark and its log start."""

    records: bytes | memoryview | None
    high_watermark: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class TruncateTo:
    """Drop what the leader does not have, and fetch again."""

    offset: int


@dataclass(frozen=True, slots=True)
class StartOverAt:
    """Drop everything; the leader's log begins beyond our end."""

    offset: int


@dataclass(frozen=True, slots=True)
class AskOffsets:
    """The fetch offset lies outside the leader's log: look up where that begins and ends."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Wait, and fetch again as before."""

    error: ErrorCode


@dataclass(frozen=True, slots=True)
class Ignore:
    """The answer is to a question that is no longer ours."""


Step: TypeAlias = Append | TruncateTo | StartOverAt | AskOffsets | Retry | Ignore


class FollowerFetch:
    """One partition's state in a fetcher: which leader epoch it follows, and when it may fetch next."""

    __slots__ = ("asked_offset", "caught_up", "due_ms", "leader_epoch", "partition", "refusals")

    def __init__(self, partition: Partition) -> None:
        assert not partition.is_leader
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.asked_offset = -1
        self.caught_up = False
        """Whether the last answer brought all that is committed: such a follower is never throttled."""
        self.due_ms = 0
        self.refusals = 0

    def request(self, max_bytes: int, *, names_epoch: bool = True) -> FetchRequest.FetchPartition:
        """The fetch of this partition from where its log ends; `names_epoch` if the leader is to say where we
        diverge (Fetch 12 and later)."""
        log = self.partition.log
        latest = log.latest_epoch if names_epoch else None
        self.asked_offset = log.log_end_offset
        return FetchRequest.FetchPartition(
            partition=self.partition.partition,
            current_leader_epoch=self.leader_epoch,
            fetch_offset=self.asked_offset,
            last_fetched_epoch=NO_EPOCH if latest is None else latest,
            log_start_offset=log.log_start_offset,
            partition_max_bytes=max_bytes,
        )

    @property
    def is_current(self) -> bool:
        """Whether the partition still follows as it did when this began."""
        return not self.partition.is_leader and self.partition.leader_epoch == self.leader_epoch

    def decide(self, answer: FetchResponse.PartitionData) -> Step:
        """What to do about the leader's answer to `request`."""
        log = self.partition.log
        if not self.is_current or log.log_end_offset != self.asked_offset:
            return Ignore()
        if answer.error_code == ErrorCode.NONE:
            diverging = answer.diverging_epoch
            if diverging.epoch >= 0:
                return TruncateTo(self._common_end(diverging.epoch, diverging.end_offset))
            return Append(answer.records, answer.high_watermark, answer.log_start_offset)
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return AskOffsets()
        return Retry(ErrorCode.of(answer.error_code))

    def decide_on_end(self, leader_end: int) -> TruncateTo | None:
        """Out of range: if the leader's log ends before ours, that is where we go on (an unclean election
        took back the rest). None: its start has to be looked up."""
        return TruncateTo(leader_end) if leader_end < self.partition.log.log_end_offset else None

    def decide_on_epoch(self, end: OffsetForLeaderEpochResponse.EpochEndOffset | None) -> tuple[Step, bool]:
        """What to do before the first fetch, with a leader that said where our latest epoch ended (`end`;
        None where we have no epoch). Also whether that is all; else it is to be asked again.

        As with a fetch that diverges; without epochs, a high watermark is the best there is (KIP-101).
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

    def decide_on_start(self, leader_start: int) -> StartOverAt | Retry:
        """Out of range, and not beyond the leader's end: start over if it has deleted what comes next."""
        if leader_start > self.partition.log.log_end_offset:
            return StartOverAt(leader_start)
        return Retry(ErrorCode.OFFSET_OUT_OF_RANGE)

    def _common_end(self, epoch: int, leader_end: int) -> int:
        """Where what we share with a leader, whose `epoch` ends at `leader_end`, may end."""
        log = self.partition.log
        own_epoch, own_end = log.end_offset_for_epoch(epoch)
        if own_epoch < 0:
            return min(leader_end, log.log_end_offset)
        if own_epoch != epoch:
            # We know nothing of that epoch; the next fetch asks about the one before it.
            return min(own_end, log.log_end_offset)
        return min(own_end, leader_end, log.log_end_offset)

    def apply(self, step: Step, *, now_ms: int, monotonic_ms: int, backoff_ms: int) -> None:
        """Carry out a step on the replica. `now_ms` is wall time, for the log. Raises what the log raises."""
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
                self.refusals = 0
            case TruncateTo(offset):
                partition.truncate_to(offset)
                self.refusals = 0
            case StartOverAt(offset):
                partition.start_over_at(offset)
                self.refusals = 0
            case Retry():
                self.postpone(monotonic_ms, backoff_ms)
            case AskOffsets() | Ignore():
                pass

    def postpone(self, monotonic_ms: int, backoff_ms: int) -> None:
        """Fetch again after a pause that doubles with each refusal, at most `backoff_ms`
        (replica.fetch.backoff.ms)."""
        self.due_ms = monotonic_ms + min(backoff_ms, FIRST_RETRY_MS << min(self.refusals, 16))
        self.refusals += 1
