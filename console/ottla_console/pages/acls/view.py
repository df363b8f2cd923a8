"""The view models of the ACLs: the list with filters, and what a new one allows, as a sentence. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from ottla.security.acls import (
    ANYBODY,
    CLUSTER_NAME,
    IMPLYING,
    SUPPORTED,
    WILDCARD,
    AclBinding,
    AclFilter,
    Entry,
    EntryFilter,
    Operation,
    PatternFilter,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from ottla_console.cluster.problems import Problem
from ottla_console.cluster.snapshot import Part
from ottla_console.views.tables import Column, Query, Table, table_of

KINDS: Final[Mapping[str, ResourceType]] = {each.name.lower(): each for each in SUPPORTED}
_NAME_MAX: Final = 1_000


class Invalid(ValueError):
    """A form that is no ACL; the message says what is allowed."""


# --- the list ---

COLUMNS: Final[tuple[Column[AclBinding], ...]] = (
    Column("principal", "Principal", lambda acl: (acl.entry.principal, acl.pattern)),
    Column("permission", "Permission", lambda acl: (acl.entry.permission, acl.entry.principal)),
    Column("operation", "Operation", lambda acl: acl.entry.operation.label),
    Column("resource", "Resource", lambda acl: (acl.pattern, acl.entry.principal)),
    Column("host", "Host", lambda acl: acl.entry.host),
    Column("actions", ""),
)


@dataclass(frozen=True, slots=True)
class Acls:
    """The list."""

    table: Table[AclBinding]
    kind: str
    operation: str
    permission: str
    principal: str
    """Only those that apply to this principal; empty: all."""
    principals: int
    denials: int
    problems: tuple[Problem, ...]
    unsecured: bool
    """The brokers have no authorizer."""

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(KINDS)

    @property
    def operations(self) -> tuple[str, ...]:
        return OPERATIONS


OPERATIONS: Final = tuple(each.label for each in Operation if each >= Operation.ALL)


def acls_of(found: Part[list[AclBinding]], query: Query, *, unsecured: bool) -> Acls:
    """The list; the filters `kind`, `operation`, `permission` and `principal` are of the query."""
    everything = found.value or []
    kind, operation = query.other("kind"), query.other("operation")
    permission, principal = query.other("permission"), query.other("principal")
    rows = [
        acl
        for acl in everything
        if (not kind or acl.pattern.resource_type is KINDS.get(kind))
        and (not operation or acl.entry.operation.label == operation)
        and (not permission or acl.entry.permission.label == permission)
        and (not principal or acl.entry.principal in (principal, ANYBODY))
    ]
    table = table_of(rows, COLUMNS, query, text=_searched, default_sort="principal")
    principals = len({acl.entry.principal for acl in everything})
    denials = sum(acl.entry.permission is Permission.DENY for acl in everything)
    return Acls(table, kind, operation, permission, principal, principals, denials, found.problems, unsecured)


def _searched(acl: AclBinding) -> str:
    pattern, entry = acl
    return (
        f"{entry.principal} {entry.operation.label} {pattern.resource_type.label} {pattern.name} {entry.host}"
    )


def resource_text(pattern: ResourcePattern) -> str:
    """`topic orders`, `all topics`, `topics that begin with pay`, `the cluster`."""
    noun = pattern.resource_type.name.lower().replace("_", " ")
    if pattern.resource_type is ResourceType.CLUSTER:
        return "the cluster"
    if pattern.pattern_type is PatternType.PREFIXED:
        return f"{noun}s that begin with {pattern.name}"
    return f"all {noun}s" if pattern.name == WILDCARD else f"the {noun} {pattern.name}"


# --- a new ACL ---


@dataclass(frozen=True, slots=True)
class Draft:
    """An ACL as the form gives it."""

    principal: str = ""
    host: str = WILDCARD
    permission: str = "Allow"
    kind: str = "topic"
    name: str = ""
    prefixed: bool = False
    operations: tuple[str, ...] = ()


def draft_of(params: Mapping[str, str], operations: Iterable[str]) -> Draft:
    return Draft(
        params.get("principal", "").strip(),
        params.get("host", "").strip() or WILDCARD,
        params.get("permission", "Allow"),
        params.get("kind", "topic"),
        params.get("name", ""),
        params.get("pattern", "") == "prefixed",
        tuple(dict.fromkeys(operations)),
    )


def bindings_of(draft: Draft) -> list[AclBinding]:
    """An ACL for each operation. Raises Invalid."""
    kind, colon, name = draft.principal.partition(":")
    if not colon or not kind or not name:
        raise Invalid("the principal must be TYPE:NAME, as User:anna; User:* is every user")
    if draft.host != WILDCARD:
        try:
            ipaddress.ip_address(draft.host)
        except ValueError:
            raise Invalid("the host must be an IP address, or * for any") from None
    permission = Permission.named(draft.permission)
    resource = KINDS.get(draft.kind)
    if permission < Permission.DENY or resource is None:
        raise Invalid("choose a permission and a resource")
    target = CLUSTER_NAME if resource is ResourceType.CLUSTER else draft.name
    if not target or len(target) > _NAME_MAX:
        raise Invalid(f"the {draft.kind.replace('_', ' ')} must have a name; * is all of them")
    prefixed = draft.prefixed and resource is not ResourceType.CLUSTER
    if prefixed and target == WILDCARD:
        raise Invalid("* is all names: choose “exactly”, or write a prefix")
    allowed = {each.label: each for each in (Operation.ALL, *SUPPORTED[resource])}
    if not draft.operations:
        raise Invalid("choose at least one operation")
    if unknown := [each for each in draft.operations if each not in allowed]:
        raise Invalid(f"{unknown[0]} is no operation of this resource: {', '.join(allowed)}")
    pattern_type = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    pattern = ResourcePattern(resource, target, pattern_type)
    return [
        AclBinding(pattern, Entry(draft.principal, draft.host, allowed[each], permission))
        for each in draft.operations
    ]


def sentence(bindings: Iterable[AclBinding]) -> str:
    """What ACLs allow or deny, for people: `User:anna, from any host, may Read and Describe the topic
    orders.` with what follows from it."""
    texts = []
    for (principal, host, permission, pattern), group in groupby(
        bindings, key=lambda acl: (acl.entry.principal, acl.entry.host, acl.entry.permission, acl.pattern)
    ):
        operations = [acl.entry.operation for acl in group]
        who = "Every user" if principal == ANYBODY else principal
        where = "from any host" if host == WILDCARD else f"from {host}"
        verb = "may" if permission is Permission.ALLOW else "may not"
        joiner = " and " if permission is Permission.ALLOW else " or "
        named = [each.label if each is not Operation.ALL else "do everything with" for each in operations]
        texts.append(f"{who}, {where}, {verb} {_listed(named, joiner)} {resource_text(pattern)}.")
        texts += _consequences(operations, permission, pattern.resource_type)
    return " ".join(texts)


def _consequences(operations: list[Operation], permission: Permission, kind: ResourceType) -> Iterable[str]:
    if permission is Permission.DENY:
        yield "A Deny has precedence over each Allow."
        return
    implied = [
        each.label
        for each, causes in IMPLYING.items()
        if each in SUPPORTED[kind]
        and each not in operations
        and Operation.ALL not in operations
        and any(cause in operations for cause in causes)
    ]
    if implied:
        yield f"This implies {_listed(implied, ' and ')}."
    if kind is ResourceType.TOPIC and Operation.READ in operations:
        yield "A consumer needs Read on its group, too."
    if kind is ResourceType.GROUP and Operation.READ in operations:
        yield "A consumer needs Read on its topics, too."


def _listed(words: list[str], joiner: str) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + joiner + words[-1]


@dataclass(frozen=True, slots=True)
class Creation:
    """The form of a new ACL."""

    draft: Draft
    sentence: str = ""
    existing: int = 0
    """Of the ACLs that the form has, those that exist."""
    problems: tuple[Problem, ...] = ()

    @property
    def kinds(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Resource types with their operations."""
        return tuple(
            (name, tuple(each.label for each in (Operation.ALL, *SUPPORTED[kind])))
            for name, kind in KINDS.items()
        )

    @property
    def operations(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """All operations, with the resource types that have them."""
        return tuple(
            (label, tuple(kind for kind, labels in self.kinds if label in labels)) for label in OPERATIONS
        )


# --- deletion ---


def exactly(fields: Mapping[str, str]) -> AclBinding:
    """The ACL that a form of the list names. Raises Invalid."""
    kind, permission = KINDS.get(fields.get("kind", "")), Permission.named(fields.get("permission", ""))
    operation, pattern = (
        Operation.named(fields.get("operation", "")),
        PatternType.named(fields.get("pattern", "")),
    )
    texts = [fields.get(each, "") for each in ("principal", "host", "name")]
    known = permission >= Permission.DENY and operation >= Operation.ALL and pattern >= PatternType.LITERAL
    if kind is None or not known or not all(texts):
        raise Invalid("the form names no ACL")
    principal, host, name = texts
    return AclBinding(ResourcePattern(kind, name, pattern), Entry(principal, host, operation, permission))


def filter_of(acl: AclBinding) -> AclFilter:
    """The filter that matches this ACL alone."""
    return AclFilter(PatternFilter(*acl.pattern), EntryFilter(*acl.entry))


@dataclass(frozen=True, slots=True)
class Deletion:
    """The confirmation of a deletion."""

    acl: AclBinding
    sentence: str
