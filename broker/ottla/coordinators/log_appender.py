"""Appends to a coordinator's internal topic, in order, with error codes for clients.

Called by both coordinators; no other module of this package writes to a log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from ottla.coordinators.interfaces import ACKS_ALL, CoordinatorLog
from ottla.ports.tasks import TaskSet
from ottla.protocol.compression import Codec
from ottla.protocol.errors import ErrorCode, KafkaError
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


class LogAppender:
    """Appends batches of one coordinator to its internal topic."""

    def __init__(self, log: CoordinatorLog, codec: Codec, acks: int = ACKS_ALL) -> None:
        self._log = log
        self._acks = acks
        self._codec = codec
        self._tasks = TaskSet()

    def append(
        self,
        partition: int,
        entries: Sequence[Entry],
        now_ms: int,
        *,
        acks: int | None = None,
        timeout_ms: int | None = None,
        producer: Producer | None = None,
    ) -> asyncio.Task[ErrorCode]:
        """Append one batch, in the transaction of `producer` if given; the result is the log's error code.

        Appends start in the order of the calls. `acks` and `timeout_ms` default to this appender's and the
        log's. Every append is a separate task: an append that is awaited directly could overtake an earlier
        one, such as the tombstone of the same group.
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
        return self._tasks.start(
            self._append(partition, batch, self._acks if acks is None else acks, timeout_ms, guard)
        )

    async def drain(self) -> None:
        """Wait for the appends under way."""
        await self._tasks.wait()

    async def _append(
        self, partition: int, batch: bytes, acks: int, timeout_ms: int | None, guard: object | None
    ) -> ErrorCode:
        try:
            error = await self._log.append(partition, batch, acks=acks, timeout_ms=timeout_ms, guard=guard)
        except KafkaError as problem:
            error = problem.code
        except Exception:
            logger.exception("Appending to %s-%d failed", self._log.topic, partition)
            error = ErrorCode.UNKNOWN_SERVER_ERROR
        if error is not ErrorCode.NONE:
            logger.warning("Appending to %s-%d failed: %s", self._log.topic, partition, error.name)
        return error
