"""Prints rows as a table or as JSON.

Called by the commands. A row is a mapping from column to plain value; a table's column titles are the JSON's
names in upper case. Tables are never truncated.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table

_WIDE = 100_000


def show(rows: Iterable[Mapping[str, Any]], output: str, *, nothing: str = "nothing found") -> None:
    """Print rows. `nothing`: the message instead of an empty table."""
    found = list(rows)
    if output == "json":
        as_json(found)
    elif not found:
        click.echo(nothing, err=True)
    else:
        table(found)


def as_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def table(rows: Sequence[Mapping[str, Any]], *, title: str | None = None) -> None:
    if title:
        click.echo(title)
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for name in rows[0]:
        numeric = all(isinstance(row[name], int | float) or row[name] is None for row in rows)
        grid.add_column(
            name.replace("_", " ").upper(),
            justify="right" if numeric else "left",
            no_wrap=True,
            overflow="ignore",
        )
    for row in rows:
        grid.add_row(*(_text(value) for value in row.values()))
    Console(file=sys.stdout, width=_WIDE, highlight=False, markup=False, emoji=False).print(
        grid, soft_wrap=True
    )


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "-"
    return str(value)


def done(message: str, output: str, **facts: Any) -> None:
    """Print the result of a change: `message`, or `facts` as JSON."""
    if output == "json":
        as_json(facts)
    else:
        click.echo(message)


def by_topic(partitions: Iterable[tuple[str, int]]) -> list[str]:
    """An assignment in the format of Kafka's tool: `clicks(0,2)`."""
    found: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        found.setdefault(topic, []).append(number)
    return [f"{topic}({','.join(map(str, numbers))})" for topic, numbers in found.items()]
