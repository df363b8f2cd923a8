"""Asking coordinators whether partitions are in a transaction, before its first batch is appended (KIP-890).

Called by the produce handler and, for offsets, by the group coordinator. Questions to one coordinator that
come while another is under way are asked together, one request at a time. A coordinator in this broker is
asked without one; a coordinator of before 3.6 cannot be asked, and is taken to agree, as in Kafka.
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
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.grouping import indexes_by_topic
from ottla.protocol.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from ottla.protocol.records import NO_SEQUENCE
from ottla.protocol.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from ottla.replication.manager import ReplicaManager
from ottla.wire.connection import UnsupportedApi
from ottla.wire.inter_broker import InterBrokerClient, Purpose

log = logging.getLogger(__name__)

VERIFY_FROM: Final = 4

Verdicts: TypeAlias = dict[TopicPartition, ErrorCode]


class Question(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    knows_abortable: bool
    """Whether whoever is answered understands TRANSACTION_ABORTABLE; else it is INVALID_TXN_STATE."""


class _Asked(NamedTuple):
    question: Question
    answer: asyncio.Future[Verdicts]


class Verifier:
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
        self._queues: dict[int, list[_Asked]] = {}
        """Coordinators that are being asked, with what is to be asked next."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, question: Question) -> Verdicts:
        """Per partition; COORDINATOR_NOT_AVAILABLE or NETWORK_EXCEPTION where there is none to be reached."""
        coordinator = self._coordinator(question.transactional_id)
        verdicts = self._here(coordinator, question)
        if verdicts is None:
            assert coordinator is not None
            verdicts = _told(await self._ask_remote(coordinator, question), question)
        return verdicts

    def ask_here(self, question: Question) -> Verdicts | None:
        """The same, without waiting; None if another broker is to be asked."""
        return self._here(self._coordinator(question.transactional_id), question)

    def _here(self, coordinator: int | None, question: Question) -> Verdicts | None:
        if coordinator is None:
            return dict.fromkeys(question.partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if coordinator != self._broker_id:
            return None
        verdicts = self._transactions.verify(
            question.transactional_id, question.producer_id, question.producer_epoch, question.partitions
        )
        return _told(verdicts, question)

    async def verify_offsets(self, write: TransactionalWrite) -> tuple[ErrorCode, object | None]:
        """The group coordinator's question, about a partition of `__consumer_offsets`."""
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
        verdicts = await self.ask(
            Question(
                write.transactional_id,
                write.producer_id,
                write.producer_epoch,
                frozenset({key}),
                write.supports_abortable,
            )
        )
        return verdicts.get(key, ErrorCode.NONE), guard

    def _coordinator(self, transactional_id: str) -> int | None:
        partition = self._cache.partition(
            TRANSACTIONS_TOPIC, self._transactions.partition_for(transactional_id)
        )
        if partition is None or self._cache.broker(partition.leader) is None:
            return None
        return partition.leader

    async def _ask_remote(self, coordinator: int, question: Question) -> Verdicts:
        loop = asyncio.get_running_loop()
        asked = _Asked(question, loop.create_future())
        queue = self._queues.get(coordinator)
        if queue is None:
            self._queues[coordinator] = [asked]
            task = loop.create_task(self._serve(coordinator))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            queue.append(asked)
        return await asked.answer

    async def _serve(self, coordinator: int) -> None:
        try:
            while queue := self._queues[coordinator]:
                together, self._queues[coordinator] = _one_each(queue)
                try:
                    await self._ask_together(coordinator, together)
                except Exception:
                    log.exception("asking broker %d about transactions failed", coordinator)
                for asked in together:
                    _answer(asked, dict.fromkeys(asked.question.partitions, ErrorCode.UNKNOWN_SERVER_ERROR))
        finally:
            for asked in self._queues.pop(coordinator):
                asked.answer.cancel()

    async def _ask_together(self, coordinator: int, together: list[_Asked]) -> None:
        request = AddPartitionsToTxnRequest(transactions=[_transaction(asked.question) for asked in together])
        try:
            response = await self._inter_broker.request(
                coordinator, request, Purpose.TRANSACTION_VERIFICATION, version_min=VERIFY_FROM
            )
        except UnsupportedApi as problem:
            log.warning("transactions are not verified: %s", problem)
            for asked in together:
                _answer(asked, {})
            return
        except (OSError, TimeoutError) as problem:
            log.info("broker %d verifies nothing: %s", coordinator, problem or type(problem).__name__)
            for asked in together:
                _answer(asked, dict.fromkeys(asked.question.partitions, ErrorCode.NETWORK_EXCEPTION))
            return
        error = ErrorCode.of(response.error_code)
        if error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            error = ErrorCode.INVALID_TXN_STATE  # It is this broker that may not ask, not the client.
        verdicts = _verdicts(response)
        for asked in together:
            if error:
                _answer(asked, dict.fromkeys(asked.question.partitions, error))
            else:
                _answer(asked, verdicts.get(asked.question.transactional_id, {}))

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _one_each(queue: Iterable[_Asked]) -> tuple[list[_Asked], list[_Asked]]:
    """Those that one request can hold, one of each transactional id, and the others."""
    seen: set[str] = set()
    now: list[_Asked] = []
    later: list[_Asked] = []
    for asked in queue:
        transactional_id = asked.question.transactional_id
        (later if transactional_id in seen else now).append(asked)
        seen.add(transactional_id)
    return now, later


def _answer(asked: _Asked, verdicts: Verdicts) -> None:
    if not asked.answer.done():
        asked.answer.set_result(verdicts)


def _told(verdicts: Verdicts, question: Question) -> Verdicts:
    """As whoever is answered knows it."""
    known = {ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH}
    if not question.knows_abortable:
        known[ErrorCode.TRANSACTION_ABORTABLE] = ErrorCode.INVALID_TXN_STATE
    return {key: known.get(error, error) for key, error in verdicts.items()}


def _transaction(question: Question) -> AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id=question.transactional_id,
        producer_id=question.producer_id,
        producer_epoch=question.producer_epoch,
        verify_only=True,
        topics=[
            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=indexes)
            for name, indexes in indexes_by_topic(question.partitions).items()
        ],
    )


def _verdicts(response: AddPartitionsToTxnResponse) -> dict[str, Verdicts]:
    return {
        result.transactional_id: {
            (topic.name, partition.partition_index): ErrorCode.of(partition.partition_error_code)
            for topic in result.topic_results
            for partition in topic.results_by_partition
        }
        for result in response.results_by_transaction
    }
