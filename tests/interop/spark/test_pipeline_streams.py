"""`ottla_pipeline.streams` on real Spark and a real broker, held against plain Python: what the page's
examples (test_pipeline_streams_docs) are too small to show."""

from __future__ import annotations

import json
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from ottla.local.processes import wait_until
from ottla_pipeline import streams
from ottla_pipeline.config.common import validate
from ottla_pipeline.errors import JobStartError
from ottla_pipeline.jobs.python import PythonConfig
from ottla_pipeline.running import await_queries
from ottla_pipeline.sinks.transactional import TransactionalWriter
from ottla_pipeline.streams import writing
from tests.judges.postgres import PASSWORD, PostgreSql, postgresql
from tests.judges.python_jobs import create_topics, produce, read_committed

pytestmark = pytest.mark.timeout(600)
SPARK = (writing.SESSION, {"spark.sql.shuffle.partitions": "1"})
BASE = datetime(2024, 1, 5, tzinfo=UTC)
WAIT_S = 240.0


@pytest.fixture
def job(spark: SparkSession, bootstrap: str, tmp_path: Path, request: pytest.FixtureRequest) -> streams.Job:
    """Topics of the test's own begin with its name."""
    raw = {
        "name": tmp_path.name,
        "kafka": {"bootstrap": bootstrap},
        "checkpoint": str(tmp_path / "checkpoint"),
        "trigger": getattr(request, "param", {"availableNow": True}),
        "function": "unused:unused",
    }
    return streams.Job(spark, validate(raw, PythonConfig, "test"))


def finish(job: streams.Job) -> None:
    """Waits for the end of its queries; then it may start others."""
    try:
        assert await_queries(job.queries, Event())
    finally:
        job.close()
        job.queries.clear()
        job.sinks.clear()


def fail(job: streams.Job, said: str) -> None:
    with pytest.raises(StreamingQueryException, match=said):
        finish(job)


# ---- tables that change while a stream is joined with them

KINDS = ("topic", "delta", "iceberg", "sqlite", "postgresql")


@pytest.fixture(scope="module")
def database() -> Iterator[PostgreSql]:
    with postgresql() as server:
        server.execute("CREATE TABLE prices (item text PRIMARY KEY, postgresql int)")
        yield server


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "shop.db", timeout=60)) as connection:
        yield connection


@pytest.mark.parametrize("job", [{"interval": "100 milliseconds"}], indirect=True, ids=["follows"])
def test_each_batch_is_joined_with_the_tables_current_rows(
    job: streams.Job, bootstrap: str, tmp_path: Path, database: PostgreSql, shop: sqlite3.Connection
) -> None:
    create_topics(bootstrap, ["fresh.clicks", "fresh.out"])
    create_topics(bootstrap, ["fresh.prices"], partitions=2, **{"cleanup.policy": "compact"})
    shop.execute("CREATE TABLE prices (item TEXT, sqlite INT)")
    (tmp_path / "password").write_text(PASSWORD)
    catalog = "spark.sql.catalog.lake"
    job.spark.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
    job.spark.conf.set(f"{catalog}.type", "hadoop")
    job.spark.conf.set(f"{catalog}.warehouse", str(tmp_path / "warehouse"))
    job.spark.conf.set(f"{catalog}.cache-enabled", False)
    job.spark.sql("CREATE TABLE lake.shop.prices (item STRING, iceberg INT) USING iceberg")
    before: dict[str, int] = {}

    def change(prices: dict[str, int]) -> None:
        rows = sorted(prices.items())
        inserted = ", ".join(f"('{item}', {price})" for item, price in rows)
        job.spark.sql(f"INSERT OVERWRITE lake.shop.prices VALUES {inserted}")
        write_deltalake(
            tmp_path / "delta",
            pa.table(
                {"item": [item for item, _ in rows], "delta": pa.array([p for _, p in rows], pa.int32())}
            ),
            mode="overwrite",
        )
        with shop:
            shop.execute("DELETE FROM prices")
            shop.executemany("INSERT INTO prices VALUES (?, ?)", rows)
        values = "".join(f"INSERT INTO prices VALUES ('{item}', {price});" for item, price in rows)
        database.execute(f"DELETE FROM prices; {values}")
        gone = [(item, None) for item in before.keys() - prices.keys()]
        changed = [(item, {"topic": price}) for item, price in rows if before.get(item) != price]
        produce(bootstrap, "fresh.prices", [*gone, *changed])
        before.clear()
        before.update(prices)

    def found() -> list[dict[str, Any]]:
        rows = [value for _, value in read_committed(bootstrap, "fresh.out")]
        return sorted(rows, key=lambda row: str(row["id"]))

    expected: list[dict[str, Any]] = []
    phases = [{"a": 1, "b": 2}, {"a": 10, "c": 3}, {"a": 10, "b": 20, "c": 3}]
    change(phases[0])
    joined = job.read_topic("fresh.clicks", "id STRING, item STRING")
    url = f"jdbc:postgresql://{database.address}/shop"
    for table in (
        job.topic_table("fresh.prices", "topic INT", key="item"),
        streams.delta_table(job.spark, str(tmp_path / "delta")),
        streams.iceberg_table(job.spark, "lake.shop.prices"),
        streams.jdbc_table(job.spark, f"jdbc:sqlite:{tmp_path / 'shop.db'}", "prices"),
        streams.jdbc_table(job.spark, url, "prices", user="shop", password_file=str(tmp_path / "password")),
    ):
        joined = streams.join_table(joined, table, on=["item"], how="leftOuter")
    query = job.write(joined, job.topic_sink("fresh.out", key=["id"]))
    try:
        for number, prices in enumerate(phases):
            if number:
                change(prices)
            clicks = [{"id": f"{number}-{item}", "item": item} for item in ("a", "b", "c", None)]
            produce(bootstrap, "fresh.clicks", [(None, click) for click in clicks])
            expected += [
                {**click, **dict.fromkeys(KINDS, prices.get(click["item"] or ""))} for click in clicks
            ]
            wanted = len(expected)
            assert wait_until(
                lambda: len(found()) >= wanted or not query.isActive,  # noqa: B023
                timeout_s=WAIT_S,
                poll_s=0.2,
            )
            assert query.isActive, query.exception()
            assert found() == sorted(expected, key=lambda row: row["id"])
    finally:
        query.stop()
        job.close()


