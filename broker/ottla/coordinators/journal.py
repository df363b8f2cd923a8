"""Appends to `__consumer_offsets`, in order, with errors told in the clients' terms.

Called by `coordinator`, `commits` and `cleanup`; the only place where the room writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TypeAlias

from ottla.coordinators.ports import GroupLog
from ottla.protocol.compression import Codec
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import Record, build_batch

logger = logging.getLogger(__name__)

Entry: TypeAlias = tuple[bytes, bytes | None]
"""A key and a value; no value is a tombstone."""

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
"""What a member is told when its group's metadata could not be written."""

COMMIT_ERRORS = _COMMON_ERRORS | dict.fromkeys(_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
"""What a client is told when its commit could not be written."""


class Journal:
    def __init__(self, log: GroupLog, codec: Codec) -> None:
        self._log = log
        self._codec = codec
        self._tasks: set[asyncio.Task[ErrorCode]] = set()

    def append(self, partition: int, entries: Sequence[Entry], now_ms: int) -> asyncio.Task[ErrorCode]:
        """Write one batch; the result is the log's error code. Appends begin in the order of the calls.

        Every append is a task of its own, also where the caller could await it directly: an append that
        jumped this queue could put a group's metadata behind its tombstone.
        """
        batch = build_batch(
            [Record(index, now_ms, key, value) for index, (key, value) in enumerate(entries)],
            codec=self._codec,
        )
        task = asyncio.get_running_loop().create_task(self._append(partition, batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drain(self) -> None:
        """Wait for what is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _append(self, partition: int, batch: bytes) -> ErrorCode:
        try:
            error = await self._log.append(partition, batch)
        except KafkaError as problem:
            error = problem.code
        except Exception:
            logger.exception("appending to __consumer_offsets-%d failed", partition)
            error = ErrorCode.UNKNOWN_SERVER_ERROR
        if error is not ErrorCode.NONE:
            logger.warning("appending to __consumer_offsets-%d: %s", partition, error.name)
        return error
