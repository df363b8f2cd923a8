"""What `make bench` shows in the end: one table, and the same as JSON with every run in it.

Called by `python -m bench`. Pure but for `machine`, which looks at what everything ran on.
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
from bench.figures import MEASURES, Figures, Taken, ratios
from bench.loads import Load

OURS, THEIRS = "Ottla", "Kafka"


@dataclass(frozen=True)
class Result:
    load: Load
    taken: Mapping[str, Taken]
    """By the side's name."""

    @property
    def ratio(self) -> dict[str, float]:
        return ratios(self.taken[OURS].median, self.taken[THEIRS].median)


def table(results: list[Result]) -> Table:
    """Medians of the measured runs, and our share of Kafka's."""
    shown = [m for m in MEASURES if any(m.key in r.taken[OURS].median for r in results)]
    made = Table(
        Column("load", no_wrap=True),
        Column("broker", no_wrap=True),
        *(Column(measure.title, justify="right") for measure in shown),
        title=f"Ottla beside Apache Kafka {KAFKA_VERSION}: medians",
        caption="* never had three warm-up runs that agreed within 10 %",
    )
    for result in results:
        name = result.load.name
        for which, taken in result.taken.items():
            cells = (_cell(taken.median, m.key, m.decimals) for m in shown)
            made.add_row(name, which + ("" if taken.agreed else " *"), *cells)
            name = ""
        cells = (_cell(result.ratio, m.key, 2) for m in shown)
        made.add_row("", "ratio", *cells, style="bold", end_section=True)
    return made


def as_markdown(made: Table) -> Table:
    """The same table as README.md takes it."""
    made.box, made.title, made.caption = box.MARKDOWN, None, None
    return made


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
                        "median": taken.median,
                        "samples": list(taken.samples),
                        "warm_runs": list(taken.warm),
                        "warm_runs_agreed": taken.agreed,
                    }
                    for name, taken in result.taken.items()
                },
                "ratio": result.ratio,
            }
            for result in results
        ],
    }


def machine() -> dict[str, Any]:
    """What the figures belong to, and how much else went on."""
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
