"""ListGroups (0-5), DescribeGroups (0-5) and DeleteGroups (0-2). Called by `coordinator`."""

from __future__ import annotations

from collections.abc import Callable

from ottla.coordinators.cleanup import Cleanup
from ottla.coordinators.group import Group, GroupState
from ottla.coordinators.registry import Registry
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)

CLASSIC = "classic"
"""The type of all groups here; the other types belong to the coordinator of later Kafkas."""


def list_groups(registry: Registry, request: ListGroupsRequest) -> ListGroupsResponse:
    """Filters match in any case. While a partition is loading the list is short, and says so."""
    if not registry.active:
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    return ListGroupsResponse(
        error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if registry.is_loading else ErrorCode.NONE,
        groups=[
            ListGroupsResponse.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=CLASSIC,
            )
            for group in registry
            if (not states or group.state.value.lower() in states) and (not types or CLASSIC in types)
        ],
    )


def describe_groups(registry: Registry, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """An unknown group is described as Dead. Who may do what with a group is for the server to add."""
    described = []
    for group_id in request.groups:
        error = registry.check(group_id, may_be_empty=True)
        group = registry.find(group_id)
        if error is not ErrorCode.NONE:
            item = DescribeGroupsResponse.DescribedGroup(group_id=group_id, error_code=error)
        elif group is None:
            item = DescribeGroupsResponse.DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
        else:
            item = describe(group)
        described.append(item)
    return DescribeGroupsResponse(groups=described)


def describe(group: Group) -> DescribeGroupsResponse.DescribedGroup:
    """Protocol, metadata and assignments are shown of stable groups only: else they are in the making."""
    stable = group.state is GroupState.STABLE
    return DescribeGroupsResponse.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if stable else "",
        members=[
            DescribeGroupsResponse.DescribedGroupMember(
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
    registry: Registry, cleanup: Cleanup, clock: Callable[[], int], request: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    """NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, and the errors of `Registry.check`, per group."""
    now_ms = clock()
    errors: dict[str, ErrorCode] = {}
    doomed: list[Group] = []
    for group_id in dict.fromkeys(request.groups_names):
        error = registry.check(group_id, may_be_empty=True)
        group = registry.find(group_id)
        if error is ErrorCode.NONE:
            if group is None:
                error = ErrorCode.GROUP_ID_NOT_FOUND
            elif group.state is not GroupState.EMPTY:
                error = ErrorCode.NON_EMPTY_GROUP
            else:
                group.transition_to(GroupState.DEAD, now_ms)
                doomed.append(group)
        errors[group_id] = error
    await cleanup.remove(doomed, lambda group: group.offsets.partitions(), now_ms)
    return DeleteGroupsResponse(
        results=[
            DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=error)
            for group_id, error in errors.items()
        ]
    )
