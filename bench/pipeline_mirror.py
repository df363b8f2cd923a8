"""`python -m bench.pipeline_mirror`: throughput and lag of the mirror, and the shares of its time.

Two Ottla clusters of one broker each and Spark share this machine's cores. `throughput` and `lag` can be
called with other clusters.

- Throughput: a filled topic is mirrored with `availableNow`, in a session that has mirrored before. The time
  is that of the batches. The shares are those of the tasks' time: reading (Spark's source and Arrow), the
  producer's queue, and commits.
- Lag: a producer sends records at a rate, each with its time; the mirror runs with its trigger; a
  read_committed consumer on the target takes the time of each arrival.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import Row, SparkSession

from bench.interpreter import say_interpreter
from ottla.local.cluster import LocalCluster
from ottla_pipeline.config.common import validate
from ottla_pipeline.jobs import mirror
from ottla_pipeline.mirroring.config import MirrorConfig
from ottla_pipeline.running import JobContext
from ottla_pipeline.spark import build_session

SETTINGS = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
WARM_RECORDS = 20_000


def fill(bootstrap: str, topic: str, partitions: int, records: int, record_bytes: int) -> None:
    """Create a topic and write keyed records to its partitions in turns."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(60)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "enable.idempotence": True})
    values = [os.urandom(record_bytes) for _ in range(64)]
    for number in range(records):
        while True:
            try:
                producer.produce(topic, values[number % 64], b"%d" % number, number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    producer.flush(300)


def config_of(source: str, target: str, topic: str, folder: Path, **more: Any) -> MirrorConfig:
    raw = {
        "name": topic,
        "source": {"alias": "east", "bootstrap": source},
        "target": {"alias": "west", "bootstrap": target},
        "topics": [topic],
        "checkpoint": str(folder / topic),
        **more,
    }
    return validate(raw, MirrorConfig, "bench")


class ReportRecorder(mirror.MirrorMetrics):
    """Keeps the reports of the tasks."""

    def __init__(self, context: JobContext, kept: list[Any]) -> None:
        super().__init__(context)
        self._kept = kept

    def add(self, rows: Sequence[Row], now_s: float) -> None:
        self._kept.extend(rows)


def throughput(
    spark: SparkSession, source: str, target: str, topic: str, folder: Path, **more: Any
) -> dict[str, float]:
    """Mirror all records of the topic; figures from the tasks' reports."""
    reports: list[Any] = []
    config = config_of(source, target, topic, folder, trigger={"availableNow": True}, **more)
    context = JobContext(spark, lambda _: None)
    began = time.monotonic()
    for query in mirror.start(context, config, ReportRecorder(context, reports)):
        query.awaitTermination()
        took_s = time.monotonic() - began
        batch_s = sum(progress["durationMs"].get("addBatch", 0) for progress in query.recentProgress) / 1000

    def total(name: str) -> float:
        return float(sum(row[name] for row in reports))

    busy_s = total("read_s") + total("produce_s") + total("commit_s")
    return {
        "records": total("records"),
        "transactions": total("transactions"),
        "took_s": took_s,
        "batch_s": batch_s,
        "records_per_s": total("records") / batch_s,
        "mb_per_s": total("bytes") / batch_s / 1e6,
        "read_share": total("read_s") / busy_s,
        "produce_share": total("produce_s") / busy_s,
        "commit_share": total("commit_s") / busy_s,
    }


def lag(
    spark: SparkSession,
    source: str,
    target: str,
    topic: str,
    folder: Path,
    *,
    rate: int,
    seconds: float,
    interval: str = "100 milliseconds",
) -> dict[str, float]:
    """The time from `produce` to a consumer of the target, without the first third of the records."""
    fill(source, topic, 2, 2, 100)
    config = config_of(source, target, topic, folder, trigger={"interval": interval})
    (query,) = mirror.start(JobContext(spark, lambda _: None), config)
    try:
        producer = Producer({"bootstrap.servers": source, "linger.ms": 5})
        expected = int(rate * seconds)
        lags: list[float] = []
        with reading(target, f"east.{topic}", lags, expected):
            began = time.time()
            for number in range(expected):
                due = began + number / rate
                if due > time.time():
                    time.sleep(due - time.time())
                now = time.time()
                producer.produce(topic, b"%.6f" % now, None, number % 2)
                producer.poll(0)
            producer.flush(60)
        measured = sorted(lags[len(lags) // 3 :])
    finally:
        query.stop()
    return {
        "rate": rate,
        "records": len(lags),
        "p50_ms": measured[len(measured) // 2] * 1000,
        "p99_ms": measured[len(measured) * 99 // 100] * 1000,
    }


@contextmanager
def reading(bootstrap: str, topic: str, lags: list[float], expected: int) -> Iterator[None]:
    """A consumer in a thread appends the seconds that each record took to `lags`; the end waits for it."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in (0, 1)])

    def read() -> None:
        deadline = time.monotonic() + 300
        while len(lags) < expected and time.monotonic() < deadline:
            for message in consumer.consume(500, timeout=0.05):
                value = message.value() or b""
                if message.error() is None and len(value) < 20:
                    lags.append(time.time() - float(value))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        consumer.close()


@click.command()
@click.option("--records", default=500_000, show_default=True)
@click.option("--record-bytes", default=200, show_default=True)
@click.option("--partitions", default=4, show_default=True)
@click.option("--runs", default=2, show_default=True)
@click.option("--master", "masters", multiple=True, default=("local[2]",), show_default=True)
@click.option(
    "--rate", default=500, show_default=True, help="Records a second of the lag measurement; 0 skips it."
)
@click.option("--max-records", default=20_000, show_default=True, help="Records of a transaction.")
def main(
    records: int,
    record_bytes: int,
    partitions: int,
    runs: int,
    masters: Sequence[str],
    rate: int,
    max_records: int,
) -> None:
    """Print the mirror's throughput and lag between two clusters of one broker each, as JSON lines."""
    say_interpreter()
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as directory:
        folder = Path(directory)
        with (
            LocalCluster(folder / "east", brokers=1, settings=SETTINGS) as east,
            LocalCluster(folder / "west", brokers=1, settings=SETTINGS) as west,
        ):
            for number, master in enumerate(masters):
                spark = build_session("bench-mirror", master=master, extra=mirror.SESSION)
                ends = (spark, east.bootstrap, west.bootstrap)
                for run in range(runs + 1):
                    topic = f"m{number}-{run}"
                    fill(east.bootstrap, topic, partitions, records if run else WARM_RECORDS, record_bytes)
                    result = throughput(
                        *ends, topic, folder / "checkpoints", transaction={"maxRecords": max_records}
                    )
                    if run:
                        click.echo(json.dumps({"master": master, "partitions": partitions, **result}))
                if rate:
                    lags = lag(*ends, f"lag-{number}", folder / "checkpoints", rate=rate, seconds=30)
                    click.echo(json.dumps({"master": master, **lags}))
                spark.stop()


if __name__ == "__main__":
    main()
