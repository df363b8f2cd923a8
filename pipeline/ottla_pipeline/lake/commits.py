"""The commit log of a Parquet lake: which files belong to the lake, and their atomic publication.

Called by the Parquet sink, its compaction, and the commands that add records; on the driver.
docs/guides/pipeline/lake.md documents the format for other readers, and `manifest` reads it without Spark.

A change has three steps:

1. `<root>/_staging/<name>/…`: Spark writes files here. Readers skip names that begin with an underscore.
2. `<lake>/_commits/<name>.json`: written under another name and renamed, so it is complete or absent. With
   this rename the change is committed. It lists every file, its target, and the files that it replaces.
3. The targets: each file is renamed to its target once; then the replaced files are deleted.

Invariants: a file is in a visible folder only if its change is committed; a change is committed at most
once; a committed change is never written again, its publication is only completed. So whenever the driver
dies, the repeated batch (Spark gives it the same number and the same offsets) either finds no commit and
starts over, or finds a commit and completes the renames. Commits have the id of the streaming query that
numbered the batches, because the numbers are unique in one query only: a lake belongs to one checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ottla_pipeline.filesystem import FileSystem
from ottla_pipeline.lake.manifest import COMMITS, SNAPSHOT

STAGING = "_staging"
REPLAYED = "_replayed"
FORMAT = 2
# This number of newest batches keep their commits at a snapshot: Spark may run the last batch again.
COMMITS_KEPT = 10


@dataclass(frozen=True, slots=True)
class Move:
    """A data file: its staged path and its target (both absolute)."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Commit:
    """One change of the lake. `batch_id` is None for all changes except batches of the streaming query.

    `schema` is the lake's schema after the change (Spark's JSON), so the newest commit has all columns;
    `removes` are the files (absolute) that this change replaces.
    """

    query_id: str
    batch_id: int | None
    events: int
    dead_letters: int
    moves: tuple[Move, ...]
    removes: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None
    kind: str = "batch"
    sequence: int = 0
    format: int = FORMAT
    lake: str = ""
    dead_letters_root: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Commit:
        raw = json.loads(text)
        read = {"moves": tuple(Move(**m) for m in raw["moves"]), "removes": tuple(raw.get("removes", ()))}
        return cls(**(raw | read))

    @property
    def name(self) -> str:
        """The name of its file, without the ending. Batches sort by their number."""
        return f"{self.batch_id:010d}" if self.batch_id is not None else f"{self.kind}-{self.sequence:010d}"


