"""Records of a topic: the list with filters, decoders and a live tail; one record; a new record.

The modules beside the endpoints do no I/O of their own:

    decoding   bytes to what a reader may see
    filters    which records a reader looks for
    scanning   forwards and backwards through partitions, within limits
    view       the URL, where a scan begins, rows and links
    producing  the form of a new record
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from starlette.responses import RedirectResponse, Response

from ottla.client import errors
from ottla.client.admin_types import OffsetSpec, TopicPartition
from ottla.client.errors import ClientError, ConfigError, SerializationError
from ottla.client.registry import RegistryError
from ottla.protocol.errors import KafkaError
from ottla.security.acls import Operation, ResourceType
from ottla_console.cluster.collecting import merged
from ottla_console.cluster.log_reader import Fetched, LogRecord
from ottla_console.cluster.problems import Need, Problem, problem_of
from ottla_console.cluster.snapshot import Part
from ottla_console.pages.records.decoding import AUTO, HEX_MAX, Rules
from ottla_console.pages.records.producing import FORM_MAX, BadField, Draft, Form, encode
from ottla_console.pages.records.scanning import Limits, Scan, Slice
from ottla_console.pages.records.view import (
    LIMITS,
    LIVE_LIMITS,
    PARTITIONS_MAX,
    Choice,
    Head,
    One,
    Plan,
    Records,
    Row,
    plan_of,
    records_of,
    rows_of,
)
from ottla_console.views.json_paths import BadPath
from ottla_console.web.page import Context, Page, Tab

READ_S: Final = 12.0
"""The longest that a page waits for records."""
_BY_ITSELF: Final = ("The page tries again by itself.", "Load the page again.")
NOTHING: Final = Plan(older=True, offsets={}, starts={}, ends={})


async def show(ctx: Context) -> Response:
    """The list."""
    choice = Choice.of(ctx.params)
    head = await _head(ctx)
    if head.topic is None:
        return ctx.render("records/missing.html", head, status=404)
    led = [each.partition for each in head.topic.partitions if each.leader >= 0]
    notes = []
    if choice.partition is not None:
        if choice.partition not in {each.partition for each in head.topic.partitions}:
            last = len(head.topic.partitions) - 1
            notes.append(f"There is no partition {choice.partition}: the last one is {last}.")
        led = [each for each in led if each == choice.partition]
        if not led and not notes:
            notes.append(f"Partition {choice.partition} has no leader: its records cannot be read now.")
    elif len(led) < len(head.topic.partitions):
        away = len(head.topic.partitions) - len(led)
        notes.append(f"{away} of {len(head.topic.partitions)} partitions have no leader and are not read.")
    if len(led) > PARTITIONS_MAX:
        notes.append(
            f"The first {PARTITIONS_MAX} of {len(led)} partitions are read. Choose a partition for others."
        )
        led = led[:PARTITIONS_MAX]
    rules = _rules(ctx)
    if not rules.visible and not choice.filter.empty:
        notes.append("The console shows no content of records (--no-values), and so does not filter by it.")
    accept = None
    if rules.visible and not choice.filter.empty:
        try:
            accept = choice.filter.accepting(rules, choice.key, choice.value)
        except BadPath as error:
            return _render(ctx, head, choice, NOTHING, Slice({}, {}), [], [], notes=[f"JSON path {error}."])
    plan, problems = await _plan(ctx, head.name, led, choice)
    found = Slice(dict(plan.offsets), dict(plan.offsets))
    if plan.offsets:
        limits = LIVE_LIMITS if choice.live else LIMITS
        scan = _scan(ctx, head.name, choice.rows, limits, committed=choice.committed)
        scan.accept = accept
        part = await _reading(ctx, head.name, _run(scan, plan))
        problems += part.problems
        found = part.value or found
        problems += _problems(ctx, head.name, found)
    return _render(ctx, head, choice, plan, found, found.records, problems, notes=notes)


def _render(
    ctx: Context,
    head: Head,
    choice: Choice,
    plan: Plan,
    found: Slice,
    records: Sequence[LogRecord],
    problems: Sequence[Problem],
    *,
    notes: Sequence[str],
) -> Response:
    rules = _rules(ctx)
    rows = rows_of(
        records, rules, choice.key, choice.value, partial(_record_url, ctx, choice.key, choice.value)
    )
    view: Records = records_of(
        head, choice, plan, found, rows, problems, notes=notes, now_ms=time.time_ns() // 1_000_000,
        values=rules.visible, schema=rules.schema is not None,
    )  # fmt: skip
    return ctx.render("records/list.html", view)


async def show_one(ctx: Context) -> Response:
    """A record. With dir=older or dir=newer, leads to the one before or after this offset."""
    head = await _head(ctx)
    if head.topic is None:
        return ctx.render("records/missing.html", head, status=404)
    choice = Choice.of(ctx.params)
    row, plan, problems = await _one(ctx, choice, ctx.params.get("dir", ""))
    rules = _rules(ctx)
    partition, offset = choice.partition or 0, choice.offset or 0
    if row is not None and ctx.params.get("dir"):
        return RedirectResponse(_record_url(ctx, choice.key, choice.value, row.record), 303)
    start, end = plan.starts.get(partition, 0), plan.ends.get(partition, 0)
    note = ""
    if row is None and not problems:
        found = f"it has {start:,} to {end - 1:,}" if end > start else "it is empty"
        note = f"Partition {partition} has no record at offset {offset:,} or after it: {found}."
    elif row is not None and row.record.offset != offset:
        note = f"There is no record at offset {offset:,} (any more). This is the next one."
    at = row.record.offset if row else offset
    view = One(
        head, partition, offset, row, choice.key, choice.value, at > start, at + 1 < end, note, problems,
        rules.visible, rules.visible and not rules.paths, rules.schema is not None,
    )  # fmt: skip
    return ctx.render("records/record.html", view, status=200 if row else 404)


async def save(ctx: Context) -> Response:
    """A key or a value as a file."""
    rules = _rules(ctx)
    choice = Choice.of(ctx.params)
    part = "key" if ctx.params.get("part") == "key" else "value"
    head = await _head(ctx)
    row = None
    if head.topic is not None and rules.visible and not rules.paths:
        row, _, _ = await _one(ctx, choice, "")
    if row is None or row.record.offset != choice.offset:
        return ctx.render("records/missing.html", head, status=404)
    data = row.record.key if part == "key" else row.record.value
    name = f"{head.name}-{row.record.partition}-{row.record.offset}.{part}"
    disposition = f'attachment; filename="{name}"'  # names of topics are letters, digits, '.', '_', '-'
    return Response(
        data or b"", media_type="application/octet-stream", headers={"Content-Disposition": disposition}
    )


async def show_form(ctx: Context) -> Response:
    """The form of a new record."""
    return await _form(ctx, Draft())


async def _form(
    ctx: Context, draft: Draft, mistake: str = "", problems: tuple[Problem, ...] = (), *, status: int = 200
) -> Response:
    head = await _head(ctx)
    if head.topic is None or not ctx.may_write:
        return ctx.render("records/missing.html", head, status=404 if ctx.may_write else 403)
    count, schema = len(head.topic.partitions), ctx.access.schemas is not None
    return ctx.render(
        "records/produce.html", Form(head.name, count, draft, mistake, problems, schema), status=status
    )


async def produce(ctx: Context) -> Response:
    """Write the record, and lead to it; a form that cannot be sent is shown again."""
    draft, schemas = Draft.of(ctx.form), ctx.access.schemas
    head = await _head(ctx)
    if head.topic is None:
        return ctx.render("records/missing.html", head, status=404)
    by_schema = None if schemas is None else partial(schemas.encode, ctx.name)
    try:
        partition = draft.partition_of(len(head.topic.partitions))
        headers = draft.header_list()
        key = await encode(draft.key, draft.key_as, "Key", f"{ctx.name}-key", by_schema)
        value = await encode(draft.value, draft.value_as, "Value", f"{ctx.name}-value", by_schema)
    except (BadField, RegistryError, SerializationError, ConfigError) as error:
        return await _form(ctx, draft, str(error), status=400)
    try:
        async with ctx.change("records.produce", ctx.name, partition="-" if partition is None else partition):
            written = await ctx.access.logs.produce(ctx.name, key, value, headers, partition)
    except (ClientError, KafkaError, OSError) as error:
        need = Need(Operation.WRITE, ResourceType.TOPIC, ctx.name)
        problem = problem_of(error, f"the new record of {ctx.name}", need, ctx.reader.principal)
        advice = problem.advice.replace(_BY_ITSELF[0], "Try again.")
        return await _form(ctx, draft, problems=(replace(problem, advice=advice),), status=502)
    flash = f"Produced to partition {written.partition} at offset {written.offset:,}."
    return ctx.redirect(
        "topics", ctx.name, "record", flash=flash, partition=written.partition, offset=written.offset
    )


# --- reading ---


async def _one(ctx: Context, choice: Choice, direction: str) -> tuple[Row | None, Plan, list[Problem]]:
    """The record at the chosen offset, or the next one after it; with a direction, the one before or after
    the offset."""
    partition, offset = choice.partition or 0, choice.offset or 0
    plan, problems = await _plan(ctx, ctx.name, [partition], Choice(start="oldest"))
    if not plan.offsets:
        return None, plan, problems
    start, end = plan.starts[partition], plan.ends[partition]
    older = direction == "older"
    at = min(max(offset + (direction == "newer"), start), end)
    if offset >= end and not older:
        return None, plan, problems
    scan = _scan(ctx, ctx.name, 1, LIMITS)
    part = await _reading(ctx, ctx.name, _run(scan, replace(plan, older=older, offsets={partition: at})))
    problems += part.problems
    if part.value is None:
        return None, plan, problems
    problems += _problems(ctx, ctx.name, part.value)
    rules = _rules(ctx)
    rows = rows_of(part.value.records, rules, choice.key, choice.value, lambda _: "", hex_max=16 * HEX_MAX)
    return (rows[0] if rows else None), plan, problems


async def _plan(
    ctx: Context, topic: str, partitions: list[int], choice: Choice
) -> tuple[Plan, list[Problem]]:
    """Where the scan begins, by the log's offsets now."""
    reader, need = ctx.reader, Need(Operation.DESCRIBE, ResourceType.TOPIC, topic)
    wanted = [TopicPartition(topic, each) for each in partitions]
    starts, ends = await asyncio.gather(
        reader.read(reader.admin.start_offsets(wanted), f"the first offsets of {topic}", need),
        reader.read(_ends(ctx, wanted, committed=choice.committed), f"the end offsets of {topic}", need),
    )
    by_time: Part[dict[TopicPartition, int]] = Part()
    if choice.start == "time" and not choice.at and choice.time_ms is not None:
        by_time = await reader.read(
            reader.admin.offsets_for_time(wanted, choice.time_ms), f"the offsets of {topic} by time", need
        )
    plan = plan_of(
        choice,
        *({tp.partition: o for tp, o in (each.value or {}).items()} for each in (starts, ends, by_time)),
    )
    return plan, list(merged(starts.problems, ends.problems, by_time.problems))


