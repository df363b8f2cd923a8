"""The baseline of a subscription: which partitions existed when a consumer subscribed to their topics.

Kept by `Rebalancing`, updated by `Positions` in each turn of the network loop, used for partitions without a
committed offset (`auto.offset.reset.new.partitions`; the cases are those of KIP-842). Invariant: the first
metadata response after the subscription counts, however late the consumer polls; a topic that is not in the
metadata yet does not count as new.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from uuid import UUID

from ottla.client.core.cluster import Cluster, TopicState
from ottla.client.core.types import TopicPartition
from ottla.protocol.errors import ErrorCode

_NOT_EXISTING: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE})
"""Errors of a topic that does not exist, or that the Metadata request has just created."""


class Baseline:
    """The partitions that existed at the time of the subscription."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._existed: dict[str, tuple[UUID | None, int]] = {}
        """The id and the number of partitions by topic."""
        self._pending: set[str] = set()
        """Topics without metadata since the subscription."""
        self._listing = False
        """For a pattern: whether the topics were not listed yet."""
        self._complete = False
        """For a pattern: whether the topics were listed; a topic that was not listed is new."""

    def begin(self, topics: Collection[str] | None, already: Collection[str] = ()) -> None:
        """The consumer subscribes to these topics, or to a pattern (None). `already`: topics of the previous
        subscription, whose baseline is kept."""
        nothing = (None, 0) if self._complete else None
        kept = {topic: self._existed.get(topic, nothing) for topic in already if topic not in self._pending}
        self._existed = {topic: existed for topic, existed in kept.items() if existed is not None}
        self._pending = set(topics or ()) - self._existed.keys()
        self._listing, self._complete = topics is None, False

    def forget(self) -> None:
        """The subscription has ended."""
        self.begin(())

    def update(self) -> None:
        """Process new metadata."""
        if self._pending:
            for topic in [topic for topic in sorted(self._pending) if topic in self._cluster.topics]:
                existed = _existing(self._cluster.topics[topic])
                if existed is not None:
                    self._existed[topic] = existed
                    self._pending.discard(topic)
        elif self._listing and self._cluster.all_listed:
            for topic, state in self._cluster.topics.items():
                self._existed.setdefault(topic, (state.id, len(state.partitions)))
            self._listing, self._complete = False, True

    def appeared(self, tp: TopicPartition) -> bool:
        """Whether a partition was created after the consumer subscribed, possibly with its topic, or with a
        topic that replaces a deleted one of the same name."""
        existed = self._existed.get(tp.topic)
        if existed is None:
            return self._complete
        topic_id, count = existed
        now = self._cluster.topic_id(tp.topic)
        return tp.partition >= count or (None not in (topic_id, now) and now != topic_id)


def _existing(state: TopicState) -> tuple[UUID | None, int] | None:
    """The id and the number of partitions of a topic; None if the response does not have them."""
    if state.error in _NOT_EXISTING:
        return None, 0
    return (state.id, len(state.partitions)) if state.error is ErrorCode.NONE else None


def unknown_to_group(partition: int, committed: Collection[int]) -> bool:
    """Whether a partition was created after the group consumed its topic, judged by the partitions with
    committed offsets: all below it have one, it and those above have none.

    Members commit all their positions, and partitions are numbered in the order of creation. Scattered
    commits are no evidence.
    """
    count = len(set(committed))
    return 0 < count <= partition and max(committed) == count - 1
