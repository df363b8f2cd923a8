"""Coordinators of transactions in a world of their own: virtual time, a log and markers in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from ottla.coordinators.config import TransactionConfig
from ottla.coordinators.interfaces import Marker, NoProducerId
from ottla.coordinators.transactions import records
from ottla.coordinators.transactions.coordinator import Outcome, TransactionCoordinator
from ottla.coordinators.transactions.transaction import State, TopicPartition
from ottla.protocol.errors import ErrorCode
from tests.worlds.simulated_coordinators import MemoryLog, VirtualTime

PARTITIONS = frozenset({("t", 0), ("t", 1), ("u", 0)})
TIMEOUT_MS = 60_000


class StateLog(MemoryLog):
    """`__transaction_state`, of a single partition, and its leader epoch."""

    topic = "__transaction_state"

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 5

    def leader_epoch(self, partition: int) -> int:
        return self.epoch

    def states(self, transactional_id: str = "tid") -> list[str]:
        """What the records say of an id, one after the other."""
        key = records.key_bytes(transactional_id)
        return [
            "gone" if record.value is None else records.parse_value(bytes(record.value)).state.api_name
            for record in self.records()
            if record.key == key
        ]

    def prefix(self, count: int) -> StateLog:
        """The log of a broker that had the first records alone."""
        other = StateLog()
        other.epoch = self.epoch + 1
        other.batches = {0: self.batches.get(0, [])[:count]}
        return other


class Partitions:
    """The logs that transactions write to: the markers in each, by producer. `hold` keeps markers from
    coming."""

    def __init__(self) -> None:
        self.markers: dict[TopicPartition, list[Marker]] = {}
        self.held: list[Callable[[], None]] = []
        self.hold = False

    def send(
        self,
        marker: Marker,
        marked: Callable[[frozenset[TopicPartition]], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        for partition in sorted(marker.partitions):

            def arrive(partition: TopicPartition = partition) -> None:
                if is_wanted():
                    only = marker._replace(partitions=frozenset({partition}))
                    self.markers.setdefault(partition, []).append(only)
                    marked(frozenset({partition}))

            if self.hold:
                self.held.append(arrive)
            else:
                asyncio.get_running_loop().call_soon(arrive)

    def let_one(self) -> None:
        self.held.pop(0)()

    def outcomes(self) -> dict[TopicPartition, list[bool]]:
        """Commit or abort, as they came."""
        return {key: [marker.commit for marker in markers] for key, markers in self.markers.items()}


class SimulatedTransactions:
    def __init__(
        self,
        log: StateLog | None = None,
        partitions: Partitions | None = None,
        time: VirtualTime | None = None,
        **settings: int,
    ) -> None:
        self.log = log or StateLog()
        self.partitions = partitions or Partitions()
        self.time = time or VirtualTime()
        self.settings = settings
        self.next_producer_id = 1000
        self.has_producer_ids = True
        self.coordinator = TransactionCoordinator(
            config=replace(TransactionConfig(), **settings),
            log=self.log,
            partition_count=lambda: 1,
            markers=self.partitions,
            new_producer_id=self._producer_id,
            clock=self.time.wall_ms,
            scheduler=self.time,
        )

    async def _producer_id(self) -> int:
        if not self.has_producer_ids:
            raise NoProducerId
        self.next_producer_id += 1
        return self.next_producer_id - 1

    async def started(self) -> SimulatedTransactions:
        self.coordinator.start()
        load = self.coordinator.load(0)
        assert load is not None
        await load
        return self

    async def taken_over(self, records_known: int | None = None) -> SimulatedTransactions:
        """Another broker goes on, with the first records of the log or all; this one has lost its
        partition."""
        self.coordinator.unload(0)
        known = len(self.log.batches.get(0, [])) if records_known is None else records_known
        other = SimulatedTransactions(self.log.prefix(known), self.partitions, self.time, **self.settings)
        other.next_producer_id = self.next_producer_id + 1000
        return await other.started()

    # -- requests ------------------------------------------------------------------------------------

    async def init(self, given: tuple[int, int] | None = None, timeout_ms: int = TIMEOUT_MS) -> Outcome:
        return await self.coordinator.init_producer_id("tid", timeout_ms, given)

    async def add(
        self, producer: tuple[int, int], partitions: frozenset[TopicPartition] = PARTITIONS
    ) -> ErrorCode:
        return await self.coordinator.add_partitions("tid", *producer, partitions)

    async def end(self, producer: tuple[int, int], *, commit: bool) -> ErrorCode:
        return await self.coordinator.end("tid", *producer, commit=commit)

    async def producer(self) -> tuple[int, int]:
        """One that comes again until it is let in."""
        while True:
            outcome = await self.init()
            if outcome.error is ErrorCode.NONE:
                return outcome.producer_id, outcome.producer_epoch
            assert outcome.error is ErrorCode.CONCURRENT_TRANSACTIONS
            await asyncio.sleep(0)

    def state(self) -> str:
        return self.coordinator.describe("tid").transaction_state


__all__ = ["PARTITIONS", "TIMEOUT_MS", "Partitions", "SimulatedTransactions", "State", "StateLog"]
