"""The transaction coordinator (TransactionCoordinator, TransactionStateManager): one method per API, and
loading and unloading of partitions.

Called by the server's handlers. The rules are in `transitions`; this module applies their effects: it
completes the futures of responses, appends records, and has markers sent. Everything runs on the event loop,
and state changes only between awaits, so there are no locks. Writes and markers continue by callbacks,
independent of the client's request.

Invariant: work that started under one ownership of a partition changes nothing under a later one (`_Owned` is
compared by identity); the next owner reads the log, and completes the transactions that are prepared there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from ottla.coordinators.config import TransactionConfig
from ottla.coordinators.interfaces import (
    Cancellable,
    LoopScheduler,
    Marker,
    MarkerSender,
    NewProducerId,
    NoProducerId,
    Scheduler,
    TransactionLog,
)
from ottla.coordinators.log_appender import TRANSACTION_ERRORS, LogAppender
from ottla.coordinators.log_appender import Entry as Record
from ottla.coordinators.ownership import OwnedPartitions, read_partition
from ottla.coordinators.records import partition_for
from ottla.coordinators.transactions import records, requests, transitions
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
from ottla.protocol import messages as m
from ottla.protocol.compression import Codec
from ottla.protocol.errors import ErrorCode

logger = logging.getLogger(__name__)

WRITE_RETRY_MS: Final = 100
TOMBSTONES_PER_BATCH: Final = 200
"""About 16 KiB, as in Kafka."""


@dataclass(eq=False, slots=True)
class _Owned:
    """A loaded partition of `__transaction_state`, during one ownership of it."""

    partition: int
    epoch: int
    transactions: dict[str, Transaction]
    retries: dict[str, Cancellable] = field(default_factory=dict)
    """The next writes of transactional ids whose last one has failed."""


class Outcome(NamedTuple):
    """The result of a request: an error, or the producer id and epoch."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


