"""The `ottla` command: a click group whose subcommands are loaded on demand.

A command's module is imported when the command is used, so that each command starts quickly, and a missing
extra only affects its own commands. The commands of this package are in the table below; those of other
packages (such as the operator's `ottla up`) are entry points of the group `ottla.commands`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

import click

from ottla import __version__

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_COMMANDS: Final = {
    "acls": "acls",
    "broker": "broker",
    "cluster": "cluster",
    "completion": "completion",
    "configs": "configs",
    "consume": "consume",
    "dev": "dev",
    "features": "features",
    "groups": "groups",
    "log": "log_",
    "perf": "perf",
    "produce": "produce",
    "quotas": "quotas",
    "reassign": "reassign",
    "shell": "shell",
    "tokens": "tokens",
    "topics": "topics",
    "transactions": "transactions",
    "users": "users",
    "zookeeper": "zookeeper",
}
"""Command name -> name of the command's object in the module `ottla.cli.<command name>`."""
_EXTRAS: Final = {"console": "console"}
"""The extra of a command of another package; of the others it is the operator's."""


class _Commands(click.Group):
    """The commands of this package and of entry points."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*_COMMANDS, *(point.name for point in _entry_points())})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _COMMANDS:
            found = getattr(import_module(f"ottla.cli.{cmd_name}"), _COMMANDS[cmd_name])
            assert isinstance(found, click.Command)
            return found
        for point in _entry_points():
            if point.name == cmd_name:
                return _load(point)
        return None


def _entry_points() -> tuple[EntryPoint, ...]:
    from importlib.metadata import entry_points

    return tuple(entry_points(group="ottla.commands"))


def _load(point: EntryPoint) -> click.Command:
    try:
        command = point.load()
    except ModuleNotFoundError as error:
        missing = error.name
        install = f"pip install 'ottla[{_EXTRAS.get(point.name, 'operator')}]'"

        @click.command(
            point.name,
            help=f"Not installed: {install}.",
            context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        )
        def unavailable() -> None:
            raise click.ClickException(f"'ottla {point.name}' needs the package {missing}: {install}")

        return unavailable
    assert isinstance(command, click.Command)
    return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ottla")
def main() -> None:
    """Ottla: Apache Kafka's job done by Python on Kubernetes.

    Commands for a cluster have --bootstrap (or OTTLA_BOOTSTRAP) and -o json. Exit codes: 0 success, 1
    rejected by the cluster, 2 invalid command line, 3 no response.
    """


if __name__ == "__main__":
    main(prog_name="ottla")
