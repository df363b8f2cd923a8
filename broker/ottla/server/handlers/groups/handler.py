"""Consumer groups: OffsetCommit 0-9, OffsetFetch 0-9, JoinGroup 0-9, Heartbeat 0-4, LeaveGroup 0-5,
SyncGroup 0-5, DescribeGroups 0-5, ListGroups 0-5, DeleteGroups 0-2, OffsetDelete 0.

Behaviour: `ottla.coordinators` has the rules; this file passes the request, its version and the client to it,
and builds the error responses. OffsetCommit 0 and OffsetFetch 0 are for offsets in ZooKeeper
(`zookeeper_offsets`). Without an authorizer the authorized operations of DescribeGroups are all operations.

Left out on purpose: the new group protocol (KIP-848).
"""

from __future__ import annotations

from ottla.coordinators.coordinator import GroupCoordinator
from ottla.coordinators.interfaces import ClientContext
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from ottla.security.acls import SUPPORTED, ResourceType, bits
from ottla.server.dispatch.dispatcher import Request, Route
from ottla.server.handlers.groups.zookeeper_offsets import ZooKeeperOffsets

GROUP_OPERATIONS = bits(SUPPORTED[ResourceType.GROUP])
IN_ZOOKEEPER = 0
"""The version of OffsetCommit and OffsetFetch with offsets in ZooKeeper."""


def _context(request: Request) -> ClientContext:
    # Kafka's hosts have the slash of Java's InetAddress, and tools print it.
    return ClientContext(client_id=request.client_id or "", client_host=f"/{request.connection.peer_host}")


class GroupsHandler:
    """Passes requests to the group coordinator."""

    def __init__(self, coordinator: GroupCoordinator, in_zookeeper: ZooKeeperOffsets) -> None:
        self._coordinator = coordinator
        self._in_zookeeper = in_zookeeper

    def routes(self) -> list[Route]:
        return [
            Route(OffsetCommitRequest, self.offset_commit, _offset_commit_error),
            Route(OffsetFetchRequest, self.offset_fetch, _offset_fetch_error),
            Route(JoinGroupRequest, self.join_group, _join_group_error),
            Route(HeartbeatRequest, self.heartbeat, _heartbeat_error),
            Route(LeaveGroupRequest, self.leave_group, _leave_group_error),
            Route(SyncGroupRequest, self.sync_group, _sync_group_error),
            Route(DescribeGroupsRequest, self.describe_groups, _describe_groups_error),
            Route(ListGroupsRequest, self.list_groups, _list_groups_error),
            Route(DeleteGroupsRequest, self.delete_groups, _delete_groups_error),
            Route(OffsetDeleteRequest, self.offset_delete, _offset_delete_error),
        ]

    async def offset_commit(self, request: Request) -> OffsetCommitResponse:
        message = request.decode(OffsetCommitRequest)
        if request.version == IN_ZOOKEEPER:
            return await self._in_zookeeper.commit(message)
        return await self._coordinator.offset_commit(message, request.version, _context(request))

    async def offset_fetch(self, request: Request) -> OffsetFetchResponse:
        message = request.decode(OffsetFetchRequest)
        if request.version == IN_ZOOKEEPER:
            return await self._in_zookeeper.fetch(message)
        return await self._coordinator.offset_fetch(message, request.version, _context(request))

    async def join_group(self, request: Request) -> JoinGroupResponse:
        message = request.decode(JoinGroupRequest)
        return await self._coordinator.join_group(message, request.version, _context(request))

    async def heartbeat(self, request: Request) -> HeartbeatResponse:
        message = request.decode(HeartbeatRequest)
        return await self._coordinator.heartbeat(message, request.version, _context(request))

    async def leave_group(self, request: Request) -> LeaveGroupResponse:
        message = request.decode(LeaveGroupRequest)
        return await self._coordinator.leave_group(message, request.version, _context(request))

    async def sync_group(self, request: Request) -> SyncGroupResponse:
        message = request.decode(SyncGroupRequest)
        return await self._coordinator.sync_group(message, request.version, _context(request))

    async def describe_groups(self, request: Request) -> DescribeGroupsResponse:
        message = request.decode(DescribeGroupsRequest)
        response = await self._coordinator.describe_groups(message, request.version, _context(request))
        if message.include_authorized_operations:
            for group in response.groups:
                if not group.error_code:
                    group.authorized_operations = GROUP_OPERATIONS
        return response

    async def list_groups(self, request: Request) -> ListGroupsResponse:
        message = request.decode(ListGroupsRequest)
        return await self._coordinator.list_groups(message, request.version, _context(request))

    async def delete_groups(self, request: Request) -> DeleteGroupsResponse:
        message = request.decode(DeleteGroupsRequest)
        return await self._coordinator.delete_groups(message, request.version, _context(request))

    async def offset_delete(self, request: Request) -> OffsetDeleteResponse:
        message = request.decode(OffsetDeleteRequest)
        return await self._coordinator.offset_delete(message, request.version, _context(request))


def _offset_commit_error(
    message: OffsetCommitRequest, version: int, code: ErrorCode, detail: str | None
) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponse.OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitResponse.OffsetCommitResponsePartition(
                        partition_index=p.partition_index, error_code=code
                    )
                    for p in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


def _offset_fetch_error(
    message: OffsetFetchRequest, version: int, code: ErrorCode, detail: str | None
) -> OffsetFetchResponse:
    if version >= 8:
        return OffsetFetchResponse(
            groups=[
                OffsetFetchResponse.OffsetFetchResponseGroup(group_id=g.group_id, error_code=code)
                for g in message.groups
            ]
        )
    if version >= 2:
        return OffsetFetchResponse(error_code=code)
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponse.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponse.OffsetFetchResponsePartition(
                        partition_index=p, committed_offset=-1, metadata="", error_code=code
                    )
                    for p in topic.partition_indexes
                ],
            )
            for topic in message.topics or []
        ]
    )


def _join_group_error(
    message: JoinGroupRequest, version: int, code: ErrorCode, detail: str | None
) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=code, protocol_name=None if version >= 7 else "")


def _heartbeat_error(
    message: HeartbeatRequest, version: int, code: ErrorCode, detail: str | None
) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=code)


def _leave_group_error(
    message: LeaveGroupRequest, version: int, code: ErrorCode, detail: str | None
) -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=code)


def _sync_group_error(
    message: SyncGroupRequest, version: int, code: ErrorCode, detail: str | None
) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=code)


def _describe_groups_error(
    message: DescribeGroupsRequest, version: int, code: ErrorCode, detail: str | None
) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(
        groups=[DescribeGroupsResponse.DescribedGroup(group_id=g, error_code=code) for g in message.groups]
    )


def _list_groups_error(
    message: ListGroupsRequest, version: int, code: ErrorCode, detail: str | None
) -> ListGroupsResponse:
    return ListGroupsResponse(error_code=code)


def _delete_groups_error(
    message: DeleteGroupsRequest, version: int, code: ErrorCode, detail: str | None
) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[
            DeleteGroupsResponse.DeletableGroupResult(group_id=g, error_code=code)
            for g in message.groups_names
        ]
    )


def _offset_delete_error(
    message: OffsetDeleteRequest, version: int, code: ErrorCode, detail: str | None
) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(error_code=code)
