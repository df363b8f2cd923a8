"""`ottla configs`: the settings of topics and brokers."""

from __future__ import annotations

import click

from ottla.cli.output import done, show
from ottla.cli.session import Session, key_values, talks_to_a_cluster
from ottla.client.admin import AdminClient
from ottla.client.admin_types import ConfigEntry

_SOURCES = {
    1: "topic",
    2: "broker",
    3: "all brokers",
    4: "server.properties",
    5: "default",
    6: "logger",
}
_KIND = click.Choice(["topic", "broker"])
_DEFAULT_SOURCE = 5
_EVERY_BROKER = "all"


@click.group(short_help="Show and change settings of topics and brokers.")
def configs() -> None:
    """Settings of topics and brokers, by Kafka's names.

    A NAME is a topic's, a broker's id, or `all` for what holds for every broker that has no value of its own.
    """


@configs.command()
@click.argument("kind", type=_KIND)
@click.argument("name")
@click.option("--all", "everything", is_flag=True, help="Those that are at their default, too.")
@talks_to_a_cluster
def describe(session: Session, kind: str, name: str, everything: bool) -> None:
    """What is set, and where it comes from."""

    async def look(admin: AdminClient) -> dict[str, ConfigEntry]:
        if kind == "topic":
            return (await admin.describe_topic_configs([name]))[name]
        return await admin.describe_broker_configs(_broker(name))

    found = session.admin(look)
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
@click.argument("values", metavar="SETTING=VALUE…", nargs=-1, required=True)
@talks_to_a_cluster
def set_(session: Session, kind: str, name: str, values: tuple[str, ...]) -> None:
    """Set values; those of brokers hold at once where the setting allows that."""
    wanted = key_values(values, "setting")

    async def work(admin: AdminClient) -> None:
        if kind == "topic":
            await admin.alter_topic_config(name, set_values=wanted)
        else:
            await admin.alter_broker_config(_broker(name), set_values=wanted)

    session.admin(work)
    done(f"set {', '.join(wanted)} of {kind} {name}", session.output, kind=kind, name=name, set=wanted)


@configs.command()
@click.argument("kind", type=_KIND)
@click.argument("name")
@click.argument("settings", metavar="SETTING…", nargs=-1, required=True)
@talks_to_a_cluster
def unset(session: Session, kind: str, name: str, settings: tuple[str, ...]) -> None:
    """Take values back to what holds without them."""

    async def work(admin: AdminClient) -> None:
        if kind == "topic":
            await admin.alter_topic_config(name, delete=settings)
        else:
            await admin.alter_broker_config(_broker(name), delete=settings)

    session.admin(work)
    message = f"unset {', '.join(settings)} of {kind} {name}"
    done(message, session.output, kind=kind, name=name, unset=list(settings))


def _broker(name: str) -> int | None:
    """A broker's id; None is every broker."""
    if name == _EVERY_BROKER:
        return None
    if not name.isdigit():
        raise click.UsageError(f"'{name}' is neither a broker's id nor '{_EVERY_BROKER}'")
    return int(name)
