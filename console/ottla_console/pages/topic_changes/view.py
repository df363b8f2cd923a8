"""The view models of changes to topics: creation, partitions, records, settings. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ottla.client.admin_types import ConfigEntry, NewTopic, TopicDescription, TopicPartition
from ottla_console.cluster.problems import Problem
from ottla_console.cluster.snapshot import Part
from ottla_console.views.configs import SettingRow, settings_table
from ottla_console.views.tables import Query

NAME_MAX: Final = 249
PARTITIONS_MAX: Final = 100_000
SETTINGS_MAX: Final = 100
TRUNCATED_MAX: Final = 200
"""Partitions with a field for an offset."""
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


class Invalid(ValueError):
    """A form that cannot be sent; the message says what is allowed."""


# --- creation ---


@dataclass(frozen=True, slots=True)
class Creation:
    """The form of a new topic, and after a check, what the brokers would create."""

    name: str = ""
    partitions: str = ""
    replicas: str = ""
    settings: str = ""
    checked: tuple[int, int] | None = None
    """Partitions and replicas."""
    problems: tuple[Problem, ...] = ()


def creation_of(form: Mapping[str, str]) -> Creation:
    return Creation(
        form.get("name", "").strip(),
        form.get("partitions", "").strip(),
        form.get("replicas", "").strip(),
        form.get("settings", ""),
    )


def topic_of(form: Creation) -> NewTopic:
    """The topic of a form; -1 for what the brokers decide. Raises Invalid."""
    name = form.name
    if not _NAME.fullmatch(name) or name in (".", "..") or len(name) > NAME_MAX:
        raise Invalid(f"a name has 1 to {NAME_MAX} of the characters a-z, A-Z, 0-9, . _ and -")
    partitions = _number(form.partitions, "partitions", PARTITIONS_MAX)
    replicas = _number(form.replicas, "replicas", 32_767)
    return NewTopic(name, partitions, replicas, settings_of(form.settings))


def _number(text: str, what: str, most: int) -> int:
    if not text:
        return -1
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise Invalid(f"{what} must be a number from 1 to {most:,}, or empty for the brokers' default")
    return int(text)


def settings_of(text: str) -> dict[str, str]:
    """Lines of NAME=VALUE. Raises Invalid."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise Invalid(f"each line of the settings must be NAME=VALUE: {line.strip()[:80]} is not")
        found[name.strip()] = value.strip()
    if len(found) > SETTINGS_MAX:
        raise Invalid(f"a topic may have {SETTINGS_MAX} settings here")
    return found


# --- partitions, records, deletion ---


@dataclass(frozen=True, slots=True)
class Truncation:
    """What a deletion of records does to a partition."""

    partition: int
    start: int | None
    end: int | None
    text: str = ""
    """The offset before which records are deleted, as typed."""
    before: int | None = None
    """The same as a number within the log; None: the partition stays as it is."""

    @property
    def deleted(self) -> int:
        """At most: the offsets that are no longer in the log."""
        return 0 if self.before is None or self.start is None else self.before - self.start


@dataclass(frozen=True, slots=True)
class Manage:
    """The tab of changes of a topic."""

    name: str
    topic: TopicDescription | None
    rows: tuple[Truncation, ...] = ()
    previewed: bool = False
    count: str = ""
    """The new number of partitions, as typed."""
    problems: tuple[Problem, ...] = ()

    @property
    def internal(self) -> bool:
        return self.topic is not None and self.topic.internal

    @property
    def partitions(self) -> int:
        return len(self.topic.partitions) if self.topic else 0

    @property
    def deleted(self) -> int:
        return sum(row.deleted for row in self.rows)

    @property
    def before(self) -> dict[int, int]:
        """By partition."""
        return {row.partition: row.before for row in self.rows if row.before is not None}

    @property
    def hidden(self) -> int:
        """Partitions without a field."""
        return max(0, self.partitions - TRUNCATED_MAX)


def manage_of(
    name: str,
    topic: TopicDescription | None,
    starts: Part[dict[TopicPartition, int]],
    ends: Part[dict[TopicPartition, int]],
    params: Mapping[str, str],
) -> Manage:
    """Fields `before:PARTITION` are offsets; `end` is the end of the log. Raises Invalid."""
    rows, previewed = [], False
    for each in (topic.partitions if topic else ())[:TRUNCATED_MAX]:
        tp = TopicPartition(name, each.partition)
        start, end = (starts.value or {}).get(tp), (ends.value or {}).get(tp)
        text = params.get(f"before:{each.partition}", "").strip()
        before = None
        if text:
            previewed = True
            before = _offset(text, each.partition, start, end)
        rows.append(Truncation(each.partition, start, end, text, before))
    return Manage(name, topic, tuple(rows), previewed, problems=(*starts.problems, *ends.problems))


def _offset(text: str, partition: int, start: int | None, end: int | None) -> int:
    if start is None or end is None:
        raise Invalid(f"partition {partition} has no leader")
    if text == "end":
        return end
    if not text.isdecimal() or not start <= int(text) <= end:
        raise Invalid(f"the offset of partition {partition} must be from {start} to {end}, or end")
    return int(text)


def new_count(text: str, present: int) -> int:
    """The new number of partitions. Raises Invalid."""
    if not text.isdecimal() or not present < int(text) <= PARTITIONS_MAX:
        raise Invalid(f"the number of partitions can only grow: it must be from {present + 1}")
    return int(text)


# --- settings ---


@dataclass(frozen=True, slots=True)
class Setting:
    """The form of one setting of a topic."""

    topic: str
    row: SettingRow | None
    """None: not known to the brokers."""
    value: str = ""
    """As typed."""
    read_only: bool = False
    problems: tuple[Problem, ...] = field(default_factory=tuple)


def setting_of(topic: str, name: str, found: Part[dict[str, ConfigEntry]]) -> Setting:
    entry = (found.value or {}).get(name)
    if entry is None:
        return Setting(topic, None, problems=found.problems)
    (row,) = settings_table({name: entry}, Query()).rows
    return Setting(topic, row, row.value or "", entry.read_only, found.problems)