def test_a_topic_is_a_table_of_the_last_record_of_each_key(
    job: streams.Job, bootstrap: str, tmp_path: Path
) -> None:
    topic = f"{tmp_path.name}.table"
    create_topics(bootstrap, [topic], partitions=3)
    chance, producer = random.Random(4), Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    last: dict[tuple[str, int], tuple[int, int | None]] = {}
    for number in range(300):
        key = None if number % 50 == 0 else f"k{chance.randrange(20)}"
        # Even keys move between partitions in their time; odd ones stay, and have timestamps in no order.
        moves = key is not None and int(key[1:]) % 2 == 0
        partition = number // 100 if moves else 0
        stamp = 1_700_000_000_000 + (number if moves else chance.randrange(300))
        value = None if chance.random() < 0.3 else number
        body = None if value is None else json.dumps({"n": value})
        producer.produce(topic, body, key, partition=partition, timestamp=stamp)
        if key is not None:
            last[key, partition] = (stamp, value)
    assert producer.flush(60) == 0
    model: dict[str, tuple[int, int | None]] = {}
    for (key, _), (stamp, value) in last.items():
        model[key] = max(model.get(key, (0, None)), (stamp, value), key=lambda found: found[0])
    table = {row["k"]: row["n"] for row in job.topic_table(topic, "n INT", key="k").collect()}
    assert table == {key: value for key, (_, value) in model.items() if value is not None}
    assert 0 < len(table) < len(model), "some must be deleted, or nothing is tried"
    with pytest.raises(JobStartError, match="key: 'n' is also the name of a field"):
        job.topic_table(topic, "n INT", key="n")


def test_a_copy_of_a_topic_is_updated(job: streams.Job, bootstrap: str, tmp_path: Path) -> None:
    topic, path = f"{tmp_path.name}.table", str(tmp_path / "copy")
    create_topics(bootstrap, [topic], partitions=2, **{"cleanup.policy": "compact"})
    chance = random.Random(5)
    model: dict[str, int | None] = {}

    def change() -> None:
        """Keys change several times in one batch; some are deleted, and some of those come again."""
        changes = [(f"k{chance.randrange(15)}", chance.choice([None, n])) for n in range(100)]
        model.update(changes)
        records = [(key, None if value is None else {"n": value}) for key, value in changes]
        produce(bootstrap, topic, records)

    def copied() -> dict[str, int]:
        rows = DeltaTable(path).to_pyarrow_table().to_pylist()
        assert len({row["k"] for row in rows}) == len(rows), "a key is there twice"
        return {row["k"]: row["n"] for row in rows}

    def expected() -> dict[str, int]:
        return {key: value for key, value in model.items() if value is not None}

    every = job.config.model_copy(update={"trigger": streams.Trigger(interval="100 milliseconds")})
    follower = streams.Job(job.spark, every)
    for _ in range(2):  # the second goes on from the first's checkpoint
        change()
        table = follower.copy_topic(topic, "n INT", key="k", path=path)
        try:
            assert copied() == expected(), "it returns when the table holds what the topic held"
            change()
            assert wait_until(lambda: copied() == expected(), timeout_s=WAIT_S)
            assert {row["k"]: row["n"] for row in table.select("*").collect()} == expected()
        finally:
            follower.queries.pop().stop()
    assert 0 < len(expected()) < len(model), "some must be deleted, or nothing is tried"


