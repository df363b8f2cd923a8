"""Verifies with coordinators that partitions are in a transaction, before its first batch is appended
(KIP-890).

Called by the produce handler and, for offsets, by the group coordinator. One AddPartitionsToTxn request per
coordinator is in flight; verifications that arrive meanwhile share the next one. A coordinator in this broker
is called directly. Kafka before 3.6 cannot verify, which counts as success, as in Kafka.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeAlias

from ottla.coordinators.transactional_commits import TransactionalWrite
from ottla.coordinators.transactions.coordinator import TransactionCoordinator
from ottla.coordinators.transactions.transaction import TopicPartition
from ottla.metadata.cache import MetadataCache
from ottla.ports.tasks import TaskSet
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from ottla.protocol.records import NO_SEQUENCE
from ottla.protocol.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, indexes_by_topic
from ottla.replication.manager import ReplicaManager
from ottla.wire.connection import UnsupportedApi
from ottla.wire.inter_broker import InterBrokerClient, Purpose

log = logging.getLogger(__name__)

VERIFY_FROM: Final = 4
"""The first version of AddPartitionsToTxn with `verify_only`."""

PartitionErrors: TypeAlias = dict[TopicPartition, ErrorCode]


class VerificationRequest(NamedTuple):
    """Partitions of one transaction whose membership is to be verified."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    supports_abortable: bool
    """Whether the client's version has TRANSACTION_ABORTABLE; without it the error is INVALID_TXN_STATE."""


class _PendingVerification(NamedTuple):
    request: VerificationRequest
    result: asyncio.Future[PartitionErrors]


