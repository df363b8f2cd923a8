"""Copies of the source with a planted bug, and the search for it in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.simulation_bugs.catalogue import Bug

ROOT = Path(__file__).parents[2]
_PACKAGES = (Path("client/ottla"), Path("broker/ottla"))


@dataclass(frozen=True)
class Found:
    """The result of a search: the last seed that was run, and its violation, empty if there was none."""

    seed: int
    violation: str
    virtual_s: float
    real_s: float

    @property
    def reason(self) -> str:
        """The violation on one line."""
        text = self.violation.removeprefix("Violation: ")
        lines = text.splitlines()
        return lines[-1] if text.startswith("the simulation failed") else lines[0][:300] if lines else ""

    @property
    def invariant(self) -> str:
        """The name of the invariant that was violated."""
        return self.reason.partition(":")[0]


def copy_source(folder: Path) -> None:
    """Copy the packages of client and broker into a new folder."""
    for package in _PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))


def edited(bug: Bug, folder: Path) -> dict[Path, str]:
    """The files that a bug changes, with their new content. Raises ValueError if an edit does not apply."""
    texts: dict[Path, str] = {}
    for edit in bug.edits:
        path = folder / edit.path
        source = texts.get(path) or path.read_text(encoding="utf-8")
        if source.count(edit.old) != 1:
            raise ValueError(f"{bug.name}: {edit.path} has {source.count(edit.old)} times {edit.old!r}")
        texts[path] = source.replace(edit.old, edit.new)
    return texts


def plant(bug: Bug, folder: Path) -> None:
    """Apply a bug's edits to a copy of the source. Raises ValueError if one does not apply."""
    for path, text in edited(bug, folder).items():
        path.write_text(text, encoding="utf-8")


def search(folder: Path, bug: Bug, seeds: Sequence[int], limit_s: float) -> Found:
    """Run seeds in a copy of the source, until one fails."""
    wanted = {
        "seeds": list(seeds),
        "limit_s": limit_s,
        "seconds": bug.seconds,
        "workloads": bug.workloads,
    }
    script = Path(__file__).with_name("search.py")
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(wanted)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(folder / each.parent) for each in _PACKAGES),
            "PYTHONWARNINGS": "ignore",  # about coroutines of killed processes
        },
        stdout=subprocess.PIPE,
        check=True,
        stderr=subprocess.DEVNULL,
    )
    return Found(**json.loads(done.stdout))
