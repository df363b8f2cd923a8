"""The lake job with real Spark on a real cluster, both sinks; read back by pyarrow and deltalake.

OTTLA_PIPELINE_BOOTSTRAP names another cluster to run them on (Apache Kafka's, say) in place of ours.
"""

from __future__ import annotations

import json
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from ottla_pipeline.errors import JobStartError
from ottla_pipeline.jobs import lake
from ottla_pipeline.lake.commits import CommitLog
from ottla_pipeline.lake.delta_sink import DeltaLake
from ottla_pipeline.running import JobContext
from tests.judges.lake_line import SMALL, Line, create_topics

pytestmark = pytest.mark.timeout(600)
NUMBERS = count()
SPARK = (lake.SESSION, SMALL, {"spark.sql.shuffle.partitions": "2"})
SINKS = ("parquet", "delta", "delta-one")


def new_line(bootstrap: str, folder: Path, sink: str) -> Line:
    number = next(NUMBERS)
    topics = (f"{folder.parent.name}-{number}.a", f"{folder.parent.name}-{number}.b")
    create_topics(bootstrap, topics)
    return Line(bootstrap, topics, folder, sink)


@pytest.fixture(params=SINKS)
def line(request: pytest.FixtureRequest, bootstrap: str, tmp_path: Path) -> Line:
    return new_line(bootstrap, tmp_path, request.param)


@pytest.fixture
def parquet(bootstrap: str, tmp_path: Path) -> Line:
    return new_line(bootstrap, tmp_path, "parquet")


BAD: list[tuple[bytes | None, str]] = [
    (None, "no value"),
    (b"", "not JSON"),
    (b"{", "not JSON"),
    (b"\xff\xfe", "not JSON"),
    (b'{"id":"x","event_time":"2013-01-01T00:00:00Z"}{"id":"y"}', "not JSON"),
    (b'{"id":"x"}],[{"id":"y"}', "not JSON"),
    (b"[1]", "not a JSON object"),
    (b"{}", "missing id"),
    (b'{"id":"","event_time":"2013-01-01T00:00:00Z"}', "missing id"),
    (b'{"id":"x"}', "missing event_time"),
    (b'{"id":17,"event_time":"2013-01-01T00:00:00Z"}', "wrong type: id is not string"),
    (b'{"id":"x","event_time":"yesterday"}', "wrong type: event_time is not timestamp"),
    (b'{"id":"x","event_time":1357000000}', "wrong type: event_time is not timestamp"),
    (b'{"id":"x","event_time":"99999-01-01T00:00:00Z"}', "event_time out of range"),
    (b'{"id":"x","event_time":"2013-01-01T00:00:00Z","n":"3"}', "wrong type: n is not int"),
    (b'{"id":"x","event_time":"2013-01-01T00:00:00Z","tags":"x"}', "wrong type: tags is not array<string>"),
]


def test_events_and_dead_letters_are_written_once_and_late_events_to_their_own_partition(
    line: Line, spark: SparkSession
) -> None:
    line.produce(range(10), day=2)
    line.send(line.topics[0], [value for value, _ in BAD], headers=[("h", b"v")])
    (said,) = line.land(spark)
    assert f"10 events landed, {len(BAD)} dead letters" in said
    line.produce(range(10, 20), day=1)  # a day late
    line.land(spark)
    line.complete()
    rows = line.rows()
    dates = {row["id"]: row["event_date"] for row in rows}
    assert dates == {f"e{n}": date(2013, 1, 2 if n < 10 else 1) for n in range(20)}
    assert {row["topic"] for row in rows} == set(line.topics)
    assert rows[0]["event_time"].date() == rows[0]["event_date"]
    places = {(row["topic"], row["kafka_partition"], row["kafka_offset"]) for row in rows}
    dead = line.dead()
    assert sorted([(row["value"], row["reason"]) for row in dead], key=repr) == sorted(BAD, key=repr)
    assert {row["topic"] for row in dead} == {line.topics[0]}
    assert all(row["headers"] == [{"key": "h", "value": b"v"}] and row["key"] == b"key" for row in dead)
    places |= {(row["topic"], row["partition"], row["offset"]) for row in dead}
    assert len(places) == 20 + len(BAD)
    assert line.land(spark) == []
    line.send(line.topics[1], [b"no event is in this batch"])
    (said,) = line.land(spark)
    assert "0 events landed, 1 dead letters" in said
    line.complete()


def test_a_new_field_adds_a_column_and_a_value_of_another_type_is_a_dead_letter(
    line: Line, spark: SparkSession
) -> None:
    line.produce(range(4))
    line.land(spark)
    wider = "id STRING, event_time TIMESTAMP, n BIGINT, tags ARRAY<STRING>, who STRUCT<name: STRING>"
    line.produce(range(4, 8), who={"name": "x"})
    topic = line.topics[0]
    line.send(topic, [b'{"id":"big","event_time":"2013-01-01T00:00:00Z","n":5000000000}'])
    line.land(spark, format={"type": "json", "fields": wider})
    line.complete()
    found = {row["id"]: row for row in line.rows()}
    assert found["e4"]["who"] == {"name": "x"}
    assert found["e0"]["who"] is None
    assert found["e7"]["n"] == 7
    conflicting = "id STRING, event_time TIMESTAMP, n STRING, who STRUCT<name: STRING, age: INT>"
    line.send(topic, [b'{"id":"s","event_time":"2013-01-01T00:00:00Z","n":"x"}'])
    line.produce(range(8, 9), n=None, who={"name": "y", "age": 3})
    line.land(spark, format={"type": "json", "fields": conflicting})
    line.complete()
    last = next(row for row in line.rows() if row["id"] == "e8")
    assert last["who"] == {"name": "y", "age": 3}
    assert last["n"] is None
    assert sorted(row["reason"] for row in line.dead()) == [
        "type conflict: n is bigint, the table has int",
        "type conflict: n is string, the table has int",
    ]


