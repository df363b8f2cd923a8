"""Consumer groups: membership, administration, and the data that consumers exchange in the classic
protocol; groups with assignment by the coordinator (KIP-848; not served by Kafka 3.9 with ZooKeeper)."""

from __future__ import annotations

from ottla.protocol.types import Bool, Bytes, Int16, Int32, Message, String, Struct, Uuid, field


class JoinGroupRequest(Message, api_key=11, versions="0-9", flexible="6+"):
    """Joins a group, or joins again in a rebalance, with the supported protocols."""

    class JoinGroupRequestProtocol(Struct):
        name: String = field("0+")
        metadata: Bytes = field("0+")

    group_id: String = field("0+")
    session_timeout_ms: Int32 = field("0+")
    rebalance_timeout_ms: Int32 = field("1+", default=-1, ignorable=True)
    member_id: String = field("0+")
    group_instance_id: String | None = field("5+", nullable="5+", default=None)
    protocol_type: String = field("0+")
    protocols: list[JoinGroupRequest.JoinGroupRequestProtocol] = field("0+")
    reason: String | None = field("8+", nullable="8+", default=None, ignorable=True)


class JoinGroupResponse(Message, api_key=11, versions="0-9", flexible="6+"):
    """The new generation; for the leader with the metadata of all members."""

    class JoinGroupResponseMember(Struct):
        member_id: String = field("0+")
        group_instance_id: String | None = field("5+", nullable="5+", default=None, ignorable=True)
        metadata: Bytes = field("0+")

    throttle_time_ms: Int32 = field("2+", ignorable=True)
    error_code: Int16 = field("0+")
    generation_id: Int32 = field("0+", default=-1)
    protocol_type: String | None = field("7+", nullable="7+", default=None, ignorable=True)
    protocol_name: String | None = field("0+", nullable="7+")
    leader: String = field("0+")
    skip_assignment: Bool = field("9+")
    member_id: String = field("0+")
    members: list[JoinGroupResponse.JoinGroupResponseMember] = field("0+")


class SyncGroupRequest(Message, api_key=14, versions="0-5", flexible="4+"):
    """Gets the member's assignment; the leader sends the assignments of all members."""

    class SyncGroupRequestAssignment(Struct):
        member_id: String = field("0+")
        assignment: Bytes = field("0+")

    group_id: String = field("0+")
    generation_id: Int32 = field("0+")
    member_id: String = field("0+")
    group_instance_id: String | None = field("3+", nullable="3+", default=None)
    protocol_type: String | None = field("5+", nullable="5+", default=None, ignorable=True)
    protocol_name: String | None = field("5+", nullable="5+", default=None, ignorable=True)
    assignments: list[SyncGroupRequest.SyncGroupRequestAssignment] = field("0+")


class SyncGroupResponse(Message, api_key=14, versions="0-5", flexible="4+"):
    """The member's assignment, which the broker does not decode."""

    throttle_time_ms: Int32 = field("1+", ignorable=True)
    error_code: Int16 = field("0+")
    protocol_type: String | None = field("5+", nullable="5+", default=None, ignorable=True)
    protocol_name: String | None = field("5+", nullable="5+", default=None, ignorable=True)
    assignment: Bytes = field("0+")


class HeartbeatRequest(Message, api_key=12, versions="0-4", flexible="4+"):
    """Keeps a member in its generation."""

    group_id: String = field("0+")
    generation_id: Int32 = field("0+")
    member_id: String = field("0+")
    group_instance_id: String | None = field("3+", nullable="3+", default=None)


class HeartbeatResponse(Message, api_key=12, versions="0-4", flexible="4+"):
    """Whether the member stays, or must join again."""

    throttle_time_ms: Int32 = field("1+", ignorable=True)
    error_code: Int16 = field("0+")


