"""`ottla consume`: reads topics, and filters, decodes and prints records.

Without a group, partitions are read from the given positions, and no offset is committed. With a group, the
offsets of printed records are committed, so that the next run reads a record that could not be decoded
again.
"""

from __future__ import annotations

import re
import sys
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from ottla.cli import record_filters
from ottla.cli.record_filters import BadFilter, RecordFilter
from ottla.cli.record_formats import FORMATS, DecodedRecord, Formatter, header_line, make_formatter
from ottla.cli.record_values import READ_FORMATS, Read, reader, registry_client, registry_options
from ottla.cli.session import (
    Refused,
    Session,
    cluster_command,
    complete_groups,
    complete_topics,
    key_values,
)
from ottla.client.admin import AdminClient
from ottla.client.consumer import Consumer
from ottla.client.core.consumer_config import ISOLATION_LEVELS
from ottla.client.core.types import ConsumerRecord, TopicPartition
from ottla.client.errors import ClientError

_POLL_S: Final = 0.5
_RECORDS_MAX: Final = 5_000
_WAIT_MS: Final = 500

Offsets = dict[TopicPartition, int]


@click.command(short_help="Read topics.")
@click.argument("topics", metavar="TOPIC…", nargs=-1, shell_complete=complete_topics)
@click.option("--pattern", metavar="REGEX", help="Read the topics whose names match.")
@click.option(
    "--group",
    help="Read as a member of this group, and commit offsets of printed records.",
    shell_complete=complete_groups,
)
@click.option(
    "--from",
    "start",
    default="latest",
    show_default=True,
    metavar="earliest|latest|OFFSET|-N|TIME",
    help="The start position: -N is the last N of each partition, TIME is ISO 8601.",
)
@click.option(
    "--tail",
    type=click.IntRange(min=1),
    metavar="N",
    help="Print the last N records that match the filters.",
)
@click.option("--follow", is_flag=True, help="After --tail, print new records.")
@click.option("--partition", "only", type=click.IntRange(min=0), multiple=True, help="Only these partitions.")
@click.option(
    "-n", "--max", "count_max", type=click.IntRange(min=1), help="End after this number of records."
)
@click.option("--until-end", is_flag=True, help="End at the current end offsets.")
@click.option("--until", metavar="TIME", help="End before records of this time, in ISO 8601.")
@click.option(
    "--idle", type=click.FloatRange(min=0.1), metavar="SECONDS", help="End after this time without records."
)
@click.option("--key", "keys", multiple=True, metavar="TEXT", help="Only records with this key.")
@click.option("--key-matches", multiple=True, metavar="REGEX", help="Only keys that match.")
@click.option("--header", "headers", multiple=True, metavar="NAME[=VALUE]", help="Only with this header.")
@click.option("--grep", multiple=True, metavar="REGEX", help="Only values that match.")
@click.option(
    "--where",
    multiple=True,
    metavar="PATH[=VALUE]",
    help="Only JSON values that match, as user.id=7, a[0]>2, b~^x.",
)
@click.option("--key-format", type=click.Choice(READ_FORMATS), default="auto", show_default=True)
@click.option("--value-format", type=click.Choice(READ_FORMATS), default="auto", show_default=True)
@registry_options
@click.option("--format", "form", type=click.Choice(FORMATS), help="Default: text; with -o json, JSON lines.")
@click.option(
    "--template", metavar="TEXT", help="As '{topic} {partition}:{offset} {time} {key} {header:h} {value}'."
)
@click.option("--key-separator", metavar="TEXT", help="Print the key and this separator before the value.")
@click.option("--skip-errors", is_flag=True, help="Skip records that cannot be decoded.")
@click.option(
    "--isolation",
    type=click.Choice(list(ISOLATION_LEVELS)),
    default="read_uncommitted",
    show_default=True,
    help="read_uncommitted includes records of open and aborted transactions.",
)
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of the consumer.")
@cluster_command
def consume(
    session: Session,
    topics: tuple[str, ...],
    pattern: str | None,
    group: str | None,
    start: str,
    tail: int | None,
    follow: bool,
    only: tuple[int, ...],
    count_max: int | None,
    until_end: bool,
    until: str | None,
    idle: float | None,
    keys: tuple[str, ...],
    key_matches: tuple[str, ...],
    headers: tuple[str, ...],
    grep: tuple[str, ...],
    where: tuple[str, ...],
    key_format: str,
    value_format: str,
    registry: str | None,
    registry_options: tuple[str, ...],
    form: str | None,
    template: str | None,
    key_separator: str | None,
    skip_errors: bool,
    isolation: str,
    settings: tuple[str, ...],
) -> None:
    """Print the records of topics, by default new ones, until Ctrl-C.

    A record must match each kind of filter. In JSON, bytes that are not UTF-8 are printed as \\xNN.
    """
    if bool(topics) == (pattern is not None):
        raise click.UsageError("either TOPICs or --pattern are required")
    if group is not None and (tail or only or until or start not in ("earliest", "latest")):
        raise click.UsageError("--group: without --tail, --partition, --until; --from earliest or latest")
    if follow and (until_end or until):
        raise click.UsageError("--follow excludes --until-end and --until")
    _check_start(start)
    client = registry_client(registry, key_values(registry_options, "--registry-option"))
    form = form or ("json" if session.output == "json" else "text")
    try:
        accepts = _filters(keys, key_matches, headers, grep, where)
        formatter = make_formatter(form, template, key_separator)
        names = None if pattern is None else re.compile(pattern)
    except (BadFilter, ValueError, re.error) as error:
        raise click.UsageError(str(error)) from None
    wait_ms = min(_WAIT_MS, int(session.timeout_s * 500))
    given = {
        **session.client(),
        "isolation.level": isolation,
        "fetch.max.wait.ms": wait_ms,
        "auto.offset.reset": "none" if group is None else start,
        **({} if group is None else {"group.id": group, "enable.auto.commit": False}),
        **key_values(settings, "--set"),
    }
    printer = _RecordPrinter(
        reader(key_format, client),
        reader(value_format, client),
        accepts,
        formatter,
        header_line(form, template),
        count_max,
        skip_errors,
    )
    wanted = _ReadRange(
        topics, names, start, _time_ms(until), frozenset(only), until_end or until is not None
    )

    async def work() -> None:
        async with Consumer(given) as consumer:
            with printer.progress:
                if group is not None:
                    await _read_as_member(session, consumer, wanted, printer, idle)
                else:
                    await _read_partitions(session, consumer, wanted, printer, idle, tail, follow)

    try:
        session.run(work())
    except (KeyboardInterrupt, BrokenPipeError):
        # Ctrl-C and `| head` are regular ends.
        sys.stderr.close()
    except BadRecord as error:
        raise Refused(str(error)) from None
    if printer.skipped:
        click.echo(f"{printer.skipped} records could not be decoded", err=True)


