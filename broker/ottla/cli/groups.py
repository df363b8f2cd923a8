"""`ottla groups`: consumer groups, their members, their lag, their offsets."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from ottla.cli import zookeeper_groups
from ottla.cli.output import as_json, done, show, table
from ottla.cli.session import Refused, Session, talks_to_a_cluster
from ottla.client.admin import AdminClient
from ottla.client.admin_member_types import GroupDescription
from ottla.client.admin_types import TopicPartition

_ZOOKEEPER = click.option(
    "--zookeeper",
    metavar="HOST:PORT[,…][/CHROOT]",
    help="Groups that keep members and offsets in this ZooKeeper, as consumers of 0.8 do.",
)
_LIVE = ("PreparingRebalance", "CompletingRebalance", "Stable")


@click.group(short_help="List, describe, reset and delete consumer groups.")
def groups() -> None:
    """Consumer groups: who is in them, how far they are, and how to put them elsewhere."""


@groups.command("list")
@_ZOOKEEPER
@talks_to_a_cluster
def list_(session: Session, zookeeper: str | None) -> None:
    """All groups and their states."""

    async def look(admin: AdminClient) -> list[tuple[str, str]]:
        listed = (await admin.list_groups()).raise_first()
        return [(group.group_id, group.state) for groups in listed.values() for group in groups]

    found = zookeeper_groups.listed(session, zookeeper) if zookeeper else session.admin(look)
    show(
        ({"group": group, "state": state} for group, state in sorted(found)),
        session.output,
        nothing="no groups",
    )


@groups.command()
@click.argument("group")
@_ZOOKEEPER
@talks_to_a_cluster
def describe(session: Session, group: str, zookeeper: str | None) -> None:
    """Members of a group, and its lag in each partition."""

    async def look(admin: AdminClient) -> dict[str, Any]:
        found = await admin.describe_group(group)
        offsets = await admin.group_offsets(group)
        if found.state == "Dead" and not offsets:
            raise Refused(f"there is no group '{group}'")
        return await _described(admin, found, offsets)

    found = zookeeper_groups.described(session, zookeeper, group) if zookeeper else session.admin(look)
    if session.output == "json":
        as_json(found)
        return
    assignor = f", assignor {found['assignor']}" if found["assignor"] else ""
    click.echo(
        f"group {group}: {found['state']}, {len(found['members'])} members, "
        f"coordinator {found['coordinator']}{assignor}, lag {found['lag']}"
    )
    if found["partitions"]:
        table(found["partitions"])
    if found["members"]:
        click.echo()
        table(found["members"])


async def _described(
    admin: AdminClient, found: GroupDescription, offsets: dict[TopicPartition, int]
) -> dict[str, Any]:
    owners = {tp: member for member in found.members for tp in member.partitions}
    ends = await admin.end_offsets({*offsets, *owners})
    partitions: list[dict[str, Any]] = []
    for tp in sorted({*offsets, *owners}):
        committed, end = offsets.get(tp), ends.get(tp)
        owner = owners.get(tp)
        partitions.append(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "committed": committed,
                "end": end,
                "lag": None if committed is None or end is None else max(0, end - committed),
                "member": owner.member_id if owner else None,
            }
        )
    return {
        "group": found.group_id,
        "state": found.state,
        "coordinator": found.coordinator.id,
        "assignor": found.protocol or None,
        "lag": sum(p["lag"] or 0 for p in partitions),
        "partitions": partitions,
        "members": [
            {
                "member": member.member_id,
                "instance": member.group_instance_id,
                "client": member.client_id,
                "host": member.host,
                "partitions": len(member.partitions),
            }
            for member in found.members
        ],
    }


@groups.command()
@click.argument("group")
@click.argument("topics", metavar="TOPIC…", nargs=-1, required=True)
@click.option(
    "--to",
    "target",
    required=True,
    metavar="earliest|latest|OFFSET|TIME",
    help="TIME is ISO 8601, as 2026-01-31T12:00:00+01:00; without a zone it is this machine's.",
)
@click.option("--partition", "only", type=int, multiple=True, help="Only these partitions.")
@click.option("--dry-run", is_flag=True, help="Show what would be, and change nothing.")
@talks_to_a_cluster
def reset(
    session: Session, group: str, topics: tuple[str, ...], target: str, only: tuple[int, ...], dry_run: bool
) -> None:
    """Put a group's offsets elsewhere. The group must have no members at work.

    An offset that does not exist (any more, or yet) becomes the nearest one that does.
    """
    wanted = _target(target)

    async def work(admin: AdminClient) -> list[dict[str, Any]]:
        state = (await admin.describe_group(group)).state
        if state in _LIVE and not dry_run:
            raise Refused(f"group '{group}' is {state}: stop its members first")
        described = await admin.describe_topics(topics)
        for topic in topics:
            if topic not in described:
                raise Refused(f"there is no topic '{topic}'")
        partitions = [
            TopicPartition(topic, p.partition)
            for topic in topics
            for p in described[topic].partitions
            if not only or p.partition in only
        ]
        before = await admin.group_offsets(group)
        after = await _offsets(admin, partitions, wanted)
        if not dry_run:
            (await admin.alter_group_offsets(group, after)).raise_first()
        return [
            {"topic": tp.topic, "partition": tp.partition, "from": before.get(tp), "to": offset}
            for tp, offset in sorted(after.items())
        ]

    show(session.admin(work), session.output, nothing="no partition has a leader")


def _target(text: str) -> str | int | datetime:
    if text in ("earliest", "latest"):
        return text
    if text.isdigit():
        return int(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"--to {text}: must be earliest, latest, an offset or an ISO 8601 time"
        ) from None


async def _offsets(
    admin: AdminClient, partitions: list[TopicPartition], wanted: str | int | datetime
) -> dict[TopicPartition, int]:
    starts = await admin.start_offsets(partitions)
    ends = await admin.end_offsets(partitions)
    if isinstance(wanted, datetime):
        found = await admin.offsets_for_time(partitions, int(wanted.timestamp() * 1000))
        # Nothing as late as that: the end.
        return {tp: found.get(tp, end) for tp, end in ends.items()}
    if isinstance(wanted, int):
        return {tp: min(max(wanted, starts[tp]), ends[tp]) for tp in ends if tp in starts}
    return starts if wanted == "earliest" else ends


@groups.command()
@click.argument("names", metavar="GROUP…", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@talks_to_a_cluster
def delete(session: Session, names: tuple[str, ...], yes: bool) -> None:
    """Delete groups without members, and their offsets."""
    if not yes:
        click.confirm(f"Delete the offsets of {', '.join(names)}?", abort=True, err=True)

    async def work(admin: AdminClient) -> None:
        (await admin.delete_groups(names)).raise_first()

    session.admin(work)
    done(f"deleted {', '.join(names)}", session.output, deleted=list(names))
