"""`ottla topics`: list, describe, create, grow, truncate and delete topics, and list offsets."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, Final
from uuid import UUID

import click

from ottla.cli.output import as_json, done, show, table
from ottla.cli.session import (
    Refused,
    Session,
    cluster_command,
    complete_topics,
    key_values,
)
from ottla.client.admin import AdminClient
from ottla.client.admin_types import (
    ConfigEntry,
    NewPartitions,
    OffsetSpec,
    PartitionDescription,
    Reassignment,
    Results,
    TopicDescription,
    TopicPartition,
)
from ottla.client.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError

_SET_ON_TOPIC: Final = 1
_ASSIGNMENT: Final = "The brokers of each partition, preferred leader first, as 0:1,1:2."


@click.group(short_help="List, describe, create, grow and delete topics.")
def topics() -> None:
    """List, describe, create, grow and delete topics. `ottla configs` changes their settings."""


@topics.command("list")
@click.option("--internal", is_flag=True, help="Include internal topics, such as __consumer_offsets.")
@cluster_command
def list_(session: Session, internal: bool) -> None:
    """List topics."""
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


_HEALTH: Final = ("under_replicated", "unavailable", "under_min_isr", "at_min_isr")


@topics.command()
@click.argument("names", metavar="TOPIC…", nargs=-1, shell_complete=complete_topics)
@click.option("--id", "topic_id", type=click.UUID, help="The topic with this id.")
@click.option("--with-settings", is_flag=True, help="Only topics that have settings of their own.")
@click.option("--under-replicated", is_flag=True, help="Partitions with replicas out of sync.")
@click.option("--unavailable", is_flag=True, help="Partitions without a live leader.")
@click.option(
    "--under-min-isr", is_flag=True, help="Partitions with fewer replicas in sync than min.insync.replicas."
)
@click.option("--at-min-isr", is_flag=True, help="Partitions with exactly min.insync.replicas in sync.")
@cluster_command
def describe(
    session: Session, names: tuple[str, ...], topic_id: UUID | None, with_settings: bool, **health: bool
) -> None:
    """Describe partitions, replicas and settings of the given topics, or of those that options select.

    Several options select partitions for which any of them holds.
    """
    wanted = [name for name in _HEALTH if health[name]]
    if not (names or topic_id or with_settings or wanted):
        raise click.UsageError("a TOPIC or an option that selects topics is required")
    if topic_id is not None and names:
        raise click.UsageError("--id and TOPIC exclude each other")

    async def query(admin: AdminClient) -> _Topics:
        if topic_id is not None:
            found = {topic.name: topic for topic in (await admin.describe_topics([topic_id])).values()}
        else:
            found = dict(await admin.describe_topics(names or None))
        for name in (*names, *([str(topic_id)] if topic_id and not found else [])):
            if name not in found:
                raise Refused(f"there is no topic '{name}'")
        configs = await admin.describe_topic_configs(found)
        return [(topic, configs[name]) for name, topic in sorted(found.items())]

    if wanted:
        _show_partitions(session, query, wanted)
        return
    found = [
        (topic, configs)
        for topic, configs in session.admin(query)
        if not with_settings or _topic_settings(configs)
    ]
    _show_topics(session, found)


_Topics = list[tuple[TopicDescription, dict[str, ConfigEntry]]]


def _show_partitions(session: Session, query: Callable[[AdminClient], Any], wanted: Iterable[str]) -> None:
    async def select(admin: AdminClient) -> list[dict[str, Any]]:
        moves = await admin.list_partition_reassignments()
        live = {node.id for node in (await admin.describe_cluster()).brokers}
        return [
            {
                "topic": topic.name,
                "partition": p.partition,
                "leader": p.leader if p.leader >= 0 else None,
                "replicas": list(p.replicas),
                "isr": list(p.isr),
                "min_isr": min_isr,
            }
            for topic, configs in await query(admin)
            for min_isr in [int(configs["min.insync.replicas"].value or 1)]
            for p in topic.partitions
            for problems in [
                problems_of(p, min_isr, live, moves.get(TopicPartition(topic.name, p.partition)))
            ]
            if problems & set(wanted)
        ]

    show(session.admin(select), session.output, nothing="no such partitions")


def problems_of(
    partition: PartitionDescription, min_isr: int, live: Iterable[int], move: Reassignment | None
) -> set[str]:
    """Which of under_replicated, unavailable, under_min_isr and at_min_isr hold, by kafka-topics.sh's rules.

    Replicas that a move adds do not count until they are in sync."""
    in_sync = len(partition.isr)
    replicas = len(partition.replicas) - (len(move.adding) if move else 0)
    facts = {
        "under_replicated": in_sync < replicas,
        "unavailable": partition.leader not in set(live),
        "under_min_isr": partition.leader < 0 or in_sync < min_isr,
        "at_min_isr": in_sync == min_isr,
    }
    return {name for name, holds in facts.items() if holds}


def _topic_settings(configs: Mapping[str, ConfigEntry]) -> dict[str, str | None]:
    return {n: c.value for n, c in sorted(configs.items()) if c.source == _SET_ON_TOPIC}


def _show_topics(session: Session, found: _Topics) -> None:
    described = [
        {
            **_summary(topic),
            "settings": _topic_settings(configs),
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
        for topic, configs in found
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
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@click.option("--partitions", type=click.IntRange(min=1), default=None, help="Default: the brokers'.")
@click.option("--replicas", type=click.IntRange(min=1), default=None, help="Default: the brokers'.")
@click.option("--config", "configs", multiple=True, metavar="NAME=VALUE", help="A setting of the topic.")
@click.option("--assignment", metavar="ID:ID,…", help=f"{_ASSIGNMENT} Replaces both numbers.")
@click.option("--if-not-exists", is_flag=True, help="Succeed if the topic exists, without a change.")
@cluster_command
def create(
    session: Session,
    name: str,
    partitions: int | None,
    replicas: int | None,
    configs: tuple[str, ...],
    assignment: str | None,
    if_not_exists: bool,
) -> None:
    """Create a topic."""
    settings = key_values(configs, "--config")
    placed = None if assignment is None else dict(enumerate(_assignment(assignment)))
    if placed is not None and (partitions or replicas):
        raise click.UsageError("--assignment excludes --partitions and --replicas")

    async def work(admin: AdminClient) -> bool:
        try:
            await admin.create_topic(
                name,
                partitions=partitions or -1,
                replication_factor=replicas or -1,
                config=settings,
                assignment=placed,
            )
        except TopicAlreadyExistsError:
            if if_not_exists:
                return False
            raise
        return True

    created = session.admin(work)
    message = f"created topic {name}" if created else f"topic {name} exists already"
    done(message, session.output, topic=name, created=created)


def _assignment(text: str) -> list[list[int]]:
    rows = [part.strip().split(":") for part in text.split(",")]
    if not all(broker.isdigit() for row in rows for broker in row):
        raise click.UsageError(f"--assignment {text}: must be ID:ID,ID:ID…")
    return [[int(broker) for broker in row] for row in rows]


@topics.command()
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@click.argument("partitions", type=click.IntRange(min=1))
@click.option("--assignment", metavar="ID:ID,…", help=f"{_ASSIGNMENT} Only of the new partitions.")
@cluster_command
def grow(session: Session, name: str, partitions: int, assignment: str | None) -> None:
    """Increase the number of partitions of a topic to PARTITIONS.

    Existing records stay in their partitions. New records of a key may go to another partition than before.
    """

    new = NewPartitions(partitions, None if assignment is None else _assignment(assignment))

    async def work(admin: AdminClient) -> None:
        (await admin.create_partitions({name: new})).raise_first()

    session.admin(work)
    done(f"{name} has {partitions} partitions", session.output, topic=name, partitions=partitions)


@topics.command()
@click.argument("names", metavar="TOPIC…", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("--if-exists", is_flag=True, help="Succeed if a topic does not exist.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@cluster_command
def delete(session: Session, names: tuple[str, ...], if_exists: bool, yes: bool) -> None:
    """Delete topics with their records."""
    if not yes:
        click.confirm(f"Delete {', '.join(names)} permanently?", abort=True, err=True)

    async def work(admin: AdminClient) -> list[str]:
        results = await admin.delete_topics(names)
        for error in results.errors.values():
            if not (if_exists and isinstance(error, UnknownTopicOrPartitionError)):
                raise error
        return list(results)

    deleted = session.admin(work)
    done(f"deleted {', '.join(deleted) or 'nothing'}", session.output, deleted=deleted)


@topics.command()
@click.argument("names", metavar="TOPIC[:PARTITION]…", nargs=-1, shell_complete=complete_topics)
@click.option(
    "--at",
    default="latest",
    show_default=True,
    metavar="latest|earliest|max-timestamp|earliest-local|latest-tiered|MS",
    help="The offset; MS is a timestamp, for the first record of this time or later.",
)
@click.option("--internal", is_flag=True, help="Include internal topics if no topic is given.")
@cluster_command
def offsets(session: Session, names: tuple[str, ...], at: str, internal: bool) -> None:
    """List offsets of partitions: end offsets, start offsets or offsets of a time. Default: of all topics."""
    spec = _offset_spec(at)

    async def query(admin: AdminClient) -> list[dict[str, Any]]:
        partitions = await _partitions(admin, names, internal)
        found = await admin.list_offsets(dict.fromkeys(partitions, spec))
        return [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "offset": listed.offset if listed and listed.offset >= 0 else None,
                "timestamp": listed.timestamp_ms if listed and listed.timestamp_ms >= 0 else None,
                "error": str(found.errors[tp]) if tp in found.errors else None,
            }
            for tp in partitions
            for listed in [found.get(tp)]
        ]

    show(session.admin(query), session.output, nothing="no partitions")


def _offset_spec(at: str) -> OffsetSpec | int:
    if at.isdigit():
        return int(at)
    try:
        return OffsetSpec[at.upper().replace("-", "_")]
    except KeyError:
        allowed = ", ".join(spec.name.lower().replace("_", "-") for spec in OffsetSpec)
        raise click.UsageError(f"--at {at}: must be {allowed}, or a time in ms") from None


async def _partitions(admin: AdminClient, names: tuple[str, ...], internal: bool) -> list[TopicPartition]:
    wanted: defaultdict[str, set[int]] = defaultdict(set)
    for name in names:
        topic, colon, partition = name.rpartition(":")
        if colon and not partition.isdigit():
            raise click.UsageError(f"'{name}' must be TOPIC or TOPIC:PARTITION")
        wanted[topic if colon else name].update([int(partition)] if colon else [])
    described = await admin.describe_topics(list(wanted) or None)
    for name, error in described.errors.items():
        raise Refused(f"{name}: {error}")
    found = [
        TopicPartition(name, p.partition)
        for name, topic in sorted(described.items())
        if wanted or internal or not topic.internal
        for p in topic.partitions
        if not wanted.get(name) or p.partition in wanted[name]
    ]
    for name, partitions in wanted.items():
        if missing := partitions - {tp.partition for tp in found if tp.topic == name}:
            raise Refused(f"{name} has no partition {min(missing)}")
    return found


@topics.command("truncate")
@click.argument("name", metavar="TOPIC", required=False, shell_complete=complete_topics)
@click.argument("before", metavar="PARTITION=OFFSET…", nargs=-1)
@click.option(
    "--file",
    type=click.File("r"),
    help='The file of kafka-delete-records.sh: {"partitions": [{"topic": …}]}.',
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@cluster_command
def truncate(
    session: Session, name: str | None, before: tuple[str, ...], file: IO[str] | None, yes: bool
) -> None:
    """Delete the records before an offset; `end` deletes all records."""
    if (file is None) == (name is None):
        raise click.UsageError("either TOPIC and PARTITION=OFFSET, or --file are required")
    if file is not None:
        offsets = _offsets_of(file)
    else:
        assert name is not None
        offsets = _offsets_given(name, before)
    if not yes:
        topics = ", ".join(sorted({tp.topic for tp in offsets}))
        click.confirm(f"Delete records of {topics} permanently?", abort=True, err=True)

    async def work(admin: AdminClient) -> Results[TopicPartition, int]:
        return (await admin.delete_records(offsets)).raise_first()

    starts = session.admin(work)
    show(
        (
            {**({"topic": tp.topic} if file else {}), "partition": tp.partition, "start_offset": start}
            for tp, start in sorted(starts.items())
        ),
        session.output,
    )


def _offsets_given(name: str, before: tuple[str, ...]) -> dict[TopicPartition, int]:
    if not before:
        raise click.UsageError("PARTITION=OFFSET is required")
    offsets = {}
    for partition, offset in key_values(before, "argument").items():
        if not partition.isdigit() or not (offset.isdigit() or offset == "end"):
            raise click.UsageError(f"'{partition}={offset}' must be PARTITION=OFFSET or PARTITION=end")
        offsets[TopicPartition(name, int(partition))] = -1 if offset == "end" else int(offset)
    return offsets


def _offsets_of(file: IO[str]) -> dict[TopicPartition, int]:
    """The offsets of a file; -1 is the end offset, as in Kafka's tool."""
    try:
        rows = json.load(file)["partitions"]
        found = {TopicPartition(str(r["topic"]), int(r["partition"])): int(r["offset"]) for r in rows}
    except (KeyError, TypeError, ValueError) as error:
        raise click.UsageError(
            f'{file.name}: {error!r}; must be {{"partitions": [{{"topic": …, "partition": …, "offset": …}}]}}'
        ) from None
    if len(found) < len(rows):
        raise click.UsageError(f"{file.name}: a partition is given twice")
    return found
