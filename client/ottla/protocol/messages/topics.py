"""Topics: create, delete, add partitions, elect leaders; partition reassignments (KIP-455)."""

from __future__ import annotations

from ottla.protocol.types import Bool, Int8, Int16, Int32, Message, String, Struct, Uuid, field


class CreateTopicsRequest(Message, api_key=19, versions="0-7", flexible="5+"):
    """Creates topics, with a replication factor or an assignment, and settings."""

    class CreatableReplicaAssignment(Struct):
        partition_index: Int32 = field("0+")
        broker_ids: list[Int32] = field("0+")

    class CreatableTopicConfig(Struct):
        name: String = field("0+")
        value: String | None = field("0+", nullable="0+")

    class CreatableTopic(Struct):
        name: String = field("0+")
        num_partitions: Int32 = field("0+")
        replication_factor: Int16 = field("0+")
        assignments: list[CreateTopicsRequest.CreatableReplicaAssignment] = field("0+")
        configs: list[CreateTopicsRequest.CreatableTopicConfig] = field("0+")

    topics: list[CreateTopicsRequest.CreatableTopic] = field("0+")
    timeout_ms: Int32 = field("0+", default=60000)
    validate_only: Bool = field("1+")


class CreateTopicsResponse(Message, api_key=19, versions="0-7", flexible="5+"):
    """The result of each topic; from version 5 with its settings (KIP-525)."""

    class CreatableTopicConfigs(Struct):
        name: String = field("5+")
        value: String | None = field("5+", nullable="5+")
        read_only: Bool = field("5+")
        config_source: Int8 = field("5+", default=-1, ignorable=True)
        is_sensitive: Bool = field("5+")

    class CreatableTopicResult(Struct):
        name: String = field("0+")
        topic_id: Uuid = field("7+", ignorable=True)
        error_code: Int16 = field("0+")
        error_message: String | None = field("1+", nullable="1+", ignorable=True)
        topic_config_error_code: Int16 = field("5+", ignorable=True, tag=0)
        num_partitions: Int32 = field("5+", default=-1, ignorable=True)
        replication_factor: Int16 = field("5+", default=-1, ignorable=True)
        configs: list[CreateTopicsResponse.CreatableTopicConfigs] | None = field(
            "5+", nullable="5+", ignorable=True
        )

    throttle_time_ms: Int32 = field("2+", ignorable=True)
    topics: list[CreateTopicsResponse.CreatableTopicResult] = field("0+")


class DeleteTopicsRequest(Message, api_key=20, versions="0-6", flexible="4+"):
    """Deletes topics by name; from version 6 by name or id (KIP-516)."""

    class DeleteTopicState(Struct):
        name: String | None = field("6+", nullable="6+", default=None)
        topic_id: Uuid = field("6+")

    topics: list[DeleteTopicsRequest.DeleteTopicState] = field("6+")
    topic_names: list[String] = field("0-5", ignorable=True)
    timeout_ms: Int32 = field("0+")


class DeleteTopicsResponse(Message, api_key=20, versions="0-6", flexible="4+"):
    """The result of each topic."""

    class DeletableTopicResult(Struct):
        name: String | None = field("0+", nullable="6+")
        topic_id: Uuid = field("6+", ignorable=True)
        error_code: Int16 = field("0+")
        error_message: String | None = field("5+", nullable="5+", default=None, ignorable=True)

    throttle_time_ms: Int32 = field("1+", ignorable=True)
    responses: list[DeleteTopicsResponse.DeletableTopicResult] = field("0+")


class CreatePartitionsRequest(Message, api_key=37, versions="0-3", flexible="2+"):
    """Increases the number of partitions of topics."""

    class CreatePartitionsAssignment(Struct):
        broker_ids: list[Int32] = field("0+")

    class CreatePartitionsTopic(Struct):
        name: String = field("0+")
        count: Int32 = field("0+")
        assignments: list[CreatePartitionsRequest.CreatePartitionsAssignment] | None = field(
            "0+", nullable="0+"
        )

    topics: list[CreatePartitionsRequest.CreatePartitionsTopic] = field("0+")
    timeout_ms: Int32 = field("0+")
    validate_only: Bool = field("0+")


class CreatePartitionsResponse(Message, api_key=37, versions="0-3", flexible="2+"):
    """The result of each topic."""

    class CreatePartitionsTopicResult(Struct):
        name: String = field("0+")
        error_code: Int16 = field("0+")
        error_message: String | None = field("0+", nullable="0+", default=None)

    throttle_time_ms: Int32 = field("0+")
    results: list[CreatePartitionsResponse.CreatePartitionsTopicResult] = field("0+")


class ElectLeadersRequest(Message, api_key=43, versions="0-2", flexible="2+"):
    """Elects preferred leaders (type 0), or any live replica, with loss of records (type 1; KIP-460)."""

    class TopicPartitions(Struct):
        topic: String = field("0+")
        partitions: list[Int32] = field("0+")

    election_type: Int8 = field("1+")
    topic_partitions: list[ElectLeadersRequest.TopicPartitions] | None = field("0+", nullable="0+")
    timeout_ms: Int32 = field("0+", default=60000)


class ElectLeadersResponse(Message, api_key=43, versions="0-2", flexible="2+"):
    """The result of each partition."""

    class PartitionResult(Struct):
        partition_id: Int32 = field("0+")
        error_code: Int16 = field("0+")
        error_message: String | None = field("0+", nullable="0+")

    class ReplicaElectionResult(Struct):
        topic: String = field("0+")
        partition_result: list[ElectLeadersResponse.PartitionResult] = field("0+")

    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("1+")
    replica_election_results: list[ElectLeadersResponse.ReplicaElectionResult] = field("0+")


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
