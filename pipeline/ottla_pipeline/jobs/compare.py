"""Compares the event ids that were produced with those in the brokers and in the lake, each exactly once.

    ottla-pipeline compare --config compare.yaml

For finite data with a manifest, where every event has an id that is unique in its topic. Three sets of ids
are read in independent ways: the producer's manifest (JSON lines `{"id", "topic", "time"}`, one for each
acknowledged event), the brokers (with confluent-kafka, see `completeness.broker_reader`), and the lake (its
files as any reader sees them, not the lake job's commit log). Spark joins them, so their size is not limited.
The audit job (`jobs.audit`) covers continuous streams.

Exit status: 0 if every id is exactly once in both, 1 on any difference, 2 if the comparison could not run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar

from confluent_kafka import KafkaException
from py4j.protocol import Py4JError
from pydantic import Field
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from rich.console import Console

from ottla_pipeline.checkpoints import OffsetRange
from ottla_pipeline.completeness import broker_reader
from ottla_pipeline.completeness.comparison import (
    ComparisonReport,
    Counts,
    Difference,
    TierCounts,
    WindowCounts,
)
from ottla_pipeline.config.common import Interval, JobConfig, TopicName
from ottla_pipeline.errors import JobStartError, error_summary
from ottla_pipeline.filesystem import FileSystem
from ottla_pipeline.running import JobContext
from ottla_pipeline.spark import DELTA_SETTINGS

COLUMNS = "topic STRING, id STRING, time STRING"
SAMPLES = 20
TIERS = ("produced", "brokers", "lake")


class CompareConfig(JobConfig):
    """What to compare. `topics` are compared in addition to those of the manifest; all of their events are
    unexpected."""

    JOB: ClassVar[str] = "compare"

    checkpoint: str = ""  # of no use here: nothing is streamed
    manifest: Annotated[str, Field(min_length=1)]
    lake: Annotated[str, Field(min_length=1)]
    topics: list[TopicName] | None = None
    id_field: Annotated[str, Field(min_length=1)] = "id"
    time_field: Annotated[str, Field(min_length=1)] = "event_time"
    window: Interval = "1 day"
    report: str | None = None


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
        # Named, the columns need not be looked up in every footer; topic and date come with the folders.
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


def differs() -> Any:
    """A condition on a row of `copies`: the id is not exactly once in every tier."""
    return (sf.col("produced") != 1) | (sf.col("brokers") != 1) | (sf.col("lake") != 1)


def by_window(held_copies: DataFrame, window: str) -> DataFrame:
    """Counts by topic and time window, with the column names that `counts_of` expects."""

    def over(tier: str) -> list[Any]:
        count, expected = sf.col(tier), sf.col("produced") > 0
        return [
            sf.sum(count).alias(f"{tier}_held"),
            sf.count_if(expected & (count == 0)).alias(f"{tier}_missing"),
            sf.sum(sf.greatest(count - 1, sf.lit(0))).alias(f"{tier}_duplicated"),
            sf.count_if(~expected & (count > 0)).alias(f"{tier}_unexpected"),
        ]

    start = sf.date_format(sf.window("time", window)["start"], "yyyy-MM-dd'T'HH:mm:ss'Z'")
    # `window` drops rows without a time, which would hide them from the audit.
    known = held_copies.where(sf.col("time").isNotNull()).withColumn("start", start)
    unknown = held_copies.where(sf.col("time").isNull()).withColumn("start", sf.lit("unknown"))
    return (
        known.unionByName(unknown)
        .groupBy("topic", "start")
        .agg(
            sf.count_if(sf.col("produced") > 0).alias("produced_ids"),
            sf.sum(sf.greatest(sf.col("produced") - 1, sf.lit(0))).alias("repeated"),
            *over("brokers"),
            *over("lake"),
        )
        .orderBy("topic", "start")
    )


def counts_of(row: Row) -> Counts:
    brokers, lake = (
        TierCounts(*(int(row[f"{tier}_{name}"]) for name in ("held", "missing", "duplicated", "unexpected")))
        for tier in ("brokers", "lake")
    )
    return Counts(int(row["produced_ids"]), int(row["repeated"]), brokers, lake)


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
    counted = copies(tiers).persist()
    try:
        windows = [
            WindowCounts(row["topic"], row["start"], counts_of(row))
            for row in by_window(counted, config.window).collect()
        ]
        first = counted.where(differs()).orderBy("topic", "id").limit(SAMPLES).collect()
        without_id = brokers.where(sf.col("id").isNull()).count()
    finally:
        for frame in (manifest, brokers, counted):
            frame.unpersist()
    samples = [Difference(r["topic"], r["id"], r["produced"], r["brokers"], r["lake"]) for r in first]
    return ComparisonReport(config.window, windows, samples, without_id)


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
        console.width = 140  # nothing wrapped or cut in a log
    show(found, console)
    return 0 if found.passed else 1
