"""New offsets for a group: what a person chooses, and what becomes of each partition. Pure.

The rules are those of kafka-consumer-groups.sh --reset-offsets: an offset out of range becomes the nearest
one of the log, a time after the last record becomes the end, only committed offsets can be shifted, and a
group with members is not reset. A time without a zone is UTC.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Final

from ottla.client.admin_types import GroupDescription, TopicPartition

PARTITIONS_MAX: Final = 10_000
"""Of one reset."""
EDITED_MAX: Final = 200
"""The largest plan whose offsets can be edited one by one."""
INACTIVE: Final = frozenset(("Empty", "Dead"))
UNITS: Final[Mapping[str, tuple[str, int]]] = {
    "m": ("minutes", 60_000),
    "h": ("hours", 3_600_000),
    "d": ("days", 86_400_000),
}
_INT64_MAX: Final = 2**63 - 1


class Invalid(ValueError):
    """A choice that cannot be understood; the message says what is allowed."""


class Target(Enum):
    """Where to: the options of Kafka's tool."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIME = "time"
    DURATION = "duration"
    SHIFT = "shift"
    OFFSET = "offset"
    CURRENT = "current"


@dataclass(frozen=True, slots=True)
class Rule:
    """A target with its number: a time in ms (TIME, DURATION), records (SHIFT), an offset (OFFSET)."""

    target: Target
    number: int = 0


def rule_of(params: Mapping[str, str], now_ms: int) -> Rule | None:
    """The rule that the form gives; None before a choice. Raises Invalid."""
    given = params.get("to", "")
    if not given:
        return None
    try:
        target = Target(given)
    except ValueError:
        raise Invalid(f"{given} is no target: {', '.join(each.value for each in Target)}") from None
    text = params.get(f"{given}.value", "").strip()
    if target is Target.TIME:
        return Rule(target, _time_ms(text))
    if target is Target.DURATION:
        unit = UNITS.get(params.get("duration.unit", ""), UNITS["h"])[1]
        return Rule(target, max(0, now_ms - _number(text, "the duration", least=0) * unit))
    if target is Target.SHIFT:
        return Rule(target, _number(text, "the number of records"))
    if target is Target.OFFSET:
        return Rule(target, _number(text, "the offset", least=0))
    return Rule(target)


def _number(text: str, what: str, *, least: int = -_INT64_MAX) -> int:
    try:
        number = int(text)
    except ValueError:
        number = None
    if number is None or not least <= number <= _INT64_MAX:
        raise Invalid(f"{what} must be a whole number{f' from {least}' if least >= 0 else ''}")
    return number


