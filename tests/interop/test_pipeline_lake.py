"""The lake job with real Spark on a real cluster.

OTTLA_PIPELINE_BOOTSTRAP names another cluster to run them on (Apache Kafka's, say) in place of ours.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame, SparkSession

from ottla.local.cluster import run_admin
from ottla.local.ports import wait_until
from ottla_pipeline import split
from ottla_pipeline.commits import CommitLog
from ottla_pipeline.jobs import lake
from ottla_pipeline.schema import EventSchema, SchemaError
from ottla_pipeline.spark import JavaMissing, build_session, check_java

pytestmark = pytest.mark.timeout(600)
SCHEMA = EventSchema("id STRING, event_time TIMESTAMP, n INT, tags ARRAY<STRING>")
NUMBERS = count()


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    try:
        check_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    session = build_session("ottla-tests", extra=lake.session_settings())
    yield session
    session.stop()


@pytest.fixture(scope="module")
def bootstrap(request: pytest.FixtureRequest) -> str:
    elsewhere = os.environ.get("OTTLA_PIPELINE_BOOTSTRAP")
    return elsewhere or str(request.getfixturevalue("cluster").bootstrap)


@dataclass
class Line:
    """Two topics of their own, the folders of a job on them, and the ids that went in."""

    spark: SparkSession
    bootstrap: str
    topics: tuple[str, str]
    folder: Path
    produced: list[tuple[str, str, str]]

    def job(self) -> lake.LakeJob:
        return lake.LakeJob(
            bootstrap=self.bootstrap,
            lake=str(self.folder / "lake"),
            checkpoint=str(self.folder / "checkpoint"),
            dead_letters=str(self.folder / "dead"),
            topics=self.topics,
            schema=SCHEMA,
        )

    def land(self) -> lake.Landed:
        return lake.run(self.spark, self.job(), say=lambda _: None)

    def send(self, topic: str, values: list[bytes | None]) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "acks": "all", "enable.idempotence": True})
        for value in values:
            producer.produce(topic, value, b"key")
        assert producer.flush(90) == 0

    def produce(self, identities: range, *, day: int = 1) -> None:
        """Good events, alternating between the topics, one an hour."""
        for topic in self.topics:
            ids = [number for number in identities if self.topics[number % 2] == topic]
            made = [(topic, f"e{number}", f"2013-01-{day:02}T{number % 24:02}:00:00Z") for number in ids]
            self.produced += made
            bodies = ({"id": identity, "event_time": time, "n": 1} for _, identity, time in made)
            self.send(topic, [json.dumps(body).encode() for body in bodies])

    def landed_ids(self) -> list[str]:
        return sorted(row["id"] for row in self.read("lake").select("id").collect())

    def read(self, folder: str) -> DataFrame:
        return self.spark.read.parquet(str(self.folder / folder))

    def parquet_files(self) -> list[Path]:
        """What any reader of the lake would open."""
        lake_folder = self.folder / "lake"
        return sorted(lake_folder.glob("event_date=*/topic=*/*.parquet"))

    def ids(self) -> list[str]:
        return sorted(identity for _, identity, _ in self.produced)


def known_to(address: str, topics: Sequence[str]) -> bool:
    """Whether this very broker says who leads the topics' partitions."""
    host, _, port = address.rpartition(":")
    found = run_admin([(host, int(port))], lambda client: client.describe_topics(topics))
    return found.keys() == set(topics) and all(p.leader >= 0 for t in found.values() for p in t.partitions)


@pytest.fixture
def line(spark: SparkSession, bootstrap: str, tmp_path: Path) -> Line:
    number = next(NUMBERS)
    topics = (f"{tmp_path.parent.name}-{number}.a", f"{tmp_path.parent.name}-{number}.b")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, 2, 1) for topic in topics]).values():
        future.result(90)
    for address in bootstrap.split(","):  # who reads may ask any of them
        assert wait_until(lambda one=address: known_to(one, topics), timeout_s=90), f"{address} knows of them"
    return Line(spark, bootstrap, topics, tmp_path, [])


