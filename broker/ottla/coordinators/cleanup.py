"""Forgetting: offsets past their retention, deleted groups, deleted topics. Each leaves tombstones.

Called by `commits` and `inspection` for what clients delete, and by `coordinator` from time to time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable

from ottla.coordinators import records
from ottla.coordinators.config import GroupConfig
from ottla.coordinators.group import CONSUMER_PROTOCOL_TYPE, Group, GroupState
from ottla.coordinators.journal import Entry, Journal
from ottla.coordinators.offsets import CommittedOffset, TopicPartition
from ottla.coordinators.ports import NO_ACKS
from ottla.coordinators.registry import Registry
from ottla.protocol.errors import ErrorCode

logger = logging.getLogger(__name__)

TOMBSTONES_PER_BATCH = 1_000
GROUPS_PER_SLICE = 100
"""Looked at for expiry before others have their turn: a millisecond or so, with ten offsets each."""


def expired_offsets(group: Group, now_ms: int, retention_ms: int) -> list[TopicPartition]:
    """What of the group has outlived its retention (KIP-211).

    Offsets of a group with members count from when the group became Empty, and are kept as long as it is
    not; except for topics its consumers no longer subscribe to, and for simple consumers, where the
    retention counts from the commit.
    """

    def since_commit(offset: CommittedOffset) -> int:
        return offset.commit_timestamp_ms

    def since_empty(offset: CommittedOffset) -> int:
        return offset.commit_timestamp_ms if group.state_since_ms is None else group.state_since_ms

    offsets = group.offsets
    if group.protocol_type is None:
        return offsets.expired(now_ms, retention_ms, since_commit)
    if group.state is GroupState.EMPTY:
        return offsets.expired(now_ms, retention_ms, since_empty)
    if (
        group.protocol_type == CONSUMER_PROTOCOL_TYPE
        and group.state is GroupState.STABLE
        and group.subscribed_topics is not None
    ):
        return offsets.expired(now_ms, retention_ms, since_commit, group.subscribed_topics)
    return []


class Cleanup:
    def __init__(self, config: GroupConfig, registry: Registry, journal: Journal) -> None:
        self._config = config
        self._registry = registry
        self._journal = journal

    async def expire(self, now_ms: int) -> int:
        """One round over all groups, some at a time; returns how many offsets went."""
        retention_ms = self._config.offsets_retention_ms
        # Those of a partition together: their tombstones go into one batch.
        groups = self._registry.by_partition()
        removed_count = 0
        for start in range(0, len(groups), GROUPS_PER_SLICE):
            # Some may have moved to another broker since the last pause.
            here = [
                g for g in groups[start : start + GROUPS_PER_SLICE] if self._registry.find(g.group_id) is g
            ]
            removed_count += await self.remove(
                here, lambda group: expired_offsets(group, now_ms, retention_ms), now_ms
            )
            await asyncio.sleep(0)
        return removed_count

    async def remove(
        self, groups: Iterable[Group], select: Callable[[Group], list[TopicPartition]], now_ms: int
    ) -> int:
        """Remove the selected offsets, and groups that have nothing left. The memory goes first: a broker
        that fails before the tombstones are written reads the old records, and cleans up again.

        Tombstones wait for no replica, and are written also where those are too few: what was deleted must
        not come back with the next start of this broker.
        """
        removed_count = 0
        tombstones: dict[int, list[Entry]] = defaultdict(list)
        for group in groups:
            removed = group.offsets.remove(select(group))
            removed_count += len(removed)
            if group.state is GroupState.EMPTY and not group.offsets.in_use and not group.pending_members:
                group.transition_to(GroupState.DEAD, now_ms)
            entries = tombstones[self._registry.partition_of(group.group_id)]
            entries += [(records.offset_key(group.group_id, partition), None) for partition in removed]
            if group.state is GroupState.DEAD:
                self._registry.discard(group)
                # Generation 0 has never been written.
                if group.generation > 0:
                    entries.append((records.group_key(group.group_id), None))
        writes = [
            self._journal.append(
                partition, entries[start : start + TOMBSTONES_PER_BATCH], now_ms, acks=NO_ACKS
            )
            for partition, entries in tombstones.items()
            for start in range(0, len(entries), TOMBSTONES_PER_BATCH)
        ]
        for error in await asyncio.shield(asyncio.gather(*writes)):
            if error is not ErrorCode.NONE:
                logger.warning("tombstones were not written (%s); the next leader cleans up", error.name)
        return removed_count
