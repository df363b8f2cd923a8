"""The windows job with real Spark and a real broker, held against a computation in plain Python.

OTTLA_PIPELINE_BOOTSTRAP names another cluster to run them on (Apache Kafka's, say) in place of ours.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import fastavro
import pyarrow.dataset as ds
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from confluent_kafka.schema_registry import Schema
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from ottla.local.processes import wait_until
from ottla_pipeline.config.common import validate
from ottla_pipeline.errors import JobStartError
from ottla_pipeline.filesystem import FileSystem
from ottla_pipeline.jobs import windows
from ottla_pipeline.lake.manifest import committed_files
from ottla_pipeline.running import JobContext, await_queries
from ottla_pipeline.sinks.transactional import TransactionalWriter
from ottla_pipeline.streams import writing
from ottla_pipeline.windowing.config import WindowsConfig
from tests.judges.registries import Registry
from tests.windows_model import Late, Moment, Results, Sessions, Total, Windows, total, windows_of

pytestmark = pytest.mark.timeout(600)
NUMBERS = count()
SPARK = (windows.SESSION, {"spark.sql.shuffle.partitions": "1"})
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BASE = 1_356_998_400_000  # 2013-01-01
FIELDS = "id STRING, time TIMESTAMP, key STRING, n INT"


def instant(ms: int) -> str:
    return (EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def millis(text: str) -> int:
    return round((datetime.fromisoformat(text) - EPOCH) / timedelta(milliseconds=1))


@dataclass
class Read:
    """One record of a topic, as a reader of committed records sees it."""

    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes]

    @property
    def body(self) -> dict[str, Any]:
        assert self.value is not None
        found = json.loads(self.value)
        assert isinstance(found, dict)
        return found


def read_all(bootstrap: str, topic: str) -> list[Read]:
    """Everything in a topic that is committed."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": "read_committed"}
        | {"enable.partition.eof": True, "auto.offset.reset": "earliest"}
    )
    try:
        partitions = consumer.list_topics(topic, 30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found, ended = [], 0
        while ended < len(partitions):
            message = consumer.poll(30)
            assert message is not None, f"{topic} has no end"
            if message.error() is not None:
                ended += 1
            else:
                found.append(Read(message.key(), message.value(), dict(message.headers() or ())))
        return found
    finally:
        consumer.close()


@dataclass
class Line:
    """Topics of their own for one job, and what it said."""

    spark: SparkSession
    bootstrap: str
    folder: Path
    name: str
    source_name: str
    said: list[str] = field(default_factory=list)

    def topic(self, what: str) -> str:
        return f"{self.source_name if what.startswith('in') else self.name}.{what}"

    def send(self, events: Sequence[Moment], what: str = "in") -> None:
        values = [
            json.dumps({"id": e.id, "time": instant(e.time), "key": e.key, "n": e.n}).encode() for e in events
        ]
        self.send_values(values, what)

    def send_values(self, values: Sequence[bytes], what: str = "in") -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True})
        for number, value in enumerate(values):
            producer.produce(self.topic(what), value, b"key", partition=number % 2)
        assert producer.flush(60) == 0

    def config(self, **given: Any) -> dict[str, Any]:
        return {
            "name": self.name,
            "kafka": {"bootstrap": self.bootstrap},
            "checkpoint": str(self.folder / "checkpoint"),
            "trigger": {"availableNow": True},
            "late": "deadLetter",
            "deadLetters": self.topic("dead"),
            "results": {"topic": {"topic": self.topic("out")}},
            **given,
        }

    def windowed(self, window: dict[str, Any], **given: Any) -> dict[str, Any]:
        aggregates = {"count": "count", "sum": {"sum": "n"}, "least": {"min": "n"}, "most": {"max": "n"}}
        return self.config(input=self.source(), window=window, keys=["key"], aggregates=aggregates, **given)

    def joined(self, kind: str) -> dict[str, Any]:
        within = {"from": "-2 seconds", "to": "1 second"}
        select = {"one": "left.id", "other": "right.id"}
        join = {"left": self.source(), "right": self.source("in2"), "keys": ["key"], "within": within}
        return self.config(join={**join, "kind": kind, "select": select})

    def pairs(self) -> list[tuple[str, str | None]]:
        """The pairs that the topic holds, as often as it does."""
        found = [record.body for record in read_all(self.bootstrap, self.topic("out"))]
        return sorted(((body["one"], body["other"]) for body in found), key=str)

    def source(self, what: str = "in", **given: Any) -> dict[str, Any]:
        return {
            "topics": [self.topic(what)],
            "format": {"type": "json", "fields": FIELDS},
            "time": "time",
            "watermark": "10 seconds",
            **given,
        }

    def start(self, raw: dict[str, Any]) -> list[Any]:
        config = validate(raw, WindowsConfig, "test")
        return list(windows.start(JobContext(self.spark, self.said.append), config))

    def run(self, raw: dict[str, Any]) -> list[dict[str, Any]]:
        """Runs the job until it has all there is; Spark's reports."""
        queries = self.start(raw)
        assert await_queries(queries, Event())
        return [json.loads(report.json) for report in queries[0].recentProgress]

    def results(self) -> Results:
        """What the topic holds; every window and key once."""
        found: Results = {}
        for record in read_all(self.bootstrap, self.topic("out")):
            window = _window(record.body)
            assert window not in found, f"{window} is there twice"
            assert record.key is not None
            assert _window(json.loads(record.key)) == window
            found[window] = _total(record.body)
        return found

    def rows(self) -> list[dict[str, Any]]:
        """What the table holds, as another reader than Spark sees it."""
        return DeltaTable(str(self.folder / "table")).to_pyarrow_table().to_pylist()

    def files(self) -> list[dict[str, Any]]:
        """What the Parquet lake holds, by its commit log."""
        found = ds.dataset(committed_files(self.folder / "table"), format="parquet", partitioning="hive")
        return [
            row | {"event_date": date.fromisoformat(row["event_date"])}
            for row in found.to_table().to_pylist()
        ]

    def table(self, rows: list[dict[str, Any]] | None = None) -> Results:
        found: Results = {}
        for row in self.rows() if rows is None else rows:
            start, end = (
                round((row[name] - EPOCH) / timedelta(milliseconds=1))
                for name in ("window_start", "window_end")
            )
            assert (start, end, row["key"]) not in found
            found[start, end, row["key"]] = _total(row)
            assert row["event_date"] == row["window_start"].date()
        return found

    def late(self) -> Late:
        """The dead letters' ids, with the windows that they were too late for; each once."""
        found: Late = {}
        for record in read_all(self.bootstrap, self.topic("dead")):
            assert record.headers["ottla-reason"] == b"late"
            assert record.body["id"] not in found, f"{record.body} is there twice"
            missed = json.loads(record.headers["ottla-missed"])
            found[record.body["id"]] = [(millis(start), millis(end)) for start, end in missed]
        return found


