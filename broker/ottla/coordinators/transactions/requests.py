"""DescribeTransactions, ListTransactions, and the verification of partitions (KIP-890). Pure; called by
`coordinator`.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.coordinators.transactions.transaction import BY_NAME, State, TopicPartition, Transaction
from ottla.coordinators.transactions.transitions import check_producer
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import indexes_by_topic


def verify(
    transaction: Transaction, producer_id: int, producer_epoch: int, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """NONE for the partitions in the producer's transaction, TRANSACTION_ABORTABLE for others. A pending
    change does not count: the verifying log checks again when it appends."""
    entry = transaction.entry
    error = check_producer(transaction, producer_id, producer_epoch)
    if error is None and entry.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
        error = ErrorCode.CONCURRENT_TRANSACTIONS
    if error is not None:
        return dict.fromkeys(partitions, error)
    return {
        partition: ErrorCode.NONE if partition in entry.partitions else ErrorCode.TRANSACTION_ABORTABLE
        for partition in partitions
    }


def describe(transaction: Transaction) -> m.DescribeTransactionsResponse.TransactionState:
    entry = transaction.entry
    return m.DescribeTransactionsResponse.TransactionState(
        transactional_id=transaction.transactional_id,
        transaction_state=entry.state.api_name,
        transaction_timeout_ms=entry.timeout_ms,
        transaction_start_time_ms=entry.started_ms,
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        topics=[
            m.DescribeTransactionsResponse.TopicData(topic=topic, partitions=indexes)
            for topic, indexes in indexes_by_topic(entry.partitions).items()
        ],
    )


def list_transactions(
    transactions: Iterable[Transaction], request: m.ListTransactionsRequest, now_ms: int
) -> m.ListTransactionsResponse:
    """The transactions that pass all filters; an empty filter passes all. The duration starts with the
    transaction's first partition, also for a completed one, as in Kafka (KIP-994)."""
    states = {BY_NAME[name] for name in request.state_filters if name in BY_NAME}
    producer_ids = set(request.producer_id_filters)
    found = [
        m.ListTransactionsResponse.TransactionState(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.entry.producer_id,
            transaction_state=transaction.entry.state.api_name,
        )
        for transaction in transactions
        if (not request.state_filters or transaction.entry.state in states)
        and (not producer_ids or transaction.entry.producer_id in producer_ids)
        and (request.duration_filter < 0 or now_ms - transaction.entry.started_ms > request.duration_filter)
    ]
    return m.ListTransactionsResponse(
        unknown_state_filters=[name for name in request.state_filters if name not in BY_NAME],
        transaction_states=found,
    )
