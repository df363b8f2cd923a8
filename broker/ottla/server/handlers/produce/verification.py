"""Verifies transactional batches with their transaction's coordinator before they are appended (KIP-890).

Called by the produce handler for requests with a transactional id. Partitions with an open transaction of the
producer need no verification. The coordinator's errors for the others are translated to errors that producers
handle. The request's bytes stay in place, and later requests of its connection wait meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Final, TypeAlias

from ottla.ports.tasks import TaskSet
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import ProduceRequest
from ottla.protocol.records import MAGIC_V2, RECORD_BATCH_OVERHEAD, TRANSACTIONAL_FLAG
from ottla.replication.manager import ReplicaManager
from ottla.server.coordination.transaction_verification import (
    AddPartitionsToTxnManager,
    PartitionErrors,
    VerificationRequest,
)
from ottla.server.dispatch.dispatcher import Request

ABORTABLE_FROM: Final = 11
"""The first version of Produce with TRANSACTION_ABORTABLE."""
_BATCH: Final = Struct(">16xb4xh20xqhi")
"""Fields of a batch of format 2: magic, attributes, producer id, epoch and first sequence number."""
_RETRIABLE: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Not every producer retries these. They become NOT_ENOUGH_REPLICAS, which every producer retries, without a
metadata refresh."""

VerificationResult: TypeAlias = KafkaError | object
"""The error of a batch, or the verification guard to append it with."""
Verifications: TypeAlias = dict[tuple[str, int], VerificationResult]


class TransactionVerification:
    """Runs the verifications of one Produce request, then its appends."""

    def __init__(
        self,
        replicas: ReplicaManager,
        add_partitions_manager: AddPartitionsToTxnManager,
        clock: Callable[[], int],
    ) -> None:
        self._replicas = replicas
        self._add_partitions_manager = add_partitions_manager
        self._clock = clock
        self._tasks = TaskSet()

    def verify(
        self, request: Request, message: ProduceRequest, append: Callable[[Verifications], None]
    ) -> None:
        """Call `append`, now or later, with a result for every batch that needs verification. Raises
        KafkaError(INVALID_PRODUCER_ID_MAPPING) for batches of several producers."""
        batches = _transactional_batches(message)
        if len({producer for _, producer, _ in batches}) > 1:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                "Transactional records contained more than one producer ID",
            )
        verifications: Verifications = {}
        unverified = set()
        for key, (producer_id, epoch), sequence in batches if self._replicas.verifies else ():
            try:
                replica = self._replicas.partition(*key)
                guard = replica.begin_verification(producer_id, epoch, sequence, self._clock())
            except KafkaError as problem:
                verifications[key] = problem
                continue
            if guard is not None:
                verifications[key] = guard
                unverified.add(key)
        if not unverified:
            append(verifications)
            return
        _, (producer_id, epoch), _ = batches[0]
        assert message.transactional_id is not None
        verification = VerificationRequest(
            message.transactional_id,
            producer_id,
            epoch,
            frozenset(unverified),
            request.version >= ABORTABLE_FROM,
        )
        errors = self._add_partitions_manager.verify_locally(verification)
        if errors is not None:
            _add_errors(verifications, errors)
            append(verifications)
            return
        task = self._tasks.start(self._verify_remotely(verification, verifications))
        task.add_done_callback(partial(self._verified, request, verifications, append))

    async def stop(self) -> None:
        await self._tasks.stop()

    async def _verify_remotely(self, verification: VerificationRequest, verifications: Verifications) -> None:
        _add_errors(verifications, await self._add_partitions_manager.verify(verification))

    def _verified(
        self,
        request: Request,
        verifications: Verifications,
        append: Callable[[Verifications], None],
        task: asyncio.Task[None],
    ) -> None:
        if task.cancelled() or request.abandoned:
            return  # The connection may be closed and its bytes freed.
        problem = task.exception()
        try:
            if problem is not None:
                raise problem
            append(verifications)
        except Exception as e:
            request.fail(e)


def _transactional_batches(
    message: ProduceRequest,
) -> list[tuple[tuple[str, int], tuple[int, int], int]]:
    """(partition, (producer id, epoch), first sequence number) of each transactional batch."""
    batches = []
    for topic in message.topic_data:
        for data in topic.partition_data:
            records = data.records
            if records is None or len(records) < RECORD_BATCH_OVERHEAD:
                continue
            magic, attributes, producer_id, epoch, sequence = _BATCH.unpack_from(records)
            if magic == MAGIC_V2 and attributes & TRANSACTIONAL_FLAG and producer_id >= 0:
                batches.append(((topic.name, data.index), (producer_id, epoch), sequence))
    return batches


def _add_errors(verifications: Verifications, errors: PartitionErrors) -> None:
    for key, error in errors.items():
        if error in _RETRIABLE:
            verifications[key] = KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                "Unable to verify the partition has been added to the transaction. "
                f"Underlying error: {error.name}",
            )
        elif error is ErrorCode.INVALID_TXN_STATE:
            verifications[key] = KafkaError(error, "Partition was not added to the transaction")
        elif error:
            verifications[key] = KafkaError(error, "")
