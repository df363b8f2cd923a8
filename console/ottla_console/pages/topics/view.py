"""The view model of the list of topics. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from ottla.client.admin_types import TopicDescription
from ottla_console.cluster.problems import Problem
from ottla_console.cluster.snapshot import Snapshot
from ottla_console.views.tables import Column, Query, Table, table_of


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic in the list."""

    name: str
    internal: bool
    starred: bool
    partitions: int
    replication: int
    offline: int
    not_in_sync: int
    bytes: int | None
    """Of all replicas."""
    records_in: float | None
    bytes_in: float | None
    groups: tuple[tuple[str, int], ...]
    """That read it, with their lag in it; the largest lag first."""

    @property
    def lag(self) -> int | None:
        return self.groups[0][1] if self.groups else None


@dataclass(frozen=True, slots=True)
class Topics:
    """What the page shows."""

    table: Table[TopicRow]
    known: bool
    internal: bool
    starred: bool
    starred_count: int
    hidden: int
    """Internal topics that are not listed."""
    problems: tuple[Problem, ...]


COLUMNS: Final[tuple[Column[TopicRow], ...]] = (
    Column("star", "", None),
    Column("name", "Topic", lambda row: row.name.casefold()),
    Column(
        "state", "State", lambda row: (row.offline == 0, row.not_in_sync == 0, -row.offline, -row.not_in_sync)
    ),
    Column("partitions", "Partitions", lambda row: row.partitions, numeric=True),
    Column(
        "replication",
        "Replicas",
        lambda row: row.replication,
        numeric=True,
        hint="Replicas of each partition",
    ),
    Column("size", "Size", lambda row: row.bytes, numeric=True, hint="Bytes of all replicas"),
    Column("records", "Records in", lambda row: row.records_in, numeric=True, hint="Records per second"),
    Column(
        "bytes", "Bytes in", lambda row: row.bytes_in, numeric=True, hint="Bytes per second at the leaders"
    ),
    Column("groups", "Read by", lambda row: len(row.groups) or None, numeric=False),
    Column("lag", "Lag", lambda row: row.lag, numeric=True, hint="The largest lag of a group, in records"),
)


def topics_of(snapshot: Snapshot, query: Query, starred: Collection[str]) -> Topics:
    """The list: internal topics only with `internal`, favourites alone with `starred`."""
    internal, only_starred = bool(query.other("internal")), bool(query.other("starred"))
    topics = snapshot.known_topics
    rows = [
        replace(row, starred=True) if row.name in starred else row
        for row in snapshot.once(_rows)
        if (internal or not row.internal) and (not only_starred or row.name in starred)
    ]
    return Topics(
        table_of(rows, COLUMNS, query, text=lambda row: row.name, default_sort="name"),
        snapshot.topics.value is not None,
        internal,
        only_starred,
        sum(name in topics for name in starred),
        0 if internal else sum(topic.internal for topic in topics.values()),
        snapshot.topics.problems,
    )


def _rows(snapshot: Snapshot) -> list[TopicRow]:
    return [_row(snapshot, topic) for topic in snapshot.known_topics.values()]


def _row(snapshot: Snapshot, topic: TopicDescription) -> TopicRow:
    last = snapshot.history.last
    readers = snapshot.readers.get(topic.name, {})
    return TopicRow(
        topic.name,
        topic.internal,
        False,
        len(topic.partitions),
        max((len(each.replicas) for each in topic.partitions), default=0),
        sum(each.leader < 0 for each in topic.partitions),
        sum(each.leader >= 0 and each.under_replicated for each in topic.partitions),
        snapshot.topic_sizes.get(topic.name) if snapshot.log_dirs.value else None,
        None if last is None or last.records_in is None else last.topic_records.get(topic.name, 0.0),
        None if last is None or last.bytes_in is None else last.topic_bytes.get(topic.name, 0.0),
        tuple(
            sorted(
                ((group, lag.records) for group, lag in readers.items()), key=lambda pair: (-pair[1], pair[0])
            )
        ),
    )
