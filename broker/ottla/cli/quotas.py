"""`ottla quotas`: list and change client quotas (KIP-546)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from ottla.cli.output import done, show
from ottla.cli.session import Session, cluster_command, key_values

_DEFAULT = "default"
_KEYS = (
    "producer_byte_rate, consumer_byte_rate (bytes per second and broker), request_percentage, "
    "controller_mutation_rate, connection_creation_rate"
)


@click.group(short_help="List and change client quotas.")
def quotas() -> None:
    """Quotas of users, client ids and addresses.

    The name `default` is the default entity, for users or clients without quotas of their own.
    """


def _entity_options(command: Callable[..., None]) -> Callable[..., None]:
    for option, what in (("--ip", "An address."), ("--client-id", "A client id."), ("--user", "A user.")):
        command = click.option(option, default=None, help=what)(command)
    return command


def _entity(user: str | None, client_id: str | None, ip: str | None) -> dict[str, str | None]:
    given = {"user": user, "client-id": client_id, "ip": ip}
    entity = {kind: None if name == _DEFAULT else name for kind, name in given.items() if name is not None}
    if not entity:
        raise click.UsageError("an entity is required: --user, --client-id, both, or --ip")
    return entity


@quotas.command("list")
@cluster_command
def list_(session: Session) -> None:
    """List all quotas."""
    found = session.admin(lambda admin: admin.describe_client_quotas())
    show(
        (
            {
                "user": _name(entity, "user"),
                "client_id": _name(entity, "client-id"),
                "ip": _name(entity, "ip"),
                "quota": key,
                "value": value,
            }
            for entity, values in found.items()
            for key, value in sorted(values.items())
        ),
        session.output,
        nothing="no quotas",
    )


def _name(entity: Mapping[str, str | None], kind: str) -> str | None:
    return (entity[kind] or f"<{_DEFAULT}>") if kind in entity else None


@quotas.command("set", help=f"Set quotas: {_KEYS}.")
@_entity_options
@click.argument("values", metavar="QUOTA=NUMBER…", nargs=-1, required=True)
@cluster_command
def set_(
    session: Session, user: str | None, client_id: str | None, ip: str | None, values: tuple[str, ...]
) -> None:
    entity = _entity(user, client_id, ip)
    wanted: dict[str, float | None] = {}
    for key, text in key_values(values, "quota").items():
        try:
            wanted[key] = float(text)
        except ValueError:
            raise click.UsageError(f"{key}: '{text}' is not a number") from None
    _alter(session, entity, wanted, f"set {', '.join(wanted)}")


@quotas.command()
@_entity_options
@click.argument("keys", metavar="QUOTA…", nargs=-1, required=True)
@cluster_command
def unset(
    session: Session, user: str | None, client_id: str | None, ip: str | None, keys: tuple[str, ...]
) -> None:
    """Remove quotas."""
    _alter(session, _entity(user, client_id, ip), dict.fromkeys(keys), f"unset {', '.join(keys)}")


def _alter(
    session: Session, entity: dict[str, str | None], values: dict[str, float | None], what: str
) -> None:
    session.admin(lambda admin: admin.alter_client_quota(entity, values))
    whose: dict[str, Any] = {kind: name or f"<{_DEFAULT}>" for kind, name in entity.items()}
    message = f"{what} of {', '.join(f'{kind} {name}' for kind, name in whose.items())}"
    done(message, session.output, entity=whose, quotas=values)
