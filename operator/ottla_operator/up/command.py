"""`ottla up`: bring up what a folder of custom resources describes, and keep it so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
from rich.console import Console

from ottla import logs
from ottla_operator.up.session import CannotRun, Session
from ottla_operator.up.view import LiveView, PlainView, View


@click.command(short_help="Run clusters from custom resources.")
@click.option(
    "-f",
    "--files",
    required=True,
    type=click.Path(exists=True, path_type=Path),
    help="A folder (or one file) with resources in YAML: BrokerCluster, Topic, User, Quota, ConsumerGroup, "
    "Pipeline.",
)
@click.option(
    "--data",
    default="ottla-data",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where brokers and ZooKeeper keep their data; the next run goes on from there.",
)
@click.option(
    "--port",
    default=9092,
    show_default=True,
    type=click.IntRange(1, 65535),
    help="The port of broker 0; broker N listens on this plus N, and on 100 more for each further listener.",
)
def up(files: Path, data: Path, port: int) -> None:
    """Run clusters from custom resources, with processes in place of pods.

    Edit the files while it runs: it follows them. Ctrl-C stops everything in order.
    """
    asyncio.run(_up(files, data, port))


async def _up(files: Path, data: Path, port: int) -> None:
    try:
        session = Session(files, data, port)
        session.preflight()
    except CannotRun as error:
        raise click.ClickException(str(error)) from None
    logs.configure(filename=data / "up.log")
    console = Console()
    view: View = LiveView(console) if console.is_terminal else PlainView(_write)
    try:
        await session.run(view)
    finally:
        view.close()


def _write(line: str) -> None:
    click.echo(line)
