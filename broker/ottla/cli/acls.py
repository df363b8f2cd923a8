"""`ottla acls`: list, add and remove ACLs (KIP-140)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import click

from ottla.cli.output import as_json, done, show
from ottla.cli.session import Session, cluster_command
from ottla.client.admin import AdminClient
from ottla.security.acls import (
    CLUSTER_NAME,
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
from ottla.security.principals import Principal

_OPERATIONS = {each.name.lower().replace("_", "-"): each for each in Operation if each >= Operation.ALL}
_RESOURCES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional_id": ResourceType.TRANSACTIONAL_ID,
    "delegation_token": ResourceType.DELEGATION_TOKEN,
    "user": ResourceType.USER,
}


@click.group(short_help="List and change ACLs.")
def acls() -> None:
    """Access control lists, of a cluster whose brokers have authorizer.class.name set.

    A principal is TYPE:NAME (User:alice); User:* matches all users. The name * matches all resources of a
    type; with --prefixed, a name matches all names that begin with it.
    """


def _resource_options(command: Callable[..., None]) -> Callable[..., None]:
    command = click.option("--prefixed", is_flag=True, help="The names are prefixes.")(command)
    command = click.option("--cluster", is_flag=True, help="The cluster itself.")(command)
    for name in reversed(_RESOURCES):
        option = f"--{name.replace('_', '-')}"
        command = click.option(option, name, multiple=True, metavar="NAME")(command)
    return command


_matching = click.option(
    "--matching",
    is_flag=True,
    help="All ACLs that apply to these names: literal, prefixed and wildcard patterns.",
)


def _entry_options(command: Callable[..., None]) -> Callable[..., None]:
    for option, parameter, what in (
        ("--host", "hosts", "An IP address of clients. Default: any."),
        ("--deny", "denied", "A principal to deny."),
        ("--allow", "allowed", "A principal to allow."),
    ):
        command = click.option(option, parameter, multiple=True, help=what)(command)
    return click.option(
        "--operation",
        "operations",
        multiple=True,
        type=click.Choice(list(_OPERATIONS), case_sensitive=False),
        help="An operation. Default: all.",
    )(command)


_ROLE_OPERATIONS: Final = {
    "producer": (
        (ResourceType.TOPIC, (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE)),
        (ResourceType.TRANSACTIONAL_ID, (Operation.WRITE, Operation.DESCRIBE)),
    ),
    "consumer": (
        (ResourceType.TOPIC, (Operation.READ, Operation.DESCRIBE)),
        (ResourceType.GROUP, (Operation.READ,)),
    ),
}
"""The operations that a producer and a consumer need, as kafka-acls.sh has them."""


def _role_options(command: Callable[..., None]) -> Callable[..., None]:
    for role, what in (("consumer", "topics and groups"), ("producer", "topics and transactional ids")):
        help_ = f"The operations of a {role}, on the given {what}."
        command = click.option(f"--{role}", is_flag=True, help=help_)(command)
    return command


def _pattern_operations(
    patterns: list[tuple[ResourceType, str, PatternType]],
    operations: tuple[str, ...],
    roles: Mapping[str, bool],
    otherwise: Operation,
) -> list[tuple[tuple[ResourceType, str, PatternType], Operation]]:
    """Each pattern with each of its operations. Raises click.UsageError."""
    wanted = [role for role, given in roles.items() if given]
    if not wanted:
        chosen = list(map(_operation, operations)) or [otherwise]
        return [(pattern, operation) for pattern in patterns for operation in chosen]
    if operations:
        raise click.UsageError(f"--{wanted[0]} and --operation exclude each other")
    kinds = {pattern[0] for pattern in patterns}
    for role in wanted:
        required = (
            {kind for kind, _ in _ROLE_OPERATIONS[role]} if role == "consumer" else {ResourceType.TOPIC}
        )
        if missing := sorted(kind.name.lower() for kind in required - kinds):
            raise click.UsageError(f"--{role} needs --{missing[0]}")
    found = [
        (pattern, operation)
        for role in wanted
        for kind, needed in _ROLE_OPERATIONS[role]
        for pattern in patterns
        if pattern[0] is kind
        for operation in needed
    ]
    return list(dict.fromkeys(found))


def _patterns(
    named: dict[str, tuple[str, ...]], *, cluster: bool, prefixed: bool, matching: bool = False
) -> list[tuple[ResourceType, str, PatternType]]:
    if matching and prefixed:
        raise click.UsageError("--matching and --prefixed exclude each other")
    pattern_type = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    pattern_type = PatternType.MATCH if matching else pattern_type
    found = [(_RESOURCES[kind], name, pattern_type) for kind, names in named.items() for name in names]
    if cluster:
        found.append((ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL))
    return found


def parsed_principals(texts: Iterable[str]) -> list[str]:
    """The texts, if all are TYPE:NAME. Raises click.UsageError."""
    for text in texts:
        try:
            Principal.parse(text)
        except ValueError:
            raise click.UsageError(f"'{text}' is not a principal: must be TYPE:NAME, as User:alice") from None
    return list(texts)


@acls.command("list")
@_resource_options
@click.option("--principal", help="Only ACLs of this principal.")
@_matching
@cluster_command
def list_(
    session: Session,
    principal: str | None,
    matching: bool,
    cluster: bool,
    prefixed: bool,
    **named: tuple[str, ...],
) -> None:
    """List ACLs, of some resources or of all."""
    entry = EntryFilter(principal=None if principal is None else parsed_principals([principal])[0])
    asked = _patterns(named, cluster=cluster, prefixed=prefixed, matching=matching)
    filters = [PatternFilter(*each) for each in asked] or [
        PatternFilter(pattern_type=PatternType.PREFIXED if prefixed else PatternType.ANY)
    ]

    async def describe(admin: AdminClient) -> list[AclBinding]:
        return [acl for pattern in filters for acl in await admin.describe_acls(AclFilter(pattern, entry))]

    found = session.admin(describe)
    show(map(_row, sorted(found)), session.output, nothing="no ACLs")


def _row(binding: AclBinding) -> dict[str, Any]:
    pattern, entry = binding
    return {
        "resource": pattern.resource_type.name.lower().replace("_", "-"),
        "name": pattern.name,
        "pattern": pattern.pattern_type.name.lower(),
        "principal": entry.principal,
        "host": entry.host,
        "operation": entry.operation.name.lower().replace("_", "-"),
        "permission": entry.permission.name.lower(),
    }


@acls.command()
@_resource_options
@_entry_options
@_role_options
@cluster_command
def add(
    session: Session,
    producer: bool,
    consumer: bool,
    operations: tuple[str, ...],
    allowed: tuple[str, ...],
    denied: tuple[str, ...],
    hosts: tuple[str, ...],
    cluster: bool,
    prefixed: bool,
    **named: tuple[str, ...],
) -> None:
    """Add an ACL for each combination of the given principals, operations, hosts and resources."""
    patterns = _patterns(named, cluster=cluster, prefixed=prefixed)
    if not patterns:
        raise click.UsageError("a resource is required: --topic, --group, --cluster or another one")
    if not allowed and not denied:
        raise click.UsageError("a principal is required: --allow or --deny")
    bindings = [
        AclBinding(ResourcePattern(*pattern), Entry(who, host, operation, permission))
        for pattern, operation in _pattern_operations(
            patterns, operations, {"producer": producer, "consumer": consumer}, Operation.ALL
        )
        for permission, principals in ((Permission.ALLOW, allowed), (Permission.DENY, denied))
        for who in parsed_principals(principals)
        for host in hosts or (WILDCARD,)
    ]

    async def create(admin: AdminClient) -> None:
        (await admin.create_acls(bindings)).raise_first()

    session.admin(create)
    done(f"added {_counted(len(bindings))}", session.output, added=list(map(_row, bindings)))


@acls.command()
@_resource_options
@_entry_options
@_role_options
@_matching
@cluster_command
def remove(
    session: Session,
    matching: bool,
    producer: bool,
    consumer: bool,
    operations: tuple[str, ...],
    allowed: tuple[str, ...],
    denied: tuple[str, ...],
    hosts: tuple[str, ...],
    cluster: bool,
    prefixed: bool,
    **named: tuple[str, ...],
) -> None:
    """Remove the ACLs of the given resources that match the other options; an option that is not given
    matches all."""
    patterns = _patterns(named, cluster=cluster, prefixed=prefixed, matching=matching)
    if not patterns:
        raise click.UsageError("a resource is required: --topic, --group, --cluster or another one")
    whose: list[tuple[Permission, str | None]] = [
        (Permission.ALLOW, who) for who in parsed_principals(allowed)
    ]
    whose += [(Permission.DENY, who) for who in parsed_principals(denied)]
    filters = [
        AclFilter(PatternFilter(*pattern), EntryFilter(who, host, operation, permission))
        for pattern, operation in _pattern_operations(
            patterns, operations, {"producer": producer, "consumer": consumer}, Operation.ANY
        )
        for permission, who in whose or [(Permission.ANY, None)]
        for host in hosts or (None,)
    ]

    async def delete(admin: AdminClient) -> list[AclBinding]:
        by_filter = (await admin.delete_acls(filters)).raise_first()
        return [acl for found in by_filter.values() for acl in found.raise_first()]

    removed = session.admin(delete)
    if session.output == "json":
        as_json({"removed": list(map(_row, sorted(removed)))})
    else:
        click.echo(f"removed {_counted(len(removed))}")


def _operation(name: str) -> Operation:
    return _OPERATIONS[name.lower()]


def _counted(count: int) -> str:
    return "1 ACL" if count == 1 else f"{count} ACLs"
