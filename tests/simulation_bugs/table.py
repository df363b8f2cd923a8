"""The table of docs/explanation/simulation-power.md: which seed finds which bug."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation_bugs.catalogue import BUGS
from tests.simulation_bugs.planting import ROOT

TABLE = ROOT / "docs/explanation/simulation-power.md"
_HEAD = """\
# What the simulation finds

How well the [simulation](simulation.md) finds bugs is measured: known bugs are planted, and it has to find
them.

`tests/simulation_bugs/catalogue.py` has bugs that Apache Kafka or this project had, each as a small change
of the source. `python -m tests.simulation_bugs all` plants each into a copy of the source, runs seeds from
1 to 1,000 until an invariant is violated, and writes this table. A seed counts only if the source without the
bug passes it. *Runs* is the number of seeds that were run. With `--directed` the search begins with the seeds
in whose runs the faults that provoke the bug prevail (its `faults` in the catalogue): then the seed is larger
than the number of runs. *Virtual seconds* is when the violation shows in that run; *real seconds* is the
search over all seeds before, on one core of a busy machine. The command for one row is
`python -m tests.simulation_bugs NAME --first SEED --seeds 1`. A change of the workloads or of the
faults changes what a seed does: a row from before it may need another seed, and `all` repeats the search.

| bug | taken from | mistake | expected | found by | workloads | seed | runs | virtual s | real s |
|---|---|---|---|---|---|--:|--:|--:|--:|
"""


@dataclass(frozen=True)
class Row:
    """What a search found."""

    invariant: str
    seed: int
    runs: int
    virtual_s: float
    real_s: float


def read_rows() -> dict[str, Row]:
    """The rows of the table by the bug's name."""
    rows = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines() if TABLE.exists() else ():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 10 and cells[0] in BUGS and cells[6] != "–":
            rows[cells[0]] = Row(cells[4], int(cells[6]), int(cells[7]), float(cells[8]), float(cells[9]))
    return rows


def write_rows(rows: dict[str, Row]) -> None:
    """Write the page, with a row for each bug of the catalogue."""
    TABLE.write_text(page(rows), encoding="utf-8")


def page(rows: dict[str, Row]) -> str:
    """The text of the page."""
    lines = []
    for bug in BUGS.values():
        row = rows.get(bug.name)
        found = (
            ("not found yet", "–", "–", "–", "–")
            if row is None
            else (row.invariant, str(row.seed), str(row.runs), f"{row.virtual_s:.1f}", f"{row.real_s:.0f}")
        )
        workloads = ", ".join(bug.workloads) or "by the seed"
        cells = (bug.name, bug.source, bug.mistake, bug.invariant, found[0], workloads, *found[1:])
        lines.append(f"| {' | '.join(cells)} |\n")
    return _HEAD + "".join(lines)