class AddPartitionsToTxnManager:
    """See the module; Kafka's class of this name."""

    def __init__(
        self,
        broker_id: int,
        cache: MetadataCache,
        inter_broker: InterBrokerClient,
        transactions: TransactionCoordinator,
        replicas: ReplicaManager,
        clock: Callable[[], int],
    ) -> None:
        self._broker_id = broker_id
        self._cache = cache
        self._inter_broker = inter_broker
        self._transactions = transactions
        self._replicas = replicas
        self._clock = clock
        self._queues: dict[int, list[_PendingVerification]] = {}
        """Coordinators with a request in flight, and the verifications of the next request."""
        self._tasks = TaskSet()

    async def verify(self, request: VerificationRequest) -> PartitionErrors:
        """The error of each partition; COORDINATOR_NOT_AVAILABLE without a coordinator, NETWORK_EXCEPTION if
        it cannot be reached."""
        coordinator = self._coordinator(request.transactional_id)
        errors = self._verify_at(coordinator, request)
        if errors is None:
            assert coordinator is not None
            errors = _for_client(await self._verify_remotely(coordinator, request), request)
        return errors

    def verify_locally(self, request: VerificationRequest) -> PartitionErrors | None:
        """As `verify`, without waiting; None if the coordinator is another broker."""
        return self._verify_at(self._coordinator(request.transactional_id), request)

    def _verify_at(self, coordinator: int | None, request: VerificationRequest) -> PartitionErrors | None:
        if coordinator is None:
            return dict.fromkeys(request.partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if coordinator != self._broker_id:
            return None
        errors = self._transactions.verify(
            request.transactional_id, request.producer_id, request.producer_epoch, request.partitions
        )
        return _for_client(errors, request)

    async def verify_offsets(self, write: TransactionalWrite) -> tuple[ErrorCode, object | None]:
        """Verify a transactional offset commit: the error of its partition of `__consumer_offsets`, and the
        verification guard to append with."""
        key = (OFFSETS_TOPIC, write.partition)
        try:
            replica = self._replicas.partition(*key)
            if not replica.log.verifies:
                return ErrorCode.NONE, None
            guard = replica.begin_verification(
                write.producer_id, write.producer_epoch, NO_SEQUENCE, self._clock()
            )
        except KafkaError as problem:
            return problem.code, None
        if guard is None:
            return ErrorCode.NONE, None
        errors = await self.verify(
            VerificationRequest(
                write.transactional_id,
                write.producer_id,
                write.producer_epoch,
                frozenset({key}),
                write.supports_abortable,
            )
        )
        return errors.get(key, ErrorCode.NONE), guard

    def _coordinator(self, transactional_id: str) -> int | None:
        partition = self._cache.partition(
            TRANSACTIONS_TOPIC, self._transactions.partition_for(transactional_id)
        )
        if partition is None or self._cache.broker(partition.leader) is None:
            return None
        return partition.leader

    async def _verify_remotely(self, coordinator: int, request: VerificationRequest) -> PartitionErrors:
        pending = _PendingVerification(request, asyncio.get_running_loop().create_future())
        queue = self._queues.get(coordinator)
        if queue is None:
            self._queues[coordinator] = [pending]
            self._tasks.start(self._serve(coordinator))
        else:
            queue.append(pending)
        return await pending.result

    async def _serve(self, coordinator: int) -> None:
        try:
            while queue := self._queues[coordinator]:
                batch, self._queues[coordinator] = _next_batch(queue)
                try:
                    await self._send(coordinator, batch)
                except Exception:
                    log.exception("Verifying transactions with broker %d failed", coordinator)
                for pending in batch:
                    _complete(
                        pending, dict.fromkeys(pending.request.partitions, ErrorCode.UNKNOWN_SERVER_ERROR)
                    )
        finally:
            for pending in self._queues.pop(coordinator):
                pending.result.cancel()

    async def _send(self, coordinator: int, batch: list[_PendingVerification]) -> None:
        message = AddPartitionsToTxnRequest(transactions=[_transaction(pending.request) for pending in batch])
        try:
            response = await self._inter_broker.request(
                coordinator, message, Purpose.TRANSACTION_VERIFICATION, version_min=VERIFY_FROM
            )
        except UnsupportedApi as problem:
            log.warning("Transactions are not verified: %s", problem)
            for pending in batch:
                _complete(pending, {})
            return
        except (OSError, TimeoutError) as problem:
            log.info("Cannot verify with broker %d: %s", coordinator, problem or type(problem).__name__)
            for pending in batch:
                _complete(pending, dict.fromkeys(pending.request.partitions, ErrorCode.NETWORK_EXCEPTION))
            return
        error = ErrorCode.of(response.error_code)
        if error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            error = ErrorCode.INVALID_TXN_STATE  # This broker is not authorized; the client may be.
        errors = _errors_by_transaction(response)
        for pending in batch:
            if error:
                _complete(pending, dict.fromkeys(pending.request.partitions, error))
            else:
                _complete(pending, errors.get(pending.request.transactional_id, {}))

    async def stop(self) -> None:
        await self._tasks.stop()


def _next_batch(
    queue: Iterable[_PendingVerification],
) -> tuple[list[_PendingVerification], list[_PendingVerification]]:
    """Split the queue: one verification per transactional id, which is what a request can hold, and the
    rest."""
    seen: set[str] = set()
    now: list[_PendingVerification] = []
    later: list[_PendingVerification] = []
    for pending in queue:
        transactional_id = pending.request.transactional_id
        (later if transactional_id in seen else now).append(pending)
        seen.add(transactional_id)
    return now, later


def _complete(pending: _PendingVerification, errors: PartitionErrors) -> None:
    if not pending.result.done():
        pending.result.set_result(errors)


def _for_client(errors: PartitionErrors, request: VerificationRequest) -> PartitionErrors:
    """The errors as clients of the request's version know them."""
    known = {ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH}
    if not request.supports_abortable:
        known[ErrorCode.TRANSACTION_ABORTABLE] = ErrorCode.INVALID_TXN_STATE
    return {key: known.get(error, error) for key, error in errors.items()}


def _transaction(request: VerificationRequest) -> AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        verify_only=True,
        topics=[
            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=indexes)
            for name, indexes in indexes_by_topic(request.partitions).items()
        ],
    )


def _errors_by_transaction(response: AddPartitionsToTxnResponse) -> dict[str, PartitionErrors]:
    return {
        result.transactional_id: {
            (topic.name, partition.partition_index): ErrorCode.of(partition.partition_error_code)
            for topic in result.topic_results
            for partition in topic.results_by_partition
        }
        for result in response.results_by_transaction
    }
