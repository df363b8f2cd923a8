"""The format of a backup: gzipped lines of JSON, with a version, a count and a checksum.

Pure. The first line is the header, the last one the end with the number of lines before it and the SHA-256 of
their bytes; docs/operations/backup.md has all kinds of lines. A reader refuses a newer version, a line of a
kind that it does not know, and a file that is cut or changed.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ottla.security.acls import (
    AclBinding,
    Entry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)

FORMAT: Final = "ottla-backup"
VERSION: Final = 1


class BackupError(Exception):
    """A file that is no backup, or that cannot be read; a message for people."""


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic; `config` has its own settings."""

    name: str
    partitions: int
    replicas: int
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, order=True)
class OffsetRecord:
    """An offset that a group has committed."""

    group: str
    topic: str
    partition: int
    offset: int
    metadata: str = ""


Entity = tuple[tuple[str, str | None], ...]
"""(entity type, name) pairs, sorted; None is the default entity of the type."""


@dataclass(frozen=True, slots=True)
class Backup:
    """The metadata of a cluster at one time."""

    cluster_id: str = ""
    created_at: str = ""
    topics: Mapping[str, TopicRecord] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Dynamic settings by broker id; "" for those of all brokers."""
    acls: frozenset[AclBinding] = frozenset()
    quotas: Mapping[Entity, Mapping[str, float]] = field(default_factory=dict)
    users: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Iterations by mechanism of users with a password, which is not in the backup."""
    offsets: frozenset[OffsetRecord] = frozenset()
    left_out: tuple[str, ...] = ()
    """What the brokers do not tell."""


def dumped(backup: Backup) -> bytes:
    """The backup as a file; the same bytes for the same backup."""
    lines = b"".join(_line(record) for record in _records(backup))
    end = {"kind": "end", "lines": lines.count(b"\n"), "sha256": hashlib.sha256(lines).hexdigest()}
    return gzip.compress(lines + _line(end), mtime=0)


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _records(backup: Backup) -> Iterator[Mapping[str, Any]]:
    yield {
        "kind": "header", "format": FORMAT, "version": VERSION, "clusterId": backup.cluster_id,
        "createdAt": backup.created_at,
    }  # fmt: skip
    for name, topic in sorted(backup.topics.items()):
        config = dict(sorted(topic.config.items()))
        counts = {"partitions": topic.partitions, "replicas": topic.replicas}
        yield {"kind": "topic", "name": name, **counts, "config": config}
    for broker, settings in sorted(backup.settings.items()):
        yield {"kind": "settings", "broker": broker, "config": dict(sorted(settings.items()))}
    for binding in sorted(backup.acls, key=repr):
        pattern, entry = binding
        yield {
            "kind": "acl", "resourceType": pattern.resource_type.name,
            "patternType": pattern.pattern_type.name, "name": pattern.name,
            "principal": entry.principal, "host": entry.host,
            "operation": entry.operation.name, "permission": entry.permission.name,
        }  # fmt: skip
    for entity, values in sorted(backup.quotas.items(), key=repr):
        yield {"kind": "quota", "entity": dict(entity), "values": dict(sorted(values.items()))}
    for user, mechanisms in sorted(backup.users.items()):
        yield {"kind": "user", "name": user, "mechanisms": dict(sorted(mechanisms.items()))}
    for each in sorted(backup.offsets):
        yield {
            "kind": "offset", "group": each.group, "topic": each.topic, "partition": each.partition,
            "offset": each.offset, "metadata": each.metadata,
        }  # fmt: skip
    for text in backup.left_out:
        yield {"kind": "leftOut", "what": text}


def loaded(content: bytes) -> Backup:
    """The backup in a file. Raises BackupError."""
    try:
        lines = gzip.decompress(content).splitlines(keepends=True)
        records = [json.loads(line) for line in lines]
        header = records[0]
        is_backup = header["kind"] == "header" and header["format"] == FORMAT
    except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError, zlib.error):
        raise BackupError("it is no backup of Ottla, or it is damaged") from None
    if not is_backup:
        raise BackupError("it is no backup of Ottla")
    if header["version"] != VERSION:
        message = f"its format has version {header['version']}, and this program reads version {VERSION}"
        raise BackupError(f"{message}: use a newer one")
    end, body = records[-1], b"".join(lines[:-1])
    if end.get("kind") != "end" or end.get("lines") != len(lines) - 1:
        raise BackupError("it is cut: its end is missing")
    if end.get("sha256") != hashlib.sha256(body).hexdigest():
        raise BackupError("its checksum differs: it has been changed")
    try:
        return _backup(header, records[1:-1])
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise BackupError(f"a line of it cannot be read: {error}") from None


def _backup(header: Mapping[str, Any], records: list[dict[str, Any]]) -> Backup:
    topics: dict[str, TopicRecord] = {}
    settings: dict[str, Mapping[str, str]] = {}
    acls: set[AclBinding] = set()
    quotas: dict[Entity, Mapping[str, float]] = {}
    users: dict[str, Mapping[str, int]] = {}
    offsets: set[OffsetRecord] = set()
    left_out: list[str] = []

    def topic(r: dict[str, Any]) -> None:
        topics[r["name"]] = TopicRecord(r["name"], r["partitions"], r["replicas"], r["config"])

    def offset(r: dict[str, Any]) -> None:
        where = (r["group"], r["topic"], r["partition"])
        offsets.add(OffsetRecord(*where, r["offset"], r["metadata"]))

    readers: Mapping[str, Callable[[dict[str, Any]], None]] = {
        "topic": topic,
        "settings": lambda r: settings.update({r["broker"]: r["config"]}),
        "acl": lambda r: acls.add(_binding(r)),
        "quota": lambda r: quotas.update({tuple(sorted(r["entity"].items())): r["values"]}),
        "user": lambda r: users.update({r["name"]: r["mechanisms"]}),
        "offset": offset,
        "leftOut": lambda r: left_out.append(r["what"]),
    }
    for record in records:
        readers[record["kind"]](record)
    return Backup(
        header["clusterId"],
        header["createdAt"],
        topics,
        settings,
        frozenset(acls),
        quotas,
        users,
        frozenset(offsets),
        tuple(left_out),
    )


def _binding(record: Mapping[str, str]) -> AclBinding:
    pattern = ResourcePattern(
        ResourceType[record["resourceType"]], record["name"], PatternType[record["patternType"]]
    )
    operation, permission = Operation[record["operation"]], Permission[record["permission"]]
    return AclBinding(pattern, Entry(record["principal"], record["host"], operation, permission))


def summary(found: Backup) -> str:
    """What is in a backup, in one line."""
    counts = (
        (len(found.topics), "topic"),
        (sum(map(len, found.settings.values())), "setting"),
        (len(found.acls), "ACL"),
        (sum(map(len, found.quotas.values())), "quota"),
        (len(found.offsets), "offset"),
    )
    return ", ".join(f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts)
