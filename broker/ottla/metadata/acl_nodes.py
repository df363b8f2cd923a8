"""Kafka's ZooKeeper nodes of ACLs: paths and content. Pure, like `znodes`.

Entries of literal patterns are at /kafka-acl/<Type>/<name>, those of prefixed ones at
/kafka-acl-extended/prefixed/<Type>/<name>, as JSON. A change is announced by a sequential node under
/kafka-acl-changes ("TOPIC:name") or /kafka-acl-extended-changes (JSON), which names the pattern to read
again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from ottla.metadata.znodes import InvalidNode
from ottla.security.acls import Entry, Operation, PatternType, Permission, ResourcePattern, ResourceType
from ottla.security.principals import Principal

VERSION: Final = 1
CHANGE_PREFIX: Final = "acl_changes_"
ROOTS: Final = {
    PatternType.LITERAL: "/kafka-acl",
    PatternType.PREFIXED: "/kafka-acl-extended/prefixed",
}
CHANGES: Final = {
    PatternType.LITERAL: "/kafka-acl-changes",
    PatternType.PREFIXED: "/kafka-acl-extended-changes",
}
TYPES: Final = tuple(each for each in ResourceType if each > ResourceType.ANY)


def is_node_name(name: str) -> bool:
    """Whether this can be the name of a node. ZooKeeper itself rejects control characters."""
    return name not in ("", ".", "..") and "/" not in name


def type_path(pattern_type: PatternType, resource_type: ResourceType) -> str:
    return f"{ROOTS[pattern_type]}/{resource_type.label}"


def path(pattern: ResourcePattern) -> str:
    """The node of a pattern's entries."""
    return f"{type_path(pattern.pattern_type, pattern.resource_type)}/{pattern.name}"


def change_prefix(pattern: ResourcePattern) -> str:
    """The path prefix of the sequential notification nodes for this pattern."""
    return f"{CHANGES[pattern.pattern_type]}/{CHANGE_PREFIX}"


def encode(entries: Iterable[Entry]) -> bytes:
    acls = [
        {
            "host": each.host,
            "permissionType": each.permission.label,
            "operation": each.operation.label,
            "principal": each.principal,
        }
        for each in sorted(entries)
    ]
    text = json.dumps({"version": VERSION, "acls": acls}, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def decode(where: str, data: bytes) -> frozenset[Entry]:
    """The entries of a node's data; none for empty data. Raises InvalidNode."""
    if not data:
        return frozenset()
    try:
        found = json.loads(data)
        if found["version"] != VERSION:
            raise InvalidNode(f"{where} has the unsupported version {found['version']!r} of ACLs")
        return frozenset(
            Entry(
                str(Principal.parse(each["principal"])),
                str(each["host"]),
                Operation.named(each["operation"]),
                Permission.named(each["permissionType"]),
            )
            for each in found["acls"]
        )
    except InvalidNode:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidNode(f"{where} has no valid ACLs: {data[:200]!r}") from error


def encode_change(pattern: ResourcePattern) -> bytes:
    if pattern.pattern_type is PatternType.LITERAL:
        return f"{pattern.resource_type.name}:{pattern.name}".encode()
    event = {
        "version": VERSION,
        "resourceType": pattern.resource_type.name,
        "name": pattern.name,
        "patternType": pattern.pattern_type.name,
    }
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode()


def decode_change(kind: PatternType, data: bytes) -> ResourcePattern:
    """The pattern that a notification node under `CHANGES[kind]` names. Raises InvalidNode."""
    try:
        if kind is PatternType.LITERAL:
            type_name, colon, name = data.decode().partition(":")
            pattern = ResourcePattern(ResourceType.named(type_name.replace("_", "")), name)
            known = bool(colon)
        else:
            event = json.loads(data)
            pattern = ResourcePattern(
                ResourceType.named(event["resourceType"].replace("_", "")),
                event["name"],
                PatternType.named(event["patternType"]),
            )
            known = event["version"] <= VERSION and pattern.pattern_type in ROOTS
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidNode(f"not a change of ACLs: {data[:200]!r}") from error
    if not known or pattern.resource_type not in TYPES:
        raise InvalidNode(f"not a change of ACLs: {data[:200]!r}")
    return pattern