def test_aborted_records_are_in_no_stream_and_no_table(
    job: streams.Job, bootstrap: str, tmp_path: Path
) -> None:
    topic, out = f"{tmp_path.name}.in", f"{tmp_path.name}.out"
    create_topics(bootstrap, [topic, out])
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": tmp_path.name})
    producer.init_transactions(60)
    for number, end in enumerate((producer.commit_transaction, producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(topic, json.dumps({"n": number}), "key")
        producer.flush(60)
        end(60)
    assert [row["n"] for row in job.topic_table(topic, "n INT", key="k").collect()] == [0]
    job.write(job.read_topic(topic, "n INT").select("n"), job.topic_sink(out))
    finish(job)
    assert read_committed(bootstrap, out) == [(None, {"n": 0})]


# ---- state


def test_repeated_rows_are_dropped_within_the_lateness(
    job: streams.Job, bootstrap: str, tmp_path: Path
) -> None:
    topic, out = f"{tmp_path.name}.in", f"{tmp_path.name}.out"
    create_topics(bootstrap, [topic, out])
    chance, delay, watermark = random.Random(6), 30, -1_000_000
    first: dict[str, int] = {}
    model: list[tuple[str | None, int]] = []
    late = 0
    for run in range(3):
        rows = []
        for _ in range(60):
            key = None if chance.random() < 0.1 else f"k{chance.randrange(25)}"
            rows.append((key, run * 25 + chance.randrange(80)))
        times = [(BASE + timedelta(seconds=second)).isoformat() for _, second in rows]
        produce(
            bootstrap,
            topic,
            [(None, {"id": key, "at": at}) for (key, _), at in zip(rows, times, strict=True)],
        )
        for key, second in rows:
            if second <= watermark:
                late += 1
            elif key is None or key not in first:
                model.append((key, second))
                if key is not None:
                    first[key] = second
        watermark = max(watermark, *(second - delay for _, second in rows))
        first = {key: second for key, second in first.items() if second + delay > watermark}
        stream = job.read_topic(topic, "id STRING, at TIMESTAMP", time="at")
        found = streams.deduplicate(stream, ["id"], time="at", lateness=f"{delay} seconds")
        job.write(found, job.topic_sink(out, key=["id"]))
        finish(job)
    assert late, "some must be late, or nothing is tried"
    assert len(model) > len({key for key, _ in model}) + 10, "some must come again after their time"
    written = [
        (value["id"], round((datetime.fromisoformat(value["at"]) - BASE).total_seconds()))
        for _, value in read_committed(bootstrap, out)
    ]
    assert Counter(written) == Counter(model)


def test_a_null_key_joins_nothing(job: streams.Job, bootstrap: str, tmp_path: Path) -> None:
    left, right, out = (f"{tmp_path.name}.{name}" for name in ("left", "right", "out"))
    create_topics(bootstrap, [left, right, out])
    at, end = "2024-01-05T10:00:00Z", "2024-01-05T20:00:00Z"
    for topic, name in ((left, "l"), (right, "r")):
        rows = [("k", at), (None, at), ("end", end)]
        produce(bootstrap, topic, [(None, {"key": key, name: name, f"{name}_at": t}) for key, t in rows])

    def side(topic: str, name: str) -> DataFrame:
        return job.read_topic(topic, f"key STRING, {name} STRING, {name}_at TIMESTAMP", time=f"{name}_at")

    pairs = streams.join_streams(
        side(left, "l"),
        side(right, "r"),
        on=["key"],
        time=("l_at", "r_at"),
        within=("-1 minute", "1 minute"),
        lateness=("1 minute", "1 minute"),
        how="fullOuter",
    )
    job.write(pairs.select("key", "l", "r"), job.topic_sink(out))
    finish(job)
    found = [(row["key"], row["l"], row["r"]) for _, row in read_committed(bootstrap, out)]
    expected = [("k", "l", "r"), ("end", "l", "r"), (None, "l", None), (None, None, "r")]
    assert sorted(found, key=str) == sorted(expected, key=str)


# ---- sinks


class Died(Exception):
    """Planted."""


@pytest.mark.parametrize("died", ["between two sinks", "after both, before Spark knew"])
def test_a_batch_that_was_interrupted_is_in_each_sink_once(
    job: streams.Job, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, died: str
) -> None:
    topic, out, table = f"{tmp_path.name}.in", f"{tmp_path.name}.out", str(tmp_path / "delta")
    create_topics(bootstrap, [topic, out])
    write = TransactionalWriter.write

    def die(topics: TransactionalWriter, *given: Any) -> int:
        if died.startswith("after"):
            write(topics, *given)
        raise Died(died)

    def run() -> None:
        rows = job.read_topic(topic, "n INT")
        job.write(rows, streams.DeltaSink(job.spark, table), job.topic_sink(out))

    for number in range(3):
        produce(bootstrap, topic, [(None, {"n": number})])
        with monkeypatch.context() as patch:
            patch.setattr(TransactionalWriter, "write", die)
            run()
            fail(job, died)
        run()
        finish(job)
    assert [value["n"] for _, value in read_committed(bootstrap, out)] == [0, 1, 2]
    assert sorted(DeltaTable(table).to_pyarrow_table()["n"].to_pylist()) == [0, 1, 2]


# ---- what is refused


def test_invalid_arguments_are_rejected_with_a_reason(
    job: streams.Job, spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    topic = f"{tmp_path.name}.in"
    create_topics(bootstrap, [topic])
    spark_, stream = job.spark, job.read_topic(topic, "id STRING, n INT, at TIMESTAMP", time="at")
    table = stream.sparkSession.createDataFrame([("a", 1)], "id STRING, n INT")
    refused: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (
            JobStartError,
            "time: when is not one of the fields",
            lambda: job.read_topic(topic, "id STRING", time="when"),
        ),
        (
            JobStartError,
            "id is string; it must be a timestamp",
            lambda: job.read_topic(topic, "id STRING", time="id"),
        ),
        (JobStartError, "no DDL", lambda: job.read_topic(topic, "id STRUNG")),
        (JobStartError, "format", lambda: job.read_topic(topic, {"type": "xml"})),
        (JobStartError, "needs the registry's url", lambda: job.read_topic(topic, {"type": "avro"})),
        (
            ValueError,
            "both sides of the join have a column 'n'",
            lambda: streams.join_table(stream, table, on=["id"]),
        ),
        (
            ValueError,
            "'key' is not a column of the left side",
            lambda: streams.join_table(stream, table, on=["key"]),
        ),
        (
            ValueError,
            "at least one column",
            lambda: streams.session(stream, "1 minute", {}, time="at", by=[]),
        ),
        (JobStartError, "is not a Delta table", lambda: streams.delta_table(spark_, str(tmp_path))),
        (JobStartError, "there is no catalog lake", lambda: streams.iceberg_table(spark_, "lake.shop.t")),
        (JobStartError, "driver", lambda: streams.jdbc_table(spark_, "jdbc:oracle:x", "t")),
    ]
    for kind, said, call in refused:
        with pytest.raises(kind, match=said):
            call()
    spark.conf.set("spark.sql.catalog.cached", "org.apache.iceberg.spark.SparkCatalog")
    try:
        with pytest.raises(JobStartError, match=r"set spark.sql.catalog.cached.cache-enabled to false"):
            streams.iceberg_table(spark, "cached.shop.t")
    finally:
        spark.conf.unset("spark.sql.catalog.cached")


def test_an_invalid_record_is_named_and_its_batch_is_not_written(
    job: streams.Job, bootstrap: str, tmp_path: Path
) -> None:
    topic, out = f"{tmp_path.name}.in", f"{tmp_path.name}.out"
    create_topics(bootstrap, [topic, out])
    produce(bootstrap, topic, [(None, {"n": 1}), (None, {"n": "many"}), (None, {"n": 3})])
    job.write(job.read_topic(topic, "n INT").select("n"), job.topic_sink(out))
    fail(job, rf"no event at {topic}-0-1: ")
    assert read_committed(bootstrap, out) == []
    dropped = job.read_topic(topic, "n INT", invalid="drop").select("n")
    job.write(dropped, job.topic_sink(out))
    finish(job)
    assert [value["n"] for _, value in read_committed(bootstrap, out)] == [1, 3]


def test_a_sink_accepts_batches_of_one_checkpoint_only(
    job: streams.Job, bootstrap: str, tmp_path: Path
) -> None:
    topic, out = f"{tmp_path.name}.in", f"{tmp_path.name}.out"
    create_topics(bootstrap, [topic, out])
    produce(bootstrap, topic, [(None, {"n": 1})])
    rows = job.read_topic(topic, "n INT").select(sf.col("n"))
    sinks: list[Callable[[], writing.Sink]] = [
        lambda: job.topic_sink(out),
        lambda: streams.DeltaSink(job.spark, str(tmp_path / "delta")),
        lambda: streams.ParquetSink(job.spark, str(tmp_path / "parquet")),
    ]
    job.write(rows, *(sink() for sink in sinks))
    with pytest.raises(ValueError, match="the job already has a query 'main'"):
        job.write(rows, job.topic_sink(out))
    finish(job)
    for number, sink in enumerate(sinks):
        job.write(rows, sink(), query=f"other-{number}")
        fail(job, "batches of another checkpoint")
