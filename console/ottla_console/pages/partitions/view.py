"""The view model of the partitions that are not in sync. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ottla_console.cluster.problems import Problem
from ottla_console.cluster.snapshot import Snapshot
from ottla_console.views.tables import Column, Query, Table, table_of

MINIMUM: Final = "min.insync.replicas"


@dataclass(frozen=True, slots=True)
class Row:
    """A partition without a leader, or with replicas that are not in sync."""

    topic: str
    partition: int
    offline: bool
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    missing: tuple[int, ...]
    """The brokers whose replicas are not in sync."""
    for_ms: int
    """For how long the console has seen it so; -1: not known."""
    longer: bool
    """It was so before the console looked."""
    minimum: int | None
    """min.insync.replicas of the topic; None: not known."""

    @property
    def refuses(self) -> bool:
        """Whether records with acks=all are refused, because too few replicas are in sync."""
        return not self.offline and self.minimum is not None and len(self.isr) < self.minimum


COLUMNS: Final[tuple[Column[Row], ...]] = (
    Column("topic", "Topic", lambda row: (row.topic.casefold(), row.partition)),
    Column("partition", "Partition", lambda row: row.partition, numeric=True),
    Column(
        "state", "State", lambda row: (not row.offline, not row.refuses, row.topic.casefold(), row.partition)
    ),
    Column("since", "Since", lambda row: row.for_ms if row.for_ms >= 0 else None, numeric=True),
    Column("missing", "Not in sync", lambda row: row.missing, hint="Brokers with a replica that is behind"),
    Column("isr", "In sync", lambda row: row.isr),
    Column(
        "minimum", "Needs", lambda row: row.minimum, numeric=True, hint="min.insync.replicas, for acks=all"
    ),
    Column("leader", "Leader", lambda row: row.leader, numeric=True),
)


@dataclass(frozen=True, slots=True)
class Partitions:
    """What the page shows."""

    table: Table[Row]
    known: bool
    refusing: int
    """Partitions that refuse records with acks=all."""
    now_ms: int
    watched_ms: int
    """When the console began to look; -1: not yet."""
    problems: tuple[Problem, ...]


def partitions_of(
    snapshot: Snapshot, query: Query, now_ms: int, minimums: Mapping[str, int] | None = None
) -> Partitions:
    """`minimums`: min.insync.replicas by topic, where it is known."""
    rows = []
    for topic, each in (*snapshot.offline, *snapshot.not_in_sync):
        since_ms = snapshot.behind_since.get((topic, each.partition), -1)
        rows.append(
            Row(
                topic,
                each.partition,
                each.leader < 0,
                each.leader,
                each.replicas,
                each.isr,
                tuple(broker for broker in each.replicas if broker not in each.isr),
                max(0, now_ms - since_ms) if since_ms >= 0 else -1,
                since_ms == snapshot.watched_ms,
                (minimums or {}).get(topic),
            )
        )
    table = table_of(rows, COLUMNS, query, text=lambda row: row.topic, default_sort="state")
    return Partitions(
        table,
        snapshot.topics.value is not None,
        sum(row.refuses for row in rows),
        now_ms,
        snapshot.watched_ms,
        snapshot.topics.problems,
    )
