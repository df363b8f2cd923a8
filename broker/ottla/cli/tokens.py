"""`ottla tokens`: create, list, renew and expire delegation tokens (KIP-48)."""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from typing import Any

import click

from ottla.cli.acls import parsed_principals
from ottla.cli.output import as_json, done, show
from ottla.cli.session import Session, cluster_command
from ottla.client.admin_types import DelegationToken

_UNSET = -1

_period = click.option(
    "--period",
    "period_ms",
    type=click.IntRange(min=_UNSET),
    default=_UNSET,
    show_default=True,
    metavar="MS",
)


@click.group(short_help="Create, renew and expire delegation tokens.")
def tokens() -> None:
    """Delegation tokens: SCRAM credentials for other processes. Brokers need delegation.token.secret.key.

    The connection must be authenticated by other means than a token. A token is identified by its HMAC in
    Base64, which is also its password.
    """


@tokens.command()
@click.option("--owner", metavar="TYPE:NAME", help="The token's owner. Default: the authenticated user.")
@click.option(
    "--renewer", "renewers", multiple=True, metavar="TYPE:NAME", help="A principal that may renew the token."
)
@click.option(
    "--max-lifetime",
    "max_lifetime_ms",
    type=click.IntRange(min=_UNSET),
    default=_UNSET,
    show_default=True,
    metavar="MS",
    help="-1: the brokers' maximum.",
)
@cluster_command
def create(session: Session, owner: str | None, renewers: tuple[str, ...], max_lifetime_ms: int) -> None:
    """Create a token and print it with its HMAC."""
    parsed_principals((*renewers, *([owner] if owner else [])))
    made = session.admin(
        lambda admin: admin.create_delegation_token(
            owner=owner, renewers=renewers, max_lifetime_ms=max_lifetime_ms
        )
    )
    if session.output == "json":
        as_json(_row(made))
    else:
        show([_row(made)], session.output)


@tokens.command("list")
@click.option("--owner", "owners", multiple=True, metavar="TYPE:NAME", help="Only those of this owner.")
@cluster_command
def list_(session: Session, owners: tuple[str, ...]) -> None:
    """List the tokens that the user may describe."""
    asked = parsed_principals(owners) or None
    found = session.admin(lambda admin: admin.describe_delegation_tokens(asked))
    show(map(_row, sorted(found, key=lambda token: token.issued_ms)), session.output, nothing="no tokens")


@tokens.command()
@click.argument("hmac")
@_period
@cluster_command
def renew(session: Session, hmac: str, period_ms: int) -> None:
    """Renew a token, by the brokers' default period or the given one."""
    expires_ms = session.admin(lambda admin: admin.renew_delegation_token(_hmac(hmac), period_ms=period_ms))
    done(f"the token expires at {_time(expires_ms)}", session.output, expires_ms=expires_ms)


@tokens.command()
@click.argument("hmac")
@_period
@cluster_command
def expire(session: Session, hmac: str, period_ms: int) -> None:
    """Expire a token now, or after the given period."""
    expires_ms = session.admin(lambda admin: admin.expire_delegation_token(_hmac(hmac), period_ms=period_ms))
    done(f"the token expires at {_time(expires_ms)}", session.output, expires_ms=expires_ms)


def _hmac(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise click.UsageError(f"'{text}' is not an HMAC in Base64") from None


def _row(token: DelegationToken) -> dict[str, Any]:
    return {
        "token_id": token.token_id,
        "hmac": base64.b64encode(token.hmac).decode(),
        "owner": token.owner,
        "requester": token.requester,
        "renewers": list(token.renewers),
        "issued": _time(token.issued_ms),
        "expires": _time(token.expires_ms),
        "expires_at_most": _time(token.expires_at_most_ms),
    }


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
