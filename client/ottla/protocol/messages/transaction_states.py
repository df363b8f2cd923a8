"""States of producers and transactions (KIP-664)."""

from __future__ import annotations

from ottla.protocol.types import Int16, Int32, Int64, Message, String, Struct, field


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
