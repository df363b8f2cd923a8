"""Groups with assignment by the coordinator (KIP-848). Kafka 3.9 with ZooKeeper does not serve these APIs."""

from __future__ import annotations

from ottla.protocol.types import Bool, Int16, Int32, Message, String, Struct, Uuid, field


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
