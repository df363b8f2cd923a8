"""Compares the event ids that were produced with those in the brokers and in the lake, each exactly once.

    ottla-pipeline compare --config compare.yaml

For finite data with a manifest, where every event has an id that is unique in its topic. Three sets of ids
are read in independent ways: the producer's manifest (JSON lines `{"id", "topic", "time"}`, one for each
acknowledged event), the brokers (with confluent-kafka, see `completeness.broker_reader`), and the lake (its
files as any reader sees them, not the lake job's commit log). Spark joins them, so their size is not limited,
and numbers the ids; they are counted and compared like the audit's records (`completeness.comparison`).
The audit job (`jobs.audit`) covers continuous streams.

Exit status: 0 if every id is exactly once in both, 1 on any difference, 2 if the comparison could not run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, ClassVar

from confluent_kafka import KafkaException
from py4j.protocol import Py4JError
from pydantic import Field
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sf
from rich.console import Console

from ottla_pipeline.checkpoints import OffsetRange
from ottla_pipeline.completeness import broker_reader
from ottla_pipeline.completeness.comparison import (
    MANIFEST,
    NOT_PRODUCED,
    PRODUCED,
    TIERS,
    UNKNOWN_START_MS,
    ComparisonReport,
    Difference,
    verdicts_of,
)
from ottla_pipeline.completeness.config import interval_ms
from ottla_pipeline.completeness.tiers import count_numbers
from ottla_pipeline.config.common import Interval, JobConfig, TopicName
from ottla_pipeline.errors import JobStartError, error_summary
from ottla_pipeline.filesystem import FileSystem
from ottla_pipeline.lake.rows import PRODUCED_NUMBER, PRODUCER
from ottla_pipeline.running import JobContext
from ottla_pipeline.spark import DELTA_SETTINGS

COLUMNS = "topic STRING, id STRING, time STRING"
SAMPLES = 20


class CompareConfig(JobConfig):
    """What to compare. `topics` are compared in addition to those of the manifest; all of their events are
    unexpected."""

    JOB: ClassVar[str] = "compare"

    checkpoint: str = ""  # not used: the job has no stream
    manifest: Annotated[str, Field(min_length=1)]
    """The file with the produced ids."""
    lake: Annotated[str, Field(min_length=1)]
    """The path of the lake."""
    topics: list[TopicName] | None = None
    """Further topics."""
    id_field: Annotated[str, Field(min_length=1)] = "id"
    """The field with an event's id."""
    time_field: Annotated[str, Field(min_length=1)] = "event_time"
    """The field with an event's time."""
    window: Interval = "1 day"
    """The length of the windows of the result."""
    report: str | None = None
    """The file for the result as JSON."""


CONFIG = CompareConfig
SESSION = {
    # A topic named 007 stays text, and the driver lists the lake's folders.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    **DELTA_SETTINGS,
}


class ManifestUnusable(JobStartError):
    """The manifest cannot be used; the message says why."""


def timed(frame: DataFrame, tier: str) -> DataFrame:
    """Topic, id and time (a timestamp, null if unreadable) of one tier's events."""
    time = sf.try_to_timestamp(sf.col("time"))
    return frame.select("topic", "id", time.alias("time"), sf.lit(tier).alias("tier"))


def produced(spark: SparkSession, manifest: str) -> DataFrame:
    return timed(spark.read.schema(COLUMNS).option("mode", "FAILFAST").json(manifest), "produced")


def in_brokers(spark: SparkSession, config: CompareConfig, topics: list[str]) -> DataFrame:
    """All records of these topics; the id is null where the record has none."""
    bootstrap, options = config.kafka.bootstrap, config.kafka.librdkafka()
    wanted = broker_reader.offset_ranges(bootstrap, topics, options)
    id_field, time_field = config.id_field, config.time_field

    def read(parts: Iterable[OffsetRange]) -> Iterator[tuple[str, str | None, str | None]]:
        for part in parts:
            yield from broker_reader.read_range(OffsetRange(*part), bootstrap, id_field, time_field, options)

    if not wanted:
        return timed(spark.createDataFrame([], COLUMNS), "brokers")
    rows = spark.sparkContext.parallelize(wanted, len(wanted)).mapPartitions(read)
    return timed(spark.createDataFrame(rows, COLUMNS, verifySchema=False), "brokers")


