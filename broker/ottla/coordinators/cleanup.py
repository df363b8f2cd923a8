"""Removal of expired offsets and of offsets of deleted groups and topics, with their tombstones.

Called by `offset_requests` and `group_requests` for what clients delete, and periodically by `coordinator`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable

from ottla.coordinators import records
from ottla.coordinators.config import GroupConfig
from ottla.coordinators.group import CONSUMER_PROTOCOL_TYPE, Group, GroupState
from ottla.coordinators.group_metadata_manager import GroupMetadataManager
from ottla.coordinators.interfaces import NO_ACKS
from ottla.coordinators.log_appender import Entry, LogAppender
from ottla.coordinators.offsets import CommittedOffset, TopicPartition
from ottla.protocol.errors import ErrorCode

logger = logging.getLogger(__name__)

TOMBSTONES_PER_BATCH = 1_000
GROUPS_PER_SLICE = 100
"""Groups checked for expired offsets before the event loop runs other tasks: about 1 ms with 10 offsets
each."""


def expired_offsets(group: Group, now_ms: int, retention_ms: int) -> list[TopicPartition]:
    """The group's offsets past their retention (KIP-211).

    The retention starts when the group becomes Empty. For topics that the group's consumers are no longer
    subscribed to, and for groups without a protocol type (simple consumers), it starts with the commit.
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


class GroupCleanup:
    """Removes offsets and groups from memory, and writes their tombstones."""

    def __init__(self, config: GroupConfig, manager: GroupMetadataManager, appender: LogAppender) -> None:
        self._config = config
        self._manager = manager
        self._appender = appender

    async def expire(self, now_ms: int) -> int:
        """Remove the expired offsets of all groups, a slice of groups at a time; returns their number."""
        retention_ms = self._config.offsets_retention_ms
        # Ordered by partition: the tombstones of a partition go into one batch.
        groups = self._manager.by_partition()
        removed_count = 0
        for start in range(0, len(groups), GROUPS_PER_SLICE):
            # The partition of a group may have been unloaded since the last slice.
            loaded = [
                g for g in groups[start : start + GROUPS_PER_SLICE] if self._manager.find(g.group_id) is g
            ]
            removed_count += await self.remove(
                loaded, lambda group: expired_offsets(group, now_ms, retention_ms), now_ms
            )
            await asyncio.sleep(0)
        return removed_count

    async def remove(
        self, groups: Iterable[Group], select: Callable[[Group], list[TopicPartition]], now_ms: int
    ) -> int:
        """Remove the selected offsets, and Empty groups without offsets. Returns the number of offsets.

        They are removed from memory first: after a failure before the tombstones are written, the next load
        restores them, and they are removed again. Tombstones are appended with acks=0 and also below
        min.insync.replicas, so that deleted offsets do not come back with the next start of this broker.
        """
        removed_count = 0
        tombstones: dict[int, list[Entry]] = defaultdict(list)
        for group in groups:
            removed = group.offsets.remove(select(group))
            removed_count += len(removed)
            if group.state is GroupState.EMPTY and not group.offsets.in_use and not group.pending_members:
                group.transition_to(GroupState.DEAD, now_ms)
            entries = tombstones[self._manager.partition_of(group.group_id)]
            entries += [(records.offset_key(group.group_id, partition), None) for partition in removed]
            if group.state is GroupState.DEAD:
                self._manager.discard(group)
                # A group of generation 0 was never written to the log.
                if group.generation > 0:
                    entries.append((records.group_key(group.group_id), None))
        writes = [
            self._appender.append(
                partition, entries[start : start + TOMBSTONES_PER_BATCH], now_ms, acks=NO_ACKS
            )
            for partition, entries in tombstones.items()
            for start in range(0, len(entries), TOMBSTONES_PER_BATCH)
        ]
        # Not by gather: since Python 3.12 it does not suspend if all of them have ended.
        for write in writes:
            error = await asyncio.shield(write)
            if error is not ErrorCode.NONE:
                logger.warning(
                    "Failed to write tombstones: %s; the next cleanup after a load removes them", error.name
                )
        return removed_count
