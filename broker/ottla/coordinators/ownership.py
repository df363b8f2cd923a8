"""Which partitions of its internal topic a coordinator owns, and how far each is loaded.

Used by the groups' `registry` and the transactions' coordinator, which keep what was loaded. Invariant: a
partition counts as loaded from the moment in which `admit` got what was read of it, until it is unloaded;
what was read for a leadership that is over meanwhile is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ottla.coordinators.ports import CoordinatorLog, Scheduler
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records import BatchHeader, iter_batches

logger = logging.getLogger(__name__)

RECORDS_PER_SLICE = 200
"""Loading lets others run after about this many records (some two milliseconds)."""
LOAD_RETRY_MS = 1_000

L = TypeVar("L")


class BatchReader(Protocol):
    record_count: int

    def apply_batch(self, buffer: bytes | memoryview, position: int, header: BatchHeader) -> None: ...


async def read_partition(log: CoordinatorLog, partition: int, reader: BatchReader) -> None:
    """Show the reader every batch of the partition, and let others run now and then."""
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


class OwnedPartitions(Generic[L]):
    def __init__(
        self,
        log: CoordinatorLog,
        scheduler: Scheduler,
        read: Callable[[int], Awaitable[L]],
        admit: Callable[[int, L], None],
    ) -> None:
        """`read` brings what a partition holds; `admit` takes it, once this broker is to answer for it."""
        self._log = log
        self._scheduler = scheduler
        self._read = read
        self._admit = admit
        self._partitions: dict[int, _Ownership] = {}
        self._reading = asyncio.Lock()
        """One at a time, so that however many partitions come at once, others have their turns in between."""
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
        """What is reading the partition now, if anything is."""
        ownership = self._partitions.get(partition)
        if ownership is None or ownership.loaded or ownership.task is None or ownership.task.done():
            return None
        return ownership.task

    def load(self, partition: int) -> asyncio.Task[None] | None:
        """This broker now leads the partition: read what is in it. None if that was done already."""
        ownership = self._partitions.get(partition)
        if ownership is not None and ownership.loaded:
            return None
        if ownership is None:
            ownership = self._partitions[partition] = _Ownership()
        if ownership.task is None or ownership.task.done():
            ownership.task = asyncio.get_running_loop().create_task(self._load(partition, ownership))
        return ownership.task

    def unload(self, partition: int) -> None:
        """This broker no longer leads the partition."""
        ownership = self._partitions.pop(partition, None)
        if ownership is not None and ownership.task is not None:
            ownership.task.cancel()

    async def _load(self, partition: int, ownership: _Ownership) -> None:
        try:
            async with self._reading:
                loaded = await self._read(partition)
        except Exception:
            # Serving a part of it would have clients start over; so go on saying "loading".
            logger.exception("loading %s-%d failed; trying again", self._log.topic, partition)
            self._scheduler.call_later(LOAD_RETRY_MS, lambda: self._retry(partition, ownership))
            return
        if self._partitions.get(partition) is not ownership:
            return  # Lost while loading.
        ownership.loaded = True
        self._admit(partition, loaded)

    def _retry(self, partition: int, ownership: _Ownership) -> None:
        if self._partitions.get(partition) is ownership and self._log.is_leader(partition):
            self.load(partition)
