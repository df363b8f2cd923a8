"""Consumer groups and what they have committed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from ottla.client.admin.base import Family
from ottla.client.admin_types import GroupDescription, GroupMember, TopicPartition
from ottla.client.routing import raise_first
from ottla.protocol import codec
from ottla.protocol import messages as m
from ottla.protocol.errors import MalformedMessage
from ottla.protocol.messages.consumer_protocol import ConsumerProtocolAssignment


class Groups(Family):
    async def list_groups(self) -> dict[str, str]:
        """Group ids and their states, over all brokers."""
        groups: dict[str, str] = {}
        for node in (await self._brokers.describe()).brokers:
            response = await self._brokers.to(node, m.ListGroupsRequest())
            raise_first([(response.error_code, None)])
            groups.update({g.group_id: g.group_state for g in response.groups})
        return groups

    async def describe_group(self, group_id: str) -> GroupDescription:
        """A group and its members; a group that never was is Dead, as Kafka has it."""
        request = m.DescribeGroupsRequest(groups=[group_id])
        node, response = await self._brokers.coordinator(group_id, request)
        group = response.groups[0]
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
        return GroupDescription(group.group_id, group.group_state, members, node, group.protocol_data)

    async def group_offsets(self, group_id: str) -> dict[TopicPartition, int]:
        """What a group has committed."""
        wanted = m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=None)
        _, response = await self._brokers.coordinator(group_id, m.OffsetFetchRequest(groups=[wanted]))
        return {
            TopicPartition(t.name, p.partition_index): p.committed_offset
            for t in response.groups[0].topics
            for p in t.partitions
            if p.committed_offset >= 0
        }

    async def delete_group(self, group_id: str) -> None:
        """The group and its offsets. Raises KafkaError, NON_EMPTY_GROUP while it has members."""
        await self._brokers.coordinator(group_id, m.DeleteGroupsRequest(groups_names=[group_id]))

    async def alter_group_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit for a group without members; raises KafkaError (UNKNOWN_MEMBER_ID when it has some)."""
        by_topic: dict[str, list[m.OffsetCommitRequest.OffsetCommitRequestPartition]] = defaultdict(list)
        for (topic, partition), offset in offsets.items():
            by_topic[topic].append(
                m.OffsetCommitRequest.OffsetCommitRequestPartition(
                    partition_index=partition, committed_offset=offset, committed_metadata=""
                )
            )
        request = m.OffsetCommitRequest(
            group_id=group_id,
            topics=[
                m.OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=partitions)
                for topic, partitions in by_topic.items()
            ],
        )
        _, response = await self._brokers.coordinator(group_id, request)
        raise_first(
            (p.error_code, f"{t.name}-{p.partition_index}") for t in response.topics for p in t.partitions
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
