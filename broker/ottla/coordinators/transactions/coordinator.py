"""The transaction coordinator as the server sees it: a coroutine per question, and a partition's coming and
going.

A thin shell. The rules are in `transitions`; here their effects are carried out: answers are futures, records
go to the journal, markers to whoever sends them. Everything runs on the event loop; state changes only
between awaits, so no locks. What goes on, goes on by callbacks: it does not hang on a client that waits.

Invariant: what was begun for one ownership of a partition changes nothing in a later one (`_Owned` is
compared by identity); the next owner reads the log, and finishes what is decided there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from ottla.coordinators.journal import TRANSACTION_ERRORS, Journal
from ottla.coordinators.journal import Entry as Record
from ottla.coordinators.ownership import OwnedPartitions, read_partition
from ottla.coordinators.ports import Cancellable, LoopScheduler, Scheduler
from ottla.coordinators.records import partition_for
from ottla.coordinators.transactions import inspection, records, transitions
from ottla.coordinators.transactions.config import TransactionConfig
from ottla.coordinators.transactions.ports import (
    Marker,
    MarkerSender,
    NewProducerId,
    NoProducerId,
    TransactionLog,
)
from ottla.coordinators.transactions.replay import Replay
from ottla.coordinators.transactions.transaction import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    Entry,
    State,
    TopicPartition,
    Transaction,
    created,
)
from ottla.coordinators.transactions.transitions import Add, End, Event, Init
from ottla.protocol.compression import Codec
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

logger = logging.getLogger(__name__)

WRITE_RETRY_MS: Final = 100
TOMBSTONES_PER_BATCH: Final = 200
"""Some 16 KiB, as Kafka's batches of them."""


@dataclass(eq=False, slots=True)
class _Owned:
    """A partition of the log that this broker owns, and has read."""

    partition: int
    epoch: int
    transactions: dict[str, Transaction]


class Outcome(NamedTuple):
    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


_Waiter = asyncio.Future[Outcome | None]
"""None: a fresh producer id is needed."""


