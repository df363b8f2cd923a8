"""The view models of transactions and producers. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ottla.client.admin_types import (
    ListedOffset,
    ProducerState,
    TopicPartition,
    TransactionDescription,
    TransactionListing,
)
from ottla_console.cluster.problems import Kind, Problem
from ottla_console.cluster.snapshot import Part
from ottla_console.views.tables import Column, Query, Table, table_of

ONGOING: Final = "Ongoing"
ENDING: Final = frozenset({"PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
"""The states of transactions whose markers are being written."""

PARTITIONS_MAX: Final = 200
"""Of a transaction, on its page."""

Listed = Mapping[int, tuple[TransactionListing, ...]]
Producing = dict[TopicPartition, tuple[ProducerState, ...]]
"""The producers of partitions."""


QUIET_MS_MIN: Final = 60_000
"""A transaction without a record for so long hangs if its coordinator does not know it; a younger one may be
about to begin or to end."""


@dataclass(frozen=True, slots=True)
class TransactionRow:
    """A transactional id."""

    id: str
    state: str
    producer_id: int
    coordinator: int
    open_ms: int | None
    """For how long its transaction has been open; None without one, or if that is not known."""
    late: bool
    """Open for longer than its time-out, after which its coordinator aborts it."""


COLUMNS: Final[tuple[Column[TransactionRow], ...]] = (
    Column("id", "Transactional id", lambda row: row.id.casefold()),
    Column("state", "State", lambda row: row.state),
    Column("open", "Open for", lambda row: row.open_ms, numeric=True),
    Column("producer", "Producer id", lambda row: row.producer_id, numeric=True),
    Column("coordinator", "Coordinator", lambda row: row.coordinator, numeric=True),
)


@dataclass(frozen=True, slots=True)
class Transactions:
    """The list."""

    table: Table[TransactionRow]
    open: int
    late: int
    states: tuple[tuple[str, int], ...]
    state: str
    problems: tuple[Problem, ...]


def ongoing(listed: Part[Listed]) -> list[str]:
    """The transactional ids with an open transaction."""
    return [
        each.transactional_id
        for rows in (listed.value or {}).values()
        for each in rows
        if each.state == ONGOING
    ]


def transactions_of(
    listed: Part[Listed], described: Part[dict[str, TransactionDescription]], now_ms: int, query: Query
) -> Transactions:
    """The list; with `state`, the transactional ids in this state alone."""
    rows = [
        _row(each, broker, (described.value or {}).get(each.transactional_id), now_ms)
        for broker, found in (listed.value or {}).items()
        for each in found
    ]
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.state] = counts.get(row.state, 0) + 1
    state = query.other("state")
    kept = [row for row in rows if not state or row.state == state]
    return Transactions(
        table_of(kept, COLUMNS, query, text=lambda row: row.id, default_sort="open", descending=True),
        counts.get(ONGOING, 0),
        sum(row.late for row in rows),
        tuple(sorted(counts.items())),
        state,
        (*listed.problems, *described.problems),
    )


def _row(
    listed: TransactionListing, broker: int, described: TransactionDescription | None, now_ms: int
) -> TransactionRow:
    open_ms = _open_ms(described, now_ms)
    late = open_ms is not None and described is not None and open_ms > described.timeout_ms
    return TransactionRow(listed.transactional_id, listed.state, listed.producer_id, broker, open_ms, late)


def _open_ms(described: TransactionDescription | None, now_ms: int) -> int | None:
    began = described.start_ms if described else -1
    return max(0, now_ms - began) if began >= 0 else None


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transactional id."""

    id: str
    description: TransactionDescription | None
    open_ms: int | None
    """For how long its transaction has been open; None without one."""
    missing: bool
    problems: tuple[Problem, ...]
    began: Mapping[TopicPartition, int]
    """The offsets of its first records in its partitions, where they are known."""

    @property
    def late(self) -> bool:
        """Whether it is open for longer than its time-out, after which the coordinator aborts it."""
        return (
            self.open_ms is not None
            and self.description is not None
            and self.open_ms > self.description.timeout_ms
        )


