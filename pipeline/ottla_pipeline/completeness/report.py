"""The audit's report: JSON, HTML with plots, one line for a terminal, metrics, and the part of `/status` by
topic.

Called by the auditor and the audit jobs. Files are replaced atomically.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import jinja2
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ottla_pipeline.completeness.verdicts import COMPLETE, PENDING, STATUSES, TierRule, WindowVerdict

HTML_ROWS_MAX: Final = 500
KINDS: Final = (
    "acknowledged",
    "counted",
    "missing",
    "duplicated",
    "unacknowledged",
    "unreported",
    "rejected",
)


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The result of an audit at one moment."""

    name: str
    at_ms: int
    window_ms: int
    verdict: str
    rows: Sequence[WindowVerdict]
    problems: Sequence[str]
    silent: Sequence[str]
    horizons_ms: Mapping[str, int]
    unaudited: Mapping[str, Mapping[str, int]]
    producers: int
    consumers: int = 0

    def totals(self) -> dict[str, dict[str, int]]:
        """Records of each tier, by kind."""
        return totals(self.rows, self.horizons_ms)

    def windows(self) -> dict[str, dict[str, int]]:
        """Windows of each tier, by status."""
        windows = {tier: dict.fromkeys(STATUSES, 0) for tier in self.horizons_ms}
        for row in self.rows:
            windows[row.tier][row.status] += 1
        return windows

    def differs_from(self, other: AuditResult, age_s: float) -> bool:
        """Whether anything except the time differs, or the other result is older than `age_s`."""
        same = (self.rows, self.problems, self.silent) == (other.rows, other.problems, other.silent)
        return not same or self.at_ms - other.at_ms >= age_s * 1000

    def line(self) -> str:
        """The verdict and the sums of each tier, in one line. While it is pending, what is missing may still
        be read."""
        pending = self.verdict == PENDING
        parts = []
        for tier, total in self.totals().items():
            differences = [
                f"{total[kind]:,} {'not read yet' if pending and kind == 'missing' else kind}"
                for kind in KINDS[2:]
                if total[kind]
            ]
            parts.append(
                f"{tier} {total['counted']:,} of {total['acknowledged']:,}"
                + "".join(map(", {}".format, differences))
            )
        return f"{self.verdict}: {'; '.join(parts)}"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "at": iso(self.at_ms),
            "window_ms": self.window_ms,
            "verdict": self.verdict,
            "problems": list(self.problems),
            "silent_producers": list(self.silent),
            "producers": self.producers,
            "consumers": self.consumers,
            "tiers": {
                tier: {
                    "read_until": iso(self.horizons_ms[tier]) if self.horizons_ms[tier] else None,
                    "windows": self.windows()[tier],
                }
                | total
                for tier, total in self.totals().items()
            },
            "unaudited": {tier: dict(topics) for tier, topics in self.unaudited.items()},
            "windows": [
                asdict(row) | {"start": iso(row.start_ms), "lag_ms": lag_ms(row, self.window_ms)}
                for row in self.rows
            ],
        }


def totals(rows: Iterable[WindowVerdict], tiers: Iterable[str]) -> dict[str, dict[str, int]]:
    """The sums of these rows for each tier, by kind."""
    found = {tier: dict.fromkeys(KINDS, 0) for tier in tiers}
    for row in rows:
        for kind in KINDS:
            found[row.tier][kind] += getattr(row, kind)
    return found


def iso(at_ms: int, precision: str = "milliseconds") -> str:
    """A time (epoch ms) in ISO 8601, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def lag_ms(row: WindowVerdict, window_ms: int) -> int | None:
    """The time from a window's end until it was found complete."""
    return None if row.completed_ms is None else max(0, row.completed_ms - row.start_ms - window_ms)


