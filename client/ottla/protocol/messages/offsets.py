"""Offsets: those that groups committed, and those of a log by timestamp and leader epoch, from its leader."""

from __future__ import annotations

from ottla.protocol.types import Bool, Int8, Int16, Int32, Int64, Message, String, Struct, field

REMOVE_MEMBERS_TAG = 10_000
"""The tag of a field that Kafka does not have; Kafka's tags start at 0. Brokers ignore unknown tags
(KIP-482)."""


class OffsetCommitRequest(Message, api_key=8, versions="0-9", flexible="8+"):
    """Commits offsets of a group. Generation -1: a consumer that is not a member.

    `remove_members` is Ottla's own (docs/guides/groups.md): the coordinator removes all members
    in the same step.
    """

    class OffsetCommitRequestPartition(Struct):
        partition_index: Int32 = field("0+")
        committed_offset: Int64 = field("0+")
        committed_leader_epoch: Int32 = field("6+", default=-1, ignorable=True)
        commit_timestamp: Int64 = field("1", default=-1)
        committed_metadata: String | None = field("0+", nullable="0+")

    class OffsetCommitRequestTopic(Struct):
        name: String = field("0+")
        partitions: list[OffsetCommitRequest.OffsetCommitRequestPartition] = field("0+")

    group_id: String = field("0+")
    generation_id_or_member_epoch: Int32 = field("1+", default=-1, ignorable=True)
    member_id: String = field("1+", ignorable=True)
    group_instance_id: String | None = field("7+", nullable="7+", default=None)
    retention_time_ms: Int64 = field("2-4", default=-1, ignorable=True)
    topics: list[OffsetCommitRequest.OffsetCommitRequestTopic] = field("0+")
    remove_members: Bool = field("8+", tag=REMOVE_MEMBERS_TAG)


class OffsetCommitResponse(Message, api_key=8, versions="0-9", flexible="8+"):
    """The error code of each partition."""

    class OffsetCommitResponsePartition(Struct):
        partition_index: Int32 = field("0+")
        error_code: Int16 = field("0+")

    class OffsetCommitResponseTopic(Struct):
        name: String = field("0+")
        partitions: list[OffsetCommitResponse.OffsetCommitResponsePartition] = field("0+")

    throttle_time_ms: Int32 = field("3+", ignorable=True)
    topics: list[OffsetCommitResponse.OffsetCommitResponseTopic] = field("0+")


class OffsetFetchRequest(Message, api_key=9, versions="0-9", flexible="6+"):
    """Gets committed offsets; null topics: all. From version 8 of several groups (KIP-709)."""

    class OffsetFetchRequestTopic(Struct):
        name: String = field("0-7")
        partition_indexes: list[Int32] = field("0-7")

    class OffsetFetchRequestTopics(Struct):
        name: String = field("8+")
        partition_indexes: list[Int32] = field("8+")

    class OffsetFetchRequestGroup(Struct):
        group_id: String = field("8+")
        member_id: String | None = field("9+", nullable="9+", default=None, ignorable=True)
        member_epoch: Int32 = field("9+", default=-1, ignorable=True)
        topics: list[OffsetFetchRequest.OffsetFetchRequestTopics] | None = field("8+", nullable="8+")

    group_id: String = field("0-7")
    topics: list[OffsetFetchRequest.OffsetFetchRequestTopic] | None = field("0-7", nullable="2-7")
    groups: list[OffsetFetchRequest.OffsetFetchRequestGroup] = field("8+")
    require_stable: Bool = field("7+")


class OffsetFetchResponse(Message, api_key=9, versions="0-9", flexible="6+"):
    """The committed offsets; -1: none."""

    class OffsetFetchResponsePartition(Struct):
        partition_index: Int32 = field("0-7")
        committed_offset: Int64 = field("0-7")
        committed_leader_epoch: Int32 = field("5-7", default=-1, ignorable=True)
        metadata: String | None = field("0-7", nullable="0-7")
        error_code: Int16 = field("0-7")

    class OffsetFetchResponseTopic(Struct):
        name: String = field("0-7")
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartition] = field("0-7")

    class OffsetFetchResponsePartitions(Struct):
        partition_index: Int32 = field("8+")
        committed_offset: Int64 = field("8+")
        committed_leader_epoch: Int32 = field("8+", default=-1, ignorable=True)
        metadata: String | None = field("8+", nullable="8+")
        error_code: Int16 = field("8+")

    class OffsetFetchResponseTopics(Struct):
        name: String = field("8+")
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartitions] = field("8+")

    class OffsetFetchResponseGroup(Struct):
        group_id: String = field("8+")
        topics: list[OffsetFetchResponse.OffsetFetchResponseTopics] = field("8+")
        error_code: Int16 = field("8+")

    throttle_time_ms: Int32 = field("3+", ignorable=True)
    topics: list[OffsetFetchResponse.OffsetFetchResponseTopic] = field("0-7")
    error_code: Int16 = field("2-7", ignorable=True)
    groups: list[OffsetFetchResponse.OffsetFetchResponseGroup] = field("8+")


class OffsetDeleteRequest(Message, api_key=47, versions="0", flexible="none"):
    """Deletes committed offsets of topics that the group does not subscribe to (KIP-496)."""

    class OffsetDeleteRequestPartition(Struct):
        partition_index: Int32 = field("0+")

    class OffsetDeleteRequestTopic(Struct):
        name: String = field("0+")
        partitions: list[OffsetDeleteRequest.OffsetDeleteRequestPartition] = field("0+")

    group_id: String = field("0+")
    topics: list[OffsetDeleteRequest.OffsetDeleteRequestTopic] = field("0+")


class OffsetDeleteResponse(Message, api_key=47, versions="0", flexible="none"):
    """The error code of each partition, and one for the whole request."""

    class OffsetDeleteResponsePartition(Struct):
        partition_index: Int32 = field("0+")
        error_code: Int16 = field("0+")

    class OffsetDeleteResponseTopic(Struct):
        name: String = field("0+")
        partitions: list[OffsetDeleteResponse.OffsetDeleteResponsePartition] = field("0+")

    error_code: Int16 = field("0+")
    throttle_time_ms: Int32 = field("0+", ignorable=True)
    topics: list[OffsetDeleteResponse.OffsetDeleteResponseTopic] = field("0+")


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
