"""Partition reassignments (KIP-455)."""

from __future__ import annotations

from ottla.protocol.types import Int16, Int32, Message, String, Struct, field


class AlterPartitionReassignmentsRequest(Message, api_key=45, versions="0", flexible="0+"):
    """Starts reassignments; null replicas cancel a reassignment in progress."""

    class ReassignablePartition(Struct):
        partition_index: Int32 = field("0+")
        replicas: list[Int32] | None = field("0+", nullable="0+", default=None)

    class ReassignableTopic(Struct):
        name: String = field("0+")
        partitions: list[AlterPartitionReassignmentsRequest.ReassignablePartition] = field("0+")

    timeout_ms: Int32 = field("0+", default=60000)
    topics: list[AlterPartitionReassignmentsRequest.ReassignableTopic] = field("0+")


class AlterPartitionReassignmentsResponse(Message, api_key=45, versions="0", flexible="0+"):
    """The result of each partition."""

    class ReassignablePartitionResponse(Struct):
        partition_index: Int32 = field("0+")
        error_code: Int16 = field("0+")
        error_message: String | None = field("0+", nullable="0+")

    class ReassignableTopicResponse(Struct):
        name: String = field("0+")
        partitions: list[AlterPartitionReassignmentsResponse.ReassignablePartitionResponse] = field("0+")

    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: String | None = field("0+", nullable="0+")
    responses: list[AlterPartitionReassignmentsResponse.ReassignableTopicResponse] = field("0+")


class ListPartitionReassignmentsRequest(Message, api_key=46, versions="0", flexible="0+"):
    """Lists the reassignments in progress; null: of all topics."""

    class ListPartitionReassignmentsTopics(Struct):
        name: String = field("0+")
        partition_indexes: list[Int32] = field("0+")

    timeout_ms: Int32 = field("0+", default=60000)
    topics: list[ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics] | None = field(
        "0+", nullable="0+", default=None
    )


class ListPartitionReassignmentsResponse(Message, api_key=46, versions="0", flexible="0+"):
    """Replicas, adding and removing replicas of each partition."""

    class OngoingPartitionReassignment(Struct):
        partition_index: Int32 = field("0+")
        replicas: list[Int32] = field("0+")
        adding_replicas: list[Int32] = field("0+")
        removing_replicas: list[Int32] = field("0+")

    class OngoingTopicReassignment(Struct):
        name: String = field("0+")
        partitions: list[ListPartitionReassignmentsResponse.OngoingPartitionReassignment] = field("0+")

    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: String | None = field("0+", nullable="0+")
    topics: list[ListPartitionReassignmentsResponse.OngoingTopicReassignment] = field("0+")
