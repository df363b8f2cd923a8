"""The assigned partitions of a consumer, with their positions.

Kept by `ConsumerRuntime`; read and changed by the request managers: `positions` finds initial positions,
`fetcher` moves the fetch offset, `offsets` commits. Invariant: only a partition in FETCHING has a position
that may be fetched from or committed, and `fetch_offset`, the end of the fetched data, is never before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final, TypeAlias
from uuid import UUID

from ottla.client.core.types import Leader, OffsetToCommit, TopicPartition

OffsetAndMetadata: TypeAlias = OffsetToCommit
"""A committed offset, that of the next record to read, with metadata of the committer."""

LATEST: Final = -1
EARLIEST: Final = -2
"""Timestamps in ListOffsets for the ends of a log."""


class Phase(Enum):
    """What a partition waits for."""

    COMMITTED = "its committed offset"
    RESET = "the offset at a timestamp, or at an end of the log"
    VALIDATION = "whether its position is in the new leader's log (KIP-320)"
    FETCHING = "nothing: it has a valid position"


class AssignedPartition:
    """An assigned partition: its position, and what is known of its log."""

    __slots__ = (
        "ahead_since",
        "buffered_bytes",
        "epoch",
        "era",
        "fetch_offset",
        "high_watermark",
        "last_stable_offset",
        "leader_epoch",
        "log_start_offset",
        "paused",
        "phase",
        "position",
        "preferred",
        "preferred_until",
        "reset_offset",
        "reset_to",
        "retry_at",
        "topic_id",
        "tp",
        "turn",
    )

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.phase = Phase.COMMITTED
        self.paused = False
        self.position = -1
        """The offset of the next record that `poll` returns."""
        self.epoch = -1
        """The leader epoch of the record before the position, if known."""
        self.fetch_offset = -1
        """The offset of the next record to fetch."""
        self.buffered_bytes = 0
        """Bytes that are fetched and not returned yet."""
        self.era = 0
        """Incremented when the position is set: data that was fetched before is dropped."""
        self.ahead_since: float | None = None
        """Since when the known leader has an older leader epoch than the position."""
        self.leader_epoch = -1
        """The leader epoch for which the position was validated."""
        self.reset_offset = -1
        """The position, if auto.offset.reset has set it."""
        self.topic_id: UUID | None = None
        """The id of the topic of the position; None if brokers do not return it."""
        self.reset_to = LATEST
        self.retry_at = -math.inf
        """No request for this partition is sent before this time."""
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.preferred = -1
        """The preferred read replica (KIP-392); -1 for the leader."""
        self.preferred_until = -math.inf
        self.turn = 0
        """The number of the last response with records or an error: requests list partitions in this
        order."""

    def seek(self, offset: int, epoch: int = -1) -> None:
        """Set the position; `epoch` is the leader epoch of the record before it, if known."""
        self.phase = Phase.FETCHING
        self.position = self.fetch_offset = offset
        self.epoch = epoch
        self.ahead_since = None
        self.reset_offset = -1
        self.era += 1
        self.buffered_bytes = 0
        self.preferred = -1
        self.retry_at = -math.inf

    def reset(self, timestamp: int) -> None:
        """Set the position to the first record with this timestamp or later, or to an end of the log."""
        self.phase = Phase.RESET
        self.reset_to = timestamp
        self.position = self.fetch_offset = self.epoch = self.reset_offset = -1
        self.era += 1
        self.buffered_bytes = 0
        self.preferred = -1
        self.retry_at = -math.inf

    def check_epoch(self, leader: Leader) -> None:
        """The leader epoch may have changed: validate a position whose epoch is known against the new
        leader."""
        if leader.epoch <= self.leader_epoch or self.phase not in (Phase.FETCHING, Phase.VALIDATION):
            return
        self.preferred = -1
        if self.epoch >= 0:
            self.phase = Phase.VALIDATION
            self.retry_at = -math.inf
        else:
            self.leader_epoch = leader.epoch

    @property
    def fetchable(self) -> bool:
        return self.phase is Phase.FETCHING and not self.paused


class Assigned:
    """The assigned partitions by name."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, AssignedPartition] = {}
        self.version = 0
        """Incremented when the assignment changes."""

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Replace the assignment; partitions that stay assigned keep their state."""
        wanted = dict.fromkeys(partitions)
        self._partitions = {tp: self._partitions.get(tp) or AssignedPartition(tp) for tp in wanted}
        self.version += 1

    def keep(self, states: Iterable[AssignedPartition]) -> None:
        """Restore the states of partitions that are assigned again."""
        for state in states:
            if state.tp in self._partitions:
                self._partitions[state.tp] = state

    def __iter__(self) -> Iterator[AssignedPartition]:
        return iter(self._partitions.values())

    def __len__(self) -> int:
        return len(self._partitions)

    def __contains__(self, tp: object) -> bool:
        return tp in self._partitions

    def get(self, tp: TopicPartition) -> AssignedPartition | None:
        return self._partitions.get(tp)

    def __getitem__(self, tp: TopicPartition) -> AssignedPartition:
        return self._partitions[tp]

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(self._partitions)

    def in_phase(self, phase: Phase) -> list[AssignedPartition]:
        return [state for state in self._partitions.values() if state.phase is phase]

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets after all returned records. While some partitions of a topic have no position yet,
        partitions whose position was reset and not moved since are left out: see
        `baseline.unknown_to_group`."""
        beginning = {state.tp.topic for state in self if state.phase in (Phase.COMMITTED, Phase.RESET)}
        return {
            state.tp: OffsetAndMetadata(state.position, "", state.epoch)
            for state in self
            if state.phase in (Phase.FETCHING, Phase.VALIDATION)
            and state.position >= 0
            and not (state.position == state.reset_offset and state.tp.topic in beginning)
        }
