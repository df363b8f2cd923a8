"""DeleteRecords on one partition (KIP-107): the leader increments its log start offset, then the followers.

Called by the handler of DeleteRecords. No I/O besides the log's. A follower gets the leader's log start
offset with every fetch response, and sends its own with the next fetch; the low watermark is the lowest of
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.replication.partition import Partition

HIGH_WATERMARK: Final = -1


def delete_records(partition: Partition, offset: int) -> int:
    """Delete the records before `offset`, -1 for the high watermark; returns the resolved offset.

    Raises NOT_LEADER_OR_FOLLOWER, POLICY_VIOLATION if cleanup.policy does not include `delete`, and
    OFFSET_OUT_OF_RANGE for an offset above the high watermark.
    """
    if not partition.is_leader:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition!r} cannot delete records")
    if not partition.log.config.deletes:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"the cleanup.policy of {partition.topic} is not delete")
    wanted = partition.high_watermark if offset == HIGH_WATERMARK else offset
    if not 0 <= wanted <= partition.high_watermark:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{partition!r}: offset {wanted} is above the high watermark {partition.high_watermark}",
        )
    if partition.log.maybe_increment_log_start_offset(wanted, "client delete records request"):
        partition.maybe_notify_log_start()
    return wanted


def low_watermark(partition: Partition, is_alive: Callable[[int], bool]) -> int:
    """The lowest log start offset of the leader and its followers on live brokers."""
    starts = [partition.log.log_start_offset]
    for broker in partition.replicas:
        follower = partition.follower(broker)
        if follower is not None and is_alive(broker):
            starts.append(follower.log_start_offset)
    return min(starts)
