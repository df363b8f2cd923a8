"""`ottla reassign`: moves of replicas by plans, as of kafka-reassign-partitions.sh."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import IO, Any, Final

import click

from ottla.cli import reassignment
from ottla.cli.cluster import moves, until_over
from ottla.cli.output import as_json, show, table
from ottla.cli.reassignment import BadPlan, Plan
from ottla.cli.session import Refused, Session, talks_to_a_cluster
from ottla.client.admin import AdminClient
from ottla.client.admin_types import ReplicaLogDirs, TopicPartition, TopicPartitionReplica
from ottla.client.errors import ReplicaNotAvailableError

_LOG_DIR_PAUSE_S: Final = 0.1
_IN_PROGRESS: Final = "in progress"

_plan = click.argument("file", metavar="PLAN", type=click.File("r"))
_keep_throttles = click.option("--preserve-throttles", is_flag=True, help="Leave throttles in force.")


@click.group(short_help="Move replicas by plans, with throttles.")
def reassign() -> None:
    """Moves of replicas by JSON plans, which are those of kafka-reassign-partitions.sh.

    For a few partitions without a plan: `ottla cluster move`.
    """


reassign.add_command(moves, "list")


@reassign.command()
@click.argument("topics", metavar="TOPIC…", nargs=-1)
@click.option("--file", type=click.File("r"), help='In place of topics: {"topics": [{"topic": …}]}.')
@click.option("--brokers", metavar="ID,ID…", help="Where they may be. Default: all brokers.")
@click.option("--ignore-racks", is_flag=True, help="Even where some brokers have no rack.")
@click.option("--current", is_flag=True, help="The plan that restores what is now.")
@talks_to_a_cluster
def plan(
    session: Session,
    topics: tuple[str, ...],
    file: IO[str] | None,
    brokers: str | None,
    ignore_racks: bool,
    current: bool,
) -> None:
    """Propose where the replicas of topics could be, spread evenly over brokers and racks.

    `-o json` prints the plan for `execute`; nothing is changed.
    """
    names = [*topics, *(_read(file, reassignment.parse_topics) if file else [])]
    if not names:
        raise click.UsageError("of what? name a TOPIC, or give --file")
    allowed = None if brokers is None else _ids(brokers)

    async def look(admin: AdminClient) -> tuple[reassignment.Assignment, reassignment.Assignment]:
        now = await _current(admin, names)
        if current:
            return now, now
        racks = await _racks(admin, allowed, ignore_racks)
        try:
            return now, reassignment.propose(now, racks)
        except BadPlan as problem:
            raise Refused(str(problem)) from None

    now, proposed = session.admin(look)
    if session.output == "json":
        as_json(reassignment.document(proposed))
    else:
        table(
            [
                {"topic": tp.topic, "partition": tp.partition, "now": list(now[tp]), "then": list(replicas)}
                for tp, replicas in sorted(proposed.items())
            ]
        )


@reassign.command()
@_plan
@click.option("--throttle", type=click.IntRange(min=0), metavar="BYTES", help="A second, per broker.")
@click.option(
    "--log-dir-throttle",
    type=click.IntRange(min=0),
    metavar="BYTES",
    help="A second, per broker, between its log directories.",
)
@click.option("--additional", is_flag=True, help="Although moves are under way; also to change a throttle.")
@click.option("--rollback", type=click.File("w"), help="Write the plan that restores what was before.")
@click.option("--wait", is_flag=True, help="Until the moves are over; then lift the throttles.")
@talks_to_a_cluster
def execute(
    session: Session,
    file: IO[str],
    throttle: int | None,
    log_dir_throttle: int | None,
    additional: bool,
    rollback: IO[str] | None,
    wait: bool,
) -> None:
    """Start the moves of a plan.

    A throttle stays in force until `verify` finds all moves over and lifts it: run that from time to time.
    """
    wanted = _read(file, reassignment.parse_plan)

    async def work(admin: AdminClient) -> reassignment.Assignment:
        before = await _start(admin, wanted, throttle, log_dir_throttle, additional)
        if rollback is not None:
            json.dump(reassignment.document(before), rollback)
        (await admin.alter_partition_reassignments(wanted.replicas)).raise_first()
        await _move_log_dirs(admin, wanted.log_dirs, session.timeout_s)
        return before

    before = session.admin(work)
    if wait:
        session.admin(lambda admin: _wait(admin, wanted))
    if session.output == "json":
        as_json({"partitions": len(wanted.replicas), "over": wait, "before": reassignment.document(before)})
        return
    click.echo(f"{len(wanted.replicas)} partitions {'are moved' if wait else 'are being moved'}")
    if rollback is None:
        click.echo(f"the plan that restores what was before:\n{json.dumps(reassignment.document(before))}")


async def _start(
    admin: AdminClient, wanted: Plan, throttle: int | None, log_dir_throttle: int | None, additional: bool
) -> reassignment.Assignment:
    """Check what can be checked, and set the throttles; where the partitions are now."""
    moving = await admin.list_partition_reassignments()
    if moving and not additional:
        raise Refused(f"{len(moving)} partitions are being moved: wait, cancel, or give --additional")
    live = {node.id for node in (await admin.describe_cluster()).brokers}
    if unknown := sorted(wanted.brokers - live):
        raise Refused(f"broker {unknown[0]} is not in the cluster")
    now = await _current(admin, {tp.topic for tp in wanted.replicas})
    if missing := sorted(set(wanted.replicas) - set(now)):
        raise Refused(f"there is no partition {missing[0]}")
    before = {tp: now[tp] for tp in wanted.replicas}
    changes: reassignment.Changes = {}
    if throttle is not None:
        changes |= reassignment.throttle(wanted, before, moving, throttle)
    if log_dir_throttle is not None:
        for resource, rows in reassignment.throttle_log_dirs(wanted, log_dir_throttle).items():
            changes[resource] = [*changes.get(resource, []), *rows]
    if changes:
        (await admin.incremental_alter_configs(changes)).raise_first()
    return before


async def _move_log_dirs(
    admin: AdminClient, targets: Mapping[TopicPartitionReplica, str], timeout_s: float
) -> None:
    """A replica that is yet to come to its broker is named again until it is there."""
    left = dict(targets)
    deadline = asyncio.get_running_loop().time() + timeout_s
    while left:
        results = await admin.alter_replica_log_dirs(left)
        for error in results.errors.values():
            if not isinstance(error, ReplicaNotAvailableError):
                raise error
        left = {replica: left[replica] for replica in results.errors}
        if left and asyncio.get_running_loop().time() >= deadline:
            raise Refused(f"not begun within {timeout_s:g} s: {', '.join(map(str, sorted(left)))}")
        if left:
            await asyncio.sleep(_LOG_DIR_PAUSE_S)


async def _wait(admin: AdminClient, wanted: Plan) -> None:
    await until_over(admin, set(wanted.replicas))
    while wanted.log_dirs:
        found = (await admin.describe_replica_log_dirs(wanted.log_dirs)).raise_first()
        if all(each.future is None for each in found.values()):
            break
        await asyncio.sleep(_LOG_DIR_PAUSE_S)
    await _lift(admin, wanted)


@reassign.command()
@_plan
@_keep_throttles
@talks_to_a_cluster
def verify(session: Session, file: IO[str], preserve_throttles: bool) -> None:
    """How far the moves of a plan are. When none is under way any more, throttles are lifted."""
    wanted = _read(file, reassignment.parse_plan)

    async def look(admin: AdminClient) -> list[dict[str, Any]]:
        moving = await admin.list_partition_reassignments()
        now = await _current(admin, {tp.topic for tp in wanted.replicas}, missing_ok=True)
        rows = [
            {
                **_where(tp),
                "broker": None,
                "state": _IN_PROGRESS if tp in moving else _reached(now.get(tp, ()), replicas),
            }
            for tp, replicas in sorted(wanted.replicas.items())
        ]
        found = await admin.describe_replica_log_dirs(wanted.log_dirs)
        for replica, path in sorted(wanted.log_dirs.items()):
            state = log_dir_state(found.get(replica), path)
            rows.append({**_where(TopicPartition(*replica[:2])), "broker": replica.broker, "state": state})
        busy = bool(moving) or any(row["state"] == _IN_PROGRESS for row in rows)
        if not busy and not preserve_throttles:
            await _lift(admin, wanted)
        return rows

    show(session.admin(look), session.output)


def _reached(now: Iterable[int], wanted: Iterable[int]) -> str:
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
@talks_to_a_cluster
def cancel(session: Session, file: IO[str], preserve_throttles: bool, yes: bool) -> None:
    """Take back the moves of a plan that are under way, and lift throttles."""
    wanted = _read(file, reassignment.parse_plan)
    if not yes:
        click.confirm(f"Cancel the moves of {len(wanted.replicas)} partitions?", abort=True, err=True)

    async def work(admin: AdminClient) -> list[TopicPartition]:
        moving = await admin.list_partition_reassignments(wanted.replicas)
        (await admin.alter_partition_reassignments(dict.fromkeys(moving))).raise_first()
        found = await admin.describe_replica_log_dirs(wanted.log_dirs)
        back = {r: each.current for r, each in found.items() if each.future is not None and each.current}
        (await admin.alter_replica_log_dirs(back)).raise_first()
        if not preserve_throttles:
            await _lift(admin, wanted)
        return sorted(moving)

    cancelled = session.admin(work)
    show(map(_where, cancelled), session.output, nothing="none of them is being moved")


def _where(tp: TopicPartition) -> dict[str, Any]:
    return {"topic": tp.topic, "partition": tp.partition}


async def _lift(admin: AdminClient, wanted: Plan) -> None:
    brokers = [node.id for node in (await admin.describe_cluster()).brokers]
    topics = await admin.describe_topics({tp.topic for tp in wanted.replicas})
    (await admin.incremental_alter_configs(reassignment.unthrottle(topics, brokers))).raise_first()


async def _current(
    admin: AdminClient, topics: Iterable[str], *, missing_ok: bool = False
) -> reassignment.Assignment:
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
        raise Refused("some brokers have a rack and some have none: give --ignore-racks")
    return racks


def _ids(text: str) -> set[int]:
    ids = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in ids):
        raise click.UsageError(f"--brokers {text}: must be ID,ID…")
    if len(set(ids)) < len(ids):
        raise click.UsageError(f"--brokers {text}: one is there twice")
    return set(map(int, ids))


def _read(file: IO[str], parse: Any) -> Any:
    try:
        return parse(file.read())
    except BadPlan as problem:
        raise click.UsageError(f"{file.name}: {problem}") from None
