"""The audit job with real Spark, a real broker and audited producers: losses and copies, planted and found.

The oracle knows of each planted record by reading it beforehand, with confluent-kafka. OTTLA_AUDIT_RECORDS
says how many are sent in the great loss' test (a million takes a minute or two).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from ottla.local.processes import wait_until
from ottla_pipeline.auditing.confluent import AuditedProducer
from ottla_pipeline.auditing.reporting import AuditOptions
from ottla_pipeline.config.common import validate
from ottla_pipeline.errors import JobStartError
from ottla_pipeline.jobs import audit, audit_report, lake
from ottla_pipeline.lake.manifest import committed_files
from ottla_pipeline.lake.rows import produced_columns
from ottla_pipeline.running import JobContext
from ottla_pipeline.spark import JavaMissing, check_java
from tests.judges.lake_line import SMALL
from tests.judges.one_broker import OneBroker

RECORDS = int(os.environ.get("OTTLA_AUDIT_RECORDS", "100000"))
SPARK = (lake.SESSION, audit.SESSION, SMALL)
NUMBERS = count()
pytestmark = pytest.mark.timeout(600)
WINDOW_S = 2.0


class Line:
    """A topic with its audit topic, a mirror's topic, and the job's configuration over them."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        number = next(NUMBERS)
        self.bootstrap, self.folder = bootstrap, folder
        self.topic, self.copy, self.audit_topic = f"t{number}", f"eu.t{number}", f"audit{number}"
        admin = AdminClient({"bootstrap.servers": bootstrap})
        names = (self.topic, self.copy, self.audit_topic)
        for future in admin.create_topics([NewTopic(name, 2, 1) for name in names]).values():
            future.result(90)

    def producer(self) -> AuditedProducer:
        options = AuditOptions(topic=self.audit_topic, window_s=WINDOW_S, interval_s=1.0, server="web-17")
        return AuditedProducer({"bootstrap.servers": self.bootstrap, "linger.ms": 5}, audit=options)

    def send(self, records: int) -> None:
        with self.producer() as producer:
            for number in range(records):
                while True:
                    try:
                        producer.produce(self.topic, b"value %d" % number, b"%d" % number)
                        break
                    except BufferError:
                        producer.poll(0.1)
                if number % 1000 == 0:
                    producer.poll(0)

    def read(self, topic: str, partition: int, records: int) -> list[Any]:
        """The first records of a partition."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "oracle"})
        try:
            consumer.assign([TopicPartition(topic, partition, 0)])
            found: list[Any] = []
            while len(found) < records:
                messages = consumer.consume(records - len(found), timeout=30)
                assert messages, f"{topic}-{partition} has {len(found)} records, not {records}"
                found += messages
            return found
        finally:
            consumer.close()

    def held(self, topic: str) -> dict[int, tuple[int, int]]:
        """Each partition's first offset and its end."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "oracle"})
        try:
            return {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=30) for p in (0, 1)}
        finally:
            consumer.close()

    def wait_for_the_windows_end(self) -> None:
        """Until no window of what was sent is within its grace."""
        time.sleep(WINDOW_S + 1.1)  # the report of a job that has not begun depends on this machine's clock

    def raw(self, *tiers: dict[str, Any], **changes: Any) -> dict[str, Any]:
        return {
            "name": "test",
            "kafka": {"bootstrap": self.bootstrap},
            "checkpoint": str(self.folder / "checkpoint"),
            "topics": {"topics": [self.topic]},
            "auditTopic": self.audit_topic,
            "window": f"{WINDOW_S:.0f} seconds",
            "tiers": [{"grace": "1 second", **tier} for tier in tiers],
            "report": str(self.folder / "report"),
            "trigger": {"interval": "500 milliseconds"},
            **changes,
        }

    def audit(
        self, spark: SparkSession, *tiers: dict[str, Any], **changes: Any
    ) -> tuple[int, dict[str, Any]]:
        """The exit status of audit-report, and what its report says."""
        config = validate(self.raw(*tiers, **changes), audit_report.CONFIG, "test")
        code = audit_report.run(JobContext(spark, lambda _: None), config)
        return code, json.loads((self.folder / "report" / "report.json").read_text())


