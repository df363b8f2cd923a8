"""Moves of replicas between log directories of this broker (ReplicaAlterLogDirsManager, KIP-113).

Owned by `manager`; called by the handler of AlterReplicaLogDirs. One task copies the partitions one after the
other in the order of their names, a chunk at a time: blocking I/O in a thread, throttled by
replica.alter.log.dirs.io.max.bytes.per.second. The last chunk is copied on the event loop, where no append
can happen at the same time, and the future log replaces the current one.

Invariant: a partition here is one of the manager's, and has a future log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.quotas.broker import ReplicationQuota
from ottla.quotas.rates import Windows
from ottla.replication.partition import Partition
from ottla.replication.requests import PartitionKey
from ottla.storage.future_log import FutureLog
from ottla.storage.log_dir import is_too_long_to_move
from ottla.storage.log_manager import LogManager
from ottla.storage.segment_files import LogRead

_logger = logging.getLogger(__name__)

RunLookup = Callable[[Callable[[], LogRead | None]], Awaitable[LogRead | None]]

_THROTTLE_PAUSE_S: Final = 0.1
_RETRY_PAUSE_S: Final = 1.0


async def look_up_on_loop(look_up: Callable[[], LogRead | None]) -> LogRead | None:
    """The default `look_up`, on the event loop, also if it blocks for pages that are not cached."""
    return look_up()


class ReplicaAlterLogDirsManager:
    """Starts, copies and completes moves between log directories."""

    def __init__(
        self,
        logs: LogManager,
        clock: Callable[[], int],
        partition: Callable[[str, int], Partition],
        chunk_bytes: int,
    ) -> None:
        """`partition` returns a replica or raises KafkaError; `chunk_bytes` is replica.fetch.max.bytes."""
        self.quota = ReplicationQuota(Windows())
        """The throttle; the server replaces it."""
        self.look_up: RunLookup = look_up_on_loop
        """Runs a lookup in a log whose pages may not be cached; the server replaces it."""
        self._logs = logs
        self._clock = clock
        self._partition = partition
        self._chunk_bytes = chunk_bytes
        self._moves: dict[PartitionKey, tuple[Partition, FutureLog]] = {}
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._stopping = False

    # --- requests -----------------------------------------------------------------------------------

    def alter(self, topic: str, index: int, path: str) -> ErrorCode:
        """Move the replica to the log directory `path`. A replica that does not exist yet is created there
        later (then the result is REPLICA_NOT_AVAILABLE)."""
        try:
            self._alter(topic, index, path)
        except KafkaError as error:
            if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                return ErrorCode.REPLICA_NOT_AVAILABLE
            _logger.warning("Cannot move %s-%d to %s: %s", topic, index, path, error)
            return error.code
        return ErrorCode.NONE

    def _alter(self, topic: str, index: int, path: str) -> None:
        logs = self._logs
        if is_too_long_to_move(topic, index):
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "the topic's name is too long")
        log_dir = logs.log_dir(path)
        if not log_dir.online:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path} is offline")
        partition = problem = None
        try:
            partition = self._partition(topic, index)
        except KafkaError as error:
            problem = error
            if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
                raise
        future = logs.future_log(topic, index)
        if partition is not None and future is not None and future.log_dir is not log_dir:
            self.end(partition.key)
            logs.delete_future_log(topic, index)
        logs.set_preferred_log_dir(topic, index, log_dir)
        if partition is None:
            assert problem is not None
            raise problem
        if partition.log.log_dir is log_dir or logs.future_log(topic, index) is not None:
            return
        if len(logs.online_dirs()) < len(logs.log_dirs):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "an offline log directory may have a future log")
        logs.create_future_log(topic, index, self._clock())
        _logger.info("Moving %r from %s to %s", partition, partition.log.log_dir.path, path)
        self.begin(partition)

    def begin(self, partition: Partition) -> None:
        """Start or continue the partition's move, if it has a future log. Needs a running loop."""
        future = self._logs.future_log(*partition.key)
        if future is None or self._stopping:
            return
        known = self._moves.get(partition.key)
        if known is None or known[0] is not partition or known[1].log is not future:
            self._moves[partition.key] = partition, FutureLog(partition.log, future)
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="move logs")

    def end(self, key: PartitionKey) -> None:
        """Stop copying. The future log is kept."""
        self._moves.pop(key, None)

    def directory_failed(self) -> None:
        """End moves from or to a failed log directory."""
        for key, (_, move) in list(self._moves.items()):
            if move.source.closed or move.log.closed:
                self.end(key)

    async def stop(self) -> None:
        """Stop after the current step."""
        self._stopping = True
        self._moves.clear()
        self._wake.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    # --- copying ------------------------------------------------------------------------------------

    async def _run(self) -> None:
        not_before: dict[PartitionKey, float] = {}
        loop = asyncio.get_running_loop()
        while self._moves:
            now_s = loop.time()
            ready = [key for key in self._moves if not_before.get(key, 0.0) <= now_s]
            if not ready:
                await self._pause(min(not_before[key] for key in self._moves) - now_s)
                continue
            if self.quota.is_exceeded(self._clock()):
                await self._pause(_THROTTLE_PAUSE_S)
                continue
            key = min(ready)
            partition, move = self._moves[key]
            try:
                if await self._copy_chunk(partition, move):
                    self._end_move(key, move)
            except Exception as problem:
                if self._is_over(key, move):
                    self._end_move(key, move)
                    continue
                is_expected = isinstance(problem, KafkaError | OSError)
                _logger.log(
                    logging.WARNING if is_expected else logging.ERROR,
                    "Copying %s to %s failed, retrying: %s", partition, move.log.directory, problem,
                    exc_info=not is_expected,
                )  # fmt: skip
                not_before[key] = loop.time() + _RETRY_PAUSE_S

    async def _pause(self, pause_s: float) -> None:
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._wake.wait()

    def _end_move(self, key: PartitionKey, move: FutureLog) -> None:
        """End this move, unless another one of the partition has replaced it."""
        known = self._moves.get(key)
        if known is not None and known[1] is move:
            self.end(key)

    def _is_over(self, key: PartitionKey, move: FutureLog) -> bool:
        """Whether the move was ended, or one of its log directories has failed."""
        known = self._moves.get(key)
        return known is None or known[1] is not move or move.source.closed or move.log.closed

    async def _copy_chunk(self, partition: Partition, move: FutureLog) -> bool:
        """Copy a chunk. True when the move is over."""
        read = await self.look_up(partial(move.read_next, self._chunk_bytes))
        size = await asyncio.to_thread(move.append, read, self._clock())
        self.quota.record(size, self._clock())
        if self._is_over(partition.key, move):
            return True
        if move.lag and (read is None or size > self._chunk_bytes // 2):
            return False  # there is more to copy
        await asyncio.to_thread(self._make_durable, move)
        if self._is_over(partition.key, move):
            return True
        before = move.log.size
        is_caught_up = move.catch_up(self._chunk_bytes, self._clock())
        self.quota.record(move.log.size - before, self._clock())
        if not is_caught_up:
            return False
        self._replace(partition, move)
        log_dirs = move.source.log_dir, move.log.log_dir
        await asyncio.to_thread(self._logs.checkpoint_dirs, *log_dirs)
        return True

    def _make_durable(self, move: FutureLog) -> None:
        move.log.flush()
        self._logs.checkpoint_dirs(move.log.log_dir)

    def _replace(self, partition: Partition, move: FutureLog) -> None:
        """Replace the log, on the event loop directly after `catch_up`, so without an append in between."""
        assert partition.log is move.source, "the partition's log was replaced"
        assert move.source.log_end_offset == move.log.log_end_offset
        partition.log_replaced(self._logs.replace_current_with_future(*partition.key))
        _logger.info("Moved %r to %s", partition, partition.log.directory)
