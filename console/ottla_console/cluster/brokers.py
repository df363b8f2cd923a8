"""The brokers of a snapshot, with what they lead, hold and move. Pure; for the pages that list brokers."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.client.admin_types import LogDirDescription
from ottla_console.cluster.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Directory:
    """A log directory of a broker."""

    path: str
    error: str
    used_share: float | None
    """Of its volume, 0 to 1; None: not known."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker: of the cluster, or one that is only known from replicas that are on it."""

    id: int
    host: str
    port: int
    rack: str
    controller: bool
    online: bool
    leaders: int
    replicas: int
    used_bytes: int | None
    """Of the log directories; None: not known."""
    directories: tuple[Directory, ...]
    bytes_in: float | None
    """Per second, written to its disks: by producers and by replication."""
    records_in: float | None
    """Per second, to the partitions that it leads."""
    records_out: float | None
    """Per second, committed by groups, of the partitions that it leads."""

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}" if self.online else ""

    @property
    def disk_share(self) -> float | None:
        """The used part of the fullest volume with a log directory."""
        return max(
            (each.used_share for each in self.directories if each.used_share is not None), default=None
        )

    @property
    def load(self) -> float | None:
        """Records in and out per second; None if neither is known."""
        if self.records_in is None and self.records_out is None:
            return None
        return (self.records_in or 0.0) + (self.records_out or 0.0)


def brokers_of(snapshot: Snapshot) -> tuple[Broker, ...]:
    """All brokers, by id."""
    cluster = snapshot.cluster.value
    if cluster is None:
        return ()
    replicas: dict[int, int] = {}
    for topic in snapshot.known_topics.values():
        for each in topic.partitions:
            for broker in each.replicas:
                replicas[broker] = replicas.get(broker, 0) + 1
    online = {node.id: node for node in cluster.brokers}
    last = snapshot.history.last
    found = []
    for id_ in sorted({*online, *replicas}):
        node = online.get(id_)
        dirs = (snapshot.log_dirs.value or {}).get(id_)
        directories = sorted(dirs or (), key=lambda each: each.path)
        known = last if node else None
        found.append(
            Broker(
                id=id_,
                host=node.host if node else "",
                port=node.port if node else -1,
                rack=(node.rack or "") if node else "",
                controller=id_ == cluster.controller_id,
                online=node is not None,
                leaders=snapshot.leaders.get(id_, 0),
                replicas=replicas.get(id_, 0),
                used_bytes=None
                if dirs is None
                else sum(each.size for d in dirs for each in d.replicas.values()),
                directories=tuple(map(_directory, directories)),
                bytes_in=last.broker_bytes.get(id_, 0.0)
                if last and last.bytes_in is not None and dirs is not None
                else None,
                records_in=known.broker_records_in.get(id_, 0.0)
                if known and known.records_in is not None
                else None,
                records_out=known.broker_records_out.get(id_, 0.0)
                if known and known.records_out is not None
                else None,
            )
        )
    return tuple(found)


def _directory(given: LogDirDescription) -> Directory:
    share = 1 - given.usable_bytes / given.total_bytes if given.total_bytes > 0 else None
    return Directory(given.path, str(given.error) if given.error else "", share)
