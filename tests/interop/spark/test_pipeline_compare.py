"""The compare job with real Spark and a real broker; the lake is written by pyarrow and deltalake."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from ottla_pipeline.completeness import broker_reader
from ottla_pipeline.completeness.comparison import ComparisonReport
from ottla_pipeline.jobs import compare
from tests.judges.one_broker import OneBroker

NUMBERS = count()
SPARK = (compare.SESSION,)


@dataclass
class Line:
    """Two topics of their own, a lake, and what went in."""

    spark: SparkSession
    bootstrap: str
    topics: tuple[str, str]
    folder: Path
    produced: list[tuple[str, str, str]] = field(default_factory=list)

    def send(self, topic: str, values: list[bytes]) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "acks": "all"})
        for value in values:
            producer.produce(topic, value, b"key")
        assert producer.flush(90) == 0

    def produce(self, numbers: range, *, day: int = 1) -> None:
        """Good events, alternating between the topics, one an hour, into the brokers and the lake."""
        for topic in self.topics:
            ids = [number for number in numbers if self.topics[number % 2] == topic]
            made = [(topic, f"e{number}", f"2013-01-{day:02}T{number % 24:02}:00:00Z") for number in ids]
            self.produced += made
            bodies = [{"id": identity, "event_time": time} for _, identity, time in made]
            self.send(topic, [json.dumps(body).encode() for body in bodies])
            self.land(topic, day, bodies)

    def table(self, bodies: list[dict[str, str]]) -> pa.Table:
        table = pa.Table.from_pylist(bodies)
        times = pa.compute.strptime(table["event_time"], "%Y-%m-%dT%H:%M:%SZ", "us").cast(
            pa.timestamp("us", "UTC")
        )
        return table.set_column(1, "event_time", times)

    def land(self, topic: str, day: int, bodies: list[dict[str, str]]) -> None:
        folder = self.folder / "lake" / f"event_date=2013-01-{day:02}" / f"topic={topic}"
        folder.mkdir(parents=True)
        pq.write_table(self.table(bodies), folder / "part-0.parquet")

    def parquet_files(self) -> list[Path]:
        return sorted((self.folder / "lake").glob("event_date=*/topic=*/*.parquet"))

    def config(self) -> compare.CompareConfig:
        manifest = self.folder / "manifest.jsonl"
        lines = (json.dumps({"topic": t, "id": i, "time": at}) for t, i, at in self.produced)
        manifest.write_text("".join(f"{line}\n" for line in lines))
        return compare.CompareConfig.model_validate(
            {
                "name": "test",
                "kafka": {"bootstrap": self.bootstrap},
                "manifest": str(manifest),
                "lake": str(self.folder / "lake"),
            }
        )

    def compare(self) -> ComparisonReport:
        return compare.compare(self.spark, self.config())


@pytest.fixture
def line(spark: SparkSession, broker: OneBroker, tmp_path: Path) -> Line:
    number = next(NUMBERS)
    topics = (f"{number}.a", f"{number}.b")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic(topic, 2, 1) for topic in topics]).values():
        future.result(90)
    return Line(spark, broker.bootstrap, topics, tmp_path)


def test_compare_passes_without_losses(line: Line) -> None:
    line.produce(range(40))
    report = line.compare()
    assert report.passed
    total = report.total()
    assert (total["produced"], total["brokers"]["held"], total["lake"]["held"]) == (40, 40, 40)


def test_compare_finds_a_loss_in_the_lake_by_topic_and_window(line: Line) -> None:
    line.produce(range(20), day=1)
    line.produce(range(20, 40), day=2)
    (planted,) = [p for p in line.parquet_files() if "2013-01-02" in str(p) and line.topics[1] in str(p)]
    gone = set(pq.ParquetFile(planted).read()["id"].to_pylist())
    planted.unlink()
    report = line.compare()
    assert not report.passed
    (window,) = report.windows(differing=True)
    assert (window["topic"], window["start"]) == (line.topics[1], "2013-01-02T00:00:00Z")
    assert (window["lake"]["missing"], window["brokers"]["missing"]) == (len(gone), 0)
    assert {sample.id for sample in report.samples} == gone


def test_compare_finds_copies_in_the_brokers_and_in_the_lake(line: Line) -> None:
    line.produce(range(20))
    topic, identity, time = line.produced[3]
    line.send(topic, [json.dumps({"id": identity, "event_time": time}).encode()])
    first = line.parquet_files()[0]
    first.with_name("copy.parquet").write_bytes(first.read_bytes())
    total = line.compare().total()
    assert (total["brokers"]["duplicated"], total["lake"]["duplicated"]) == (1, 10)
    assert (total["brokers"]["missing"], total["lake"]["missing"]) == (0, 0)


def test_compare_finds_missing_and_unexpected_records(line: Line) -> None:
    line.produce(range(10))
    topic = line.topics[0]
    line.produced.append((topic, "lost", "2013-01-05T00:00:00Z"))
    line.produced.remove((topic, "e0", "2013-01-01T00:00:00Z"))
    report = line.compare()
    total = report.total()
    assert (total["brokers"]["missing"], total["lake"]["missing"]) == (1, 1)
    assert (total["brokers"]["unexpected"], total["lake"]["unexpected"]) == (1, 1)
    found = {sample.id: (sample.produced, sample.brokers, sample.lake) for sample in report.samples}
    assert found == {"lost": (1, 0, 0), "e0": (0, 1, 1)}


def test_a_delta_table_is_read_by_its_log(line: Line) -> None:
    line.produce(range(10))
    rows = [{"id": i, "event_time": at} for _, i, at in line.produced]
    table = line.table(rows).append_column("topic", pa.array([topic for topic, _, _ in line.produced]))
    for _ in range(2):  # the files of the first version stay, and do not count any more
        write_deltalake(line.folder / "delta", table, partition_by=["topic"], mode="overwrite")
    config = line.config().model_copy(update={"lake": str(line.folder / "delta")})
    report = compare.compare(line.spark, config)
    assert report.passed
    assert report.total()["lake"]["held"] == 10


def test_every_offset_of_a_partition_is_read_by_itself(line: Line) -> None:
    line.produce(range(20))
    line.send(line.topics[0], [b"no json"])
    ranges = broker_reader.offset_ranges(line.bootstrap, [*line.topics, "not-there"], {})
    assert sum(part.end - part.start for part in ranges) == 21
    found = [
        event
        for part in ranges
        for event in broker_reader.read_range(part, line.bootstrap, "id", "event_time", {})
    ]
    assert sorted(event.id or "" for event in found) == sorted(["", *(i for _, i, _ in line.produced)])


def test_the_command_fails_on_a_difference_and_reports_it(line: Line) -> None:
    line.produce(range(4))
    line.parquet_files()[0].unlink()
    report, file = line.folder / "report.json", line.folder / "compare.yaml"
    config = line.config().model_copy(update={"report": str(report)})
    file.write_text(config.model_dump_json(by_alias=True, exclude_unset=True))
    command = [sys.executable, "-m", "ottla_pipeline.command", "compare", "--config", str(file)]
    found = subprocess.run(command, check=False, timeout=280, capture_output=True, text=True)
    assert found.returncode == 1, found.stderr
    assert "DIFFERENCES" in found.stdout
    assert json.loads(report.read_text())["total"]["lake"]["missing"] == 2


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ("no json\n", "cannot be read as JSON lines"),
        ('{"id": "1", "time": "2013-01-01T00:00:00Z"}\n', "1 lines have no id or no topic"),
        ("", "has no events"),
    ],
)
def test_an_unusable_manifest_is_rejected(line: Line, lines: str, what: str) -> None:
    config = line.config()
    Path(config.manifest).write_text(lines)
    with pytest.raises(compare.ManifestUnusable, match=what):
        compare.compare(line.spark, config)
