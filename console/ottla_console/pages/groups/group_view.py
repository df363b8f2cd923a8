"""The view model of one group: members, their partitions, lag. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ottla.client.admin_types import GroupDescription, GroupMember, TopicPartition
from ottla_console.cluster.problems import Problem
from ottla_console.cluster.rates import History
from ottla_console.cluster.snapshot import Part
from ottla_console.views.tables import Column, Query, Table, table_of

DEAD: Final = "Dead"


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A member of the group."""

    member: GroupMember
    lag: int | None
    """Of its partitions; None without a committed offset in them."""


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition that the group reads, or has read."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    member: GroupMember | None

    @property
    def lag(self) -> int | None:
        return None if self.committed is None or self.end is None else max(0, self.end - self.committed)


COLUMNS: Final[tuple[Column[PartitionRow], ...]] = (
    Column("topic", "Topic", lambda row: (row.topic.casefold(), row.partition)),
    Column("partition", "Partition", lambda row: row.partition, numeric=True),
    Column("committed", "Committed", lambda row: row.committed, numeric=True),
    Column("end", "End offset", lambda row: row.end, numeric=True),
    Column("lag", "Lag", lambda row: row.lag, numeric=True),
    Column("member", "Member", lambda row: row.member.client_id if row.member else None),
)


@dataclass(frozen=True, slots=True)
class Group:
    """What the page shows."""

    id: str
    state: str
    protocol: str
    coordinator: int | None
    members: tuple[MemberRow, ...]
    table: Table[PartitionRow]
    lag: int | None
    history: History
    missing: bool
    """It does not exist: no members and no offsets."""
    problems: tuple[Problem, ...]


def group_of(
    id_: str,
    described: Part[GroupDescription],
    offsets: Part[dict[TopicPartition, int]],
    ends: Part[dict[TopicPartition, int]],
    history: History,
    query: Query,
) -> Group:
    group, committed = described.value, offsets.value or {}
    owners = {tp: member for member in (group.members if group else ()) for tp in member.partitions}
    rows = [
        PartitionRow(tp.topic, tp.partition, committed.get(tp), (ends.value or {}).get(tp), owners.get(tp))
        for tp in sorted({*committed, *owners})
    ]
    lags = {TopicPartition(row.topic, row.partition): row.lag for row in rows}
    known = [lag for lag in lags.values() if lag is not None]
    return Group(
        id_,
        group.state if group else "",
        group.protocol if group else "",
        group.coordinator.id if group else None,
        tuple(MemberRow(member, _lag_of(member, lags)) for member in (group.members if group else ())),
        table_of(rows, COLUMNS, query, text=lambda row: f"{row.topic} {row.partition}", default_sort="topic"),
        sum(known) if known else None,
        history,
        group is not None and group.state == DEAD and not committed,
        (*described.problems, *offsets.problems, *ends.problems),
    )


def _lag_of(member: GroupMember, lags: Mapping[TopicPartition, int | None]) -> int | None:
    known = [lag for tp in member.partitions if (lag := lags.get(tp)) is not None]
    return sum(known) if known else None
