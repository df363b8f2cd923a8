"""`ottla groups`: list, describe, reset and delete consumer groups.

With --zookeeper, groups of Kafka 0.8 are listed and described with the fields of Kafka's former tools,
ConsumerOffsetChecker and `kafka-consumer-groups --zookeeper`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from ottla.cli.group_resets import Reset, new_offsets, parse_reset, parse_topic, partitions_of, write_csv
from ottla.cli.output import as_json, by_topic, done, show, table
from ottla.cli.session import (
    Refused,
    Session,
    Unreachable,
    cluster_command,
    complete_groups,
    complete_topics,
)
from ottla.client.admin import AdminClient, Results
from ottla.client.admin_types import GroupDescription, TopicPartition
from ottla.metadata.store import MetadataStore, StoreError
from ottla.metadata.zookeeper_groups import ZooKeeperGroup, group_names, read_groups

_ZOOKEEPER = click.option(
    "--zookeeper",
    metavar="HOST:PORT[,…][/CHROOT]",
    help="Groups of 0.8 consumers, which have members and offsets in this ZooKeeper.",
)
_ALL_GROUPS = click.option("--all-groups", is_flag=True, help="All groups of consumers.")
_CONSUMERS = ("consumer", "")
"""The protocol types of --all-groups, as in Kafka's tool; "" is a group with offsets only."""
_LIVE = ("PreparingRebalance", "CompletingRebalance", "Stable")


@click.group(short_help="List, describe, reset and delete consumer groups.")
def groups() -> None:
    """Consumer groups: members, lag and offsets."""


@groups.command("list")
@click.option("--state", "states", multiple=True, help="Only groups in this state; may be repeated.")
@_ZOOKEEPER
@cluster_command
def list_(session: Session, states: tuple[str, ...], zookeeper: str | None) -> None:
    """List groups and their states."""

    async def query(admin: AdminClient) -> list[tuple[str, str]]:
        listed = (await admin.list_groups(states=states)).raise_first()
        return [(group.group_id, group.state) for groups in listed.values() for group in groups]

    if zookeeper is None:
        found = session.admin(query)
    else:
        listed = _zookeeper_groups(session, zookeeper)
        found = [group for group in listed if not states or group[1] in states]
    show(
        ({"group": group, "state": state} for group, state in sorted(found)),
        session.output,
        nothing="no groups",
    )


@groups.command()
@click.argument("names", metavar="[GROUP]…", nargs=-1, shell_complete=complete_groups)
@_ALL_GROUPS
@click.option("--members", "part", flag_value="members", help="Only the members.")
@click.option("--offsets", "part", flag_value="partitions", help="Only offsets, lag and owners by partition.")
@click.option("--state", "part", flag_value="state", help="Only the state, the coordinator and the assignor.")
@click.option("--verbose", is_flag=True, help="With the partitions that each member is assigned.")
@_ZOOKEEPER
@cluster_command
def describe(
    session: Session,
    names: tuple[str, ...],
    all_groups: bool,
    part: str | None,
    verbose: bool,
    zookeeper: str | None,
) -> None:
    """Describe groups: members, and lag in each partition.

    With several groups, rows have the group, and JSON is a list.
    """
    _check_scope(names, all_groups)
    missing: list[str] = []

    async def query(admin: AdminClient) -> list[dict[str, Any]]:
        wanted = await _group_names(admin, names, all_groups)
        described = (await admin.describe_groups(wanted)).raise_first()
        committed = (await admin.list_group_offsets(dict.fromkeys(wanted))).raise_first()
        found = []
        for name in wanted:
            offsets = {tp: each.offset for tp, each in committed[name].items() if each is not None}
            if described[name].state == "Dead" and not offsets:
                missing.append(f"there is no group '{name}'")
            else:
                found.append(await _described(admin, described[name], offsets))
        return found

    if zookeeper is None:
        found = session.admin(query)
    else:
        found = []
        listed = _zookeeper_groups(session, zookeeper) if all_groups else []
        for name in sorted(name for name, _ in listed) or dict.fromkeys(names):
            try:
                found.append(_describe_zookeeper_group(session, zookeeper, name))
            except Refused as problem:
                missing.append(problem.message)
    for group in found:
        for member in group["members"]:
            assigned = member.pop("assignment")
            if verbose:
                member["assignment"] = assigned
    several = all_groups or len(set(names)) > 1
    if found or several:
        _show_described(found, part, session.output, several=several)
    if missing:
        raise Refused("; ".join(missing))


