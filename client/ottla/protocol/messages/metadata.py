"""Metadata that any broker serves: API versions, features, the cluster, leaders and coordinators."""

from __future__ import annotations

from ottla.protocol.types import Bool, Int8, Int16, Int32, Int64, Message, String, Struct, Uuid, field


class ApiVersionsRequest(Message, api_key=18, versions="0-4", flexible="3+"):
    """Gets the API versions that the broker supports; the first request of a connection."""

    client_software_name: String = field("3+", ignorable=True)
    client_software_version: String = field("3+", ignorable=True)


class ApiVersionsResponse(Message, api_key=18, versions="0-4", flexible="3+"):
    """The version range of each supported API. Its response header is always version 0."""

    class ApiVersion(Struct):
        api_key: Int16 = field("0+")
        min_version: Int16 = field("0+")
        max_version: Int16 = field("0+")

    class SupportedFeatureKey(Struct):
        name: String = field("3+")
        min_version: Int16 = field("3+")
        max_version: Int16 = field("3+")

    class FinalizedFeatureKey(Struct):
        name: String = field("3+")
        max_version_level: Int16 = field("3+")
        min_version_level: Int16 = field("3+")

    error_code: Int16 = field("0+")
    api_keys: list[ApiVersionsResponse.ApiVersion] = field("0+")
    throttle_time_ms: Int32 = field("1+", ignorable=True)
    supported_features: list[ApiVersionsResponse.SupportedFeatureKey] = field("3+", ignorable=True, tag=0)
    finalized_features_epoch: Int64 = field("3+", default=-1, ignorable=True, tag=1)
    finalized_features: list[ApiVersionsResponse.FinalizedFeatureKey] = field("3+", ignorable=True, tag=2)
    zk_migration_ready: Bool = field("3+", ignorable=True, tag=3)


class MetadataRequest(Message, api_key=3, versions="0-12", flexible="9+"):
    """Gets the metadata of topics and the brokers; null: all topics (in version 0 an empty list)."""

    class MetadataRequestTopic(Struct):
        topic_id: Uuid = field("10+", ignorable=True)
        name: String | None = field("0+", nullable="10+")

    topics: list[MetadataRequest.MetadataRequestTopic] | None = field("0+", nullable="1+")
    allow_auto_topic_creation: Bool = field("4+", default=True)
    include_cluster_authorized_operations: Bool = field("8-10")
    include_topic_authorized_operations: Bool = field("8+")


class MetadataResponse(Message, api_key=3, versions="0-12", flexible="9+"):
    """Live brokers, the controller, and leader and replicas of each partition, from the broker's metadata
    cache."""

    class MetadataResponseBroker(Struct):
        node_id: Int32 = field("0+")
        host: String = field("0+")
        port: Int32 = field("0+")
        rack: String | None = field("1+", nullable="1+", default=None, ignorable=True)

    class MetadataResponsePartition(Struct):
        error_code: Int16 = field("0+")
        partition_index: Int32 = field("0+")
        leader_id: Int32 = field("0+")
        leader_epoch: Int32 = field("7+", default=-1, ignorable=True)
        replica_nodes: list[Int32] = field("0+")
        isr_nodes: list[Int32] = field("0+")
        offline_replicas: list[Int32] = field("5+", ignorable=True)

    class MetadataResponseTopic(Struct):
        error_code: Int16 = field("0+")
        name: String | None = field("0+", nullable="12+")
        topic_id: Uuid = field("10+", ignorable=True)
        is_internal: Bool = field("1+", ignorable=True)
        partitions: list[MetadataResponse.MetadataResponsePartition] = field("0+")
        topic_authorized_operations: Int32 = field("8+", default=-2147483648)

    throttle_time_ms: Int32 = field("3+", ignorable=True)
    brokers: list[MetadataResponse.MetadataResponseBroker] = field("0+")
    cluster_id: String | None = field("2+", nullable="2+", default=None, ignorable=True)
    controller_id: Int32 = field("1+", default=-1, ignorable=True)
    topics: list[MetadataResponse.MetadataResponseTopic] = field("0+")
    cluster_authorized_operations: Int32 = field("8-10", default=-2147483648)


class DescribeClusterRequest(Message, api_key=60, versions="0-1", flexible="0+"):
    """Gets the cluster's id, controller and brokers, without topics (KIP-700)."""

    include_cluster_authorized_operations: Bool = field("0+")
    endpoint_type: Int8 = field("1+", default=1)


class DescribeClusterResponse(Message, api_key=60, versions="0-1", flexible="0+"):
    """The cluster, optionally with the caller's authorized operations."""

    class DescribeClusterBroker(Struct):
        broker_id: Int32 = field("0+")
        host: String = field("0+")
        port: Int32 = field("0+")
        rack: String | None = field("0+", nullable="0+", default=None)

    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: String | None = field("0+", nullable="0+", default=None)
    endpoint_type: Int8 = field("1+", default=1)
    cluster_id: String = field("0+")
    controller_id: Int32 = field("0+", default=-1)
    brokers: list[DescribeClusterResponse.DescribeClusterBroker] = field("0+")
    cluster_authorized_operations: Int32 = field("0+", default=-2147483648)


class FindCoordinatorRequest(Message, api_key=10, versions="0-6", flexible="3+"):
    """Finds the coordinator of a group (key type 0) or a transactional id (1); from version 4 of several
    keys."""

    key: String = field("0-3")
    key_type: Int8 = field("1+")
    coordinator_keys: list[String] = field("4+")


class FindCoordinatorResponse(Message, api_key=10, versions="0-6", flexible="3+"):
    """The address of the coordinator; from version 4 a list."""

    class Coordinator(Struct):
        key: String = field("4+")
        node_id: Int32 = field("4+")
        host: String = field("4+")
        port: Int32 = field("4+")
        error_code: Int16 = field("4+")
        error_message: String | None = field("4+", nullable="4+", ignorable=True)

    throttle_time_ms: Int32 = field("1+", ignorable=True)
    error_code: Int16 = field("0-3")
    error_message: String | None = field("1-3", nullable="1-3", ignorable=True)
    node_id: Int32 = field("0-3")
    host: String = field("0-3")
    port: Int32 = field("0-3")
    coordinators: list[FindCoordinatorResponse.Coordinator] = field("4+")


class UpdateFeaturesRequest(Message, api_key=57, versions="0-1", flexible="0+"):
    """Upgrades or downgrades finalized features (KIP-584); level 0 removes a feature."""

    class FeatureUpdateKey(Struct):
        feature: String = field("0+")
        max_version_level: Int16 = field("0+")
        allow_downgrade: Bool = field("0")
        upgrade_type: Int8 = field("1+", default=1)

    timeout_ms: Int32 = field("0+", default=60000)
    feature_updates: list[UpdateFeaturesRequest.FeatureUpdateKey] = field("0+")
    validate_only: Bool = field("1+")


class UpdateFeaturesResponse(Message, api_key=57, versions="0-1", flexible="0+"):
    """The result of each feature."""

    class UpdatableFeatureResult(Struct):
        feature: String = field("0+")
        error_code: Int16 = field("0+")
        error_message: String | None = field("0+", nullable="0+")

    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: String | None = field("0+", nullable="0+")
    results: list[UpdateFeaturesResponse.UpdatableFeatureResult] = field("0+")
