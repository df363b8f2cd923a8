"""The files of a Parquet lake, read from its commit log without Spark: for any reader.

    from ottla_pipeline.lake.manifest import committed_files
    pyarrow.dataset.dataset(committed_files("/data/lake"), partitioning=…)

A reader that lists folders may see some rows twice while a compaction replaces files; a reader of this list
never does. A listed file may be deleted before it is opened, if a compaction replaces it in between: list
again (`committed_files` returns its replacement) and read again.

The log is the folder `_commits`; docs/guides/pipeline/lake.md describes its format. Its paths are absolute on
the job's file system; a lake may be copied or mounted elsewhere, so only the part below its root counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMITS = "_commits"
SNAPSHOT = "snapshot-"
TRIES_MAX = 100


class NotALake(Exception):
    """There is no commit log; the message has the path."""


@dataclass(frozen=True, slots=True)
class Change:
    """One commit. `files` and `removed` are paths below the lake's root; `dead_letters` is a count of
    records.

    `kind` is batch (of the streaming query), added (by replay or backfill) or compaction, which adds no
    records: its `files` have the rows of its `removed`.
    """

    name: str
    kind: str
    sequence: int
    batch_id: int | None
    events: int
    dead_letters: int
    files: tuple[str, ...]
    removed: tuple[str, ...]
    staged: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """A lake at one moment: the files of its snapshot, and the later changes in their order."""

    snapshot_files: frozenset[str]
    removed: frozenset[str]
    changes: tuple[Change, ...]

    def files(self) -> list[str]:
        """The files that have the lake's rows, as paths below its root."""
        found = set(self.snapshot_files).union(*(change.files for change in self.changes))
        return sorted(found - self.removed.union(*(change.removed for change in self.changes)))


def read(lake: str | Path) -> Manifest:
    """The commit log of a lake in a local or mounted folder. Raises NotALake."""
    folder = Path(lake) / COMMITS
    if not folder.is_dir():
        raise NotALake(f"{folder} is not a folder: {lake} is not a Parquet lake of the lake job")
    return read_with(
        lambda: [path.name for path in folder.iterdir()], lambda name: (folder / name).read_text()
    )


def read_with(listed: Callable[[], list[str]], text: Callable[[str], str]) -> Manifest:
    """The commit log, read through the caller's functions: `listed` returns the names in the log's folder,
    `text` the content of one of them (raises FileNotFoundError if it was deleted)."""
    for _ in range(TRIES_MAX):
        names = _commits(listed())
        try:
            found = _read(names, text)
        except FileNotFoundError:
            continue
        # A listing may lack a file that was renamed meanwhile: a new snapshot, whose commits are deleted.
        if _snapshots(_commits(listed())) == _snapshots(names):
            return found
    raise NotALake("the commit log changes faster than it can be read")


def committed_files(lake: str | Path) -> list[str]:
    """Paths of the files that have a lake's rows, each row once. Raises NotALake."""
    root = Path(lake)
    found = read(root)
    staged = {
        file: at for change in found.changes for file, at in zip(change.files, change.staged, strict=True)
    }
    paths = []
    for file in found.files():
        path = root / file
        if not path.exists() and file in staged and (root / staged[file]).exists():
            path = root / staged[file]  # committed, and not yet moved to its target
        paths.append(str(path))
    return paths


def _commits(names: list[str]) -> list[str]:
    return sorted(name for name in names if name.endswith(".json") and not name.startswith("."))


def _snapshots(names: list[str]) -> list[str]:
    return [name for name in names if name.startswith(SNAPSHOT)][-1:]


def _read(names: list[str], text: Callable[[str], str]) -> Manifest:
    snapshot: dict[str, Any] = {"files": [], "removed": [], "covers": []}
    for name in _snapshots(names):
        snapshot = json.loads(text(name))
    covered = set(snapshot["covers"])
    changes = [
        _change(name.removesuffix(".json"), json.loads(text(name)))
        for name in names
        if not name.startswith(SNAPSHOT) and name.removesuffix(".json") not in covered
    ]
    return Manifest(
        frozenset(snapshot["files"]),
        frozenset(snapshot["removed"]),
        tuple(sorted(changes, key=lambda change: (change.sequence, change.name))),
    )


def _change(name: str, raw: dict[str, Any]) -> Change:
    # The first format lacks the root: there, a staged path begins with it.
    root = raw.get("lake") or next((m["source"].partition("/_staging/")[0] for m in raw["moves"]), "")
    inside = [m for m in raw["moves"] if m["target"].startswith(f"{root}/")]
    return Change(
        name=name,
        kind=raw.get("kind", "batch"),
        sequence=raw.get("sequence", 0),
        batch_id=raw["batch_id"],
        events=raw["events"],
        dead_letters=raw["dead_letters"],
        files=tuple(m["target"].removeprefix(f"{root}/") for m in inside),
        removed=tuple(path.removeprefix(f"{root}/") for path in raw.get("removes", ())),
        staged=tuple(m["source"].removeprefix(f"{root}/") for m in inside),
    )
