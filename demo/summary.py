"""The output of the demo: its progress, and a summary of the results.

Called by `demo.run`. Progress is shown as bars on a terminal, else as a line every two seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from demo.failover import Failover

LINE_EVERY_S = 2.0
LOG_WIDTH = 120


class Show:
    """Prints lines with the seconds since the start, and the counts of produced and consumed events."""

    def __init__(self, total: int, console: Console | None = None) -> None:
        self.console = console or Console()
        if not self.console.is_terminal:
            self.console.width = LOG_WIDTH
        self.total = total
        self._started_s = time.monotonic()
        self._last_line_s = 0.0
        self._produced = 0
        self._consumed = 0
        self._bars: Progress | None = None
        self._tasks: list[TaskID] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_counts()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def say(self, line: str) -> None:
        self.console.print(f"{self.elapsed_s:6.1f} s  {line}", highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def busy(self, line: str) -> Iterator[None]:
        """Print the current step, with a spinner on a terminal."""
        self.say(line)
        with self.console.status(line) if self.console.is_terminal else nullcontext():
            yield

    def summary(self, outcome: Outcome) -> None:
        self.console.print()
        self.console.print(table(outcome), highlight=False)
        self.console.print()

    def begin_counts(self) -> None:
        if self.console.is_terminal:
            columns = (TextColumn("          {task.description:>9}"), BarColumn(None), MofNCompleteColumn())
            self._bars = Progress(*columns, console=self.console, transient=True, expand=True)
            self._tasks = [self._bars.add_task(name, total=self.total) for name in ("produced", "consumed")]
            self._bars.start()

    def count(self, *, produced: int | None = None, consumed: int | None = None) -> None:
        self._produced = self._produced if produced is None else produced
        self._consumed = self._consumed if consumed is None else consumed
        if self._bars is not None:
            for task, done in zip(self._tasks, (self._produced, self._consumed), strict=True):
                self._bars.update(task, completed=done)
        elif time.monotonic() - self._last_line_s >= LINE_EVERY_S:
            self._last_line_s = time.monotonic()
            self.say(f"produced {self._produced:,}, consumed {self._consumed:,} of {self.total:,}")

    def end_counts(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of the demo. `audit` is the audit's report (JSON); `failover` is None without a kill."""

    produced: int
    produce_s: float
    consumed: int
    consumed_again: int
    consume_s: float
    audit: dict[str, Any]
    dead_letters: int
    failover: Failover | None
    ack_gap_s: float
    data: Path
    elapsed_s: float

    def problems(self) -> list[str]:
        """The reasons of a failure; empty after success."""
        found: list[str] = []
        if self.audit["total"]["produced"] != self.produced:
            audited = self.audit["total"]["produced"]
            found.append(f"the audit has {audited:,} of {self.produced:,} produced events")
        if not self.audit["passed"]:
            found.append(f"the audit found differences: see {self.data / 'audit.json'}")
        if self.consumed != self.produced:
            found.append(f"the group read {self.consumed:,} of {self.produced:,} ids")
        if self.failover is not None and self.failover.in_sync_s is None:
            found.append(self.failover.problem or f"broker {self.failover.broker} is not back in every ISR")
        return found


def table(outcome: Outcome) -> Table:
    """The table of the summary."""
    rows = Table(show_header=False, box=None, pad_edge=False)
    rows.add_column(style="bold")
    rows.add_column()
    total = outcome.audit["total"]
    lost = total["brokers"]["missing"], total["lake"]["missing"]
    doubled = total["brokers"]["duplicated"], total["lake"]["duplicated"]
    rate = outcome.produced / outcome.produce_s
    during = ", fail-over included" if outcome.failover is not None else ""
    again = f"; {outcome.consumed_again:,} read again (a group delivers at least once)"
    consume_rate = outcome.consumed / outcome.consume_s if outcome.consume_s else 0.0
    rows.add_row("produced", f"{outcome.produced:,} events, acks=all: {rate:,.0f} records/s{during}")
    rows.add_row("consumed", f"{outcome.consumed:,} by a group of two: {consume_rate:,.0f} records/s{again}")
    rows.add_row("in brokers", f"{total['brokers']['held']:,}")
    rows.add_row("landed", f"{total['lake']['held']:,} in the lake, {outcome.dead_letters:,} dead letters")
    rows.add_row(
        "missing", f"{sum(lost):,}" + (f" (brokers {lost[0]:,}, lake {lost[1]:,})" if any(lost) else "")
    )
    rows.add_row(
        "duplicated",
        f"{sum(doubled):,}" + (f" (brokers {doubled[0]:,}, lake {doubled[1]:,})" if any(doubled) else ""),
    )
    failover = outcome.failover
    if failover is not None and failover.leaders_back_s is not None:
        back = (
            "not back"
            if failover.in_sync_s is None
            else f"back in every ISR after {failover.in_sync_s:.1f} s"
        )
        rows.add_row(
            "fail-over",
            f"{failover.leaders_back_s:.1f} s until all partitions had a leader; longest wait for an "
            f"acknowledgement {outcome.ack_gap_s:.1f} s",
        )
        rows.add_row(
            "",
            f"broker {failover.broker} (controller, leader of {failover.led}) killed, {back}; "
            f"controller now {failover.controller_after}",
        )
    rows.add_row("lake", str(outcome.data / "lake"))
    rows.add_row("audit", str(outcome.data / "audit.json"))
    if failover is not None:
        rows.add_row("cluster", f"{outcome.data / 'cluster'} (again: ottla up -f demo/cluster --data …)")
    rows.add_row("took", f"{outcome.elapsed_s:.0f} s")
    return rows
