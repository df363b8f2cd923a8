"""The `ottla` command: a group of subcommands, some of which other distributions' rooms add.

`ottla broker` runs one broker. A command is loaded when it is named, so that each starts as quickly as it
can, and a missing extra costs only its own: those of this package by the table below, others (the operator's
`ottla up`) by their entry point in the group `ottla.commands`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_OWN: Final = {
    "acls": "acls",
    "broker": "broker",
    "cluster": "cluster",
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
    "tokens": "tokens",
    "topics": "topics",
    "transactions": "transactions",
    "users": "users",
    "zookeeper": "zookeeper",
}
"""By name: what it is called in the module of that name in ottla.cli."""


class _Commands(click.Group):
    """The commands of this package and those that entry points add."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*_OWN, *(point.name for point in _added())})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _OWN:
            found = getattr(import_module(f"ottla.cli.{cmd_name}"), _OWN[cmd_name])
            assert isinstance(found, click.Command)
            return found
        for point in _added():
            if point.name == cmd_name:
                return _load(point)
        return None


def _added() -> tuple[EntryPoint, ...]:
    from importlib.metadata import entry_points

    return tuple(entry_points(group="ottla.commands"))


def _load(point: EntryPoint) -> click.Command:
    try:
        command = point.load()
    except ModuleNotFoundError as error:
        missing = error.name

        @click.command(
            point.name,
            help="Not available: an extra is not installed.",
            context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        )
        def unavailable() -> None:
            raise click.ClickException(
                f"'ottla {point.name}' needs the package {missing}: pip install 'ottla[operator]'"
            )

        return unavailable
    assert isinstance(command, click.Command)
    return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ottla", prog_name="ottla")
def main() -> None:
    """Ottla: Apache Kafka's job done by Python on Kubernetes.

    Commands that talk to a cluster take --bootstrap (or OTTLA_BOOTSTRAP) and -o json. Exit codes: 0 done, 1
    refused by the cluster, 2 a mistake on the command line, 3 no answer.
    """


if __name__ == "__main__":
    main(prog_name="ottla")
