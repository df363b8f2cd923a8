"""Logs of partitions: deletion of records, and log directories."""

from __future__ import annotations

from ottla.protocol.types import Bool, Int16, Int32, Int64, Message, String, Struct, field


class DeleteRecordsRequest(Message, api_key=21, versions="0-2", flexible="2+"):
    """Deletes records before an offset (KIP-107); -1 is the high watermark."""

    class DeleteRecordsPartition(Struct):
        partition_index: Int32 = field("0+")
        offset: Int64 = field("0+")

    class DeleteRecordsTopic(Struct):
        name: String = field("0+")
        partitions: list[DeleteRecordsRequest.DeleteRecordsPartition] = field("0+")

    topics: list[DeleteRecordsRequest.DeleteRecordsTopic] = field("0+")
    timeout_ms: Int32 = field("0+")


class DeleteRecordsResponse(Message, api_key=21, versions="0-2", flexible="2+"):
    """The low watermark of each partition: the lowest log start offset of its replicas."""

    class DeleteRecordsPartitionResult(Struct):
        partition_index: Int32 = field("0+")
        low_watermark: Int64 = field("0+")
        error_code: Int16 = field("0+")

    class DeleteRecordsTopicResult(Struct):
        name: String = field("0+")
        partitions: list[DeleteRecordsResponse.DeleteRecordsPartitionResult] = field("0+")

    throttle_time_ms: Int32 = field("0+")
    topics: list[DeleteRecordsResponse.DeleteRecordsTopicResult] = field("0+")


class AlterReplicaLogDirsRequest(Message, api_key=34, versions="0-2", flexible="2+"):
    """Moves replicas between log directories of the broker, or sets the directory of future replicas
    (KIP-113)."""

    class AlterReplicaLogDirTopic(Struct):
        name: String = field("0+")
        partitions: list[Int32] = field("0+")

    class AlterReplicaLogDir(Struct):
        path: String = field("0+")
        topics: list[AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic] = field("0+")

    dirs: list[AlterReplicaLogDirsRequest.AlterReplicaLogDir] = field("0+")


class AlterReplicaLogDirsResponse(Message, api_key=34, versions="0-2", flexible="2+"):
    """The result of each partition."""

    class AlterReplicaLogDirPartitionResult(Struct):
        partition_index: Int32 = field("0+")
        error_code: Int16 = field("0+")

    class AlterReplicaLogDirTopicResult(Struct):
        topic_name: String = field("0+")
        partitions: list[AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult] = field("0+")

    throttle_time_ms: Int32 = field("0+")
    results: list[AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult] = field("0+")


class DescribeLogDirsRequest(Message, api_key=35, versions="0-4", flexible="2+"):
    """Describes the log directories of the broker (KIP-113); null: all partitions."""

    class DescribableLogDirTopic(Struct):
        topic: String = field("0+")
        partitions: list[Int32] = field("0+")

    topics: list[DescribeLogDirsRequest.DescribableLogDirTopic] | None = field("0+", nullable="0+")


class DescribeLogDirsResponse(Message, api_key=35, versions="0-4", flexible="2+"):
    """The size and offset lag of replicas in each log directory, and the size of the volume (KIP-827)."""

    class DescribeLogDirsPartition(Struct):
        partition_index: Int32 = field("0+")
        partition_size: Int64 = field("0+")
        offset_lag: Int64 = field("0+")
        is_future_key: Bool = field("0+")

    class DescribeLogDirsTopic(Struct):
        name: String = field("0+")
        partitions: list[DescribeLogDirsResponse.DescribeLogDirsPartition] = field("0+")

    class DescribeLogDirsResult(Struct):
        error_code: Int16 = field("0+")
        log_dir: String = field("0+")
        topics: list[DescribeLogDirsResponse.DescribeLogDirsTopic] = field("0+")
        total_bytes: Int64 = field("4+", default=-1, ignorable=True)
        usable_bytes: Int64 = field("4+", default=-1, ignorable=True)

    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("3+", ignorable=True)
    results: list[DescribeLogDirsResponse.DescribeLogDirsResult] = field("0+")
