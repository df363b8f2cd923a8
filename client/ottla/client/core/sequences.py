"""The sequence numbers of one partition of an idempotent producer (KIP-98, KIP-360).

Called by the sender. Invariants: `in_flight` has the incomplete batches with sequence numbers, in their order
and without gaps; sequence numbers change only when none of these batches is in flight.
"""

from __future__ import annotations

from typing import Final

from ottla.client.core.batches import Batch
from ottla.protocol.records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE

IN_FLIGHT_MAX: Final = 5
"""Batches of a producer that a broker remembers for each partition, to detect duplicates."""


class Sequence:
    """The sequence state of a partition; Kafka's TxnPartitionEntry."""

    __slots__ = ("epoch", "in_flight", "last_acked", "next", "producer_id", "restarts", "unresolved")

    def __init__(self) -> None:
        self.producer_id = NO_PRODUCER_ID
        self.epoch = NO_PRODUCER_EPOCH
        self.next = 0
        self.last_acked = NO_SEQUENCE
        self.in_flight: list[Batch] = []
        self.unresolved = False
        """A batch that was sent has expired: it is unknown whether it was written."""
        self.restarts = False
        """Sequence numbers have to restart at 0 under a new epoch."""

    @property
    def on_wire(self) -> bool:
        return any(batch.in_flight for batch in self.in_flight)

    def may_send(self, batch: Batch) -> bool:
        """Whether this batch may be sent now; of the batches to retry, only the first."""
        if self.restarts:
            return False
        if batch.stamped:
            return self.in_flight[0] is batch
        return not self.unresolved and len(self.in_flight) < IN_FLIGHT_MAX

    def is_of(self, producer_id: int, epoch: int) -> bool:
        return self.producer_id == producer_id and self.epoch == epoch

    def begin(self, producer_id: int, epoch: int) -> None:
        """Start at 0 under a new producer id or epoch; batches with sequence numbers get new ones."""
        assert not self.on_wire, "sequence numbers must not change while batches are in flight"
        self.producer_id, self.epoch = producer_id, epoch
        self.next, self.last_acked = 0, NO_SEQUENCE
        self.restarts = self.unresolved = False
        for batch in self.in_flight:
            self._stamp(batch)

    def assign(self, batch: Batch) -> None:
        """Assign sequence numbers to a new batch."""
        self._stamp(batch)
        self.in_flight.append(batch)

    def _stamp(self, batch: Batch) -> None:
        batch.stamp(self.producer_id, self.epoch, self.next)
        self.next = batch.next_sequence

    def follows(self, batch: Batch) -> bool:
        """Whether the batch follows the last acknowledged one."""
        expected = 0 if self.last_acked == NO_SEQUENCE else (self.last_acked + 1) & 0x7FFFFFFF
        return batch.base_sequence == expected

    def acked(self, batch: Batch) -> None:
        if self.is_of(batch.producer_id, batch.epoch):
            self.last_acked = (batch.next_sequence - 1) & 0x7FFFFFFF
        self.drop(batch)

    def drop(self, batch: Batch) -> None:
        if batch in self.in_flight:
            self.in_flight.remove(batch)

    def replace(self, batch: Batch, parts: list[Batch]) -> None:
        """Replace a batch by the parts it was split into."""
        at = self.in_flight.index(batch)
        self.in_flight[at : at + 1] = parts

    def resolved(self) -> bool:
        """Whether the sequence has no gap; called when no batch is in flight."""
        expected = 0 if self.last_acked == NO_SEQUENCE else (self.last_acked + 1) & 0x7FFFFFFF
        return self.next == expected
