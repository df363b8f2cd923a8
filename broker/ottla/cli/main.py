"""The `ottla` command: a group of subcommands, some of which other distributions' rooms add.

`ottla broker` runs one broker. Commands registered under the entry point group `ottla.commands` (the
operator's `ottla up`) are loaded when they are named, so that a missing extra costs only its own command.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points, version

import click

from ottla.cli.acls import acls
from ottla.cli.broker import broker
from ottla.cli.cluster import cluster
from ottla.cli.configs import configs
from ottla.cli.consume import consume
from ottla.cli.groups import groups
from ottla.cli.log import log_
from ottla.cli.produce import produce
from ottla.cli.quotas import quotas
from ottla.cli.topics import topics
from ottla.cli.users import users
from ottla.cli.zookeeper import zookeeper


class _Commands(click.Group):
    """The commands of this package and those that entry points add."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *(point.name for point in _added())})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        for point in _added():
            if point.name == cmd_name:
                return _load(point)
        return None


def _added() -> tuple[EntryPoint, ...]:
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
                f"'ottla {point.name}' needs the package {missing}: pip install 'ottla[operator,pipeline]'"
            )

        return unavailable
    assert isinstance(command, click.Command)
    return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("ottla"), prog_name="ottla")
def main() -> None:
    """Ottla: Apache Kafka's job done by Python on Kubernetes.

    Commands that talk to a cluster take --bootstrap (or OTTLA_BOOTSTRAP) and -o json. Exit codes: 0 done, 1
    refused by the cluster, 2 a mistake on the command line, 3 no answer.
    """


for command in (
    acls,
    broker,
    cluster,
    configs,
    consume,
    groups,
    log_,
    produce,
    quotas,
    topics,
    users,
    zookeeper,
):
    main.add_command(command)

if __name__ == "__main__":
    main(prog_name="ottla")
