"""The lake job: topics to Parquet by Spark Structured Streaming, each record exactly once.

    python -m ottla_pipeline.jobs.lake --bootstrap HOST:PORT --topics a,b --lake DIR --checkpoint DIR

or the same arguments behind `spark-submit --packages <ottla_pipeline.spark.PACKAGES> …/jobs/lake.py`.

Layout: `LAKE/event_date=2013-01-01/topic=flights.jfk/*.parquet`; records that are no events go to the
dead-letter folder (`topic=…/*.parquet`) with reason, topic, partition, offset and their bytes.

Why `foreachBatch` with a commit log of our own, and not Spark's file sink with its `_spark_metadata`: the
sink writes straight into the visible folders, so after a crash the files of an unfinished batch stay there,
and only Spark knows to skip them; DuckDB, pyarrow or a backup would count their records twice. Its manifest
can never be trimmed, nor the folder compacted. And a sink has one output: dead letters would need a second
query that reads every topic again, with its own idea of how far it is. Here a batch is staged, committed by
one rename, and only then moved into sight (see `ottla_pipeline.commits`), events and dead letters together.

Exactly once rests on three things: Spark writes a batch's offsets to the checkpoint before running it, and
runs the same offsets under the same number after a crash; a committed batch is never written again; a lake
takes batches from one checkpoint only. A topic whose records have gone before they were read stops the
job (`failOnDataLoss`), rather than leave a gap.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from ottla_pipeline import reach, split
from ottla_pipeline.commits import Commit, CommitLog, Files
from ottla_pipeline.schema import EventSchema, SchemaError
from ottla_pipeline.spark import JavaMissing, build_session

Say = Callable[[str], None]


class LakeRefused(Exception):
    """The job cannot go on with these folders or topics; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class LakeJob:
    """What to land, and where. Either `topics` or `topic_pattern` (a Java regular expression) is given."""

    bootstrap: str
    lake: str
    checkpoint: str
    dead_letters: str
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    schema: EventSchema = field(default_factory=EventSchema)
    trigger_interval: str | None = None  # None: everything there is now, then stop
    max_offsets_per_trigger: int | None = None
    kafka_options: Mapping[str, str] = field(default_factory=dict)

    def source_options(self) -> dict[str, str]:
        """Options of Spark's Kafka source."""
        if self.topic_pattern is not None:
            topics = {"subscribePattern": self.topic_pattern}
        else:
            topics = {"subscribe": ",".join(self.topics)}
        limit = self.max_offsets_per_trigger
        return {
            "kafka.bootstrap.servers": self.bootstrap,
            "startingOffsets": "earliest",
            "failOnDataLoss": "true",
            **topics,
            **({"maxOffsetsPerTrigger": str(limit)} if limit is not None else {}),
            **{f"kafka.{name.removeprefix('kafka.')}": value for name, value in self.kafka_options.items()},
        }


@dataclass(slots=True)
class Landed:
    """What one run of the job added."""

    batches: int = 0
    events: int = 0
    dead_letters: int = 0


def query_id(files: Files, checkpoint: str) -> str | None:
    """The id that Spark gave the query of this checkpoint, None before its first start."""
    path = f"{checkpoint}/metadata"
    return str(json.loads(files.read(path))["id"]) if files.exists(path) else None


def check_owner(log: CommitLog, checkpoint: str) -> None:
    """Refuses a lake that another checkpoint has filled: all its records would land a second time."""
    owner, ours = log.owner(), query_id(log.files, checkpoint)
    if owner is not None and owner != ours:
        raise LakeRefused(
            f"{log.lake} holds batches of another checkpoint (query {owner}); {checkpoint} "
            f"{'is new' if ours is None else f'is that of query {ours}'}. Records would land twice. "
            "Use the lake's own checkpoint, or a new lake with a new checkpoint."
        )


def land_batch(records: DataFrame, batch_id: int, job: LakeJob, log: CommitLog) -> Commit | None:
    """Stages and commits one batch, and publishes it. Does nothing but publish if it was committed before.

    None if the batch was already committed. Kafka is read once, and a second time only when the batch holds
    dead letters, which is cheaper than to keep every batch in memory for the case that it does.
    """
    known = log.find(batch_id)
    if known is not None:
        log.publish(known)
        return None
    query = query_id(log.files, job.checkpoint)
    assert query is not None, "Spark writes the checkpoint's metadata before the first batch"
    staged_events, staged_dead = log.stage(batch_id)
    parsed = split.parse(records, job.schema)
    counts = Observation()
    bad = sf.col("reason").isNotNull()
    counted = parsed.observe(counts, sf.count_if(~bad).alias("events"), sf.count_if(bad).alias("bad"))
    # One writer for each folder: a batch adds one file to it, however many partitions the topic has.
    by_folder = split.events(counted, job.schema).repartition(split.EVENT_DATE, split.TOPIC)
    by_folder.write.partitionBy(split.EVENT_DATE, split.TOPIC).parquet(staged_events)
    found = counts.get
    if found["bad"]:
        split.dead_letters(parsed).repartition("topic").write.partitionBy("topic").parquet(staged_dead)
    commit = Commit(query, batch_id, found["events"], found["bad"], log.moves(batch_id))
    log.commit(commit)
    log.publish(commit)
    return commit


