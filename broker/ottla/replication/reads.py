"""Reading from one replica, for a Fetch: what a follower or a consumer may see of it, or why not.

Called by the fetch handler, which turns the answers into bytes. Pure but for the log underneath. A follower
sees everything, and its fetch tells the leader how far it is; a consumer sees what is committed, on a
follower too if it was sent there (KIP-392).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.replication.isr import UNKNOWN_EPOCH, Follower
from ottla.replication.offsets import NO_EPOCH, NO_OFFSET
from ottla.storage.segment_files import LogRead

if TYPE_CHECKING:
    from ottla.replication.partition import Partition

_NONE: Final = ErrorCode.NONE


class PartitionRead(NamedTuple):
    """The answer to one partition's fetch. `read` is None when there is nothing to return."""

    error: ErrorCode
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    diverging: tuple[int, int] | None
    read: LogRead | None
    settled: bool = False
    """The same request will be answered alike until the listener has news of the partition."""


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
    """Serve one partition of a Fetch. `replica_id` is the follower's broker id, negative for a consumer;
    `broker_epoch` its registration: a fetch of an earlier one is refused (KIP-903).

    A follower's fetch also reports how far it is; pass `record_progress=False` when a request that waited is
    read a second time. Consumers may read from followers with `leader_only=False`. Errors are returned, not
    raised.
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
            # In the leader's eyes no replica: one of the two has yet to hear of a reassignment.
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

    settled = False
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
        # A follower outside the ISR is let in, maybe at the second asking, by its fetches.
        settled = fetch_offset >= up_to and (follower is None or replica_id in replica.in_sync.committed)
    return PartitionRead(
        _NONE,
        replica.high_watermark,
        replica.last_stable_offset,
        log.log_start_offset,
        diverging,
        data,
        settled,
    )