def name_of(message: Any) -> str:
    """As the report names a missing record."""
    headers = dict(message.headers())
    return f"{headers['ottla-producer'].decode()} number {headers['ottla-produced'].decode().split('/')[1]}"


@pytest.fixture
def line(broker: OneBroker, tmp_path: Path) -> Line:
    return Line(broker.bootstrap, tmp_path)


def test_one_lost_record_among_very_many_is_found_and_named(line: Line, spark: SparkSession) -> None:
    line.send(RECORDS)
    offsets = line.held(line.topic)
    assert sum(end - first for first, end in offsets.values()) == RECORDS
    (lost,) = line.read(line.topic, 1, 1)
    admin = AdminClient({"bootstrap.servers": line.bootstrap})
    for future in admin.delete_records([TopicPartition(line.topic, 1, 1)]).values():
        future.result(60)
    assert line.held(line.topic)[1] == (1, offsets[1][1])
    line.wait_for_the_windows_end()
    code, report = line.audit(spark, {"name": "brokers"})
    assert (code, report["verdict"], report["problems"]) == (1, "missing", [])
    total = report["tiers"]["brokers"]
    assert (total["acknowledged"], total["counted"], total["missing"]) == (RECORDS, RECORDS - 1, 1)
    (window,) = [window for window in report["windows"] if window["status"] != "complete"]
    assert window["samples"] == [name_of(lost)]
    at_ms = int(dict(lost.headers())["ottla-produced"].decode().split("/")[0])
    assert window["start_ms"] <= at_ms < window["start_ms"] + WINDOW_S * 1000


def copy(line: Line, drop: tuple[int, int], double: tuple[int, int]) -> tuple[Any, Any]:
    """A mirror that loses one record and sends another twice: the dropped one, and the doubled one."""
    producer, found = Producer({"bootstrap.servers": line.bootstrap}), {}
    for partition, (_, end) in line.held(line.topic).items():
        for message in line.read(line.topic, partition, end):
            place = (partition, message.offset())
            found[place] = message
            for _ in range({drop: 0, double: 2}.get(place, 1)):
                producer.produce(
                    line.copy, message.value(), message.key(), partition, headers=message.headers()
                )
    assert producer.flush(60) == 0
    return found[drop], found[double]


def test_a_loss_and_a_copy_with_the_same_sum_are_found_in_mirror_and_lake(
    line: Line, spark: SparkSession
) -> None:
    line.send(3_000)
    plain = Producer({"bootstrap.servers": line.bootstrap})
    plain.produce(line.topic, b"not audited", partition=0)
    assert plain.flush(30) == 0
    dropped, _ = copy(line, (0, 17), (1, 23))
    assert sum(end for _, end in line.held(line.copy).values()) == 3_001, "the sum is right"
    options = {"kafka.bootstrap.servers": line.bootstrap, "subscribe": line.topic, "includeHeaders": "true"}
    records = spark.read.format("kafka").options(**options).load()
    named = records.withColumns(produced_columns(sf.col("headers")))
    bad = (sf.col("partition") == 1) & (sf.col("offset") < 5)
    lost = (sf.col("partition") == 0) & sf.col("offset").isin(100, 101)
    landed, dead = str(line.folder / "lake"), str(line.folder / "dead")
    named.where(~bad & ~lost).drop("headers").write.format("delta").save(landed)
    named.where(bad).drop("headers").write.format("delta").save(dead)
    line.wait_for_the_windows_end()
    tiers = (
        {"name": "brokers"},
        {"name": "copy", "topicPrefix": "eu."},
        {"name": "lake", "delta": [landed], "deadLetters": [dead]},
    )
    code, report = line.audit(spark, *tiers)
    reported = report["tiers"]
    assert code == 1
    assert report["verdict"] == "missing, duplicated"
    assert {tier: (one["counted"], one["missing"], one["duplicated"]) for tier, one in reported.items()} == {
        "brokers": (3_000, 0, 0),
        "copy": (3_000, 1, 1),
        "lake": (2_998, 2, 0),
    }
    assert report["unaudited"] == {tier: {line.topic: 1} for tier in reported if tier != "copy"} | {
        "copy": {line.topic: 1}
    }
    samples = {window["tier"]: window["samples"] for window in report["windows"] if window["missing"]}
    assert samples["copy"] == [name_of(dropped)]
    page = (line.folder / "report" / "report.html").read_text()
    assert page.count("<svg") == 2
    assert name_of(dropped) in page

    # What was lost lands after all, and the lake is compacted: neither a loss nor a copy is left there.
    named.where(lost).drop("headers").write.format("delta").mode("append").save(landed)
    spark.sql(f"OPTIMIZE delta.`{landed}`")
    _, report = line.audit(spark, *tiers)
    mended = report["tiers"]["lake"]
    assert (mended["counted"], mended["missing"], mended["duplicated"]) == (3_000, 0, 0)
    assert report["tiers"]["copy"]["missing"] == 1


