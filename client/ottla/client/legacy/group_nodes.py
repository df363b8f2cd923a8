"""Paths and formats of a consumer group's nodes in ZooKeeper, as in Kafka 0.8. Pure.

    /consumers/[group]/ids/[consumer]               a member with its subscription; ephemeral
    /consumers/[group]/owners/[topic]/[partition]   the thread that reads the partition; ephemeral
    /consumers/[group]/offsets/[topic]/[partition]  the offset of the next message, as text

Called by `consumer_registry`. Invariant: the bytes are those that Kafka 0.8.2's own consumer writes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from ottla.client.core.types import TopicPartition
from ottla.client.errors import ClientError
from ottla.client.legacy.partition_assignor import ConsumerThreadId
from ottla.client.legacy.topic_filters import Blacklist, TopicFilter, Whitelist

BROKERS: Final = "/brokers/ids"
TOPICS: Final = "/brokers/topics"
STATIC: Final = "static"
_FILTERS: Final[dict[str, type[TopicFilter]]] = {each.pattern: each for each in (Whitelist, Blacklist)}


class GroupPaths:
    """The paths of one group's nodes."""

    def __init__(self, group: str) -> None:
        self._root = f"/consumers/{group}"
        self.ids = f"{self._root}/ids"

    def consumer(self, consumer: str) -> str:
        return f"{self.ids}/{consumer}"

    def owner(self, tp: TopicPartition) -> str:
        return f"{self._root}/owners/{tp.topic}/{tp.partition}"

    def offset(self, tp: TopicPartition) -> str:
        return f"{self._root}/offsets/{tp.topic}/{tp.partition}"


class Subscription(NamedTuple):
    """The subscription of a consumer: the number of streams by topic, or of one topic filter."""

    pattern: str
    counts: Mapping[str, int]

    @property
    def filter(self) -> TopicFilter | None:
        """The topic filter; None for a subscription by names."""
        kind = _FILTERS.get(self.pattern)
        if kind is None or not self.counts:
            return None
        return kind(next(iter(self.counts)))

    def topics(self, existing: Collection[str], *, exclude_internal_topics: bool) -> list[str]:
        """The topics among `existing` to read. Raises ValueError for a filter that is not a Python
        expression."""
        topic_filter = self.filter
        if topic_filter is None:
            return list(self.counts)
        return [
            topic
            for topic in existing
            if topic_filter.allows(topic, exclude_internal_topics=exclude_internal_topics)
        ]

    def threads(self, consumer: str, topic: str) -> list[ConsumerThreadId]:
        """The threads of a consumer that read a topic of the subscription."""
        count = self.counts[topic] if self.filter is None else next(iter(self.counts.values()))
        return [ConsumerThreadId(consumer, number) for number in range(count)]


def registration(subscription: Subscription, now_ms: int) -> bytes:
    """The content of a member's node."""
    node = {
        "version": 1,
        "subscription": dict(subscription.counts),
        "pattern": subscription.pattern,
        "timestamp": str(now_ms),
    }
    return json.dumps(node, separators=(",", ":"), ensure_ascii=False).encode()


def parse_registration(path: str, data: bytes) -> Subscription:
    """The subscription in a member's node. Raises ClientError."""
    node = _object(path, data)
    counts = node.get("subscription")
    if not isinstance(counts, dict) or not isinstance(node.get("pattern"), str):
        raise ClientError(f"{path} in ZooKeeper has no subscription or pattern: {data!r}")
    return Subscription(node["pattern"], {str(topic): int(count) for topic, count in counts.items()})


def parse_partitions(path: str, data: bytes) -> list[int]:
    """The partitions in a topic's node. Raises ClientError."""
    return sorted(int(partition) for partition in _object(path, data).get("partitions", {}))


def parse_broker(path: str, data: bytes, security_protocol: str) -> tuple[str, int] | None:
    """The broker's address for a security protocol; None without such a listener. Raises ClientError."""
    node = _object(path, data)
    protocols = node.get("listener_security_protocol_map") or {}
    for endpoint in node.get("endpoints") or ():
        listener, _, address = str(endpoint).partition("://")
        host, _, port = address.rpartition(":")
        if protocols.get(listener, listener) == security_protocol:
            return host.strip("[]"), int(port)
    if security_protocol == "PLAINTEXT" and node.get("host") and int(node.get("port", -1)) > 0:
        return str(node["host"]), int(node["port"])
    return None


def parse_offset(path: str, data: bytes) -> int:
    """The offset in an offset node. Raises ClientError."""
    try:
        return int(data)
    except ValueError:
        raise ClientError(f"{path} in ZooKeeper is not an offset: {data!r}") from None


def _object(path: str, data: bytes) -> dict[str, Any]:
    try:
        node = json.loads(data)
    except ValueError:
        node = None
    if not isinstance(node, dict):
        raise ClientError(f"{path} in ZooKeeper is not a JSON object: {data!r}")
    return node
