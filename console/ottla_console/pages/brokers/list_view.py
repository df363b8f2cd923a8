"""The view model of the list of brokers. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ottla_console.cluster.brokers import Broker, brokers_of
from ottla_console.cluster.collecting import merged
from ottla_console.cluster.problems import Problem
from ottla_console.cluster.resources import Server, State
from ottla_console.cluster.snapshot import Snapshot
from ottla_console.views.tables import Column, Query, Table, table_of


@dataclass(frozen=True, slots=True)
class Row:
    """A broker, and what the operator says of it on Kubernetes."""

    broker: Broker
    server: Server | None

    @property
    def pool(self) -> str:
        return self.server.pool if self.server else ""


COLUMNS: Final[tuple[Column[Row], ...]] = (
    Column("id", "Broker", lambda row: row.broker.id),
    Column("rack", "Rack", lambda row: row.broker.rack or None),
    Column(
        "load", "Traffic", lambda row: row.broker.load, numeric=True, hint="Records in and out per second"
    ),
    Column("in", "In", lambda row: row.broker.records_in, numeric=True, hint="To partitions that it leads"),
    Column("out", "Out", lambda row: row.broker.records_out, numeric=True, hint="Committed by groups"),
    Column("written", "Written", lambda row: row.broker.bytes_in, numeric=True, hint="With replication"),
    Column("leaders", "Leads", lambda row: row.broker.leaders, numeric=True, hint="Partitions"),
    Column("replicas", "Replicas", lambda row: row.broker.replicas, numeric=True),
    Column("data", "Data", lambda row: row.broker.used_bytes, numeric=True),
    Column(
        "disk", "Log directories", lambda row: row.broker.disk_share, hint="Ordered by the fullest volume"
    ),
)
POOL: Final[Column[Row]] = Column("pool", "Pool", lambda row: row.pool or None)


@dataclass(frozen=True, slots=True)
class Brokers:
    """What the page shows."""

    table: Table[Row]
    pools: bool
    """Whether any broker is of a BrokerPool: there is a column for it."""
    hottest: Broker | None
    """That with the most records in and out; None without any, and of one broker."""
    hottest_share: float
    problems: tuple[Problem, ...]


def list_of(snapshot: Snapshot, query: Query, resources: State | None = None) -> Brokers:
    brokers = brokers_of(snapshot)
    servers = {each.id: each for each in resources.brokers} if resources else {}
    rows = [Row(each, servers.get(each.id)) for each in brokers]
    pools = any(row.pool for row in rows)
    total = sum(each.load or 0.0 for each in brokers)
    hottest = max(brokers, key=lambda each: each.load or 0.0) if total > 0 and len(brokers) > 1 else None
    table = table_of(
        rows,
        (*COLUMNS[:2], POOL, *COLUMNS[2:]) if pools else COLUMNS,
        query,
        text=lambda row: f"{row.broker.id} {row.broker.address} {row.broker.rack} {row.pool}",
        default_sort="load",
        descending=True,
    )
    problems = merged(snapshot.cluster.problems, snapshot.log_dirs.problems)
    return Brokers(table, pools, hottest, (hottest.load or 0.0) / total if hottest else 0.0, problems)