_Waiter = asyncio.Future[Outcome | None]
"""A deferred response; the result None means that a new producer id is needed."""


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
        """`clock` returns wall time in ms; `partition_count` must be constant once transactions are
        loaded."""
        self._config = config
        self._log = log
        self._partition_count = partition_count
        self._markers = markers
        self._new_producer_id = new_producer_id
        self._clock = clock
        self._scheduler = scheduler or LoopScheduler()
        self._appender = LogAppender(log, Codec.NONE)
        self._partitions = OwnedPartitions(log, self._scheduler, self._read, self._admit)
        self._owned: dict[int, _Owned] = {}
        self._timers: dict[str, Cancellable] = {}

    # -- start and stop ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start serving, aborting timed out transactions, and removing expired transactional ids."""
        self._partitions.active = True
        config = self._config
        self._schedule_periodically(
            "abort", config.transaction_abort_timed_out_transaction_cleanup_interval_ms, self.abort_timed_out
        )
        self._schedule_periodically(
            "expire",
            config.transaction_remove_expired_transaction_cleanup_interval_ms,
            self.remove_expired,
        )

    def _schedule_periodically(self, name: str, interval_ms: int, action: Callable[[], None]) -> None:
        def run() -> None:
            self._timers[name] = self._scheduler.call_later(interval_ms, run)
            try:
                action()
            except Exception:
                logger.exception("The periodic task to %s transactions failed", name)

        self._timers[name] = self._scheduler.call_later(interval_ms, run)

    async def stop(self) -> None:
        """Stop serving, and wait for the appends under way."""
        self._partitions.active = False
        for timer in self._timers.values():
            timer.cancel()
        for partition in self._partitions:
            self.unload(partition)
        await self._appender.drain()

    def partition_for(self, transactional_id: str) -> int:
        """The partition of `__transaction_state` whose leader coordinates the id."""
        return partition_for(transactional_id, self._partition_count())

    def load(self, partition: int) -> asyncio.Task[None] | None:
        """Call when this broker becomes the partition's leader. The task ends when it is loaded."""
        return self._partitions.load(partition)

    def unload(self, partition: int) -> None:
        """Call when this broker stops being the partition's leader."""
        self._partitions.unload(partition)
        owned = self._owned.pop(partition, None)
        if owned is not None:
            for retry in owned.retries.values():
                retry.cancel()

    async def _read(self, partition: int) -> _Owned:
        epoch = self._log.leader_epoch(partition)
        replay = records.TransactionReplay()
        await read_partition(self._log, partition, replay)
        return _Owned(partition, epoch, replay.transactions)

    def _admit(self, partition: int, owned: _Owned) -> None:
        self._owned[partition] = owned
        logger.info(
            "Finished loading %d transaction metadata from %s-%d for coordinator epoch %d",
            len(owned.transactions), self._log.topic, partition, owned.epoch,
        )  # fmt: skip
        for transactional_id in list(owned.transactions):
            self._handle_event(owned, transactional_id, transitions.Loaded())

    # -- requests ------------------------------------------------------------------------------------

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, given: tuple[int, int] | None
    ) -> Outcome:
        """InitProducerId: a producer id and epoch for the transactional id. `given` are the producer's
        current id and epoch, if it continues after an error (KIP-360).

        INVALID_REQUEST, INVALID_TRANSACTION_TIMEOUT, CONCURRENT_TRANSACTIONS, PRODUCER_FENCED, the errors of
        `OwnedPartitions.check`, and `TRANSACTION_ERRORS`.
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
                outcome = await self._request(owned, transactional_id, Init(timeout_ms, given, fresh))
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
        """AddPartitionsToTxn, AddOffsetsToTxn: add partitions to the producer's transaction.

        INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, and as above.
        """
        return await self._request_existing(
            transactional_id, Add(producer_id, producer_epoch, frozenset(partitions))
        )

    async def end(
        self, transactional_id: str, producer_id: int, producer_epoch: int, *, commit: bool
    ) -> ErrorCode:
        """EndTxn: commit or abort the transaction. NONE once that is in the log; markers are written later.

        INVALID_TXN_STATE, and as above.
        """
        return await self._request_existing(transactional_id, End(producer_id, producer_epoch, commit))

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
    ) -> dict[TopicPartition, ErrorCode]:
        """Verify that the partitions are in the producer's transaction (KIP-890); an error per partition."""
        owned = self._owner(transactional_id) if transactional_id else ErrorCode.INVALID_REQUEST
        if isinstance(owned, ErrorCode):
            return dict.fromkeys(partitions, owned)
        transaction = owned.transactions.get(transactional_id)
        if transaction is None:
            return dict.fromkeys(partitions, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return requests.verify(transaction, producer_id, producer_epoch, partitions)

    def describe(self, transactional_id: str) -> m.DescribeTransactionsResponse.TransactionState:
        """INVALID_REQUEST, TRANSACTIONAL_ID_NOT_FOUND, and the errors of `OwnedPartitions.check`."""
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
                return requests.describe(transaction)
            error = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return m.DescribeTransactionsResponse.TransactionState(
            error_code=error, transactional_id=transactional_id
        )

    def list_transactions(self, request: m.ListTransactionsRequest) -> m.ListTransactionsResponse:
        """COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS."""
        if not self._partitions.active:
            return m.ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if self._partitions.is_loading:
            return m.ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        transactions = (
            transaction for owned in self._owned.values() for transaction in owned.transactions.values()
        )
        return requests.list_transactions(transactions, request, self._clock())

    # -- periodic tasks ------------------------------------------------------------------------------

    def states(self) -> Counter[State]:
        """The number of transactional ids in each state, of the partitions that this broker coordinates."""
        owned = list(self._owned.values())
        return Counter(
            each.entry.state for partition in owned for each in list(partition.transactions.values())
        )

    def abort_timed_out(self) -> None:
        """Abort transactions that exceed their producer's timeout, and fence the producer."""
        for owned in list(self._owned.values()):
            for transactional_id, transaction in list(owned.transactions.items()):
                if transaction.entry.state is State.ONGOING:
                    self._handle_event(owned, transactional_id, transitions.TimedOut())

    def remove_expired(self) -> None:
        """Remove transactional ids that were not used for transactional.id.expiration.ms."""
        expired = transitions.Expired(self._config.transactional_id_expiration_ms)
        for owned in list(self._owned.values()):
            to_delete = []
            for transactional_id, transaction in list(owned.transactions.items()):
                after, effects = transitions.step(transaction, expired, self._clock())
                owned.transactions[transactional_id] = after
                to_delete += [transactional_id for _ in effects]
            for start in range(0, len(to_delete), TOMBSTONES_PER_BATCH):
                batch = to_delete[start : start + TOMBSTONES_PER_BATCH]
                tombstones = [(records.key_bytes(transactional_id), None) for transactional_id in batch]
                self._append(owned, batch, tombstones, self._config.request_timeout_ms, None)

    # -- effects -------------------------------------------------------------------------------------

    def _owner(self, transactional_id: str) -> _Owned | ErrorCode:
        partition = self.partition_for(transactional_id)
        error = self._partitions.check(partition)
        return self._owned[partition] if error is ErrorCode.NONE else error

    async def _request_existing(self, transactional_id: str, event: Add | End) -> ErrorCode:
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        owned = self._owner(transactional_id)
        if isinstance(owned, ErrorCode):
            return owned
        if transactional_id not in owned.transactions:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        outcome = await self._request(owned, transactional_id, event)
        assert outcome is not None
        return outcome.error

    async def _request(self, owned: _Owned, transactional_id: str, event: Event) -> Outcome | None:
        waiter: _Waiter = asyncio.get_running_loop().create_future()
        self._handle_event(owned, transactional_id, event, waiter)
        return await waiter

    def _handle_event(
        self, owned: _Owned, transactional_id: str, event: Event, waiter: _Waiter | None = None
    ) -> None:
        transaction, effects = transitions.step(owned.transactions[transactional_id], event, self._clock())
        owned.transactions[transactional_id] = transaction
        if transaction.entry.state is State.DEAD:
            del owned.transactions[transactional_id]
        for effect in effects:
            match effect:
                case transitions.Respond(error):
                    _complete(waiter, Outcome(error, *_producer_of(error, transaction.entry)))
                case transitions.NeedProducerId():
                    _complete(waiter, None)
                case transitions.Write(entry):
                    self._write(owned, transactional_id, entry, waiter)
                case transitions.WriteLater(entry):
                    owned.retries[transactional_id] = self._scheduler.call_later(
                        WRITE_RETRY_MS, partial(self._write_again, owned, transactional_id, entry)
                    )
                case transitions.SendMarkers():
                    self._send(owned, transactional_id, effect)

    def _write_again(self, owned: _Owned, transactional_id: str, entry: Entry) -> None:
        del owned.retries[transactional_id]
        self._write(owned, transactional_id, entry, None)

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
        def written(done: asyncio.Future[ErrorCode]) -> None:
            error = ErrorCode.UNKNOWN_SERVER_ERROR if done.cancelled() else done.result()
            error = TRANSACTION_ERRORS.get(error, error)
            if self._owned.get(owned.partition) is not owned:
                # The next owner of the partition reads the record, if it was appended.
                _complete(waiter, Outcome(error or ErrorCode.NOT_COORDINATOR))
                return
            event = transitions.NotStored(error) if error else transitions.Stored()
            for transactional_id in transactional_ids:
                self._handle_event(owned, transactional_id, event, waiter)

        self._appender.append(owned.partition, batch, self._clock(), timeout_ms=timeout_ms).add_done_callback(
            written
        )

    def _send(self, owned: _Owned, transactional_id: str, effect: transitions.SendMarkers) -> None:
        def is_wanted() -> bool:
            return self._owned.get(owned.partition) is owned

        def marked(partitions: frozenset[TopicPartition]) -> None:
            if is_wanted():
                self._handle_event(owned, transactional_id, transitions.Marked(partitions))

        marker = Marker(
            effect.producer_id, effect.producer_epoch, owned.epoch, effect.commit, effect.partitions
        )
        self._markers.send(marker, marked, is_wanted)


def _producer_of(error: ErrorCode, entry: Entry) -> tuple[int, int]:
    return (NO_PRODUCER_ID, NO_EPOCH) if error else (entry.producer_id, entry.producer_epoch)


def _complete(waiter: _Waiter | None, outcome: Outcome | None) -> None:
    """Complete a response, unless its request was cancelled or it is already completed."""
    if waiter is not None and not waiter.done():
        waiter.set_result(outcome)
