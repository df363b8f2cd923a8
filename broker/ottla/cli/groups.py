"""`ottla groups`: consumer groups, their members, their lag, their offsets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ottla.cli import zookeeper_groups
from ottla.cli.group_resets import new_offsets, parse_reset, parse_topic, partitions_of, write_csv
from ottla.cli.output import as_json, by_topic, done, show, table
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
@click.option("--state", "states", multiple=True, help="Only groups in this state; may be repeated.")
@_ZOOKEEPER
@talks_to_a_cluster
def list_(session: Session, states: tuple[str, ...], zookeeper: str | None) -> None:
    """All groups and their states."""

    async def look(admin: AdminClient) -> list[tuple[str, str]]:
        listed = (await admin.list_groups(states=states)).raise_first()
        return [(group.group_id, group.state) for groups in listed.values() for group in groups]

    if zookeeper is None:
        found = session.admin(look)
    else:
        listed = zookeeper_groups.listed(session, zookeeper)
        found = [group for group in listed if not states or group[1] in states]
    show(
        ({"group": group, "state": state} for group, state in sorted(found)),
        session.output,
        nothing="no groups",
    )


@groups.command()
@click.argument("group")
@click.option("--members", "part", flag_value="members", help="Only the members.")
@click.option("--offsets", "part", flag_value="partitions", help="Only offsets, lag and owners by partition.")
@click.option("--state", "part", flag_value="state", help="Only the state, the coordinator and the assignor.")
@click.option("--verbose", is_flag=True, help="With the partitions that each member is assigned.")
@_ZOOKEEPER
@talks_to_a_cluster
def describe(session: Session, group: str, part: str | None, verbose: bool, zookeeper: str | None) -> None:
    """Members of a group, and its lag in each partition."""

    async def look(admin: AdminClient) -> dict[str, Any]:
        found = await admin.describe_group(group)
        offsets = await admin.group_offsets(group)
        if found.state == "Dead" and not offsets:
            raise Refused(f"there is no group '{group}'")
        return await _described(admin, found, offsets)

    found = zookeeper_groups.described(session, zookeeper, group) if zookeeper else session.admin(look)
    for member in found["members"]:
        assigned = member.pop("assignment")
        if verbose:
            member["assignment"] = assigned
    if part == "state":
        members = {"members": len(found["members"])}
        show(
            [{key: found[key] for key in ("group", "state", "coordinator", "assignor")} | members],
            session.output,
        )
        return
    if part is not None:
        show(found[part], session.output, nothing=f"group {group} has no {part}")
        return
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
                "assignment": by_topic(member.partitions),
            }
            for member in found.members
        ],
    }


@groups.command()
@click.argument("group")
@click.argument("topics", metavar="[TOPIC[:PARTITION,…]]…", nargs=-1)
@click.option(
    "--to",
    metavar="earliest|latest|current|OFFSET|TIME",
    help="TIME is ISO 8601, as 2026-01-31T12:00:00+01:00; without a zone it is UTC. `current` writes the "
    "committed offsets again, and the ends where there are none.",
)
@click.option("--by-duration", metavar="DURATION", help="To the time that long ago, as PT1H30M or P2D.")
@click.option("--shift-by", type=int, metavar="N", help="N records forward, or back when negative.")
@click.option(
    "--from-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CSV lines of topic,partition,offset or group,topic,partition,offset.",
)
@click.option("--all-topics", is_flag=True, help="All partitions in which the group has committed.")
@click.option("--partition", "only", type=int, multiple=True, help="Only these partitions.")
@click.option(
    "--live",
    is_flag=True,
    help="Also while members run: they are removed in the same step, join again and read from there.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be, and change nothing.")
@click.option("--export", is_flag=True, help="Print the new offsets as --from-file reads them.")
@talks_to_a_cluster
def reset(
    session: Session,
    group: str,
    topics: tuple[str, ...],
    to: str | None,
    by_duration: str | None,
    shift_by: int | None,
    from_file: Path | None,
    all_topics: bool,
    only: tuple[int, ...],
    live: bool,
    dry_run: bool,
    export: bool,
) -> None:
    """Put a group's offsets elsewhere. Without --live the group must have no members.

    An offset that does not exist (any more, or yet) becomes the nearest one that does.
    """
    wanted = parse_reset(group, to, by_duration, shift_by, from_file)
    if (bool(topics), all_topics, from_file is not None).count(True) != 1:
        raise click.UsageError("exactly one of TOPIC, --all-topics and --from-file is needed")
    named = [parse_topic(text) for text in topics]
    named = [(name, numbers | set(only)) for name, numbers in named]

    async def work(admin: AdminClient) -> dict[TopicPartition, tuple[int | None, int]]:
        state = (await admin.describe_group(group)).state
        if state in _LIVE and not dry_run and not live:
            raise Refused(f"group '{group}' is {state}: stop its members first, or rewind it with --live")
        before = await admin.group_offsets(group)
        everything = [tp for tp in before if not only or tp.partition in only]
        partitions = everything if all_topics else await partitions_of(admin, named)
        after = await new_offsets(admin, wanted, partitions, before)
        if not dry_run:
            (await admin.alter_group_offsets(group, after, live=live)).raise_first()
        return {tp: (before.get(tp), offset) for tp, offset in sorted(after.items())}

    changes = session.admin(work)
    if export:
        write_csv({tp: offset for tp, (_, offset) in changes.items()})
        return
    show(
        (
            {"topic": tp.topic, "partition": tp.partition, "from": old, "to": new}
            for tp, (old, new) in changes.items()
        ),
        session.output,
        nothing=f"group {group} has committed nothing",
    )


@groups.command("delete-offsets")
@click.argument("group")
@click.argument("topics", metavar="TOPIC[:PARTITION,…]…", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@talks_to_a_cluster
def delete_offsets(session: Session, group: str, topics: tuple[str, ...], yes: bool) -> None:
    """Delete what a group has committed in topics that its members do not subscribe to."""
    named = [parse_topic(text) for text in topics]
    if not yes:
        click.confirm(f"Delete the offsets of {group} in {', '.join(topics)}?", abort=True, err=True)

    async def work(admin: AdminClient) -> list[TopicPartition]:
        partitions = await partitions_of(admin, named)
        (await admin.delete_group_offsets(group, partitions)).raise_first()
        return partitions

    show(({"topic": tp.topic, "partition": tp.partition} for tp in session.admin(work)), session.output)


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
