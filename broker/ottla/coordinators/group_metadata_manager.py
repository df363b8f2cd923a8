"""The groups that this broker coordinates, loaded and unloaded with the partitions that it leads.

Invariant: a group is in the manager only while its partition is owned and completely loaded.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator

from ottla.coordinators.config import GroupConfig
from ottla.coordinators.group import Group, GroupState
from ottla.coordinators.interfaces import CoordinatorLog, Scheduler
from ottla.coordinators.ownership import OwnedPartitions, read_partition
from ottla.coordinators.records import partition_for
from ottla.coordinators.replay import GroupReplay
from ottla.protocol.errors import ErrorCode

logger = logging.getLogger(__name__)


class GroupMetadataManager:
    """The loaded groups by id, and the partitions of `__consumer_offsets` that this broker owns."""

    def __init__(
        self,
        config: GroupConfig,
        log: CoordinatorLog,
        scheduler: Scheduler,
        clock: Callable[[], int],
        on_loaded: Callable[[Group], None],
        on_unloaded: Callable[[Group], None],
    ) -> None:
        self._config = config
        self._log = log
        self._clock = clock
        self._on_loaded = on_loaded
        self._on_unloaded = on_unloaded
        self._groups: dict[str, Group] = {}
        self._of_partition: defaultdict[int, dict[str, Group]] = defaultdict(dict)
        """The same groups by the partition of `__consumer_offsets`."""
        self.partitions = OwnedPartitions(log, scheduler, self._replay, self._admit)
        """To load a partition; `unload` is a method of this class."""

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups.values()))

    def by_partition(self) -> list[Group]:
        """All groups, ordered by partition."""
        return [group for groups in self._of_partition.values() for group in groups.values()]

    # -- groups --------------------------------------------------------------------------------------

    def partition_of(self, group_id: str) -> int:
        group = self._groups.get(group_id)
        if group is not None:
            return group.partition  # each request of a member asks
        return partition_for(group_id, self._config.offsets_topic_num_partitions)

    def check(self, group_id: str, *, may_be_empty: bool = False) -> ErrorCode:
        """NONE if this broker is the group's coordinator and has loaded it (validateGroupStatus).

        INVALID_GROUP_ID, COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR. Commits
        and administration accept the empty id, which old simple consumers have used.
        """
        if not group_id and not may_be_empty:
            return ErrorCode.INVALID_GROUP_ID
        return self.partitions.check(self.partition_of(group_id))

    def find(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def find_or_create(self, group_id: str) -> Group:
        group = self._groups.get(group_id)
        if group is None:
            group = Group(group_id, now_ms=self._clock())
            self._keep(group, self.partition_of(group_id))
        return group

    def _keep(self, group: Group, partition: int) -> None:
        group.partition = partition
        self._groups[group.group_id] = self._of_partition[partition][group.group_id] = group

    def discard(self, group: Group) -> None:
        """Remove a Dead group."""
        assert group.state is GroupState.DEAD
        if self._groups.get(group.group_id) is group:
            del self._groups[group.group_id]
            del self._of_partition[group.partition][group.group_id]

    # -- partitions ----------------------------------------------------------------------------------

    def unload(self, partition: int) -> None:
        """Unload the groups of a partition that this broker no longer leads."""
        self.partitions.unload(partition)
        for group in self._of_partition.pop(partition, {}).values():
            del self._groups[group.group_id]
            self._on_unloaded(group)

    def unload_all(self) -> None:
        for partition in self.partitions:
            self.unload(partition)

    def _admit(self, partition: int, groups: list[Group]) -> None:
        for group in groups:
            assert group.group_id not in self._groups
            self._keep(group, partition)
            self._on_loaded(group)
        logger.info("Finished loading %d groups from %s-%d", len(groups), self._log.topic, partition)

    async def _replay(self, partition: int) -> list[Group]:
        replay = GroupReplay()
        await read_partition(self._log, partition, replay)
        for _ in replay.parse():
            await asyncio.sleep(0)
        return list(replay.groups.values())
