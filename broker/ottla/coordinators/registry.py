"""Which groups this broker coordinates, and how they come and go with the partitions it leads.

Invariant: a group is found here only while its partition is owned and fully loaded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ottla.coordinators.config import GroupConfig
from ottla.coordinators.group import Group, GroupState
from ottla.coordinators.ports import GroupLog, Scheduler
from ottla.coordinators.records import partition_for
from ottla.coordinators.replay import Replay
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records import iter_batches

logger = logging.getLogger(__name__)

RECORDS_PER_SLICE = 200
"""Loading lets others run after about this many records (some two milliseconds)."""
LOAD_RETRY_MS = 1_000


@dataclass(eq=False, slots=True)
class _Ownership:
    loaded: bool = False
    task: asyncio.Task[None] | None = None


class Registry:
    def __init__(
        self,
        config: GroupConfig,
        log: GroupLog,
        scheduler: Scheduler,
        clock: Callable[[], int],
        on_loaded: Callable[[Group], None],
        on_unloaded: Callable[[Group], None],
    ) -> None:
        self._config = config
        self._log = log
        self._scheduler = scheduler
        self._clock = clock
        self._on_loaded = on_loaded
        self._on_unloaded = on_unloaded
        self._groups: dict[str, Group] = {}
        self._partitions: dict[int, _Ownership] = {}
        self.active = False

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups.values()))

    # -- groups --------------------------------------------------------------------------------------

    def partition_of(self, group_id: str) -> int:
        return partition_for(group_id, self._config.offsets_topic_num_partitions)

    def check(self, group_id: str, *, may_be_empty: bool = False) -> ErrorCode:
        """Whether this broker may answer for the group.

        INVALID_GROUP_ID, COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR. Commits
        and administration accept the empty id, which old simple consumers have used.
        """
        if not group_id and not may_be_empty:
            return ErrorCode.INVALID_GROUP_ID
        if not self.active:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        ownership = self._partitions.get(self.partition_of(group_id))
        if ownership is None:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.NONE if ownership.loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def find(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def find_or_create(self, group_id: str) -> Group:
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = Group(group_id, now_ms=self._clock())
        return group

    def discard(self, group: Group) -> None:
        """Forget a dead group."""
        assert group.state is GroupState.DEAD
        if self._groups.get(group.group_id) is group:
            del self._groups[group.group_id]

    # -- partitions ----------------------------------------------------------------------------------

    @property
    def is_loading(self) -> bool:
        return any(not ownership.loaded for ownership in self._partitions.values())

    def load(self, partition: int) -> asyncio.Task[None] | None:
        """This broker now leads the partition: read its groups. None if it has them already."""
        ownership = self._partitions.get(partition)
        if ownership is not None and ownership.loaded:
            return None
        if ownership is None:
            ownership = self._partitions[partition] = _Ownership()
        if ownership.task is None or ownership.task.done():
            ownership.task = asyncio.get_running_loop().create_task(self._load(partition, ownership))
        return ownership.task

    def unload(self, partition: int) -> None:
        """This broker no longer leads the partition: its groups live elsewhere now."""
        ownership = self._partitions.pop(partition, None)
        if ownership is not None and ownership.task is not None:
            ownership.task.cancel()
        for group in self:
            if self.partition_of(group.group_id) == partition:
                del self._groups[group.group_id]
                self._on_unloaded(group)

    def unload_all(self) -> None:
        for partition in list(self._partitions):
            self.unload(partition)

    async def _load(self, partition: int, ownership: _Ownership) -> None:
        try:
            groups = await self._replay(partition)
        except Exception:
            # Serving a part of the groups would make consumers start over; so go on saying "loading".
            logger.exception("loading __consumer_offsets-%d failed; trying again", partition)
            self._scheduler.call_later(LOAD_RETRY_MS, lambda: self._retry(partition, ownership))
            return
        if self._partitions.get(partition) is not ownership:
            return  # Lost while loading.
        ownership.loaded = True
        self._admit(groups)
        logger.info("loaded %d groups from __consumer_offsets-%d", len(groups), partition)

    def _retry(self, partition: int, ownership: _Ownership) -> None:
        if self._partitions.get(partition) is ownership and self._log.is_leader(partition):
            self.load(partition)

    def _admit(self, groups: Iterable[Group]) -> None:
        for group in groups:
            assert group.group_id not in self._groups
            self._groups[group.group_id] = group
            self._on_loaded(group)

    async def _replay(self, partition: int) -> list[Group]:
        replay = Replay()
        yielded_at = 0
        async for buffer in self._log.read_all(partition):
            for position, header in iter_batches(buffer):
                replay.apply_batch(buffer, position, header)
                if replay.record_count - yielded_at >= RECORDS_PER_SLICE:
                    yielded_at = replay.record_count
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
        return replay.finish()