def write(found: AuditResult, folder: Path, *, draw: bool = True) -> None:
    """Writes `report.json` and, with `draw`, `report.html`. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / "report.json", json.dumps(found.to_json(), indent=1))
    if draw:
        _replace(folder / "report.html", html(found))


def _replace(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text)
    part.replace(path)


def html(found: AuditResult) -> str:
    differing = [row for row in found.rows if row.differs]
    shown = (differing + [row for row in reversed(found.rows) if not row.differs])[:HTML_ROWS_MAX]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ottla_pipeline.completeness", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("report.html.jinja").render(
        found=found,
        totals=found.totals(),
        kinds=KINDS,
        shown=shown,
        left_out=len(found.rows) - len(shown),
        iso=iso,
        lag_ms=lag_ms,
        plots=[Markup(svg) for svg in draw_plots(found.rows, found.window_ms, tuple(found.horizons_ms))],
    )


class AuditMetrics(Collector):
    """The latest result as gauges."""

    def __init__(self, latest: Callable[[], AuditResult]) -> None:
        self._latest = latest

    def collect(self) -> Iterable[Metric]:
        found = self._latest()
        records = GaugeMetricFamily(
            "ottla_audit_records", "Records of the windows kept, by tier and kind.", labels=("tier", "kind")
        )
        windows = GaugeMetricFamily(
            "ottla_audit_windows", "Windows kept, by tier and status.", labels=("tier", "status")
        )
        until = GaugeMetricFamily(
            "ottla_audit_read_until_seconds", "Up to when a tier has been read (Unix time).", labels=("tier",)
        )
        for tier, total in found.totals().items():
            for kind in KINDS:
                records.add_metric((tier, kind), total[kind])
            for status, number in found.windows()[tier].items():
                windows.add_metric((tier, status), number)
            until.add_metric((tier,), found.horizons_ms[tier] / 1000)
        yield records
        yield windows
        yield until
        yield GaugeMetricFamily(
            "ottla_audit_silent_producers",
            "Producers and consumers that stopped reporting.",
            value=len(found.silent),
        )
        yield GaugeMetricFamily(
            "ottla_audit_problems", "Problems that prevent a verdict.", value=len(found.problems)
        )


WINDOWS_MAX: Final = 10
LATE_MS: Final = 120_000


def topic_details(found: AuditResult, named: Iterable[str], rules: Mapping[str, TierRule]) -> dict[str, Any]:
    """The result by topic, for `/status`; the operator derives the condition Complete of a Topic from it.
    `named` are the topics in the configuration, which are included even without windows. Pure. For each
    topic, with times in epoch ms:

        {"completeUntil": 1763840040000, "late": false, "differing": 1, "missing": 17, "duplicated": 0,
         "windows": [{"start": 1763840040000, "tier": "lake", "status": "missing", "missing": 17,
                      "duplicated": 0}]}

    `completeUntil` is the end of the last window up to which every tier holds all acknowledged records;
    null before the first one. `late` is true if it is more than LATE_MS behind the permitted delay.
    `differing` counts windows of tiers; `windows` are the first ones that differ, at most WINDOWS_MAX.
    """
    rows: dict[str, list[WindowVerdict]] = {topic: [] for topic in named}
    for row in found.rows:
        rows.setdefault(row.topic, []).append(row)
    topics = {topic: _topic(topic, each, found, rules) for topic, each in sorted(rows.items())}
    return {"name": found.name, "problems": list(found.problems), "topics": topics}


def _topic(
    topic: str, rows: list[WindowVerdict], found: AuditResult, rules: Mapping[str, TierRule]
) -> dict[str, Any]:
    differing = [row for row in rows if row.differs]
    until_ms = _complete_until_ms(topic, rows, found, rules)
    grace_ms = max((rule.grace_ms for rule in rules.values() if rule.covers(topic)), default=0)
    late_ms = found.at_ms - grace_ms - 2 * found.window_ms - LATE_MS
    return {
        "completeUntil": until_ms,
        "late": until_ms is None or until_ms < late_ms,
        "differing": len(differing),
        "missing": sum(row.missing for row in differing),
        "duplicated": sum(row.duplicated for row in differing),
        "windows": [
            {
                "start": row.start_ms,
                "tier": row.tier,
                "status": row.status,
                "missing": row.missing,
                "duplicated": row.duplicated,
            }
            for row in differing[:WINDOWS_MAX]
        ],
    }


def _complete_until_ms(
    topic: str, rows: list[WindowVerdict], found: AuditResult, rules: Mapping[str, TierRule]
) -> int | None:
    """The end of the last complete window. A window counts once every tier and the audit events have been
    read beyond its grace, because the rows do not show records that no producer has reported yet."""
    read_until = [
        found.horizons_ms[tier] - rule.grace_ms for tier, rule in rules.items() if rule.covers(topic)
    ]
    if not read_until:
        return None
    until_ms = min(read_until)
    until_ms = min(
        [until_ms - until_ms % found.window_ms, *(r.start_ms for r in rows if r.status != COMPLETE)]
    )
    return until_ms if until_ms > 0 else None


POINTS_MAX: Final = 1_000


def draw_plots(rows: Sequence[WindowVerdict], window_ms: int, tiers: Sequence[str]) -> list[str]:
    """Plots as SVG, one line per tier over all topics: the completeness of each window, and its delay.
    Empty without windows. Uses no display and no global state of matplotlib."""
    if not rows:
        return []
    complete, lags = Figure(figsize=(9, 2.6), layout="tight"), Figure(figsize=(9, 2.6), layout="tight")
    top, bottom = complete.add_subplot(), lags.add_subplot()
    starts = sorted({row.start_ms for row in rows})[-POINTS_MAX:]
    times: Any = [datetime.fromtimestamp(start_ms / 1000, UTC) for start_ms in starts]
    for tier in tiers:
        of_tier = [row for row in rows if row.tier == tier]
        shares, delays = [], []
        for start_ms in starts:
            there = [row for row in of_tier if row.start_ms == start_ms]
            acknowledged = sum(row.acknowledged for row in there)
            held = acknowledged - sum(row.missing for row in there)
            shares.append(100 * held / acknowledged if acknowledged else float("nan"))
            done = [row.completed_ms for row in there if row.completed_ms is not None]
            slowest = max(done) if done and len(done) == len(there) else None
            delays.append(
                max(0, slowest - start_ms - window_ms) / 1000 if slowest is not None else float("nan")
            )
        top.plot(times, shares, marker=".", label=tier)
        bottom.plot(times, delays, marker=".", label=tier)
    for axes, title in ((top, "complete, %"), (bottom, "seconds from a window's end until complete")):
        axes.set_title(title, loc="left", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return [to_svg(complete), to_svg(lags)]


def to_svg(figure: Figure) -> str:
    """The figure as an SVG element, without the XML prologue, for use in HTML."""
    text = io.StringIO()
    with rc_context({"svg.fonttype": "none"}):  # text as text: smaller, and drawn several times faster
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]
