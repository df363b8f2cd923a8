"""Replica placement of new partitions (AdminUtils.assignReplicasToBrokers), rack-aware (KIP-36).

Called by `topics`. Pure, with both random start positions passed in. Leaders are assigned round robin,
beginning at `start`. The followers of a partition are shifted against its leader by `shift`, and by one more
after each round, so that the followers of a broker's leaders spread over all other brokers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def place_replicas(
    brokers: Mapping[int, str | None],
    partitions: int,
    replication_factor: int,
    *,
    start: int,
    shift: int,
    first_partition: int = 0,
) -> dict[int, tuple[int, ...]]:
    """Assign replicas to `partitions` partitions of a topic, numbered from `first_partition`.

    `brokers` maps the ids of the usable brokers to their racks; racks count only if every broker has
    one. Returns the replicas by partition, the preferred leader first.
    """
    assert 0 < replication_factor <= len(brokers), "the caller checks the replication factor"
    racks = {broker: rack for broker, rack in brokers.items() if rack is not None}
    if len(racks) == len(brokers):
        return _by_rack(racks, partitions, replication_factor, start, shift, first_partition)
    ids = sorted(brokers)
    count = len(ids)
    placed: dict[int, tuple[int, ...]] = {}
    for partition in range(first_partition, first_partition + partitions):
        if partition > 0 and partition % count == 0:
            shift += 1
        leader = (partition + start) % count
        followers = [ids[_follower(leader, shift, nth, count)] for nth in range(replication_factor - 1)]
        placed[partition] = (ids[leader], *followers)
    return placed


def _follower(leader: int, shift: int, nth: int, count: int) -> int:
    """The position of the nth follower: never the leader's own."""
    return (leader + 1 + (shift + nth) % (count - 1)) % count


def _by_rack(
    racks: Mapping[int, str],
    partitions: int,
    replication_factor: int,
    start: int,
    shift: int,
    first_partition: int,
) -> dict[int, tuple[int, ...]]:
    """Each replica in a different rack until all racks are used, then on any broker without a replica."""
    ids = alternate_racks(racks)
    count, rack_count = len(ids), len(set(racks.values()))
    placed: dict[int, tuple[int, ...]] = {}
    for partition in range(first_partition, first_partition + partitions):
        if partition > 0 and partition % count == 0:
            shift += 1
        leader = (partition + start) % count
        replicas = [ids[leader]]
        used = {racks[ids[leader]]}
        step = 0
        while len(replicas) < replication_factor:
            broker = ids[_follower(leader, shift * rack_count, step, count)]
            step += 1
            if broker not in replicas and (racks[broker] not in used or len(used) == rack_count):
                replicas.append(broker)
                used.add(racks[broker])
        placed[partition] = tuple(replicas)
    return placed


def alternate_racks(racks: Mapping[int, str]) -> Sequence[int]:
    """The brokers ordered so that neighbours are in different racks where possible."""
    by_rack = {
        rack: sorted(b for b, of_broker in racks.items() if of_broker == rack)
        for rack in sorted(set(racks.values()))
    }
    longest = max(len(members) for members in by_rack.values())
    return [
        members[position]
        for position in range(longest)
        for members in by_rack.values()
        if position < len(members)
    ]
