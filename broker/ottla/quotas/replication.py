"""Replication throttles (KIP-73), one for the leader's and one for the follower's side.

The fetch handler checks the leader's before it reads for a follower, the fetcher the follower's before it
fetches. Both measure the traffic of all throttled replicas, and throttle only those that are not in sync:
throttling would make an in-sync replica leave the ISR. As `ReplicationQuotaManager` of Kafka 3.9.1.
"""

from __future__ import annotations

from typing import Final

from ottla.quotas.rates import SimpleRate, Windows

ALL_PARTITIONS: Final[frozenset[int]] = frozenset((-1,))
"""The value of a topic setting of `*`."""

SENSOR_EXPIRATION_MS: Final = 3600 * 1000


class ReplicationQuota:
    """The limit of one side in bytes per second, its throttled replicas, and their measured rate."""

    def __init__(self, windows: Windows) -> None:
        self.limit: float | None = None
        self.active = False
        """Whether any replica is throttled; if not, callers neither check nor record."""
        self._windows = windows
        self._throttled: dict[str, frozenset[int]] = {}
        self._rate = SimpleRate(windows)

    def throttle(self, topic: str, partitions: frozenset[int]) -> None:
        """Set the topic's throttled partitions (none, some, or ALL_PARTITIONS)."""
        if partitions:
            self._throttled[topic] = partitions
        else:
            self._throttled.pop(topic, None)
        self.active = bool(self._throttled)

    def is_throttled(self, topic: str, partition: int) -> bool:
        partitions = self._throttled.get(topic)
        return partitions is not None and (partitions is ALL_PARTITIONS or partition in partitions)

    def is_exceeded(self, now_ms: int) -> bool:
        """Whether the rate of the throttled replicas is above the limit."""
        return self.limit is not None and self._rate.measure(now_ms)[0] > self.limit

    def record(self, size: int, now_ms: int) -> None:
        """Record bytes of throttled replicas, in sync or not."""
        self._rate.record(size, now_ms)


def throttled_partitions(setting: str, broker_id: int) -> frozenset[int]:
    """The partitions of a topic that `leader|follower.replication.throttled.replicas` throttles on a broker.

    The setting is `*`, or pairs `partition:broker`. Raises ValueError for anything else.
    """
    setting = setting.strip()
    if setting == "*":
        return ALL_PARTITIONS
    partitions = set()
    for pair in filter(None, (item.strip() for item in setting.split(","))):
        partition, _, broker = pair.partition(":")
        if int(broker) == broker_id:
            partitions.add(int(partition))
    return frozenset(partitions)