def in_lake(spark: SparkSession, config: CompareConfig, topics: list[str]) -> DataFrame:
    """All events that a reader of the lake finds: in the Delta table, or in the Parquet files."""
    files, identity, time = FileSystem(spark), config.id_field, config.time_field
    if files.exists(f"{config.lake}/_delta_log"):
        events = spark.read.format("delta").load(config.lake)
    elif any(path.endswith(".parquet") for path in files.walk(config.lake)):
        # With a schema, Spark does not read every footer; topic and date are in the names of the folders.
        events = spark.read.schema(f"`{identity}` STRING, `{time}` TIMESTAMP").parquet(config.lake)
    else:
        return timed(spark.createDataFrame([], COLUMNS), "lake")
    return events.where(sf.col("topic").isin(topics)).select(
        "topic", sf.col(identity).alias("id"), sf.col(time).alias("time"), sf.lit("lake").alias("tier")
    )


def copies(tiers: DataFrame) -> DataFrame:
    """For each topic and id: its time, and the number of copies in each tier."""
    counts = [sf.count_if(sf.col("tier") == tier).alias(tier) for tier in TIERS]
    return (
        tiers.where(sf.col("id").isNotNull())
        .groupBy("topic", "id")
        .agg(*counts, sf.min("time").alias("time"))
    )


def differs() -> Column:
    """A condition on a row of `copies`: the id is not exactly once in every tier."""
    return (sf.col("produced") != 1) | (sf.col("brokers") != 1) | (sf.col("lake") != 1)


def numbered(counted: DataFrame, window_ms: int) -> DataFrame:
    """The rows of `copies` with the id's number in its topic and window, as records of an audited producer
    have it: `start_ms` of the window, producer, number."""
    at_ms = sf.unix_millis("time")
    start_ms = sf.when(sf.year("time").between(1, 9999), at_ms - sf.pmod(at_ms, sf.lit(window_ms)))
    rows = counted.withColumns(
        {
            "start_ms": sf.coalesce(start_ms, sf.lit(UNKNOWN_START_MS)),
            PRODUCER: sf.when(sf.col(PRODUCED) > 0, MANIFEST).otherwise(NOT_PRODUCED),
        }
    )
    order = Window.partitionBy("topic", PRODUCER, "start_ms").orderBy("id")
    return rows.withColumn(PRODUCED_NUMBER, sf.row_number().over(order) - 1)


def compare(spark: SparkSession, config: CompareConfig) -> ComparisonReport:
    """Compares the three sets. Raises ManifestUnusable."""
    manifest = produced(spark, config.manifest).persist()
    try:
        named = {row["topic"] for row in manifest.select("topic").distinct().collect()}
        nameless = manifest.where(sf.col("id").isNull() | sf.col("topic").isNull()).count()
    except (PySparkException, Py4JError) as error:
        raise ManifestUnusable(
            f"{config.manifest} cannot be read as JSON lines: {error_summary(error)}"
        ) from None
    if nameless:
        raise ManifestUnusable(f"{config.manifest}: {nameless:,} lines have no id or no topic")
    topics = sorted(named | set(config.topics or ()))
    if not topics:
        raise ManifestUnusable(f"{config.manifest} has no events, and the configuration names no topics")
    brokers = in_brokers(spark, config, topics).persist()
    tiers = manifest.unionByName(brokers).unionByName(in_lake(spark, config, topics))
    window_ms = interval_ms(config.window)
    counted = numbered(copies(tiers), window_ms).persist()
    try:
        copies_of = {tier: sf.col(tier) for tier in TIERS}
        counts = count_numbers(counted, start_ms=sf.col("start_ms"), copies=copies_of)
        first = counted.where(differs()).orderBy("topic", "id").limit(SAMPLES).collect()
        without_id = brokers.where(sf.col("id").isNull()).count()
    finally:
        for frame in (manifest, brokers, counted):
            frame.unpersist()
    samples = [Difference(r["topic"], r["id"], r["produced"], r["brokers"], r["lake"]) for r in first]
    return ComparisonReport(config.window, verdicts_of(counts, window_ms), samples, without_id)


def show(report: ComparisonReport, console: Console) -> None:
    for table in report.tables():
        console.print(table)
    if report.without_id:
        console.print(f"{report.without_id:,} records in the brokers have no readable id.")
    verdict = "every event is held exactly once" if report.passed else "DIFFERENCES: see above"
    console.print(f"compare: {verdict}", highlight=False)


def run(context: JobContext, config: CompareConfig) -> int:
    """Runs the comparison; the exit status says whether anything differs."""
    try:
        found = compare(context.spark, config)
    except KafkaException as error:
        raise JobStartError(error.args[0].str()) from None
    if config.report is not None:
        path = Path(config.report)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found.to_json())
    console = Console()
    if not console.is_terminal:
        console.width = 140  # wide enough for the tables in a log
    show(found, console)
    return 0 if found.passed else 1
