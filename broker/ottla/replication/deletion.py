"""DeleteRecords on one partition (KIP-107): the leader hides a prefix of its log, and followers do after it.

Called by the handler of DeleteRecords. Pure but for the log. A follower learns the leader's log start with
every fetch, and tells its own with the next; the low watermark is the least of those that count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.replication.partition import Partition

HIGH_WATERMARK: Final = -1


def delete_records(partition: Partition, offset: int) -> int:
    """Hide what lies before `offset`, -1 for all that is committed; returns the offset that was meant.

    Raises NOT_LEADER_OR_FOLLOWER, POLICY_VIOLATION where cleanup.policy does not name `delete`, and
    OFFSET_OUT_OF_RANGE for what is not committed.
    """
    if not partition.is_leader:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition!r} deletes no records")
    if not partition.log.config.deletes:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"the cleanup.policy of {partition.topic} is not delete")
    wanted = partition.high_watermark if offset == HIGH_WATERMARK else offset
    if not 0 <= wanted <= partition.high_watermark:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{partition!r} has committed {partition.high_watermark}, not {wanted}",
        )
    if partition.log.maybe_increment_log_start_offset(wanted):
        partition.log_start_checked()
    return wanted


def low_watermark(partition: Partition, is_alive: Callable[[int], bool]) -> int:
    """The least log start of the leader and its followers; brokers that are down do not count."""
    starts = [partition.log.log_start_offset]
    for broker in partition.replicas:
        follower = partition.follower(broker)
        if follower is not None and is_alive(broker):
            starts.append(follower.log_start_offset)
    return min(starts)
