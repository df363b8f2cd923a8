"""Reads of one replica for Fetch, by a follower or a consumer (Partition.fetchRecords).

Called by the fetch handler, which encodes the results. No I/O besides the log's. A follower reads up to the
log end, and its fetch updates the leader's state of it; a consumer reads committed records, also from a
follower (KIP-392).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.replication.isr import UNKNOWN_EPOCH, Follower
from ottla.replication.partition import NO_EPOCH, NO_OFFSET, Partition
from ottla.storage.segment_files import LogRead

_NONE: Final = ErrorCode.NONE


class PartitionRead(NamedTuple):
    """The result of one partition's fetch. `read` is None without records to return."""

    error: ErrorCode
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    diverging: tuple[int, int] | None
    read: LogRead | None
    caught_up: bool = False
    """Whether the same request has the same result until the listener is notified of the partition."""


FAILED: Final = {
    error: PartitionRead(error, NO_OFFSET, NO_OFFSET, NO_OFFSET, None, None)
    for error in (
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    )
}


def read(
    replica: Partition,
    fetch_offset: int,
    max_bytes: int,
    *,
    replica_id: int,
    broker_epoch: int = UNKNOWN_EPOCH,
    current_leader_epoch: int = NO_EPOCH,
    last_fetched_epoch: int = NO_EPOCH,
    read_committed: bool = False,
    min_one: bool = True,
    now_ms: int,
    record_progress: bool = True,
    leader_only: bool = True,
    follower_log_start_offset: int = NO_OFFSET,
) -> PartitionRead:
    """Read one partition for a Fetch. `replica_id` is the follower's broker id, negative for a consumer. A
    fetch with a `broker_epoch` before the follower's last one is rejected (KIP-903).

    A follower's fetch updates the leader's state of it, unless `record_progress=False`, for the second read
    of a delayed request. With `leader_only=False` consumers can read from a follower. Errors are returned,
    not raised.
    """
    if current_leader_epoch >= 0 and current_leader_epoch != replica.leader_epoch:
        return FAILED[replica.epoch_error(current_leader_epoch)]
    if not replica.is_leader and (leader_only or replica_id >= 0):
        return FAILED[ErrorCode.NOT_LEADER_OR_FOLLOWER]
    log = replica.log
    end = log.log_end_offset
    follower: Follower | None = None
    if replica_id >= 0:
        follower = replica.in_sync.followers.get(replica_id)
        if follower is None:
            # Not a replica in the leader's state: one of the two has not got a LeaderAndIsr of a
            # reassignment.
            return FAILED[
                ErrorCode.UNKNOWN_LEADER_EPOCH
                if current_leader_epoch >= 0
                else ErrorCode.NOT_LEADER_OR_FOLLOWER
            ]
        if 0 <= broker_epoch < follower.broker_epoch:
            return FAILED[ErrorCode.NOT_LEADER_OR_FOLLOWER]
        up_to = end
    else:
        up_to = replica.last_stable_offset if read_committed else replica.high_watermark

    caught_up = False
    diverging: tuple[int, int] | None = None
    if last_fetched_epoch >= 0 and (last_fetched_epoch != log.latest_epoch or fetch_offset > end):
        epoch, epoch_end = log.end_offset_for_epoch(last_fetched_epoch)
        if epoch < 0 or epoch_end < 0 or fetch_offset < log.log_start_offset:
            return FAILED[ErrorCode.OFFSET_OUT_OF_RANGE]
        if epoch < last_fetched_epoch or epoch_end < fetch_offset:
            diverging = (epoch, epoch_end)
    elif not log.log_start_offset <= fetch_offset <= end:
        return FAILED[ErrorCode.OFFSET_OUT_OF_RANGE]

    data: LogRead | None = None
    if diverging is None:
        if fetch_offset < up_to and (max_bytes > 0 or min_one):
            try:
                data = log.read(fetch_offset, max_bytes, up_to=up_to, min_one=min_one)
            except KafkaError as error:
                return PartitionRead(error.code, NO_OFFSET, NO_OFFSET, NO_OFFSET, None, None)
            if not data.size:
                data = None
        if follower is not None and record_progress:
            replica.follower_fetched(
                follower, fetch_offset, follower_log_start_offset, end, now_ms, broker_epoch
            )
        # A follower outside the ISR must be read again, because its fetches make it join.
        caught_up = fetch_offset >= up_to and (follower is None or replica_id in replica.in_sync.committed)
    return PartitionRead(
        _NONE,
        replica.high_watermark,
        replica.last_stable_offset,
        log.log_start_offset,
        diverging,
        data,
        caught_up,
    )
