"""The offsets of a group: committed, pending, and pending in transactions.

Part of `group`; `offset_requests` and `transactional_commits` change them and append the records, `replay`
restores them.

Invariants: a commit is visible only once its record is replicated; of two commits for a partition the one
appended later wins, whatever the order of their acknowledgements; an offset with a pending commit never
expires; a commit in a transaction is pending until its marker is in the log, and one that cannot be written
leaves the commit before it in the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

TopicPartition: TypeAlias = tuple[str, int]

NO_LEADER_EPOCH = -1


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int | None = None
    """Set only by clients that request a retention time (OffsetCommit v2-4)."""


def java_length(text: str) -> int:
    """The length of a string in UTF-16 code units, in which Kafka measures offset.metadata.max.bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


class PendingOffset(NamedTuple):
    """A commit in a transaction, with its position in the order of all commits."""

    offset: CommittedOffset
    sequence: int
    earlier: tuple[PendingOffset, ...] = ()
    """The commits in the same transaction that it replaces if it is written: at most one that is in the log,
    and those whose writes are under way."""


def _chain(last: PendingOffset | None) -> tuple[PendingOffset, ...]:
    """A commit and those that it replaces, in the order of their sequence numbers."""
    return () if last is None else (*last.earlier, last._replace(earlier=()))


@dataclass(slots=True)
class GroupOffsets:
    """The offsets of one group."""

    committed: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    pending_transactional: dict[int, dict[TopicPartition, PendingOffset]] = field(default_factory=dict)
    """By producer id: commits in transactions without a marker."""
    _pending: dict[TopicPartition, int] = field(default_factory=dict)
    _applied: dict[TopicPartition, int] = field(default_factory=dict)
    _sequence: int = 0

    @property
    def in_use(self) -> bool:
        return bool(self.committed or self._pending or self.pending_transactional)

    def partitions(self) -> list[TopicPartition]:
        """The partitions with a committed or a pending offset."""
        return list(dict.fromkeys([*self.committed, *self._pending]))

    def begin_commit(self, partitions: Iterable[TopicPartition]) -> int:
        """Mark commits as pending; returns their sequence number, for `end_commit`."""
        self._sequence += 1
        for partition in partitions:
            self._pending[partition] = self._sequence
        return self._sequence

    def end_commit(
        self, sequence: int, offsets: Mapping[TopicPartition, CommittedOffset], succeeded: bool
    ) -> None:
        for partition, offset in offsets.items():
            if self._pending.get(partition) == sequence:
                del self._pending[partition]
            if succeeded and self._applied.get(partition, 0) < sequence:
                self._applied[partition] = sequence
                self.committed[partition] = offset

    def discard_transactional(self, sequence: int, partitions: Iterable[TopicPartition]) -> None:
        """Remove commits of open transactions that precede the commit with this sequence number."""
        for producer_id in list(self.pending_transactional):
            self._keep_transactional(producer_id, partitions, lambda each: each.sequence >= sequence)

    def is_unstable(self, partition: TopicPartition) -> bool:
        """Whether a commit is pending: OffsetFetch with require_stable must be retried (KIP-447)."""
        return partition in self._pending or any(
            partition in offsets for offsets in self.pending_transactional.values()
        )

    def begin_transactional(self, producer_id: int, offsets: Mapping[TopicPartition, CommittedOffset]) -> int:
        """Add pending commits of a producer's transaction; returns their sequence number, for
        `complete_transactional`."""
        self._sequence += 1
        pending = self.pending_transactional.setdefault(producer_id, {})
        for partition, offset in offsets.items():
            pending[partition] = PendingOffset(offset, self._sequence, _chain(pending.get(partition)))
        return self._sequence

    def complete_transactional(
        self, producer_id: int, sequence: int, partitions: Iterable[TopicPartition], succeeded: bool
    ) -> None:
        """The commits with this sequence number are in the log, or failed: then those before them count."""
        if succeeded:
            self._keep_transactional(producer_id, partitions, lambda each: each.sequence >= sequence)
        else:
            self._keep_transactional(producer_id, partitions, lambda each: each.sequence != sequence)

    def _keep_transactional(
        self, producer_id: int, partitions: Iterable[TopicPartition], keeps: Callable[[PendingOffset], bool]
    ) -> None:
        pending = self.pending_transactional.get(producer_id, {})
        for partition in partitions:
            kept = [each for each in _chain(pending.get(partition)) if keeps(each)]
            if kept:
                pending[partition] = kept[-1]._replace(earlier=tuple(kept[:-1]))
            else:
                pending.pop(partition, None)
        if not pending:
            self.pending_transactional.pop(producer_id, None)

    def restore_transactional(
        self, producer_id: int, partition: TopicPartition, offset: CommittedOffset, *, superseded: bool
    ) -> None:
        """Restore a pending commit from the log; `superseded` if the committed offset is a later one."""
        if superseded:
            self._sequence = self._applied[partition] = 1
        self.pending_transactional.setdefault(producer_id, {})[partition] = PendingOffset(offset, 0)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Complete a transaction after its marker. Offsets committed after its own outside of it stay."""
        pending = self.pending_transactional.pop(producer_id, {})
        for partition, (offset, sequence, _) in pending.items() if committed else ():
            if self._applied.get(partition, 0) <= sequence:
                self._applied[partition] = sequence
                self.committed[partition] = offset

    def remove(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Remove committed and pending offsets; returns the partitions that need a tombstone."""
        removed = []
        for partition in partitions:
            known = self._pending.pop(partition, None) is not None
            self._applied[partition] = self._sequence
            for pending in self.pending_transactional.values():
                pending.pop(partition, None)
            known = self.committed.pop(partition, None) is not None or known
            if known:
                removed.append(partition)
        return removed

    def expired(
        self,
        now_ms: int,
        retention_ms: int,
        base_timestamp_ms: Callable[[CommittedOffset], int],
        subscribed_topics: frozenset[str] = frozenset(),
    ) -> list[TopicPartition]:
        """The partitions whose offset expired (KIP-211). `base_timestamp_ms` returns an offset's start of
        retention; offsets of `subscribed_topics` do not expire."""

        def is_expired(partition: TopicPartition, offset: CommittedOffset) -> bool:
            if partition[0] in subscribed_topics or partition in self._pending:
                return False
            if offset.expire_timestamp_ms is not None:
                return now_ms >= offset.expire_timestamp_ms
            return now_ms - base_timestamp_ms(offset) >= retention_ms

        return [partition for partition, offset in self.committed.items() if is_expired(partition, offset)]
