"""Selection of the replica that a consumer reads from (ReplicaSelector, KIP-392): replica.selector.class.

Called by the fetch handler of a leader, for consumers with a rack. Pure. Followers outside the ISR, or
without the consumer's fetch offset in their log, are never selected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeAlias

from ottla.replication.partition import Partition


class ReplicaView(NamedTuple):
    """A replica for selectors. `caught_up_ago_ms` is the time since it was last caught up."""

    broker_id: int
    rack: str | None
    log_end_offset: int
    caught_up_ago_ms: int


Selector: TypeAlias = Callable[[str, ReplicaView, Iterable[ReplicaView]], int | None]
"""(the consumer's rack, the leader, the possible followers) -> a follower's broker id; None for the
leader."""

RackOf: TypeAlias = Callable[[int], str | None]


def rack_aware(rack: str, leader: ReplicaView, followers: Iterable[ReplicaView]) -> int | None:
    """The leader if it is in the consumer's rack, else the most caught-up follower in that rack, if any."""
    if not rack or leader.rack == rack:
        return None
    same_rack = [follower for follower in followers if follower.rack == rack]
    if not same_rack:
        return None
    return max(same_rack, key=lambda f: (f.log_end_offset, -f.caught_up_ago_ms, f.broker_id)).broker_id


SELECTORS: Final[dict[str, Selector]] = {
    "org.apache.kafka.common.replica.RackAwareReplicaSelector": rack_aware,
}


def preferred_replica(
    selector: Selector, partition: Partition, rack: str, rack_of: RackOf, fetch_offset: int, now_ms: int
) -> int | None:
    """The follower from which a consumer in `rack` should read at `fetch_offset`; None for the leader."""
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