def _window(body: dict[str, Any]) -> tuple[int, int, str]:
    return millis(body["window_start"]), millis(body["window_end"]), body["key"]


def _total(body: dict[str, Any]) -> Total:
    return Total(body["count"], body["sum"], body["least"], body["most"])


Lines = Callable[..., Line]


def made_line(spark: SparkSession, bootstrap: str, folder: Path, source: str | None = None) -> Line:
    """A line of its own; its input may be that of another."""
    name = f"{folder.parent.name}-{next(NUMBERS)}"
    suffixes = ("out", "dead") if source else ("in", "in2", "out", "dead")
    topics = [NewTopic(f"{name}.{suffix}", 2, 1) for suffix in suffixes]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics(topics).values():
        future.result(60)
    return Line(spark, bootstrap, folder / name, name, source or name)


@pytest.fixture
def lines(spark: SparkSession, bootstrap: str, tmp_path: Path) -> Lines:
    return partial(made_line, spark, bootstrap, tmp_path)


def shuffled(chance: random.Random, size: int, *, since: int, span: int, prefix: str = "e") -> list[Moment]:
    """Records in no order over `span` milliseconds."""
    return [
        Moment(f"{prefix}{number}", BASE + since + chance.randrange(span), chance.choice("abc"), number)
        for number in range(size)
    ]


RUNS = [(0, 60_000), (30_000, 90_000), (0, 150_000)]


