"""`python -m tests.simulation_bugs NAME…|all`: search for planted bugs, and write docs/simulation-power.md.

A seed counts only if the source without the bug passes it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.simulation_bugs.catalogue import BUGS, Bug
from tests.simulation_bugs.planting import Found, copy_source, plant, search
from tests.simulation_bugs.table import TABLE, Row, read_rows, write_rows


class Searcher:
    """Searches for bugs in copies of the source below a folder."""

    def __init__(self, folder: Path, seeds: int, limit_s: float) -> None:
        self._folder = folder
        self._seeds = seeds
        self._limit_s = limit_s
        self._sound = folder / "sound"
        copy_source(self._sound)
        self._checked: dict[tuple[int, Bug | None, float, tuple[str, ...]], str] = {}

    def search(self, bug: Bug, first: int) -> tuple[Found | None, int, float]:
        """(what was found, the number of seeds that were run, real seconds)."""
        planted = self._folder / bug.name
        copy_source(planted)
        plant(bug, planted)
        seed, real_s = first, 0.0
        while seed < first + self._seeds and real_s < self._limit_s:
            found = search(planted, bug, seed, first + self._seeds - seed, self._limit_s - real_s)
            real_s += found.real_s
            seed = found.seed + 1
            if found.violation:
                sound = search(self._sound, bug, found.seed, 1, self._limit_s)
                if not sound.violation:
                    return found, seed - first, real_s
                print(f"{bug.name}: seed {found.seed} fails without the bug, too: {sound.reason}")
        return None, seed - first, real_s


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation_bugs", description=__doc__)
    parser.add_argument("names", nargs="*", help="bugs; none: list them")
    parser.add_argument("--seeds", type=int, default=1000, help="the number of seeds for each bug")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--limit", type=float, default=3600.0, help="real seconds for each bug")
    parser.add_argument("--missing", action="store_true", help="only bugs without a row in the table")
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
        searcher = Searcher(Path(folder), options.seeds, options.limit)
        missed = 0
        for bug in chosen:
            found, seeds, real_s = searcher.search(bug, options.first)
            if found is None:
                missed += 1
                print(f"{bug.name}: not found by {seeds} seeds in {real_s:.0f} s", flush=True)
                continue
            print(f"{bug.name}: seed {found.seed}, {real_s:.0f} s: {found.reason}", flush=True)
            if not options.no_table:
                rows = read_rows()
                rows[bug.name] = Row(found.invariant, found.seed, found.virtual_s, real_s)
                write_rows(rows)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
