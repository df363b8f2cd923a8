"""The command `ottla up`."""

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
    help="A folder or a file with resources in YAML: BrokerCluster, Topic, User, Quota, ConsumerGroup, "
    "Pipeline.",
)
@click.option(
    "--data",
    default="ottla-data",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder for data of brokers and ZooKeeper; the next run uses it again.",
)
@click.option(
    "--port",
    default=9092,
    show_default=True,
    type=click.IntRange(1, 65535),
    help="The port of broker 0; broker N listens on this plus N, and on 100 more for each further listener.",
)
def up(files: Path, data: Path, port: int) -> None:
    """Run a cluster from custom resources, with local processes instead of pods.

    Changes of the files are applied while it runs. Ctrl-C stops all processes gracefully.
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
