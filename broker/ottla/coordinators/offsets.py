"""What a group has committed: pending, committed, expired.

Owned by `group`; `coordinator` asks for changes and appends the records, `replay` restores.

Invariants: a commit is visible only once its record is replicated; of two commits for a partition the
one that was appended later wins, in whatever order their acknowledgements come in; a partition with a
commit under way never expires.
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
    """Set only by clients that ask for a retention time of their own (OffsetCommit v2-4)."""


def java_length(text: str) -> int:
    """Kafka measures offset.metadata.max.bytes in Java's chars."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


@dataclass(slots=True)
class GroupOffsets:
    committed: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    pending_transactional: dict[int, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)
    """By producer id: commits inside transactions that have not ended."""
    _pending: dict[TopicPartition, int] = field(default_factory=dict)
    _applied: dict[TopicPartition, int] = field(default_factory=dict)
    _sequence: int = 0

    @property
    def in_use(self) -> bool:
        return bool(self.committed or self._pending or self.pending_transactional)

    def partitions(self) -> list[TopicPartition]:
        """All that have a commit, or one under way."""
        return list(self.committed.keys() | self._pending.keys())

    def begin_commit(self, partitions: Iterable[TopicPartition]) -> int:
        """Mark commits as under way; the ticket goes back to `end_commit`."""
        self._sequence += 1
        for partition in partitions:
            self._pending[partition] = self._sequence
        return self._sequence

    def end_commit(
        self, ticket: int, offsets: Mapping[TopicPartition, CommittedOffset], succeeded: bool
    ) -> None:
        for partition, offset in offsets.items():
            if self._pending.get(partition) == ticket:
                del self._pending[partition]
            if succeeded and self._applied.get(partition, 0) < ticket:
                self._applied[partition] = ticket
                self.committed[partition] = offset

    def is_unstable(self, partition: TopicPartition) -> bool:
        """Whether a commit is under way, so that a reader who needs certainty must come again (KIP-447)."""
        return partition in self._pending or any(
            partition in offsets for offsets in self.pending_transactional.values()
        )

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        offsets = self.pending_transactional.pop(producer_id, {})
        if committed:
            self.committed.update(offsets)

    def remove(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Forget offsets, and commits under way with them; returns those that need a tombstone."""
        removed = []
        for partition in partitions:
            known = self._pending.pop(partition, None) is not None
            self._applied[partition] = self._sequence
            for offsets in self.pending_transactional.values():
                offsets.pop(partition, None)
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
        """What no longer has to be kept (KIP-211). `base_timestamp_ms` says since when time counts."""

        def is_expired(partition: TopicPartition, offset: CommittedOffset) -> bool:
            if partition[0] in subscribed_topics or partition in self._pending:
                return False
            if offset.expire_timestamp_ms is not None:
                return now_ms >= offset.expire_timestamp_ms
            return now_ms - base_timestamp_ms(offset) >= retention_ms

        return [partition for partition, offset in self.committed.items() if is_expired(partition, offset)]
