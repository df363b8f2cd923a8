"""The Spark part of the audit: reads tiers and reduces their records to rows of counts.

Called by the audit jobs. Executors reduce a batch to one row for each producer, topic, window and bucket
of 32,768 numbers: a count of records and a bitmap of numbers. Only these rows reach the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from ottla_pipeline.auditing.events import AuditEvent, ConsumerEvent, EventError, read
from ottla_pipeline.completeness.config import AuditConfig, TierConfig
from ottla_pipeline.completeness.ledger import CountRow
from ottla_pipeline.completeness.number_bitmap import BITS
from ottla_pipeline.config.common import TopicsConfig
from ottla_pipeline.errors import JobStartError
from ottla_pipeline.filesystem import FileSystem
from ottla_pipeline.lake.manifest import Manifest
from ottla_pipeline.lake.parquet_sink import manifest_of
from ottla_pipeline.lake.rows import PRODUCED_AT, PRODUCED_NUMBER, PRODUCER, produced_columns

NAMES: Final = ("topic", PRODUCER, PRODUCED_AT, PRODUCED_NUMBER)
_ALL_FILES: Final = str(2**31 - 1)


def read_topics(spark: SparkSession, config: AuditConfig, tier: TierConfig) -> DataFrame:
    """The record names (topic, producer, time, number) of a cluster's topics, without records of aborted
    transactions."""
    prefix = tier.topic_prefix
    found = (
        spark.readStream.format("kafka")
        .options(**_source(config, tier, _prefixed(config.topics, prefix)))
        .option("includeHeaders", "true")
        .load()
        .withColumns(produced_columns(sf.col("headers")))
    )
    if prefix:
        found = found.withColumn("topic", sf.expr(f"substring(topic, {len(prefix) + 1})"))
    return found.select(*NAMES)


def _source(config: AuditConfig, tier: TierConfig, subscribed: TopicsConfig) -> dict[str, str]:
    if tier.kafka is not None:
        config = config.model_copy(update={"kafka": tier.kafka})
    return {"kafka.isolation.level": "read_committed", **config.source_options(subscribed)}


def _prefixed(wanted: TopicsConfig, prefix: str) -> TopicsConfig:
    """With anchors: Spark takes a topic in which the pattern is found anywhere."""
    if wanted.topics is not None:
        return TopicsConfig(topics=[prefix + name for name in wanted.topics])
    quoted = "".join(f"[{letter}]" if letter in ".-" else letter for letter in prefix)
    return TopicsConfig(topic_pattern=f"^{quoted}(?:{wanted.topic_pattern})$")


def read_tables(spark: SparkSession, config: AuditConfig, paths: list[str]) -> DataFrame:
    """The record names in a lake's Delta tables, as a stream of commits. Compactions add none."""
    files = FileSystem(spark)
    found: DataFrame | None = None
    for path in paths:
        if not _is_table(files, path):
            below = [name for name in files.names(path) if _is_table(files, f"{path}/{name}")]
            hint = f"the tables below it are {', '.join(below)}" if below else "run the lake job first"
            raise JobStartError(f"tiers: {path} is not a Delta table: {hint}")
        lacking = {*NAMES} - {*spark.read.format("delta").load(path).columns}
        if lacking:
            raise JobStartError(
                f"tiers: {path} lacks the columns {', '.join(sorted(lacking))}: is it of an older lake job?"
            )
        rows = (
            spark.readStream.format("delta")
            # One batch reads everything, so that its time is the time up to which the table was read.
            .options(skipChangeCommits="true", maxFilesPerTrigger=_ALL_FILES)
            .load(path)
            .select(*NAMES)
        )
        found = rows if found is None else found.unionByName(rows)
    assert found is not None
    return found.where(is_audited(config.topics))


def is_audited(named: TopicsConfig) -> Column:
    """A condition: the row belongs to a topic of the audit."""
    if named.topics is not None:
        return sf.col("topic").isin(named.topics)
    return sf.col("topic").rlike(f"^(?:{named.topic_pattern})$")


def _is_table(files: FileSystem, path: str) -> bool:
    return files.exists(f"{path}/_delta_log")


def read_audit_topic(spark: SparkSession, config: AuditConfig) -> DataFrame:
    """The records of the audit topic."""
    subscribed = TopicsConfig(topics=[config.audit_topic])
    options = config.source_options(subscribed) | {"startingOffsets": "earliest"}
    return spark.readStream.format("kafka").options(**options).load().select("value")


def count(records: DataFrame, window_ms: int) -> list[CountRow]:
    """The rows of counts of a batch."""
    at_ms = sf.unix_millis(PRODUCED_AT)
    copies = {"records": sf.lit(1)}
    return count_numbers(records, start_ms=at_ms - at_ms % window_ms, copies=copies)["records"]


