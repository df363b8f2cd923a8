"""Which partitions existed when a consumer subscribed to their topics, and which have appeared since.

Kept by `Rebalancing`, fed by `Positions` in each turn of the network loop, asked where a partition has no
committed offset (`auto.offset.reset.new.partitions`; the cases are those of KIP-842). Invariant: the first
answer of a broker after the subscription decides, however late the consumer polls; what is not known yet has
not appeared.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from uuid import UUID

from ottla.client.core.cluster import Cluster, TopicState
from ottla.client.core.types import TopicPartition
from ottla.protocol.errors import ErrorCode

_NOT_THERE: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE})
"""What brokers answer of a topic that does not exist, or that the question itself has created."""


class Baseline:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._existed: dict[str, tuple[UUID | None, int]] = {}
        """By topic: its id, and how many partitions it had."""
        self._awaited: set[str] = set()
        """Topics of which nothing was heard since the subscription."""
        self._listing = False
        """A pattern's: whether all topics have yet to be listed."""
        self._complete = False
        """A pattern's: whether they were; a topic that was not among them has appeared."""

    def begin(self, topics: Collection[str] | None, already: Collection[str] = ()) -> None:
        """The consumer subscribes to these topics, or to a pattern (None); `already`: it was subscribed to
        these, whose partitions count from that time on."""
        nothing = (None, 0) if self._complete else None
        kept = {topic: self._existed.get(topic, nothing) for topic in already if topic not in self._awaited}
        self._existed = {topic: existed for topic, existed in kept.items() if existed is not None}
        self._awaited = set(topics or ()) - self._existed.keys()
        self._listing, self._complete = topics is None, False

    def forget(self) -> None:
        """There is no subscription any more."""
        self.begin(())

    def look(self) -> None:
        """There may be news of the cluster."""
        if self._awaited:
            for topic in [topic for topic in self._awaited if topic in self._cluster.topics]:
                existed = _existing(self._cluster.topics[topic])
                if existed is not None:
                    self._existed[topic] = existed
                    self._awaited.discard(topic)
        elif self._listing and self._cluster.all_listed:
            for topic, state in self._cluster.topics.items():
                self._existed.setdefault(topic, (state.id, len(state.partitions)))
            self._listing, self._complete = False, True

    def appeared(self, tp: TopicPartition) -> bool:
        """Whether a partition was created after the consumer subscribed; with its topic, perhaps, also one
        that replaces a deleted topic of the name."""
        existed = self._existed.get(tp.topic)
        if existed is None:
            return self._complete
        topic_id, count = existed
        now = self._cluster.topic_id(tp.topic)
        return tp.partition >= count or (None not in (topic_id, now) and now != topic_id)


def _existing(state: TopicState) -> tuple[UUID | None, int] | None:
    """None where the broker does not say."""
    if state.error in _NOT_THERE:
        return None, 0
    return (state.id, len(state.partitions)) if state.error is ErrorCode.NONE else None


def unknown_to_group(partition: int, committed: Collection[int]) -> bool:
    """Whether a partition has appeared since the group read its topic, as far as the numbers of those
    partitions tell in which the group has committed: in each below it, and in none from it on.

    Members commit all positions that they have, and partitions are numbered as they are added. A group that
    has committed here and there is no evidence.
    """
    count = len(set(committed))
    return 0 < count <= partition and max(committed) == count - 1