def test_windows_have_all_records_in_time_and_late_records_are_reported(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "COLLECTED_MAX", 10)  # so that some batches have many to tell of, some few
    chance = random.Random(8)
    tumbling = lines()
    tried: list[tuple[Line, dict[str, Any], Windows | Sessions]] = [
        (tumbling, {"tumbling": "5 seconds"}, Windows(5_000, 5_000, 10_000)),
        (
            lines(tumbling.name),
            {"sliding": {"size": "10 seconds", "slide": "4 seconds"}},
            Windows(10_000, 4_000, 10_000),
        ),
        (lines(tumbling.name), {"session": {"gap": "3 seconds"}}, Sessions(3_000, 10_000)),
    ]
    for number, (since, span) in enumerate(RUNS):
        moments = shuffled(chance, 60, since=since, span=span, prefix=f"{number}-")
        tumbling.send(moments)
        queries = []
        for line, window, model in tried:
            model.run(moments)
            queries += line.start(line.windowed(window))
        assert await_queries(queries, Event())
    for line, _, model in tried:
        assert model.late, "some must be late, or nothing is tried"
        assert line.results() == model.results
        assert line.late() == model.late
        reported = sum(
            int(found[1]) for said in line.said if (found := re.search(r"(\d+) of input late", said))
        )
        assert reported == len(model.late)


def send_disordered(line: Line, *sides: str) -> dict[str, list[Moment]]:
    """Sends records of which some are late to the inputs, and ends all windows; returns what was sent."""
    chance, sent = random.Random(12), {}
    for side in sides:
        moments = shuffled(chance, 240, since=0, span=120_000, prefix=f"{side}-")
        moments.sort(key=lambda moment: moment.time + chance.randrange(100_000))
        end = [Moment(f"{side}-end{number}", BASE + 3_600_000, "z", 0) for number in range(2)]
        sent[side] = [*moments, *end]
        line.send(sent[side], side)
    return sent


def test_every_record_is_counted_or_reported_late(lines: Lines) -> None:
    """The watermark moves from batch to batch; the results must hold whatever the batches were."""
    tumbling = lines()
    sliding, session = (lines(tumbling.name) for _ in range(2))
    sent = send_disordered(tumbling, "in")["in"]
    few = {"maxOffsetsPerTrigger": 60}
    slides = {"sliding": {"size": "10 seconds", "slide": "4 seconds"}}
    queries = [
        *tumbling.start(tumbling.windowed({"tumbling": "5 seconds"}, **few)),
        *sliding.start(sliding.windowed(slides, **few)),
        *session.start(session.windowed({"session": {"gap": "3 seconds"}}, **few)),
    ]
    assert await_queries(queries, Event())
    for line, size, slide in ((tumbling, 5_000, 5_000), (sliding, 10_000, 4_000)):
        late, held = line.late(), line.results()
        assert late
        missed = {(identity, window) for identity, windows in late.items() for window in windows}
        numbers: dict[tuple[int, int, str], list[int]] = {}
        for moment in sent[:-2]:
            for window in windows_of(moment.time, size, slide):
                if (moment.id, window) not in missed:
                    numbers.setdefault((*window, moment.key), []).append(moment.n)
        assert held == {window: total(found) for window, found in numbers.items()}
    late = session.late()
    assert late
    model = Sessions(3_000, 10_000)
    model.run(moment for moment in sent if moment.id not in late)
    assert session.results() == model.results


def test_every_record_is_joined_or_reported_late(lines: Lines) -> None:
    inner = lines()
    outer = lines(inner.name)
    sent = send_disordered(inner, "in", "in2")
    # Of each side: Spark's joins drop by the watermark of the batch before.
    few = {"maxOffsetsPerTrigger": 60}
    queries = [
        *inner.start(inner.joined("inner") | few),
        *outer.start(outer.joined("leftOuter") | few),
    ]
    assert await_queries(queries, Event())
    late = inner.late()
    assert late.keys() & {moment.id for moment in sent["in"]}
    kept = {side: [moment for moment in moments if moment.id not in late] for side, moments in sent.items()}
    pairs = {(one.id, other.id) for one in kept["in"] for other in kept["in2"] if belong(one, other)}
    assert inner.pairs() == sorted(pairs, key=str)
    late = outer.late()
    kept = {side: [moment for moment in moments if moment.id not in late] for side, moments in sent.items()}
    pairs = {(one.id, other.id) for one in kept["in"] for other in kept["in2"] if belong(one, other)}
    paired = {one for one, _ in pairs}
    alone = {(moment.id, None) for moment in kept["in"][:-2] if moment.id not in paired}
    assert alone
    assert outer.pairs() == sorted(pairs | alone, key=str)


