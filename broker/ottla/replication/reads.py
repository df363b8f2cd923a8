"""What a fetch of one partition comes to. Made by `partition`, turned into bytes by the fetch handler."""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.protocol.errors import ErrorCode
from ottla.replication.offsets import NO_OFFSET
from ottla.storage.segment import LogRead


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
