"""The output of `ottla up`: a live table on a terminal, otherwise a line for each change.

Called by `up.command` after every reconciliation. Shows only what is in the resources' statuses.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ottla_operator.conditions import Condition, is_unusual
from ottla_operator.resources import KINDS, BrokerCluster, Pipeline
from ottla_operator.resources.common import Status
from ottla_operator.up.store import Entry

_RECENT_LINES = 6


def conditions_of(entry: Entry) -> list[Condition]:
    """The stored conditions, also of a resource without a valid spec."""
    model = KINDS[entry.kind].model_fields["status"].annotation
    assert isinstance(model, type)
    assert issubclass(model, Status)
    return model.model_validate(entry.status).conditions


def _rows(entry: Entry) -> tuple[str, str, str]:
    """(status, reason, message) of Ready; other unusual conditions are added to the message."""
    status, reason, lines = "Unknown", "", [""]
    for condition in conditions_of(entry):
        if condition.type == "Ready":
            status, reason, lines[0] = condition.status, condition.reason, condition.message
    for condition in conditions_of(entry):
        known = condition.reason == reason or (condition.message and condition.message in lines[0])
        if condition.type != "Ready" and is_unusual(condition) and not known:
            lines.append(_describe(condition))
    return status, reason, "\n".join(line for line in lines if line)


def _describe(condition: Condition) -> str:
    return f"{condition.type}={condition.status} {condition.reason} {condition.message}".rstrip()


class View(Protocol):
    """Shows the resources after each reconciliation."""

    def show(self, entries: Sequence[Entry], errors: Sequence[str], steps: Sequence[str]) -> None: ...

    def print_line(self, line: str) -> None:
        """Print one line unchanged; programs parse some of these lines."""
        ...

    def close(self) -> None: ...


class PlainView:
    """Prints a line for each change of Ready, and of status or reason of the other conditions."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], str] | None = None) -> None:
        self._write = write
        self._clock = clock or (lambda: time.strftime("%H:%M:%S"))
        self._shown: dict[str, tuple[str, str, str]] = {}
        self._brokers: dict[str, tuple[str, str]] = {}
        self._errors: tuple[str, ...] = ()
        self._steps: frozenset[str] = frozenset()

    def show(self, entries: Sequence[Entry], errors: Sequence[str], steps: Sequence[str]) -> None:
        for error in errors:
            if error not in self._errors:
                self._line(f"error: {error}")
        self._errors = tuple(errors)
        for step in steps:
            if step not in self._steps:
                self._line(step)
        self._steps = frozenset(steps)
        shown: dict[str, tuple[str, str, str]] = {}
        for entry in entries:
            for condition in conditions_of(entry):
                if condition.status == "Unknown" and condition.type != "Ready":
                    continue
                key = f"{entry.key} {condition.type}"
                shown[key] = (condition.status, condition.reason, condition.message)
                old = self._shown.get(key)
                if old is None and condition.type != "Ready" and not is_unusual(condition):
                    continue
                if condition.type != "Ready" and old is not None and old[:2] == shown[key][:2]:
                    continue  # its message may change every second, such as a lag
                if old != shown[key]:
                    self._line(f"{entry.key} {_describe(condition)}")
            self._show_brokers(entry)
        self._shown = shown

    def _show_brokers(self, entry: Entry) -> None:
        if not isinstance(entry.resource, BrokerCluster):
            return
        for broker in entry.resource.status.brokers:
            key, now = f"broker {broker.id}", (broker.state, broker.waiting_for)
            if self._brokers.get(key) != now:
                why = f": {broker.waiting_for}" if broker.waiting_for else ""
                self._line(f"{key} {broker.state}{why}")
            self._brokers[key] = now

    def _line(self, text: str) -> None:
        self._write(f"{self._clock()} {text}")

    def print_line(self, line: str) -> None:
        self._write(line)

    def close(self) -> None:
        pass


class LiveView:
    """A table that is redrawn after every reconciliation, with the last steps below it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._recent: deque[str] = deque(maxlen=_RECENT_LINES)
        self._steps: frozenset[str] = frozenset()
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def show(self, entries: Sequence[Entry], errors: Sequence[str], steps: Sequence[str]) -> None:
        now = time.strftime("%H:%M:%S")
        self._recent.extend(f"{now} {step}" for step in steps if step not in self._steps)
        self._steps = frozenset(steps)
        self._live.update(self._render(entries, errors), refresh=True)

    def _render(self, entries: Sequence[Entry], errors: Sequence[str]) -> RenderableType:
        table = Table(expand=True, box=None, header_style="bold", pad_edge=False)
        table.add_column("Resource", no_wrap=True)
        table.add_column("Ready", no_wrap=True)
        table.add_column("Status", no_wrap=True)
        table.add_column("Detail", ratio=1)
        for entry in entries:
            status, reason, message = _rows(entry)
            table.add_row(entry.key, _coloured(status), reason, Text(message or _detail(entry)))
            if isinstance(entry.resource, BrokerCluster):
                _add_brokers(table, entry.resource)
            elif isinstance(entry.resource, Pipeline):
                _add_progress(table, entry.resource)
        below = [Text(error, style="red") for error in errors]
        recent = [Text(line, style="dim") for line in self._recent]
        return Group(table, *below, Text(), *recent)

    def print_line(self, line: str) -> None:
        self._live.console.print(line, soft_wrap=True, markup=False, highlight=False)

    def close(self) -> None:
        self._live.stop()


def _coloured(status: str) -> Text:
    return Text(status, style={"True": "green", "False": "yellow"}.get(status, "dim"))


def _detail(entry: Entry) -> str:
    return "" if entry.spec is not None else entry.file


def _add_progress(table: Table, pipeline: Pipeline) -> None:
    status = pipeline.status
    if status.last_batch is None:
        return
    batch = status.last_batch
    lag = "" if status.lag is None else f", lag {status.lag}"
    took = f"{batch.records} records in {batch.duration_ms / 1000:.1f} s{lag}"
    table.add_row(Text(f"  batch {batch.id}", style="dim"), "", batch.ended_at[11:19], took)


def _add_brokers(table: Table, cluster: BrokerCluster) -> None:
    status = cluster.status
    for broker in status.brokers:
        notes = [broker.waiting_for] if broker.waiting_for else []
        if broker.id == status.controller_id:
            notes.append("controller")
        notes += broker.restart_reasons
        ready = Text("True", style="green") if broker.ready else Text("False", style="yellow")
        table.add_row(Text(f"  broker {broker.id}", style="dim"), ready, broker.state, Text("; ".join(notes)))
    if status.reassignment is not None:
        move = status.reassignment
        table.add_row(
            Text("  reassignment", style="dim"), "", move.reason, f"{move.moved} of {move.total} moved"
        )
    if status.rollout is not None:
        roll = status.rollout
        table.add_row(
            Text("  rollout", style="dim"), "", roll.target_hash, f"{roll.updated} of {roll.total} updated"
        )
