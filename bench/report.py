"""The result of `make bench`: a table of medians, and JSON with every run.

Called by `python -m bench`. Pure but for `machine`, which reads /proc.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Column, Table

from bench.apache_kafka import KAFKA_VERSION
from bench.figures import MEASURES, Figures, SideRuns, ratios
from bench.loads import Load

OURS, THEIRS = "Ottla", "Kafka"


@dataclass(frozen=True)
class Result:
    load: Load
    runs: Mapping[str, SideRuns]
    """Runs by the name of the side."""

    @property
    def ratio(self) -> dict[str, float]:
        return ratios(self.runs[OURS].median, self.runs[THEIRS].median)


def results_table(results: list[Result]) -> Table:
    """The table of medians of the measured runs, with Ottla's ratio to Kafka."""
    shown = [m for m in MEASURES if any(m.key in r.runs[OURS].median for r in results)]
    table = Table(
        Column("load", no_wrap=True),
        Column("broker", no_wrap=True),
        *(Column(measure.title, justify="right") for measure in shown),
        title=f"Ottla beside Apache Kafka {KAFKA_VERSION}: medians",
        caption="* never had three warm-up runs that agreed within 10 %",
    )
    for result in results:
        name = result.load.name
        for side, runs in result.runs.items():
            cells = (_cell(runs.median, m.key, m.decimals) for m in shown)
            table.add_row(name, side + ("" if runs.agreed else " *"), *cells)
            name = ""
        cells = (_cell(result.ratio, m.key, 2) for m in shown)
        table.add_row("", "ratio", *cells, style="bold", end_section=True)
    return table


def as_markdown(table: Table) -> Table:
    """The table in Markdown, for README.md."""
    table.box, table.title, table.caption = box.MARKDOWN, None, None
    return table


def _cell(figures: Figures, key: str, decimals: int) -> str:
    return f"{figures[key]:,.{decimals}f}" if key in figures else ""


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
        "processor": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "kafka": KAFKA_VERSION,
        "load_average": [round(value, 2) for value in os.getloadavg()],
    }