def _show_described(
    found: Sequence[Mapping[str, Any]], part: str | None, output: str, *, several: bool
) -> None:
    if part == "state":
        keys = ("group", "state", "coordinator", "assignor")
        show(
            ({key: each[key] for key in keys} | {"members": len(each["members"])} for each in found),
            output,
            nothing="no groups",
        )
    elif part is not None:
        rows = (
            {**({"group": each["group"]} if several else {}), **row} for each in found for row in each[part]
        )
        show(rows, output, nothing=f"no {part}" if several else f"group {found[0]['group']} has no {part}")
    elif output == "json":
        as_json(found if several else found[0])
    elif not found:
        click.echo("no groups", err=True)
    else:
        for number, each in enumerate(found):
            if number:
                click.echo()
            _print_group(each)


def _print_group(found: Mapping[str, Any]) -> None:
    assignor = f", assignor {found['assignor']}" if found["assignor"] else ""
    click.echo(
        f"group {found['group']}: {found['state']}, {len(found['members'])} members, "
        f"coordinator {found['coordinator']}{assignor}, lag {found['lag']}"
    )
    if found["partitions"]:
        table(found["partitions"])
    if found["members"]:
        click.echo()
        table(found["members"])


def _check_scope(names: Sequence[str], all_groups: bool) -> None:
    """Raises UsageError."""
    if bool(names) == all_groups:
        raise click.UsageError("either GROUP or --all-groups is needed")


async def _group_names(admin: AdminClient, names: Iterable[str], all_groups: bool) -> list[str]:
    """The named groups in order, or all consumer groups sorted by name."""
    if not all_groups:
        return list(dict.fromkeys(names))
    listed = (await admin.list_groups()).raise_first()
    groups = (group for of_broker in listed.values() for group in of_broker)
    return sorted({group.group_id for group in groups if group.protocol_type in _CONSUMERS})


async def _described(
    admin: AdminClient, found: GroupDescription, offsets: dict[TopicPartition, int]
) -> dict[str, Any]:
    owners = {tp: member for member in found.members for tp in member.partitions}
    ends = await admin.end_offsets({*offsets, *owners})
    partitions = _partition_rows(offsets, ends, {tp: member.member_id for tp, member in owners.items()})
    return {
        "group": found.group_id,
        "state": found.state,
        "coordinator": found.coordinator.id,
        "assignor": found.protocol or None,
        "lag": sum(row["lag"] or 0 for row in partitions),
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


def _partition_rows(
    offsets: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    owners: Mapping[TopicPartition, str],
) -> list[dict[str, Any]]:
    """Committed offset, end offset, lag and owner of each partition that has an offset or an owner."""
    rows: list[dict[str, Any]] = []
    for tp in sorted({*offsets, *owners}):
        committed, end = offsets.get(tp), ends.get(tp)
        rows.append(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "committed": committed,
                "end": end,
                "lag": None if committed is None or end is None else max(0, end - committed),
                "member": owners.get(tp),
            }
        )
    return rows


