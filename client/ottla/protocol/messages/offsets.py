"""Offsets of a log by timestamp and leader epoch, from its leader."""

from __future__ import annotations

from ottla.protocol.types import Int8, Int16, Int32, Int64, Message, String, Struct, field


class ListOffsetsRequest(Message, api_key=2, versions="0-9", flexible="6+"):
    """Gets offsets by timestamp: -1 latest, -2 earliest, -3 maximum timestamp."""

    class ListOffsetsPartition(Struct):
        partition_index: Int32 = field("0+")
        current_leader_epoch: Int32 = field("4+", default=-1, ignorable=True)
        timestamp: Int64 = field("0+")
        max_num_offsets: Int32 = field("0", default=1)

    class ListOffsetsTopic(Struct):
        name: String = field("0+")
        partitions: list[ListOffsetsRequest.ListOffsetsPartition] = field("0+")

    replica_id: Int32 = field("0+")
    isolation_level: Int8 = field("2+")
    topics: list[ListOffsetsRequest.ListOffsetsTopic] = field("0+")


class ListOffsetsResponse(Message, api_key=2, versions="0-9", flexible="6+"):
    """The offset and timestamp of each partition."""

    class ListOffsetsPartitionResponse(Struct):
        partition_index: Int32 = field("0+")
        error_code: Int16 = field("0+")
        old_style_offsets: list[Int64] = field("0")
        timestamp: Int64 = field("1+", default=-1)
        offset: Int64 = field("1+", default=-1)
        leader_epoch: Int32 = field("4+", default=-1)

    class ListOffsetsTopicResponse(Struct):
        name: String = field("0+")
        partitions: list[ListOffsetsResponse.ListOffsetsPartitionResponse] = field("0+")

    throttle_time_ms: Int32 = field("2+", ignorable=True)
    topics: list[ListOffsetsResponse.ListOffsetsTopicResponse] = field("0+")


class OffsetForLeaderEpochRequest(Message, api_key=23, versions="0-4", flexible="4+"):
    """Gets the end offset of a leader epoch, by which followers and consumers detect divergence (KIP-101)."""

    class OffsetForLeaderPartition(Struct):
        partition: Int32 = field("0+")
        current_leader_epoch: Int32 = field("2+", default=-1, ignorable=True)
        leader_epoch: Int32 = field("0+")

    class OffsetForLeaderTopic(Struct):
        topic: String = field("0+")
        partitions: list[OffsetForLeaderEpochRequest.OffsetForLeaderPartition] = field("0+")

    replica_id: Int32 = field("3+", default=-2, ignorable=True)
    topics: list[OffsetForLeaderEpochRequest.OffsetForLeaderTopic] = field("0+")


class OffsetForLeaderEpochResponse(Message, api_key=23, versions="0-4", flexible="4+"):
    """The largest epoch up to the requested one, and its end offset."""

    class EpochEndOffset(Struct):
        error_code: Int16 = field("0+")
        partition: Int32 = field("0+")
        leader_epoch: Int32 = field("1+", default=-1, ignorable=True)
        end_offset: Int64 = field("0+", default=-1)

    class OffsetForLeaderTopicResult(Struct):
        topic: String = field("0+")
        partitions: list[OffsetForLeaderEpochResponse.EpochEndOffset] = field("0+")

    throttle_time_ms: Int32 = field("2+", ignorable=True)
    topics: list[OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult] = field("0+")
