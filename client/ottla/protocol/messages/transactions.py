"""Producer ids and transactions (KIP-98): requests of producers and coordinators; their states (KIP-664)."""

from __future__ import annotations

from ottla.protocol.types import Bool, Int16, Int32, Int64, Message, String, Struct, field


class InitProducerIdRequest(Message, api_key=22, versions="0-5", flexible="2+"):
    """Gets a producer id; with a transactional id the id that belongs to it, with a higher epoch."""

    transactional_id: String | None = field("0+", nullable="0+")
    transaction_timeout_ms: Int32 = field("0+")
    producer_id: Int64 = field("3+", default=-1)
    producer_epoch: Int16 = field("3+", default=-1)


class InitProducerIdResponse(Message, api_key=22, versions="0-5", flexible="2+"):
    """The producer id and epoch for the headers of batches."""

    throttle_time_ms: Int32 = field("0+", ignorable=True)
    error_code: Int16 = field("0+")
    producer_id: Int64 = field("0+", default=-1)
    producer_epoch: Int16 = field("0+")


class AllocateProducerIdsRequest(Message, api_key=67, versions="0", flexible="0+"):
    """A broker gets a block of producer ids from the controller (KIP-730)."""

    broker_id: Int32 = field("0+")
    broker_epoch: Int64 = field("0+", default=-1)


class AllocateProducerIdsResponse(Message, api_key=67, versions="0", flexible="0+"):
    """The first producer id of the block, and their number."""

    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    producer_id_start: Int64 = field("0+")
    producer_id_len: Int32 = field("0+")


class AddPartitionsToTxnRequest(Message, api_key=24, versions="0-5", flexible="3+"):
    """Adds partitions to a transaction, before the producer writes to them.

    From version 4 it has several transactions; brokers use it to verify partitions before an append
    (KIP-890).
    """

    class AddPartitionsToTxnTopic(Struct):
        name: String = field("0+")
        partitions: list[Int32] = field("0+")

    class AddPartitionsToTxnTransaction(Struct):
        transactional_id: String = field("4+")
        producer_id: Int64 = field("4+")
        producer_epoch: Int16 = field("4+")
        verify_only: Bool = field("4+")
        topics: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic] = field("4+")

    transactions: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction] = field("4+")
    v3_and_below_transactional_id: String = field("0-3")
    v3_and_below_producer_id: Int64 = field("0-3")
    v3_and_below_producer_epoch: Int16 = field("0-3")
    v3_and_below_topics: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic] = field("0-3")


class AddPartitionsToTxnResponse(Message, api_key=24, versions="0-5", flexible="3+"):
    """The result of each partition; from version 4 by transaction."""

    class AddPartitionsToTxnPartitionResult(Struct):
        partition_index: Int32 = field("0+")
        partition_error_code: Int16 = field("0+")

    class AddPartitionsToTxnTopicResult(Struct):
        name: String = field("0+")
        results_by_partition: list[AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult] = field("0+")

    class AddPartitionsToTxnResult(Struct):
        transactional_id: String = field("4+")
        topic_results: list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult] = field("4+")

    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("4+", ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResponse.AddPartitionsToTxnResult] = field("4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult] = field(
        "0-3"
    )


class AddOffsetsToTxnRequest(Message, api_key=25, versions="0-4", flexible="3+"):
    """Adds a group, whose offsets the transaction will commit."""

    transactional_id: String = field("0+")
    producer_id: Int64 = field("0+")
    producer_epoch: Int16 = field("0+")
    group_id: String = field("0+")


class AddOffsetsToTxnResponse(Message, api_key=25, versions="0-4", flexible="3+"):
    """Whether the group's partition of __consumer_offsets was added."""

    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")


class EndTxnRequest(Message, api_key=26, versions="0-4", flexible="3+"):
    """Commits or aborts a transaction."""

    transactional_id: String = field("0+")
    producer_id: Int64 = field("0+")
    producer_epoch: Int16 = field("0+")
    committed: Bool = field("0+")


class EndTxnResponse(Message, api_key=26, versions="0-4", flexible="3+"):
    """Whether the result is stored; markers may not be written yet."""

    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")


class WriteTxnMarkersRequest(Message, api_key=27, versions="0-1", flexible="1+"):
    """Writes the markers of ended transactions; sent by coordinators, and by admin clients to abort."""

    class WritableTxnMarkerTopic(Struct):
        name: String = field("0+")
        partition_indexes: list[Int32] = field("0+")

    class WritableTxnMarker(Struct):
        producer_id: Int64 = field("0+")
        producer_epoch: Int16 = field("0+")
        transaction_result: Bool = field("0+")
        topics: list[WriteTxnMarkersRequest.WritableTxnMarkerTopic] = field("0+")
        coordinator_epoch: Int32 = field("0+")

    markers: list[WriteTxnMarkersRequest.WritableTxnMarker] = field("0+")


