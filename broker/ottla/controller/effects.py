"""What a decision asks of the outside: nodes to write, requests to send, topics to wipe out.

Filled by the decision modules, carried out by the shell: first all writes (each a multi with the controller
epoch's check), and only then the requests. Requests name partitions, not values: they are built from the
state as it is after the decision, one request of each kind per broker (`requests`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ottla.metadata.store import Create, Operation, SetData
from ottla.metadata.znodes import TopicPartition

# A multi is one request, one transaction, one write to ZooKeeper's log: the fewer the better, as long as each
# stays far below ZooKeeper's limit of 1 MiB a request (jute.maxbuffer).
OPERATIONS_PER_MULTI_MAX = 1000
BYTES_PER_MULTI_MAX = 256 * 1024
_BYTES_PER_OPERATION = 64  # beside path and data

EPOCH_DURING_DELETE = -2
"""The leader epoch in a StopReplica that deletes a topic: it fences whatever epoch the replica has."""


@dataclass(frozen=True, slots=True)
class StopReplica:
    delete: bool
    leader_epoch: int


class Effects:
    def __init__(self) -> None:
        self.writes: list[tuple[Operation, ...]] = []
        """What is in one tuple is in one multi, and they are written in this order (`multis`)."""
        self.leader_and_isr: dict[int, dict[TopicPartition, bool]] = {}
        """broker -> partition -> is it new there?"""
        self.full_leader_and_isr: set[int] = set()
        """Brokers whose LeaderAndIsr names every replica they have (their first of this controller)."""
        self.stop_replicas: dict[int, dict[TopicPartition, StopReplica]] = {}
        self.metadata: dict[TopicPartition, None] = {}
        """Partitions whose metadata goes to every live broker."""
        self.brokers_changed = False
        """The list of live brokers goes to every live broker, even with no partition."""
        self.full_metadata: set[int] = set()
        """Brokers that are told everything."""
        self.removed_topics: list[str] = []
        """Topics whose replicas are all gone: their nodes are to be removed."""

    @property
    def empty(self) -> bool:
        return not (
            self.writes
            or self.leader_and_isr
            or self.stop_replicas
            or self.metadata
            or self.brokers_changed
            or self.full_metadata
            or self.removed_topics
        )

    def write(self, *operations: Operation) -> None:
        self.writes.append(operations)

    def multis(self) -> list[list[Operation]]:
        """The writes, in as few multis as their sizes allow."""
        multis: list[list[Operation]] = []
        size = 0
        for operations in self.writes:
            more = sum(map(_size, operations))
            if (
                not multis
                or len(multis[-1]) + len(operations) > OPERATIONS_PER_MULTI_MAX
                or size + more > BYTES_PER_MULTI_MAX
            ):
                multis.append([])
                size = 0
            multis[-1] += operations
            size += more
        return multis

    def tell_replicas(self, tp: TopicPartition, brokers: Iterable[int], *, new: bool = False) -> None:
        for broker in brokers:
            states = self.leader_and_isr.setdefault(broker, {})
            states[tp] = states.get(tp, False) or new

    def stop(self, broker: int, tp: TopicPartition, *, delete: bool, leader_epoch: int) -> None:
        # Stopping wins over an instruction to follow that an earlier step of the same decision gave.
        self.leader_and_isr.get(broker, {}).pop(tp, None)
        self.stop_replicas.setdefault(broker, {})[tp] = StopReplica(delete, leader_epoch)

    def tell_everyone(self, tp: TopicPartition) -> None:
        self.metadata[tp] = None


def _size(operation: Operation) -> int:
    data = len(operation.data) if isinstance(operation, Create | SetData) else 0
    return _BYTES_PER_OPERATION + len(operation.path) + data
