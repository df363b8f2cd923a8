"""Effects of a decision: nodes to write, requests to send (ControllerBrokerRequestBatch), topics to remove.

Filled by the decision modules, applied by `ActiveController.apply`: first the writes (each a multi that
checks the controller epoch), then the requests, then the last writes. Effects name partitions, not values:
`requests` builds the requests from the state after the decision, one request of each kind per broker.
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
"""The leader epoch in a StopReplica that deletes a topic: it fences every epoch
(LeaderAndIsr.EpochDuringDelete)."""


@dataclass(frozen=True, slots=True)
class StopReplica:
    """A partition's entry in a StopReplica request."""

    delete: bool
    leader_epoch: int


class Effects:
    """The writes and requests of one decision, collected while it is made."""

    def __init__(self) -> None:
        self.writes: list[tuple[Operation, ...]] = []
        """Groups of operations in writing order; the operations of a group are in one multi (`multis`)."""
        self.last_writes: list[tuple[Operation, ...]] = []
        """The same, written when the requests have been sent: a controller that takes over and finds them
        missing decides and sends once more."""
        self.leader_and_isr: dict[int, dict[TopicPartition, bool]] = {}
        """broker -> partition -> whether the replica is new on the broker."""
        self.full_leader_and_isr: set[int] = set()
        """Brokers whose LeaderAndIsr lists all their replicas (the first one from this controller)."""
        self.stop_replicas: dict[int, dict[TopicPartition, StopReplica]] = {}
        self.metadata: dict[TopicPartition, None] = {}
        """Partitions in the UpdateMetadata to every live broker."""
        self.brokers_changed = False
        """Whether every live broker gets the list of live brokers, even without a partition."""
        self.full_metadata: set[int] = set()
        """Brokers whose UpdateMetadata has all partitions."""
        self.removed_topics: list[str] = []
        """Topics without replicas left: their nodes are to be deleted."""

    @property
    def empty(self) -> bool:
        return not (
            self.writes
            or self.last_writes
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
        """The writes in order, grouped into as few multis as the size limits allow."""
        return _multis(self.writes)

    def last_multis(self) -> list[list[Operation]]:
        """The last writes, grouped like this."""
        return _multis(self.last_writes)

    def add_leader_and_isr(self, tp: TopicPartition, brokers: Iterable[int], *, new: bool = False) -> None:
        for broker in brokers:
            states = self.leader_and_isr.setdefault(broker, {})
            states[tp] = states.get(tp, False) or new

    def add_stop_replica(self, broker: int, tp: TopicPartition, *, delete: bool, leader_epoch: int) -> None:
        # StopReplica replaces a LeaderAndIsr of an earlier step of the same decision.
        self.leader_and_isr.get(broker, {}).pop(tp, None)
        self.stop_replicas.setdefault(broker, {})[tp] = StopReplica(delete, leader_epoch)

    def add_update_metadata(self, tp: TopicPartition) -> None:
        self.metadata[tp] = None


def _multis(writes: Iterable[tuple[Operation, ...]]) -> list[list[Operation]]:
    multis: list[list[Operation]] = []
    size = 0
    for operations in writes:
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


def _size(operation: Operation) -> int:
    data = len(operation.data) if isinstance(operation, Create | SetData) else 0
    return _BYTES_PER_OPERATION + len(operation.path) + data