class WriteTxnMarkersResponse(Message, api_key=27, versions="0-1", flexible="1+"):
    """The result of each marker by partition."""

    class WritableTxnMarkerPartitionResult(Struct):
        partition_index: Int32 = field("0+")
        error_code: Int16 = field("0+")

    class WritableTxnMarkerTopicResult(Struct):
        name: String = field("0+")
        partitions: list[WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult] = field("0+")

    class WritableTxnMarkerResult(Struct):
        producer_id: Int64 = field("0+")
        topics: list[WriteTxnMarkersResponse.WritableTxnMarkerTopicResult] = field("0+")

    markers: list[WriteTxnMarkersResponse.WritableTxnMarkerResult] = field("0+")


class TxnOffsetCommitRequest(Message, api_key=28, versions="0-4", flexible="3+"):
    """Commits offsets of a group in a transaction."""

    class TxnOffsetCommitRequestPartition(Struct):
        partition_index: Int32 = field("0+")
        committed_offset: Int64 = field("0+")
        committed_leader_epoch: Int32 = field("2+", default=-1, ignorable=True)
        committed_metadata: String | None = field("0+", nullable="0+")

    class TxnOffsetCommitRequestTopic(Struct):
        name: String = field("0+")
        partitions: list[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition] = field("0+")

    transactional_id: String = field("0+")
    group_id: String = field("0+")
    producer_id: Int64 = field("0+")
    producer_epoch: Int16 = field("0+")
    generation_id: Int32 = field("3+", default=-1)
    member_id: String = field("3+")
    group_instance_id: String | None = field("3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic] = field("0+")


class TxnOffsetCommitResponse(Message, api_key=28, versions="0-4", flexible="3+"):
    """The result of each partition."""

    class TxnOffsetCommitResponsePartition(Struct):
        partition_index: Int32 = field("0+")
        error_code: Int16 = field("0+")

    class TxnOffsetCommitResponseTopic(Struct):
        name: String = field("0+")
        partitions: list[TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition] = field("0+")

    throttle_time_ms: Int32 = field("0+")
    topics: list[TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic] = field("0+")


class DescribeProducersRequest(Message, api_key=61, versions="0", flexible="0+"):
    """Describes the producer states of partitions."""

    class TopicRequest(Struct):
        name: String = field("0+")
        partition_indexes: list[Int32] = field("0+")

    topics: list[DescribeProducersRequest.TopicRequest] = field("0+")


class DescribeProducersResponse(Message, api_key=61, versions="0", flexible="0+"):
    """Epochs, sequence numbers and the first offset of the open transaction (-1: none), by partition."""

    class ProducerState(Struct):
        producer_id: Int64 = field("0+")
        producer_epoch: Int32 = field("0+")
        last_sequence: Int32 = field("0+", default=-1)
        last_timestamp: Int64 = field("0+", default=-1)
        coordinator_epoch: Int32 = field("0+")
        current_txn_start_offset: Int64 = field("0+", default=-1)

    class PartitionResponse(Struct):
        partition_index: Int32 = field("0+")
        error_code: Int16 = field("0+")
        error_message: String | None = field("0+", nullable="0+", default=None)
        active_producers: list[DescribeProducersResponse.ProducerState] = field("0+")

    class TopicResponse(Struct):
        name: String = field("0+")
        partitions: list[DescribeProducersResponse.PartitionResponse] = field("0+")

    throttle_time_ms: Int32 = field("0+")
    topics: list[DescribeProducersResponse.TopicResponse] = field("0+")


class DescribeTransactionsRequest(Message, api_key=65, versions="0", flexible="0+"):
    """Describes transactional ids; sent to their coordinator."""

    transactional_ids: list[String] = field("0+")


class DescribeTransactionsResponse(Message, api_key=65, versions="0", flexible="0+"):
    """State, time-out, start time, producer and partitions of each transactional id."""

    class TopicData(Struct):
        topic: String = field("0+")
        partitions: list[Int32] = field("0+")

    class TransactionState(Struct):
        error_code: Int16 = field("0+")
        transactional_id: String = field("0+")
        transaction_state: String = field("0+")
        transaction_timeout_ms: Int32 = field("0+")
        transaction_start_time_ms: Int64 = field("0+")
        producer_id: Int64 = field("0+")
        producer_epoch: Int16 = field("0+")
        topics: list[DescribeTransactionsResponse.TopicData] = field("0+")

    throttle_time_ms: Int32 = field("0+")
    transaction_states: list[DescribeTransactionsResponse.TransactionState] = field("0+")


class ListTransactionsRequest(Message, api_key=66, versions="0-1", flexible="0+"):
    """Lists the transactional ids of a coordinator, filtered by state, producer id and duration (KIP-994)."""

    state_filters: list[String] = field("0+")
    producer_id_filters: list[Int64] = field("0+")
    duration_filter: Int64 = field("1+", default=-1)


class ListTransactionsResponse(Message, api_key=66, versions="0-1", flexible="0+"):
    """The transactional ids, and the unknown states of the filter."""

    class TransactionState(Struct):
        transactional_id: String = field("0+")
        producer_id: Int64 = field("0+")
        transaction_state: String = field("0+")

    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    unknown_state_filters: list[String] = field("0+")
    transaction_states: list[ListTransactionsResponse.TransactionState] = field("0+")
