"""Produce and Fetch: record batches to a leader, and to consumers and followers."""

from __future__ import annotations

from typing import ClassVar

from ottla.protocol.types import Int8, Int16, Int32, Int64, Message, Records, String, Struct, Uuid, field


class ProduceRequest(Message, api_key=0, versions="0-11", flexible="9+"):
    """Appends batches to partitions that the broker leads. With `acks` 0 there is no response."""

    class PartitionProduceData(Struct):
        index: Int32 = field("0+")
        records: Records | None = field("0+", nullable="0+")

    class TopicProduceData(Struct):
        name: String = field("0+")
        partition_data: list[ProduceRequest.PartitionProduceData] = field("0+")

    counted_from_bytes: ClassVar[int] = 32 << 10
    elements_max: ClassVar[int] = 4096
    """Requests with more partitions are decoded in slices: see server.dispatch.large_requests."""

    transactional_id: String | None = field("3+", nullable="3+", default=None)
    acks: Int16 = field("0+")
    timeout_ms: Int32 = field("0+")
    topic_data: list[ProduceRequest.TopicProduceData] = field("0+")


class ProduceResponse(Message, api_key=0, versions="0-11", flexible="9+"):
    """The base offset or error of each partition; from version 10 also the current leader (KIP-951)."""

    class BatchIndexAndErrorMessage(Struct):
        batch_index: Int32 = field("8+")
        batch_index_error_message: String | None = field("8+", nullable="8+", default=None)

    class LeaderIdAndEpoch(Struct):
        leader_id: Int32 = field("10+", default=-1)
        leader_epoch: Int32 = field("10+", default=-1)

    class PartitionProduceResponse(Struct):
        index: Int32 = field("0+")
        error_code: Int16 = field("0+")
        base_offset: Int64 = field("0+")
        log_append_time_ms: Int64 = field("2+", default=-1, ignorable=True)
        log_start_offset: Int64 = field("5+", default=-1, ignorable=True)
        record_errors: list[ProduceResponse.BatchIndexAndErrorMessage] = field("8+", ignorable=True)
        error_message: String | None = field("8+", nullable="8+", default=None, ignorable=True)
        current_leader: ProduceResponse.LeaderIdAndEpoch = field("10+", tag=0)

    class TopicProduceResponse(Struct):
        name: String = field("0+")
        partition_responses: list[ProduceResponse.PartitionProduceResponse] = field("0+")

    class NodeEndpoint(Struct):
        node_id: Int32 = field("10+")
        host: String = field("10+")
        port: Int32 = field("10+")
        rack: String | None = field("10+", nullable="10+", default=None)

    responses: list[ProduceResponse.TopicProduceResponse] = field("0+")
    throttle_time_ms: Int32 = field("1+", ignorable=True)
    node_endpoints: list[ProduceResponse.NodeEndpoint] = field("10+", tag=0)


class FetchRequest(Message, api_key=1, versions="0-17", flexible="12+"):
    """Fetches records, waiting at most `max_wait_ms` for `min_bytes`; full or in a session (KIP-227)."""

    class ReplicaState(Struct):
        replica_id: Int32 = field("15+", default=-1)
        replica_epoch: Int64 = field("15+", default=-1)

    class FetchPartition(Struct):
        partition: Int32 = field("0+")
        current_leader_epoch: Int32 = field("9+", default=-1, ignorable=True)
        fetch_offset: Int64 = field("0+")
        last_fetched_epoch: Int32 = field("12+", default=-1)
        log_start_offset: Int64 = field("5+", default=-1, ignorable=True)
        partition_max_bytes: Int32 = field("0+")
        replica_directory_id: Uuid = field("17+", ignorable=True, tag=0)

    class FetchTopic(Struct):
        topic: String = field("0-12", ignorable=True)
        topic_id: Uuid = field("13+", ignorable=True)
        partitions: list[FetchRequest.FetchPartition] = field("0+")

    class ForgottenTopic(Struct):
        topic: String = field("7-12", ignorable=True)
        topic_id: Uuid = field("13+", ignorable=True)
        partitions: list[Int32] = field("7+")

    cluster_id: String | None = field("12+", nullable="12+", default=None, ignorable=True, tag=0)
    replica_id: Int32 = field("0-14", default=-1)
    replica_state: FetchRequest.ReplicaState = field("15+", tag=1)
    max_wait_ms: Int32 = field("0+")
    min_bytes: Int32 = field("0+")
    max_bytes: Int32 = field("3+", default=0x7FFFFFFF, ignorable=True)
    isolation_level: Int8 = field("4+", ignorable=True)
    session_id: Int32 = field("7+", ignorable=True)
    session_epoch: Int32 = field("7+", default=-1, ignorable=True)
    topics: list[FetchRequest.FetchTopic] = field("0+")
    forgotten_topics_data: list[FetchRequest.ForgottenTopic] = field("7+")
    rack_id: String = field("11+", ignorable=True)


class FetchResponse(Message, api_key=1, versions="0-17", flexible="12+"):
    """Batches of each partition, with high watermark, last stable offset and log start offset."""

    class EpochEndOffset(Struct):
        epoch: Int32 = field("12+", default=-1)
        end_offset: Int64 = field("12+", default=-1)

    class LeaderIdAndEpoch(Struct):
        leader_id: Int32 = field("12+", default=-1)
        leader_epoch: Int32 = field("12+", default=-1)

    class SnapshotId(Struct):
        end_offset: Int64 = field("0+", default=-1)
        epoch: Int32 = field("0+", default=-1)

    class AbortedTransaction(Struct):
        producer_id: Int64 = field("4+")
        first_offset: Int64 = field("4+")

    class PartitionData(Struct):
        partition_index: Int32 = field("0+")
        error_code: Int16 = field("0+")
        high_watermark: Int64 = field("0+")
        last_stable_offset: Int64 = field("4+", default=-1, ignorable=True)
        log_start_offset: Int64 = field("5+", default=-1, ignorable=True)
        diverging_epoch: FetchResponse.EpochEndOffset = field("12+", tag=0)
        current_leader: FetchResponse.LeaderIdAndEpoch = field("12+", tag=1)
        snapshot_id: FetchResponse.SnapshotId = field("12+", tag=2)
        aborted_transactions: list[FetchResponse.AbortedTransaction] | None = field(
            "4+", nullable="4+", ignorable=True
        )
        preferred_read_replica: Int32 = field("11+", default=-1)
        records: Records | None = field("0+", nullable="0+")

    class FetchableTopicResponse(Struct):
        topic: String = field("0-12", ignorable=True)
        topic_id: Uuid = field("13+", ignorable=True)
        partitions: list[FetchResponse.PartitionData] = field("0+")

    class NodeEndpoint(Struct):
        node_id: Int32 = field("16+")
        host: String = field("16+")
        port: Int32 = field("16+")
        rack: String | None = field("16+", nullable="16+", default=None)

    throttle_time_ms: Int32 = field("1+", ignorable=True)
    error_code: Int16 = field("7+", ignorable=True)
    session_id: Int32 = field("7+")
    responses: list[FetchResponse.FetchableTopicResponse] = field("0+")
    node_endpoints: list[FetchResponse.NodeEndpoint] = field("16+", tag=0)