def belong(one: Moment, other: Moment) -> bool:
    """Right records from 2 s before to 1 s after the left's time, of the same key."""
    return one.key == other.key and one.time - 2_000 <= other.time <= one.time + 1_000


class Died(Exception):
    """Planted."""


def test_a_batch_that_was_interrupted_is_written_once(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    line, model, chance = lines(), Windows(5_000, 5_000, 10_000), random.Random(9)
    both = {"topic": {"topic": line.topic("out")}, "lake": {"path": str(line.folder / "table")}}
    job = line.windowed({"tumbling": "5 seconds"}, results=both)
    write = TransactionalWriter.write

    def die_between(*_: Any) -> int:
        raise Died("after the table, before the topic")

    def die_afterwards(topics: TransactionalWriter, *given: Any) -> int:
        write(topics, *given)
        raise Died("after both, before Spark knows")

    for span, deaths in ((60_000, ()), (120_000, (die_between, die_afterwards))):
        moments = shuffled(chance, 60, since=0, span=span, prefix=f"{span}-")
        line.send(moments)
        model.run(moments)
        for die in deaths:
            with monkeypatch.context() as patch:
                patch.setattr(TransactionalWriter, "write", die)
                with pytest.raises(StreamingQueryException, match="Died"):
                    line.run(job)
        line.run(job)
    assert line.results() == model.results
    assert line.table() == model.results
    assert line.late() == model.late


def test_parquet_files_have_each_batch_once(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    line, model, chance = lines(), Windows(5_000, 5_000, 10_000), random.Random(14)
    to = {"lake": {"path": str(line.folder / "table"), "type": "parquet"}}
    job = line.windowed({"tumbling": "5 seconds"}, results=to)
    rename = FileSystem.rename

    def die_once_committed(files: FileSystem, source: str, target: str) -> None:
        if "/_staging/" in source:
            raise Died("committed, and not yet moved into sight")
        rename(files, source, target)

    for span in (60_000, 120_000):
        moments = shuffled(chance, 60, since=0, span=span, prefix=f"{span}-")
        line.send(moments)
        model.run(moments)
        with monkeypatch.context() as patch:
            patch.setattr(FileSystem, "rename", die_once_committed)
            with pytest.raises(StreamingQueryException, match="Died"):
                line.run(job)
        assert line.table(line.files()) == model.results, "committed is committed"
        line.run(job)
        assert line.table(line.files()) == model.results
    assert len(list((line.folder / "table").rglob("event_date=*/*.parquet"))) == 2, "and moved to its place"
    with pytest.raises(StreamingQueryException, match="batches of another checkpoint"):
        line.run(job | {"checkpoint": str(line.folder / "other")})


def test_joins_have_the_matching_pairs_and_release_their_state(lines: Lines) -> None:
    chance = random.Random(10)
    inner = lines()
    outer = lines(inner.name)
    kept: dict[str, list[Moment]] = {"in": [], "in2": []}
    late: dict[str, list[tuple[int, int]]] = {}
    watermark, latest = 0, {"in": 0, "in2": 0}
    runs = [(0, 60_000, 60), (30_000, 90_000, 60), (600_000, 1, 2)]
    rows_kept = []
    for number, (since, span, size) in enumerate(runs):
        for side in ("in", "in2"):
            moments = shuffled(chance, size, since=since, span=span, prefix=f"{side}-{number}-")
            inner.send(moments, side)
            for moment in moments:
                if moment.time <= watermark:
                    late[moment.id] = [(moment.time, moment.time)]
                else:
                    kept[side].append(moment)
            latest[side] = max([latest[side], *(moment.time for moment in moments)])
        watermark = min(latest.values()) - 10_000
        queries = [
            query
            for line, kind in ((inner, "inner"), (outer, "leftOuter"))
            for query in line.start(line.joined(kind))
        ]
        assert await_queries(queries, Event())
        rows_kept.append(queries[1].lastProgress["stateOperators"][0]["numRowsTotal"])
    pairs = {(one.id, other.id) for one in kept["in"] for other in kept["in2"] if belong(one, other)}
    alone = {(moment.id, None) for moment in kept["in"] if moment.time <= watermark} - {
        (one, None) for one, _ in pairs
    }
    assert pairs
    assert alone
    assert late
    assert inner.pairs() == sorted(pairs, key=str)
    assert outer.pairs() == sorted(pairs | alone, key=str)
    assert inner.late() == outer.late() == late
    assert (
        rows_kept[1] > rows_kept[2] == len([m for side in kept.values() for m in side if m.time > watermark])
    )


def test_updates_replace_earlier_results(lines: Lines) -> None:
    line, model, chance = lines(), Windows(60_000, 60_000, 10_000), random.Random(11)
    both = {"topic": {"topic": line.topic("out")}, "lake": {"path": str(line.folder / "table")}}
    job = line.windowed({"tumbling": "60 seconds"}, results=both, outputMode="updates")
    for number in range(2):
        moments = shuffled(chance, 30, since=0, span=120_000, prefix=f"{number}-")
        line.send(moments)
        model.run(moments)
        line.run(job)
    reported = read_all(line.bootstrap, line.topic("out"))
    last = {_window(record.body): _total(record.body) for record in reported}  # a key's records are in order
    everything = model.results | {window: total(numbers) for window, numbers in model.open.items()}
    assert len(reported) > len(last)
    assert last == everything
    assert line.table() == everything


def test_invalid_records_are_reported_and_do_not_advance_the_watermark(lines: Lines) -> None:
    line = lines()
    now = int(time.time() * 1000)
    ahead = Moment("ahead", now + 7_200_000, "a", 1)
    line.send([Moment("good", now, "a", 1), Moment("left out", now, "a", -1), ahead])
    line.send_values([b"{", b'{"id": "timeless", "key": "a", "n": 1}'])
    job = line.windowed({"tumbling": "5 seconds"})
    job["input"] |= {"where": "n > 0", "derive": {"twice": "n * 2"}}
    job["aggregates"]["sum"] = {"sum": "twice"}
    line.run(job)
    dead = read_all(line.bootstrap, line.topic("dead"))
    assert sorted(record.headers["ottla-reason"].decode() for record in dead) == [
        "missing time",
        "not JSON",
        "time is more than 1 hour after the record's timestamp",
    ]
    assert {json.loads(record.headers["ottla-origin"])["topic"] for record in dead} == {line.topic("in")}
    line.send([Moment("after", now + 30_000, "b", 1)])
    line.run(job)
    ((window, found),) = line.results().items()
    assert (window[2], found.count, found.sum) == ("a", 1, 2)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"time": "id"}, "input.time: id is string; it must be a timestamp"),
        ({"where": "nothing > 1"}, "input: .*nothing"),
        ({"derive": {"n": "1"}}, "input.derive: 'n' is the name of another column"),
    ],
)
def test_unsupported_spark_options_are_reported_before_the_first_read(
    lines: Lines, change: dict[str, Any], what: str
) -> None:
    line = lines()
    job = line.windowed({"tumbling": "5 seconds"})
    job["input"] |= change
    with pytest.raises(JobStartError, match=what):
        line.run(job)


