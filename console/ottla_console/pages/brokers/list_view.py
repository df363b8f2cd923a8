"""The view model of the list of brokers. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ottla_console.cluster.brokers import Broker, brokers_of
from ottla_console.cluster.collecting import merged
from ottla_console.cluster.problems import Problem
from ottla_console.cluster.snapshot import Snapshot
from ottla_console.views.tables import Column, Query, Table, table_of

COLUMNS: Final[tuple[Column[Broker], ...]] = (
    Column("id", "Broker", lambda row: row.id),
    Column("rack", "Rack", lambda row: row.rack or None),
    Column("load", "Traffic", lambda row: row.load, numeric=True, hint="Records in and out per second"),
    Column("in", "In", lambda row: row.records_in, numeric=True, hint="Records to partitions that it leads"),
    Column("out", "Out", lambda row: row.records_out, numeric=True, hint="Of these, committed by groups"),
    Column("written", "Written", lambda row: row.bytes_in, numeric=True, hint="To disk, with replication"),
    Column("leaders", "Leads", lambda row: row.leaders, numeric=True, hint="Partitions that it leads"),
    Column("replicas", "Replicas", lambda row: row.replicas, numeric=True),
    Column("data", "Data", lambda row: row.used_bytes, numeric=True),
    Column("disk", "Log directories", lambda row: row.disk_share, hint="Ordered by the fullest volume"),
)


@dataclass(frozen=True, slots=True)
class Brokers:
    """What the page shows."""

    table: Table[Broker]
    hottest: Broker | None
    """That with the most records in and out; None without any, and of one broker."""
    hottest_share: float
    problems: tuple[Problem, ...]


def list_of(snapshot: Snapshot, query: Query) -> Brokers:
    brokers = brokers_of(snapshot)
    total = sum(each.load or 0.0 for each in brokers)
    hottest = max(brokers, key=lambda each: each.load or 0.0) if total > 0 and len(brokers) > 1 else None
    table = table_of(
        brokers,
        COLUMNS,
        query,
        text=lambda row: f"{row.id} {row.address} {row.rack}",
        default_sort="load",
        descending=True,
    )
    problems = merged(snapshot.cluster.problems, snapshot.log_dirs.problems)
    return Brokers(table, hottest, (hottest.load or 0.0) / total if hottest else 0.0, problems)
