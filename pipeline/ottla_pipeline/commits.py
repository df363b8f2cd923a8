"""The lake's commit log: which files belong to which batch, and how they get to where readers look.

Called by the lake job alone, once per micro-batch, on the driver. Works on any Hadoop file system whose
rename of one file is atomic (local disks, HDFS).

A batch goes through three places:

1. `<root>/_staging/<batch>/…`: Spark writes here. Readers skip names that begin with an underscore.
2. `<lake>/_commits/<batch>.json`: written under another name and renamed, so it is there whole or not at all.
   From this moment the batch is committed. It lists every file, and where it has to go.
3. The files' own places: each is renamed there, once.

Invariants: a file is in a visible place only if its batch is committed; a batch is committed at most once;
a committed batch is never written again, only published to the end. So whenever the driver dies, the replay
of that batch (Spark gives it the same number and the same offsets) finds either no commit and starts over, or
a commit and finishes the renames. Commits carry the id of the streaming query that numbered the batches,
because numbers mean nothing without it: a lake belongs to one checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

STAGING = "_staging"
COMMITS = "_commits"


@dataclass(frozen=True, slots=True)
class Move:
    """One data file, from its staged path to its place (both absolute)."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Commit:
    """What one batch added to the lake."""

    query_id: str
    batch_id: int
    events: int
    dead_letters: int
    moves: tuple[Move, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Commit:
        raw = json.loads(text)
        return cls(**(raw | {"moves": tuple(Move(**move) for move in raw["moves"])}))


class Files:
    """The few operations needed of a Hadoop file system, through the session's JVM."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        self._conf: Any = spark.sparkContext._jsc.hadoopConfiguration()
        self._systems: dict[str, Any] = {}

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _of(self, path: str) -> Any:
        parts = urlsplit(path)
        root = f"{parts.scheme}://{parts.netloc}"
        if root not in self._systems:  # asking Hadoop again costs more than the renames themselves
            self._systems[root] = self._path(path).getFileSystem(self._conf)
        return self._systems[root]

    def absolute(self, path: str) -> str:
        """With scheme and without a trailing slash, as listings give it."""
        return str(self._of(path).makeQualified(self._path(path)).toString()).rstrip("/")

    def exists(self, path: str) -> bool:
        return bool(self._of(path).exists(self._path(path)))

    def names(self, directory: str) -> list[str]:
        """Names in a directory, sorted; none if it is not there."""
        if not self.exists(directory):
            return []
        return sorted(
            str(s.getPath().getName()) for s in self._of(directory).listStatus(self._path(directory))
        )

    def walk(self, directory: str) -> Iterator[str]:
        """Every file below a directory."""
        if not self.exists(directory):
            return
        files = self._of(directory).listFiles(self._path(directory), True)
        while files.hasNext():
            yield str(files.next().getPath().toString())

    def read(self, path: str) -> str:
        stream = self._of(path).open(self._path(path))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        stream = self._of(path).create(self._path(path), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def make_directories(self, path: str) -> None:
        self._of(path).mkdirs(self._path(path))

    def rename(self, source: str, target: str) -> None:
        if not self._of(source).rename(self._path(source), self._path(target)):
            raise OSError(f"cannot rename {source} to {target}")

    def remove(self, path: str) -> None:
        self._of(path).delete(self._path(path), True)


class CommitLog:
    """The commits of one lake. `lake` and `dead_letters` are the two roots that batches are published to."""

    def __init__(self, files: Files, lake: str, dead_letters: str) -> None:
        self.files = files
        self.lake = files.absolute(lake)
        self.dead_letters = files.absolute(dead_letters)
        files.make_directories(f"{self.lake}/{COMMITS}")

    def _file(self, batch_id: int) -> str:
        return f"{self.lake}/{COMMITS}/{batch_id:010d}.json"

    def find(self, batch_id: int) -> Commit | None:
        path = self._file(batch_id)
        return Commit.from_json(self.files.read(path)) if self.files.exists(path) else None

    def owner(self) -> str | None:
        """The id of the query whose batches are in this lake; None if it has no commit yet."""
        names = [name for name in self.files.names(f"{self.lake}/{COMMITS}") if name.endswith(".json")]
        return (
            Commit.from_json(self.files.read(f"{self.lake}/{COMMITS}/{names[-1]}")).query_id
            if names
            else None
        )

    def stage(self, batch_id: int) -> tuple[str, str]:
        """Empty staging directories for a batch's events and its dead letters, not yet made."""
        staged = tuple(f"{root}/{STAGING}/{batch_id:010d}" for root in (self.lake, self.dead_letters))
        for path in staged:
            self.files.remove(path)
        return staged[0], staged[1]

    def moves(self, batch_id: int) -> tuple[Move, ...]:
        """Where each file now staged for a batch has to go."""
        found: list[Move] = []
        for root in (self.lake, self.dead_letters):
            staged = f"{root}/{STAGING}/{batch_id:010d}"
            for source in self.files.walk(staged):
                inside = source.removeprefix(staged)
                assert inside != source, f"{source} was listed below {staged}"
                if not any(part.startswith(("_", ".")) for part in inside.split("/")):
                    found.append(Move(source, root + inside))
        return tuple(found)

    def commit(self, commit: Commit) -> None:
        """Makes the batch part of the lake; afterwards it must be published."""
        path = self._file(commit.batch_id)
        assert not self.files.exists(path), f"batch {commit.batch_id} is committed already"
        part = f"{self.lake}/{COMMITS}/.{commit.batch_id:010d}.part"
        self.files.write(part, commit.to_json())
        self.files.rename(part, path)

    def publish(self, commit: Commit) -> None:
        """Moves a committed batch's files to their places, if not there already; clears the staging."""
        made: set[str] = set()
        for move in commit.moves:
            directory = move.target.rpartition("/")[0]
            if directory not in made:
                self.files.make_directories(directory)
                made.add(directory)
            if not self.files.exists(move.target):
                self.files.rename(move.source, move.target)
        self.stage(commit.batch_id)
