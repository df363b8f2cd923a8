"""The view models of one topic: partitions, settings, groups, ACLs. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ottla.client.admin_types import ConfigEntry, TopicDescription, TopicPartition
from ottla.security.acls import AclBinding, Operation, Permission
from ottla_console.cluster.problems import Problem
from ottla_console.cluster.rates import History
from ottla_console.cluster.snapshot import Part, Snapshot
from ottla_console.views.configs import SettingRow, changed, settings_table
from ottla_console.views.tables import Column, Query, Table, table_of


@dataclass(frozen=True, slots=True)
class Head:
    """What is above the tabs of a topic."""

    name: str
    topic: TopicDescription | None
    """None: it does not exist, or the principal may not see it."""
    known: bool
    bytes: int | None
    history: History
    problems: tuple[Problem, ...] = ()

    @property
    def internal(self) -> bool:
        return self.topic is not None and self.topic.internal

    @property
    def replication(self) -> int:
        return max((len(each.replicas) for each in self.topic.partitions), default=0) if self.topic else 0


def head_of(snapshot: Snapshot, name: str) -> Head:
    return Head(
        name,
        snapshot.known_topics.get(name),
        snapshot.topics.value is not None,
        snapshot.topic_sizes.get(name) if snapshot.log_dirs.value else None,
        snapshot.history,
        snapshot.topics.problems,
    )


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition of a topic."""

    partition: int
    leader: int
    preferred: bool
    """The leader is the first replica."""
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]
    start: int | None
    end: int | None
    bytes: int | None
    """Of the leader's replica."""

    @property
    def records(self) -> int | None:
        """The length of the log in offsets: as many records at most."""
        return None if self.start is None or self.end is None else self.end - self.start

    @property
    def state(self) -> str:
        if self.leader < 0:
            return "offline"
        return "not in sync" if len(self.isr) < len(self.replicas) else "in sync"


PARTITIONS: Final[tuple[Column[PartitionRow], ...]] = (
    Column("partition", "Partition", lambda row: row.partition, numeric=True),
    Column("state", "State", lambda row: row.state),
    Column("leader", "Leader", lambda row: row.leader, numeric=True),
    Column("replicas", "Replicas", lambda row: row.replicas),
    Column("isr", "In sync", lambda row: len(row.isr)),
    Column("start", "First offset", lambda row: row.start, numeric=True),
    Column("end", "End offset", lambda row: row.end, numeric=True),
    Column(
        "records",
        "Records",
        lambda row: row.records,
        numeric=True,
        hint="At most: the length of the log in offsets",
    ),
    Column("size", "Size", lambda row: row.bytes, numeric=True, hint="Bytes of the leader's replica"),
)


@dataclass(frozen=True, slots=True)
class Partitions:
    """The tab of the partitions."""

    head: Head
    table: Table[PartitionRow]
    records: int | None
    problems: tuple[Problem, ...]


def partitions_of(
    snapshot: Snapshot,
    head: Head,
    starts: Part[dict[TopicPartition, int]],
    ends: Part[dict[TopicPartition, int]],
    query: Query,
) -> Partitions:
    assert head.topic is not None
    sizes = _leader_sizes(snapshot, head.topic)
    rows = []
    for each in head.topic.partitions:
        tp = TopicPartition(head.name, each.partition)
        rows.append(
            PartitionRow(
                each.partition,
                each.leader,
                each.leader == (each.replicas[0] if each.replicas else -1),
                each.replicas,
                each.isr,
                each.offline_replicas,
                (starts.value or {}).get(tp),
                (ends.value or {}).get(tp),
                sizes.get(each.partition),
            )
        )
    known = [row.records for row in rows if row.records is not None]
    return Partitions(
        head,
        table_of(rows, PARTITIONS, query, text=lambda row: str(row.partition), default_sort="partition"),
        sum(known) if known else None,
        (*head.problems, *starts.problems, *ends.problems),
    )