class TransactionCoordinator:
    """Coordinates the transactional ids whose partition of `__transaction_state` this broker leads."""

    def __init__(
        self,
        *,
        config: TransactionConfig,
        log: TransactionLog,
        partition_count: Callable[[], int],
        markers: MarkerSender,
        new_producer_id: NewProducerId,
        clock: Callable[[], int],
        scheduler: Scheduler | None = None,
    ) -> None:
        """`clock` gives wall time in ms; `partition_count` must not change once transactions are loaded."""
        self._config = config
        self._log = log
        self._partition_count = partition_count
        self._markers = markers
        self._new_producer_id = new_producer_id
        self._clock = clock
        self._scheduler = scheduler or LoopScheduler()
        self._journal = Journal(log, Codec.NONE)
        self._partitions = OwnedPartitions(log, self._scheduler, self._read, self._admit)
        self._owned: dict[int, _Owned] = {}
        self._timers: dict[str, Cancellable] = {}

    # -- life ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to serve, to abort what takes too long, and to forget ids that nobody uses."""
        self._partitions.active = True
        config = self._config
        self._every(
            "abort", config.transaction_abort_timed_out_transaction_cleanup_interval_ms, self.abort_timed_out
        )
        self._every(
            "expire",
            config.transaction_remove_expired_transaction_cleanup_interval_ms,
            self.remove_expired,
        )

    def _every(self, name: str, interval_ms: int, action: Callable[[], None]) -> None:
        def run() -> None:
            self._timers[name] = self._scheduler.call_later(interval_ms, run)
            try:
                action()
            except Exception:
                logger.exception("looking for transactions to %s failed", name)

        self._timers[name] = self._scheduler.call_later(interval_ms, run)

    async def stop(self) -> None:
        """Answer no more, and wait for the records under way."""
        self._partitions.active = False
        for timer in self._timers.values():
            timer.cancel()
        for partition in self._partitions:
            self.unload(partition)
        await self._journal.drain()

    def partition_for(self, transactional_id: str) -> int:
        """The partition of `__transaction_state` whose leader coordinates the id."""
        return partition_for(transactional_id, self._partition_count())

    def load(self, partition: int) -> asyncio.Task[None] | None:
        """Call when this broker becomes the partition's leader. The task ends when it is served."""
        return self._partitions.load(partition)

    def unload(self, partition: int) -> None:
        """Call when this broker stops being the partition's leader."""
        self._partitions.unload(partition)
        self._owned.pop(partition, None)

    async def _read(self, partition: int) -> _Owned:
        epoch = self._log.leader_epoch(partition)
        replay = Replay()
        await read_partition(self._log, partition, replay)
        return _Owned(partition, epoch, replay.transactions)

    def _admit(self, partition: int, owned: _Owned) -> None:
        self._owned[partition] = owned
        logger.info(
            "loaded %d transactional ids from %s-%d, epoch %d",
            len(owned.transactions), self._log.topic, partition, owned.epoch,
        )  # fmt: skip
        for transactional_id in list(owned.transactions):
            self._happen(owned, transactional_id, transitions.Loaded())

    # -- questions -----------------------------------------------------------------------------------

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, given: tuple[int, int] | None
    ) -> Outcome:
        """A producer id and epoch for who begins, or begins anew (KIP-360), under the transactional id.

        INVALID_REQUEST, INVALID_TRANSACTION_TIMEOUT, CONCURRENT_TRANSACTIONS, PRODUCER_FENCED, and what every
        coordinator answers that is none, or cannot write.
        """
        if not transactional_id:
            return Outcome(ErrorCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= self._config.transaction_max_timeout_ms:
            return Outcome(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        fresh: int | None = None
        while True:
            owned = self._owner(transactional_id)
            if isinstance(owned, ErrorCode):
                return Outcome(owned)
            outcome = None
            if fresh is not None and transactional_id not in owned.transactions:
                owned.transactions[transactional_id] = created(
                    transactional_id, producer_id=fresh, timeout_ms=timeout_ms, now_ms=self._clock()
                )
                fresh = None
            if transactional_id in owned.transactions:
                outcome = await self._ask(owned, transactional_id, Init(timeout_ms, given, fresh))
            if outcome is not None:
                return outcome
            try:
                fresh = await self._new_producer_id()
            except NoProducerId:
                return Outcome(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
    ) -> ErrorCode:
        """The producer is about to write to the partitions.

        INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, and as above.
        """
        return await self._ask_about(
            transactional_id, Add(producer_id, producer_epoch, frozenset(partitions))
        )

    async def end(
        self, transactional_id: str, producer_id: int, producer_epoch: int, *, commit: bool
    ) -> ErrorCode:
        """Decide the transaction's outcome. NONE once it is in the log; markers may still be on their way.

        INVALID_TXN_STATE, and as above.
        """
        return await self._ask_about(transactional_id, End(producer_id, producer_epoch, commit))

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
    ) -> dict[TopicPartition, ErrorCode]:
        """Whether the partitions are in the producer's transaction (KIP-890)."""
        owned = self._owner(transactional_id) if transactional_id else ErrorCode.INVALID_REQUEST
        if isinstance(owned, ErrorCode):
            return dict.fromkeys(partitions, owned)
        transaction = owned.transactions.get(transactional_id)
        if transaction is None:
            return dict.fromkeys(partitions, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return inspection.verify(transaction, producer_id, producer_epoch, partitions)

    def describe(self, transactional_id: str) -> DescribeTransactionsResponse.TransactionState:
        """INVALID_REQUEST, TRANSACTIONAL_ID_NOT_FOUND, and what every coordinator answers that is none."""
        owned = self._owner(transactional_id)
        error = ErrorCode.NONE
        if not self._partitions.active:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        elif not transactional_id:
            error = ErrorCode.INVALID_REQUEST
        elif isinstance(owned, ErrorCode):
            error = owned
        else:
            transaction = owned.transactions.get(transactional_id)
            if transaction is not None:
                return inspection.describe(transaction)
            error = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return DescribeTransactionsResponse.TransactionState(
            error_code=error, transactional_id=transactional_id
        )

    def list_transactions(self, request: ListTransactionsRequest) -> ListTransactionsResponse:
        """COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS."""
        if not self._partitions.active:
            return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if self._partitions.is_loading:
            return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        transactions = (
            transaction for owned in self._owned.values() for transaction in owned.transactions.values()
        )
        return inspection.list_transactions(transactions, request, self._clock())

    # -- from time to time ---------------------------------------------------------------------------

    def abort_timed_out(self) -> None:
        """Abort what has been open for longer than its producer's timeout, and fence the producer."""
        for owned in list(self._owned.values()):
            for transactional_id, transaction in list(owned.transactions.items()):
                if transaction.entry.state is State.ONGOING:
                    self._happen(owned, transactional_id, transitions.TimedOut())

    def remove_expired(self) -> None:
        """Forget the ids that nobody has used for transactional.id.expiration.ms."""
        expired = transitions.Expired(self._config.transactional_id_expiration_ms)
        for owned in list(self._owned.values()):
            doomed = []
            for transactional_id, transaction in list(owned.transactions.items()):
                after, effects = transitions.step(transaction, expired, self._clock())
                owned.transactions[transactional_id] = after
                doomed += [transactional_id for _ in effects]
            for start in range(0, len(doomed), TOMBSTONES_PER_BATCH):
                batch = doomed[start : start + TOMBSTONES_PER_BATCH]
                tombstones = [(records.key_bytes(transactional_id), None) for transactional_id in batch]
                self._append(owned, batch, tombstones, self._config.request_timeout_ms, None)

    # -- effects -------------------------------------------------------------------------------------

    def _owner(self, transactional_id: str) -> _Owned | ErrorCode:
        partition = self.partition_for(transactional_id)
        error = self._partitions.check(partition)
        return self._owned[partition] if error is ErrorCode.NONE else error

    async def _ask_about(self, transactional_id: str, event: Add | End) -> ErrorCode:
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        owned = self._owner(transactional_id)
        if isinstance(owned, ErrorCode):
            return owned
        if transactional_id not in owned.transactions:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        outcome = await self._ask(owned, transactional_id, event)
        assert outcome is not None
        return outcome.error

    async def _ask(self, owned: _Owned, transactional_id: str, event: Event) -> Outcome | None:
        waiter: _Waiter = asyncio.get_running_loop().create_future()
        self._happen(owned, transactional_id, event, waiter)
        return await waiter

    def _happen(
        self, owned: _Owned, transactional_id: str, event: Event, waiter: _Waiter | None = None
    ) -> None:
        transaction, effects = transitions.step(owned.transactions[transactional_id], event, self._clock())
        owned.transactions[transactional_id] = transaction
        if transaction.entry.state is State.DEAD:
            del owned.transactions[transactional_id]
        for effect in effects:
            match effect:
                case transitions.Answer(error):
                    _settle(waiter, Outcome(error, *_given(error, transaction.entry)))
                case transitions.NeedProducerId():
                    _settle(waiter, None)
                case transitions.Write(entry):
                    self._write(owned, transactional_id, entry, waiter)
                case transitions.WriteLater(entry):
                    self._scheduler.call_later(
                        WRITE_RETRY_MS, partial(self._write, owned, transactional_id, entry, None)
                    )
                case transitions.SendMarkers():
                    self._send(owned, transactional_id, effect)

    def _write(self, owned: _Owned, transactional_id: str, entry: Entry, waiter: _Waiter | None) -> None:
        if self._owned.get(owned.partition) is owned:
            record = (records.key_bytes(transactional_id), records.value_bytes(entry))
            self._append(owned, [transactional_id], [record], entry.timeout_ms, waiter)

    def _append(
        self,
        owned: _Owned,
        transactional_ids: Sequence[str],
        batch: Sequence[Record],
        timeout_ms: int,
        waiter: _Waiter | None,
    ) -> None:
        def written(done: asyncio.Task[ErrorCode]) -> None:
            error = ErrorCode.UNKNOWN_SERVER_ERROR if done.cancelled() else done.result()
            error = TRANSACTION_ERRORS.get(error, error)
            if self._owned.get(owned.partition) is not owned:
                # Whoever owns it now knows what became of it.
                _settle(waiter, Outcome(error or ErrorCode.NOT_COORDINATOR))
                return
            event = transitions.NotStored(error) if error else transitions.Stored()
            for transactional_id in transactional_ids:
                self._happen(owned, transactional_id, event, waiter)

        self._journal.append(owned.partition, batch, self._clock(), timeout_ms=timeout_ms).add_done_callback(
            written
        )

    def _send(self, owned: _Owned, transactional_id: str, effect: transitions.SendMarkers) -> None:
        def is_wanted() -> bool:
            return self._owned.get(owned.partition) is owned

        def marked(partitions: frozenset[TopicPartition]) -> None:
            if is_wanted():
                self._happen(owned, transactional_id, transitions.Marked(partitions))

        marker = Marker(
            effect.producer_id, effect.producer_epoch, owned.epoch, effect.commit, effect.partitions
        )
        self._markers.send(marker, marked, is_wanted)


def _given(error: ErrorCode, entry: Entry) -> tuple[int, int]:
    return (NO_PRODUCER_ID, NO_EPOCH) if error else (entry.producer_id, entry.producer_epoch)


def _settle(waiter: _Waiter | None, outcome: Outcome | None) -> None:
    """Who waited may have gone, or have been answered."""
    if waiter is not None and not waiter.done():
        waiter.set_result(outcome)
