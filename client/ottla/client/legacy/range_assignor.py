"""How Kafka 0.8's consumers share out a group's partitions among themselves, each deciding for itself. Pure.

Called by the coordination by ZooKeeper with what it has read there, and by the one by the group protocol for
the streams of one connector. Invariant: members that see the same decide the same, Kafka's own among them: so
the order of everything is theirs, that of Java's strings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from ottla.client.core.types import TopicPartition
from ottla.client.errors import ClientError
from ottla.client.legacy.partitioners import java_hash

T = TypeVar("T")


class ThreadId(NamedTuple):
    """One stream of one consumer."""

    consumer: str
    number: int

    def __str__(self) -> str:
        return f"{self.consumer}-{self.number}"


class Share(NamedTuple):
    """What there is of one topic, and who wants some of it."""

    partitions: tuple[int, ...]
    threads: tuple[ThreadId, ...]


def share(partitions: Iterable[int], threads: Iterable[ThreadId]) -> Share:
    return Share(tuple(sorted(partitions)), tuple(sorted(threads, key=_in_java)))


def _in_java(thread: ThreadId) -> bytes:
    """Java compares text by UTF-16 units."""
    return str(thread).encode("utf-16-be", "surrogatepass")


def of_consumer(strategy: str, shares: Mapping[str, Share], consumer: str) -> dict[TopicPartition, ThreadId]:
    """What a consumer is to own, and which of its streams reads it. `shares`: of its topics; for roundrobin,
    of all the group's. Raises ClientError where roundrobin cannot be."""
    decide = _round_robin if strategy == "roundrobin" else _ranges
    return {tp: thread for tp, thread in decide(shares).items() if thread.consumer == consumer}


def _ranges(shares: Mapping[str, Share]) -> dict[TopicPartition, ThreadId]:
    """Topic by topic, neighbours together; the first ones take one more where it does not come out even."""
    return {
        TopicPartition(topic, partition): thread
        for topic, (partitions, threads) in shares.items()
        for partition, thread in ranges(partitions, threads).items()
    }


def ranges(partitions: Sequence[int], takers: Sequence[T]) -> dict[int, T]:
    each, more = divmod(len(partitions), len(takers)) if takers else (0, 0)
    taken = {}
    for position, taker in enumerate(takers):
        start = each * position + min(position, more)
        for partition in partitions[start : start + each + (position < more)]:
            taken[partition] = taker
    return taken


def _round_robin(shares: Mapping[str, Share]) -> dict[TopicPartition, ThreadId]:
    """One after the other over all topics; in the order of hashes, which spreads a topic among consumers."""
    all_threads = {frozenset(threads) for _, threads in shares.values()}
    if len(all_threads) > 1:
        raise ClientError(
            "partition.assignment.strategy=roundrobin: all consumers of a group must read one set of topics, "
            f"each in one number of streams; {', '.join(sorted(shares))} have different ones"
        )
    everything = _by_hash(TopicPartition(topic, p) for topic, each in shares.items() for p in each.partitions)
    threads = next(iter(shares.values())).threads if shares else ()
    return {tp: threads[at % len(threads)] for at, tp in enumerate(everything)} if threads else {}


def _by_hash(partitions: Iterable[TopicPartition]) -> Collection[TopicPartition]:
    return sorted(partitions, key=lambda tp: (java_hash(f"[{tp.topic},{tp.partition}]"), tp))
