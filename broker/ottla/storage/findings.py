"""What the checks of a data directory find: `segment_checks`, `log_checks`, `log_dir_checks` report here."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

SAME_MAX = 10
"""Findings of one kind that are listed for a file; the rest are counted."""


class Finding(NamedTuple):
    path: Path
    at: str
    """Where in the file: `offset 12`, `byte 300`, `line 3`; empty for the file as a whole."""
    problem: str
    is_error: bool
    """Else a broker's start mends it, or no broker minds it."""

    def __str__(self) -> str:
        where = f"{self.at}: " if self.at else ""
        return f"{self.path}: {'' if self.is_error else 'note: '}{where}{self.problem}"


class Findings:
    """Collects findings, of one kind in one file no more than `SAME_MAX`."""

    def __init__(self) -> None:
        self._found: list[Finding] = []
        self._counts: Counter[tuple[Path, str]] = Counter()

    def add(self, path: Path, problem: str, *, at: str = "", kind: str = "", is_error: bool = True) -> None:
        """`kind` is what findings have in common whose text differs."""
        self._counts[path, kind or problem] += 1
        if self._counts[path, kind or problem] <= SAME_MAX:
            self._found.append(Finding(path, at, problem, is_error))

    def all(self) -> list[Finding]:
        more = [
            Finding(path, "", f"{count - SAME_MAX} more findings of this kind: {kind}", is_error=True)
            for (path, kind), count in self._counts.items()
            if count > SAME_MAX
        ]
        return self._found + more