class BadRecord(Exception):
    """A record cannot be decoded; the message has its position and the cause."""


@dataclass(frozen=True)
class _ReadRange:
    """The topics and positions to read."""

    topics: tuple[str, ...]
    pattern: re.Pattern[str] | None
    start: str
    until_ms: int | None
    only: frozenset[int]
    ends: bool
    """Whether reading ends at the current end offsets or at a time."""


def _filters(
    keys: Iterable[str],
    key_matches: Iterable[str],
    headers: Iterable[str],
    grep: Iterable[str],
    where: Iterable[str],
) -> RecordFilter:
    """The filter of all options: keys are alternatives, all other conditions must match. Raises BadFilter."""
    by_key = [record_filters.by_key(each) for each in keys]
    found = [*map(record_filters.by_key_pattern, key_matches), *map(record_filters.by_header, headers)]
    found += [*map(record_filters.by_text, grep), *map(record_filters.by_path, where)]
    if by_key:
        found.append(lambda key, value, own: any(accepts(key, value, own) for accepts in by_key))
    return record_filters.all_of(found)


@dataclass
class _RecordPrinter:
    """Decodes, filters and prints records, and counts them."""

    read_key: Read
    read_value: Read
    accepts: RecordFilter
    print: Formatter
    header_line: bytes
    count_max: int | None
    skip_errors: bool
    printed: int = 0
    skipped: int = 0
    _progress: Progress | None = field(init=False, default=None)

    @property
    def progress(self) -> AbstractContextManager[Any]:
        """A progress bar on a terminal when standard output is redirected."""
        console = Console(stderr=True)
        if not console.is_terminal or sys.stdout.isatty():
            return nullcontext()
        columns = (SpinnerColumn(), TextColumn("{task.completed:,} records"))
        self._progress = Progress(*columns, console=console, transient=True)
        self._progress.add_task("", total=None)
        return self._progress

    def decode(self, record: ConsumerRecord) -> DecodedRecord | None:
        """The decoded record; None when a filter excludes it, or it is skipped. Raises BadRecord."""
        try:
            key = self.read_key(record.topic, record.key)
            value = self.read_value(record.topic, record.value)
        except (ClientError, ValueError, ArithmeticError) as error:
            if not self.skip_errors:
                where = f"{record.topic}-{record.partition} at offset {record.offset}"
                raise BadRecord(f"{where}: {error}; --skip-errors skips it") from None
            self.skipped += 1
            return None
        return DecodedRecord(record, key, value) if self.accepts(key, value, record.headers) else None

    def show(self, shown: DecodedRecord) -> bool:
        """Print a record. Returns whether `count_max` is reached."""
        out = sys.stdout.buffer
        if self.header_line and not self.printed:
            out.write(self.header_line)
        out.write(self.print(shown))
        self.printed += 1
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=self.printed)
        return self.printed == self.count_max


