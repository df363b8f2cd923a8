"""Maintenance of a lake: compaction, replay of dead letters, backfill. Killed anywhere, nothing is lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ottla_pipeline.errors import JobStartError
from ottla_pipeline.filesystem import FileSystem
from ottla_pipeline.jobs import backfill, lake, lake_compact, replay
from ottla_pipeline.jobs.lake import open_lake
from ottla_pipeline.lake import commits
from ottla_pipeline.lake.delta_sink import DeltaLake
from ottla_pipeline.lake.parquet_sink import ParquetLake
from ottla_pipeline.running import JobContext
from tests.judges.lake_line import SMALL, Line, create_topics

pytestmark = pytest.mark.timeout(600)
NUMBERS = count()
LOOSE = {"type": "json", "fields": "id STRING, event_time TIMESTAMP, n STRING, tags ARRAY<STRING>"}
COMPACT = {"minFiles": 2}
SPARK = (lake.SESSION, SMALL)


@pytest.fixture(params=["parquet", "delta-one"])
def line(request: pytest.FixtureRequest, bootstrap: str, tmp_path: Path) -> Line:
    return new_line(bootstrap, tmp_path, request.param)


def new_line(bootstrap: str, folder: Path, sink: str) -> Line:
    topics = (f"maintenance-{next(NUMBERS)}",)
    create_topics(bootstrap, topics)
    return Line(bootstrap, topics, folder, sink, {"compaction": COMPACT})


def run(job: Any, spark: SparkSession, line: Line, params: dict[str, Any], **changes: Any) -> str:
    """Runs one of the commands and returns its output."""
    output: list[str] = []
    assert job.run(JobContext(spark, output.append, params=params), line.config(**changes)) == 0
    return " ".join(output)


def visible(line: Line) -> list[Path]:
    """The data files that a listing of the folders shows."""
    root = line.folder / "lake"
    found = ((path, path.relative_to(root).parts) for path in root.rglob("*.parquet"))
    return [path for path, parts in found if not any(part[0] in "_." for part in parts)]


def test_small_files_are_compacted_without_changing_the_rows(line: Line, spark: SparkSession) -> None:
    for batch in range(2):
        line.produce(range(batch * 4, batch * 4 + 4))
        line.land(spark)
    before = sorted(line.rows(), key=lambda row: row["id"])
    output = run(lake_compact, spark, line, {})
    assert "2 small files became 1" in output
    assert sorted(line.rows(), key=lambda row: row["id"]) == before
    if line.sink == "parquet":
        assert len(visible(line)) == 1
    line.produce(range(8, 12), more={"nested": 1})
    line.land(spark)
    line.complete()
    assert "there are no small files" in run(lake_compact, spark, line, {}, compaction={"minFiles": 3})


class Killed(BaseException):
    """Nothing of ours may catch it."""


def test_a_compaction_that_is_killed_at_any_point_neither_loses_nor_duplicates_rows(
    bootstrap: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = new_line(bootstrap, tmp_path, "parquet")
    for batch in range(3):
        line.produce(range(batch * 4, batch * 4 + 4))
        line.land(spark)
    monkeypatch.setattr(commits, "COMMITS_KEPT", 1)  # so that there is something to fold
    lake, before = tmp_path / "lake", tmp_path / "before"
    shutil.copytree(lake, before)
    left: list[int] = []
    for dies_at in count():
        shutil.rmtree(lake)
        shutil.copytree(before, lake)  # at its own place: commits hold absolute paths
        if not compacted(line, spark, monkeypatch, dies_at):
            break
        line.complete()
        left.append(len(visible(line)))
        opened = open_lake(spark, line.config())
        assert isinstance(opened, ParquetLake)
        opened.check_owner()  # as the lake job begins
        line.complete()
        assert len(visible(line)) in (1, 3)
        opened.log.write_snapshot()
        line.complete()
    assert left[0] == 3, "nothing had happened"
    assert {4, 2} <= set(left), "it died before the first and before the last of the old files was deleted"
    assert left[-1] == 1, "only the log was left to fold"
    line.produce(range(12, 16))
    line.land(spark)
    assert "2 small files became 1" in run(lake_compact, spark, line, {})
    line.complete()
    assert len(visible(line)) == 1


def compacted(line: Line, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, dies_at: int) -> bool:
    """Compacts, and dies before the change of that number; whether it did."""
    changes = count()

    def counted(whole: Callable[..., Any]) -> Callable[..., Any]:
        def change(*given: Any) -> Any:
            if next(changes) >= dies_at:
                raise Killed
            return whole(*given)

        return change

    with monkeypatch.context() as patch:
        for name in ("write", "rename", "remove"):
            patch.setattr(FileSystem, name, counted(getattr(FileSystem, name)))
        try:
            run(lake_compact, spark, line, {})
        except Killed:
            return True
    return False


def test_replayed_dead_letters_are_written_once_and_marked(
    line: Line, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    line.produce(range(3), n=None)
    (topic,) = line.topics
    good = [json.dumps({"id": f"x{n}", "event_time": "2013-01-01T00:00:00Z", "tags": 3}) for n in range(3)]
    line.send(topic, [*(text.encode() for text in good), b"{"])
    line.land(spark)
    assert len(line.dead()) == 4
    params = {"reason": ("wrong type",), "topic": (), "to_topic": None}
    assert "3 dead letters tried: 0 landed, 3 still bad" in run(replay, spark, line, params)
    fixed = {"type": "json", "fields": "id STRING, event_time TIMESTAMP, n INT"}
    if line.sink != "parquet":
        with monkeypatch.context() as patch:
            patch.setattr(DeltaLake, "mark", _killed)
            with pytest.raises(Killed):
                run(replay, spark, line, params, format=fixed)
    assert "3 dead letters tried: 3 landed, 0 still bad" in run(replay, spark, line, params, format=fixed)
    line.produced += [f"x{n}" for n in range(3)]
    line.complete()
    params["reason"] = ()
    assert "1 dead letters tried: 0 landed, 1 still bad" in run(replay, spark, line, params, format=fixed)
    assert len(line.dead()) == 4
    line.complete()
    line.land(spark, format=fixed)
    line.complete()
    params["to_topic"] = topic
    assert "1 dead letters sent" in run(replay, spark, line, params, format=fixed)
    line.land(spark, format=fixed)
    assert [row["value"] for row in line.dead()].count(b"{") == 2


def _killed(*_: Any, **__: Any) -> None:
    raise Killed


def test_a_backfill_adds_each_missing_record_once_and_none_that_the_job_will_write(
    line: Line, spark: SparkSession
) -> None:
    params: dict[str, Any] = {"first": 0, "end": None, "topic": (), "partition": ()}
    with pytest.raises(JobStartError, match="has completed no batch yet"):
        run(backfill, spark, line, params)
    (topic,) = line.topics
    line.produce(range(10))
    line.send(topic, [b"bad"])
    line.land(spark, startingOffsets="latest")  # all of it is behind the job from the start
    line.produce(range(10, 14))
    line.land(spark, startingOffsets="latest")
    assert line.ids() == [f"e{n}" for n in range(10, 14)]
    early = len(line.produced)
    line.produce(range(14, 16))  # still before the job
    assert "offsets read" in run(backfill, spark, line, params | {"end": 2})
    some = len(line.ids())
    assert 4 < some < early
    output = run(backfill, spark, line, params | {"first": datetime(2000, 1, 1, tzinfo=UTC)})
    assert f"{early - some:,} events landed" in output
    assert len(line.dead()) == 1
    assert len(line.ids()) == early
    assert "0 events landed, 0 dead letters" in run(backfill, spark, line, params)
    line.land(spark)
    line.complete()
    with pytest.raises(JobStartError, match="--topic other"):
        run(backfill, spark, line, params | {"topic": ("other",)})