class LeaveGroupRequest(Message, api_key=13, versions="0-5", flexible="4+"):
    """Leaves a group before the session time-out; an administrator may remove several members."""

    class MemberIdentity(Struct):
        member_id: String = field("3+")
        group_instance_id: String | None = field("3+", nullable="3+", default=None)
        reason: String | None = field("5+", nullable="5+", default=None, ignorable=True)

    group_id: String = field("0+")
    member_id: String = field("0-2")
    members: list[LeaveGroupRequest.MemberIdentity] = field("3+")


class LeaveGroupResponse(Message, api_key=13, versions="0-5", flexible="4+"):
    """The result; from version 3 of each member."""

    class MemberResponse(Struct):
        member_id: String = field("3+")
        group_instance_id: String | None = field("3+", nullable="3+")
        error_code: Int16 = field("3+")

    throttle_time_ms: Int32 = field("1+", ignorable=True)
    error_code: Int16 = field("0+")
    members: list[LeaveGroupResponse.MemberResponse] = field("3+")


class DescribeGroupsRequest(Message, api_key=15, versions="0-5", flexible="5+"):
    """Describes groups: state, protocol and members."""

    groups: list[String] = field("0+")
    include_authorized_operations: Bool = field("3+")


class DescribeGroupsResponse(Message, api_key=15, versions="0-5", flexible="5+"):
    """The description of each group."""

    class DescribedGroupMember(Struct):
        member_id: String = field("0+")
        group_instance_id: String | None = field("4+", nullable="4+", default=None, ignorable=True)
        client_id: String = field("0+")
        client_host: String = field("0+")
        member_metadata: Bytes = field("0+")
        member_assignment: Bytes = field("0+")

    class DescribedGroup(Struct):
        error_code: Int16 = field("0+")
        group_id: String = field("0+")
        group_state: String = field("0+")
        protocol_type: String = field("0+")
        protocol_data: String = field("0+")
        members: list[DescribeGroupsResponse.DescribedGroupMember] = field("0+")
        authorized_operations: Int32 = field("3+", default=-2147483648)

    throttle_time_ms: Int32 = field("1+", ignorable=True)
    groups: list[DescribeGroupsResponse.DescribedGroup] = field("0+")


class ListGroupsRequest(Message, api_key=16, versions="0-5", flexible="3+"):
    """Lists the groups that the broker coordinates, optionally by state (KIP-518) and type."""

    states_filter: list[String] = field("4+")
    types_filter: list[String] = field("5+")


class ListGroupsResponse(Message, api_key=16, versions="0-5", flexible="3+"):
    """Group ids, protocol types and states."""

    class ListedGroup(Struct):
        group_id: String = field("0+")
        protocol_type: String = field("0+")
        group_state: String = field("4+", ignorable=True)
        group_type: String = field("5+", ignorable=True)

    throttle_time_ms: Int32 = field("1+", ignorable=True)
    error_code: Int16 = field("0+")
    groups: list[ListGroupsResponse.ListedGroup] = field("0+")


class DeleteGroupsRequest(Message, api_key=42, versions="0-2", flexible="2+"):
    """Deletes groups without members, with their committed offsets."""

    groups_names: list[String] = field("0+")


class DeleteGroupsResponse(Message, api_key=42, versions="0-2", flexible="2+"):
    """The error code of each group."""

    class DeletableGroupResult(Struct):
        group_id: String = field("0+")
        error_code: Int16 = field("0+")

    throttle_time_ms: Int32 = field("0+")
    results: list[DeleteGroupsResponse.DeletableGroupResult] = field("0+")


class ConsumerProtocolSubscription(Message, versions="0-3"):
    """The topics of a member's subscription, and the partitions it owns (KIP-429)."""

    class TopicPartition(Struct):
        topic: String = field("1+")
        partitions: list[Int32] = field("1+")

    topics: list[String] = field("0+")
    user_data: Bytes | None = field("0+", nullable="0+", default=None)
    owned_partitions: list[ConsumerProtocolSubscription.TopicPartition] = field("1+", ignorable=True)
    generation_id: Int32 = field("2+", default=-1, ignorable=True)
    rack_id: String | None = field("3+", nullable="3+", default=None, ignorable=True)