class CommitLog:
    """The commits of one lake. `lake` and `dead_letters` are the two roots that changes are published to."""

    def __init__(self, files: FileSystem, lake: str, dead_letters: str) -> None:
        self.files = files
        self.lake = files.absolute(lake)
        self.dead_letters = files.absolute(dead_letters)
        files.make_directories(f"{self.lake}/{COMMITS}")

    def _file(self, name: str) -> str:
        return f"{self.lake}/{COMMITS}/{name}.json"

    def names(self) -> list[str]:
        """The names of all commits that have a file of their own; batches first."""
        found = self.files.names(f"{self.lake}/{COMMITS}")
        mine = (name for name in found if name.endswith(".json") and not name.startswith((SNAPSHOT, ".")))
        return [name.removesuffix(".json") for name in mine]

    def read(self, name: str) -> Commit:
        return Commit.from_json(self.files.read(self._file(name)))

    def find(self, batch_id: int) -> Commit | None:
        name = f"{batch_id:010d}"
        return self.read(name) if self.files.exists(self._file(name)) else None

    def owner(self) -> str | None:
        """The id of the query whose batches are in this lake; None without commits."""
        names = self.names()
        return self.read(names[-1]).query_id if names else None

    def schemas(self) -> list[Mapping[str, Any]]:
        """The lake's schema (Spark's JSON) in the newest commit of each kind, the newest one last.

        They differ if two processes added fields at the same time: the lake has the fields of all of them.
        """
        commits = sorted(map(self.read, self._newest_names()), key=lambda commit: commit.sequence)
        return [commit.schema for commit in commits if commit.schema is not None]

    def _newest_names(self) -> list[str]:
        """The newest commit of each kind: numbers grow within a kind."""
        newest: dict[str, str] = {}
        for name in self.names():
            newest[name.rpartition("-")[0]] = name
        return list(newest.values())

    def next_sequence(self) -> int:
        """The next sequence number, higher than that of any commit."""
        return max((self.read(name).sequence for name in self._newest_names()), default=0) + 1

    def stage(self, name: str) -> tuple[str, str]:
        """Empty staging directories for a change's events and dead letters; they are not created yet."""
        staged = tuple(f"{root}/{STAGING}/{name}" for root in (self.lake, self.dead_letters))
        for path in staged:
            self.files.remove(path)
        return staged[0], staged[1]

    def moves(self, name: str) -> tuple[Move, ...]:
        """The targets of all files that are staged for a change."""
        found: list[Move] = []
        for root in (self.lake, self.dead_letters):
            staged = f"{root}/{STAGING}/{name}"
            for source in self.files.walk(staged):
                inside = source.removeprefix(staged)
                assert inside != source, f"{source} was listed below {staged}"
                parts = inside.strip("/").split("/")
                if parts[0] == REPLAYED:
                    parts = parts[1:]
                if not any(part.startswith(("_", ".")) for part in parts):
                    found.append(Move(source, root + inside))
        return tuple(found)

    def commit(self, commit: Commit) -> None:
        """Makes the change part of the lake; `publish` must follow."""
        path = self._file(commit.name)
        assert not self.files.exists(path), f"{commit.name} is committed already"
        part = f"{self.lake}/{COMMITS}/.{commit.name}.part"
        self.files.write(part, commit.to_json())
        self.files.rename(part, path)

    def publish(self, commit: Commit) -> None:
        """Moves the files of a committed change to their targets, unless they are there, and deletes the
        files that it replaces."""
        made: set[str] = set()
        for move in commit.moves:
            if self.files.exists(move.target):
                continue
            if not self.files.exists(move.source):  # it was published, and a later change replaced it
                assert move.target in self._removed(), f"{commit.name}: {move.source} is gone"
                continue
            directory = move.target.rpartition("/")[0]
            if directory not in made:
                self.files.make_directories(directory)
                made.add(directory)
            self.files.rename(move.source, move.target)
        for path in commit.removes:
            self.files.remove(path)
        self.stage(commit.name)

    def _removed(self) -> frozenset[str]:
        """The files that compactions removed, except those that a snapshot no longer lists."""
        compactions = (self.read(name) for name in self.names() if name.startswith("compaction-"))
        taken = {path for commit in compactions for path in commit.removes}
        _, snapshot = self._snapshot()
        return frozenset(taken | {f"{self.lake}/{path}" for path in snapshot["removed"]})

    def _snapshot(self) -> tuple[int, dict[str, Any]]:
        """The newest snapshot and its number; an empty one before the first."""
        found = self.files.names(f"{self.lake}/{COMMITS}")
        names = [name for name in found if name.startswith(SNAPSHOT) and name.endswith(".json")]
        if not names:
            return 0, {"files": [], "removed": [], "covers": []}
        number = int(names[-1].removeprefix(SNAPSHOT).removesuffix(".json"))
        return number, json.loads(self.files.read(f"{self.lake}/{COMMITS}/{names[-1]}"))

    def write_snapshot(self) -> int:
        """Replaces all but the newest commits by a snapshot; returns their number. The list of files stays
        the same for readers throughout.

        The snapshot is written first and names the commits that it covers; then these commits and the
        previous snapshot are deleted. All commits must have been published.
        """
        names = self.names()
        number, before = self._snapshot()
        self._drop(number, before["covers"])  # completes a snapshot whose process was killed
        kept = {*[name for name in names if name.isdecimal()][-COMMITS_KEPT:], *self._newest_names()}
        old = [name for name in names if name not in kept and name not in before["covers"]]
        if not old:
            return 0
        files, removed = set(before["files"]), set(before["removed"])
        for commit in map(self.read, old):
            targets = (move.target for move in commit.moves)
            files |= {self._inside(path) for path in targets if path.startswith(f"{self.lake}/")}
            removed |= {self._inside(path) for path in commit.removes}
        made = {"format": FORMAT, "files": sorted(files - removed), "removed": sorted(removed - files)}
        part = f"{self.lake}/{COMMITS}/.{SNAPSHOT}part"
        self.files.write(part, json.dumps(made | {"covers": old}, separators=(",", ":")))
        self.files.rename(part, f"{self.lake}/{COMMITS}/{SNAPSHOT}{number + 1:010d}.json")
        self._drop(number + 1, old)
        return len(old)

    def _drop(self, number: int, covered: list[str]) -> None:
        """Deletes the commits and the previous snapshot that a snapshot covers."""
        for name in (*covered, f"{SNAPSHOT}{number - 1:010d}"):
            self.files.remove(self._file(name))

    def _inside(self, path: str) -> str:
        return path.removeprefix(f"{self.lake}/")

    def recover(self) -> list[str]:
        """Completes the publication of changes whose process died after the commit; returns their names."""
        roots = (self.lake, self.dead_letters)
        staged = sorted({name for root in roots for name in self.files.names(f"{root}/{STAGING}")})
        found = [name for name in staged if self.files.exists(self._file(name))]
        for name in found:
            self.publish(self.read(name))
        return found