def test_a_lake_takes_no_batches_from_another_checkpoint(line: Line, spark: SparkSession) -> None:
    line.produce(range(4))
    line.land(spark)
    with pytest.raises(JobStartError, match="another checkpoint"):
        line.land(spark, checkpoint=str(line.folder / "other"))
    line.complete()
    assert line.dead() == []
    assert line.sink == "parquet" or DeltaTable.is_deltatable(line.folder / "dead"), "an audit reads it"


def test_invalid_columns_are_rejected_before_the_first_read(parquet: Line, spark: SparkSession) -> None:
    for fields, what in (
        ("id STRING", "lacks 'event_time'"),
        ("id INT, event_time TIMESTAMP", "'id' must be string"),
        ("id STRING, event_time TIMESTAMP, topic STRING", "'topic'"),
        ("not ddl at all, really", "no DDL"),
    ):
        config = parquet.config(format={"type": "json", "fields": fields})
        with pytest.raises(JobStartError, match=what):
            lake.start(JobContext(spark, print), config)


def test_topics_are_found_by_pattern_and_batches_are_limited(parquet: Line, spark: SparkSession) -> None:
    parquet.produce(range(20))
    pattern = {"topicPattern": parquet.topics[0].replace(".a", "[.][ab]")}
    said = parquet.land(spark, source=pattern, maxOffsetsPerTrigger=8)
    assert len(said) >= 3
    parquet.complete()


def dies(*_: Any, **__: Any) -> None:
    raise RuntimeError("the driver dies")


def test_an_uncommitted_batch_is_not_visible_and_is_written_by_the_next_run(
    parquet: Line, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet.produce(range(10))
    with monkeypatch.context() as patch:
        patch.setattr(CommitLog, "commit", dies)
        with pytest.raises(Exception, match="the driver dies"):
            parquet.land(spark)
    assert list((parquet.folder / "lake" / "_staging").rglob("*.parquet"))
    assert list((parquet.folder / "lake").glob("event_date=*")) == []
    assert parquet.rows() == []
    parquet.land(spark)
    parquet.complete()


def test_a_commit_is_visible_in_the_manifest_and_completed_after_a_crash(
    parquet: Line, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half_way(log: CommitLog, commit: Any) -> None:
        move = commit.moves[0]
        log.files.make_directories(move.target.rpartition("/")[0])
        log.files.rename(move.source, move.target)
        raise RuntimeError("the driver dies")

    parquet.produce(range(10))
    with monkeypatch.context() as patch:
        patch.setattr(CommitLog, "publish", half_way)
        with pytest.raises(Exception, match="the driver dies"):
            parquet.land(spark)
    assert len(list((parquet.folder / "lake").glob("event_date=*/*/*.parquet"))) == 1
    parquet.complete()
    parquet.land(spark)
    parquet.complete()
    assert list((parquet.folder / "lake" / "_staging").rglob("*.parquet")) == []


def test_a_delta_batch_that_failed_between_two_tables_is_decoded_as_before(
    bootstrap: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = new_line(bootstrap, tmp_path, "delta")
    line.produce(range(10))
    line.send(line.topics[0], [b'{"id":"x","event_time":"2013-01-01T00:00:00Z","n":"text"}'])
    with monkeypatch.context() as patch:
        patch.setattr(DeltaLake, "_append_dead", dies)
        with pytest.raises(Exception, match="the driver dies"):
            line.land(spark)
    # By the new columns the dead letter would be an event now, and its table has the batch already.
    line.land(spark, format={"type": "json", "fields": "id STRING, event_time TIMESTAMP, n STRING"})
    line.complete()
    assert [row["reason"] for row in line.dead()] == ["wrong type: n is not int"]


def test_the_manifest_names_the_files_of_each_batch(parquet: Line, spark: SparkSession) -> None:
    parquet.produce(range(10))
    parquet.land(spark)
    (commit,) = (parquet.folder / "lake" / "_commits").glob("*.json")
    raw = json.loads(commit.read_text())
    assert (raw["format"], raw["events"], raw["dead_letters"], raw["kind"]) == (2, 10, 0, "batch")
    assert [field["name"] for field in raw["schema"]["fields"]] == ["id", "event_time", "n", "tags"]


def test_writers_share_the_partitions_of_a_topic(bootstrap: str, tmp_path: Path, spark: SparkSession) -> None:
    # Shares go to tasks by a hash of date, topic and number: this topic's two do not meet in one task.
    line = Line(bootstrap, ("writers",), tmp_path, "parquet")
    create_topics(bootstrap, line.topics)
    for partition in range(2):
        value = b'{"id":"p%d","event_time":"2013-01-01T00:00:00Z"}' % partition
        line.send(line.topics[0], [value], partition=partition)
    line.land(spark, sink={**line.raw()["sink"], "writersPerFolder": 2})
    assert line.ids() == ["p0", "p1"]
    assert len(list((tmp_path / "lake").glob("event_date=*/topic=*/*.parquet"))) == 2
