"""The lake's commit protocol, on a plain folder: whenever the driver dies, each batch lands once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla_pipeline.commits import Commit, CommitLog, Files, Move


class Crash(Exception):
    """The driver dies."""


class PlainFiles(Files):
    """The file operations on a plain folder; dies before the change of which the number is given."""

    def __init__(self, dies_at: int | None = None) -> None:
        self.changes = 0
        self.dies_at = dies_at

    def _change(self) -> None:
        if self.changes == self.dies_at:
            raise Crash
        self.changes += 1

    def absolute(self, path: str) -> str:
        return str(Path(path).absolute())

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def names(self, directory: str) -> list[str]:
        return sorted(path.name for path in Path(directory).iterdir())

    def walk(self, directory: str) -> Iterator[str]:
        yield from sorted(str(path) for path in Path(directory).rglob("*") if path.is_file())

    def read(self, path: str) -> str:
        return Path(path).read_text()

    def write(self, path: str, text: str) -> None:
        self._change()
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)

    def make_directories(self, path: str) -> None:
        Path(path).mkdir(parents=True, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        self._change()
        Path(source).rename(target)

    def remove(self, path: str) -> None:
        self._change()
        shutil.rmtree(path, ignore_errors=True)


def land(log: CommitLog, batch_id: int, attempt: int) -> None:
    """What the lake job does with a batch; Spark names its files anew in each attempt."""
    known = log.find(batch_id)
    if known is None:
        events, dead = log.stage(batch_id)
        for folder in ("event_date=2013-01-01/topic=a", "event_date=2013-01-01/topic=b"):
            log.files.write(f"{events}/{folder}/part-{attempt}.parquet", f"batch {batch_id} {folder}")
            log.files.write(f"{events}/{folder}/.part-{attempt}.parquet.crc", "checksum")
        log.files.write(f"{dead}/topic=a/part-{attempt}.parquet", f"batch {batch_id} dead")
        known = Commit("query", batch_id, 2, 1, log.moves(batch_id))
        log.commit(known)
    log.publish(known)


def visible(*roots: Path) -> list[str]:
    """What is in the files that readers see: none of whose path begins with an underscore or a dot."""
    return sorted(
        path.read_text()
        for root in roots
        for path in root.rglob("*")
        if path.is_file() and not any(part[0] in "_." for part in path.relative_to(root).parts)
    )


WHOLE = [f"batch 7 event_date=2013-01-01/topic={topic}" for topic in "ab"]


def test_a_batch_lands_in_its_folders_without_what_readers_should_not_see(tmp_path: Path) -> None:
    log = CommitLog(PlainFiles(), str(tmp_path / "lake"), str(tmp_path / "dead"))
    land(log, 7, attempt=0)
    assert visible(tmp_path / "lake") == WHOLE
    assert visible(tmp_path / "dead") == ["batch 7 dead"]
    assert list((tmp_path / "lake" / "event_date=2013-01-01" / "topic=a").iterdir()) == [
        tmp_path / "lake" / "event_date=2013-01-01" / "topic=a" / "part-0.parquet"
    ]


def changes_of_a_batch(folder: Path) -> int:
    files = PlainFiles()
    land(CommitLog(files, str(folder / "lake"), str(folder / "dead")), 7, attempt=0)
    return files.changes


def test_a_batch_lands_once_whenever_the_driver_dies(tmp_path: Path) -> None:
    changes = changes_of_a_batch(tmp_path / "whole")
    assert changes > 10
    for dies_at in range(changes):
        lake, dead = tmp_path / f"{dies_at}" / "lake", tmp_path / f"{dies_at}" / "dead"
        log = CommitLog(PlainFiles(dies_at), str(lake), str(dead))
        with pytest.raises(Crash):
            land(log, 7, attempt=0)
        committed = log.find(7) is not None
        seen = visible(lake, dead)
        assert committed or not seen, f"death at change {dies_at} left files of an uncommitted batch in sight"
        assert len(set(seen)) == len(seen)
        land(CommitLog(PlainFiles(), str(lake), str(dead)), 7, attempt=1)
        assert visible(lake) == WHOLE, f"death at change {dies_at}"
        assert visible(dead) == ["batch 7 dead"]


def test_a_committed_batch_is_not_landed_again(tmp_path: Path) -> None:
    log = CommitLog(PlainFiles(), str(tmp_path / "lake"), str(tmp_path / "dead"))
    land(log, 7, attempt=0)
    land(log, 7, attempt=1)
    assert visible(tmp_path / "lake") == WHOLE


def test_a_lake_knows_whose_batches_it_holds(tmp_path: Path) -> None:
    log = CommitLog(PlainFiles(), str(tmp_path / "lake"), str(tmp_path / "dead"))
    assert log.owner() is None
    land(log, 0, attempt=0)
    assert log.owner() == "query"


def test_a_commit_survives_its_file() -> None:
    commit = Commit("query", 3, 10, 2, (Move("/a/_staging/x", "/a/x"),))
    assert Commit.from_json(commit.to_json()) == commit
