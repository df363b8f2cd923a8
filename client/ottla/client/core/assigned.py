"""The partitions that a consumer reads, and where it stands in each.

Kept by `Consumer`; read and changed by the cores: `positions` finds where to begin, `fetcher` goes on from
there, `offsets` commits. Invariant: only a partition in FETCHING has a position that may be fetched from or
committed, and `fetch_offset`, up to which records lie here already, is never before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final, TypeAlias
from uuid import UUID

from ottla.client.core.types import Leader, OffsetToCommit, TopicPartition

OffsetAndMetadata: TypeAlias = OffsetToCommit
"""A committed offset: that of the next record to read, with a note of the committer's."""

LATEST: Final = -1
EARLIEST: Final = -2
"""Timestamps that stand for the ends of a log."""


class Phase(Enum):
    """What a partition waits for."""

    COMMITTED = "its committed offset"
    RESET = "the offset at a timestamp, or at an end of the log"
    VALIDATION = "whether its position is in the new leader's log (KIP-320)"
    FETCHING = "nothing: it has a valid position"


class AssignedPartition:
    __slots__ = (
        "begun_at",
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
        """The offset of the next record to give out."""
        self.epoch = -1
        """The leader epoch of the record before it, if known."""
        self.fetch_offset = -1
        """The offset of the next record to ask for."""
        self.buffered_bytes = 0
        """What lies here, fetched from the position on and not given out."""
        self.era = 0
        """Grows when the position is set anew: what was fetched before is of no use then."""
        self.leader_epoch = -1
        """The leader's epoch for which the position was found to be valid."""
        self.begun_at = -1
        """The position, if it comes from auto.offset.reset."""
        self.topic_id: UUID | None = None
        """Of the topic that the position is in; None where brokers do not say."""
        self.reset_to = LATEST
        self.retry_at = -math.inf
        """What it waits for is not asked for before this time."""
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.preferred = -1
        """The replica to read from (KIP-392); -1: the leader."""
        self.preferred_until = -math.inf
        self.turn = 0
        """Grows when an answer brings records or an error: a request names partitions in this order."""

    def seek(self, offset: int, epoch: int = -1) -> None:
        """Continue at an offset; `epoch` is the leader epoch of the record before it, if that is known."""
        self.phase = Phase.FETCHING
        self.position = self.fetch_offset = offset
        self.epoch = epoch
        self.begun_at = -1
        self.era += 1
        self.buffered_bytes = 0
        self.preferred = -1
        self.retry_at = -math.inf

    def reset(self, timestamp: int) -> None:
        """Continue where the log has this timestamp first, or at an end of it."""
        self.phase = Phase.RESET
        self.reset_to = timestamp
        self.position = self.fetch_offset = self.epoch = self.begun_at = -1
        self.era += 1
        self.buffered_bytes = 0
        self.preferred = -1
        self.retry_at = -math.inf

    def check_epoch(self, leader: Leader) -> None:
        """There is news of the leader: a position whose epoch is known has to be in its log, too."""
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
    """All of them."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, AssignedPartition] = {}
        self.version = 0
        """Grows when partitions come or go."""

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """These from now on; those that were there keep all their state."""
        wanted = dict.fromkeys(partitions)
        self._partitions = {tp: self._partitions.get(tp) or AssignedPartition(tp) for tp in wanted}
        self.version += 1

    def keep(self, states: Iterable[AssignedPartition]) -> None:
        """What was known of partitions, if they are assigned again."""
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
        """What a commit of everything that was given out would say. Where a group begins, nothing of a topic
        is said before all of it is known: see `baseline.unknown_to_group`."""
        beginning = {state.tp.topic for state in self if state.phase in (Phase.COMMITTED, Phase.RESET)}
        return {
            state.tp: OffsetAndMetadata(state.position, "", state.epoch)
            for state in self
            if state.phase in (Phase.FETCHING, Phase.VALIDATION)
            and state.position >= 0
            and not (state.position == state.begun_at and state.tp.topic in beginning)
        }
