"""The partitions of an internal topic that a coordinator owns, and their loading.

Used by `group_metadata_manager` and by the transaction coordinator, which keep the loaded state. Invariant: a
partition is loaded from the call of `admit` with its content until it is unloaded; content that was read
before a change of leadership is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ottla.coordinators.interfaces import Cancellable, CoordinatorLog, Scheduler
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records import BatchHeader, iter_batches

logger = logging.getLogger(__name__)

RECORDS_PER_SLICE = 200
"""Loading yields to other tasks after about this many records (about 2 ms)."""
LOAD_RETRY_MS = 1_000

L = TypeVar("L")


class BatchReader(Protocol):
    """Gets the batches of a partition in the order of their offsets."""

    record_count: int

    def apply_batch(self, buffer: bytes | memoryview, position: int, header: BatchHeader) -> None: ...


async def read_partition(log: CoordinatorLog, partition: int, reader: BatchReader) -> None:
    """Apply every batch of the partition to the reader, and yield to other tasks regularly."""
    yielded_at = 0
    async for buffer in log.read_all(partition):
        for position, header in iter_batches(buffer):
            reader.apply_batch(buffer, position, header)
            if reader.record_count - yielded_at >= RECORDS_PER_SLICE:
                yielded_at = reader.record_count
                await asyncio.sleep(0)
        await asyncio.sleep(0)


@dataclass(eq=False, slots=True)
class _Ownership:
    loaded: bool = False
    task: asyncio.Task[None] | None = None
    retry: Cancellable | None = None


class OwnedPartitions(Generic[L]):
    """The owned partitions with their loading state; `L` is the loaded content of a partition."""

    def __init__(
        self,
        log: CoordinatorLog,
        scheduler: Scheduler,
        read: Callable[[int], Awaitable[L]],
        admit: Callable[[int, L], None],
    ) -> None:
        """`read` loads a partition's content; `admit` gets it when the partition starts to be served."""
        self._log = log
        self._scheduler = scheduler
        self._read = read
        self._admit = admit
        self._partitions: dict[int, _Ownership] = {}
        self._reading = asyncio.Lock()
        """Partitions are loaded one at a time, so that other tasks can run in between."""
        self.active = False

    def check(self, partition: int) -> ErrorCode:
        """COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR, or NONE."""
        if not self.active:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        ownership = self._partitions.get(partition)
        if ownership is None:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.NONE if ownership.loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._partitions))

    @property
    def is_loading(self) -> bool:
        return any(not ownership.loaded for ownership in self._partitions.values())

    def loading(self, partition: int) -> asyncio.Task[None] | None:
        """The task that is loading the partition, if any."""
        ownership = self._partitions.get(partition)
        if ownership is None or ownership.loaded or ownership.task is None or ownership.task.done():
            return None
        return ownership.task

    def load(self, partition: int) -> asyncio.Task[None] | None:
        """Load the partition, because this broker has become its leader. None if it is already loaded."""
        ownership = self._partitions.get(partition)
        if ownership is not None and ownership.loaded:
            return None
        if ownership is None:
            ownership = self._partitions[partition] = _Ownership()
        if ownership.task is None or ownership.task.done():
            ownership.task = asyncio.get_running_loop().create_task(self._load(partition, ownership))
        return ownership.task

    def unload(self, partition: int) -> None:
        """Drop the partition, because this broker is no longer its leader."""
        ownership = self._partitions.pop(partition, None)
        if ownership is None:
            return
        if ownership.task is not None:
            ownership.task.cancel()
        if ownership.retry is not None:
            ownership.retry.cancel()

    async def _load(self, partition: int, ownership: _Ownership) -> None:
        try:
            async with self._reading:
                loaded = await self._read(partition)
        except Exception:
            # A partially loaded partition would reset clients' positions, so it stays in the loading state.
            logger.exception("Loading %s-%d failed, retrying", self._log.topic, partition)
            if self._partitions.get(partition) is ownership:
                ownership.retry = self._scheduler.call_later(
                    LOAD_RETRY_MS, lambda: self._retry(partition, ownership)
                )
            return
        if self._partitions.get(partition) is not ownership:
            return  # Lost while loading.
        ownership.loaded = True
        self._admit(partition, loaded)

    def _retry(self, partition: int, ownership: _Ownership) -> None:
        if self._partitions.get(partition) is ownership and self._log.is_leader(partition):
            self.load(partition)
