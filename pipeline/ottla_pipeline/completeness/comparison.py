"""The comparison of the job `compare`: an audit of finite data with a manifest, by the ids of events.

Called by `jobs.compare`, which gives each id a number in its topic and window, as if one audited producer
had sent the events of the manifest (`MANIFEST`); other ids belong to a second producer (`NOT_PRODUCED`). So
the ledger and the verdicts are those of the audit: the manifest acknowledges its numbers, and the tiers are
compared with them. Plain data only, so tests of the verdict need no cluster.

For the brokers and for the lake: `missing` are produced ids that the tier lacks; `duplicated` are copies
beyond the first of any id; `unexpected` are ids that are not in the manifest (the audit's `unreported`). The
comparison passes if all three are 0 in both tiers and no id was produced twice.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Final

from rich.table import Table

from ottla_pipeline.auditing.events import AuditEvent, WindowCount
from ottla_pipeline.completeness.ledger import EVENTS, CountRow, Ledger
from ottla_pipeline.completeness.report import iso, totals
from ottla_pipeline.completeness.verdicts import TierRule, WindowVerdict, evaluate

PRODUCED: Final = "produced"
TIERS: Final = (PRODUCED, "brokers", "lake")
MANIFEST: Final = "manifest"
NOT_PRODUCED: Final = "not in the manifest"
UNKNOWN_START_MS: Final = 2**62
"""The start of the window of events whose time is unknown; it is the last one of its topic."""
_MIN_MS, _MAX_MS = -(2**63), 2**63


def verdicts_of(counts: Mapping[str, Sequence[CountRow]], window_ms: int) -> list[WindowVerdict]:
    """The verdicts on all windows, from the counts of each tier. The counts of the manifest are those of its
    producer's only report; all tiers have been read to their ends."""
    ledger = Ledger(window_ms, TIERS, forgotten_before_ms=_MIN_MS)
    sizes: Counter[tuple[str, int]] = Counter()
    for row in counts[PRODUCED]:
        sizes[row.topic, row.start_ms] += row.bits.bit_count()
    windows = (
        WindowCount(topic, start_ms, size, 0, 0, True, ((0, size - 1),))
        for (topic, start_ms), size in sizes.items()
    )
    ledger.add_events([AuditEvent(MANIFEST, "", 0, 0, window_ms, True, tuple(windows))])
    for tier in TIERS:
        ledger.add_counts(tier, counts[tier])
    for stream in (EVENTS, *TIERS):
        ledger.advance_horizon(stream, _MAX_MS)
    return evaluate(ledger, dict.fromkeys(TIERS, TierRule(grace_ms=0)), now_ms=0)


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
    rows: Sequence[WindowVerdict]
    samples: Sequence[Difference] = ()
    without_id: int = 0

    def by_topic(self) -> dict[str, dict[str, Any]]:
        return {topic: _counts(rows) for topic, rows in groupby(self.rows, key=lambda row: row.topic)}

    def total(self) -> dict[str, Any]:
        return _counts(self.rows)

    def windows(self, *, differing: bool = False) -> list[dict[str, Any]]:
        """The counts of each topic and window, by default of all windows. The start is ISO 8601 in UTC, or
        "unknown"."""
        found = []
        for (topic, start_ms), group in groupby(self.rows, key=lambda row: (row.topic, row.start_ms)):
            rows = list(group)
            start = "unknown" if start_ms == UNKNOWN_START_MS else iso(start_ms, "seconds")
            if not differing or any(row.differs for row in rows):
                found.append({"topic": topic, "start": start} | _counts(rows))
        return found

    @property
    def passed(self) -> bool:
        return not any(row.differs for row in self.rows)

    def to_json(self) -> str:
        """The whole report, with all windows."""
        body: dict[str, Any] = {
            "passed": self.passed,
            "window": self.window_length,
            "total": self.total(),
            "topics": self.by_topic(),
            "broker_records_without_id": self.without_id,
            "windows": self.windows(),
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
        differing = self.windows(differing=True)
        if not differing:
            return [sums]
        windows = counts_table(f"Windows of {self.window_length} that differ ({len(differing)})")
        for window in differing[:most]:
            windows.add_row(window["topic"], window["start"], *cells(window))
        samples = Table(title="Ids that differ, with their copies in each tier", title_justify="left")
        for name in ("topic", "id", *TIERS):
            samples.add_column(name, justify="left" if name in ("topic", "id") else "right")
        for sample in self.samples[:most]:
            samples.add_row(*map(str, asdict(sample).values()))
        return [sums, windows, samples]


def _counts(rows: Iterable[WindowVerdict]) -> dict[str, Any]:
    """The sums of these rows. `produced` counts ids; `repeated`, ids that were produced again; `held`,
    events including copies."""
    produced, *others = totals(rows, TIERS).values()
    found: dict[str, Any] = {"produced": produced["acknowledged"], "repeated": produced["duplicated"]}
    for tier, counts in zip(TIERS[1:], others, strict=True):
        found[tier] = {
            "held": counts["counted"],
            "missing": counts["missing"],
            "duplicated": counts["duplicated"],
            "unexpected": counts["unreported"],
        }
    return found


def counts_table(title: str) -> Table:
    """An empty table with the columns of `cells`."""
    table = Table(title=title, title_justify="left")
    table.add_column("topic")
    table.add_column("window")
    names = ("produced", "brokers", "missing", "doubled", "extra", "lake", "missing", "doubled", "extra")
    for name in names:
        table.add_column(name, justify="right")
    return table


def cells(counts: Mapping[str, Any]) -> Iterable[str]:
    """The cells of a `counts_table` row; counts that should be 0 and are not are red."""
    yield f"{counts['produced']:,}" + (f" [red]+{counts['repeated']:,}[/]" if counts["repeated"] else "")
    for tier in TIERS[1:]:
        held, *differences = counts[tier].values()
        yield f"{held:,}"
        for count in differences:
            yield f"[red]{count:,}[/]" if count else "0"
