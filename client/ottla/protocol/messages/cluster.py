"""Requests between the controller and the brokers; clients do not send them."""

from __future__ import annotations

from ottla.protocol.types import Bool, Bytes, Int8, Int16, Int32, Int64, Message, String, Struct, Uuid, field


class LeaderAndIsrRequest(Message, api_key=4, versions="0-7", flexible="4+"):
    """The controller sends a broker the leaders and ISRs of its partitions."""

    class LeaderAndIsrPartitionState(Struct):
        topic_name: String = field("0-1", ignorable=True)
        partition_index: Int32 = field("0+")
        controller_epoch: Int32 = field("0+")
        leader: Int32 = field("0+")
        leader_epoch: Int32 = field("0+")
        isr: list[Int32] = field("0+")
        partition_epoch: Int32 = field("0+")
        replicas: list[Int32] = field("0+")
        adding_replicas: list[Int32] = field("3+", ignorable=True)
        removing_replicas: list[Int32] = field("3+", ignorable=True)
        is_new: Bool = field("1+", ignorable=True)
        leader_recovery_state: Int8 = field("6+")

    class LeaderAndIsrTopicState(Struct):
        topic_name: String = field("2+")
        topic_id: Uuid = field("5+", ignorable=True)
        partition_states: list[LeaderAndIsrRequest.LeaderAndIsrPartitionState] = field("2+")

    class LeaderAndIsrLiveLeader(Struct):
        broker_id: Int32 = field("0+")
        host_name: String = field("0+")
        port: Int32 = field("0+")

    controller_id: Int32 = field("0+")
    is_k_raft_controller: Bool = field("7+")
    controller_epoch: Int32 = field("0+")
    broker_epoch: Int64 = field("2+", default=-1, ignorable=True)
    type: Int8 = field("5+")
    ungrouped_partition_states: list[LeaderAndIsrRequest.LeaderAndIsrPartitionState] = field("0-1")
    topic_states: list[LeaderAndIsrRequest.LeaderAndIsrTopicState] = field("2+")
    live_leaders: list[LeaderAndIsrRequest.LeaderAndIsrLiveLeader] = field("0+")


class LeaderAndIsrResponse(Message, api_key=4, versions="0-7", flexible="4+"):
    """The error code of each partition of the request."""

    class LeaderAndIsrPartitionError(Struct):
        topic_name: String = field("0-4", ignorable=True)
        partition_index: Int32 = field("0+")
        error_code: Int16 = field("0+")

    class LeaderAndIsrTopicError(Struct):
        topic_id: Uuid = field("5+")
        partition_errors: list[LeaderAndIsrResponse.LeaderAndIsrPartitionError] = field("5+")

    error_code: Int16 = field("0+")
    partition_errors: list[LeaderAndIsrResponse.LeaderAndIsrPartitionError] = field("0-4")
    topics: list[LeaderAndIsrResponse.LeaderAndIsrTopicError] = field("5+")


class StopReplicaRequest(Message, api_key=5, versions="0-4", flexible="2+"):
    """The controller stops replicas of a broker, and optionally deletes their logs."""

    class StopReplicaPartitionV0(Struct):
        topic_name: String = field("0")
        partition_index: Int32 = field("0")

    class StopReplicaTopicV1(Struct):
        name: String = field("1-2")
        partition_indexes: list[Int32] = field("1-2")

    class StopReplicaPartitionState(Struct):
        partition_index: Int32 = field("3+")
        leader_epoch: Int32 = field("3+", default=-1)
        delete_partition: Bool = field("3+")

    class StopReplicaTopicState(Struct):
        topic_name: String = field("3+")
        partition_states: list[StopReplicaRequest.StopReplicaPartitionState] = field("3+")

    controller_id: Int32 = field("0+")
    is_k_raft_controller: Bool = field("4+")
    controller_epoch: Int32 = field("0+")
    broker_epoch: Int64 = field("1+", default=-1, ignorable=True)
    delete_partitions: Bool = field("0-2")
    ungrouped_partitions: list[StopReplicaRequest.StopReplicaPartitionV0] = field("0")
    topics: list[StopReplicaRequest.StopReplicaTopicV1] = field("1-2")
    topic_states: list[StopReplicaRequest.StopReplicaTopicState] = field("3+")


class StopReplicaResponse(Message, api_key=5, versions="0-4", flexible="2+"):
    """The error code of each partition of the request."""

    class StopReplicaPartitionError(Struct):
        topic_name: String = field("0+")
        partition_index: Int32 = field("0+")
        error_code: Int16 = field("0+")

    error_code: Int16 = field("0+")
    partition_errors: list[StopReplicaResponse.StopReplicaPartitionError] = field("0+")


