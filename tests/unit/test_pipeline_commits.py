"""The lake's commit protocol, on a plain folder: whenever the driver dies, each batch lands once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ottla_pipeline.filesystem import FileSystem
from ottla_pipeline.lake.commits import COMMITS_KEPT, Commit, CommitLog, Move
from ottla_pipeline.lake.manifest import NotALake, committed_files, read


class Crash(Exception):
    """The driver dies."""


class PlainFiles(FileSystem):
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
        return sorted(path.name for path in Path(directory).iterdir()) if self.exists(directory) else []

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
        if Path(path).is_dir():
            shutil.rmtree(path)
        else:
            Path(path).unlink(missing_ok=True)


def land(log: CommitLog, batch_id: int, attempt: int) -> None:
    """What the lake job does with a batch; Spark names its files anew in each attempt."""
    known = log.find(batch_id)
    if known is None:
        name = f"{batch_id:010d}"
        events, dead = log.stage(name)
        for folder in ("event_date=2013-01-01/topic=a", "event_date=2013-01-01/topic=b"):
            log.files.write(
                f"{events}/{folder}/part-{batch_id}-{attempt}.parquet", f"batch {batch_id} {folder}"
            )
            log.files.write(f"{events}/{folder}/.part-{batch_id}-{attempt}.parquet.crc", "checksum")
        log.files.write(f"{dead}/topic=a/part-{batch_id}-{attempt}.parquet", f"batch {batch_id} dead")
        known = Commit("query", batch_id, 2, 1, log.moves(name), sequence=log.next_sequence(), lake=log.lake)
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
        tmp_path / "lake" / "event_date=2013-01-01" / "topic=a" / "part-7-0.parquet"
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
    schema = {"type": "struct", "fields": []}
    commit = Commit("query", 3, 10, 2, (Move("/a/_staging/x", "/a/x"),), ("/a/y",), schema, sequence=4)
    assert Commit.from_json(commit.to_json()) == commit


def test_a_commit_of_the_first_format_is_read() -> None:
    text = '{"query_id":"q","batch_id":3,"events":1,"dead_letters":0,"moves":[{"source":"a","target":"b"}]}'
    found = Commit.from_json(text)
    assert (found.name, found.moves, found.removes) == ("0000000003", (Move("a", "b"),), ())


def compact(log: CommitLog, attempt: int) -> None:
    """What a compaction does: one file for those of topic a. Nothing if a former attempt has done it."""
    log.recover()
    old = [str(Path(log.lake, f)) for f in read(log.lake).files() if "topic=a" in f]
    if len(old) < 2:
        return
    commit = Commit("query", None, 0, 0, (), kind="compaction", sequence=log.next_sequence(), lake=log.lake)
    events, _ = log.stage(commit.name)
    text = "\n".join(sorted(Path(path).read_text() for path in old))
    log.files.write(f"{events}/event_date=2013-01-01/topic=a/whole-{attempt}.parquet", text)
    made = replace(commit, moves=log.moves(commit.name), removes=tuple(old))
    log.commit(made)
    log.publish(made)


def followed(lake: Path) -> list[str]:
    """The lines in the files that the manifest names."""
    return sorted(line for path in committed_files(lake) for line in Path(path).read_text().splitlines())


def landed_batches(folder: Path, count: int) -> list[str]:
    log = CommitLog(PlainFiles(), str(folder / "lake"), str(folder / "dead"))
    for batch in range(count):
        land(log, batch, attempt=0)
    return sorted(f"batch {n} event_date=2013-01-01/topic={topic}" for n in range(count) for topic in "ab")


def test_readers_of_the_manifest_see_each_row_once_wherever_a_compaction_dies(tmp_path: Path) -> None:
    whole = landed_batches(tmp_path / "model", 3)
    files = PlainFiles()
    compact(CommitLog(files, str(tmp_path / "model" / "lake"), str(tmp_path / "model" / "dead")), 0)
    assert files.changes >= 7
    for dies_at in range(files.changes):
        folder = tmp_path / str(dies_at)
        landed_batches(folder, 3)
        dying = CommitLog(PlainFiles(dies_at), str(folder / "lake"), str(folder / "dead"))
        with pytest.raises(Crash):
            compact(dying, 0)
        assert followed(folder / "lake") == whole, f"death at change {dies_at}"
        log = CommitLog(PlainFiles(), str(folder / "lake"), str(folder / "dead"))
        land(log, 2, attempt=1)  # the job is started anew, and runs its last batch again
        compact(log, 1)
        assert followed(folder / "lake") == whole, f"death at change {dies_at}"
        lines = sorted(line for text in visible(folder / "lake") for line in text.splitlines())
        assert lines == whole, f"death at change {dies_at}"


def test_the_log_is_folded_and_says_the_same_wherever_that_dies(tmp_path: Path) -> None:
    whole = landed_batches(tmp_path, COMMITS_KEPT + 3)
    root = (str(tmp_path / "lake"), str(tmp_path / "dead"))
    compact(CommitLog(PlainFiles(), *root), 0)
    land(CommitLog(PlainFiles(), *root), COMMITS_KEPT + 3, attempt=0)
    whole = sorted(
        [*whole, *(f"batch {COMMITS_KEPT + 3} event_date=2013-01-01/topic={topic}" for topic in "ab")]
    )
    dies_at = 0
    while True:
        try:
            CommitLog(PlainFiles(dies_at), *root).write_snapshot()
        except Crash:
            assert followed(tmp_path / "lake") == whole, f"death at change {dies_at}"
            dies_at += 1
            continue
        break
    assert dies_at >= 3
    log = CommitLog(PlainFiles(), *root)
    assert followed(tmp_path / "lake") == whole
    assert len(log.names()) == COMMITS_KEPT + 1
    assert log.find(0) is None
    assert log.find(COMMITS_KEPT + 3) is not None
    compact(log, 2)
    for batch in range(COMMITS_KEPT + 4, COMMITS_KEPT + 8):
        land(log, batch, attempt=0)
    log.write_snapshot()
    log.write_snapshot()
    assert len(list((tmp_path / "lake" / "_commits").glob("snapshot-*"))) == 1
    more = (
        f"batch {n} event_date=2013-01-01/topic={topic}"
        for n in range(COMMITS_KEPT + 4, COMMITS_KEPT + 8)
        for topic in "ab"
    )
    assert followed(tmp_path / "lake") == sorted([*whole, *more])


def test_a_lake_that_was_moved_is_followed_where_it_is(tmp_path: Path) -> None:
    whole = landed_batches(tmp_path / "here", 2)
    shutil.move(tmp_path / "here" / "lake", tmp_path / "there")
    assert followed(tmp_path / "there") == whole
    (change, _) = read(tmp_path / "there").changes
    assert (change.kind, change.batch_id, change.events, change.dead_letters) == ("batch", 0, 2, 1)
    assert change.files[0].startswith("event_date=2013-01-01/topic=")
    with pytest.raises(NotALake, match="is not a Parquet lake"):
        committed_files(tmp_path)