def transaction_of(
    id_: str, found: Part[TransactionDescription], now_ms: int, producers: Part[Producing]
) -> Transaction:
    """`producers`: of its partitions."""
    description = found.value
    missing = any(each.kind is Kind.MISSING for each in found.problems)
    began = {
        tp: each.transaction_start_offset
        for tp, some in (producers.value or {}).items()
        for each in some
        if description is not None and each.producer_id == description.producer_id
        if each.transaction_start_offset >= 0
    }
    problems = (*found.problems, *producers.problems)
    return Transaction(id_, description, _open_ms(description, now_ms), missing, problems, began)


def ids_of(listed: Part[Listed]) -> dict[int, str]:
    """The transactional ids by producer id."""
    return {row.producer_id: row.transactional_id for some in (listed.value or {}).values() for row in some}


@dataclass(frozen=True, slots=True)
class HeldRow:
    """A partition that a transaction holds back."""

    topic: str
    partition: int
    offset: int
    """Where the transaction begins in it: its last stable offset."""
    waiting: int
    """Records from there on, which consumers of read_committed do not get yet."""
    producer_id: int | None
    """None: not known."""
    transactional_id: str
    """Empty: not known."""
    quiet_ms: int | None
    """Since the producer's last record in the partition."""
    hangs: bool
    """Its coordinator does not know of the transaction, so that nothing ends it."""

    @property
    def command(self) -> str:
        """What ends a hanging transaction."""
        place = f"--topic {shlex.quote(self.topic)} --partition {self.partition}"
        return f"ottla transactions abort {place} --start-offset {self.offset}"


HELD: Final[tuple[Column[HeldRow], ...]] = (
    Column("topic", "Topic", lambda row: (row.topic.casefold(), row.partition)),
    Column("partition", "Partition", lambda row: row.partition, numeric=True),
    Column("state", "Transaction", lambda row: (not row.hangs, -(row.quiet_ms or 0))),
    Column("id", "Transactional id", lambda row: row.transactional_id.casefold()),
    Column("producer", "Producer id", lambda row: row.producer_id, numeric=True),
    Column("quiet", "Last record", lambda row: row.quiet_ms, numeric=True, hint="Time since its last record"),
    Column("offset", "From offset", lambda row: row.offset, numeric=True),
    Column("waiting", "Records held back", lambda row: row.waiting, numeric=True),
)


@dataclass(frozen=True, slots=True)
class Held:
    """The partitions that transactions hold back."""

    table: Table[HeldRow]
    partitions: int
    problems: tuple[Problem, ...]

    @property
    def hanging(self) -> tuple[HeldRow, ...]:
        return tuple(row for row in self.table.rows if row.hangs)


Offsets = Part[dict[TopicPartition, ListedOffset]]


def held_back(ends: Offsets, stable: Offsets) -> dict[TopicPartition, tuple[int, int]]:
    """The last stable offset and the high watermark of the partitions where they differ."""
    found = stable.value or {}
    return {
        tp: (found[tp].offset, end.offset)
        for tp, end in (ends.value or {}).items()
        if tp in found and found[tp].offset < end.offset
    }


