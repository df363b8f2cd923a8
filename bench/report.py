"""The result of `make bench`: samples with their medians and ratios, as a table, and as JSON with every run.

Called by `python -m bench` and by the runner. Pure but for `machine`, which reads /proc.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.table import Column, Table

from bench.apache_kafka import KAFKA_VERSION
from bench.interpreter import interpreter
from bench.loads import Load

OURS, THEIRS = "Ottla", "Kafka"
AGREE_WITHIN: Final = 0.10
AGREEING_RUNS: Final = 3
SMALL_MS: Final = 10
"""Latencies below this have a decimal."""

Figures = Mapping[str, float]
"""The values of one run, by the keys of `MEASURES`."""


@dataclass(frozen=True)
class Measure:
    """A figure of a run, and its column in the table."""

    key: str
    title: str
    decimals: int


MEASURES: Final = (
    Measure("records_per_s", "records/s", 0),
    Measure("cpu_s_per_million", "CPU s / million", 2),
    Measure("kernel_s_per_million", "of it kernel", 2),
    Measure("p50_ms", "p50 ms", 0),
    Measure("p99_ms", "p99 ms", 0),
    Measure("p999_ms", "p99.9 ms", 0),
    Measure("reader_mib_s", "reader MiB/s", 0),
    Measure("rss_mib", "RSS MiB", 0),
    Measure("pss_mib", "PSS MiB", 0),
)


def agree(rates: Sequence[float]) -> bool:
    """Whether the last three rates are within 10 % of the slowest of them."""
    last = rates[-AGREEING_RUNS:]
    return len(last) == AGREEING_RUNS and max(last) <= min(last) * (1 + AGREE_WITHIN)


def medians(samples: Sequence[Figures]) -> dict[str, float]:
    """The median of each figure; `samples` is not empty."""
    assert samples
    return {key: statistics.median(sample[key] for sample in samples) for key in samples[0]}


def spread(samples: Sequence[Figures], key: str) -> float:
    """(highest - lowest) / lowest of a figure; 0 if the lowest is 0."""
    values = [sample[key] for sample in samples]
    return (max(values) - min(values)) / min(values) if min(values) > 0 else 0.0


@dataclass
class SideRuns:
    """All runs of one load on one side."""

    warm: list[Figures] = field(default_factory=list)
    agreed: bool = False
    """Whether three warm-up runs in a row agreed; if not, the side is measured all the same."""
    samples: list[Figures] = field(default_factory=list)

    @property
    def median(self) -> dict[str, float]:
        return medians(self.samples)


def ratios(ours: Figures, theirs: Figures) -> dict[str, float]:
    """ours / theirs, for every figure that both have and that is not 0 in theirs."""
    return {key: ours[key] / theirs[key] for key in ours if theirs.get(key)}


@dataclass(frozen=True)
class Result:
    """All runs of one load on both sides."""

    load: Load
    runs: Mapping[str, SideRuns]
    """Runs by the name of the side."""
    floor_cpu_s: float | None = None
    """CPU seconds of the load's floor for a million records."""

    def over_floor(self, side: str) -> float | None:
        """How many times the floor's CPU the side takes."""
        return self.runs[side].median["cpu_s_per_million"] / self.floor_cpu_s if self.floor_cpu_s else None

    @property
    def ratio(self) -> dict[str, float]:
        return ratios(self.runs[OURS].median, self.runs[THEIRS].median)


def results_table(results: list[Result]) -> Table:
    """The table of medians of the measured runs, with Ottla's ratio to Kafka."""
    shown = [m for m in MEASURES if any(m.key in r.runs[OURS].median for r in results)]
    has_floor = any(r.floor_cpu_s for r in results)
    table = Table(
        Column("load", no_wrap=True),
        Column("broker", no_wrap=True),
        *(Column(measure.title, justify="right") for measure in shown),
        *([Column("CPU / floor", justify="right")] if has_floor else ()),
        title=f"Ottla beside Apache Kafka {KAFKA_VERSION}: medians",
        caption="* never had three warm-up runs that agreed within 10 %",
    )
    for result in results:
        name = result.load.name
        for side, runs in result.runs.items():
            cells = [_cell(runs.median, m.key, m.decimals) for m in shown]
            if has_floor:
                over = result.over_floor(side)
                cells.append("" if over is None else f"{over:.1f}")
            table.add_row(name, side + ("" if runs.agreed else " *"), *cells)
            name = ""
        cells = [_cell(result.ratio, m.key, 2) for m in shown]
        table.add_row("", "ratio", *cells, style="bold", end_section=True)
    return table


def as_markdown(table: Table) -> Table:
    """The table in Markdown, for the documentation."""
    table.box, table.title, table.caption = box.MARKDOWN, None, None
    for row in table.rows:
        row.end_section = False  # Markdown has a rule below the head only
    return table


def _cell(figures: Figures, key: str, decimals: int) -> str:
    if key not in figures:
        return ""
    if key.endswith("_ms") and figures[key] < SMALL_MS:
        decimals = max(decimals, 1)
    return f"{figures[key]:,.{decimals}f}"


def as_json(results: list[Result], ran_on: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "machine": dict(ran_on),
        "loads": [
            {
                "key": result.load.key,
                "name": result.load.name,
                "brokers": result.load.brokers,
                "records": result.load.records,
                "sides": {
                    name: {
                        "median": runs.median,
                        "samples": list(runs.samples),
                        "warm_runs": list(runs.warm),
                        "warm_runs_agreed": runs.agreed,
                    }
                    for name, runs in result.runs.items()
                },
                "ratio": result.ratio,
                "floor_cpu_s_per_million": result.floor_cpu_s,
            }
            for result in results
        ],
    }


def machine() -> dict[str, Any]:
    """The machine of the figures, and its load average."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "kernel": platform.release(),
        "python": interpreter(),
        "kafka": KAFKA_VERSION,
        "load_average": [round(value, 2) for value in os.getloadavg()],
    }
