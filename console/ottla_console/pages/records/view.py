"""The view models of a topic's records: what the URL says, where a scan begins, rows, links. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, TypeAlias
from urllib.parse import urlencode

from ottla.client.admin_types import TopicDescription
from ottla_console.cluster.log_reader import LogRecord
from ottla_console.cluster.problems import Problem
from ottla_console.pages.records.decoding import AUTO, CHOICES, HEX_MAX, Rules, Shown, header_shown, shown
from ottla_console.pages.records.filters import PLACES, Filter
from ottla_console.pages.records.scanning import Limits, Slice, Stop
from ottla_console.views import formats

STARTS: Final[Mapping[str, str]] = {
    "newest": "Newest",
    "oldest": "Oldest",
    "offset": "Offset",
    "time": "Time",
}
ROWS: Final = (25, 50, 100, 200)
PARTITIONS_MAX: Final = 200
"""Read at the same time."""
OFFSET_MAX: Final = 2**63 - 1
LIVE_MS: Final = 5 * 60_000
"""How long a live tail runs."""
LIVE_S: Final = 2
LIMITS: Final = Limits()
LIVE_LIMITS: Final = Limits(records=5_000, bytes=8 << 20, seconds=1.0)
PAGE_BODY_MAX: Final = 256 << 10
"""Characters of a body on the page of a record."""
_CURSOR_MAX: Final = 16_000
"""Characters."""

NO_FILTER: Final = Filter()

Positions: TypeAlias = Mapping[int, int]


@dataclass(frozen=True)
class Choice:
    """What the reader chose; all of it is in the URL."""

    start: str = "newest"
    offset: int | None = None
    time_ms: int | None = None
    partition: int | None = None
    rows: int = ROWS[1]
    key: str = AUTO
    value: str = AUTO
    committed: bool = False
    filter: Filter = NO_FILTER
    at: Positions = field(default_factory=dict)
    """Where this page of the list begins; empty for the first one."""
    older: bool = True
    """From `at`, to the older records; else to the newer ones."""
    live_ms: int | None = None
    """When the live tail began."""
    mistakes: tuple[str, ...] = ()
    """What in the URL does not make sense, and what was assumed instead."""

    @classmethod
    def of(cls, params: Mapping[str, str]) -> Choice:
        mistakes: list[str] = []
        start = _one_of(params.get("from", ""), STARTS, "newest")
        offset = _number(params.get("offset"))
        time_ms = time_of(params.get("time", ""))
        if start == "offset" and offset is None:
            mistakes.append("An offset is a number from 0. The newest records are shown.")
            start = "newest"
        if start == "time" and time_ms is None:
            mistakes.append("A time is like 2026-01-31 12:00:00, in UTC. The newest records are shown.")
            start = "newest"
        rows = _number(params.get("rows")) or ROWS[1]
        return cls(
            start,
            offset,
            time_ms,
            _number(params.get("partition")),
            min(max(rows, 1), ROWS[-1]),
            _one_of(params.get("k", ""), CHOICES, AUTO),
            _one_of(params.get("v", ""), CHOICES, AUTO),
            params.get("committed") == "1",
            Filter.of(params),
            _cursor(params.get("at", "")),
            params.get("dir", "older") != "newer",
            _number(params.get("live")),
            tuple(mistakes),
        )

    @property
    def newest_first(self) -> bool:
        return self.start == "newest"

    @property
    def live(self) -> bool:
        return self.live_ms is not None and self.start == "newest" and not self.at

    def link(self, **changes: str | int | None) -> str:
        """The query of this view with changes; None removes a parameter."""
        found = self.filter
        given: dict[str, str | int | None] = {
            "from": self.start if self.start != "newest" else None,
            "offset": self.offset if self.start == "offset" else None,
            "time": self.time_text if self.start == "time" else None,
            "partition": self.partition,
            "rows": self.rows if self.rows != ROWS[1] else None,
            "k": self.key if self.key != AUTO else None,
            "v": self.value if self.value != AUTO else None,
            "committed": 1 if self.committed else None,
            "q": found.text,
            "in": found.place,
            "key": found.key,
            "header": found.header,
            "path": found.path,
            "equals": found.equals,
            "at": _cursor_text(self.at) if self.at else None,
            "dir": None if not self.at or self.older else "newer",
            "live": self.live_ms,
            **changes,
        }
        return "?" + urlencode({name: value for name, value in given.items() if value not in (None, "")})

    def page_link(self, at: Positions, *, older: bool) -> str:
        return self.link(at=_cursor_text(at), dir=None if older else "newer", live=None)

    @property
    def time_text(self) -> str:
        """As an input of the type datetime-local has it."""
        if self.time_ms is None:
            return ""
        moment = datetime.fromtimestamp(self.time_ms / 1000, UTC)
        return moment.strftime("%Y-%m-%dT%H:%M:%S") + (
            f".{self.time_ms % 1000:03}" if self.time_ms % 1000 else ""
        )


def time_of(text: str) -> int | None:
    """Milliseconds of a time in UTC: ISO 8601, or a number of milliseconds."""
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) >= 10:
        given = int(text[:20])
        return given if given < 253_402_300_800_000 else None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = found if found.tzinfo else found.replace(tzinfo=UTC)
    ms = round(moment.timestamp() * 1000)
    return ms if ms >= 0 else None


def _one_of(text: str, allowed: Mapping[str, str], default: str) -> str:
    return text if text in allowed else default


def _number(text: str | None) -> int | None:
    if not text or not text.isascii() or not text.isdigit() or len(text) > 19:
        return None
    return min(int(text), OFFSET_MAX)


def _cursor(text: str) -> dict[int, int]:
    """`0-123.1-456`: offsets by partition."""
    found = {}
    for each in text[:_CURSOR_MAX].split("."):
        partition, _, offset = each.partition("-")
        first, second = _number(partition), _number(offset)
        if first is not None and second is not None:
            found[first] = second
    return found


def _cursor_text(at: Positions) -> str:
    return ".".join(f"{partition}-{offset}" for partition, offset in sorted(at.items()))


# --- where a scan begins ---


@dataclass(frozen=True, slots=True)
class Plan:
    """A scan: its direction, where it begins, and the range of each partition."""

    older: bool
    offsets: Positions
    starts: Positions
    ends: Positions
    notes: tuple[str, ...] = ()


def plan_of(choice: Choice, starts: Positions, ends: Positions, by_time: Positions) -> Plan:
    """`starts`, `ends`: of the partitions that are read. `by_time`: the offsets of `choice.time_ms`."""
    known = [partition for partition in ends if partition in starts]
    starts, ends = {p: starts[p] for p in known}, {p: ends[p] for p in known}
    notes: list[str] = []
    if choice.at:
        # A partition that is new since then begins where it would have: at its end for older records.
        wanted = {p: choice.at.get(p, starts[p]) for p in known}
        older = choice.older
    elif choice.start == "offset":
        assert choice.offset is not None
        wanted, older = dict.fromkeys(known, choice.offset), False
        if known and all(not starts[p] <= choice.offset < ends[p] for p in known):
            ranges = ", ".join(_range_text(p, starts[p], ends[p]) for p in known[:3])
            notes.append(
                f"Offset {choice.offset:,} is out of range: {ranges}{', …' if len(known) > 3 else ''}. "
                "The nearest records are shown."
            )
            if all(choice.offset >= ends[p] for p in known):
                wanted, older = dict(ends), True
    elif choice.start == "time":
        wanted, older = {p: by_time.get(p, ends[p]) for p in known}, False
        if known and all(wanted[p] >= ends[p] for p in known):
            notes.append("No record has this time or a later one. The newest records before it are shown.")
            older = True
    elif choice.start == "oldest":
        wanted, older = dict(starts), False
    else:
        wanted, older = dict(ends), True
    offsets = {p: min(max(wanted[p], starts[p]), ends[p]) for p in known}
    return Plan(older, offsets, starts, ends, tuple(notes))


def _range_text(partition: int, start: int, end: int) -> str:
    if start >= end:
        return f"partition {partition} is empty"
    return f"partition {partition} has {start:,} to {end - 1:,}"


# --- the page ---


@dataclass(frozen=True, slots=True)
class Row:
    """A record in the list."""

    record: LogRecord
    key: Shown
    value: Shown
    headers: Sequence[tuple[str, Shown]]
    href: str

    @property
    def tombstone(self) -> bool:
        """A null value: with compaction, the deletion of the key."""
        return self.record.value is None and not self.record.control


@dataclass(frozen=True, slots=True)
class Head:
    """What is above the tabs of a topic."""

    name: str
    topic: TopicDescription | None
    problems: tuple[Problem, ...] = ()
    """Why the topic is not known."""


@dataclass(frozen=True)
class Records:
    """The tab of a topic's records."""

    head: Head
    choice: Choice
    rows: Sequence[Row]
    summary: str
    partitions: int
    """Of the topic."""
    records: int
    """In the partitions that are read, at most."""
    older: str
    """The link to the older records; empty if there are none."""
    newer: str
    same: str
    """The link that shows the same records later, too; empty for a live tail."""
    go_on: str
    """The link that continues a scan which has reached its limit."""
    notes: Sequence[str]
    problems: Sequence[Problem]
    empty: str
    """Why there are no rows."""
    polling: bool
    """Whether the page refreshes itself."""
    live_left_ms: int
    values: bool
    """Whether content may be shown."""
    schema: bool
    """Whether there is a registry."""
    now_ms: int

    starts = STARTS
    row_choices = ROWS
    choices = CHOICES
    places = PLACES
    live_s = LIVE_S

    @staticmethod
    def fraction(ms: int) -> str:
        """The milliseconds of a time, `.123`."""
        return _fraction(ms)


