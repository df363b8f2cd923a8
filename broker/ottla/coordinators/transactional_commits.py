"""TxnOffsetCommit (0-4): offsets committed in a transaction, pending until its marker is in the log (KIP-98).

Called by `coordinator`. Before the first record of a transaction is appended to a partition of
`__consumer_offsets`, the transaction coordinator verifies that the partition is part of it (KIP-890).
Requests from version 3 have the group's member and generation, which are checked as in OffsetCommit
(KIP-447); before that, any producer can commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

from ottla.coordinators import records
from ottla.coordinators.config import GroupConfig
from ottla.coordinators.group import Group, GroupState
from ottla.coordinators.group_metadata_manager import GroupMetadataManager
from ottla.coordinators.log_appender import COMMIT_ERRORS, LogAppender, Producer, when_written
from ottla.coordinators.membership import Membership
from ottla.coordinators.offsets import NO_LEADER_EPOCH, CommittedOffset, TopicPartition, java_length
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse

FIRST_VERSION_WITH_ABORTABLE = 4
FIRST_VERSION_WITH_LOADING = 2


class TransactionalWrite(NamedTuple):
    """A producer's write to a partition of `__consumer_offsets` in its transaction, to be verified."""

    partition: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    supports_abortable: bool
    """Whether the client supports the error TRANSACTION_ABORTABLE (KIP-890)."""


Verify: TypeAlias = Callable[[TransactionalWrite], Awaitable[tuple[ErrorCode, object | None]]]
"""Verifies a write; returns an error code, and the verification guard for the append."""


class TransactionalCommits:
    """Serves TxnOffsetCommit, and completes the offsets of ended transactions."""

    def __init__(
        self,
        config: GroupConfig,
        manager: GroupMetadataManager,
        membership: Membership,
        appender: LogAppender,
        clock: Callable[[], int],
        partition_exists: Callable[[str, int], bool],
        verify: Verify,
    ) -> None:
        self._config = config
        self._manager = manager
        self._membership = membership
        self._appender = appender
        self._clock = clock
        self._partition_exists = partition_exists
        self._verify = verify
        self._open: dict[int, set[str]] = {}
        """By producer id: groups for which its open transaction may have committed offsets."""

    async def commit(self, request: TxnOffsetCommitRequest, version: int) -> TxnOffsetCommitResponse:
        """Errors per partition are UNKNOWN_TOPIC_OR_PARTITION and OFFSET_METADATA_TOO_LARGE; all other errors
        apply to all partitions."""
        now_ms = self._clock()
        errors: dict[TopicPartition, ErrorCode] = {}
        offsets: dict[TopicPartition, CommittedOffset] = {}
        for topic in request.topics:
            for item in topic.partitions:
                key = (topic.name, item.partition_index)
                if self._partition_exists(*key):
                    offsets[key] = CommittedOffset(
                        item.committed_offset,
                        item.committed_leader_epoch if item.committed_leader_epoch >= 0 else NO_LEADER_EPOCH,
                        item.committed_metadata or "",
                        now_ms,
                    )
                else:
                    errors[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if offsets:
            errors.update(await self._commit(request, version, offsets, now_ms))
        return _response(request, version, errors)

    async def _commit(
        self,
        request: TxnOffsetCommitRequest,
        version: int,
        offsets: dict[TopicPartition, CommittedOffset],
        now_ms: int,
    ) -> dict[TopicPartition, ErrorCode]:
        error = self._manager.check(request.group_id)
        if error is not ErrorCode.NONE:
            return dict.fromkeys(offsets, error)
        self._manager.find_or_create(request.group_id)
        error, guard = await self._verify(
            TransactionalWrite(
                self._manager.partition_of(request.group_id),
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                version >= FIRST_VERSION_WITH_ABORTABLE,
            )
        )
        if error is ErrorCode.NETWORK_EXCEPTION:
            # Old clients do not expect it here; with this code they retry with the same coordinator.
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        error = COMMIT_ERRORS.get(error, error)
        group = None
        if error is ErrorCode.NONE:
            # The group may have been unloaded during the verification.
            error = self._manager.check(request.group_id)
        if error is ErrorCode.NONE:
            group = self._manager.find_or_create(request.group_id)
            error = self._validate(group, request)
        if group is None or error is not ErrorCode.NONE:
            return dict.fromkeys(offsets, error)
        return await self._store(
            group, Producer(request.producer_id, request.producer_epoch, guard), offsets, now_ms
        )

    def _validate(self, group: Group, request: TxnOffsetCommitRequest) -> ErrorCode:
        generation, member_id = request.generation_id, request.member_id
        instance_id = request.group_instance_id
        is_member = bool(member_id) or instance_id is not None
        if generation < 0 and (group.state is GroupState.EMPTY or not is_member):
            return ErrorCode.NONE
        return self._membership.validate(group, member_id, instance_id, generation)

    async def _store(
        self, group: Group, producer: Producer, offsets: dict[TopicPartition, CommittedOffset], now_ms: int
    ) -> dict[TopicPartition, ErrorCode]:
        limit = self._config.offset_metadata_max_bytes
        accepted = {key: offset for key, offset in offsets.items() if java_length(offset.metadata) <= limit}
        errors = {key: ErrorCode.OFFSET_METADATA_TOO_LARGE for key in offsets if key not in accepted}
        if accepted:
            self._open.setdefault(producer.id, set()).add(group.group_id)
            sequence = group.offsets.begin_transactional(producer.id, accepted)
            write = self._appender.append(
                self._manager.partition_of(group.group_id),
                records.offset_entries(group.group_id, accepted),
                now_ms,
                producer=producer,
            )

            def written(done: asyncio.Future[ErrorCode]) -> None:
                succeeded = not done.cancelled() and done.result() is ErrorCode.NONE
                group.offsets.complete_transactional(producer.id, sequence, accepted, succeeded)

            when_written(write, written)
            error = await asyncio.shield(write)
            errors.update(dict.fromkeys(accepted, COMMIT_ERRORS.get(error, error)))
        return errors

    # -- completing transactions ---------------------------------------------------------------------

    def loaded(self, group: Group) -> None:
        """Track the open transactions of a group that was loaded from the log."""
        for producer_id in group.offsets.pending_transactional:
            self._open.setdefault(producer_id, set()).add(group.group_id)

    def completed(self, partition: int, producer_id: int, *, committed: bool) -> None:
        """Complete the producer's pending offsets: its marker is replicated in
        `__consumer_offsets-partition`."""
        loading = self._manager.partitions.loading(partition)
        if loading is not None:
            # The marker may have been appended after the end of the log that is being loaded.
            loading.add_done_callback(
                lambda done: self.completed(partition, producer_id, committed=committed)
            )
            return
        groups = self._open.get(producer_id, set())
        for group_id in [each for each in sorted(groups) if self._manager.partition_of(each) == partition]:
            groups.discard(group_id)
            group = self._manager.find(group_id)
            if group is not None:
                group.offsets.end_transaction(producer_id, committed)
        if not groups:
            self._open.pop(producer_id, None)


def _response(
    request: TxnOffsetCommitRequest, version: int, errors: dict[TopicPartition, ErrorCode]
) -> TxnOffsetCommitResponse:
    def to_error(error: ErrorCode) -> ErrorCode:
        if version < FIRST_VERSION_WITH_LOADING and error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE  # The other code is fatal to producers before 2.0.
        return error

    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                        partition_index=item.partition_index,
                        error_code=to_error(errors[topic.name, item.partition_index]),
                    )
                    for item in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
