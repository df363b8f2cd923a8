"""The view model of the reassignments. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ottla.client.admin_types import Reassignment, TopicPartition
from ottla_console.cluster.problems import Problem
from ottla_console.cluster.resources import State
from ottla_console.cluster.snapshot import Part, Snapshot
from ottla_console.views.tables import Column, Query, Table, table_of


@dataclass(frozen=True, slots=True)
class MoveRow:
    """A partition that moves."""

    topic: str
    partition: int
    staying: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    bytes: int | None
    """Of the leader's replica: what each new replica copies."""
    copied: float | None
    """The share that the new replicas have, 0 to 1, by size on disk; None: not known."""


COLUMNS: Final[tuple[Column[MoveRow], ...]] = (
    Column("topic", "Topic", lambda row: (row.topic.casefold(), row.partition)),
    Column("partition", "Partition", lambda row: row.partition, numeric=True),
    Column("staying", "Stays on", lambda row: row.staying),
    Column("adding", "Moves to", lambda row: row.adding),
    Column("removing", "Leaves", lambda row: row.removing),
    Column("size", "Size", lambda row: row.bytes, numeric=True, hint="Bytes of the leader's replica"),
    Column("copied", "Copied", lambda row: row.copied, hint="Of the new replicas, by size on disk"),
)


@dataclass(frozen=True, slots=True)
class Reassignments:
    """What the page shows."""

    table: Table[MoveRow]
    bytes: int
    """That new replicas still have to copy."""
    problems: tuple[Problem, ...]
    resources: State | None
    """On Kubernetes; None if it is not there, or not known."""
    now_ms: int


def reassignments_of(
    snapshot: Snapshot,
    found: Part[dict[TopicPartition, Reassignment]],
    query: Query,
    resources: State | None = None,
    now_ms: int = 0,
) -> Reassignments:
    moves = found.value or {}
    sizes = _sizes(snapshot, moves)
    rows = [_row(snapshot, tp, move, sizes) for tp, move in moves.items()]
    left = sum(
        int(row.bytes * len(row.adding) * (1 - (row.copied or 0.0))) for row in rows if row.bytes is not None
    )
    table = table_of(rows, COLUMNS, query, text=lambda row: row.topic, default_sort="topic")
    return Reassignments(table, left, found.problems, resources, now_ms)


def _sizes(
    snapshot: Snapshot, moves: Mapping[TopicPartition, Reassignment]
) -> dict[tuple[int, TopicPartition], int]:
    """Bytes of the replicas of these partitions by broker."""
    return {
        (broker, tp): replica.size
        for broker, directories in (snapshot.log_dirs.value or {}).items()
        for directory in directories
        for tp, replica in directory.replicas.items()
        if tp in moves and not replica.is_future
    }


def _row(
    snapshot: Snapshot,
    tp: TopicPartition,
    move: Reassignment,
    sizes: Mapping[tuple[int, TopicPartition], int],
) -> MoveRow:
    topic = snapshot.known_topics.get(tp.topic)
    leader = (
        next((each.leader for each in topic.partitions if each.partition == tp.partition), -1)
        if topic
        else -1
    )
    size = sizes.get((leader, tp))
    copied = None
    if size is not None and move.adding:
        shares = [min(sizes.get((broker, tp), 0) / size, 1.0) if size else 1.0 for broker in move.adding]
        copied = sum(shares) / len(shares)
    staying = tuple(broker for broker in move.replicas if broker not in {*move.adding, *move.removing})
    return MoveRow(tp.topic, tp.partition, staying, move.adding, move.removing, size, copied)
