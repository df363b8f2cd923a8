"""The view model of the custom resources. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ottla_console.cluster.problems import Problem
from ottla_console.cluster.resources import Resource, State
from ottla_console.cluster.snapshot import Part
from ottla_console.views.tables import Column, Query, Table, table_of

COLUMNS: Final[tuple[Column[Resource], ...]] = (
    Column("resource", "Resource", lambda row: (row.kind, row.name)),
    Column("ready", "Ready", lambda row: (row.well, row.kind, row.name), hint="Those that are not, first"),
    Column("message", "Message"),
)


@dataclass(frozen=True, slots=True)
class Resources:
    """What the page shows."""

    configured: bool
    state: State | None
    """None: not read yet, or a problem says why not."""
    table: Table[Resource]
    now_ms: int
    problems: tuple[Problem, ...]


def view_of(found: Part[State] | None, query: Query, now_ms: int) -> Resources:
    """`found` None: the console is not configured to read them."""
    state = found.value if found else None
    table = table_of(
        state.resources if state else (),
        COLUMNS,
        query,
        text=lambda row: f"{row.kind} {row.name} {row.ready.reason if row.ready else ''}",
        default_sort="ready",
    )
    return Resources(found is not None, state, table, now_ms, found.problems if found else ())
