"""Groups: who is in them (KIP-222, KIP-518, KIP-571). What they have committed: `group_offsets`."""

from __future__ import annotations

from collections.abc import Iterable

from ottla.client import errors
from ottla.client.admin.fan_out import COORDINATOR
from ottla.client.admin.network import GROUP, AdminNetwork, operations, outcome, refuse
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
from ottla.protocol.messages.consumer_protocol import ConsumerProtocolAssignment

_REASON = "removed by an administrator"


async def list_groups(
    network: AdminNetwork, *, states: Iterable[str] = (), types: Iterable[str] = ()
) -> Results[int, tuple[GroupListing, ...]]:
    """The groups that each broker coordinates, all together all there are; of these states and types
    where some are named. A broker that cannot be asked is among the errors."""
    request = m.ListGroupsRequest(states_filter=list(states), types_filter=list(types))

    async def ask(node: Node) -> tuple[GroupListing, ...]:
        response = await network.send_to(node, request)
        refuse(response.error_code)
        return tuple(
            GroupListing(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in response.groups
        )

    return await network.at_brokers(None, ask)


async def describe_groups(
    network: AdminNetwork, group_ids: Iterable[str], *, authorized_operations: bool = False
) -> Results[str, GroupDescription]:
    """Groups and their members; a group that never was is Dead, as Kafka has it."""

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
    """One group; raises KafkaError."""
    return (await describe_groups(network, [group_id]))[group_id]


async def delete_groups(network: AdminNetwork, group_ids: Iterable[str]) -> Results[str, None]:
    """Groups without members, and what they have committed."""

    async def ask(node: Node, share: list[str]) -> dict[str, ClientError | None]:
        response = await network.send_to(node, m.DeleteGroupsRequest(groups_names=share))
        return {row.group_id: outcome(row.error_code, None, row.group_id) for row in response.results}

    return await network.by_node(group_ids, network.coordinators(GROUP), ask, COORDINATOR)


async def delete_group(network: AdminNetwork, group_id: str) -> None:
    """One group; raises KafkaError."""
    (await delete_groups(network, [group_id])).raise_first()


async def remove_group_members(
    network: AdminNetwork,
    group_id: str,
    members: Iterable[MemberToRemove] | None = None,
    *,
    reason: str = _REASON,
) -> Results[MemberToRemove, None]:
    """Throw members out, all of them when none are named: static ones stay away until they start anew,
    others may join again at once (KIP-345, KIP-800). Raises KafkaError for the group as a whole."""
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
        refuse(response.error_code)
        told: dict[MemberToRemove, ClientError | None] = {}
        for row in response.members:
            named = MemberToRemove(row.group_instance_id, row.member_id)
            # The answer may have the member's id besides the name that it was asked for with.
            member = named if named in wanted else MemberToRemove(row.group_instance_id)
            told[member] = outcome(row.error_code, None, member)
        return {group_id: told}

    found = await network.by_node([group_id], network.coordinators(GROUP), ask, COORDINATOR)
    left_out = errors.UnknownServerError("left out of the answer")
    return Results({member: found[group_id].get(member, left_out) for member in wanted})


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
    """The partitions of a consumer; nothing for members that are no consumers (Connect has groups, too)."""
    if len(data) < 2:
        return ()
    newest = ConsumerProtocolAssignment.max_version
    version = min(int.from_bytes(data[:2], "big", signed=True), newest)
    try:
        assignment = codec.decode(ConsumerProtocolAssignment, max(version, 0), data, 2)
    except MalformedMessage:
        return ()
    return tuple(TopicPartition(t.topic, p) for t in assignment.assigned_partitions for p in t.partitions)