def count_numbers(
    records: DataFrame, *, start_ms: Column, copies: Mapping[str, Column]
) -> dict[str, list[CountRow]]:
    """The rows of counts of records with the columns `topic`, PRODUCER and PRODUCED_NUMBER, by the keys of
    `copies`. `start_ms` is the start of a record's window; a row of `records` stands for as many records as
    the column of `copies` says, 0 too."""
    position = (sf.col(PRODUCED_NUMBER) % BITS).cast("int")
    counts: list[Column] = []
    for key in copies:
        held = sf.when(sf.col(f"copies_{key}") > 0, sf.col("position"))
        # Most windows are small, so the end of their bitmap is empty.
        bits = sf.substring(
            sf.bitmap_construct_agg(held), sf.lit(1), sf.floor(sf.max(held) / 8).cast("int") + 1
        )
        counts += [sf.sum(f"copies_{key}").alias(f"records_{key}"), bits.alias(f"bits_{key}")]
    counted = (
        records.select(
            "topic",
            sf.col(PRODUCER).alias("producer"),
            start_ms.alias("start_ms"),
            (sf.col(PRODUCED_NUMBER) / BITS).cast("int").alias("bucket"),
            position.alias("position"),
            *(column.alias(f"copies_{key}") for key, column in copies.items()),
        )
        .groupBy("topic", "producer", "start_ms", "bucket")
        .agg(*counts)
        .collect()
    )
    return {
        key: [
            CountRow(
                row["topic"],
                row["producer"],
                row["start_ms"] or 0,
                row["bucket"] or 0,
                int.from_bytes(row[f"bits_{key}"] or b"", "little"),
                row[f"records_{key}"],
            )
            for row in counted
            if row[f"records_{key}"]
        ]
        for key in copies
    }


def parse_events(records: DataFrame) -> tuple[list[AuditEvent | ConsumerEvent], int]:
    """The audit events of a batch, and the number of records that are not audit events."""
    found: list[AuditEvent | ConsumerEvent] = []
    unreadable = 0
    for row in records.collect():
        try:
            found.append(read(row["value"]))
        except EventError:
            unreadable += 1
    return found, unreadable


PARQUET_COLUMNS = f"topic STRING, {PRODUCER} STRING, {PRODUCED_AT} TIMESTAMP, {PRODUCED_NUMBER} BIGINT"
TRIES_MAX = 5


def count_parquet_lake(spark: SparkSession, config: AuditConfig, tier: TierConfig) -> list[CountRow]:
    """The counts of all rows of a Parquet lake: all files that its commit log lists at present.

    Such a lake has no stream, because a compaction replaces files that were read by a file with the same
    rows. The audit reads it from the beginning, once per ledger. A list of files that a compaction made
    obsolete is read again.
    """
    assert tier.parquet is not None
    files = FileSystem(spark)
    lake = files.absolute(tier.parquet)
    if not files.exists(f"{lake}/_commits"):
        raise JobStartError(f"tiers: {lake} has no commit log: it is not a Parquet lake of the lake job")
    for attempt in range(TRIES_MAX):
        known = manifest_of(files, lake)
        paths = list(_paths(files, lake, known))
        if not paths:
            return []
        try:
            return _counted(
                spark.read.schema(PARQUET_COLUMNS).option("basePath", lake).parquet(*paths), config
            )
        except (PySparkException, Py4JError):
            if attempt == TRIES_MAX - 1 or manifest_of(files, lake).files() == known.files():
                raise
    raise AssertionError("the last attempt returned or raised")


def count_parquet_dead_letters(
    spark: SparkSession, config: AuditConfig, folders: list[str]
) -> list[CountRow]:
    """The counts of a Parquet lake's dead letters, which compactions do not touch."""
    files = FileSystem(spark)
    found: list[CountRow] = []
    for folder in folders:
        if any(name.startswith("topic=") for name in files.names(folder)):
            found += _counted(spark.read.schema(PARQUET_COLUMNS).parquet(folder), config)
    return found


def _paths(files: FileSystem, lake: str, known: Manifest) -> Iterator[str]:
    """The paths of the lake's files; a committed file may still be in the staging folder."""
    staged = {
        file: at for change in known.changes for file, at in zip(change.files, change.staged, strict=True)
    }
    for file in known.files():
        moved = file not in staged or files.exists(f"{lake}/{file}")
        yield f"{lake}/{file}" if moved else f"{lake}/{staged[file]}"


def _counted(rows: DataFrame, config: AuditConfig) -> list[CountRow]:
    return count(rows.where(is_audited(config.topics)), config.window_ms)