def rows_of(
    records: Sequence[LogRecord],
    rules: Rules,
    key: str,
    value: str,
    href: Callable[[LogRecord], str],
    *,
    hex_max: int = HEX_MAX,
) -> list[Row]:
    return [
        Row(
            each,
            shown(each.key, key, rules, bytes_max=hex_max),
            shown(each.value, value, rules, bytes_max=hex_max),
            [(name if rules.visible else "", header_shown(name, data, rules)) for name, data in each.headers],
            href(each),
        )
        for each in records
    ]


def records_of(
    head: Head,
    choice: Choice,
    plan: Plan,
    found: Slice,
    rows: Sequence[Row],
    problems: Sequence[Problem],
    *,
    notes: Sequence[str] = (),
    now_ms: int = 0,
    values: bool = True,
    schema: bool = False,
) -> Records:
    """`rows` of the records found, in the order of the scan."""
    ordered = list(rows) if plan.older == choice.newest_first else list(rows)[::-1]
    left = (
        sum(found.low[p] - plan.starts[p] for p in found.low)
        if plan.older
        else sum(plan.ends[p] - found.high[p] for p in found.high)
    )
    older = any(found.low[p] > plan.starts[p] for p in found.low)
    newer = any(found.high[p] < plan.ends[p] for p in found.high)
    limited = found.stop in (Stop.RECORDS, Stop.BYTES, Stop.SECONDS)
    elapsed = now_ms - choice.live_ms if choice.live_ms is not None else LIVE_MS
    polling = choice.live and 0 <= elapsed < LIVE_MS
    total = sum(max(plan.ends[p] - plan.starts[p], 0) for p in plan.ends)
    position = found.low if plan.older else found.high
    return Records(
        head,
        choice,
        ordered,
        _summary(choice, found, len(rows), left),
        len(head.topic.partitions) if head.topic else 0,
        total,
        choice.page_link(found.low, older=True) if older and not choice.live else "",
        choice.page_link(found.high, older=False) if newer and not choice.live else "",
        "" if choice.live else choice.page_link(plan.offsets, older=plan.older),
        choice.page_link(position, older=plan.older) if limited and left and not choice.live else "",
        (*choice.mistakes, *plan.notes, *notes),
        problems,
        "" if rows else _empty(choice, found, total, limited, bool(problems)),
        polling,
        max(LIVE_MS - elapsed, 0) if polling else 0,
        values,
        schema,
        now_ms,
    )


