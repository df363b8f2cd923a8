"""`ottla tokens`: delegation tokens (KIP-48), of brokers with delegation.token.secret.key."""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from typing import Any

import click

from ottla.cli.acls import parsed_principals
from ottla.cli.output import as_json, done, show
from ottla.cli.session import Session, talks_to_a_cluster
from ottla.client.admin_member_types import DelegationToken

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
    """Delegation tokens: credentials for SCRAM that can be handed to other processes.

    The connection must be authenticated, and not by a token. A token is named by its HMAC in Base64, which is
    also the password of its login.
    """


@tokens.command()
@click.option("--owner", metavar="TYPE:NAME", help="For somebody else.")
@click.option("--renewer", "renewers", multiple=True, metavar="TYPE:NAME", help="Who else may renew it.")
@click.option(
    "--max-lifetime",
    "max_lifetime_ms",
    type=click.IntRange(min=_UNSET),
    default=_UNSET,
    show_default=True,
    metavar="MS",
    help="-1 leaves it to the brokers.",
)
@talks_to_a_cluster
def create(session: Session, owner: str | None, renewers: tuple[str, ...], max_lifetime_ms: int) -> None:
    """Create a token. Its HMAC is shown."""
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
@talks_to_a_cluster
def list_(session: Session, owners: tuple[str, ...]) -> None:
    """The tokens that one may see."""
    asked = parsed_principals(owners) or None
    found = session.admin(lambda admin: admin.describe_delegation_tokens(asked))
    show(map(_row, sorted(found, key=lambda token: token.issued_ms)), session.output, nothing="no tokens")


@tokens.command()
@click.argument("hmac")
@_period
@talks_to_a_cluster
def renew(session: Session, hmac: str, period_ms: int) -> None:
    """Put a token's expiry off, by the brokers' default unless a period is given."""
    expires_ms = session.admin(lambda admin: admin.renew_delegation_token(_hmac(hmac), period_ms=period_ms))
    done(f"it expires at {_time(expires_ms)}", session.output, expires_ms=expires_ms)


@tokens.command()
@click.argument("hmac")
@_period
@talks_to_a_cluster
def expire(session: Session, hmac: str, period_ms: int) -> None:
    """Bring a token's expiry forward; to now, unless a period is given."""
    expires_ms = session.admin(lambda admin: admin.expire_delegation_token(_hmac(hmac), period_ms=period_ms))
    done(f"it expires at {_time(expires_ms)}", session.output, expires_ms=expires_ms)


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
