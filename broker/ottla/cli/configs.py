"""`ottla configs`: settings of topics and brokers, and log levels of brokers."""

from __future__ import annotations

from pathlib import Path

import click

from ottla.cli.output import done, show
from ottla.cli.session import Session, cluster_command, key_values
from ottla.client.admin import AdminClient
from ottla.client.admin_types import ConfigChange, ConfigEntry, ConfigOperation, ConfigResource, ConfigType
from ottla.metadata.config_def import ConfigError, read_properties

_SOURCES = {
    1: "topic",
    2: "broker",
    3: "all brokers",
    4: "server.properties",
    5: "default",
    6: "logger",
}
_TYPES = {
    "topic": ConfigType.TOPIC,
    "broker": ConfigType.BROKER,
    "broker-logger": ConfigType.BROKER_LOGGER,
}
_KIND = click.Choice(list(_TYPES))
_DEFAULT_SOURCE = 5
_EVERY_BROKER = "all"


@click.group(short_help="Show and change settings of topics and brokers.")
def configs() -> None:
    """Settings of topics and brokers, by Kafka's names, and the levels of brokers' loggers (KIP-412).

    NAME is a topic, a broker id, or `all` for the cluster-wide defaults of brokers.
    """


@configs.command()
@click.argument("kind", type=_KIND)
@click.argument("name")
@click.option("--all", "everything", is_flag=True, help="Include settings that have their default.")
@cluster_command
def describe(session: Session, kind: str, name: str, everything: bool) -> None:
    """List settings and their source."""

    resource = _resource(kind, name)

    async def query(admin: AdminClient) -> dict[str, ConfigEntry]:
        return (await admin.describe_configs([resource]))[resource]

    found = session.admin(query)
    show(
        (
            {"name": n, "value": c.value, "from": _SOURCES.get(c.source, str(c.source))}
            for n, c in sorted(found.items())
            if everything or c.source != _DEFAULT_SOURCE
        ),
        session.output,
        nothing="nothing is set: all values are defaults",
    )


@configs.command("set")
@click.argument("kind", type=_KIND)
@click.argument("name")
@click.argument("values", metavar="SETTING=VALUE…", nargs=-1)
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A properties file with settings; arguments override it.",
)
@cluster_command
def set_(session: Session, kind: str, name: str, values: tuple[str, ...], file: Path | None) -> None:
    """Set values; dynamic broker settings take effect at once.

    The value of a logger is a level, as ottla.server=DEBUG.
    """
    wanted = key_values(values, "setting")
    if file is not None:
        try:
            wanted = read_properties(file) | wanted
        except ConfigError as error:
            raise click.UsageError(str(error)) from None
    if not wanted:
        raise click.UsageError("SETTING=VALUE or --file is required")
    _alter(session, _resource(kind, name), [ConfigChange(*pair) for pair in wanted.items()])
    done(f"set {', '.join(wanted)} of {kind} {name}", session.output, kind=kind, name=name, set=wanted)


@configs.command()
@click.argument("kind", type=_KIND)
@click.argument("name")
@click.argument("settings", metavar="SETTING…", nargs=-1, required=True)
@cluster_command
def unset(session: Session, kind: str, name: str, settings: tuple[str, ...]) -> None:
    """Delete values, so that defaults apply."""

    _alter(
        session,
        _resource(kind, name),
        [ConfigChange(setting, None, ConfigOperation.DELETE) for setting in settings],
    )
    message = f"unset {', '.join(settings)} of {kind} {name}"
    done(message, session.output, kind=kind, name=name, unset=list(settings))


def _resource(kind: str, name: str) -> ConfigResource:
    if kind == "topic" or name.isdigit():
        return ConfigResource(_TYPES[kind], name)
    if kind == "broker" and name == _EVERY_BROKER:
        return ConfigResource(ConfigType.BROKER, "")
    allowed = "a broker's id" if kind == "broker-logger" else f"a broker's id nor '{_EVERY_BROKER}'"
    raise click.UsageError(f"'{name}' is {'not' if kind == 'broker-logger' else 'neither'} {allowed}")


def _alter(session: Session, resource: ConfigResource, changes: list[ConfigChange]) -> None:
    async def work(admin: AdminClient) -> None:
        (await admin.incremental_alter_configs({resource: changes})).raise_first()

    session.admin(work)
