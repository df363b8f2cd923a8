"""The result of the job `compare`: counts by topic and time window, as JSON and as tables.

Called by `jobs.compare`, which counts with Spark. Plain data only, so tests of the verdict need no cluster.

The produced ids are the reference. For the brokers and for the lake: `missing` are produced ids that the
tier lacks; `duplicated` are copies beyond the first of any id; `unexpected` are ids that nobody produced.
The comparison passes if all three are 0 in both tiers and no id was produced twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table


@dataclass(slots=True)
class TierCounts:
    """The counts of one tier (brokers or lake). `held` counts events, including copies."""

    held: int = 0
    missing: int = 0
    duplicated: int = 0
    unexpected: int = 0

    def add(self, other: TierCounts) -> None:
        self.held += other.held
        self.missing += other.missing
        self.duplicated += other.duplicated
        self.unexpected += other.unexpected

    @property
    def differs(self) -> bool:
        return bool(self.missing or self.duplicated or self.unexpected)


@dataclass(slots=True)
class Counts:
    """The counts of a topic and window, or a sum of them. `produced` counts ids; `repeated`, ids that were
    produced again."""

    produced: int = 0
    repeated: int = 0
    brokers: TierCounts = field(default_factory=TierCounts)
    lake: TierCounts = field(default_factory=TierCounts)

    def add(self, other: Counts) -> None:
        self.produced += other.produced
        self.repeated += other.repeated
        self.brokers.add(other.brokers)
        self.lake.add(other.lake)

    @property
    def differs(self) -> bool:
        return bool(self.repeated) or self.brokers.differs or self.lake.differs


@dataclass(frozen=True, slots=True)
class WindowCounts:
    """The counts of one topic in one time window; `start` is ISO 8601 in UTC, or "unknown"."""

    topic: str
    start: str
    counts: Counts


@dataclass(frozen=True, slots=True)
class Difference:
    """An id that is not exactly once in every tier: its number of copies in each."""

    topic: str
    id: str
    produced: int
    brokers: int
    lake: int


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    """The result. `samples` are the first differing ids; `without_id` counts records of the brokers
    without an id."""

    window_length: str
    windows: Sequence[WindowCounts]
    samples: Sequence[Difference] = ()
    without_id: int = 0

    def by_topic(self) -> dict[str, Counts]:
        sums: dict[str, Counts] = {}
        for window in self.windows:
            sums.setdefault(window.topic, Counts()).add(window.counts)
        return dict(sorted(sums.items()))

    def total(self) -> Counts:
        total = Counts()
        for window in self.windows:
            total.add(window.counts)
        return total

    def differing(self) -> list[WindowCounts]:
        return [window for window in self.windows if window.counts.differs]

    @property
    def passed(self) -> bool:
        return not self.differing()

    def to_json(self) -> str:
        """The whole report, with all windows."""
        body: dict[str, Any] = {
            "passed": self.passed,
            "window": self.window_length,
            "total": asdict(self.total()),
            "topics": {topic: asdict(counts) for topic, counts in self.by_topic().items()},
            "broker_records_without_id": self.without_id,
            "windows": [{"topic": w.topic, "start": w.start} | asdict(w.counts) for w in self.windows],
            "differences": [asdict(sample) for sample in self.samples],
        }
        return json.dumps(body, indent=1)

    def tables(self, most: int = 20) -> list[Table]:
        """Tables for terminals: the sums of each topic, then the windows that differ, at most `most` of
        them."""
        sums = counts_table("Audit")
        for topic, counts in self.by_topic().items():
            sums.add_row(topic, "all", *cells(counts))
        sums.add_section()
        sums.add_row("all", "all", *cells(self.total()))
        differing = self.differing()
        if not differing:
            return [sums]
        windows = counts_table(f"Windows of {self.window_length} that differ ({len(differing)})")
        for window in differing[:most]:
            windows.add_row(window.topic, window.start, *cells(window.counts))
        samples = Table(title="Ids that differ, and how often each tier holds them", title_justify="left")
        for name in ("topic", "id", "produced", "brokers", "lake"):
            samples.add_column(name, justify="left" if name in ("topic", "id") else "right")
        for sample in self.samples[:most]:
            numbers = (str(number) for number in (sample.produced, sample.brokers, sample.lake))
            samples.add_row(sample.topic, sample.id, *numbers)
        return [sums, windows, samples]


def counts_table(title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("topic")
    table.add_column("window")
    names = ("produced", "brokers", "missing", "doubled", "extra", "lake", "missing", "doubled", "extra")
    for name in names:
        table.add_column(name, justify="right")
    return table


def cells(counts: Counts) -> Iterable[str]:
    """The cells of a `counts_table` row; counts that should be 0 and are not are red."""
    yield f"{counts.produced:,}" + (f" [red]+{counts.repeated:,}[/]" if counts.repeated else "")
    for tier in (counts.brokers, counts.lake):
        yield f"{tier.held:,}"
        for count in (tier.missing, tier.duplicated, tier.unexpected):
            yield f"[red]{count:,}[/]" if count else "0"