def test_results_of_another_checkpoint_are_rejected(lines: Lines) -> None:
    line = lines()
    table = {"lake": {"path": str(line.folder / "table")}}
    job = line.windowed({"tumbling": "5 seconds"}, results={"topic": {"topic": line.topic("out")}, **table})
    line.send([Moment("a", BASE, "a", 1), Moment("b", BASE + 60_000, "a", 1)])
    line.run(job)
    no_topic = {"results": table, "late": "drop", "invalid": "drop", "deadLetters": None}
    for number, change in enumerate(({}, no_topic)):
        with pytest.raises(StreamingQueryException, match="batches of another checkpoint"):
            line.run(job | {"checkpoint": str(line.folder / f"other{number}")} | change)
    assert len(line.results()) == len(line.table()) == 1


ORDER = {"type": "record", "name": "Order", "namespace": "shop", "fields": []}
INSTANT = {"type": "long", "logicalType": "timestamp-millis"}
FIRST = ORDER | {"fields": [{"name": "at", "type": INSTANT}, {"name": "shop", "type": "string"}]}
SECOND = ORDER | {"fields": [*FIRST["fields"], {"name": "gift", "type": "boolean", "default": False}]}


def test_avro_is_read_and_written_and_new_schemas_are_used(
    lines: Lines, bootstrap: str, tmp_path: Path
) -> None:
    line = lines()
    with Registry(bootstrap, tmp_path) as registry:
        client = registry.client()
        job = line.windowed(
            {"tumbling": "5 seconds"},
            registry={"urls": [registry.url]},
            results={"topic": {"topic": line.topic("out"), "format": "avro"}},
            trigger={"interval": "100 milliseconds"},
        )
        job |= {"keys": ["shop"], "aggregates": {"orders": "count"}}
        job["input"] |= {"time": "at", "format": {"type": "avro"}}

        def send(schema: dict[str, Any], *orders: dict[str, Any]) -> None:
            number = client.register_schema(f"{line.topic('in')}-value", Schema(json.dumps(schema), "AVRO"))
            parsed, values = fastavro.parse_schema(dict(schema)), []
            for order in orders:
                body = io.BytesIO()
                fastavro.schemaless_writer(body, parsed, order)
                values.append(b"\0" + number.to_bytes(4, "big") + body.getvalue())
            line.send_values(values)

        def reported() -> set[tuple[str, int]]:
            found = set()
            for record in read_all(bootstrap, line.topic("out")):
                context = SerializationContext(line.topic("out"), MessageField.VALUE)
                body = AvroDeserializer(client)(record.value, context)
                found.add((body["shop"], body["orders"]))
            return found

        at = datetime(2013, 1, 1, tzinfo=UTC)
        send(FIRST, {"at": at, "shop": "a"}, {"at": at, "shop": "a"}, {"at": at + timedelta(60), "shop": "z"})
        stop, ended = Event(), ThreadPoolExecutor(1)
        following = ended.submit(await_queries, line.start(job), stop)
        try:
            assert wait_until(lambda: reported() == {("a", 2)} or following.done(), timeout_s=120)
            later = at + timedelta(90)
            send(SECOND, *({"at": later, "shop": "b", "gift": True} for _ in range(3)))
            send(SECOND, {"at": later + timedelta(60), "shop": "z", "gift": False})
            everything = {("a", 2), ("z", 1), ("b", 3)}
            assert wait_until(lambda: reported() == everything or following.done(), timeout_s=120), line.said
        finally:
            stop.set()
            following.result(60)
            ended.shutdown()
        assert read_all(bootstrap, line.topic("dead")) == []


