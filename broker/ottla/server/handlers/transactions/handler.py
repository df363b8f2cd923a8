"""Transactions: AddPartitionsToTxn 0 to 5, AddOffsetsToTxn 0 to 4, EndTxn 0 to 4, TxnOffsetCommit 0 to 4 of
producers, WriteTxnMarkers 0 to 1 of coordinators, DescribeTransactions and ListTransactions of tools,
InitProducerId 0 to 5 of idempotent and transactional producers, AllocateProducerIds 0 of brokers.

Behaviour: `ottla.coordinators` has the rules; the handlers pass requests to it and build the responses.
AddPartitionsToTxn is one producer's up to version 3; from version 4 brokers send it, with transactions of
many producers, to verify partitions before they append (KIP-890). One unknown partition fails a whole
transaction (OPERATION_NOT_ATTEMPTED for the others). Before KIP-588 PRODUCER_FENCED is
INVALID_PRODUCER_EPOCH. WriteTxnMarkers is responded when every marker is replicated or has failed, or
request.timeout.ms is over.

Without a transactional id any broker responds to InitProducerId with an id from its block; if the block is
used up and the controller allocates none in time, with COORDINATOR_LOAD_IN_PROGRESS, which every client
retries. An idempotent producer that sends its id and epoch (version 3 and later, KIP-360) gets a new id. With
a transactional id its coordinator responds. The controller allocates blocks of 1000 ids to brokers with their
current epoch (KIP-730).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from ottla.controller.controller import Controller
from ottla.coordinators.coordinator import GroupCoordinator
from ottla.coordinators.interfaces import Marker, NoProducerId
from ottla.coordinators.transactions.coordinator import Outcome, TransactionCoordinator
from ottla.metadata.cache import MetadataCache
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import OFFSETS_TOPIC, by_topic
from ottla.server.coordination.transaction_markers import TransactionMarkerWriter
from ottla.server.coordination.transactions import TransactionService
from ottla.server.dispatch.dispatcher import Request, Route

MANY_FROM: Final = 4
"""The first version of AddPartitionsToTxn with several transactions."""
FENCED_FROM: Final = 2
"""The first version with PRODUCER_FENCED, of all three APIs."""

_Errors = Mapping[tuple[str, int], ErrorCode]
_Transaction = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
_Result = m.AddPartitionsToTxnResponse.AddPartitionsToTxnResult
_TopicResult = m.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult


class TransactionsHandler:
    """Requests of producers and, for markers, of coordinators."""

    def __init__(
        self,
        transactions: TransactionCoordinator,
        groups: GroupCoordinator,
        writer: TransactionMarkerWriter,
        cache: MetadataCache,
    ) -> None:
        self._transactions = transactions
        self._groups = groups
        self._writer = writer
        self._cache = cache

    def routes(self) -> list[Route]:
        return [
            Route(m.AddPartitionsToTxnRequest, self.add_partitions, _add_partitions_error),
            Route(m.AddOffsetsToTxnRequest, self.add_offsets, _add_offsets_error),
            Route(m.EndTxnRequest, self.end, _end_error),
            Route(m.WriteTxnMarkersRequest, self.write_markers, _write_markers_error),
            Route(m.TxnOffsetCommitRequest, self.commit_offsets, _commit_offsets_error),
        ]

    # -- AddPartitionsToTxn, AddOffsetsToTxn, EndTxn ---------------------------------------------------

    async def add_partitions(self, request: Request) -> m.AddPartitionsToTxnResponse:
        message, version = request.decode(m.AddPartitionsToTxnRequest), request.version
        if version < MANY_FROM:
            result = await self._add(_as_transaction(message), version)
            return m.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=result.topic_results)
        results = await asyncio.gather(*(self._add(each, version) for each in message.transactions))
        return m.AddPartitionsToTxnResponse(results_by_transaction=list(results))

    async def _add(self, transaction: _Transaction, version: int) -> _Result:
        partitions = [(topic.name, index) for topic in transaction.topics for index in topic.partitions]
        unknown = {key for key in partitions if self._cache.partition(*key) is None}
        errors: _Errors
        if unknown:
            errors = {
                key: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if key in unknown
                else ErrorCode.OPERATION_NOT_ATTEMPTED
                for key in partitions
            }
        elif transaction.verify_only:
            errors = self._transactions.verify(
                transaction.transactional_id, transaction.producer_id, transaction.producer_epoch, partitions
            )
        else:
            error = await self._transactions.add_partitions(
                transaction.transactional_id, transaction.producer_id, transaction.producer_epoch, partitions
            )
            errors = dict.fromkeys(partitions, _error_for_version(error, version))
        return _Result(transactional_id=transaction.transactional_id, topic_results=_topic_results(errors))

    async def add_offsets(self, request: Request) -> m.AddOffsetsToTxnResponse:
        message = request.decode(m.AddOffsetsToTxnRequest)
        error = await self._transactions.add_partitions(
            message.transactional_id,
            message.producer_id,
            message.producer_epoch,
            [(OFFSETS_TOPIC, self._groups.partition_for(message.group_id))],
        )
        return m.AddOffsetsToTxnResponse(error_code=_error_for_version(error, request.version))

    async def end(self, request: Request) -> m.EndTxnResponse:
        message = request.decode(m.EndTxnRequest)
        error = await self._transactions.end(
            message.transactional_id, message.producer_id, message.producer_epoch, commit=message.committed
        )
        return m.EndTxnResponse(error_code=_error_for_version(error, request.version))

    # -- TxnOffsetCommit -----------------------------------------------------------------------------

    async def commit_offsets(self, request: Request) -> m.TxnOffsetCommitResponse:
        message = request.decode(m.TxnOffsetCommitRequest)
        return await self._groups.txn_offset_commit(message, request.version)

    # -- WriteTxnMarkers -----------------------------------------------------------------------------

    async def write_markers(self, request: Request) -> m.WriteTxnMarkersResponse:
        message = request.decode(m.WriteTxnMarkersRequest)
        written = await asyncio.gather(
            *(
                self._writer.write(
                    Marker(
                        marker.producer_id,
                        marker.producer_epoch,
                        marker.coordinator_epoch,
                        marker.transaction_result,
                        frozenset(
                            (topic.name, index)
                            for topic in marker.topics
                            for index in topic.partition_indexes
                        ),
                    )
                )
                for marker in message.markers
            )
        )
        by_producer: dict[int, dict[tuple[str, int], ErrorCode]] = {}
        for marker, errors in zip(message.markers, written, strict=True):
            if errors:
                by_producer.setdefault(marker.producer_id, {}).update(errors)
        return _marker_results(by_producer)


def _error_for_version(error: ErrorCode, version: int) -> ErrorCode:
    if error is ErrorCode.PRODUCER_FENCED and version < FENCED_FROM:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def _as_transaction(message: m.AddPartitionsToTxnRequest) -> _Transaction:
    return _Transaction(
        transactional_id=message.v3_and_below_transactional_id,
        producer_id=message.v3_and_below_producer_id,
        producer_epoch=message.v3_and_below_producer_epoch,
        topics=message.v3_and_below_topics,
    )


def _topic_results(errors: _Errors) -> list[_TopicResult]:
    return [
        _TopicResult(
            name=name,
            results_by_partition=[
                m.AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=error
                )
                for index, error in partitions
            ],
        )
        for name, partitions in by_topic(errors.items()).items()
    ]


def _marker_results(by_producer: Mapping[int, _Errors]) -> m.WriteTxnMarkersResponse:
    return m.WriteTxnMarkersResponse(
        markers=[
            m.WriteTxnMarkersResponse.WritableTxnMarkerResult(
                producer_id=producer_id,
                topics=[
                    m.WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(
                        name=name,
                        partitions=[
                            m.WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult(
                                partition_index=index, error_code=error
                            )
                            for index, error in partitions
                        ],
                    )
                    for name, partitions in by_topic(errors.items()).items()
                ],
            )
            for producer_id, errors in by_producer.items()
        ]
    )


# -- errors of whole requests ----------------------------------------------------------------------------


def _add_partitions_error(
    message: m.AddPartitionsToTxnRequest, version: int, code: ErrorCode, detail: str | None
) -> m.AddPartitionsToTxnResponse:
    if version >= MANY_FROM:
        return m.AddPartitionsToTxnResponse(error_code=code)
    transaction = _as_transaction(message)
    errors = {(topic.name, index): code for topic in transaction.topics for index in topic.partitions}
    return m.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_topic_results(errors))


def _add_offsets_error(
    message: m.AddOffsetsToTxnRequest, version: int, code: ErrorCode, detail: str | None
) -> m.AddOffsetsToTxnResponse:
    return m.AddOffsetsToTxnResponse(error_code=code)


def _end_error(
    message: m.EndTxnRequest, version: int, code: ErrorCode, detail: str | None
) -> m.EndTxnResponse:
    return m.EndTxnResponse(error_code=code)


def _write_markers_error(
    message: m.WriteTxnMarkersRequest, version: int, code: ErrorCode, detail: str | None
) -> m.WriteTxnMarkersResponse:
    by_producer: dict[int, dict[tuple[str, int], ErrorCode]] = {}
    for marker in message.markers:
        errors = by_producer.setdefault(marker.producer_id, {})
        errors.update(((t.name, index), code) for t in marker.topics for index in t.partition_indexes)
    return _marker_results(by_producer)


def _commit_offsets_error(
    message: m.TxnOffsetCommitRequest, version: int, code: ErrorCode, detail: str | None
) -> m.TxnOffsetCommitResponse:
    return m.TxnOffsetCommitResponse(
        topics=[
            m.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    m.TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                        partition_index=item.partition_index, error_code=code
                    )
                    for item in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


class TransactionStatesHandler:
    """DescribeTransactions 0 and ListTransactions 0 to 1 (KIP-664, KIP-994), for tools.

    A coordinator describes its own transactional ids, each with its own error, and lists them filtered by
    state, producer id and, from version 1, age; the response names unknown states of the filter.
    """

    def __init__(self, transactions: TransactionCoordinator) -> None:
        self._transactions = transactions

    def routes(self) -> list[Route]:
        return [
            Route(m.DescribeTransactionsRequest, self.describe, _describe_transactions_error),
            Route(m.ListTransactionsRequest, self.list_transactions, _list_transactions_error),
        ]

    def describe(self, request: Request) -> None:
        message = request.decode(m.DescribeTransactionsRequest)
        states = [self._transactions.describe(each) for each in message.transactional_ids]
        request.respond(m.DescribeTransactionsResponse(transaction_states=states))

    def list_transactions(self, request: Request) -> None:
        request.respond(self._transactions.list_transactions(request.decode(m.ListTransactionsRequest)))


def _describe_transactions_error(
    message: m.DescribeTransactionsRequest, version: int, code: ErrorCode, detail: str | None
) -> m.DescribeTransactionsResponse:
    return m.DescribeTransactionsResponse(
        transaction_states=[
            m.DescribeTransactionsResponse.TransactionState(error_code=code, transactional_id=each)
            for each in message.transactional_ids
        ]
    )


def _list_transactions_error(
    message: m.ListTransactionsRequest, version: int, code: ErrorCode, detail: str | None
) -> m.ListTransactionsResponse:
    return m.ListTransactionsResponse(error_code=code)


INIT_FENCED_FROM: Final = 4
"""The first version of InitProducerId with PRODUCER_FENCED."""
_NONE: Final = -1


class ProducerIdsHandler:
    """Producer ids for producers, and blocks of them for brokers."""

    def __init__(self, transactions: TransactionService, controller: Controller) -> None:
        self._transactions = transactions
        self._controller = controller

    def routes(self) -> list[Route]:
        return [
            Route(m.InitProducerIdRequest, self.init, _init_error),
            Route(m.AllocateProducerIdsRequest, self.allocate, _allocate_error),
        ]

    async def init(self, request: Request) -> m.InitProducerIdResponse:
        message = request.decode(m.InitProducerIdRequest)
        error, producer_id, epoch = await self._init(message)
        if error is ErrorCode.PRODUCER_FENCED and request.version < INIT_FENCED_FROM:
            error = ErrorCode.INVALID_PRODUCER_EPOCH
        return m.InitProducerIdResponse(error_code=error, producer_id=producer_id, producer_epoch=epoch)

    async def _init(self, message: m.InitProducerIdRequest) -> Outcome:
        given = (message.producer_id, message.producer_epoch)
        if (given[0] == _NONE) != (given[1] == _NONE):
            return Outcome(ErrorCode.INVALID_REQUEST)
        if message.transactional_id is not None:
            return await self._transactions.coordinator.init_producer_id(
                message.transactional_id,
                message.transaction_timeout_ms,
                None if given == (_NONE, _NONE) else given,
            )
        try:
            return Outcome(ErrorCode.NONE, await self._transactions.new_producer_id(), 0)
        except NoProducerId:
            return Outcome(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    async def allocate(self, request: Request) -> m.AllocateProducerIdsResponse:
        return await self._controller.allocate_producer_ids(request.decode(m.AllocateProducerIdsRequest))


def _init_error(
    message: m.InitProducerIdRequest, version: int, code: ErrorCode, detail: str | None
) -> m.InitProducerIdResponse:
    return m.InitProducerIdResponse(error_code=code, producer_epoch=_NONE)


def _allocate_error(
    message: m.AllocateProducerIdsRequest, version: int, code: ErrorCode, detail: str | None
) -> m.AllocateProducerIdsResponse:
    return m.AllocateProducerIdsResponse(error_code=code)
