"""What a workload knows of its transactions, and what may be seen of them.

The clients tell a `Ledger` what they do, in the order in which they do it; readers tell it what they read.
`ends_in_logs` reads the markers from the logs of the leaders: clients cannot see them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Any

from ottla.client import AdminClient, Producer
from ottla.client.admin_types import OffsetSpec
from ottla.client.core.types import TopicPartition
from ottla.client.errors import ClientError
from ottla.protocol.records import ControlType, decode_batch, iter_batches, parse_control_record
from ottla.simulation.cluster import Cluster, Violation

Epoch = tuple[int, int]
"""A producer id and its epoch."""

_ENDED = ("Empty", "CompleteCommit", "CompleteAbort", "Dead")


class Outcome(Enum):
    """What the client knows of the outcome of a transaction."""

    OPEN = "open: its commit was never requested"
    REQUESTED = "unknown: its commit was requested"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass
class Transaction:
    """A transaction as its client sees it."""

    name: str
    owner: str
    """The transactional id."""
    writes: list[tuple[TopicPartition, str]] = field(default_factory=list)
    outcome: Outcome = Outcome.OPEN
    is_fenced: bool = False
    """Its commit was requested after a newer producer had taken over the transactional id."""
    seen: str = ""
    """Who has seen it with read_committed."""

    def __str__(self) -> str:
        return f"{self.name} ({self.outcome.value}{', by a fenced producer' if self.is_fenced else ''})"


class Ledger:
    """See the module."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.transactions: dict[str, Transaction] = {}
        self.by_value: dict[str, Transaction] = {}
        self._epochs: dict[str, Epoch] = {}
        self._numbers = count()

    # --- the clients ---

    def initialized(self, owner: str, producer: Producer) -> None:
        """A producer has initialized its transactional id."""
        self._epochs[owner] = max(self._epochs.get(owner, (-1, -1)), _epoch_of(producer))

    def begin(self, owner: str) -> Transaction:
        name = f"{owner}/{next(self._numbers)}"
        transaction = self.transactions[name] = Transaction(name, owner)
        return transaction

    def write(self, transaction: Transaction, tp: TopicPartition, content: str) -> str:
        """Add a record to a transaction; returns its value, which begins with the content."""
        value = f"{content} {transaction.name} {len(transaction.writes)}"
        transaction.writes.append((tp, value))
        self.by_value[value] = transaction
        return value

    def request_commit(self, transaction: Transaction, producer: Producer) -> None:
        transaction.outcome = Outcome.REQUESTED
        transaction.is_fenced = _epoch_of(producer) < self._epochs[transaction.owner]

    def committed(self, transaction: Transaction) -> None:
        if transaction.is_fenced:
            raise Violation(f"fencing: {self._name}: {transaction} was committed")
        transaction.outcome = Outcome.COMMITTED

    def aborted(self, transaction: Transaction) -> None:
        transaction.outcome = Outcome.ABORTED
        self._check_visible(transaction)

    # --- readers ---

    def observe(self, tp: TopicPartition, offset: int, value: str, reader: str) -> Transaction:
        """A reader with read_committed has read a record."""
        transaction = self.by_value.get(value)
        if transaction is None or (tp, value) not in transaction.writes:
            raise Violation(f"no invention: {reader} has read {value!r} at offset {offset} of {tp}")
        transaction.seen = transaction.seen or f"{reader} has read {value!r} at offset {offset} of {tp}"
        self._check_visible(transaction)
        return transaction

    def _check_visible(self, transaction: Transaction) -> None:
        if not transaction.seen:
            return
        if transaction.is_fenced:
            raise Violation(f"fencing: {transaction.seen}, of transaction {transaction}")
        if transaction.outcome is Outcome.ABORTED:
            raise Violation(f"no aborted data (G1a): {transaction.seen}, of transaction {transaction}")
        if transaction.outcome is Outcome.OPEN:
            raise Violation(f"no uncommitted data: {transaction.seen}, of transaction {transaction}")

    # --- the end ---

    def verify_atomic(self, found: Iterable[tuple[TopicPartition, Iterable[tuple[int, str]]]]) -> None:
        """`found` is all that can be read with read_committed: of each transaction all or nothing."""
        places: defaultdict[str, dict[str, str]] = defaultdict(dict)
        for tp, records in found:
            for offset, value in records:
                transaction = self.observe(tp, offset, value, "the reader at the end")
                before = places[transaction.name].setdefault(value, f"offset {offset} of {tp}")
                if before != f"offset {offset} of {tp}":
                    raise Violation(f"no duplicates: {value!r} is at {before} and at offset {offset} of {tp}")
        for name, transaction in self.transactions.items():
            seen = places.get(name, {})
            missing = [f"{value!r} in {tp}" for tp, value in transaction.writes if value not in seen]
            if missing and (seen or transaction.seen or transaction.outcome is Outcome.COMMITTED):
                raise Violation(
                    f"atomicity: of transaction {transaction} {'; '.join(missing)} is missing at the end, "
                    f"where {seen or 'nothing'} was read; earlier: {transaction.seen or 'nothing'}"
                )

    async def unfinished(self, admin: AdminClient, partitions: Sequence[tuple[str, int]]) -> str:
        """What still is of a transaction that has not ended, in the coordinators or in the partitions."""
        try:
            listed = (await admin.list_transactions()).raise_first()
            for rows in listed.values():
                for row in rows:
                    if row.transactional_id in self._epochs and row.state not in _ENDED:
                        return f"{row.transactional_id} is in state {row.state}"
            described = (await admin.describe_transactions(sorted(self._epochs))).raise_first()
            for owner, description in described.items():
                if description.partitions:
                    return f"{owner} has {description.partitions} in state {description.state}"
            for tp, producers in (await admin.describe_producers(partitions)).raise_first().items():
                for producer in producers:
                    if producer.transaction_start_offset >= 0:
                        return f"{tp} has an open transaction: {producer}"
            return await _unstable(admin, partitions)
        except ClientError as problem:
            return f"{problem!r}"


