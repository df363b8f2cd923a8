"""The assignment strategies of Kafka 0.8, range and roundrobin, which each consumer computes itself. Pure.

Called by `zookeeper_coordination` with the group's state in ZooKeeper, and by `group_coordination` for the
streams of one connector. Invariant: for the same inputs the result is that of Kafka's own consumers; names
are therefore ordered as Java's strings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from ottla.client.core.types import TopicPartition
from ottla.client.errors import ClientError
from ottla.client.legacy.partitioners import java_hash

T = TypeVar("T")


class ConsumerThreadId(NamedTuple):
    """One stream of one consumer, as in Kafka's ConsumerThreadId."""

    consumer: str
    number: int

    def __str__(self) -> str:
        return f"{self.consumer}-{self.number}"


class AssignableTopic(NamedTuple):
    """The partitions of a topic, and the threads that subscribe to it."""

    partitions: tuple[int, ...]
    threads: tuple[ConsumerThreadId, ...]


def assignable_topic(partitions: Iterable[int], threads: Iterable[ConsumerThreadId]) -> AssignableTopic:
    """Partitions and threads in the order of the assignment."""
    return AssignableTopic(tuple(sorted(partitions)), tuple(sorted(threads, key=_java_order)))


def _java_order(thread: ConsumerThreadId) -> bytes:
    """A sort key: Java compares strings by UTF-16 code units."""
    return str(thread).encode("utf-16-be", "surrogatepass")


def assign(
    strategy: str, topics: Mapping[str, AssignableTopic], consumer: str
) -> dict[TopicPartition, ConsumerThreadId]:
    """The partitions of a consumer, with the thread that reads each. `topics`: those of the consumer; for
    roundrobin, all topics of the group. Raises ClientError if the subscriptions do not allow roundrobin."""
    compute = _round_robin if strategy == "roundrobin" else _ranges
    return {tp: thread for tp, thread in compute(topics).items() if thread.consumer == consumer}


def _ranges(topics: Mapping[str, AssignableTopic]) -> dict[TopicPartition, ConsumerThreadId]:
    """By topic: consecutive partitions to each thread; the first threads get one more if they do not divide
    evenly."""
    return {
        TopicPartition(topic, partition): thread
        for topic, (partitions, threads) in topics.items()
        for partition, thread in assign_ranges(partitions, threads).items()
    }


def assign_ranges(partitions: Sequence[int], members: Sequence[T]) -> dict[int, T]:
    """Range assignment of the partitions of one topic: partition -> member."""
    each, more = divmod(len(partitions), len(members)) if members else (0, 0)
    assigned = {}
    for position, member in enumerate(members):
        start = each * position + min(position, more)
        for partition in partitions[start : start + each + (position < more)]:
            assigned[partition] = member
    return assigned


def _round_robin(topics: Mapping[str, AssignableTopic]) -> dict[TopicPartition, ConsumerThreadId]:
    """All partitions in turn to all threads, ordered by hash, which spreads a topic over consumers."""
    all_threads = {frozenset(threads) for _, threads in topics.values()}
    if len(all_threads) > 1:
        raise ClientError(
            "partition.assignment.strategy=roundrobin: all consumers of a group must have the same topics "
            f"and the same number of streams for each; those to {', '.join(sorted(topics))} differ"
        )
    ordered = _by_hash(TopicPartition(topic, p) for topic, each in topics.items() for p in each.partitions)
    threads = next(iter(topics.values())).threads if topics else ()
    return {tp: threads[at % len(threads)] for at, tp in enumerate(ordered)} if threads else {}


def _by_hash(partitions: Iterable[TopicPartition]) -> Collection[TopicPartition]:
    return sorted(partitions, key=lambda tp: (java_hash(f"[{tp.topic},{tp.partition}]"), tp))
