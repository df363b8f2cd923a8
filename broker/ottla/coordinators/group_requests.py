"""ListGroups (0-5), DescribeGroups (0-5) and DeleteGroups (0-2). Called by `coordinator`."""

from __future__ import annotations

from collections.abc import Callable

from ottla.coordinators.cleanup import GroupCleanup
from ottla.coordinators.group import Group, GroupState
from ottla.coordinators.group_metadata_manager import GroupMetadataManager
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode

CLASSIC = "classic"
"""The group type of all groups (KIP-848): the broker has no other type."""


def list_groups(manager: GroupMetadataManager, request: m.ListGroupsRequest) -> m.ListGroupsResponse:
    """Filters ignore case. COORDINATOR_LOAD_IN_PROGRESS with the loaded groups while a partition is
    loading."""
    if not manager.partitions.active:
        return m.ListGroupsResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    is_loading = manager.partitions.is_loading
    return m.ListGroupsResponse(
        error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_loading else ErrorCode.NONE,
        groups=[
            m.ListGroupsResponse.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=CLASSIC,
            )
            for group in manager
            if (not states or group.state.value.lower() in states) and (not types or CLASSIC in types)
        ],
    )


def describe_groups(
    manager: GroupMetadataManager, request: m.DescribeGroupsRequest
) -> m.DescribeGroupsResponse:
    """An unknown group has the state Dead. The server adds the authorized operations."""
    described = []
    for group_id in request.groups:
        error = manager.check(group_id, may_be_empty=True)
        group = manager.find(group_id)
        if error is not ErrorCode.NONE:
            item = m.DescribeGroupsResponse.DescribedGroup(group_id=group_id, error_code=error)
        elif group is None:
            item = m.DescribeGroupsResponse.DescribedGroup(
                group_id=group_id, group_state=GroupState.DEAD.value
            )
        else:
            item = describe(group)
        described.append(item)
    return m.DescribeGroupsResponse(groups=described)


def describe(group: Group) -> m.DescribeGroupsResponse.DescribedGroup:
    """Describe a group; protocol, metadata and assignments only if it is Stable."""
    stable = group.state is GroupState.STABLE
    return m.DescribeGroupsResponse.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if stable else "",
        members=[
            m.DescribeGroupsResponse.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata_for(group.protocol_name) if stable else b"",
                member_assignment=member.assignment if stable else b"",
            )
            for member in group.members.values()
        ],
    )


async def delete_groups(
    manager: GroupMetadataManager,
    cleanup: GroupCleanup,
    clock: Callable[[], int],
    request: m.DeleteGroupsRequest,
) -> m.DeleteGroupsResponse:
    """Per group NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, and the errors of `GroupMetadataManager.check`."""
    now_ms = clock()
    errors: dict[str, ErrorCode] = {}
    to_delete: list[Group] = []
    for group_id in dict.fromkeys(request.groups_names):
        error = manager.check(group_id, may_be_empty=True)
        group = manager.find(group_id)
        if error is ErrorCode.NONE:
            if group is None:
                error = ErrorCode.GROUP_ID_NOT_FOUND
            elif group.state is not GroupState.EMPTY:
                error = ErrorCode.NON_EMPTY_GROUP
            else:
                group.transition_to(GroupState.DEAD, now_ms)
                to_delete.append(group)
        errors[group_id] = error
    await cleanup.remove(to_delete, lambda group: group.offsets.partitions(), now_ms)
    return m.DeleteGroupsResponse(
        results=[
            m.DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=error)
            for group_id, error in errors.items()
        ]
    )
