"""The view model of the list of groups. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ottla_console.cluster.problems import Problem
from ottla_console.cluster.snapshot import Snapshot
from ottla_console.views.charts import Values
from ottla_console.views.tables import Column, Query, Table, table_of


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group in the list."""

    id: str
    state: str
    kind: str
    """The protocol type: consumer, connect; empty for offsets without members."""
    topics: tuple[str, ...]
    """With committed offsets; those with the largest lag first."""
    lag: int | None
    """In all topics; None: no committed offset, or not known."""
    records_out: float | None
    lags: Values
    """Over time."""


COLUMNS: Final[tuple[Column[GroupRow], ...]] = (
    Column("id", "Group", lambda row: row.id.casefold()),
    Column("state", "State", lambda row: row.state),
    Column("kind", "Protocol", lambda row: row.kind),
    Column("topics", "Topics", lambda row: len(row.topics)),
    Column("out", "Records out", lambda row: row.records_out, numeric=True, hint="Committed per second"),
    Column("lag", "Lag", lambda row: row.lag, numeric=True, hint="Records that the group has not committed"),
    Column("trend", "Lag over time"),
)


@dataclass(frozen=True, slots=True)
class Groups:
    """What the page shows."""

    table: Table[GroupRow]
    states: tuple[tuple[str, int], ...]
    """With their numbers of groups."""
    state: str
    known: bool
    problems: tuple[Problem, ...]


def groups_of(snapshot: Snapshot, query: Query) -> Groups:
    """The list; with `state`, the groups in this state alone."""
    state = query.other("state")
    groups = snapshot.known_groups.values()
    counts: dict[str, int] = {}
    for each in groups:
        counts[each.state] = counts.get(each.state, 0) + 1
    last = snapshot.history.last
    rows = []
    for each in groups:
        if state and each.state != state:
            continue
        topics = snapshot.group_topics.get(each.group_id, {})
        lag = snapshot.group_lags.get(each.group_id)
        rows.append(
            GroupRow(
                each.group_id,
                each.state,
                each.protocol_type,
                tuple(sorted(topics, key=lambda topic: (-topics[topic].records, topic))),
                lag.records if lag else None,
                None
                if last is None or last.records_out is None
                else last.group_records.get(each.group_id, 0.0),
                snapshot.history.group_lag(each.group_id),
            )
        )
    table = table_of(
        rows,
        COLUMNS,
        query,
        text=lambda row: f"{row.id} {' '.join(row.topics)}",
        default_sort="lag",
        descending=True,
    )
    problems = (*snapshot.groups.problems, *snapshot.committed.problems)
    return Groups(table, tuple(sorted(counts.items())), state, snapshot.groups.value is not None, problems)