class Killed:
    """A job of which one driver after the other is killed; the last test writes the rest."""

    def __init__(self, line: Line) -> None:
        self.line, self.chance = line, random.Random(15)
        self.moments = shuffled(self.chance, 600, since=0, span=300_000)
        # So some are late, some not.
        self.moments.sort(key=lambda moment: moment.time + self.chance.randrange(120_000))
        end = BASE + 3_600_000
        line.send([*self.moments, Moment("end", end, "z", 0), Moment("end2", end, "z", 0)])
        self.job = line.windowed(
            {"tumbling": "5 seconds"},
            maxOffsetsPerTrigger=60,
            spark={"settings": {"spark.sql.shuffle.partitions": "1"}},
        )
        line.folder.mkdir()
        self.file = line.folder / "windows.yaml"
        self.file.write_text(json.dumps(self.job | {"trigger": {"interval": "50 milliseconds"}}))


@pytest.fixture(scope="module")
def killed(spark: SparkSession, bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    return Killed(made_line(spark, bootstrap, tmp_path_factory.mktemp("killed")))


@pytest.mark.parametrize("and_java", [False, True])
def test_a_killed_driver_does_some_of_its_work_and_nothing_twice(killed: Killed, and_java: bool) -> None:
    """In the middle of its work: the first time Java notices by itself, the second time it dies as well."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla_pipeline.command", "windows", "--config", str(killed.file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        assert any("batch" in text for text in process.stdout), "it does some of its work"
        time.sleep(killed.chance.uniform(0, 3))  # a kill at any moment
    finally:
        (os.killpg if and_java else os.kill)(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    killed.line.results()  # asserts that no window is there twice
    killed.line.late()


def test_kills_at_any_moment_neither_lose_nor_duplicate_records(killed: Killed) -> None:
    line, moments = killed.line, killed.moments
    line.run(killed.job)
    results, late = line.results(), line.late()
    assert late
    per_window: Counter[tuple[int, int, str]] = Counter(
        {window: one.count for window, one in results.items()}
    )
    keys = {moment.id: moment.key for moment in moments}
    for identity, missed in late.items():
        per_window.update((start, end, keys[identity]) for start, end in missed)
    assert per_window == Counter((*windows_of(m.time, 5_000, 5_000)[0], m.key) for m in moments)
    assert sum(one.sum for one in results.values()) + sum(m.n for m in moments if m.id in late) == sum(
        m.n for m in moments
    )
