"""Appends to a coordinator's internal topic, in order, with error codes for clients.

Called by both coordinators; no other module of this package writes to a log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from ottla.coordinators.interfaces import ACKS_ALL, CoordinatorLog
from ottla.protocol.compression import Codec
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Record, build_batch

logger = logging.getLogger(__name__)

Entry: TypeAlias = tuple[bytes, bytes | None]
"""A key and a value; no value is a tombstone."""


class Producer(NamedTuple):
    """The transactional producer of a batch."""

    id: int
    epoch: int
    guard: object | None = None
    """The verification guard for the first batch of the transaction (KIP-890)."""


_COMMON_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_FETCH_SIZE)

GROUP_ERRORS = (
    _COMMON_ERRORS
    | dict.fromkeys(_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR)
    | {ErrorCode.REQUEST_TIMED_OUT: ErrorCode.REBALANCE_IN_PROGRESS}
)
"""Error codes for members after a failed append of group metadata, by the log's error code."""

COMMIT_ERRORS = _COMMON_ERRORS | dict.fromkeys(_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
"""Error codes for clients after a failed append of offsets."""

TRANSACTION_ERRORS = (
    _COMMON_ERRORS
    | dict.fromkeys(_TOO_LARGE[:2], ErrorCode.UNKNOWN_SERVER_ERROR)
    | {ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE}
)
"""Error codes for producers after a failed append of transaction metadata."""


def when_written(
    write: asyncio.Future[ErrorCode], callback: Callable[[asyncio.Future[ErrorCode]], None]
) -> None:
    """Call back when an append has ended, now if it has: before a caller that awaits it continues."""
    if write.done():
        callback(write)
    else:
        write.add_done_callback(callback)


class LogAppender:
    """Appends batches of one coordinator to its internal topic."""

    def __init__(self, log: CoordinatorLog, codec: Codec, acks: int = ACKS_ALL) -> None:
        self._log = log
        self._acks = acks
        self._codec = codec
        self._under_way: dict[asyncio.Future[ErrorCode], None] = {}

    def append(
        self,
        partition: int,
        entries: Sequence[Entry],
        now_ms: int,
        *,
        acks: int | None = None,
        timeout_ms: int | None = None,
        producer: Producer | None = None,
    ) -> asyncio.Future[ErrorCode]:
        """Append one batch, in the transaction of `producer` if given; the result is the log's error code.

        Batches are in the log in the order of the calls. `acks` and `timeout_ms` default to this appender's
        and the log's.
        """
        batch = build_batch(
            [Record(index, now_ms, key, value) for index, (key, value) in enumerate(entries)],
            codec=self._codec,
            producer_id=NO_PRODUCER_ID if producer is None else producer.id,
            producer_epoch=NO_PRODUCER_EPOCH if producer is None else producer.epoch,
            base_sequence=NO_SEQUENCE if producer is None else 0,
            transactional=producer is not None,
        )
        guard = None if producer is None else producer.guard
        acks = self._acks if acks is None else acks
        try:
            write = self._log.append(partition, batch, acks=acks, timeout_ms=timeout_ms, guard=guard)
        except Exception:
            logger.exception("Appending to %s-%d failed", self._log.topic, partition)
            write = asyncio.get_running_loop().create_future()
            write.set_result(ErrorCode.UNKNOWN_SERVER_ERROR)
        self._under_way[write] = None
        write.add_done_callback(partial(self._ended, partition))
        return write

    async def drain(self) -> None:
        """Wait for the appends under way."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    def _ended(self, partition: int, write: asyncio.Future[ErrorCode]) -> None:
        del self._under_way[write]
        if not write.cancelled() and write.result() is not ErrorCode.NONE:
            logger.warning("Appending to %s-%d failed: %s", self._log.topic, partition, write.result().name)