@groups.command()
@click.argument("words", metavar="[GROUP] [TOPIC[:PARTITION,…]]…", nargs=-1)
@click.option(
    "--group",
    "names",
    multiple=True,
    help="A group, instead of GROUP; repeatable.",
    shell_complete=complete_groups,
)
@_ALL_GROUPS
@click.option(
    "--to",
    metavar="earliest|latest|current|OFFSET|TIME",
    help="TIME is ISO 8601, as 2026-01-31T12:00:00+01:00; without a zone it is UTC. `current` writes the "
    "committed offsets again, and the ends where there are none.",
)
@click.option("--by-duration", metavar="DURATION", help="To the offsets of this time ago, as PT1H30M or P2D.")
@click.option("--shift-by", type=int, metavar="N", help="Shift by N records; negative: backwards.")
@click.option(
    "--from-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CSV lines of topic,partition,offset or group,topic,partition,offset.",
)
@click.option("--all-topics", is_flag=True, help="All partitions with a committed offset.")
@click.option("--partition", "only", type=int, multiple=True, help="Only these partitions.")
@click.option(
    "--live",
    is_flag=True,
    help="Allow active members: they are removed in the same step, join again and read from the new offsets.",
)
@click.option("--dry-run", is_flag=True, help="Print the new offsets without a change.")
@click.option("--export", is_flag=True, help="Print the new offsets in the format of --from-file.")
@cluster_command
def reset(
    session: Session,
    words: tuple[str, ...],
    names: tuple[str, ...],
    all_groups: bool,
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
    """Reset the offsets of groups. Without --live, a group must have no members.

    An offset out of range becomes the nearest one in range. Of several groups, those that cannot be reset are
    skipped, and the command fails at the end.
    """
    topics = words
    if not names and not all_groups:
        names, topics = words[:1], words[1:]
    _check_scope(names, all_groups)
    names = tuple(dict.fromkeys(names))
    several = all_groups or len(names) > 1
    wanted = parse_reset(None if several else names[0], to, by_duration, shift_by, from_file)
    if (bool(topics), all_topics, from_file is not None).count(True) != 1:
        raise click.UsageError("exactly one of TOPIC, --all-topics and --from-file is needed")
    named = [parse_topic(text) for text in topics]
    named = [(name, numbers | set(only)) for name, numbers in named]
    changes: dict[str, dict[TopicPartition, tuple[int | None, int]]] = {}
    problems: dict[str, click.ClickException] = {}

    async def work(admin: AdminClient) -> None:
        for group in await _group_names(admin, names, all_groups):
            try:
                with session.translated_errors():
                    changes[group] = await reset_one(admin, group, wanted(group))
            except Refused as problem:
                problems[group] = problem
            except Unreachable as problem:
                problems[group] = problem
                return

    async def reset_one(
        admin: AdminClient, group: str, how: Reset
    ) -> dict[TopicPartition, tuple[int | None, int]]:
        state = (await admin.describe_group(group)).state
        if state in _LIVE and not dry_run and not live:
            raise Refused(f"group '{group}' is {state}: stop its members first, or rewind it with --live")
        before = await admin.group_offsets(group)
        everything = [tp for tp in before if not only or tp.partition in only]
        partitions = everything if all_topics else await partitions_of(admin, named)
        after = await new_offsets(admin, how, partitions, before)
        if not dry_run:
            (await admin.alter_group_offsets(group, after, live=live)).raise_first()
        return {tp: (before.get(tp), offset) for tp, offset in sorted(after.items())}

    session.admin(work)
    if not several:
        for problem in problems.values():
            raise problem
    if export:
        after = {group: {tp: new for tp, (_, new) in rows.items()} for group, rows in changes.items()}
        write_csv(after, with_group=several)
    else:
        show(
            (
                {
                    **({"group": group} if several else {}),
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "from": old,
                    "to": new,
                }
                for group, rows in changes.items()
                for tp, (old, new) in rows.items()
            ),
            session.output,
            nothing="nothing was reset" if several else f"group {names[0]} has committed nothing",
        )
    if problems:
        (*_, last) = problems.values()
        raise type(last)("\n".join(f"{group}: {problem.message}" for group, problem in problems.items()))


@groups.command("delete-offsets")
@click.argument("group", shell_complete=complete_groups)
@click.argument(
    "topics", metavar="TOPIC[:PARTITION,…]…", nargs=-1, required=True, shell_complete=complete_topics
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@cluster_command
def delete_offsets(session: Session, group: str, topics: tuple[str, ...], yes: bool) -> None:
    """Delete committed offsets of a group in topics that no member subscribes to."""
    named = [parse_topic(text) for text in topics]
    if not yes:
        click.confirm(f"Delete the offsets of {group} in {', '.join(topics)}?", abort=True, err=True)

    async def work(admin: AdminClient) -> list[TopicPartition]:
        partitions = await partitions_of(admin, named)
        (await admin.delete_group_offsets(group, partitions)).raise_first()
        return partitions

    show(({"topic": tp.topic, "partition": tp.partition} for tp in session.admin(work)), session.output)


@groups.command()
@click.argument("names", metavar="[GROUP]…", nargs=-1, shell_complete=complete_groups)
@_ALL_GROUPS
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@cluster_command
def delete(session: Session, names: tuple[str, ...], all_groups: bool, yes: bool) -> None:
    """Delete groups without members, with their offsets."""
    _check_scope(names, all_groups)

    async def query(admin: AdminClient) -> list[str]:
        return await _group_names(admin, names, all_groups)

    wanted = session.admin(query) if all_groups else list(dict.fromkeys(names))
    if wanted and not yes:
        click.confirm(f"Delete the offsets of {', '.join(wanted)}?", abort=True, err=True)

    async def work(admin: AdminClient) -> Results[str, None]:
        return await admin.delete_groups(wanted)

    results = session.admin(work)
    deleted = [name for name in wanted if name in results]
    if deleted or not results.errors:
        done(f"deleted {', '.join(deleted) or 'nothing'}", session.output, deleted=deleted)
    if len(wanted) == 1:
        with session.translated_errors():
            results.raise_first()
    if results.errors:
        raise Refused("\n".join(f"{name}: {error}" for name, error in results.errors.items()))


T = TypeVar("T")


# --- groups with members and offsets in ZooKeeper ---


def _zookeeper_groups(session: Session, connect: str) -> list[tuple[str, str]]:
    """(group, state) of all groups in ZooKeeper."""

    async def query(store: MetadataStore, root: str) -> list[tuple[str, str]]:
        found = await read_groups(store, await group_names(store, root), root)
        return [(group.group_id, group.state) for group in found]

    return session.run(_with_store(session, connect, query))


def _describe_zookeeper_group(session: Session, connect: str, group_id: str) -> dict[str, Any]:
    """A group with the lag of each partition; end offsets are from the brokers."""

    async def query(store: MetadataStore, root: str) -> ZooKeeperGroup:
        (group,) = await read_groups(store, [group_id], root)
        return group

    group = session.run(_with_store(session, connect, query))
    if group.state == "Dead":
        raise Refused(f"there is no group '{group_id}' in ZooKeeper at {connect}")
    keys = sorted({*group.offsets, *group.owners})

    async def ends(admin: AdminClient) -> dict[TopicPartition, int]:
        return await admin.end_offsets([TopicPartition(*key) for key in keys])

    found = session.admin(ends)
    owners = {TopicPartition(*key): member for key, member in group.owners.items()}
    offsets = {TopicPartition(*key): offset for key, offset in group.offsets.items()}
    partitions = _partition_rows(offsets, found, owners)
    return {
        "group": group_id,
        "state": group.state,
        "coordinator": None,
        "assignor": None,
        "lag": sum(row["lag"] or 0 for row in partitions),
        "partitions": partitions,
        "members": [
            {
                "member": member,
                "topics": list(topics),
                "partitions": len(owned),
                "assignment": by_topic(owned),
            }
            for member, topics in group.members.items()
            for owned in ([key for key in group.owners if group.member_of(key) == member],)
        ],
    }


async def _with_store(session: Session, connect: str, use: Callable[[MetadataStore, str], Awaitable[T]]) -> T:
    """Call `use` with a store and the chroot, separately since a store creates its chroot. Raises
    Unreachable."""
    from ottla.metadata.zookeeper import ZooKeeperStore  # imported here, so that other commands start faster

    hosts, slash, chroot = connect.partition("/")
    store = ZooKeeperStore(hosts, connection_timeout_ms=int(session.timeout_s * 1000))
    try:
        await store.connect()
        try:
            return await use(store, f"{slash}{chroot}".rstrip("/"))
        finally:
            await store.close()
    except StoreError as problem:
        raise Unreachable(f"cannot read ZooKeeper at {connect}: {problem}") from None
