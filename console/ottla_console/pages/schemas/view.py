"""The view models of the schema registry: subjects, versions of one, the difference of two. Pure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ottla.client.registry import Schema, Version
from ottla_console.cluster.problems import Problem
from ottla_console.cluster.snapshot import Part
from ottla_console.views.tables import Column, Query, Table, table_of

LINES_MAX: Final = 3_000
"""Of a schema or a difference on a page."""
LEVELS: Final[Mapping[str, str]] = {
    "BACKWARD": "a new schema reads what the latest version has written",
    "BACKWARD_TRANSITIVE": "a new schema reads what all versions have written",
    "FORWARD": "the latest version reads what a new schema writes",
    "FORWARD_TRANSITIVE": "all versions read what a new schema writes",
    "FULL": "a new schema and the latest version read each other's records",
    "FULL_TRANSITIVE": "a new schema and all versions read each other's records",
    "NONE": "any new schema is accepted",
}


@dataclass(frozen=True, slots=True)
class SubjectRow:
    """A subject of the registry."""

    name: str


COLUMNS: Final[tuple[Column[SubjectRow], ...]] = (
    Column("name", "Subject", lambda row: row.name.casefold()),
    Column("type", "Type"),
    Column("version", "Latest version", numeric=True),
    Column("id", "Schema id", numeric=True),
)


@dataclass(frozen=True, slots=True)
class Subjects:
    """The list; the latest versions are known for the rows on the page alone."""

    table: Table[SubjectRow]
    latest: Mapping[str, Version]
    problems: tuple[Problem, ...]


def subjects_of(found: Part[list[str]], query: Query) -> Subjects:
    rows = [SubjectRow(name) for name in found.value or ()]
    table = table_of(rows, COLUMNS, query, text=lambda row: row.name, default_sort="name")
    return Subjects(table, {}, found.problems)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a difference; `kind` is `added`, `removed`, `same` or `gap`."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Subject:
    """A subject with the version that is shown, and another one that it is compared with."""

    name: str
    versions: Sequence[int]
    shown: Version | None
    against: Version | None
    level: str
    problems: tuple[Problem, ...]

    @property
    def level_text(self) -> str:
        return LEVELS.get(self.level, "")

    @property
    def text(self) -> str:
        return pretty(self.shown.schema) if self.shown else ""

    @property
    def lines(self) -> list[Line]:
        """What has changed from `against` to the shown version."""
        if self.shown is None or self.against is None:
            return []
        return difference(pretty(self.against.schema), self.text)

    @property
    def added(self) -> int:
        return sum(line.kind == "added" for line in self.lines)

    @property
    def removed(self) -> int:
        return sum(line.kind == "removed" for line in self.lines)


def pretty(schema: Schema) -> str:
    """JSON with indentation, so that a difference is by fields; other texts as they are."""
    if schema.type != "PROTOBUF":
        try:
            return json.dumps(json.loads(schema.text), indent=2, ensure_ascii=False)
        except ValueError:
            pass
    return schema.text.strip("\n")


def difference(before: str, after: str) -> list[Line]:
    """Lines added and removed, with three lines around them; empty if the texts are equal."""
    found: list[Line] = []
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=3)
    for index, line in enumerate(lines):
        if index < 2:  # names of files
            continue
        if len(found) >= LINES_MAX:
            found.append(Line("gap", "more lines differ"))
            break
        if line.startswith("@@"):
            found.append(Line("gap", f"from line {line.split('+')[1].split()[0].split(',')[0]}"))
            continue
        found.append(Line({"+": "added", "-": "removed"}.get(line[:1], "same"), line[1:]))
    return found


def version_in(text: str, versions: Sequence[int]) -> int | None:
    """The version that a parameter names, if there is one."""
    return int(text) if text.isdecimal() and int(text) in versions else None