def records_by_kcat(line: Line, topic: str) -> int:
    """How many records of audited producers kcat gets."""
    command = ["kcat", "-b", line.bootstrap, "-C", "-t", topic, "-e", "-q", "-f", "%h\\n"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return sum("ottla-produced=" in headers for headers in ran.stdout.splitlines())


def test_the_audit_counts_equal_those_of_kcat(line: Line, spark: SparkSession) -> None:
    if shutil.which("kcat") is None:
        pytest.skip("needs kcat (Debian package kcat)")
    line.send(700)
    plain = Producer({"bootstrap.servers": line.bootstrap})
    plain.produce(line.topic, b"not audited")
    assert plain.flush(30) == 0
    copy(line, (0, 3), (1, 5))
    line.wait_for_the_windows_end()
    _, report = line.audit(spark, {"name": "brokers"}, {"name": "copy", "topicPrefix": "eu."})
    counted = {tier: one["counted"] for tier, one in report["tiers"].items()}
    assert counted == {
        "brokers": records_by_kcat(line, line.topic),
        "copy": records_by_kcat(line, line.copy),
    }


def forget_one(path: Path, sink: str) -> None:
    """One row goes from the lake: that of partition 1's second record."""
    if sink == "delta":
        deleted = DeltaTable(path).delete("kafka_partition = 1 AND kafka_offset = 1")
        assert deleted["num_deleted_rows"] == 1
        return
    gone = 0
    for file in map(Path, committed_files(path)):
        rows = pq.ParquetFile(file).read()
        there = [row for row in rows.to_pylist() if (row["kafka_partition"], row["kafka_offset"]) != (1, 1)]
        gone += rows.num_rows - len(there)
        pq.write_table(pa.Table.from_pylist(there, rows.schema), file)
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # Hadoop's own checksum
    assert gone == 1


@pytest.mark.parametrize("sink", ["delta", "parquet"])
def test_the_lake_is_complete_and_rows_deleted_from_it_are_named(
    line: Line, spark: SparkSession, sink: str
) -> None:
    with line.producer() as producer:
        for number in range(500):
            value = json.dumps({"id": f"e{number}"}) if number % 100 else "no event"
            producer.produce(line.topic, value.encode(), b"%d" % number)
    root, dead = line.folder / "lake", str(line.folder / "dead")
    config = {
        "name": "landed",
        "kafka": {"bootstrap": line.bootstrap},
        "source": {"topics": [line.topic]},
        "format": {"type": "json", "fields": "id STRING"},
        "event": {"id": "id"},
        "sink": {"type": sink, "path": str(root), "deadLetters": dead},
        "checkpoint": str(line.folder / "lake-checkpoint"),
        "trigger": {"availableNow": True},
    }
    for query in lake.start(JobContext(spark, lambda _: None), validate(config, lake.CONFIG, "lake")):
        query.awaitTermination()
    line.wait_for_the_windows_end()
    path = root / line.topic if sink == "delta" else root
    tier = {"name": "lake", sink: [str(path)] if sink == "delta" else str(path), "deadLetters": [dead]}
    code, report = line.audit(spark, tier)
    assert (code, report["verdict"], report["problems"]) == (0, "complete", [])
    assert (report["tiers"]["lake"]["acknowledged"], report["tiers"]["lake"]["counted"]) == (500, 500)
    lost = line.read(line.topic, 1, 2)[1]
    forget_one(path, sink)
    code, report = line.audit(spark, tier, checkpoint=str(line.folder / "anew"))
    assert (code, report["verdict"]) == (1, "missing")
    (window,) = [window for window in report["windows"] if window["missing"]]
    assert (window["missing"], window["samples"]) == (1, [name_of(lost)])
    if sink == "delta":
        wrong = {"name": "lake", "delta": [str(root)]}
        with pytest.raises(JobStartError, match=f"the tables below it are {line.topic}"):
            line.audit(spark, wrong, checkpoint=str(line.folder / "unused"))
    else:
        with pytest.raises(JobStartError, match="has counted lake before"):
            line.audit(spark, tier, checkpoint=str(line.folder / "anew"))
        with pytest.raises(JobStartError, match="audit-report counts it"):
            audit.start(JobContext(spark, lambda _: None), validate(line.raw(tier), audit.CONFIG, "test"))


class Job:
    """`ottla-pipeline audit` as a process."""

    def __init__(self, line: Line, *tiers: dict[str, Any]) -> None:
        file = line.folder / "audit.yaml"
        file.write_text(json.dumps(line.raw(*tiers)))
        self.line = line
        self.command = [sys.executable, "-m", "ottla_pipeline.command", "audit", "--config", str(file)]
        self.command += ["--status-port", "0", "--memory", "700m"]
        self.process: subprocess.Popen[str] | None = None
        self.port = 0

    def __enter__(self) -> Job:
        with (self.line.folder / "audit.log").open("a") as log:
            self.process = subprocess.Popen(
                self.command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().rpartition(":")[2])
        return self

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    def wait_for(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        path = self.line.folder / "report" / "report.json"
        held = wait_until(lambda: path.exists() and condition(json.loads(path.read_text())), timeout_s=270)
        log = (self.line.folder / "audit.log").read_text()[-2000:]
        assert held, (path.read_text()[:2000] if path.exists() else "no report") + log

    def __exit__(self, *_: Any) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def leave_in_a_window(line: Line) -> AuditedProducer:
    """A producer that has reported 50 records, of whom nothing more is heard: as if it had been killed."""
    producer = line.producer()
    for _ in range(50):
        producer.produce(line.topic, b"v")
    assert producer.flush(30) == 0
    reporter = producer._reporter
    reporter._ending.set()
    reporter._thread.join()
    reporter.report()
    reporter._publisher.flush(30)
    return producer


def test_a_killed_audit_continues_and_reports_the_windows_of_a_killed_producer(
    line: Line, quick_spark: None
) -> None:
    try:
        check_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    line.send(1_000)
    with Job(line, {"name": "brokers"}) as job:
        job.wait_for(lambda report: report["tiers"]["brokers"]["counted"] == 1_000)
        job.wait_for(lambda report: report["verdict"] == "complete")
        assert 'ottla_audit_records{kind="acknowledged",tier="brokers"} 1000.0' in job.metrics()
        line.send(500)
    producers = [leave_in_a_window(line)]
    while line.topic not in producers[-1]._counter.current:  # its window was over before it had reported
        producers.append(leave_in_a_window(line))
    line.send(200)
    everything = 1_000 + 500 + 200 + 50 * len(producers)
    with Job(line, {"name": "brokers"}) as job:
        job.wait_for(lambda report: report["tiers"]["brokers"]["counted"] == everything)
        job.wait_for(lambda report: report["tiers"]["brokers"]["acknowledged"] == everything)
        job.wait_for(lambda report: report["verdict"] == "unknown")
        report = json.loads((line.folder / "report" / "report.json").read_text())
    total = report["tiers"]["brokers"]
    assert (total["acknowledged"], total["missing"], total["duplicated"]) == (everything, 0, 0)
    assert producers[-1].audit_name.startswith("web-17/")
    assert [window["status"] for window in report["windows"]].count("unknown") == 1