async def _read_partitions(
    session: Session,
    consumer: Consumer,
    wanted: _ReadRange,
    printer: _RecordPrinter,
    idle_s: float | None,
    tail: int | None,
    follow: bool,
) -> None:
    async with AdminClient(session.client()) as admin:
        starts, firsts, ends = await _positions(admin, wanted)
    try:
        if tail is not None:
            for shown in await _last_accepted(consumer, printer, firsts, ends, tail):
                if printer.show(shown):
                    return
            sys.stdout.flush()
            if not follow:
                return
            starts = ends
        async for _, records in _ranges(consumer, starts, ends if wanted.ends else None, idle_s):
            for record in records:
                accepted = printer.decode(record)
                if accepted is not None and printer.show(accepted):
                    return
            sys.stdout.flush()
    finally:
        sys.stdout.flush()


async def _read_as_member(
    session: Session, consumer: Consumer, wanted: _ReadRange, printer: _RecordPrinter, idle_s: float | None
) -> None:
    """Read as a member of the group. Commits the offsets of printed records after each poll, also on an
    error."""
    ends: Offsets = {}
    if wanted.ends:
        async with AdminClient(session.client()) as admin:
            ends = (await _positions(admin, wanted))[2]
    if wanted.pattern is not None:
        consumer.subscribe(pattern=wanted.pattern)
    else:
        consumer.subscribe(wanted.topics)
    last = time.monotonic()
    while idle_s is None or time.monotonic() - last < idle_s:
        done: Offsets = {}
        try:
            for tp, records in (await consumer.poll(_POLL_S, _RECORDS_MAX)).items():
                last = time.monotonic()
                for record in records:
                    if wanted.ends and record.offset >= ends.get(tp, 0):
                        break
                    shown = printer.decode(record)
                    enough = shown is not None and printer.show(shown)
                    done[tp] = record.offset + 1
                    if enough:
                        return
        finally:
            sys.stdout.flush()
            if done:
                await consumer.commit(done)
        mine = consumer.assignment()
        if wanted.ends and mine and await _all_read(consumer, mine, ends):
            return


async def _all_read(consumer: Consumer, partitions: Iterable[TopicPartition], ends: Offsets) -> bool:
    for tp in partitions:
        if await consumer.position(tp) < ends.get(tp, 0):
            return False
    return True


async def _ranges(
    consumer: Consumer, starts: Offsets, ends: Offsets | None, idle_s: float | None = None
) -> AsyncIterator[tuple[TopicPartition, list[ConsumerRecord]]]:
    """The records of partitions from `starts` up to `ends` (None: without an end), as they are polled."""
    left = dict(starts)
    if ends is not None:
        left = {tp: offset for tp, offset in starts.items() if offset < ends.get(tp, 0)}
    consumer.assign(left)
    consumer.resume(*left)  # an earlier range may have paused some
    for tp, offset in left.items():
        consumer.seek(tp, offset)
    last = time.monotonic()
    while left and (idle_s is None or time.monotonic() - last < idle_s):
        for tp, records in (await consumer.poll(_POLL_S, _RECORDS_MAX)).items():
            last = time.monotonic()
            yield tp, [r for r in records if ends is None or r.offset < ends[tp]]
        if ends is not None:
            for tp in list(left):
                if await consumer.position(tp) >= ends[tp]:
                    del left[tp]
                    consumer.pause(tp)


