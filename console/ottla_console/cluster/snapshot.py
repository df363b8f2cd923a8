"""The state of a cluster as the last collection found it. Immutable; read by the view models of all pages.

A snapshot consists of parts that are collected independently: a part has a value, problems, or both when some
brokers responded and others did not. What is derived from several parts (sizes, lags, who reads a topic) is
computed once per snapshot, on first use.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

from ottla.client.admin_types import (
    ClusterDescription,
    GroupListing,
    LogDirDescription,
    PartitionDescription,
    TopicDescription,
    TopicPartition,
)
from ottla_console.cluster.problems import Problem
from ottla_console.cluster.rates import History

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Part(Generic[T_co]):
    """One part of what is known, with the problems of reading it."""

    value: T_co | None = None
    problems: tuple[Problem, ...] = ()
    taken_ms: int = -1
    """Wall clock; -1: not collected yet."""

    @property
    def collected(self) -> bool:
        return self.taken_ms >= 0


class PartitionState(NamedTuple):
    """A partition that is not as it should be."""

    topic: str
    partition: PartitionDescription


class GroupLag(NamedTuple):
    """How far a group is behind in one topic, or in all of its topics."""

    records: int
    """The sum over the partitions with a committed offset and a known end."""
    partitions: int
    """With a committed offset."""


@dataclass(frozen=True)
class Snapshot:
    """See the module."""

    cluster: Part[ClusterDescription] = Part()
    topics: Part[Mapping[str, TopicDescription]] = Part()
    log_dirs: Part[Mapping[int, tuple[LogDirDescription, ...]]] = Part()
    end_offsets: Part[Mapping[TopicPartition, int]] = Part()
    groups: Part[Mapping[str, GroupListing]] = Part()
    committed: Part[Mapping[str, Mapping[TopicPartition, int]]] = Part()
    history: History = field(default_factory=History)
    behind_since: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """By topic and partition, the time of the first collection that found it without a leader or not in sync,
    and none since that found it well. Wall clock."""
    watched_ms: int = -1
    """The time of the first collection."""

    @property
    def started(self) -> bool:
        """Whether all parts have been collected once, so that pages need not ask again soon."""
        return self.committed.collected

    @cached_property
    def problems(self) -> tuple[Problem, ...]:
        """The problems of all parts, each once."""
        parts = (self.cluster, self.topics, self.log_dirs, self.end_offsets, self.groups, self.committed)
        return tuple(dict.fromkeys(problem for part in parts for problem in part.problems))

    def once(self, function: Callable[[Snapshot], T]) -> T:
        """The result of a pure function of this snapshot, computed once: rows of long lists."""
        if function not in self._once:
            self._once[function] = function(self)
        result: T = self._once[function]
        return result

    @cached_property
    def _once(self) -> dict[Callable[[Snapshot], Any], Any]:
        return {}

    @cached_property
    def known_topics(self) -> Mapping[str, TopicDescription]:
        return self.topics.value or {}

    @cached_property
    def known_groups(self) -> Mapping[str, GroupListing]:
        return self.groups.value or {}

    # --- partitions ---

    def after(self, before: Snapshot) -> Snapshot:
        """This snapshot of newer topics, with what the one before knew of partitions that are not in sync."""
        if not self.topics.collected or self.topics.value is before.topics.value:
            return self
        now_ms = self.topics.taken_ms
        behind = [(topic, each.partition) for topic, each in (*self.offline, *self.not_in_sync)]
        return replace(
            self,
            behind_since={each: before.behind_since.get(each, now_ms) for each in behind},
            watched_ms=before.watched_ms if before.watched_ms >= 0 else now_ms,
        )

    @cached_property
    def offline(self) -> tuple[PartitionState, ...]:
        """Partitions without a leader."""
        return tuple(
            PartitionState(topic.name, each)
            for topic in self.known_topics.values()
            for each in topic.partitions
            if each.leader < 0
        )

    @cached_property
    def not_in_sync(self) -> tuple[PartitionState, ...]:
        """Partitions with a leader and fewer in-sync replicas than replicas."""
        return tuple(
            PartitionState(topic.name, each)
            for topic in self.known_topics.values()
            for each in topic.partitions
            if each.leader >= 0 and each.under_replicated
        )

    @cached_property
    def partition_count(self) -> int:
        return sum(len(topic.partitions) for topic in self.known_topics.values())

    @cached_property
    def leaders(self) -> Mapping[int, int]:
        """The number of partitions that each broker leads."""
        found: defaultdict[int, int] = defaultdict(int)
        for topic in self.known_topics.values():
            for each in topic.partitions:
                found[each.leader] += 1
        return found

    # --- sizes ---

    @cached_property
    def topic_sizes(self) -> Mapping[str, int]:
        """Bytes of all replicas on the brokers that responded."""
        found: defaultdict[str, int] = defaultdict(int)
        for dirs in (self.log_dirs.value or {}).values():
            for each in dirs:
                for (topic, _), replica in each.replicas.items():
                    found[topic] += replica.size
        return found

    # --- groups ---

    @cached_property
    def readers(self) -> Mapping[str, Mapping[str, GroupLag]]:
        """By topic, the groups with committed offsets in it, and their lag there."""
        ends = self.end_offsets.value or {}
        found: defaultdict[str, dict[str, GroupLag]] = defaultdict(dict)
        for group, offsets in (self.committed.value or {}).items():
            for (topic, partition), offset in offsets.items():
                behind = max(0, ends.get(TopicPartition(topic, partition), offset) - offset)
                known = found[topic].get(group, GroupLag(0, 0))
                found[topic][group] = GroupLag(known.records + behind, known.partitions + 1)
        return found

    @cached_property
    def group_topics(self) -> Mapping[str, Mapping[str, GroupLag]]:
        """By group, the topics with its committed offsets, and its lag there."""
        found: defaultdict[str, dict[str, GroupLag]] = defaultdict(dict)
        for topic, groups in self.readers.items():
            for group, lag in groups.items():
                found[group][topic] = lag
        return found

    @cached_property
    def group_lags(self) -> Mapping[str, GroupLag]:
        """By group, its lag in all topics."""
        return {
            group: GroupLag(
                sum(each.records for each in topics.values()),
                sum(each.partitions for each in topics.values()),
            )
            for group, topics in self.group_topics.items()
        }
