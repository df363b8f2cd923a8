"""Before transactional batches are appended: does their transaction's coordinator know of them (KIP-890)?

Called by the produce handler with requests that name a transactional id. Partitions in which the transaction
is open already need no question; what the coordinator says of the others is told in the words that producers
know. The request waits with its bytes where they are, and nothing behind it on its connection is looked at
meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Final, TypeAlias

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import ProduceRequest
from ottla.protocol.records import MAGIC_V2, RECORD_BATCH_OVERHEAD, TRANSACTIONAL_FLAG
from ottla.replication.manager import ReplicaManager
from ottla.server.coordination.transaction_verification import Question, Verdicts, Verifier
from ottla.server.dispatch.dispatcher import Request

ABORTABLE_FROM: Final = 11
"""The first version whose clients know TRANSACTION_ABORTABLE."""
_BATCH: Final = Struct(">16xb4xh20xqhi")
"""Of a batch of format 2: its magic, attributes, producer id, epoch and first sequence number."""
_TRY_AGAIN: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Not every producer would try again on these; on NOT_ENOUGH_REPLICAS all do, and look for no new leader."""

Verdict: TypeAlias = KafkaError | object
"""Why the batch is refused, or what it is to be appended with."""
Admitted: TypeAlias = dict[tuple[str, int], Verdict]


class TransactionGate:
    def __init__(self, replicas: ReplicaManager, verifier: Verifier, clock: Callable[[], int]) -> None:
        self._replicas = replicas
        self._verifier = verifier
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()

    def admit(self, request: Request, message: ProduceRequest, go_on: Callable[[Admitted], None]) -> None:
        """Have `go_on` called, now or later, with a verdict for every batch that needs one. Raises
        KafkaError: INVALID_PRODUCER_ID_MAPPING for the batches of several producers."""
        batches = _transactional_batches(message)
        if len({producer for _, producer, _ in batches}) > 1:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                "Transactional records contained more than one producer ID",
            )
        admitted: Admitted = {}
        asked = set()
        for key, (producer_id, epoch), sequence in batches if self._replicas.verifies else ():
            try:
                replica = self._replicas.partition(*key)
                guard = replica.begin_verification(producer_id, epoch, sequence, self._clock())
            except KafkaError as problem:
                admitted[key] = problem
                continue
            if guard is not None:
                admitted[key] = guard
                asked.add(key)
        if not asked:
            go_on(admitted)
            return
        _, (producer_id, epoch), _ = batches[0]
        assert message.transactional_id is not None
        question = Question(
            message.transactional_id, producer_id, epoch, frozenset(asked), request.version >= ABORTABLE_FROM
        )
        verdicts = self._verifier.ask_here(question)
        if verdicts is not None:
            _refuse(admitted, verdicts)
            go_on(admitted)
            return
        task = asyncio.get_running_loop().create_task(self._ask(question, admitted))
        self._tasks.add(task)
        task.add_done_callback(partial(self._asked, request, admitted, go_on))

    async def _ask(self, question: Question, admitted: Admitted) -> None:
        _refuse(admitted, await self._verifier.ask(question))

    def _asked(
        self,
        request: Request,
        admitted: Admitted,
        go_on: Callable[[Admitted], None],
        task: asyncio.Task[None],
    ) -> None:
        self._tasks.discard(task)
        if task.cancelled() or request.abandoned:
            return  # Its bytes may be gone with the connection.
        problem = task.exception()
        try:
            if problem is not None:
                raise problem
            go_on(admitted)
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


def _refuse(admitted: Admitted, verdicts: Verdicts) -> None:
    for key, error in verdicts.items():
        if error in _TRY_AGAIN:
            admitted[key] = KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                "Unable to verify the partition has been added to the transaction. "
                f"Underlying error: {error.name}",
            )
        elif error is ErrorCode.INVALID_TXN_STATE:
            admitted[key] = KafkaError(error, "Partition was not added to the transaction")
        elif error:
            admitted[key] = KafkaError(error, "")
