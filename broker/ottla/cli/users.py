"""`ottla users`: list and change SCRAM credentials of users (KIP-554)."""

from __future__ import annotations

from typing import IO

import click

from ottla.cli.output import done, show
from ottla.cli.session import Refused, Session, cluster_command
from ottla.client.admin import AdminClient
from ottla.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, MECHANISMS

_mechanism = click.option(
    "--mechanism", type=click.Choice(list(MECHANISMS), case_sensitive=False), help="The SCRAM mechanism."
)


@click.group(short_help="List and change SCRAM credentials.")
def users() -> None:
    """SCRAM credentials of users, which are in ZooKeeper. `ottla acls` has their permissions."""


@users.command("list")
@cluster_command
def list_(session: Session) -> None:
    """List users with credentials."""
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
    help="The number of iterations of the hash.",
)
@click.option(
    "--password-file",
    type=click.File("r"),
    help="A file with the password in its first line; - is standard input. Default: a prompt.",
)
@cluster_command
def set_(
    session: Session, user: str, mechanism: str | None, iterations: int, password_file: IO[str] | None
) -> None:
    """Set a user's password, for SCRAM-SHA-512 by default."""
    if password_file is None:
        password = click.prompt(f"Password of {user}", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = password_file.readline().rstrip("\r\n")
    if not password:
        raise click.UsageError("the password is empty")
    chosen = mechanism or "SCRAM-SHA-512"
    session.admin(lambda admin: admin.set_scram_credential(user, chosen, password, iterations))
    done(
        f"set the {chosen} credential of {user}",
        session.output,
        user=user,
        mechanism=chosen,
        iterations=iterations,
    )


@users.command()
@click.argument("user")
@_mechanism
@cluster_command
def delete(session: Session, user: str, mechanism: str | None) -> None:
    """Delete a user's credentials: all of them, or that of one mechanism."""

    async def work(admin: AdminClient) -> list[str]:
        there = (await admin.describe_user_scram_credentials()).get(user, {})
        chosen = sorted(there) if mechanism is None else [mechanism]
        if not chosen:
            raise Refused(f"user '{user}' has no credentials")
        await admin.delete_scram_credentials(user, chosen)
        return chosen

    deleted = session.admin(work)
    done(
        f"deleted the {', '.join(deleted)} credentials of {user}", session.output, user=user, deleted=deleted
    )