class UpdateMetadataRequest(Message, api_key=6, versions="0-8", flexible="6+"):
    """The controller sends every broker the cluster's metadata, which Metadata responses have."""

    class UpdateMetadataPartitionState(Struct):
        topic_name: String = field("0-4", ignorable=True)
        partition_index: Int32 = field("0+")
        controller_epoch: Int32 = field("0+")
        leader: Int32 = field("0+")
        leader_epoch: Int32 = field("0+")
        isr: list[Int32] = field("0+")
        zk_version: Int32 = field("0+")
        replicas: list[Int32] = field("0+")
        offline_replicas: list[Int32] = field("4+", ignorable=True)

    class UpdateMetadataTopicState(Struct):
        topic_name: String = field("5+")
        topic_id: Uuid = field("7+", ignorable=True)
        partition_states: list[UpdateMetadataRequest.UpdateMetadataPartitionState] = field("5+")

    class UpdateMetadataEndpoint(Struct):
        port: Int32 = field("1+")
        host: String = field("1+")
        listener: String = field("3+", ignorable=True)
        security_protocol: Int16 = field("1+")

    class UpdateMetadataBroker(Struct):
        id: Int32 = field("0+")
        v0_host: String = field("0", ignorable=True)
        v0_port: Int32 = field("0", ignorable=True)
        endpoints: list[UpdateMetadataRequest.UpdateMetadataEndpoint] = field("1+", ignorable=True)
        rack: String | None = field("2+", nullable="2+", ignorable=True)

    controller_id: Int32 = field("0+")
    is_k_raft_controller: Bool = field("8+")
    type: Int8 = field("8+", tag=0)
    controller_epoch: Int32 = field("0+")
    broker_epoch: Int64 = field("5+", default=-1, ignorable=True)
    ungrouped_partition_states: list[UpdateMetadataRequest.UpdateMetadataPartitionState] = field("0-4")
    topic_states: list[UpdateMetadataRequest.UpdateMetadataTopicState] = field("5+")
    live_brokers: list[UpdateMetadataRequest.UpdateMetadataBroker] = field("0+")


class UpdateMetadataResponse(Message, api_key=6, versions="0-8", flexible="6+"):
    """The result of the update."""

    error_code: Int16 = field("0+")


class ControlledShutdownRequest(Message, api_key=7, versions="0-3", flexible="3+"):
    """A broker requests that the controller moves its leaders to other brokers before it stops."""

    broker_id: Int32 = field("0+")
    broker_epoch: Int64 = field("2+", default=-1, ignorable=True)


class ControlledShutdownResponse(Message, api_key=7, versions="0-3", flexible="3+"):
    """The partitions that the broker still leads; the broker repeats the request until there are none."""

    class RemainingPartition(Struct):
        topic_name: String = field("0+")
        partition_index: Int32 = field("0+")

    error_code: Int16 = field("0+")
    remaining_partitions: list[ControlledShutdownResponse.RemainingPartition] = field("0+")


class AlterPartitionRequest(Message, api_key=56, versions="0-3", flexible="0+"):
    """A leader requests changes of ISRs from the controller (KIP-497)."""

    class BrokerState(Struct):
        broker_id: Int32 = field("3+")
        broker_epoch: Int64 = field("3+", default=-1)

    class PartitionData(Struct):
        partition_index: Int32 = field("0+")
        leader_epoch: Int32 = field("0+")
        new_isr: list[Int32] = field("0-2")
        new_isr_with_epochs: list[AlterPartitionRequest.BrokerState] = field("3+")
        leader_recovery_state: Int8 = field("1+")
        partition_epoch: Int32 = field("0+")

    class TopicData(Struct):
        topic_name: String = field("0-1", ignorable=True)
        topic_id: Uuid = field("2+", ignorable=True)
        partitions: list[AlterPartitionRequest.PartitionData] = field("0+")

    broker_id: Int32 = field("0+")
    broker_epoch: Int64 = field("0+", default=-1)
    topics: list[AlterPartitionRequest.TopicData] = field("0+")


class AlterPartitionResponse(Message, api_key=56, versions="0-3", flexible="0+"):
    """The state of each partition after the change, or its error."""

    class PartitionData(Struct):
        partition_index: Int32 = field("0+")
        error_code: Int16 = field("0+")
        leader_id: Int32 = field("0+")
        leader_epoch: Int32 = field("0+")
        isr: list[Int32] = field("0+")
        leader_recovery_state: Int8 = field("1+", ignorable=True)
        partition_epoch: Int32 = field("0+")

    class TopicData(Struct):
        topic_name: String = field("0-1", ignorable=True)
        topic_id: Uuid = field("2+", ignorable=True)
        partitions: list[AlterPartitionResponse.PartitionData] = field("0+")

    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    topics: list[AlterPartitionResponse.TopicData] = field("0+")


class EnvelopeRequest(Message, api_key=58, versions="0", flexible="0+"):
    """A request that a broker forwards for a client, with its principal (KIP-590).

    Closes the connection where forwarding is off, as it is with ZooKeeper.
    """

    request_data: Bytes = field("0+")
    request_principal: Bytes | None = field("0+", nullable="0+")
    client_host_address: Bytes = field("0+")


class EnvelopeResponse(Message, api_key=58, versions="0", flexible="0+"):
    """The response to the forwarded request."""

    response_data: Bytes | None = field("0+", nullable="0+", default=None)
    error_code: Int16 = field("0+")
