"""`python -m tests.simulation_bugs NAME…|all`: find planted bugs, write docs/explanation/simulation-power.md.

A seed counts only if the source without the bug passes it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ottla.simulation.runner import Plan, planned_faults
from tests.simulation_bugs.catalogue import BUGS, Bug
from tests.simulation_bugs.planting import Found, copy_source, plant, search
from tests.simulation_bugs.table import TABLE, Row, read_rows, write_rows


class Searcher:
    """Searches for bugs in copies of the source below a folder."""

    def __init__(self, folder: Path, limit_s: float, ignored: str) -> None:
        """`ignored` is a part of the violations of a known bug that do not count, empty for none."""
        self._ignored = ignored
        self._folder = folder
        self._limit_s = limit_s
        self._sound = folder / "sound"
        copy_source(self._sound)

    def search(self, bug: Bug, seeds: Sequence[int]) -> tuple[Found | None, int, float]:
        """(what was found, the number of seeds that were run, real seconds)."""
        planted = self._folder / bug.name
        copy_source(planted)
        plant(bug, planted)
        tried, real_s = 0, 0.0
        while tried < len(seeds) and real_s < self._limit_s:
            found = search(planted, bug, seeds[tried:], self._limit_s - real_s)
            real_s += found.real_s
            tried = seeds.index(found.seed) + 1
            if self._ignored and self._ignored in found.violation:
                continue
            if found.violation:
                sound = search(self._sound, bug, [found.seed], self._limit_s)
                if not sound.violation:
                    return found, tried, real_s
                print(f"{bug.name}: seed {found.seed} fails without the bug, too: {sound.reason}")
        return None, tried, real_s


def directed(bug: Bug, seeds: Sequence[int]) -> list[int]:
    """The seeds in the order of how much the faults that provoke the bug prevail in their runs."""

    def weight(seed: int) -> float:
        faults = planned_faults(Plan(seed, bug.seconds))
        provoking = [min(fault.duration_s, 5.0) for fault in faults if fault.kind in bug.faults]
        return sum(provoking) / (5 + len(faults) - len(provoking))

    return sorted(seeds, key=weight, reverse=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation_bugs", description=__doc__)
    parser.add_argument("names", nargs="*", help="bugs; none: list them")
    parser.add_argument("--seeds", type=int, default=1000, help="the number of seeds for each bug")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--limit", type=float, default=3600.0, help="real seconds for each bug")
    parser.add_argument("--missing", action="store_true", help="only bugs without a row in the table")
    parser.add_argument(
        "--directed",
        action="store_true",
        help="begin with the seeds that have most faults of the bug's kinds",
    )
    parser.add_argument("--ignore", default="", help="a part of the violations of a known bug")
    parser.add_argument("--no-table", action="store_true", help=f"do not write {TABLE.name}")
    options = parser.parse_args()
    rows = read_rows()
    chosen = list(BUGS.values()) if options.names == ["all"] else [BUGS[name] for name in options.names]
    if options.missing:
        chosen = [bug for bug in chosen if bug.name not in rows]
    if not chosen:
        for bug in BUGS.values():
            print(f"{bug.name}: {bug.mistake}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        searcher = Searcher(Path(folder), options.limit, options.ignore)
        missed = 0
        for bug in chosen:
            seeds: Sequence[int] = range(options.first, options.first + options.seeds)
            found, tried, real_s = searcher.search(bug, directed(bug, seeds) if options.directed else seeds)
            if found is None:
                missed += 1
                print(f"{bug.name}: not found by {tried} seeds in {real_s:.0f} s", flush=True)
                continue
            print(f"{bug.name}: seed {found.seed}, {real_s:.0f} s: {found.reason}", flush=True)
            if not options.no_table:
                rows = read_rows()
                rows[bug.name] = Row(found.invariant, found.seed, tried, found.virtual_s, real_s)
                write_rows(rows)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
