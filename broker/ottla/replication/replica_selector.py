"""Which replica a consumer should read from (KIP-392): replica.selector.class, under Kafka's class names.

Called by the fetch handler, on a leader, for consumers that say where they are. Pure. Followers outside the
ISR, or whose log does not hold the offset that the consumer is at, are never chosen: it would be sent back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeAlias

from ottla.replication.partition import Partition


class ReplicaView(NamedTuple):
    """What a selector knows of a replica. `caught_up_ago_ms` says how long ago it had all that there was."""

    broker_id: int
    rack: str | None
    log_end_offset: int
    caught_up_ago_ms: int


Selector: TypeAlias = Callable[[str, ReplicaView, Iterable[ReplicaView]], int | None]
"""(the consumer's rack, the leader, the followers that will do) -> a follower; None: the leader."""

RackOf: TypeAlias = Callable[[int], str | None]


def rack_aware(rack: str, leader: ReplicaView, followers: Iterable[ReplicaView]) -> int | None:
    """The leader if it is in the consumer's rack, else who has most of the log there, if anybody."""
    if not rack or leader.rack == rack:
        return None
    near = [follower for follower in followers if follower.rack == rack]
    if not near:
        return None
    return max(near, key=lambda f: (f.log_end_offset, -f.caught_up_ago_ms, f.broker_id)).broker_id


SELECTORS: Final[dict[str, Selector]] = {
    "org.apache.kafka.common.replica.RackAwareReplicaSelector": rack_aware,
}


def preferred_replica(
    selector: Selector, partition: Partition, rack: str, rack_of: RackOf, fetch_offset: int, now_ms: int
) -> int | None:
    """Where a consumer in `rack` that is at `fetch_offset` should read; None: here, from the leader."""
    assert partition.is_leader
    followers = [
        ReplicaView(
            broker_id,
            rack_of(broker_id),
            follower.log_end_offset,
            now_ms - follower.last_caught_up_ms,
        )
        for broker_id, follower in partition.in_sync.followers.items()
        if broker_id in partition.isr and follower.log_start_offset <= fetch_offset <= follower.log_end_offset
    ]
    leader = ReplicaView(partition.broker_id, rack_of(partition.broker_id), partition.log.log_end_offset, 0)
    return selector(rack, leader, followers)
