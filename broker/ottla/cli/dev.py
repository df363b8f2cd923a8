"""`ottla dev`: runs one broker for development, without ZooKeeper and Java; it starts in half a second."""

from __future__ import annotations

import errno
import gc
import os
import tempfile
from pathlib import Path

import click

from ottla import logs

_PORT = 9092


@click.command(short_help="Run one broker for development and tests.")
@click.option(
    "--port", default=_PORT, show_default=True, type=click.IntRange(0, 65535), help="0: any free one."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder for topics and records, which the next run uses again. Default: a temporary one.",
)
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of Kafka's server.properties."
)
@click.option(
    "--control",
    type=click.Path(path_type=Path),
    help="A Unix socket for commands that inject faults (see docs/guides/testing.md).",
)
@click.option(
    "--log-level", default="WARNING", show_default=True, type=click.Choice(["DEBUG", "INFO", "WARNING"])
)
def dev(
    port: int, host: str, data: Path | None, settings: tuple[str, ...], control: Path | None, log_level: str
) -> None:
    """Run one broker for development and tests, until Ctrl-C.

    It is the broker of clusters, with its metadata in memory instead of ZooKeeper. Topics are created
    automatically. It prints `ready bootstrap=HOST:PORT` when it serves.
    """
    gc.disable()  # until it serves: see ottla.dev.serve
    logs.configure(log_level)
    given = {}
    for item in settings:
        name, equals, value = item.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{item}: must be NAME=VALUE", param_hint="--set")
        given[name.strip()] = value
    if data is not None:
        data.mkdir(parents=True, exist_ok=True)
        raise SystemExit(_run(data, True, host, port, given, control))
    with tempfile.TemporaryDirectory(prefix="ottla-dev-") as throwaway:
        raise SystemExit(_run(Path(throwaway), False, host, port, given, control))


def _run(data: Path, keep: bool, host: str, port: int, settings: dict[str, str], control: Path | None) -> int:
    from ottla.dev.journal import DamagedJournal
    from ottla.dev.serve import DevOptions, run
    from ottla.metadata.config import ConfigError
    from ottla.server.assembly.broker import StartupError

    options = DevOptions(data, keep=keep, host=host, port=port, settings=settings, control=control)
    try:
        return run(options, lambda bootstrap: click.echo(f"ready bootstrap={bootstrap}"))
    except ConfigError as error:
        for problem in error.problems:
            click.echo(f"ottla dev: {problem}", err=True)
        return 2
    except (StartupError, DamagedJournal, OSError) as error:
        click.echo(f"ottla dev: cannot start: {error}", err=True)
        if os.strerror(errno.EADDRINUSE) in str(error):
            click.echo("Another program listens there. --port chooses a port (0: any free one).", err=True)
        return 1


if __name__ == "__main__":
    dev(prog_name="ottla dev")
