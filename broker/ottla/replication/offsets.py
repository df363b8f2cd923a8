"""Offset lookup by timestamp (ListOffsets) and by leader epoch (OffsetForLeaderEpoch).

Called by the offsets handlers. No I/O besides the log's. Negative timestamps are special positions of the
log.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.replication.partition import NO_EPOCH, NO_OFFSET, Partition
from ottla.storage.log import Log

NO_TIMESTAMP: Final = -1

LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
MAX_TIMESTAMP: Final = -3
"""The record with the largest timestamp (KIP-734)."""
EARLIEST_LOCAL_TIMESTAMP: Final = -4
"""Without tiered storage the same as the earliest (KIP-405)."""
LATEST_TIERED_TIMESTAMP: Final = -5
"""Without tiered storage there is none (KIP-1005)."""


class OffsetFound(NamedTuple):
    """A found offset. `timestamp` is -1 for the log's start and end, `leader_epoch` is -1 if unknown."""

    offset: int
    timestamp: int
    leader_epoch: int


def offset_for_leader_epoch(
    replica: Partition, current_leader_epoch: int, epoch: int
) -> tuple[ErrorCode, int, int]:
    """(error, the largest epoch up to `epoch`, its end offset); -1 if unknown."""
    error = replica.leader_error(current_leader_epoch)
    if error is not ErrorCode.NONE:
        return error, NO_EPOCH, NO_OFFSET
    found, end = replica.log.end_offset_for_epoch(epoch)
    return ErrorCode.NONE, found, end


def offset_for_time(
    replica: Partition,
    timestamp: int,
    isolation: int | None,
    current_leader_epoch: int = NO_EPOCH,
    *,
    leader_only: bool = True,
) -> OffsetFound | None:
    """The first offset at or after `timestamp` (ms), or the special position of a negative one; None if there
    is none. `isolation` is 0 (read uncommitted), 1 (committed), None for a follower, which reads all records.
    Without `leader_only` followers serve the request, too. Raises FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH,
    NOT_LEADER_OR_FOLLOWER and, while a new leader's high watermark has not reached the start of its epoch,
    OFFSET_NOT_AVAILABLE (KIP-207)."""
    check = replica.leader_error if leader_only else replica.epoch_error
    error = check(current_leader_epoch)
    if error is not ErrorCode.NONE:
        raise KafkaError(error, f"{replica!r}: offset requested with leader epoch {current_leader_epoch}")
    if isolation is None:
        visible_end = replica.log.log_end_offset
    else:
        visible_end = replica.last_stable_offset if isolation else replica.high_watermark
    return _find_by_time(
        replica.log,
        timestamp,
        visible_end=visible_end,
        leader_epoch=replica.leader_epoch,
        is_lagging=isolation is not None and replica.leader_epoch_start > replica.high_watermark,
    )


def _find_by_time(
    log: Log, timestamp: int, *, visible_end: int, leader_epoch: int, is_lagging: bool
) -> OffsetFound | None:
    """The first offset at or after `timestamp` (ms) below `visible_end`; None if there is none.

    `is_lagging`: a new leader's high watermark has not reached the start of its epoch, so that the end of the
    committed records is unknown. Then offsets at that end raise OFFSET_NOT_AVAILABLE (KIP-207), so that
    offsets never go backwards for a consumer.
    """
    if timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
        start = log.log_start_offset
        epoch = log.epoch_at(start)
        return OffsetFound(start, NO_TIMESTAMP, NO_EPOCH if epoch is None else epoch)
    if timestamp == LATEST_TIERED_TIMESTAMP:
        return OffsetFound(NO_OFFSET, NO_TIMESTAMP, NO_EPOCH)
    if timestamp == LATEST_TIMESTAMP:
        if is_lagging:
            raise _lagging()
        return OffsetFound(visible_end, NO_TIMESTAMP, leader_epoch)
    found = log.max_timestamp() if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp)
    if found is not None and found[0] < visible_end:
        return OffsetFound(*found)
    if is_lagging:
        raise _lagging()
    return None


def _lagging() -> KafkaError:
    return KafkaError(
        ErrorCode.OFFSET_NOT_AVAILABLE, "the leader's high watermark has not reached its epoch's start"
    )
