"""The view models of the reset of a group, and of the deletion of its offsets. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from ottla.client.admin_types import GroupDescription, TopicPartition
from ottla_console.cluster.problems import Problem
from ottla_console.cluster.snapshot import Part
from ottla_console.pages.resets.plan import INACTIVE, UNITS, Blocker, Plan, Target, blockers

_HOUR_MS: Final = 3_600_000
TARGETS: Final[tuple[tuple[Target, str, str], ...]] = (
    (Target.EARLIEST, "Earliest", "the first record that is kept"),
    (Target.LATEST, "Latest", "only records that are written from now on"),
    (Target.TIME, "Time", "UTC: the first record of this time or later"),
    (Target.DURATION, "Before now", "the first record since then"),
    (Target.SHIFT, "Shift by", "records; a negative number goes back"),
    (Target.OFFSET, "Offset", "the same in each partition"),
    (Target.CURRENT, "Present offsets", "to edit them one by one"),
)


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """A topic that can be chosen."""

    name: str
    partitions: int
    """With a committed offset."""
    lag: int | None
    chosen: bool
    only: str = ""
    """The partitions, as typed; empty: all."""


@dataclass(frozen=True, slots=True)
class Head:
    """The group, as all of its forms show it."""

    id: str
    state: str
    topics: tuple[TopicChoice, ...]
    blockers: tuple[Blocker, ...]
    problems: tuple[Problem, ...]

    @property
    def missing(self) -> bool:
        return self.state == "Dead" and not self.topics

    @property
    def active(self) -> bool:
        return bool(self.state) and self.state not in INACTIVE


def head_of(
    id_: str,
    described: Part[GroupDescription],
    offsets: Part[dict[TopicPartition, int]],
    ends: Part[dict[TopicPartition, int]],
    chosen: Collection[str] | None,
    only: Mapping[str, str],
) -> Head:
    """`chosen`: topics; None: all."""
    committed = offsets.value or {}
    lags: dict[str, list[int | None]] = {}
    for tp, offset in committed.items():
        end = (ends.value or {}).get(tp)
        lags.setdefault(tp.topic, []).append(None if end is None else max(0, end - offset))
    rows = []
    for topic in sorted({*lags, *(chosen or ())}):
        known = [lag for lag in lags.get(topic, ()) if lag is not None]
        wanted = chosen is None or topic in chosen
        rows.append(
            TopicChoice(
                topic, len(lags.get(topic, ())), sum(known) if known else None, wanted, only.get(topic, "")
            )
        )
    group = described.value
    problems = (*described.problems, *offsets.problems, *ends.problems)
    return Head(id_, group.state if group else "", tuple(rows), blockers(group), problems)


@dataclass(frozen=True, slots=True)
class Wizard:
    """The reset: what was chosen, and the plan."""

    head: Head
    target: str
    values: Mapping[str, str]
    """Of the fields of the targets."""
    units: Mapping[str, tuple[str, int]]
    plan: Plan | None = None
    notice: str = ""
    """Why it is not applied as it was."""
    problems: tuple[Problem, ...] = ()

    @property
    def targets(self) -> tuple[tuple[Target, str, str], ...]:
        return TARGETS


def wizard_of(head: Head, params: Mapping[str, str], now_ms: int) -> Wizard:
    """The form without a plan; a field that was not sent has a default."""
    hour_ago = datetime.fromtimestamp(max(0, now_ms - _HOUR_MS) / 1000, UTC).strftime("%Y-%m-%dT%H:%M")
    defaults = {
        "time.value": hour_ago,
        "duration.value": "1",
        "duration.unit": "h",
        "shift.value": "",
        "offset.value": "",
    }
    values = {name: params.get(name) or default for name, default in defaults.items()}
    return Wizard(head, params.get("to", ""), values, UNITS)


def with_plan(wizard: Wizard, plan: Plan, notice: str = "") -> Wizard:
    return replace(wizard, plan=plan, notice=notice)


def with_problems(wizard: Wizard, *problems: Problem) -> Wizard:
    return replace(wizard, problems=problems)