def _leader_sizes(snapshot: Snapshot, topic: TopicDescription) -> dict[int, int]:
    """Bytes of the leaders' replicas by partition."""
    found = {}
    for each in topic.partitions:
        for directory in (snapshot.log_dirs.value or {}).get(each.leader, ()):
            replica = directory.replicas.get(TopicPartition(topic.name, each.partition))
            if replica is not None and not replica.is_future:
                found[each.partition] = replica.size
    return found


@dataclass(frozen=True, slots=True)
class Settings:
    """The tab of the settings."""

    head: Head
    table: Table[SettingRow]
    changed: int
    """Settings that are not defaults."""
    problems: tuple[Problem, ...]


def settings_of(head: Head, found: Part[dict[str, ConfigEntry]], query: Query) -> Settings:
    entries = found.value or {}
    return Settings(head, settings_table(entries, query), changed(entries), found.problems)


@dataclass(frozen=True, slots=True)
class ReaderRow:
    """A group that has committed offsets in the topic."""

    group: str
    state: str
    partitions: int
    lag: int


READERS: Final[tuple[Column[ReaderRow], ...]] = (
    Column("group", "Group", lambda row: row.group.casefold()),
    Column("state", "State", lambda row: row.state),
    Column(
        "partitions", "Partitions", lambda row: row.partitions, numeric=True, hint="With a committed offset"
    ),
    Column("lag", "Lag", lambda row: row.lag, numeric=True, hint="Records that it has not committed"),
)


@dataclass(frozen=True, slots=True)
class Groups:
    """The tab of the groups."""

    head: Head
    table: Table[ReaderRow]
    problems: tuple[Problem, ...]


def groups_of(snapshot: Snapshot, head: Head, query: Query) -> Groups:
    rows = []
    for group, lag in snapshot.readers.get(head.name, {}).items():
        listing = snapshot.known_groups.get(group)
        rows.append(ReaderRow(group, listing.state if listing else "", lag.partitions, lag.records))
    return Groups(
        head,
        table_of(rows, READERS, query, text=lambda row: row.group, default_sort="lag", descending=True),
        (*snapshot.groups.problems, *snapshot.committed.problems),
    )


ANY_HOST: Final = "*"
EVERYONE: Final = "User:*"
ACLS: Final[tuple[Column[AclBinding], ...]] = (
    Column("principal", "Principal", lambda acl: acl.entry.principal),
    Column("permission", "Permission", lambda acl: acl.entry.permission.label),
    Column("operation", "Operation", lambda acl: acl.entry.operation.label),
    Column("host", "Host", lambda acl: acl.entry.host),
    Column(
        "pattern",
        "By",
        lambda acl: (acl.pattern.pattern_type, acl.pattern.name),
        hint="The resource pattern of the ACL",
    ),
)


def permitted(acls: list[AclBinding], operation: Operation) -> tuple[str, ...]:
    """The principals that these ACLs permit an operation, without those that they deny it from any host."""
    matching = [acl.entry for acl in acls if acl.entry.operation in (operation, Operation.ALL)]
    denied = {
        each.principal for each in matching if each.permission is Permission.DENY and each.host == ANY_HOST
    }
    if EVERYONE in denied:
        return ()
    allowed = {
        each.principal if each.host == ANY_HOST else f"{each.principal} from {each.host}"
        for each in matching
        if each.permission is Permission.ALLOW and each.principal not in denied
    }
    return tuple(sorted(allowed))


@dataclass(frozen=True, slots=True)
class Acls:
    """The tab of the ACLs that apply to the topic."""

    head: Head
    table: Table[AclBinding]
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    problems: tuple[Problem, ...]


def acls_of(head: Head, found: Part[list[AclBinding]], query: Query) -> Acls:
    table = table_of(
        found.value or [], ACLS, query, text=lambda acl: f"{acl.entry.principal} {acl.entry.operation.label}",
        default_sort="principal",
    )  # fmt: skip
    acls = found.value or []
    writers, readers = permitted(acls, Operation.WRITE), permitted(acls, Operation.READ)
    return Acls(head, table, writers, readers, found.problems)