class ConsumerProtocolAssignment(Message, versions="0-3"):
    """The partitions that the group's leader assigned to a member."""

    class TopicPartition(Struct):
        topic: String = field("0+")
        partitions: list[Int32] = field("0+")

    assigned_partitions: list[ConsumerProtocolAssignment.TopicPartition] = field("0+")
    user_data: Bytes | None = field("0+", nullable="0+", default=None)


class ConsumerGroupHeartbeatRequest(Message, api_key=68, versions="0", flexible="0+"):
    """A member joins (epoch 0), stays in or leaves a group (-1; static members -2). Null: unchanged."""

    class TopicPartitions(Struct):
        topic_id: Uuid = field("0+")
        partitions: list[Int32] = field("0+")

    group_id: String = field("0+")
    member_id: String = field("0+")
    member_epoch: Int32 = field("0+")
    instance_id: String | None = field("0+", nullable="0+", default=None)
    rack_id: String | None = field("0+", nullable="0+", default=None)
    rebalance_timeout_ms: Int32 = field("0+", default=-1)
    subscribed_topic_names: list[String] | None = field("0+", nullable="0+", default=None)
    server_assignor: String | None = field("0+", nullable="0+", default=None)
    topic_partitions: list[ConsumerGroupHeartbeatRequest.TopicPartitions] | None = field(
        "0+", nullable="0+", default=None
    )


class ConsumerGroupHeartbeatResponse(Message, api_key=68, versions="0", flexible="0+"):
    """The member's epoch, and its assignment if it has changed."""

    class TopicPartitions(Struct):
        topic_id: Uuid = field("0+")
        partitions: list[Int32] = field("0+")

    class Assignment(Struct):
        topic_partitions: list[ConsumerGroupHeartbeatResponse.TopicPartitions] = field("0+")

    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: String | None = field("0+", nullable="0+", default=None)
    member_id: String | None = field("0+", nullable="0+", default=None)
    member_epoch: Int32 = field("0+")
    heartbeat_interval_ms: Int32 = field("0+")
    assignment: ConsumerGroupHeartbeatResponse.Assignment | None = field("0+", nullable="0+", default=None)


class ConsumerGroupDescribeRequest(Message, api_key=69, versions="0", flexible="0+"):
    """Describes groups by id."""

    group_ids: list[String] = field("0+")
    include_authorized_operations: Bool = field("0+")


class ConsumerGroupDescribeResponse(Message, api_key=69, versions="0", flexible="0+"):
    """State, epochs and members of each group, with current and target assignment."""

    class TopicPartitions(Struct):
        topic_id: Uuid = field("0+")
        topic_name: String = field("0+")
        partitions: list[Int32] = field("0+")

    class Assignment(Struct):
        topic_partitions: list[ConsumerGroupDescribeResponse.TopicPartitions] = field("0+")

    class Member(Struct):
        member_id: String = field("0+")
        instance_id: String | None = field("0+", nullable="0+", default=None)
        rack_id: String | None = field("0+", nullable="0+", default=None)
        member_epoch: Int32 = field("0+")
        client_id: String = field("0+")
        client_host: String = field("0+")
        subscribed_topic_names: list[String] = field("0+")
        subscribed_topic_regex: String | None = field("0+", nullable="0+", default=None)
        assignment: ConsumerGroupDescribeResponse.Assignment = field("0+")
        target_assignment: ConsumerGroupDescribeResponse.Assignment = field("0+")

    class DescribedGroup(Struct):
        error_code: Int16 = field("0+")
        error_message: String | None = field("0+", nullable="0+", default=None)
        group_id: String = field("0+")
        group_state: String = field("0+")
        group_epoch: Int32 = field("0+")
        assignment_epoch: Int32 = field("0+")
        assignor_name: String = field("0+")
        members: list[ConsumerGroupDescribeResponse.Member] = field("0+")
        authorized_operations: Int32 = field("0+", default=-2147483648)

    throttle_time_ms: Int32 = field("0+")
    groups: list[ConsumerGroupDescribeResponse.DescribedGroup] = field("0+")
