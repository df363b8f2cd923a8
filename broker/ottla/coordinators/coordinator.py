"""The group coordinator (GroupCoordinator): one coroutine per API, and loading and unloading of partitions.

Called by the server's handlers. The rules are in `membership` and `rebalance`; this module applies their
effects: it completes the futures of responses, sets timers, and appends records. Everything runs on the event
loop, and state changes only between awaits, so there are no locks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, cast

from ottla.coordinators import group_requests, records
from ottla.coordinators.cleanup import GroupCleanup
from ottla.coordinators.config import GroupConfig
from ottla.coordinators.effects import (
    CancelTimer,
    CompleteJoin,
    CompleteSync,
    Effect,
    JoinResult,
    SetTimer,
    StoreGroup,
    SyncResult,
    Timer,
)
from ottla.coordinators.group import Group, GroupState, NewMemberId
from ottla.coordinators.group_metadata_manager import GroupMetadataManager
from ottla.coordinators.interfaces import Cancellable, ClientContext, CoordinatorLog, LoopScheduler, Scheduler
from ottla.coordinators.log_appender import GROUP_ERRORS, LogAppender
from ottla.coordinators.membership import JoinCall, Membership, SyncCall
from ottla.coordinators.offset_requests import OffsetRequests
from ottla.coordinators.timers import GroupTimers
from ottla.coordinators.transactional_commits import TransactionalCommits, TransactionalWrite, Verify
from ottla.ports.tasks import TaskSet
from ottla.protocol import messages as m
from ottla.protocol.compression import Codec
from ottla.protocol.errors import ErrorCode

logger = logging.getLogger(__name__)


async def _skip_verification(write: TransactionalWrite) -> tuple[ErrorCode, object | None]:
    return ErrorCode.NONE, None


class GroupCoordinator:
    """Coordinates the groups whose partition of `__consumer_offsets` this broker leads."""

    def __init__(
        self,
        *,
        config: GroupConfig,
        log: CoordinatorLog,
        clock: Callable[[], int],
        member_ids: NewMemberId,
        scheduler: Scheduler | None = None,
        partition_exists: Callable[[str, int], bool] = lambda topic, partition: True,
        verify: Verify = _skip_verification,
    ) -> None:
        """`clock` returns wall time in ms, for records and retention; timers use the scheduler's clock."""
        self._config = config
        self._clock = clock
        self._scheduler = scheduler or LoopScheduler()
        self._membership = Membership(config, member_ids)
        codec = Codec(config.offsets_topic_compression_codec)
        self._appender = LogAppender(log, codec, config.offsets_commit_required_acks)
        self._timers = GroupTimers(self._scheduler, self._timer_fired)
        self._manager = GroupMetadataManager(
            config, log, self._scheduler, clock, self._loaded, self._unloaded
        )
        self._cleanup = GroupCleanup(config, self._manager, self._appender)
        self._offset_requests = OffsetRequests(
            config,
            self._manager,
            self._membership,
            self._appender,
            self._cleanup,
            clock,
            self._apply,
            partition_exists,
        )
        self._transactional = TransactionalCommits(
            config, self._manager, self._membership, self._appender, clock, partition_exists, verify
        )
        self._next_expiry: Cancellable | None = None
        self._background = TaskSet()

    # -- start and stop ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start serving and expiring offsets. Before, every response has COORDINATOR_NOT_AVAILABLE."""
        self._manager.partitions.active = True
        self._schedule_expiry()

    async def stop(self) -> None:
        """Complete waiting requests with NOT_COORDINATOR, and wait for the appends under way."""
        self._manager.partitions.active = False
        if self._next_expiry is not None:
            self._next_expiry.cancel()
            self._next_expiry = None
        self._manager.unload_all()
        self._timers.close()
        await self._appender.drain()

    def groups(self) -> list[Group]:
        """The loaded groups, for metrics."""
        return list(self._manager)

    def partition_for(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` whose leader coordinates the group."""
        return self._manager.partition_of(group_id)

    def load(self, partition: int) -> asyncio.Task[None] | None:
        """Call when this broker becomes the partition's leader. The task ends when its groups are loaded."""
        return self._manager.partitions.load(partition)

    def unload(self, partition: int) -> None:
        """Call when this broker stops being the partition's leader."""
        self._manager.unload(partition)

    def _loaded(self, group: Group) -> None:
        self._transactional.loaded(group)
        self._apply(self._membership.loaded(group, self._clock()))

    def _unloaded(self, group: Group) -> None:
        self._apply(self._membership.unload(group, self._clock()))

    # -- effects -------------------------------------------------------------------------------------

    def _apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SetTimer(timer, delay_ms):
                    self._timers.set(timer, delay_ms)
                case CancelTimer(timer):
                    self._timers.cancel(timer)
                case CompleteJoin(waiter, joined):
                    _complete(cast("asyncio.Future[JoinResult]", waiter), joined)
                case CompleteSync(waiter, synced):
                    _complete(cast("asyncio.Future[SyncResult]", waiter), synced)
                case StoreGroup():
                    self._store(effect)

    def _store(self, effect: StoreGroup) -> None:
        group_id = effect.group.group_id
        entry = (records.group_key(group_id), records.group_value_bytes(effect.value))
        write = self._appender.append(self._manager.partition_of(group_id), [entry], self._clock())

        def stored(done: asyncio.Future[ErrorCode]) -> None:
            error = ErrorCode.UNKNOWN_SERVER_ERROR if done.cancelled() else done.result()
            error = GROUP_ERRORS.get(error, error)
            self._apply(self._membership.group_stored(effect, error, self._clock()))

        write.add_done_callback(stored)

    def _timer_fired(self, timer: Timer) -> None:
        group = self._manager.find(timer.group_id)
        if group is not None:
            self._apply(self._membership.timer_fired(group, timer, self._clock()))

    def _schedule_expiry(self) -> None:
        self._next_expiry = self._scheduler.call_later(
            self._config.offsets_retention_check_interval_ms, self._expire
        )

    def _expire(self) -> None:
        self._run(self.expire_offsets())
        self._schedule_expiry()

    async def expire_offsets(self) -> int:
        """Remove expired offsets; also runs every offsets.retention.check.interval.ms."""
        return await self._cleanup.expire(self._clock())

    def topics_deleted(self, topics: set[str]) -> None:
        """Remove the offsets that groups committed for deleted topics."""

        def of_topics(group: Group) -> list[tuple[str, int]]:
            return [key for key in group.offsets.partitions() if key[0] in topics]

        self._run(self._cleanup.remove(self._manager, of_topics, self._clock()))

    def _run(self, work: Coroutine[Any, Any, int]) -> None:
        self._background.start(work).add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Task[int]) -> None:
        if not task.cancelled() and (problem := task.exception()) is not None:
            logger.error("Removing offsets failed", exc_info=problem)

    # -- membership ----------------------------------------------------------------------------------

    async def join_group(
        self, request: m.JoinGroupRequest, version: int, ctx: ClientContext
    ) -> m.JoinGroupResponse:
        result = await self._join(request, version, ctx)
        return m.JoinGroupResponse(
            error_code=result.error,
            generation_id=result.generation,
            protocol_type=result.protocol_type,
            protocol_name=result.protocol_name if version >= 7 else (result.protocol_name or ""),
            leader=result.leader,
            skip_assignment=result.skip_assignment,
            member_id=result.member_id,
            members=[
                m.JoinGroupResponse.JoinGroupResponseMember(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    metadata=member.metadata,
                )
                for member in result.members
            ],
        )

    async def _join(self, request: m.JoinGroupRequest, version: int, ctx: ClientContext) -> JoinResult:
        await self._offset_requests.rewind_stored(request.group_id)
        error = self._manager.check(request.group_id)
        if error is not ErrorCode.NONE:
            return JoinResult(error, request.member_id)
        config = self._config
        session_ms = request.session_timeout_ms
        if not config.group_min_session_timeout_ms <= session_ms <= config.group_max_session_timeout_ms:
            return JoinResult(ErrorCode.INVALID_SESSION_TIMEOUT, request.member_id)
        group = self._manager.find(request.group_id)
        if group is None:
            if request.member_id:
                return JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
            group = self._manager.find_or_create(request.group_id)
        call = JoinCall(
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            client_id=ctx.client_id,
            client_host=ctx.client_host,
            # Version 0 has one timeout for both.
            rebalance_timeout_ms=request.rebalance_timeout_ms if version >= 1 else session_ms,
            session_timeout_ms=session_ms,
            protocol_type=request.protocol_type,
            protocols=tuple((item.name, bytes(item.metadata)) for item in request.protocols),
            requires_known_member_id=version >= 4 and request.group_instance_id is None,
            supports_skipping_assignment=version >= 9,
            reason=request.reason,
        )
        waiter: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        self._apply(self._membership.join(group, call, waiter, self._clock()))
        return await waiter

    async def sync_group(self, request: m.SyncGroupRequest, version: int) -> m.SyncGroupResponse:
        result = await self._sync(request, version)
        return m.SyncGroupResponse(
            error_code=result.error,
            protocol_type=result.protocol_type,
            protocol_name=result.protocol_name,
            assignment=result.assignment,
        )

    async def _sync(self, request: m.SyncGroupRequest, version: int) -> SyncResult:
        if version >= 5 and (request.protocol_type is None or request.protocol_name is None):
            return SyncResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        error = self._manager.check(request.group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # The rebalance was lost with the previous coordinator: the members must join again.
            return SyncResult(ErrorCode.REBALANCE_IN_PROGRESS)
        if error is not ErrorCode.NONE:
            return SyncResult(error)
        group = self._manager.find(request.group_id)
        if group is None:
            return SyncResult(ErrorCode.UNKNOWN_MEMBER_ID)
        call = SyncCall(
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment={item.member_id: bytes(item.assignment) for item in request.assignments},
        )
        waiter: asyncio.Future[SyncResult] = asyncio.get_running_loop().create_future()
        self._apply(self._membership.sync(group, call, waiter, self._clock()))
        return await waiter

    def heartbeat(self, request: m.HeartbeatRequest) -> m.HeartbeatResponse:
        return m.HeartbeatResponse(error_code=self._heartbeat(request))

    def _heartbeat(self, request: m.HeartbeatRequest) -> ErrorCode:
        error = self._manager.check(request.group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return ErrorCode.NONE  # The members are not loaded yet, and their sessions have not started.
        if error is not ErrorCode.NONE:
            return error
        group = self._manager.find(request.group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error, effects = self._membership.heartbeat(
            group, request.member_id, request.group_instance_id, request.generation_id, self._clock()
        )
        self._apply(effects)
        return error

    async def leave_group(self, request: m.LeaveGroupRequest, version: int) -> m.LeaveGroupResponse:
        """One member up to version 2; several with an error code each since version 3."""
        leaving = (
            request.members
            if version >= 3
            else [m.LeaveGroupRequest.MemberIdentity(member_id=request.member_id)]
        )
        error = self._manager.check(request.group_id)
        if error is not ErrorCode.NONE:
            return m.LeaveGroupResponse(error_code=error)
        group = self._manager.find(request.group_id)
        if group is not None and group.state is GroupState.DEAD:
            return m.LeaveGroupResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        errors = [self._leave(group, member) for member in leaving]
        if version < 3:
            return m.LeaveGroupResponse(error_code=errors[0])
        return m.LeaveGroupResponse(
            members=[
                m.LeaveGroupResponse.MemberResponse(
                    member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=code
                )
                for member, code in zip(leaving, errors, strict=True)
            ]
        )

    def _leave(self, group: Group | None, member: m.LeaveGroupRequest.MemberIdentity) -> ErrorCode:
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error, effects = self._membership.leave(
            group, member.member_id, member.group_instance_id, self._clock(), member.reason
        )
        self._apply(effects)
        return error

    # -- offsets and administration ------------------------------------------------------------------

    async def offset_commit(self, request: m.OffsetCommitRequest) -> m.OffsetCommitResponse:
        return await self._offset_requests.commit(request)

    async def txn_offset_commit(
        self, request: m.TxnOffsetCommitRequest, version: int
    ) -> m.TxnOffsetCommitResponse:
        return await self._transactional.commit(request, version)

    def transaction_completed(self, partition: int, producer_id: int, committed: bool) -> None:
        """Call when a producer's marker is replicated in a partition of `__consumer_offsets`."""
        self._transactional.completed(partition, producer_id, committed=committed)

    async def offset_fetch(self, request: m.OffsetFetchRequest, version: int) -> m.OffsetFetchResponse:
        return self._offset_requests.fetch(request, version)

    async def offset_delete(self, request: m.OffsetDeleteRequest) -> m.OffsetDeleteResponse:
        return await self._offset_requests.delete(request)

    async def list_groups(self, request: m.ListGroupsRequest) -> m.ListGroupsResponse:
        return group_requests.list_groups(self._manager, request)

    async def describe_groups(self, request: m.DescribeGroupsRequest) -> m.DescribeGroupsResponse:
        return group_requests.describe_groups(self._manager, request)

    async def delete_groups(self, request: m.DeleteGroupsRequest) -> m.DeleteGroupsResponse:
        return await group_requests.delete_groups(self._manager, self._cleanup, self._clock, request)


def _complete(waiter: asyncio.Future[Any], result: object) -> None:
    """Complete a response, unless its request was cancelled because the connection closed."""
    if not waiter.done():
        waiter.set_result(result)