async def _unstable(admin: AdminClient, partitions: Sequence[tuple[str, int]]) -> str:
    latest = dict.fromkeys(partitions, OffsetSpec.LATEST)
    stable = (await admin.list_offsets(latest, isolation_level="read_committed")).raise_first()
    ends = (await admin.list_offsets(latest)).raise_first()
    for tp, end in ends.items():
        if stable[tp].offset != end.offset:
            return f"{tp} has last stable offset {stable[tp].offset} and high watermark {end.offset}"
    return ""


def _epoch_of(producer: Producer) -> Epoch:
    runtime = producer._runtime
    assert runtime is not None
    assert runtime.transactions is not None
    return runtime.transactions.producer_id, runtime.transactions.epoch


@dataclass(frozen=True)
class End:
    """The end of a transaction in one partition."""

    offset: int
    """Of the marker."""
    is_commit: bool


def ends_in_logs(
    cluster: Cluster, ledger: Ledger, partitions: Iterable[tuple[str, int]]
) -> dict[str, dict[TopicPartition, End]]:
    """By transaction and partition, the markers in the logs of the leaders. Raises Violation where the
    partitions of a transaction do not agree, or where a marker is missing."""
    found: defaultdict[str, dict[TopicPartition, End]] = defaultdict(dict)
    for each in partitions:
        tp = TopicPartition(*each)
        began: dict[int, Transaction] = {}
        """The open transactions by producer id."""
        for header, data, position in _batches(cluster, tp):
            if not header.is_transactional:
                continue
            records = decode_batch(data, position)
            if header.is_control:
                kind = parse_control_record(records[0]).type
                ended = began.pop(header.producer_id, None)
                if ended is not None:
                    found[ended.name][tp] = End(header.base_offset, kind == ControlType.COMMIT)
                continue
            for record in records:
                value = (record.value or b"").decode()
                transaction = ledger.by_value.get(value)
                if transaction is None:
                    raise Violation(f"no invention: {tp} holds {value!r} at offset {header.base_offset}")
                before = began.setdefault(header.producer_id, transaction)
                if before is not transaction:
                    raise Violation(
                        f"markers: {tp} has no marker between {before} and {transaction}, which follows at "
                        f"offset {header.base_offset}"
                    )
        if began:
            raise Violation(f"markers: {tp} has no marker for {', '.join(map(str, began.values()))}")
    for name, ends in found.items():
        transaction = ledger.transactions[name]
        if len({end.is_commit for end in ends.values()}) > 1:
            raise Violation(f"markers: the partitions of {transaction} do not agree: {ends}")
        is_commit = any(end.is_commit for end in ends.values())
        if transaction.outcome is (Outcome.ABORTED if is_commit else Outcome.COMMITTED):
            raise Violation(f"markers: the log contradicts the client: {transaction}: {ends}")
    return found


def _batches(cluster: Cluster, tp: TopicPartition) -> list[tuple[Any, bytes, int]]:
    """The batches of a partition, from the disk of its leader."""
    (leader,) = [state.leader for where, state in cluster.partition_states() if where == tuple(tp)]
    machine = cluster.machines[leader]
    assert machine.broker is not None
    partition = machine.broker.replication.replicas.find(*tp)
    assert partition is not None
    found = []
    for segment in partition.log.segments:
        path = f"{partition.log.directory}/{segment.base_offset:020d}.log"
        data = bytes(machine.disk.names[path].data)
        found += [(header, data, position) for position, header in iter_batches(data)]
    return found
