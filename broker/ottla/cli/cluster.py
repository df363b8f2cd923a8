"""`ottla cluster`: brokers, leader elections, reassignments and log directories."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from typing import IO, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ottla.cli.output import as_json, done, show, table
from ottla.cli.session import (
    Refused,
    Session,
    cluster_command,
    complete_topics,
    key_values,
)
from ottla.client.admin import AdminClient
from ottla.client.admin_types import ElectionType, LogDirDescription, Results, TopicPartition
from ottla.client.errors import (
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    PreferredLeaderNotAvailableError,
)

_POLL_S = 0.5


@click.group(short_help="Brokers, leaders, reassignments, log directories.")
def cluster() -> None:
    """Brokers of the cluster, and the placement of replicas."""


@cluster.command()
@cluster_command
def describe(session: Session) -> None:
    """List brokers, with their leaders and replicas."""

    async def query(admin: AdminClient) -> dict[str, Any]:
        found = await admin.describe_cluster()
        partitions = [p for t in (await admin.describe_topics()).values() for p in t.partitions]
        led = Counter(p.leader for p in partitions)
        held = Counter(broker for p in partitions for broker in p.replicas)
        return {
            "cluster_id": found.cluster_id,
            "controller": found.controller_id if found.controller_id >= 0 else None,
            "partitions": len(partitions),
            "under_replicated": sum(p.under_replicated for p in partitions),
            "offline": led[-1],
            "brokers": [
                {
                    "broker": node.id,
                    "host": node.host,
                    "port": node.port,
                    "rack": node.rack,
                    "leads": led[node.id],
                    "replicas": held[node.id],
                    "controller": node.id == found.controller_id,
                }
                for node in sorted(found.brokers, key=lambda node: node.id)
            ],
        }

    found = session.admin(query)
    if session.output == "json":
        as_json(found)
        return
    click.echo(
        f"cluster {found['cluster_id']}: {found['partitions']} partitions, "
        f"{found['under_replicated']} under-replicated, {found['offline']} without a leader"
    )
    table([{**broker, "port": str(broker["port"])} for broker in found["brokers"]])


@cluster.command()
@click.argument("partitions", metavar="TOPIC:PARTITION…", nargs=-1)
@click.option(
    "--file",
    type=click.File("r"),
    help='The file of kafka-leader-election.sh: {"partitions": [{"topic": …}]}.',
)
@click.option(
    "--unclean", is_flag=True, help="Elect a replica out of sync if none is in sync; records may be lost."
)
@cluster_command
def elect(session: Session, partitions: tuple[str, ...], file: IO[str] | None, unclean: bool) -> None:
    """Elect leaders of these partitions, or of all that need an election.

    The preferred replica becomes the leader if it is in sync. With --unclean, a partition without a leader
    gets any live replica.
    """
    asked = [*map(_partition, partitions), *(_partitions_of(file) if file else [])]
    kind = ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED
    found = session.admin(lambda admin: admin.elect_leaders(kind, asked or None))
    errors = {tp: e for tp, e in found.errors.items() if not isinstance(e, ElectionNotNeededError)}
    if asked:
        failed = errors
    else:  # an election of all partitions ignores those that cannot have a leader now
        failed = {
            tp: e
            for tp, e in errors.items()
            if not isinstance(e, PreferredLeaderNotAvailableError | EligibleLeadersNotAvailableError)
        }
    if failed:
        raise Refused("; ".join(f"{tp}: {error}" for tp, error in sorted(failed.items())))
    elected = [str(tp) for tp in sorted(found)]
    what = f"elected leaders of {', '.join(elected)}" if elected else "no leader had to change"
    done(what, session.output, elected=elected)


def _partition(text: str) -> TopicPartition:
    topic, colon, partition = text.rpartition(":")
    if not colon or not partition.isdigit():
        raise click.UsageError(f"'{text}' must be TOPIC:PARTITION")
    return TopicPartition(topic, int(partition))


def _partitions_of(file: IO[str]) -> list[TopicPartition]:
    try:
        rows = json.load(file)["partitions"]
        return [TopicPartition(str(row["topic"]), int(row["partition"])) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise click.UsageError(
            f'{file.name}: {error!r}; must be {{"partitions": [{{"topic": …, "partition": …}}]}}'
        ) from None


@cluster.command()
@click.argument("brokers", metavar="BROKER…", nargs=-1, type=int)
@cluster_command
def versions(session: Session, brokers: tuple[int, ...]) -> None:
    """List the versions of each API that brokers support."""
    found = session.admin(lambda admin: admin.describe_api_versions(brokers or None)).raise_first()
    show(
        (
            {
                "broker": broker,
                "key": each.key,
                "api": each.name,
                "min": each.least,
                "max": each.most,
                "used": each.used,
            }
            for broker, served in sorted(found.items())
            for each in served
        ),
        session.output,
    )


@cluster.command()
@cluster_command
def moves(session: Session) -> None:
    """List the reassignments in progress."""
    found = session.admin(lambda admin: admin.list_partition_reassignments())
    show(
        (
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "replicas": list(move.replicas),
                "adding": list(move.adding),
                "removing": list(move.removing),
            }
            for tp, move in sorted(found.items())
        ),
        session.output,
        nothing="no replica is being moved",
    )


@cluster.command()
@click.argument("topic", shell_complete=complete_topics)
@click.argument("targets", metavar="PARTITION=BROKER,BROKER…", nargs=-1, required=True)
@click.option("--wait", is_flag=True, help="Wait until the reassignment has completed.")
@cluster_command
def move(session: Session, topic: str, targets: tuple[str, ...], wait: bool) -> None:
    """Reassign partitions of a topic to brokers; the first one is the preferred leader.

    `PARTITION=cancel` cancels a reassignment in progress.
    """
    wanted: dict[TopicPartition, list[int] | None] = {}
    for partition, brokers in key_values(targets, "argument").items():
        ids = brokers.split(",")
        if not partition.isdigit() or (brokers != "cancel" and not all(b.strip().isdigit() for b in ids)):
            raise click.UsageError(
                f"'{partition}={brokers}' must be PARTITION=BROKER,BROKER… or PARTITION=cancel"
            )
        wanted[TopicPartition(topic, int(partition))] = None if brokers == "cancel" else [int(b) for b in ids]
    refused = session.admin(lambda admin: admin.alter_partition_reassignments(wanted)).errors
    if refused:
        raise Refused(
            "; ".join(f"{tp.topic}-{tp.partition}: {error}" for tp, error in sorted(refused.items()))
        )
    if wait:
        session.admin(lambda admin: wait_for_reassignments(admin, set(wanted)))
    message = f"{len(wanted)} partitions of {topic} {'are moved' if wait else 'are being moved'}"
    done(message, session.output, topic=topic, partitions=sorted(tp.partition for tp in wanted), over=wait)


async def wait_for_reassignments(admin: AdminClient, moving: set[TopicPartition]) -> None:
    """Wait until no partition of `moving` is being reassigned."""
    columns = (TextColumn("moving"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("moving", total=len(moving))
        while left := moving & set(await admin.list_partition_reassignments()):
            progress.update(bar, completed=len(moving) - len(left))
            await asyncio.sleep(_POLL_S)


@cluster.command()
@click.option("--broker", "brokers", type=int, multiple=True, help="Only of these brokers.")
@click.option("--topic", "topics", multiple=True, help="Only replicas of these topics, one per line.")
@click.option("--replicas", is_flag=True, help="A line for each replica, with its size and lag.")
@cluster_command
def disks(session: Session, brokers: tuple[int, ...], topics: tuple[str, ...], replicas: bool) -> None:
    """List the log directories of brokers with their usage, or the replicas in them."""

    async def query(admin: AdminClient) -> Results[int, tuple[LogDirDescription, ...]]:
        return (await admin.describe_log_dirs(brokers or None)).raise_first()

    found = session.admin(query)
    directories = [(broker, each) for broker, of_broker in sorted(found.items()) for each in of_broker]
    if replicas or topics:
        rows = [row for each in directories for row in _replicas(*each, set(topics))]
    else:
        rows = [_directory(*each) for each in directories]
    show(rows, session.output, nothing="no replicas")


def _directory(broker: int, directory: LogDirDescription) -> dict[str, Any]:
    return {
        "broker": broker,
        "directory": directory.path,
        "error": str(directory.error) if directory.error else None,
        "replicas": len(directory.replicas),
        "bytes": sum(replica.size for replica in directory.replicas.values()),
        "free_bytes": directory.usable_bytes if directory.usable_bytes >= 0 else None,
        "total_bytes": directory.total_bytes if directory.total_bytes >= 0 else None,
    }


def _replicas(broker: int, directory: LogDirDescription, topics: set[str]) -> Iterator[dict[str, Any]]:
    for tp, replica in sorted(directory.replicas.items()):
        if not topics or tp.topic in topics:
            yield {
                "broker": broker,
                "directory": directory.path,
                "topic": tp.topic,
                "partition": tp.partition,
                "bytes": replica.size,
                "lag": replica.offset_lag,
                "moving_here": replica.is_future,
            }
