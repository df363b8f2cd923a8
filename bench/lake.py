"""`python -m bench.lake`: records a second from a topic to Parquet, by the same lake job on both sides.

One broker of a side runs on core 0; Spark uses both cores, with one task at a time or two. The records are
the flights of January 2013, repeated with unique ids, the same bytes in the same partitions on both sides.
Each run writes the whole topic to a new lake, in one batch. The result is the batches' time by Spark's
reports, which includes reading, decoding, writing and the commit, and excludes Spark's start. The sides take
turns in one JVM, after warm-up runs of each. The first side of a round alternates, because the JVM gets
faster with each run.

A run whose lake lacks a record fails the benchmark.
"""

from __future__ import annotations

import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import click
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from bench.interpreter import say_interpreter
from bench.processes import usage_of
from bench.sides import Side, chosen_sides, only_option
from demo import events
from ottla_pipeline.config.common import validate
from ottla_pipeline.jobs import lake
from ottla_pipeline.running import JobContext
from ottla_pipeline.spark import build_session

JANUARY = 27_004
NUMBERS = itertools.count()


class Shape(NamedTuple):
    """Spark's cores and the topic's partitions: a row of the table."""

    cores: int
    partitions: int

    def __str__(self) -> str:
        return f"{self.cores}x{self.partitions}"


SHAPES = (Shape(1, 4), Shape(2, 1), Shape(2, 4), Shape(2, 16))


class Run(NamedTuple):
    seconds: float
    broker_cpu_s: float


class FilledTopic(NamedTuple):
    topic: str
    records: int
    bytes: int
    """Size of keys and values."""


def values(count: int) -> Iterator[bytes]:
    """Flights with unique ids of the same length."""
    month = events.load(limit=JANUARY)
    for number in range(count):
        yield month[number % JANUARY].value.replace(b'{"id":"', b'{"id":"%08d-' % number, 1)


def fill(side: Side, partitions: int, count: int) -> FilledTopic:
    """Make a topic and write `count` records to its partitions in turns."""
    topic = f"bench.lake.{partitions}"
    side.admin(lambda c: c.create_topic(topic, partitions=partitions, replication_factor=1))
    producer = Producer({"bootstrap.servers": side.bootstrap, "linger.ms": 50, "acks": "all"})
    size = 0
    for number, value in enumerate(values(count)):
        size += len(value)
        while True:
            try:
                producer.produce(topic, value, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(120):
        raise click.ClickException(f"{side.name} did not acknowledge all records")
    return FilledTopic(topic, count, size)


def run_lake_job(spark: SparkSession, side: Side, filled: FilledTopic, folder: Path) -> Run:
    """One run into a new lake. Raises ClickException if a record is missing there."""
    root = folder / str(next(NUMBERS))
    config = validate(
        {
            "name": "bench",
            "kafka": {"bootstrap": side.bootstrap},
            "checkpoint": str(root / "checkpoint"),
            "trigger": {"availableNow": True},
            "source": {"topics": [filled.topic]},
            "format": {"type": "json", "fields": json.loads(events.FIELDS_SCHEMA.read_text())["fields"]},
            "event": {"id": "id", "time": "event_time"},
            "sink": {"type": "parquet", "path": str(root / "lake")},
        },
        lake.CONFIG,
        "bench",
    )
    before = usage_of(side.pids).cpu_s
    (query,) = lake.start(JobContext(spark, lambda line: None), config)
    query.awaitTermination()
    cpu_s = usage_of(side.pids).cpu_s - before
    seconds = sum(each.durationMs["triggerExecution"] for each in query.recentProgress) / 1000
    landed = spark.read.parquet(str(root / "lake")).select("id").distinct().count()
    if landed != filled.records:
        raise click.ClickException(f"{side.name}: {landed:,} of {filled.records:,} records are in the lake")
    return Run(seconds, cpu_s)


def wait_until_idle(side: Side) -> None:
    """Wait until the brokers are idle, for instance have closed the last run's connections."""
    before = -1.0
    while (now := usage_of(side.pids).cpu_s) - before > 0.02:
        before = now
        time.sleep(0.5)


def results_table(records: int, size: int, runs_by_shape: dict[Shape, dict[str, list[Run]]]) -> Table:
    table = Table(title=f"{records:,} records of {size // records} bytes, topic to Parquet; medians")
    for name in ("Spark's cores", "partitions", "side", "records/s", "MB/s", "broker CPU s", "ratio"):
        table.add_column(name, justify="left" if name == "side" else "right")
    for shape, sides in runs_by_shape.items():
        rates = {
            name: records / statistics.median(run.seconds for run in runs) for name, runs in sides.items()
        }
        for name, runs in sides.items():
            ratio = rates[name] / rates["Kafka"] if name != "Kafka" and "Kafka" in rates else None
            table.add_row(
                str(shape.cores),
                str(shape.partitions),
                name,
                f"{rates[name]:,.0f}",
                f"{rates[name] * size / records / 1e6:.1f}",
                f"{statistics.median(run.broker_cpu_s for run in runs):.2f}",
                f"{ratio:.2f}" if ratio is not None else "",
            )
    return table


@click.command()
@click.option("--records", default=400_000, show_default=True)
@click.option("--runs", default=3, show_default=True, help="Measured runs of each side and shape.")
@click.option("--warm-ups", default=2, show_default=True, help="Runs before them that are not counted.")
@only_option
@click.option(
    "--shape",
    "chosen",
    type=click.Choice([str(shape) for shape in SHAPES]),
    multiple=True,
    help="Spark's cores and the topic's partitions; all of them unless given.",
)
def main(records: int, runs: int, warm_ups: int, only: str | None, chosen: tuple[str, ...]) -> None:
    """Compare the lake job from Ottla with that from Apache Kafka 3.9.1."""
    say_interpreter()
    shapes_run = [shape for shape in SHAPES if not chosen or str(shape) in chosen]
    runs_by_shape: dict[Shape, dict[str, list[Run]]] = {}
    size = 0
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ottla-bench-")))
        sides: list[Side] = [stack.enter_context(kind(root / kind.name, 1)) for kind in chosen_sides(only)]
        filled = {
            (side.name, partitions): fill(side, partitions, records)
            for side in sides
            for partitions in sorted({shape.partitions for shape in shapes_run})
        }
        for cores, shapes in itertools.groupby(shapes_run, key=lambda shape: shape.cores):
            spark = build_session("bench-lake", master=f"local[{cores}]", memory="2g", extra=lake.SESSION)
            stack.callback(spark.stop)
            for shape in shapes:
                for number in range(-warm_ups, runs):
                    for side in sides[:: -1 if number % 2 else 1]:
                        topic = filled[side.name, shape.partitions]
                        wait_until_idle(side)
                        run = run_lake_job(spark, side, topic, root)
                        size = topic.bytes
                        if number >= 0:
                            runs_by_shape.setdefault(shape, {}).setdefault(side.name, []).append(run)
            spark.stop()
    Console().print(results_table(records, size, runs_by_shape))


if __name__ == "__main__":
    main()