def _summary(choice: Choice, found: Slice, count: int, left: int) -> str:
    text = formats.count(count, "record")
    if not choice.filter.empty:
        text += f" found; scanned {found.scanned:,} of {found.scanned + left:,}"
        if found.oldest_ms is not None:
            text += f", from {formats.time(found.oldest_ms)} to {formats.time(found.newest_ms)}"
    elif found.oldest_ms is not None and count:
        text += f", from {formats.time(found.oldest_ms)} to {formats.time(found.newest_ms)}"
    return text


def _empty(choice: Choice, found: Slice, total: int, limited: bool, failed: bool) -> str:
    if failed:
        return "No record could be read."
    if not total:
        return "The topic has no records." if choice.partition is None else "The partition has no records."
    if not choice.filter.empty:
        if limited:
            return "Nothing found so far."
        return "No record matches." if not choice.at else "No further record matches."
    if limited:
        return "No record within the limits of one page."
    return "No records here: they may have been compacted away, or be transactions that are open or aborted."


# --- one record ---


@dataclass(frozen=True)
class One:
    """The page of a record."""

    head: Head
    partition: int
    offset: int
    """The one in the URL."""
    row: Row | None
    key: str
    value: str
    """The chosen decoders."""
    before: bool
    after: bool
    """Whether there are records before and after it."""
    note: str
    problems: Sequence[Problem]
    values: bool
    content: bool
    """Whether key and value may be saved as files."""
    schema: bool

    choices = CHOICES
    body_max = PAGE_BODY_MAX

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Of the record and its batch."""
        assert self.row is not None
        record, batch = self.row.record, self.row.record.batch
        found = [
            ("Partition", str(record.partition)),
            ("Offset", f"{record.offset:,}"),
            ("Time (UTC)", formats.time(record.timestamp_ms) + _fraction(record.timestamp_ms)),
            ("Time of", "the broker (LogAppendTime)" if record.appended else "the producer (CreateTime)"),
            ("Leader epoch", formats.number(record.leader_epoch)),
            ("Key size", _size(record.key)),
            ("Value size", _size(record.value)),
        ]
        if batch is not None:
            found += [
                ("Batch", f"{batch.base_offset:,} to {batch.last_offset:,}, {formats.size(batch.size)}"),
                ("Compression", batch.codec.name.lower()),
                ("Transactional", "yes" if batch.is_transactional else "no"),
            ]
            if batch.has_producer_id:
                found.append(("Producer id, epoch", f"{batch.producer_id}, {batch.producer_epoch}"))
        return found


def _size(data: bytes | None) -> str:
    return "null" if data is None else formats.size(len(data))


def _fraction(ms: int) -> str:
    return f".{ms % 1000:03}" if ms >= 0 else ""
