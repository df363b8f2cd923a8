"""Groups and their members (KIP-222, KIP-518, KIP-571); `committed_offsets` has their offsets."""

from __future__ import annotations

from collections.abc import Iterable

from ottla.client import errors
from ottla.client.admin.fan_out import COORDINATOR
from ottla.client.admin.network import GROUP, AdminNetwork, operations, outcome, raise_error
from ottla.client.admin_types import (
    GroupDescription,
    GroupListing,
    GroupMember,
    MemberToRemove,
    Node,
    Results,
    TopicPartition,
)
from ottla.client.errors import ClientError
from ottla.protocol import codec
from ottla.protocol import messages as m
from ottla.protocol.errors import MalformedMessage
from ottla.protocol.messages.groups import ConsumerProtocolAssignment

_REASON = "removed by an administrator"


async def list_groups(
    network: AdminNetwork, *, states: Iterable[str] = (), types: Iterable[str] = ()
) -> Results[int, tuple[GroupListing, ...]]:
    """The groups by the broker that coordinates them, optionally only those with these states and types. A
    broker that does not respond is among the errors."""
    request = m.ListGroupsRequest(states_filter=list(states), types_filter=list(types))

    async def ask(node: Node) -> tuple[GroupListing, ...]:
        response = await network.send_to(node, request)
        raise_error(response.error_code)
        return tuple(
            GroupListing(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in response.groups
        )

    return await network.at_brokers(None, ask)


async def describe_groups(
    network: AdminNetwork, group_ids: Iterable[str], *, authorized_operations: bool = False
) -> Results[str, GroupDescription]:
    """Groups with their members; a group that does not exist has the state Dead, as in Kafka."""

    async def ask(node: Node, share: list[str]) -> dict[str, GroupDescription | ClientError]:
        response = await network.send_to(
            node,
            m.DescribeGroupsRequest(groups=share, include_authorized_operations=authorized_operations),
        )
        return {
            group.group_id: outcome(group.error_code, None, group.group_id) or _described(group, node)
            for group in response.groups
        }

    return await network.by_node(group_ids, network.coordinators(GROUP), ask, COORDINATOR)


async def describe_group(network: AdminNetwork, group_id: str) -> GroupDescription:
    """Describe one group. Raises KafkaError."""
    return (await describe_groups(network, [group_id]))[group_id]


async def delete_groups(network: AdminNetwork, group_ids: Iterable[str]) -> Results[str, None]:
    """Delete groups without members, with their committed offsets."""

    async def ask(node: Node, share: list[str]) -> dict[str, ClientError | None]:
        response = await network.send_to(node, m.DeleteGroupsRequest(groups_names=share))
        return {row.group_id: outcome(row.error_code, None, row.group_id) for row in response.results}

    return await network.by_node(group_ids, network.coordinators(GROUP), ask, COORDINATOR)


async def delete_group(network: AdminNetwork, group_id: str) -> None:
    """Delete one group. Raises KafkaError."""
    (await delete_groups(network, [group_id])).raise_first()


async def remove_group_members(
    network: AdminNetwork,
    group_id: str,
    members: Iterable[MemberToRemove] | None = None,
    *,
    reason: str = _REASON,
) -> Results[MemberToRemove, None]:
    """Remove members, None: all. Static members stay out until they restart, others may join again at once
    (KIP-345, KIP-800). Raises KafkaError for an error of the group."""
    if members is None:
        group = await describe_group(network, group_id)
        members = [
            MemberToRemove(each.group_instance_id, "" if each.group_instance_id else each.member_id)
            for each in group.members
        ]
    wanted = list(dict.fromkeys(members))
    if not wanted:
        return Results({})
    request = m.LeaveGroupRequest(
        group_id=group_id,
        members=[
            m.LeaveGroupRequest.MemberIdentity(
                member_id=each.member_id, group_instance_id=each.group_instance_id, reason=reason
            )
            for each in wanted
        ],
    )

    async def ask(
        node: Node, share: list[str]
    ) -> dict[str, dict[MemberToRemove, ClientError | None] | ClientError]:
        response = await network.send_to(node, request)
        raise_error(response.error_code)
        results: dict[MemberToRemove, ClientError | None] = {}
        for row in response.members:
            named = MemberToRemove(row.group_instance_id, row.member_id)
            # The response may have the member id in addition to the requested instance id.
            member = named if named in wanted else MemberToRemove(row.group_instance_id)
            results[member] = outcome(row.error_code, None, member)
        return {group_id: results}

    found = await network.by_node([group_id], network.coordinators(GROUP), ask, COORDINATOR)
    missing = errors.UnknownServerError("the response has no result for this member")
    return Results({member: found[group_id].get(member, missing) for member in wanted})


def _described(group: m.DescribeGroupsResponse.DescribedGroup, node: Node) -> GroupDescription:
    members = tuple(
        GroupMember(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host.removeprefix("/"),
            _assigned(member.member_assignment),
        )
        for member in group.members
    )
    return GroupDescription(
        group.group_id,
        group.group_state,
        members,
        node,
        group.protocol_data,
        group.protocol_type,
        operations(group.authorized_operations),
    )


def _assigned(data: bytes) -> tuple[TopicPartition, ...]:
    """The assigned partitions of a consumer; empty for other members, such as those of Kafka Connect."""
    if len(data) < 2:
        return ()
    newest = ConsumerProtocolAssignment.max_version
    version = min(int.from_bytes(data[:2], "big", signed=True), newest)
    try:
        assignment = codec.decode(ConsumerProtocolAssignment, max(version, 0), data, 2)
    except MalformedMessage:
        return ()
    return tuple(TopicPartition(t.topic, p) for t in assignment.assigned_partitions for p in t.partitions)
