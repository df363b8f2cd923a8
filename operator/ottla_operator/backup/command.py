"""`ottla backup` and `ottla restore`: the metadata of any cluster, without Kubernetes."""

from __future__ import annotations

import asyncio
import base64
import sys
import time
from collections.abc import Callable
from typing import Any, cast

import click

from ottla.cli.session import Refused, Session, cluster_command
from ottla.client.admin import AdminClient
from ottla_operator.backup.cluster import (
    PARTS,
    Part,
    execute_restore,
    observe_target,
    plan_restore,
    take_backup,
)
from ottla_operator.backup.document import BackupError, dumped, loaded, summary
from ottla_operator.backup.objects import Folder, newest, object_name

_endpoint = click.option(
    "--endpoint", default="", metavar="URL", help="The endpoint of another store with S3's API."
)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@click.command(short_help="Back up topics, settings, ACLs, quotas and offsets.")
@click.option(
    "--to",
    "destination",
    required=True,
    metavar="URL",
    help="A folder: s3://BUCKET/PATH, gs://…, az://…, file:///PATH; or - for the standard output.",
)
@click.option("--name", default="cluster", show_default=True, help="The first part of the object's name.")
@click.option("--keep", type=click.IntRange(min=1), help="Delete all but this many backups of the name.")
@_endpoint
@cluster_command
def backup(session: Session, destination: str, name: str, keep: int | None, endpoint: str) -> None:
    """Write a backup of the cluster's metadata: topics with their settings, dynamic settings of brokers,
    ACLs, quotas and the offsets of groups. Records and passwords are not in it.

    Credentials of the store are those of its own environment variables, such as AWS_ACCESS_KEY_ID.
    """
    found = session.admin(lambda admin: take_backup(admin, _now_ms()))
    content = dumped(found)
    if destination == "-":
        sys.stdout.buffer.write(content)
        click.echo(summary(found), err=True)
        return
    folder = Folder(destination, endpoint)

    async def write() -> str:
        url = await folder.put(object_name(name, found.created_at), content)
        if keep is not None:
            for old in await folder.keep(name, keep):
                click.echo(f"deleted {old}")
        return url

    click.echo(f"{_of_store(write)}: {summary(found)}")
    for text in found.left_out:
        click.echo(f"left out: {text}")


@click.command(short_help="Restore a backup into a cluster.")
@click.option(
    "--from",
    "source",
    required=True,
    metavar="URL",
    help="A backup, or a folder of which the newest is taken; or - for the standard input.",
)
@click.option("--name", default="", help="In a folder: only backups of this name.")
@click.option("--only", "parts", multiple=True, type=click.Choice(PARTS), help="Only this part; repeatable.")
@click.option("--dry-run", is_flag=True, help="Print what would be done.")
@click.option("--base64", "as_base64", is_flag=True, hidden=True)
@_endpoint
@cluster_command
def restore(
    session: Session,
    source: str,
    name: str,
    parts: tuple[str, ...],
    dry_run: bool,
    as_base64: bool,
    endpoint: str,
) -> None:
    """Restore what a backup has and the cluster has not. What exists stays; what differs is printed.

    Offsets of groups are restored where the records are: run it again after the data has been copied.
    """
    if source == "-":
        content = sys.stdin.buffer.read()
        content = base64.b64decode(content) if as_base64 else content
    else:
        url, content = _of_store(lambda: newest(source, endpoint, name))
        click.echo(f"from {url}")
    try:
        wanted = loaded(content)
    except BackupError as error:
        raise Refused(f"{source}: {error}") from None
    chosen = cast("tuple[Part, ...]", parts or PARTS)

    async def work(admin: AdminClient) -> list[str]:
        target, brokers, logs = await observe_target(admin, wanted, _now_ms())
        plan = plan_restore(wanted, target, brokers=brokers, logs=logs, parts=chosen)
        for line in plan.lines():
            click.echo(f"{'would restore' if dry_run else 'restore'} {line}")
        for note in plan.notes:
            click.echo(f"left: {note}")
        failed = [] if dry_run else await execute_restore(admin, plan)
        if not plan.lines():
            click.echo("nothing to restore")
        return failed

    failed = session.admin(work)
    for text in failed:
        click.echo(f"failed: {text}", err=True)
    if failed:
        raise Refused(f"{len(failed)} of the restored items failed")


def _of_store(work: Callable[[], Any]) -> Any:
    """The result of a coroutine function that uses an object store."""
    try:
        return asyncio.run(work())
    except BackupError as error:
        raise Refused(str(error)) from None
