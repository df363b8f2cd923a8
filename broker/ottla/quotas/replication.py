"""Whether replicas that are behind have to wait: the throttles of KIP-73, one each way.

The fetch handler asks the leader's before it reads for a follower, the fetcher the follower's before it asks
a leader. Both measure the traffic of all throttled replicas, and hold back those that are not in sync: an
in-sync replica is never held, or it would fall out of the ISR. As `ReplicationQuotaManager` of Kafka 3.9.1.
"""

from __future__ import annotations

from typing import Final

from ottla.quotas.rates import SimpleRate, Windows

EVERY_PARTITION: Final[frozenset[int]] = frozenset((-1,))
"""What a topic setting of `*` comes to."""

SENSOR_EXPIRATION_MS: Final = 3600 * 1000


class ReplicationQuota:
    """One direction's limit (bytes per second), the replicas it holds for, and what they have used."""

    def __init__(self, windows: Windows) -> None:
        self.limit: float | None = None
        self.active = False
        """Whether any replica is throttled; if none is, nothing needs to be asked or counted."""
        self._windows = windows
        self._throttled: dict[str, frozenset[int]] = {}
        self._rate = SimpleRate(windows)

    def throttle(self, topic: str, partitions: frozenset[int]) -> None:
        """The topic's throttled partitions are now these (maybe none, or EVERY_PARTITION)."""
        if partitions:
            self._throttled[topic] = partitions
        else:
            self._throttled.pop(topic, None)
        self.active = bool(self._throttled)

    def is_throttled(self, topic: str, partition: int) -> bool:
        partitions = self._throttled.get(topic)
        return partitions is not None and (partitions is EVERY_PARTITION or partition in partitions)

    def is_exceeded(self, now_ms: int) -> bool:
        """Whether the throttled replicas have moved more than they may."""
        return self.limit is not None and self._rate.measure(now_ms)[0] > self.limit

    def record(self, size: int, now_ms: int) -> None:
        """Count bytes of throttled replicas, in sync or not."""
        self._rate.record(size, now_ms)


def throttled_partitions(setting: str, broker_id: int) -> frozenset[int]:
    """Which of a topic's partitions `leader|follower.replication.throttled.replicas` names for a broker.

    `*`, or pairs `partition:broker`. Raises ValueError for anything else.
    """
    setting = setting.strip()
    if setting == "*":
        return EVERY_PARTITION
    partitions = set()
    for pair in filter(None, (item.strip() for item in setting.split(","))):
        partition, _, broker = pair.partition(":")
        if int(broker) == broker_id:
            partitions.add(int(partition))
    return frozenset(partitions)