def held_of(
    held: Mapping[TopicPartition, tuple[int, int]],
    producers: Part[Producing],
    listed: Part[Listed],
    described: Part[dict[str, TransactionDescription]],
    now_ms: int,
    query: Query,
) -> Table[HeldRow]:
    """`described`: of the ongoing transactions."""
    known = {row.producer_id: row for some in (listed.value or {}).values() for row in some}

    def unknown_to_its_coordinator(producer_id: int, partition: TopicPartition) -> bool:
        listing = known.get(producer_id)
        if listed.value is None or listed.problems:
            return False  # it may be among those that could not be read
        if listing is None or listing.state not in (ONGOING, *ENDING):
            return True
        description = (described.value or {}).get(listing.transactional_id)
        return (
            listing.state == ONGOING and description is not None and partition not in description.partitions
        )

    rows = []
    for tp, (stable, end) in held.items():
        states = (producers.value or {}).get(tp, ())
        first = next((each for each in states if each.transaction_start_offset == stable), None)
        if first is None:
            rows.append(HeldRow(tp.topic, tp.partition, stable, end - stable, None, "", None, False))
            continue
        quiet_ms = max(0, now_ms - first.last_timestamp_ms)
        hangs = quiet_ms >= QUIET_MS_MIN and unknown_to_its_coordinator(first.producer_id, tp)
        listing = known.get(first.producer_id)
        id_ = listing.transactional_id if listing is not None else ""
        rows.append(
            HeldRow(tp.topic, tp.partition, stable, end - stable, first.producer_id, id_, quiet_ms, hangs)
        )
    return table_of(
        rows, HELD, query, text=lambda row: f"{row.topic} {row.transactional_id}", default_sort="state"
    )


@dataclass(frozen=True, slots=True)
class ProducerRow:
    """A producer in a partition."""

    partition: int
    state: ProducerState
    quiet_ms: int
    """Since its last record."""
    holds: bool = False
    """Its open transaction is the first one of the partition: the last stable offset is where it begins."""
    waiting: int | None = None
    """Records from there to the end of the log, which consumers of read_committed do not get yet."""
    transactional_id: str = ""
    """Empty: it has none, or it is not known."""

    @property
    def open(self) -> bool:
        """Whether it has an open transaction in the partition."""
        return self.state.transaction_start_offset >= 0


PRODUCERS: Final[tuple[Column[ProducerRow], ...]] = (
    Column("partition", "Partition", lambda row: row.partition, numeric=True),
    Column("producer", "Producer id", lambda row: row.state.producer_id, numeric=True),
    Column("epoch", "Epoch", lambda row: row.state.producer_epoch, numeric=True),
    Column("sequence", "Last sequence", lambda row: row.state.last_sequence, numeric=True),
    Column("quiet", "Last record", lambda row: row.quiet_ms, numeric=True, hint="Time since its last record"),
    Column(
        "open",
        "Open transaction",
        lambda row: (not row.open, row.state.transaction_start_offset if row.open else row.quiet_ms),
    ),
)


@dataclass(frozen=True, slots=True)
class Producers:
    """The tab of the producers of a topic."""

    name: str
    internal: bool
    table: Table[ProducerRow]
    producers: int
    open: int
    holding: tuple[ProducerRow, ...]
    """Those that hold a last stable offset back."""
    problems: tuple[Problem, ...]


def producers_of(
    name: str,
    internal: bool,
    found: Part[Producing],
    now_ms: int,
    query: Query,
    *,
    ends: Mapping[TopicPartition, int] | None = None,
    ids: Mapping[int, str] | None = None,
) -> Producers:
    """`ends`: log end offsets; `ids`: transactional ids by producer id."""
    rows = []
    for tp, states in (found.value or {}).items():
        opened = [each.transaction_start_offset for each in states if each.transaction_start_offset >= 0]
        end = (ends or {}).get(tp)
        for state in states:
            start = state.transaction_start_offset
            holds = start >= 0 and start == min(opened)
            waiting = end - start if holds and end is not None else None
            quiet_ms = max(0, now_ms - state.last_timestamp_ms)
            id_ = (ids or {}).get(state.producer_id, "")
            rows.append(ProducerRow(tp.partition, state, quiet_ms, holds, waiting, id_))
    table = table_of(
        rows,
        PRODUCERS,
        query,
        text=lambda row: f"{row.state.producer_id} {row.transactional_id}",
        default_sort="open",
    )
    distinct = len({row.state.producer_id for row in rows})
    holding = tuple(row for row in rows if row.holds)
    return Producers(name, internal, table, distinct, sum(row.open for row in rows), holding, found.problems)