async def _ends(ctx: Context, wanted: list[TopicPartition], *, committed: bool) -> dict[TopicPartition, int]:
    """The end offsets; of committed records, the last stable offsets."""
    if not committed:
        return await ctx.reader.admin.end_offsets(wanted)
    found = await ctx.reader.admin.list_offsets(
        dict.fromkeys(wanted, OffsetSpec.LATEST), isolation_level="read_committed"
    )
    return {tp: each.offset for tp, each in found.items()}


def _scan(ctx: Context, topic: str, want: int, limits: Limits, *, committed: bool = False) -> Scan:
    schemas = ctx.access.schemas

    async def prepare(records: list[LogRecord]) -> None:
        await asyncio.sleep(0)  # other pages run between chunks
        if schemas is not None and ctx.settings.values:
            await schemas.prepare(data for each in records for data in (each.key, each.value))

    def read(offsets: Mapping[int, int], bytes_max: int) -> Awaitable[Fetched]:
        return ctx.access.logs.fetch(topic, offsets, bytes_max, committed=committed)

    return Scan(read, time.monotonic, want, limits, prepare=prepare)


def _run(scan: Scan, plan: Plan) -> Awaitable[Slice]:
    if plan.older:
        return scan.backwards(plan.offsets, plan.starts)
    return scan.forwards(plan.offsets, plan.ends)


