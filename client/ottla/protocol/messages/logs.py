"""The logs behind partitions: cutting their start, and the folders they lie in."""

from __future__ import annotations

from ottla.protocol.types import Bool, Int16, Int32, Int64, Message, String, Struct, field


class DeleteRecordsRequest(Message, api_key=21, versions="0-2", flexible="2+"):
    """Raise the log start offset of partitions (KIP-107); offset -1 stands for the high watermark."""

    class DeleteRecordsPartition(Struct):
        partition_index: Int32 = field("0+")
        offset: Int64 = field("0+")

    class DeleteRecordsTopic(Struct):
        name: String = field("0+")
        partitions: list[DeleteRecordsRequest.DeleteRecordsPartition] = field("0+")

    topics: list[DeleteRecordsRequest.DeleteRecordsTopic] = field("0+")
    timeout_ms: Int32 = field("0+")


class DeleteRecordsResponse(Message, api_key=21, versions="0-2", flexible="2+"):
    """The lowest offset that is left on any replica, per partition."""

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
    """Move replicas between log directories of the broker, or say where they are to be made (KIP-113)."""

    class AlterReplicaLogDirTopic(Struct):
        name: String = field("0+")
        partitions: list[Int32] = field("0+")

    class AlterReplicaLogDir(Struct):
        path: String = field("0+")
        topics: list[AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic] = field("0+")

    dirs: list[AlterReplicaLogDirsRequest.AlterReplicaLogDir] = field("0+")


class AlterReplicaLogDirsResponse(Message, api_key=34, versions="0-2", flexible="2+"):
    """The outcome per partition."""

    class AlterReplicaLogDirPartitionResult(Struct):
        partition_index: Int32 = field("0+")
        error_code: Int16 = field("0+")

    class AlterReplicaLogDirTopicResult(Struct):
        topic_name: String = field("0+")
        partitions: list[AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult] = field("0+")

    throttle_time_ms: Int32 = field("0+")
    results: list[AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult] = field("0+")


class DescribeLogDirsRequest(Message, api_key=35, versions="0-4", flexible="2+"):
    """What lies in the log directories (KIP-113), of all partitions when null."""

    class DescribableLogDirTopic(Struct):
        topic: String = field("0+")
        partitions: list[Int32] = field("0+")

    topics: list[DescribeLogDirsRequest.DescribableLogDirTopic] | None = field("0+", nullable="0+")


class DescribeLogDirsResponse(Message, api_key=35, versions="0-4", flexible="2+"):
    """Sizes of replicas in bytes, how far future ones lag in offsets, and the volume's size (KIP-827)."""

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
