"""What a comparison found: counts for each topic and time window, and the report made of them.

Called by the compare job, which has Spark do the counting; everything here is plain data, so that the verdict
can be tested without a cluster.

The ids that were produced are the measure. The brokers and the lake are each held against them: `missing`
are ids produced that a tier does not hold; `duplicated` are copies beyond the first that it holds of any id;
`unexpected` are ids it holds that nobody says to have produced. It passes when all three are 0 in both tiers
and no id was produced twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table


@dataclass(slots=True)
class Tier:
    """One holder of events, against what was produced. `held` counts events, copies included."""

    held: int = 0
    missing: int = 0
    duplicated: int = 0
    unexpected: int = 0

    def add(self, other: Tier) -> None:
        self.held += other.held
        self.missing += other.missing
        self.duplicated += other.duplicated
        self.unexpected += other.unexpected

    @property
    def differs(self) -> bool:
        return bool(self.missing or self.duplicated or self.unexpected)


@dataclass(slots=True)
class Tally:
    """Counts of a topic and window, or a sum of such. `produced` counts ids; `repeated`, ids given twice."""

    produced: int = 0
    repeated: int = 0
    brokers: Tier = field(default_factory=Tier)
    lake: Tier = field(default_factory=Tier)

    def add(self, other: Tally) -> None:
        self.produced += other.produced
        self.repeated += other.repeated
        self.brokers.add(other.brokers)
        self.lake.add(other.lake)

    @property
    def differs(self) -> bool:
        return bool(self.repeated) or self.brokers.differs or self.lake.differs


@dataclass(frozen=True, slots=True)
class Window:
    """The counts of one topic in one time window; `start` is ISO 8601 in UTC, or "unknown"."""

    topic: str
    start: str
    tally: Tally


@dataclass(frozen=True, slots=True)
class Difference:
    """One id that is not held exactly once everywhere: how often it is, in each tier."""

    topic: str
    id: str
    produced: int
    brokers: int
    lake: int


@dataclass(frozen=True, slots=True)
class Report:
    """The result. `samples` are the first differing ids; `without_id` counts records without one."""

    window_length: str
    windows: Sequence[Window]
    samples: Sequence[Difference] = ()
    without_id: int = 0

    def by_topic(self) -> dict[str, Tally]:
        sums: dict[str, Tally] = {}
        for window in self.windows:
            sums.setdefault(window.topic, Tally()).add(window.tally)
        return dict(sorted(sums.items()))

    def total(self) -> Tally:
        total = Tally()
        for window in self.windows:
            total.add(window.tally)
        return total

    def differing(self) -> list[Window]:
        return [window for window in self.windows if window.tally.differs]

    @property
    def passed(self) -> bool:
        return not self.differing()

    def to_json(self) -> str:
        """The whole report; of the windows, all of them."""
        body: dict[str, Any] = {
            "passed": self.passed,
            "window": self.window_length,
            "total": asdict(self.total()),
            "topics": {topic: asdict(tally) for topic, tally in self.by_topic().items()},
            "broker_records_without_id": self.without_id,
            "windows": [{"topic": w.topic, "start": w.start} | asdict(w.tally) for w in self.windows],
            "differences": [asdict(sample) for sample in self.samples],
        }
        return json.dumps(body, indent=1)

    def tables(self, most: int = 20) -> list[Table]:
        """For people: sums of each topic; then the windows that differ, `most` of them."""
        sums = counts_table("Audit")
        for topic, tally in self.by_topic().items():
            sums.add_row(topic, "all", *cells(tally))
        sums.add_section()
        sums.add_row("all", "all", *cells(self.total()))
        differing = self.differing()
        if not differing:
            return [sums]
        windows = counts_table(f"Windows of {self.window_length} that differ ({len(differing)})")
        for window in differing[:most]:
            windows.add_row(window.topic, window.start, *cells(window.tally))
        samples = Table(title="Ids that differ, and how often each tier holds them", title_justify="left")
        for name in ("topic", "id", "produced", "brokers", "lake"):
            samples.add_column(name, justify="left" if name in ("topic", "id") else "right")
        for sample in self.samples[:most]:
            counts = (str(count) for count in (sample.produced, sample.brokers, sample.lake))
            samples.add_row(sample.topic, sample.id, *counts)
        return [sums, windows, samples]


def counts_table(title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("topic")
    table.add_column("window")
    names = ("produced", "brokers", "missing", "doubled", "extra", "lake", "missing", "doubled", "extra")
    for name in names:
        table.add_column(name, justify="right")
    return table


def cells(tally: Tally) -> Iterable[str]:
    """A tally as the cells of `counts_table`'s row; what should be 0 and is not stands out."""
    yield f"{tally.produced:,}" + (f" [red]+{tally.repeated:,}[/]" if tally.repeated else "")
    for tier in (tally.brokers, tally.lake):
        yield f"{tier.held:,}"
        for count in (tier.missing, tier.duplicated, tier.unexpected):
            yield f"[red]{count:,}[/]" if count else "0"
