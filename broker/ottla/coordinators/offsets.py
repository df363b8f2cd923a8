"""What a group has committed: pending, committed, expired.

Owned by `group`; `coordinator` asks for changes and appends the records, `replay` restores.

Invariants: a commit is visible only once its record is replicated; of two commits for a partition the
one that was appended later wins, in whatever order their acknowledgements come in; a partition with a
commit under way never expires; a commit in a transaction is pending until its marker is in the log.
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


class PendingOffset(NamedTuple):
    """A commit inside a transaction, with its place among all commits."""

    offset: CommittedOffset
    ticket: int


@dataclass(slots=True)
class GroupOffsets:
    committed: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    pending_transactional: dict[int, dict[TopicPartition, PendingOffset]] = field(default_factory=dict)
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

    def void_transactional(self, ticket: int, partitions: Iterable[TopicPartition]) -> None:
        """Drop what open transactions committed before the commit with this ticket, however they end."""
        for producer_id, pending in list(self.pending_transactional.items()):
            for partition in partitions:
                if partition in pending and pending[partition].ticket < ticket:
                    del pending[partition]
            if not pending:
                del self.pending_transactional[producer_id]

    def is_unstable(self, partition: TopicPartition) -> bool:
        """Whether a commit is under way, so that a reader who needs certainty must come again (KIP-447)."""
        return partition in self._pending or any(
            partition in offsets for offsets in self.pending_transactional.values()
        )

    def begin_transactional(self, producer_id: int, offsets: Mapping[TopicPartition, CommittedOffset]) -> int:
        """Commits in a producer's transaction are about to be appended; the ticket goes back to
        `fail_transactional` if they cannot be."""
        self._sequence += 1
        pending = self.pending_transactional.setdefault(producer_id, {})
        pending.update((key, PendingOffset(offset, self._sequence)) for key, offset in offsets.items())
        return self._sequence

    def fail_transactional(self, producer_id: int, ticket: int, partitions: Iterable[TopicPartition]) -> None:
        pending = self.pending_transactional.get(producer_id, {})
        for partition in partitions:
            if partition in pending and pending[partition].ticket == ticket:
                del pending[partition]
        if not pending:
            self.pending_transactional.pop(producer_id, None)

    def restore_transactional(
        self, producer_id: int, partition: TopicPartition, offset: CommittedOffset, *, overtaken: bool
    ) -> None:
        """As read from the log; `overtaken` if what is committed was committed later."""
        if overtaken:
            self._sequence = self._applied[partition] = 1
        self.pending_transactional.setdefault(producer_id, {})[partition] = PendingOffset(offset, 0)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """The producer's marker is in the log. What was committed outside of it since then stays."""
        pending = self.pending_transactional.pop(producer_id, {})
        for partition, (offset, ticket) in pending.items() if committed else ():
            if self._applied.get(partition, 0) <= ticket:
                self._applied[partition] = ticket
                self.committed[partition] = offset

    def remove(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Forget offsets, and commits under way with them; returns those that need a tombstone."""
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
        """What no longer has to be kept (KIP-211). `base_timestamp_ms` says since when time counts."""

        def is_expired(partition: TopicPartition, offset: CommittedOffset) -> bool:
            if partition[0] in subscribed_topics or partition in self._pending:
                return False
            if offset.expire_timestamp_ms is not None:
                return now_ms >= offset.expire_timestamp_ms
            return now_ms - base_timestamp_ms(offset) >= retention_ms

        return [partition for partition, offset in self.committed.items() if is_expired(partition, offset)]
