"""The view models of one broker. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ottla.client.admin_types import ConfigEntry, LogDirDescription, Node
from ottla_console.cluster.problems import Problem
from ottla_console.cluster.snapshot import Part, Snapshot
from ottla_console.views.configs import SettingRow, changed, settings_table
from ottla_console.views.tables import Column, Query, Table, table_of


@dataclass(frozen=True, slots=True)
class Head:
    """What is above the tabs of a broker."""

    id: int | None
    """None: no broker of this id is known."""
    text: str
    node: Node | None
    """None: it is away."""
    controller: bool
    leaders: int


def head_of(snapshot: Snapshot, text: str) -> Head:
    """Of the broker with this id: one of the cluster, or one that has replicas."""
    id_ = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    cluster = snapshot.cluster.value
    node = next((each for each in cluster.brokers if each.id == id_), None) if cluster else None
    known = node is not None or any(
        id_ in each.replicas for topic in snapshot.known_topics.values() for each in topic.partitions
    )
    return Head(
        id_ if known else None,
        text,
        node,
        cluster is not None and id_ >= 0 and cluster.controller_id == id_,
        snapshot.leaders.get(id_, 0),
    )


@dataclass(frozen=True, slots=True)
class DirectoryRow:
    """A log directory."""

    path: str
    error: str
    replicas: int
    bytes: int
    total: int
    usable: int

    @property
    def share(self) -> float | None:
        """The used part of its volume."""
        return 1 - self.usable / self.total if self.total > 0 else None


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """A replica on the broker."""

    topic: str
    partition: int
    directory: str
    bytes: int
    lag: int
    future: bool


REPLICAS: Final[tuple[Column[ReplicaRow], ...]] = (
    Column("topic", "Topic", lambda row: (row.topic.casefold(), row.partition)),
    Column("partition", "Partition", lambda row: row.partition, numeric=True),
    Column("size", "Size", lambda row: row.bytes, numeric=True),
    Column("lag", "Behind", lambda row: row.lag, numeric=True, hint="Records behind the high watermark"),
    Column("directory", "Directory", lambda row: row.directory),
)


@dataclass(frozen=True, slots=True)
class Disks:
    """The tab of the log directories."""

    head: Head
    directories: tuple[DirectoryRow, ...]
    table: Table[ReplicaRow]
    problems: tuple[Problem, ...]


def disks_of(head: Head, found: Part[tuple[LogDirDescription, ...]], query: Query) -> Disks:
    directories = found.value or ()
    rows = [
        ReplicaRow(tp.topic, tp.partition, each.path, replica.size, replica.offset_lag, replica.is_future)
        for each in directories
        for tp, replica in each.replicas.items()
    ]
    return Disks(
        head,
        tuple(
            DirectoryRow(
                each.path,
                str(each.error) if each.error else "",
                len(each.replicas),
                sum(replica.size for replica in each.replicas.values()),
                each.total_bytes,
                each.usable_bytes,
            )
            for each in sorted(directories, key=lambda each: each.path)
        ),
        table_of(
            rows,
            REPLICAS,
            query,
            text=lambda row: f"{row.topic} {row.directory}",
            default_sort="size",
            descending=True,
        ),
        found.problems,
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """The tab of the settings."""

    head: Head
    table: Table[SettingRow]
    changed: int
    problems: tuple[Problem, ...]


def settings_of(head: Head, found: Part[dict[str, ConfigEntry]], query: Query) -> Settings:
    entries: Mapping[str, ConfigEntry] = found.value or {}
    return Settings(head, settings_table(entries, query), changed(entries), found.problems)
