"""`ottla cluster`: brokers, leaders, moves of replicas, disks."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ottla.cli.output import as_json, done, show, table
from ottla.cli.session import Refused, Session, key_values, talks_to_a_cluster
from ottla.client.admin import AdminClient
from ottla.client.admin_types import LogDirDescription, TopicPartition
from ottla.client.results import Results

_POLL_S = 0.5


@click.group(short_help="Brokers, leaders, moves of replicas, disks.")
def cluster() -> None:
    """The cluster as a whole: its brokers and where replicas are."""


@cluster.command()
@talks_to_a_cluster
def describe(session: Session) -> None:
    """Brokers, and what each of them has to do."""

    async def look(admin: AdminClient) -> dict[str, Any]:
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

    found = session.admin(look)
    if session.output == "json":
        as_json(found)
        return
    click.echo(
        f"cluster {found['cluster_id']}: {found['partitions']} partitions, "
        f"{found['under_replicated']} under-replicated, {found['offline']} without a leader"
    )
    table([{**broker, "port": str(broker["port"])} for broker in found["brokers"]])


@cluster.command()
@talks_to_a_cluster
def elect(session: Session) -> None:
    """Give leadership back to the first replica of each partition, where it is in sync."""
    session.admin(lambda admin: admin.elect_preferred_leaders())
    done("preferred leaders are elected", session.output, elected=True)


@cluster.command()
@talks_to_a_cluster
def moves(session: Session) -> None:
    """Replicas that are on their way to other brokers."""
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
@click.argument("topic")
@click.argument("targets", metavar="PARTITION=BROKER,BROKER…", nargs=-1, required=True)
@click.option("--wait", is_flag=True, help="Until the moves are over.")
@talks_to_a_cluster
def move(session: Session, topic: str, targets: tuple[str, ...], wait: bool) -> None:
    """Move partitions of a topic to the brokers that are named, first the preferred leader.

    `PARTITION=cancel` takes a move back that is under way.
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
        session.admin(lambda admin: _until_over(admin, set(wanted)))
    message = f"{len(wanted)} partitions of {topic} {'are moved' if wait else 'are being moved'}"
    done(message, session.output, topic=topic, partitions=sorted(tp.partition for tp in wanted), over=wait)


async def _until_over(admin: AdminClient, moving: set[TopicPartition]) -> None:
    columns = (TextColumn("moving"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("moving", total=len(moving))
        while left := moving & set(await admin.list_partition_reassignments()):
            progress.update(bar, completed=len(moving) - len(left))
            await asyncio.sleep(_POLL_S)


@cluster.command()
@talks_to_a_cluster
def disks(session: Session) -> None:
    """The log directories of all brokers, and how full they are."""

    async def look(admin: AdminClient) -> Results[int, tuple[LogDirDescription, ...]]:
        return (await admin.describe_log_dirs()).raise_first()

    found = session.admin(look)
    show(
        (
            {
                "broker": broker,
                "directory": directory.path,
                "error": str(directory.error) if directory.error else None,
                "replicas": len(directory.replicas),
                "bytes": sum(replica.size for replica in directory.replicas.values()),
                "free_bytes": directory.usable_bytes if directory.usable_bytes >= 0 else None,
                "total_bytes": directory.total_bytes if directory.total_bytes >= 0 else None,
            }
            for broker, directories in sorted(found.items())
            for directory in directories
        ),
        session.output,
    )
