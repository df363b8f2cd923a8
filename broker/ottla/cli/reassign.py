"""`ottla reassign`: reassignments by plans, as with kafka-reassign-partitions.sh."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import IO, Any, Final

import click

from ottla.cli import reassignment_plan
from ottla.cli.cluster import moves, wait_for_reassignments
from ottla.cli.output import as_json, show, table
from ottla.cli.reassignment_plan import BadPlan, Plan
from ottla.cli.session import (
    Refused,
    Session,
    cluster_command,
    complete_topics,
)
from ottla.client.admin import AdminClient
from ottla.client.admin_types import ReplicaLogDirs, TopicPartition, TopicPartitionReplica
from ottla.client.errors import ReplicaNotAvailableError

_LOG_DIR_PAUSE_S: Final = 0.1
_IN_PROGRESS: Final = "in progress"

_plan = click.argument("file", metavar="PLAN", type=click.File("r"))
_keep_throttles = click.option("--preserve-throttles", is_flag=True, help="Do not remove throttles.")


@click.group(short_help="Reassign partitions by plans, with throttles.")
def reassign() -> None:
    """Reassignments by JSON plans in the format of kafka-reassign-partitions.sh.

    For a few partitions without a plan: `ottla cluster move`.
    """


reassign.add_command(moves, "list")


@reassign.command()
@click.argument("topics", metavar="TOPIC…", nargs=-1, shell_complete=complete_topics)
@click.option("--file", type=click.File("r"), help='A file with topics: {"topics": [{"topic": …}]}.')
@click.option("--brokers", metavar="ID,ID…", help="The target brokers. Default: all.")
@click.option("--ignore-racks", is_flag=True, help="Ignore racks, as when only some brokers have one.")
@click.option("--current", is_flag=True, help="Print the plan of the current assignment.")
@cluster_command
def plan(
    session: Session,
    topics: tuple[str, ...],
    file: IO[str] | None,
    brokers: str | None,
    ignore_racks: bool,
    current: bool,
) -> None:
    """Propose an assignment of topics, spread evenly over brokers and racks.

    `-o json` prints a plan for `execute`; nothing is changed.
    """
    names = [*topics, *(_parse_file(file, reassignment_plan.parse_topics) if file else [])]
    if not names:
        raise click.UsageError("a TOPIC or --file is required")
    allowed = None if brokers is None else _parse_broker_ids(brokers)

    async def query(admin: AdminClient) -> tuple[reassignment_plan.Assignment, reassignment_plan.Assignment]:
        now = await _current_assignment(admin, names)
        if current:
            return now, now
        racks = await _racks(admin, allowed, ignore_racks)
        try:
            return now, reassignment_plan.propose(now, racks)
        except BadPlan as problem:
            raise Refused(str(problem)) from None

    now, proposed = session.admin(query)
    if session.output == "json":
        as_json(reassignment_plan.document(proposed))
    else:
        table(
            [
                {"topic": tp.topic, "partition": tp.partition, "now": list(now[tp]), "then": list(replicas)}
                for tp, replicas in sorted(proposed.items())
            ]
        )


@reassign.command()
@_plan
@click.option(
    "--throttle",
    type=click.IntRange(min=0),
    metavar="BYTES",
    help="The throttle of each broker, in bytes per second.",
)
@click.option(
    "--log-dir-throttle",
    type=click.IntRange(min=0),
    metavar="BYTES",
    help="The throttle of each broker between its log directories, in bytes per second.",
)
@click.option(
    "--additional", is_flag=True, help="Allow other reassignments in progress; also to change a throttle."
)
@click.option("--rollback", type=click.File("w"), help="Write the plan that restores the current assignment.")
@click.option(
    "--wait", is_flag=True, help="Wait until the reassignments have completed, then remove the throttles."
)
@cluster_command
def execute(
    session: Session,
    file: IO[str],
    throttle: int | None,
    log_dir_throttle: int | None,
    additional: bool,
    rollback: IO[str] | None,
    wait: bool,
) -> None:
    """Start the reassignments of a plan.

    A throttle stays until `verify` finds all reassignments completed and removes it.
    """
    wanted = _parse_file(file, reassignment_plan.parse_plan)

    async def work(admin: AdminClient) -> reassignment_plan.Assignment:
        before = await _prepare(admin, wanted, throttle, log_dir_throttle, additional)
        if rollback is not None:
            json.dump(reassignment_plan.document(before), rollback)
        (await admin.alter_partition_reassignments(wanted.replicas)).raise_first()
        await _move_log_dirs(admin, wanted.log_dirs, session.timeout_s)
        return before

    before = session.admin(work)
    if wait:
        session.admin(lambda admin: _wait(admin, wanted))
    if session.output == "json":
        as_json(
            {"partitions": len(wanted.replicas), "over": wait, "before": reassignment_plan.document(before)}
        )
        return
    click.echo(f"{len(wanted.replicas)} partitions {'are moved' if wait else 'are being moved'}")
    if rollback is None:
        click.echo(
            "the plan that restores the previous assignment:\n"
            + json.dumps(reassignment_plan.document(before))
        )


async def _prepare(
    admin: AdminClient, wanted: Plan, throttle: int | None, log_dir_throttle: int | None, additional: bool
) -> reassignment_plan.Assignment:
    """Validate the plan and set the throttles. Returns the current assignment."""
    moving = await admin.list_partition_reassignments()
    if moving and not additional:
        raise Refused(f"{len(moving)} partitions are being reassigned: wait, cancel, or use --additional")
    live = {node.id for node in (await admin.describe_cluster()).brokers}
    if unknown := sorted(wanted.brokers - live):
        raise Refused(f"broker {unknown[0]} is not in the cluster")
    now = await _current_assignment(admin, {tp.topic for tp in wanted.replicas})
    if missing := sorted(set(wanted.replicas) - set(now)):
        raise Refused(f"there is no partition {missing[0]}")
    before = {tp: now[tp] for tp in wanted.replicas}
    changes: reassignment_plan.Changes = {}
    if throttle is not None:
        changes |= reassignment_plan.throttle(wanted, before, moving, throttle)
    if log_dir_throttle is not None:
        for resource, rows in reassignment_plan.throttle_log_dirs(wanted, log_dir_throttle).items():
            changes[resource] = [*changes.get(resource, []), *rows]
    if changes:
        (await admin.incremental_alter_configs(changes)).raise_first()
    return before


async def _move_log_dirs(
    admin: AdminClient, targets: Mapping[TopicPartitionReplica, str], timeout_s: float
) -> None:
    """Request the log directories; retries for replicas that their broker does not have yet."""
    left = dict(targets)
    deadline = asyncio.get_running_loop().time() + timeout_s
    while left:
        results = await admin.alter_replica_log_dirs(left)
        for error in results.errors.values():
            if not isinstance(error, ReplicaNotAvailableError):
                raise error
        left = {replica: left[replica] for replica in results.errors}
        if left and asyncio.get_running_loop().time() >= deadline:
            raise Refused(f"not started within {timeout_s:g} s:  {', '.join(map(str, sorted(left)))}")
        if left:
            await asyncio.sleep(_LOG_DIR_PAUSE_S)


async def _wait(admin: AdminClient, wanted: Plan) -> None:
    await wait_for_reassignments(admin, set(wanted.replicas))
    while wanted.log_dirs:
        found = (await admin.describe_replica_log_dirs(wanted.log_dirs)).raise_first()
        if all(each.future is None for each in found.values()):
            break
        await asyncio.sleep(_LOG_DIR_PAUSE_S)
    await _remove_throttles(admin, wanted)


@reassign.command()
@_plan
@_keep_throttles
@cluster_command
def verify(session: Session, file: IO[str], preserve_throttles: bool) -> None:
    """Print the progress of a plan. When no reassignment is in progress, throttles are removed."""
    wanted = _parse_file(file, reassignment_plan.parse_plan)

    async def query(admin: AdminClient) -> list[dict[str, Any]]:
        moving = await admin.list_partition_reassignments()
        now = await _current_assignment(admin, {tp.topic for tp in wanted.replicas}, missing_ok=True)
        rows = [
            {
                **_partition_fields(tp),
                "broker": None,
                "state": _IN_PROGRESS if tp in moving else _replicas_state(now.get(tp, ()), replicas),
            }
            for tp, replicas in sorted(wanted.replicas.items())
        ]
        found = await admin.describe_replica_log_dirs(wanted.log_dirs)
        for replica, path in sorted(wanted.log_dirs.items()):
            state = log_dir_state(found.get(replica), path)
            rows.append(
                {**_partition_fields(TopicPartition(*replica[:2])), "broker": replica.broker, "state": state}
            )
        busy = bool(moving) or any(row["state"] == _IN_PROGRESS for row in rows)
        if not busy and not preserve_throttles:
            await _remove_throttles(admin, wanted)
        return rows

    show(session.admin(query), session.output)


def _replicas_state(now: Iterable[int], wanted: Iterable[int]) -> str:
    if list(now) == list(wanted):
        return "completed"
    return f"not moving: replicas are {','.join(map(str, now)) or 'none'}"


def log_dir_state(found: ReplicaLogDirs | None, wanted: str) -> str:
    if found is None or found.current is None:
        return "in no live log directory of the broker"
    if found.future == wanted:
        return _IN_PROGRESS
    if found.future is not None:
        return f"moving to {found.future} instead"
    return "completed" if found.current == wanted else f"not moving: it is in {found.current}"


@reassign.command()
@_plan
@_keep_throttles
@click.option("--yes", is_flag=True, help="Do not ask.")
@cluster_command
def cancel(session: Session, file: IO[str], preserve_throttles: bool, yes: bool) -> None:
    """Cancel the reassignments of a plan that are in progress, and remove throttles."""
    wanted = _parse_file(file, reassignment_plan.parse_plan)
    if not yes:
        click.confirm(f"Cancel the reassignment of {len(wanted.replicas)} partitions?", abort=True, err=True)

    async def work(admin: AdminClient) -> list[TopicPartition]:
        moving = await admin.list_partition_reassignments(wanted.replicas)
        (await admin.alter_partition_reassignments(dict.fromkeys(moving))).raise_first()
        found = await admin.describe_replica_log_dirs(wanted.log_dirs)
        back = {r: each.current for r, each in found.items() if each.future is not None and each.current}
        (await admin.alter_replica_log_dirs(back)).raise_first()
        if not preserve_throttles:
            await _remove_throttles(admin, wanted)
        return sorted(moving)

    cancelled = session.admin(work)
    show(
        map(_partition_fields, cancelled),
        session.output,
        nothing="no partition of the plan is being reassigned",
    )


def _partition_fields(tp: TopicPartition) -> dict[str, Any]:
    return {"topic": tp.topic, "partition": tp.partition}


async def _remove_throttles(admin: AdminClient, wanted: Plan) -> None:
    brokers = [node.id for node in (await admin.describe_cluster()).brokers]
    topics = await admin.describe_topics({tp.topic for tp in wanted.replicas})
    (await admin.incremental_alter_configs(reassignment_plan.unthrottle(topics, brokers))).raise_first()


async def _current_assignment(
    admin: AdminClient, topics: Iterable[str], *, missing_ok: bool = False
) -> reassignment_plan.Assignment:
    described = await admin.describe_topics(list(topics))
    if not missing_ok:
        for name in described.errors:
            raise Refused(f"there is no topic '{name}'")
    return {
        TopicPartition(name, p.partition): p.replicas
        for name, topic in described.items()
        for p in topic.partitions
    }


async def _racks(admin: AdminClient, allowed: set[int] | None, ignore: bool) -> dict[int, str | None]:
    nodes = {node.id: node for node in (await admin.describe_cluster()).brokers}
    if unknown := sorted((allowed or set()) - set(nodes)):
        raise Refused(f"broker {unknown[0]} is not in the cluster")
    racks = {b: None if ignore else nodes[b].rack for b in sorted(allowed or nodes)}
    if len({rack is None for rack in racks.values()}) > 1:
        raise Refused("only some brokers have a rack: use --ignore-racks")
    return racks


def _parse_broker_ids(text: str) -> set[int]:
    ids = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in ids):
        raise click.UsageError(f"--brokers {text}: must be ID,ID…")
    if len(set(ids)) < len(ids):
        raise click.UsageError(f"--brokers {text}: a broker is given twice")
    return set(map(int, ids))


def _parse_file(file: IO[str], parse: Any) -> Any:
    try:
        return parse(file.read())
    except BadPlan as problem:
        raise click.UsageError(f"{file.name}: {problem}") from None