def start(spark: SparkSession, job: LakeJob, landed: Landed, say: Say) -> StreamingQuery:
    """Starts the streaming query; `landed` is counted up as batches are committed."""
    split.check(job.schema)
    log = CommitLog(Files(spark), job.lake, job.dead_letters)
    check_owner(log, job.checkpoint)

    def land(records: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        commit = land_batch(records, batch_id, job, log)
        if commit is None:
            say(f"batch {batch_id}: committed before, published to the end")
            return
        landed.batches += 1
        landed.events += commit.events
        landed.dead_letters += commit.dead_letters
        say(
            f"batch {batch_id}: {commit.events:,} events landed, {commit.dead_letters:,} dead letters, "
            f"{len(commit.moves):,} files, {time.monotonic() - began:.1f} s"
        )

    records = spark.readStream.format("kafka").options(**job.source_options()).load()
    writer = records.writeStream.queryName("lake").foreachBatch(land)
    writer = writer.option("checkpointLocation", job.checkpoint)
    if job.trigger_interval is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=job.trigger_interval)
    return writer.start()


def run(
    spark: SparkSession, job: LakeJob, *, say: Say = click.echo, stop: threading.Event | None = None
) -> Landed:
    """Runs the job until it has all there is (no trigger interval), or until `stop` is set."""
    landed = Landed()
    query = start(spark, job, landed, say)
    try:
        while not query.awaitTermination(1):
            if stop is not None and stop.is_set():
                break
    finally:
        query.stop()
    return landed


# What Spark raises; the second when it has no better name for what happened in a task.
SPARK_ERRORS = (PySparkException, Py4JError)
_PYTHON_ERROR = re.compile(r"^[A-Za-z_][\w.]*: \S")


def short(error: Exception) -> str:
    """The lines of Spark's message that say what happened, without plans and stacks."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "Traceback (most recent call last):" in str(error).partition("\tat ")[0]:
        # Of a task in Python: what it raised stands below its stack, and above Java's.
        python = [line for line in lines[1:] if _PYTHON_ERROR.match(line)]
        if python:
            return python[0][:600]
    told = [line for line in lines if not line.startswith(("at ", "=== ", "Current ", "{", "JVM stacktrace"))]
    return " ".join(told[:3])[:600]


def session_settings() -> dict[str, str]:
    """Session settings of this job: staged files need neither a second commit by rename nor a marker."""
    return {
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    }


def pairs(_: Any, __: Any, values: tuple[str, ...]) -> dict[str, str]:
    """Click callback: `name=value` options as a mapping."""
    wrong = [value for value in values if "=" not in value]
    if wrong:
        raise click.BadParameter(f"{wrong[0]!r} is not of the form name=value")
    return dict(value.split("=", 1) for value in values)


@click.command(context_settings={"max_content_width": 110})
@click.option("--bootstrap", required=True, metavar="HOST:PORT,…", help="Brokers to start from.")
@click.option("--topics", default="", metavar="A,B", help="Topics to land, by name.")
@click.option("--topic-pattern", metavar="REGEX", help="Topics to land, by Java regular expression.")
@click.option("--lake", required=True, metavar="DIR", help="Where Parquet files go.")
@click.option("--checkpoint", required=True, metavar="DIR", help="Where Spark keeps how far it is.")
@click.option("--dead-letters", metavar="DIR", help="Where bad records go. [default: LAKE-dead-letters]")
@click.option(
    "--schema", "schema_file", type=click.Path(path_type=Path), help="JSON: fields (DDL), id, time."
)
@click.option("--available-now", "--once", is_flag=True, help="Land all there is, then stop.")
@click.option("--trigger", default="10 seconds", show_default=True, help="Time between batches otherwise.")
@click.option("--max-offsets-per-trigger", type=click.IntRange(min=1), help="Largest batch, in records.")
@click.option("--kafka-option", multiple=True, callback=pairs, metavar="NAME=VALUE", help="A client setting.")
@click.option(
    "--master", default="local[2]", show_default=True, help="Spark master (not under spark-submit)."
)
@click.option("--memory", default="1g", show_default=True, help="Driver memory (not under spark-submit).")
def main(
    bootstrap: str,
    topics: str,
    topic_pattern: str | None,
    lake: str,
    checkpoint: str,
    dead_letters: str | None,
    schema_file: Path | None,
    available_now: bool,
    trigger: str,
    max_offsets_per_trigger: int | None,
    kafka_option: dict[str, str],
    master: str,
    memory: str,
) -> None:
    """Lands topics as Parquet, partitioned by event date and topic, each record exactly once."""
    names = tuple(name.strip() for name in topics.split(",") if name.strip())
    if bool(names) == bool(topic_pattern):
        raise click.UsageError("give --topics or --topic-pattern, one of the two")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        job = LakeJob(
            bootstrap=bootstrap,
            lake=lake,
            checkpoint=checkpoint,
            dead_letters=dead_letters or f"{lake.rstrip('/')}-dead-letters",
            topics=names,
            topic_pattern=topic_pattern,
            schema=EventSchema.from_file(schema_file) if schema_file else EventSchema(),
            trigger_interval=None if available_now else trigger,
            max_offsets_per_trigger=max_offsets_per_trigger,
            kafka_options=kafka_option,
        )
        reach.check(bootstrap)
        spark = build_session("ottla-lake", master=master, memory=memory, extra=session_settings())
        landed = run(spark, job, say=lambda line: click.echo(f"lake: {line}"), stop=stop)
        spark.stop()
    except (SchemaError, LakeRefused, JavaMissing, reach.Unreachable) as error:
        click.echo(f"lake: {error}", err=True)
        sys.exit(2)
    except SPARK_ERRORS as error:
        click.echo(f"lake: {short(error)}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    click.echo(
        f"lake: done: {landed.batches:,} batches, {landed.events:,} events, "
        f"{landed.dead_letters:,} dead letters, in {job.lake}"
    )


if __name__ == "__main__":
    main()