def test_events_land_typed_and_partitioned_by_date_and_topic(line: Line) -> None:
    line.produce(range(10), day=1)
    line.produce(range(10, 20), day=2)
    assert line.land().events == 20
    assert line.landed_ids() == line.ids()
    rows = line.read("lake")
    assert dict(rows.dtypes)["event_time"] == "timestamp"
    assert dict(rows.dtypes)["tags"] == "array<string>"
    assert {(str(r["event_date"]), r["topic"]) for r in rows.select("event_date", "topic").collect()} == {
        (f"2013-01-0{day}", topic) for day in (1, 2) for topic in line.topics
    }


BAD: list[tuple[bytes | None, str]] = [
    (None, "no value"),
    (b"", "not JSON"),
    (b"{", "not JSON"),
    (b"\xff\xfe", "not JSON"),
    (b'{"id":"x","event_time":"2013-01-01T00:00:00Z"}{"id":"y"}', "not JSON"),
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


def test_what_is_no_event_goes_to_the_dead_letters_with_reason_and_origin(line: Line) -> None:
    line.produce(range(4))
    line.send(line.topics[0], [value for value, _ in BAD])
    landed = line.land()
    assert (landed.events, landed.dead_letters) == (4, len(BAD))
    assert line.landed_ids() == line.ids()
    dead = line.read("dead").orderBy("offset").collect()
    told = [(bytes(r["value"]) if r["value"] is not None else None, r["reason"]) for r in dead]
    assert sorted(told, key=repr) == sorted(BAD, key=repr)
    assert {r["topic"] for r in dead} == {line.topics[0]}
    assert len({(r["partition"], r["offset"]) for r in dead}) == len(BAD)


def test_a_second_run_lands_what_is_new_and_nothing_else(line: Line) -> None:
    line.produce(range(10))
    line.land()
    assert line.land().events == 0
    line.produce(range(10, 30))
    assert line.land().events == 20
    assert line.landed_ids() == line.ids()


def test_readers_see_nothing_of_a_batch_that_was_not_committed(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        raise RuntimeError("the driver dies before the commit")

    line.produce(range(10))
    with monkeypatch.context() as patch:
        patch.setattr(CommitLog, "commit", die)
        with pytest.raises(Exception, match="dies before the commit"):
            line.land()
    assert line.parquet_files() == []
    assert list((line.folder / "lake" / "_staging").rglob("*.parquet"))
    assert line.land().events == 10
    assert line.landed_ids() == line.ids()


def test_a_commit_is_published_to_the_end_after_a_crash(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = CommitLog.publish

    def die_half_way(log: CommitLog, commit: Any) -> None:
        for move in commit.moves[:1]:
            log.files.make_directories(move.target.rpartition("/")[0])
            log.files.rename(move.source, move.target)
        raise RuntimeError("the driver dies while publishing")

    line.produce(range(10))
    with monkeypatch.context() as patch:
        patch.setattr(CommitLog, "publish", die_half_way)
        with pytest.raises(Exception, match="dies while publishing"):
            line.land()
    assert CommitLog.publish is whole
    assert len(line.parquet_files()) == 1
    line.land()
    assert line.landed_ids() == line.ids()


def test_a_lake_takes_no_batches_from_another_checkpoint(line: Line) -> None:
    line.produce(range(4))
    line.land()
    other = replace(line.job(), checkpoint=str(line.folder / "other"))
    with pytest.raises(lake.LakeRefused, match="another checkpoint"):
        lake.run(line.spark, other, say=lambda _: None)
    assert line.landed_ids() == line.ids()


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        (EventSchema("id STRING"), "lack 'event_time'"),
        (EventSchema("id INT, event_time TIMESTAMP"), "'id' must be string"),
        (EventSchema("id STRING, event_time TIMESTAMP, topic STRING"), "'topic'"),
        (EventSchema("not ddl at all, really"), "no DDL"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(spark: SparkSession, schema: EventSchema, what: str) -> None:
    with pytest.raises(SchemaError, match=what):
        split.check(schema)
