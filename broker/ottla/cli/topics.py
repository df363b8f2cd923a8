"""`ottla topics`: list, describe, create, grow and delete topics."""

from __future__ import annotations

from typing import Any

import click

from ottla.cli.output import as_json, done, show, table
from ottla.cli.session import Refused, Session, key_values, talks_to_a_cluster
from ottla.client.admin import AdminClient
from ottla.client.admin_types import ConfigEntry, TopicDescription, TopicPartition
from ottla.client.errors import TopicAlreadyExistsError
from ottla.client.results import Results

_SET_ON_TOPIC = 1


@click.group(short_help="List, describe, create, grow and delete topics.")
def topics() -> None:
    """Topics: list, describe, create, grow, delete. Their settings: `ottla configs`."""


@topics.command("list")
@click.option("--internal", is_flag=True, help="Kafka's own topics too, such as __consumer_offsets.")
@talks_to_a_cluster
def list_(session: Session, internal: bool) -> None:
    """One line a topic."""
    found = session.admin(lambda admin: admin.describe_topics())
    show(
        (_summary(topic) for _, topic in sorted(found.items()) if internal or not topic.internal),
        session.output,
        nothing="no topics",
    )


def _summary(topic: TopicDescription) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "partitions": len(topic.partitions),
        "replicas": max((len(p.replicas) for p in topic.partitions), default=0),
        "under_replicated": sum(p.under_replicated for p in topic.partitions),
        "offline": sum(p.leader < 0 for p in topic.partitions),
        "id": str(topic.topic_id),
    }


@topics.command()
@click.argument("names", metavar="TOPIC…", nargs=-1, required=True)
@talks_to_a_cluster
def describe(session: Session, names: tuple[str, ...]) -> None:
    """Partitions, replicas and own settings of topics."""

    async def look(admin: AdminClient) -> list[tuple[TopicDescription, dict[str, ConfigEntry]]]:
        found = await admin.describe_topics(names)
        for name in names:
            if name not in found:
                raise Refused(f"there is no topic '{name}'")
        configs = await admin.describe_topic_configs(found)
        return [(found[name], configs[name]) for name in names]

    described = [
        {
            **_summary(topic),
            "settings": {n: c.value for n, c in sorted(configs.items()) if c.source == _SET_ON_TOPIC},
            "partitions": [
                {
                    "partition": p.partition,
                    "leader": p.leader if p.leader >= 0 else None,
                    "epoch": p.leader_epoch,
                    "replicas": list(p.replicas),
                    "isr": list(p.isr),
                    "offline": list(p.offline_replicas),
                }
                for p in topic.partitions
            ],
        }
        for topic, configs in session.admin(look)
    ]
    if session.output == "json":
        as_json(described)
        return
    for number, topic in enumerate(described):
        settings = ", ".join(f"{n}={v}" for n, v in topic["settings"].items()) or "no settings of its own"
        if number:
            click.echo()
        table(topic["partitions"], title=f"{topic['topic']}  {topic['id']}  {settings}")


@topics.command()
@click.argument("name", metavar="TOPIC")
@click.option("--partitions", type=click.IntRange(min=1), default=None, help="Default: the brokers'.")
@click.option("--replicas", type=click.IntRange(min=1), default=None, help="Default: the brokers'.")
@click.option("--config", "configs", multiple=True, metavar="NAME=VALUE", help="A setting of the topic.")
@click.option("--if-not-exists", is_flag=True, help="One that exists already is fine, as it is.")
@talks_to_a_cluster
def create(
    session: Session,
    name: str,
    partitions: int | None,
    replicas: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
) -> None:
    """Create a topic."""
    settings = key_values(configs, "--config")

    async def work(admin: AdminClient) -> bool:
        try:
            await admin.create_topic(
                name, partitions=partitions or -1, replication_factor=replicas or -1, config=settings
            )
        except TopicAlreadyExistsError:
            if if_not_exists:
                return False
            raise
        return True

    created = session.admin(work)
    message = f"created topic {name}" if created else f"topic {name} exists already"
    done(message, session.output, topic=name, created=created)


@topics.command()
@click.argument("name", metavar="TOPIC")
@click.argument("partitions", type=click.IntRange(min=1))
@talks_to_a_cluster
def grow(session: Session, name: str, partitions: int) -> None:
    """Give a topic more partitions: PARTITIONS in all.

    Keys change their partition: what was written stays where it is, what comes goes by the new number.
    """

    async def work(admin: AdminClient) -> None:
        (await admin.create_partitions({name: partitions})).raise_first()

    session.admin(work)
    done(f"{name} has {partitions} partitions", session.output, topic=name, partitions=partitions)


@topics.command()
@click.argument("names", metavar="TOPIC…", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@talks_to_a_cluster
def delete(session: Session, names: tuple[str, ...], yes: bool) -> None:
    """Delete topics, with all that is in them."""
    if not yes:
        click.confirm(f"Delete {', '.join(names)} for good?", abort=True, err=True)

    async def work(admin: AdminClient) -> None:
        (await admin.delete_topics(names)).raise_first()

    session.admin(work)
    done(f"deleted {', '.join(names)}", session.output, deleted=list(names))


@topics.command("truncate")
@click.argument("name", metavar="TOPIC")
@click.argument("before", metavar="PARTITION=OFFSET…", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@talks_to_a_cluster
def truncate(session: Session, name: str, before: tuple[str, ...], yes: bool) -> None:
    """Delete the records before an offset; `end` stands for all there are."""
    offsets = {}
    for partition, offset in key_values(before, "argument").items():
        if not partition.isdigit() or not (offset.isdigit() or offset == "end"):
            raise click.UsageError(f"'{partition}={offset}' must be PARTITION=OFFSET or PARTITION=end")
        offsets[TopicPartition(name, int(partition))] = -1 if offset == "end" else int(offset)
    if not yes:
        click.confirm(f"Delete records of {name} for good?", abort=True, err=True)

    async def work(admin: AdminClient) -> Results[TopicPartition, int]:
        return (await admin.delete_records(offsets)).raise_first()

    starts = session.admin(work)
    show(
        ({"partition": tp.partition, "start_offset": start} for tp, start in sorted(starts.items())),
        session.output,
    )