async def _last_accepted(
    consumer: Consumer, printer: _RecordPrinter, firsts: Offsets, ends: Offsets, count: int
) -> list[DecodedRecord]:
    """The newest `count` records that match the filters, ordered by timestamp.

    Each partition is read backwards in growing ranges until it has `count` matches or is exhausted: offsets
    may have no records (compaction, transactions), and filters may exclude any number of records.
    """
    found: defaultdict[TopicPartition, deque[DecodedRecord]] = defaultdict(deque)
    upper, size = dict(ends), count
    while upper:
        lower = {tp: max(firsts[tp], end - size) for tp, end in upper.items()}
        piece: defaultdict[TopicPartition, deque[DecodedRecord]] = defaultdict(lambda: deque(maxlen=count))
        async for tp, newer in _ranges(consumer, lower, upper):
            piece[tp].extend(filter(None, map(printer.decode, newer)))
        for tp, accepted in piece.items():
            found[tp].extendleft(reversed(accepted))
        upper = {tp: at for tp, at in lower.items() if at > firsts[tp] and len(found[tp]) < count}
        size *= 2
    newest = sorted(
        (shown for each in found.values() for shown in list(each)[-count:]),
        key=lambda shown: (shown.record.timestamp_ms, shown.record.topic, shown.record.offset),
    )
    return newest[-count:]


async def _positions(admin: AdminClient, wanted: _ReadRange) -> tuple[Offsets, Offsets, Offsets]:
    """(start positions, start offsets, end offsets) of the partitions. Raises Refused."""
    asked = await _partitions(admin, wanted)
    firsts, ends = await admin.start_offsets(asked), await admin.end_offsets(asked)
    if leaderless := sorted({tp.topic for tp in asked if tp not in firsts or tp not in ends}):
        topic = leaderless[0]
        raise Refused(f"some partitions of {topic} have no leader: see `ottla topics describe {topic}`")
    if wanted.until_ms is not None:
        found = await admin.offsets_for_time(asked, wanted.until_ms)
        ends = {tp: found.get(tp, end) for tp, end in ends.items()}
    start = wanted.start
    if start == "earliest":
        return firsts, firsts, ends
    if start == "latest":
        return dict(ends), firsts, ends
    if start.startswith("-") and start[1:].isdigit():
        return {tp: max(firsts[tp], end - int(start[1:])) for tp, end in ends.items()}, firsts, ends
    if start.isdigit():
        return dict.fromkeys(asked, int(start)), firsts, ends
    since_ms = _time_ms(start)
    assert since_ms is not None
    found = await admin.offsets_for_time(asked, since_ms)
    return {tp: found.get(tp, end) for tp, end in ends.items()}, firsts, ends


async def _partitions(admin: AdminClient, wanted: _ReadRange) -> list[TopicPartition]:
    if wanted.pattern is not None:
        names = [name for name in await admin.list_topics() if wanted.pattern.fullmatch(name)]
        if not names:
            raise Refused(f"no topic matches '{wanted.pattern.pattern}'")
    else:
        names = list(wanted.topics)
    described = await admin.describe_topics(names)
    for name in names:
        if name not in described:
            raise Refused(f"there is no topic '{name}'")
    found = [TopicPartition(name, p.partition) for name in names for p in described[name].partitions]
    if missing := sorted(wanted.only - {tp.partition for tp in found}):
        raise Refused(f"{', '.join(names)}: there is no partition {missing[0]}")
    return [tp for tp in found if not wanted.only or tp.partition in wanted.only]


def _check_start(start: str) -> None:
    if start in ("earliest", "latest") or start.removeprefix("-").isdigit():
        return
    try:
        datetime.fromisoformat(start)
    except ValueError:
        raise click.UsageError(
            f"--from {start}: must be earliest, latest, an offset, -N or an ISO 8601 time"
        ) from None


def _time_ms(text: str | None) -> int | None:
    """Raises click.UsageError."""
    if text is None:
        return None
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise click.UsageError(f"{text}: must be a time in ISO 8601, as 2026-01-31T12:00:00Z") from None