def _time_ms(text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
        zoned = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        return max(0, int(zoned.timestamp() * 1000))
    except (ValueError, OverflowError):
        raise Invalid("the time must be a date and a time, as 2026-01-31T14:05") from None


def numbers_of(text: str) -> frozenset[int] | None:
    """`0,2,5-7` as partitions; None, for all, if empty. Raises Invalid."""
    if not text.strip():
        return None
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        low, high = (
            int(each) if each.isdecimal() and len(each) < 10 else -1 for each in (first, last or first)
        )
        if low < 0 or high < low or (dash and not last) or high - low >= PARTITIONS_MAX:
            raise Invalid(f"{text} are no partitions: write 0,2,5-7, or leave it empty for all")
        found.update(range(low, high + 1))
    return frozenset(found)


def selected(
    topics: Iterable[str], only: Callable[[str], str], known: Mapping[str, Sequence[int]]
) -> list[TopicPartition]:
    """The chosen partitions of topics, of those that are `known`. Raises Invalid."""
    found: list[TopicPartition] = []
    for topic in dict.fromkeys(topics):
        if topic not in known:
            raise Invalid(f"there is no topic {topic}, or you may not see it")
        wanted = numbers_of(only(topic))
        if wanted is not None and (missing := wanted.difference(known[topic])):
            raise Invalid(f"the topic {topic} has no partition {min(missing)}")
        found += [TopicPartition(topic, p) for p in known[topic] if wanted is None or p in wanted]
    if not found:
        raise Invalid("choose at least one topic")
    if len(found) > PARTITIONS_MAX:
        raise Invalid(f"a reset may have {PARTITIONS_MAX:,} partitions: these are {len(found):,}")
    return sorted(found)


@dataclass(frozen=True, slots=True)
class Change:
    """The offset of a partition before and after. `after` is None if there is none: `note` says why."""

    topic: str
    partition: int
    before: int | None
    after: int | None
    note: str = ""

    @property
    def records(self) -> int | None:
        """Positive: skipped; negative: read again."""
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def field(self) -> str:
        """Of the form."""
        return f"after:{self.partition}:{self.topic}"


@dataclass(frozen=True, slots=True)
class Plan:
    """All changes of a reset."""

    changes: tuple[Change, ...]

    @property
    def again(self) -> int:
        return -sum(each.records for each in self.changes if each.records is not None and each.records < 0)

    @property
    def skipped(self) -> int:
        return sum(each.records for each in self.changes if each.records is not None and each.records > 0)

    @property
    def moved(self) -> int:
        return sum(each.after is not None and each.after != each.before for each in self.changes)

    @property
    def blocked(self) -> tuple[Change, ...]:
        return tuple(each for each in self.changes if each.after is None)

    @property
    def editable(self) -> bool:
        return len(self.changes) <= EDITED_MAX

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        return {TopicPartition(c.topic, c.partition): c.after for c in self.changes if c.after is not None}

    @property
    def text(self) -> str:
        """For the form that applies it: `plan_from` reads it."""
        return json.dumps([(c.topic, c.partition, c.before, c.after) for c in self.changes])


def plan_of(
    rule: Rule,
    partitions: Iterable[TopicPartition],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    committed: Mapping[TopicPartition, int],
    at_time: Mapping[TopicPartition, int],
) -> Plan:
    return Plan(
        tuple(
            _change(rule, tp, starts.get(tp), ends.get(tp), committed.get(tp), at_time.get(tp))
            for tp in partitions
        )
    )


def _change(
    rule: Rule,
    tp: TopicPartition,
    start: int | None,
    end: int | None,
    before: int | None,
    at_time: int | None,
) -> Change:
    if start is None or end is None:
        return Change(*tp, before, None, "has no leader, so that its offsets are not known")
    note = ""
    match rule.target:
        case Target.EARLIEST:
            wanted = start
        case Target.LATEST:
            wanted = end
        case Target.CURRENT:
            wanted = end if before is None else before
            note = "nothing is committed: the end" if before is None else ""
        case Target.OFFSET:
            wanted = rule.number
        case Target.SHIFT:
            if before is None:
                return Change(*tp, None, None, "has no committed offset to shift")
            wanted = before + rule.number
        case Target.TIME | Target.DURATION:
            wanted = end if at_time is None else at_time
            note = "no record is as late: the end" if at_time is None else ""
    return _within(tp, before, wanted, start, end, note)


def _within(
    tp: TopicPartition, before: int | None, wanted: int, start: int, end: int, note: str = ""
) -> Change:
    if wanted < start:
        return Change(*tp, before, start, "the first offset of the log")
    if wanted > end:
        return Change(*tp, before, end, "the end offset of the log")
    return Change(*tp, before, wanted, note)


def plan_from(text: str) -> Plan:
    """The plan that a form has shown. Raises Invalid."""
    try:
        rows = [Change(str(t), int(p), before, after) for t, p, before, after in json.loads(text)]
    except (ValueError, TypeError):
        raise Invalid("the form has no plan") from None
    numbers = [each for row in rows for each in (row.before, row.after) if each is not None]
    if not rows or len(rows) > PARTITIONS_MAX or any(type(n) is not int or n < 0 for n in numbers):
        raise Invalid("the form has no plan")
    return Plan(tuple(rows))


def edited(plan: Plan, form: Mapping[str, str]) -> dict[TopicPartition, int]:
    """The offsets that the fields of the form say; of the plan, where there is no field. Raises Invalid."""
    found = {}
    for each in plan.changes:
        text = form.get(each.field)
        if text is None and each.after is None:
            continue
        found[TopicPartition(each.topic, each.partition)] = (
            each.after
            if text is None and each.after is not None
            else _number(text or "", f"the offset of {each.topic}-{each.partition}", least=0)
        )
    return found


def plan_of_offsets(
    wanted: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    committed: Mapping[TopicPartition, int],
) -> Plan:
    """The plan of offsets that a person has edited: within the logs as they are now."""
    rows = []
    for tp, offset in wanted.items():
        start, end = starts.get(tp), ends.get(tp)
        if start is None or end is None:
            rows.append(_change(Rule(Target.OFFSET, offset), tp, start, end, committed.get(tp), None))
        else:
            rows.append(_within(tp, committed.get(tp), offset, start, end))
    return Plan(tuple(rows))


@dataclass(frozen=True, slots=True)
class Blocker:
    """A member that must stop before a reset."""

    client: str
    host: str
    member: str
    topics: tuple[str, ...]
    static: bool


def blockers(group: GroupDescription | None) -> tuple[Blocker, ...]:
    """The members of an active group."""
    if group is None or group.state in INACTIVE:
        return ()
    return tuple(
        Blocker(
            member.client_id,
            member.host,
            member.group_instance_id or member.member_id,
            tuple(sorted({tp.topic for tp in member.partitions})),
            bool(member.group_instance_id),
        )
        for member in group.members
    )
