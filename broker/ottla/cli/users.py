"""`ottla users`: who may log in by SCRAM (KIP-554)."""

from __future__ import annotations

from typing import IO

import click

from ottla.cli.output import done, show
from ottla.cli.session import Refused, Session, talks_to_a_cluster
from ottla.client.admin import AdminClient
from ottla.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, MECHANISMS

_mechanism = click.option(
    "--mechanism", type=click.Choice(list(MECHANISMS), case_sensitive=False), help="By which one logs in."
)


@click.group(short_help="Show and change who may log in by a password.")
def users() -> None:
    """Users with SCRAM credentials, kept in ZooKeeper. What they may do is a matter of `ottla acls`."""


@users.command("list")
@talks_to_a_cluster
def list_(session: Session) -> None:
    """All users that have credentials."""
    found = session.admin(lambda admin: admin.describe_user_scram_credentials())
    show(
        (
            {"user": user, "mechanism": mechanism, "iterations": iterations}
            for user, of_user in sorted(found.items())
            for mechanism, iterations in sorted(of_user.items())
        ),
        session.output,
        nothing="no users",
    )


@users.command("set")
@click.argument("user")
@_mechanism
@click.option(
    "--iterations",
    type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX),
    default=ITERATIONS_MIN,
    show_default=True,
    help="How often the password is hashed.",
)
@click.option(
    "--password-file",
    type=click.File("r"),
    help="Whose first line is the password; - for standard input. Asked for, unless given.",
)
@talks_to_a_cluster
def set_(
    session: Session, user: str, mechanism: str | None, iterations: int, password_file: IO[str] | None
) -> None:
    """Make a user, or give one another password: for SCRAM-SHA-512, unless told otherwise."""
    if password_file is None:
        password = click.prompt(f"Password of {user}", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = password_file.readline().rstrip("\r\n")
    if not password:
        raise click.UsageError("the password is empty")
    chosen = mechanism or "SCRAM-SHA-512"
    session.admin(lambda admin: admin.set_scram_credential(user, chosen, password, iterations))
    done(f"{user} may log in by {chosen}", session.output, user=user, mechanism=chosen, iterations=iterations)


@users.command()
@click.argument("user")
@_mechanism
@talks_to_a_cluster
def delete(session: Session, user: str, mechanism: str | None) -> None:
    """Take a user's credentials back: all of them, or those for one mechanism."""

    async def take_back(admin: AdminClient) -> list[str]:
        there = (await admin.describe_user_scram_credentials()).get(user, {})
        chosen = sorted(there) if mechanism is None else [mechanism]
        if not chosen:
            raise Refused(f"user '{user}' has no credentials")
        await admin.delete_scram_credentials(user, chosen)
        return chosen

    deleted = session.admin(take_back)
    done(f"{user} cannot log in by {', '.join(deleted)} any more", session.output, user=user, deleted=deleted)
