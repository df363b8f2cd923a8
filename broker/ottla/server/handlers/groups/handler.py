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
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode
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
            Route(m.OffsetCommitRequest, self.offset_commit, _offset_commit_error),
            Route(m.OffsetFetchRequest, self.offset_fetch, _offset_fetch_error),
            Route(m.JoinGroupRequest, self.join_group, _join_group_error),
            Route(m.HeartbeatRequest, self.heartbeat, _heartbeat_error),
            Route(m.LeaveGroupRequest, self.leave_group, _leave_group_error),
            Route(m.SyncGroupRequest, self.sync_group, _sync_group_error),
            Route(m.DescribeGroupsRequest, self.describe_groups, _describe_groups_error),
            Route(m.ListGroupsRequest, self.list_groups, _list_groups_error),
            Route(m.DeleteGroupsRequest, self.delete_groups, _delete_groups_error),
            Route(m.OffsetDeleteRequest, self.offset_delete, _offset_delete_error),
        ]

    async def offset_commit(self, request: Request) -> m.OffsetCommitResponse:
        message = request.decode(m.OffsetCommitRequest)
        if request.version == IN_ZOOKEEPER:
            return await self._in_zookeeper.commit(message)
        return await self._coordinator.offset_commit(message)

    async def offset_fetch(self, request: Request) -> m.OffsetFetchResponse:
        message = request.decode(m.OffsetFetchRequest)
        if request.version == IN_ZOOKEEPER:
            return await self._in_zookeeper.fetch(message)
        return await self._coordinator.offset_fetch(message, request.version)

    async def join_group(self, request: Request) -> m.JoinGroupResponse:
        message = request.decode(m.JoinGroupRequest)
        return await self._coordinator.join_group(message, request.version, _context(request))

    def heartbeat(self, request: Request) -> None:
        """Needs no task: the most frequent request of an idle member."""
        request.respond(self._coordinator.heartbeat(request.decode(m.HeartbeatRequest)))

    async def leave_group(self, request: Request) -> m.LeaveGroupResponse:
        message = request.decode(m.LeaveGroupRequest)
        return await self._coordinator.leave_group(message, request.version)

    async def sync_group(self, request: Request) -> m.SyncGroupResponse:
        message = request.decode(m.SyncGroupRequest)
        return await self._coordinator.sync_group(message, request.version)

    async def describe_groups(self, request: Request) -> m.DescribeGroupsResponse:
        message = request.decode(m.DescribeGroupsRequest)
        response = await self._coordinator.describe_groups(message)
        if message.include_authorized_operations:
            for group in response.groups:
                if not group.error_code:
                    group.authorized_operations = GROUP_OPERATIONS
        return response

    async def list_groups(self, request: Request) -> m.ListGroupsResponse:
        message = request.decode(m.ListGroupsRequest)
        return await self._coordinator.list_groups(message)

    async def delete_groups(self, request: Request) -> m.DeleteGroupsResponse:
        message = request.decode(m.DeleteGroupsRequest)
        return await self._coordinator.delete_groups(message)

    async def offset_delete(self, request: Request) -> m.OffsetDeleteResponse:
        message = request.decode(m.OffsetDeleteRequest)
        return await self._coordinator.offset_delete(message)


def _offset_commit_error(
    message: m.OffsetCommitRequest, version: int, code: ErrorCode, detail: str | None
) -> m.OffsetCommitResponse:
    return m.OffsetCommitResponse(
        topics=[
            m.OffsetCommitResponse.OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    m.OffsetCommitResponse.OffsetCommitResponsePartition(
                        partition_index=p.partition_index, error_code=code
                    )
                    for p in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


def _offset_fetch_error(
    message: m.OffsetFetchRequest, version: int, code: ErrorCode, detail: str | None
) -> m.OffsetFetchResponse:
    if version >= 8:
        return m.OffsetFetchResponse(
            groups=[
                m.OffsetFetchResponse.OffsetFetchResponseGroup(group_id=g.group_id, error_code=code)
                for g in message.groups
            ]
        )
    if version >= 2:
        return m.OffsetFetchResponse(error_code=code)
    return m.OffsetFetchResponse(
        topics=[
            m.OffsetFetchResponse.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    m.OffsetFetchResponse.OffsetFetchResponsePartition(
                        partition_index=p, committed_offset=-1, metadata="", error_code=code
                    )
                    for p in topic.partition_indexes
                ],
            )
            for topic in message.topics or []
        ]
    )


def _join_group_error(
    message: m.JoinGroupRequest, version: int, code: ErrorCode, detail: str | None
) -> m.JoinGroupResponse:
    return m.JoinGroupResponse(error_code=code, protocol_name=None if version >= 7 else "")


def _heartbeat_error(
    message: m.HeartbeatRequest, version: int, code: ErrorCode, detail: str | None
) -> m.HeartbeatResponse:
    return m.HeartbeatResponse(error_code=code)


def _leave_group_error(
    message: m.LeaveGroupRequest, version: int, code: ErrorCode, detail: str | None
) -> m.LeaveGroupResponse:
    return m.LeaveGroupResponse(error_code=code)


def _sync_group_error(
    message: m.SyncGroupRequest, version: int, code: ErrorCode, detail: str | None
) -> m.SyncGroupResponse:
    return m.SyncGroupResponse(error_code=code)


def _describe_groups_error(
    message: m.DescribeGroupsRequest, version: int, code: ErrorCode, detail: str | None
) -> m.DescribeGroupsResponse:
    return m.DescribeGroupsResponse(
        groups=[m.DescribeGroupsResponse.DescribedGroup(group_id=g, error_code=code) for g in message.groups]
    )


def _list_groups_error(
    message: m.ListGroupsRequest, version: int, code: ErrorCode, detail: str | None
) -> m.ListGroupsResponse:
    return m.ListGroupsResponse(error_code=code)


def _delete_groups_error(
    message: m.DeleteGroupsRequest, version: int, code: ErrorCode, detail: str | None
) -> m.DeleteGroupsResponse:
    return m.DeleteGroupsResponse(
        results=[
            m.DeleteGroupsResponse.DeletableGroupResult(group_id=g, error_code=code)
            for g in message.groups_names
        ]
    )


def _offset_delete_error(
    message: m.OffsetDeleteRequest, version: int, code: ErrorCode, detail: str | None
) -> m.OffsetDeleteResponse:
    return m.OffsetDeleteResponse(error_code=code)