async def _reading(ctx: Context, topic: str, work: Awaitable[Slice]) -> Part[Slice]:
    async def in_turn() -> Slice:
        async with ctx.access.logs.slots:
            return await work

    return await ctx.reader.read(
        in_turn(),
        f"the records of {topic}",
        Need(Operation.READ, ResourceType.TOPIC, topic),
        timeout_s=READ_S,
    )


def _problems(ctx: Context, topic: str, found: Slice) -> list[Problem]:
    """Of the partitions, each reason once."""
    need = Need(Operation.READ, ResourceType.TOPIC, topic)
    kinds: dict[type[ClientError], Problem] = {}
    for partition, error in sorted(found.errors.items()):
        everywhere = isinstance(error, (errors.AuthorizationError, errors.UnknownTopicOrPartitionError))
        what = f"the records of {topic}" if everywhere else f"the records of partition {partition} of {topic}"
        kinds.setdefault(type(error), problem_of(error, what, need, ctx.reader.principal))
    return [replace(each, advice=each.advice.replace(*_BY_ITSELF)) for each in kinds.values()]


async def _head(ctx: Context) -> Head:
    """The topic as the last collection found it; one that is newer is asked for."""
    snapshot = await ctx.snapshot("topics")
    topic = snapshot.known_topics.get(ctx.name)
    if topic is not None:
        return Head(ctx.name, topic)
    found = await ctx.reader.read_each(
        ctx.reader.admin.describe_topics([ctx.name]),
        lambda name: f"the topic {name}",
        lambda name: Need(Operation.DESCRIBE, ResourceType.TOPIC, name),
        title=f"the topic {ctx.name}",
    )
    return Head(ctx.name, (found.value or {}).get(ctx.name), found.problems)


def _rules(ctx: Context) -> Rules:
    schemas = ctx.access.schemas
    return Rules.of(
        ctx.name,
        ctx.access.cluster.masks,
        None if schemas is None else schemas.decode,
        visible=ctx.settings.values,
    )


def _record_url(ctx: Context, key: str, value: str, record: LogRecord) -> str:
    return ctx.url(
        "topics", ctx.name, "record", partition=record.partition, offset=record.offset,
        k=None if key == AUTO else key, v=None if value == AUTO else value,
    )  # fmt: skip


PAGES = (
    Page("topics/{name}/records", show, "Records", tab=Tab("topic", "Records", 15), under="topics"),
    Page("topics/{name}/record", show_one, "Record", under="topics"),
    Page("topics/{name}/record/content", save, "Content of a record", under="topics"),
    Page("topics/{name}/produce", show_form, "Produce a record", under="topics"),
    Page(
        "topics/{name}/produce",
        produce,
        "Produce a record",
        under="topics",
        method="POST",
        changes=True,
        body_max=FORM_MAX,
    ),
)
