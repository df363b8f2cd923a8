"""OffsetCommit (1-9), OffsetFetch (1-9) and OffsetDelete (0).

Called by `coordinator`. The response to a commit follows its replication. A rewind (OffsetCommit with
`remove_members`) writes the offsets and a group without members in one batch; JoinGroup requests wait until
it is replicated. Version 0 of OffsetCommit and OffsetFetch has its offsets in ZooKeeper, and is served by
server.handlers.zookeeper_offsets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from ottla.coordinators import records
from ottla.coordinators.cleanup import GroupCleanup
from ottla.coordinators.config import GroupConfig
from ottla.coordinators.effects import Effect
from ottla.coordinators.group import CONSUMER_PROTOCOL_TYPE, Group, GroupState
from ottla.coordinators.group_metadata_manager import GroupMetadataManager
from ottla.coordinators.log_appender import COMMIT_ERRORS, Entry, LogAppender, when_written
from ottla.coordinators.membership import Membership
from ottla.coordinators.offsets import NO_LEADER_EPOCH, CommittedOffset, TopicPartition, java_length
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import by_topic

logger = logging.getLogger(__name__)

T = TypeVar("T")

INVALID_OFFSET = -1
FIRST_VERSION_WITH_GROUP_ERROR = 2
FIRST_VERSION_WITH_MANY_GROUPS = 8

_Result = tuple[CommittedOffset, ErrorCode]
_NO_OFFSET = CommittedOffset(INVALID_OFFSET)


class OffsetRequests:
    """Serves the offset APIs for the groups of this coordinator."""

    def __init__(
        self,
        config: GroupConfig,
        manager: GroupMetadataManager,
        membership: Membership,
        appender: LogAppender,
        cleanup: GroupCleanup,
        clock: Callable[[], int],
        apply_effects: Callable[[list[Effect]], None],
        partition_exists: Callable[[str, int], bool],
    ) -> None:
        self._config = config
        self._manager = manager
        self._membership = membership
        self._appender = appender
        self._cleanup = cleanup
        self._clock = clock
        self._apply_effects = apply_effects
        self._partition_exists = partition_exists
        self._rewinds: dict[str, asyncio.Future[ErrorCode]] = {}
        """Rewinds that are being replicated, by group id."""

    # -- OffsetCommit --------------------------------------------------------------------------------

    async def commit(self, request: m.OffsetCommitRequest) -> m.OffsetCommitResponse:
        """Errors per partition are UNKNOWN_TOPIC_OR_PARTITION and OFFSET_METADATA_TOO_LARGE; all other errors
        apply to all partitions."""
        now_ms = self._clock()
        errors: dict[TopicPartition, ErrorCode] = {}
        offsets: dict[TopicPartition, CommittedOffset] = {}
        for topic in request.topics:
            for item in topic.partitions:
                partition = (topic.name, item.partition_index)
                errors[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if self._partition_exists(*partition):
                    offsets[partition] = _offset_of(item, request.retention_time_ms, now_ms)
        if request.remove_members:
            errors |= await self._rewind(request, offsets, now_ms)
        else:
            group, error = self._group_for_commit(request) if offsets else (None, ErrorCode.NONE)
            errors |= (
                dict.fromkeys(offsets, error) if group is None else await self._store(group, offsets, now_ms)
            )
        return m.OffsetCommitResponse(
            topics=[
                m.OffsetCommitResponse.OffsetCommitResponseTopic(
                    name=name,
                    partitions=[
                        m.OffsetCommitResponse.OffsetCommitResponsePartition(
                            partition_index=index, error_code=code
                        )
                        for index, code in partitions
                    ],
                )
                for name, partitions in by_topic(errors.items()).items()
            ]
        )

    def _group_for_commit(self, request: m.OffsetCommitRequest) -> tuple[Group | None, ErrorCode]:
        group_id, generation = request.group_id, request.generation_id_or_member_epoch
        error = self._manager.check(group_id, may_be_empty=True)
        if error is not ErrorCode.NONE:
            return None, error
        group = self._manager.find(group_id)
        if group is None:
            if generation >= 0:
                return None, ErrorCode.ILLEGAL_GENERATION
            group = self._manager.find_or_create(group_id)
        error = self._validate_commit(group, request)
        if error is not ErrorCode.NONE:
            return None, error
        if group.state is not GroupState.EMPTY:
            self._apply_effects(self._membership.restart_session(group, request.member_id, self._clock()))
        return group, ErrorCode.NONE

    def _validate_commit(self, group: Group, request: m.OffsetCommitRequest) -> ErrorCode:
        generation = request.generation_id_or_member_epoch
        if group.state is GroupState.EMPTY and generation < 0:
            return ErrorCode.NONE  # A simple consumer or an administrator, and the group has no members.
        if generation < 0 and not request.member_id and request.group_instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = self._membership.validate(group, request.member_id, request.group_instance_id, generation)
        if error is ErrorCode.NONE and group.state is GroupState.COMPLETING_REBALANCE:
            # The member has the new generation but not its assignment: it must send SyncGroup first.
            return ErrorCode.REBALANCE_IN_PROGRESS
        return error

    async def _store(
        self, group: Group, offsets: dict[TopicPartition, CommittedOffset], now_ms: int
    ) -> dict[TopicPartition, ErrorCode]:
        errors = self._too_large(offsets)
        accepted = {key: offset for key, offset in offsets.items() if key not in errors}
        if accepted:
            write = self._append(group, accepted, [], now_ms)
            error = await asyncio.shield(write)
            errors.update(dict.fromkeys(accepted, COMMIT_ERRORS.get(error, error)))
        return errors

    def _too_large(self, offsets: dict[TopicPartition, CommittedOffset]) -> dict[TopicPartition, ErrorCode]:
        limit = self._config.offset_metadata_max_bytes
        return {
            key: ErrorCode.OFFSET_METADATA_TOO_LARGE
            for key, offset in offsets.items()
            if java_length(offset.metadata) > limit
        }

    def _append(
        self,
        group: Group,
        offsets: dict[TopicPartition, CommittedOffset],
        extra_entries: list[Entry],
        now_ms: int,
        *,
        discards_transactional: bool = False,
    ) -> asyncio.Future[ErrorCode]:
        """Append the offsets and `extra_entries` as one batch; the offsets are committed once it is
        replicated."""
        sequence = group.offsets.begin_commit(offsets)
        entries = [*records.offset_entries(group.group_id, offsets), *extra_entries]
        write = self._appender.append(self._manager.partition_of(group.group_id), entries, now_ms)

        def stored(done: asyncio.Future[ErrorCode]) -> None:
            succeeded = not done.cancelled() and done.result() is ErrorCode.NONE
            group.offsets.end_commit(sequence, offsets, succeeded)
            if succeeded and discards_transactional:
                group.offsets.discard_transactional(sequence, offsets)

        # A callback, and callers shield the task: the commit counts even if the client has disconnected.
        when_written(write, stored)
        return write

    # -- OffsetCommit that removes the members -------------------------------------------------------

    async def rewind_stored(self, group_id: str) -> None:
        """Wait until no rewind of the group is being replicated, so that new members read its offsets."""
        while (write := self._rewinds.get(group_id)) is not None:
            await asyncio.wait([write])

    async def _rewind(
        self, request: m.OffsetCommitRequest, offsets: dict[TopicPartition, CommittedOffset], now_ms: int
    ) -> dict[TopicPartition, ErrorCode]:
        """Commit all offsets and remove all members, or do nothing.

        After an error of one partition the others get OPERATION_NOT_ATTEMPTED. INVALID_REQUEST if a member
        sends it; NON_EMPTY_GROUP if the members' protocol type is not "consumer".
        """
        requested_count = sum(len(topic.partitions) for topic in request.topics)
        errors = self._too_large(offsets)
        group, error = None, ErrorCode.OPERATION_NOT_ATTEMPTED
        if not errors and 0 < len(offsets) == requested_count:
            group, error = self._group_to_rewind(request)
        if group is None:
            return dict.fromkeys(offsets, error) | errors
        write = self._write_rewind(group, offsets, now_ms)
        error = await asyncio.shield(write)
        return dict.fromkeys(offsets, COMMIT_ERRORS.get(error, error))

    def _group_to_rewind(self, request: m.OffsetCommitRequest) -> tuple[Group | None, ErrorCode]:
        is_member = request.member_id or request.group_instance_id is not None
        if is_member or request.generation_id_or_member_epoch >= 0:
            return None, ErrorCode.INVALID_REQUEST
        error = self._manager.check(request.group_id, may_be_empty=True)
        if error is not ErrorCode.NONE:
            return None, error
        group = self._manager.find_or_create(request.group_id)
        if group.state is GroupState.DEAD:
            return None, ErrorCode.COORDINATOR_NOT_AVAILABLE
        if group.members and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None, ErrorCode.NON_EMPTY_GROUP
        return group, ErrorCode.NONE

    def _write_rewind(
        self, group: Group, offsets: dict[TopicPartition, CommittedOffset], now_ms: int
    ) -> asyncio.Future[ErrorCode]:
        group_id, with_offsets = group.group_id, list[Entry]()
        if group.state is not GroupState.EMPTY:
            count = len(group.members)
            self._apply_effects(self._membership.remove_all(group, now_ms))
            value = records.group_value_bytes(records.group_value(group, {}))
            with_offsets.append((records.group_key(group_id), value))
            logger.info(
                "Group %s: new offsets for %d partitions remove %d members (generation %d)",
                group_id,
                len(offsets),
                count,
                group.generation,
            )
        write = self._append(group, offsets, with_offsets, now_ms, discards_transactional=True)
        self._rewinds[group_id] = write

        def replicated(done: asyncio.Future[ErrorCode]) -> None:
            if self._rewinds.get(group_id) is done:
                del self._rewinds[group_id]

        write.add_done_callback(replicated)
        return write

    # -- OffsetFetch ---------------------------------------------------------------------------------

    def fetch(self, request: m.OffsetFetchRequest, version: int) -> m.OffsetFetchResponse:
        """Committed offsets, -1 for partitions without one. UNSTABLE_OFFSET_COMMIT per partition
        (KIP-447)."""
        if version >= FIRST_VERSION_WITH_MANY_GROUPS:
            return m.OffsetFetchResponse(
                groups=[self._fetch_group(group, request.require_stable) for group in request.groups]
            )
        wanted = None if request.topics is None else [(t.name, t.partition_indexes) for t in request.topics]
        error, found = self._find(request.group_id, wanted, request.require_stable)
        if error is not ErrorCode.NONE and version < FIRST_VERSION_WITH_GROUP_ERROR:
            found = {name: dict.fromkeys(indexes, (_NO_OFFSET, error)) for name, indexes in wanted or []}
        return m.OffsetFetchResponse(
            error_code=error if version >= FIRST_VERSION_WITH_GROUP_ERROR else ErrorCode.NONE,
            topics=_topic_rows(
                m.OffsetFetchResponse.OffsetFetchResponseTopic,
                m.OffsetFetchResponse.OffsetFetchResponsePartition,
                found,
            ),
        )

    def _fetch_group(
        self, group: m.OffsetFetchRequest.OffsetFetchRequestGroup, require_stable: bool
    ) -> m.OffsetFetchResponse.OffsetFetchResponseGroup:
        wanted = None if group.topics is None else [(t.name, t.partition_indexes) for t in group.topics]
        error, found = self._find(group.group_id, wanted, require_stable)
        return m.OffsetFetchResponse.OffsetFetchResponseGroup(
            group_id=group.group_id,
            error_code=error,
            topics=_topic_rows(
                m.OffsetFetchResponse.OffsetFetchResponseTopics,
                m.OffsetFetchResponse.OffsetFetchResponsePartitions,
                found,
            ),
        )

    def _find(
        self, group_id: str, wanted: Iterable[tuple[str, list[int]]] | None, require_stable: bool
    ) -> tuple[ErrorCode, dict[str, dict[int, _Result]]]:
        """Offset and error by topic and partition. `wanted` None means all partitions with an offset."""
        error = self._manager.check(group_id, may_be_empty=True)
        if error is not ErrorCode.NONE:
            return error, {}
        group = self._manager.find(group_id)
        if wanted is None:
            keys: list[TopicPartition] = [] if group is None else list(group.offsets.committed)
        else:
            keys = [(name, index) for name, indexes in wanted for index in indexes]
        found: dict[str, dict[int, _Result]] = {}
        for key in keys:
            if group is None:
                result = (_NO_OFFSET, ErrorCode.NONE)
            elif require_stable and group.offsets.is_unstable(key):
                result = (_NO_OFFSET, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            else:
                result = (group.offsets.committed.get(key, _NO_OFFSET), ErrorCode.NONE)
            found.setdefault(key[0], {})[key[1]] = result
        return ErrorCode.NONE, found

    # -- OffsetDelete --------------------------------------------------------------------------------

    async def delete(self, request: m.OffsetDeleteRequest) -> m.OffsetDeleteResponse:
        """KIP-496. GROUP_ID_NOT_FOUND and NON_EMPTY_GROUP for the request; GROUP_SUBSCRIBED_TO_TOPIC and
        UNKNOWN_TOPIC_OR_PARTITION per partition."""
        error = self._manager.check(request.group_id)
        group = self._manager.find(request.group_id)
        if error is ErrorCode.NONE:
            if group is None:
                error = ErrorCode.GROUP_ID_NOT_FOUND
            elif group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
                error = ErrorCode.NON_EMPTY_GROUP
        if group is None or error is not ErrorCode.NONE:
            return m.OffsetDeleteResponse(error_code=error)
        errors: dict[TopicPartition, ErrorCode] = {}
        for topic in request.topics:
            in_use = group.state is not GroupState.EMPTY and group.is_subscribed_to(topic.name)
            for item in topic.partitions:
                partition = (topic.name, item.partition_index)
                if not self._partition_exists(*partition):
                    errors[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                else:
                    errors[partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if in_use else ErrorCode.NONE
        to_delete = [key for key, code in errors.items() if code is ErrorCode.NONE]
        await self._cleanup.remove([group], lambda _: to_delete, self._clock())
        return m.OffsetDeleteResponse(
            topics=[
                m.OffsetDeleteResponse.OffsetDeleteResponseTopic(
                    name=name,
                    partitions=[
                        m.OffsetDeleteResponse.OffsetDeleteResponsePartition(
                            partition_index=index, error_code=code
                        )
                        for index, code in partitions
                    ],
                )
                for name, partitions in by_topic(errors.items()).items()
            ]
        )


def _topic_rows(
    topic: Callable[..., T], partition: Callable[..., object], found: dict[str, dict[int, _Result]]
) -> list[T]:
    """The rows of an OffsetFetch response; versions 8 and later have classes of their own."""
    return [
        topic(
            name=name,
            partitions=[
                partition(
                    partition_index=index,
                    committed_offset=offset.offset,
                    committed_leader_epoch=offset.leader_epoch,
                    metadata=offset.metadata,
                    error_code=code,
                )
                for index, (offset, code) in partitions.items()
            ],
        )
        for name, partitions in found.items()
    ]


def _offset_of(
    item: m.OffsetCommitRequest.OffsetCommitRequestPartition, retention_time_ms: int, now_ms: int
) -> CommittedOffset:
    return CommittedOffset(
        item.committed_offset,
        item.committed_leader_epoch if item.committed_leader_epoch >= 0 else NO_LEADER_EPOCH,
        item.committed_metadata or "",
        now_ms if item.commit_timestamp == -1 else item.commit_timestamp,
        None if retention_time_ms == -1 else now_ms + retention_time_ms,
    )
