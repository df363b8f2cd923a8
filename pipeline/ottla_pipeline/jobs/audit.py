"""The audit job: proves that what was produced is in the brokers and in the lake, each event once.

    python -m ottla_pipeline.jobs.audit --bootstrap HOST:PORT --manifest FILE --lake DIR [--report FILE]

Every event has an id that no other event of its topic has. Three sets of ids meet here, each come by on its
own way: the producer's manifest (JSON lines `{"id", "topic", "time"}`, one for each event acknowledged), the
brokers (read by confluent-kafka, see `ottla_pipeline.held`), and the lake (its Parquet files as any reader
sees them, not the lake job's log of what it thinks it wrote). Spark joins them, so size is no matter.

Exit status: 0 when every id is held exactly once in both, 1 on any difference, 2 when no audit was had.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from confluent_kafka import KafkaException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from rich.console import Console

from ottla_pipeline import held, reach
from ottla_pipeline.commits import Files
from ottla_pipeline.jobs.lake import SPARK_ERRORS, pairs, short
from ottla_pipeline.schema import EventSchema, SchemaError
from ottla_pipeline.spark import JavaMissing, build_session
from ottla_pipeline.tally import Difference, Report, Tally, Tier, Window

COLUMNS = "topic STRING, id STRING, time STRING"
SAMPLES = 20
TIERS = ("produced", "brokers", "lake")


class ManifestUnusable(Exception):
    """A manifest that nothing can be held against; the message says why."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What to compare. `topics` are audited besides those the manifest names (all is unexpected there)."""

    bootstrap: str
    manifest: str
    lake: str
    topics: tuple[str, ...] = ()
    schema: EventSchema = field(default_factory=EventSchema)
    window: str = "1 day"
    kafka_options: Mapping[str, str] = field(default_factory=dict)


def timed(frame: DataFrame, tier: str) -> DataFrame:
    """Topic, id and time (a timestamp, null if it cannot be read) of one tier's events."""
    time = sf.try_to_timestamp(sf.col("time"))
    return frame.select("topic", "id", time.alias("time"), sf.lit(tier).alias("tier"))


def produced(spark: SparkSession, manifest: str) -> DataFrame:
    return timed(spark.read.schema(COLUMNS).option("mode", "FAILFAST").json(manifest), "produced")


def in_brokers(spark: SparkSession, audit: Audit, topics: list[str]) -> DataFrame:
    """Every record of these topics; the id is null where the record has none."""
    wanted = held.ranges(audit.bootstrap, topics, audit.kafka_options)
    bootstrap, options = audit.bootstrap, dict(audit.kafka_options)
    id_field, time_field = audit.schema.id_field, audit.schema.time_field

    def read(parts: Iterable[held.Range]) -> Iterator[tuple[str, str | None, str | None]]:
        for part in parts:
            yield from held.read(held.Range(*part), bootstrap, id_field, time_field, options)

    if not wanted:
        return timed(spark.createDataFrame([], COLUMNS), "brokers")
    rows = spark.sparkContext.parallelize(wanted, len(wanted)).mapPartitions(read)
    return timed(spark.createDataFrame(rows, COLUMNS, verifySchema=False), "brokers")


def in_lake(spark: SparkSession, audit: Audit, topics: list[str]) -> DataFrame:
    """Every event that a reader of the lake's Parquet files finds."""
    files = Files(spark)
    if not any(path.endswith(".parquet") for path in files.walk(audit.lake)):
        return timed(spark.createDataFrame([], COLUMNS), "lake")
    identity, time = audit.schema.id_field, audit.schema.time_field
    # Named, the columns need not be looked up in every file's footer; topic and date come with the folders.
    events = spark.read.schema(f"`{identity}` STRING, `{time}` TIMESTAMP").parquet(audit.lake)
    return events.where(sf.col("topic").isin(topics)).select(
        "topic", sf.col(identity).alias("id"), sf.col(time).alias("time"), sf.lit("lake").alias("tier")
    )


def copies(tiers: DataFrame) -> DataFrame:
    """For each topic and id: how often each tier holds it, and its time."""
    counts = [sf.count_if(sf.col("tier") == tier).alias(tier) for tier in TIERS]
    return (
        tiers.where(sf.col("id").isNotNull())
        .groupBy("topic", "id")
        .agg(*counts, sf.min("time").alias("time"))
    )


def differs() -> Any:
    """Of a row of `copies`: not held exactly once everywhere."""
    return (sf.col("produced") != 1) | (sf.col("brokers") != 1) | (sf.col("lake") != 1)


def by_window(held_copies: DataFrame, window: str) -> DataFrame:
    """Counts of each topic and time window, named as `tally_of` reads them."""

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


def tally_of(row: Row) -> Tally:
    brokers, lake = (
        Tier(*(int(row[f"{tier}_{name}"]) for name in ("held", "missing", "duplicated", "unexpected")))
        for tier in ("brokers", "lake")
    )
    return Tally(int(row["produced_ids"]), int(row["repeated"]), brokers, lake)


def run(spark: SparkSession, audit: Audit) -> Report:
    """Compares the three sets and returns what differs."""
    manifest = produced(spark, audit.manifest).persist()
    try:
        named = {row["topic"] for row in manifest.select("topic").distinct().collect()}
        nameless = manifest.where(sf.col("id").isNull() | sf.col("topic").isNull()).count()
    except SPARK_ERRORS as error:
        raise ManifestUnusable(f"{audit.manifest} cannot be read as JSON lines: {short(error)}") from None
    if nameless:
        raise ManifestUnusable(f"{audit.manifest}: {nameless:,} lines are without an id or a topic")
    topics = sorted(named | set(audit.topics))
    if not topics:
        raise ManifestUnusable(f"{audit.manifest} holds no event, and no --topics are given")
    brokers = in_brokers(spark, audit, topics).persist()
    tiers = manifest.unionByName(brokers).unionByName(in_lake(spark, audit, topics))
    counted = copies(tiers).persist()
    try:
        windows = [
            Window(row["topic"], row["start"], tally_of(row))
            for row in by_window(counted, audit.window).collect()
        ]
        first = counted.where(differs()).orderBy("topic", "id").limit(SAMPLES).collect()
        without_id = brokers.where(sf.col("id").isNull()).count()
    finally:
        for frame in (manifest, brokers, counted):
            frame.unpersist()
    samples = [Difference(r["topic"], r["id"], r["produced"], r["brokers"], r["lake"]) for r in first]
    return Report(audit.window, windows, samples, without_id)


def session_settings() -> dict[str, str]:
    """Session settings of this job: a topic named 007 stays text, and the driver lists the lake's folders."""
    return {
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    }


def show(report: Report, console: Console) -> None:
    for table in report.tables():
        console.print(table)
    if report.without_id:
        console.print(f"{report.without_id:,} records in the brokers have no id that can be read.")
    verdict = "every event is held exactly once" if report.passed else "DIFFERENCES: see above"
    console.print(f"audit: {verdict}", highlight=False)


@click.command(context_settings={"max_content_width": 110})
@click.option("--bootstrap", required=True, metavar="HOST:PORT,…", help="Brokers to start from.")
@click.option(
    "--manifest", required=True, metavar="FILE", help="JSON lines: id, topic, time of each event produced."
)
@click.option("--lake", required=True, metavar="DIR", help="The lake's folder.")
@click.option("--topics", default="", metavar="A,B", help="Topics besides those that the manifest names.")
@click.option(
    "--schema", "schema_file", type=click.Path(path_type=Path), help="JSON: fields (DDL), id, time."
)
@click.option("--window", default="1 day", show_default=True, help="Length of the time windows.")
@click.option(
    "--report", type=click.Path(path_type=Path, dir_okay=False), help="Where to write the report (JSON)."
)
@click.option("--kafka-option", multiple=True, callback=pairs, metavar="NAME=VALUE", help="A client setting.")
@click.option(
    "--master", default="local[2]", show_default=True, help="Spark master (not under spark-submit)."
)
@click.option("--memory", default="1g", show_default=True, help="Driver memory (not under spark-submit).")
def main(
    bootstrap: str,
    manifest: str,
    lake: str,
    topics: str,
    schema_file: Path | None,
    window: str,
    report: Path | None,
    kafka_option: dict[str, str],
    master: str,
    memory: str,
) -> None:
    """Compares ids produced, held by the brokers and held by the lake; exits 1 on any difference."""
    try:
        audit = Audit(
            bootstrap=bootstrap,
            manifest=manifest,
            lake=lake,
            topics=tuple(name.strip() for name in topics.split(",") if name.strip()),
            schema=EventSchema.from_file(schema_file) if schema_file else EventSchema(),
            window=window,
            kafka_options=kafka_option,
        )
        reach.check(bootstrap)
        spark = build_session("ottla-audit", master=master, memory=memory, extra=session_settings())
        found = run(spark, audit)
        spark.stop()
    except KafkaException as error:
        click.echo(f"audit: {error.args[0].str()}", err=True)
        sys.exit(2)
    except (SchemaError, JavaMissing, reach.Unreachable, ManifestUnusable) as error:
        click.echo(f"audit: {error}", err=True)
        sys.exit(2)
    except SPARK_ERRORS as error:
        click.echo(f"audit: {short(error)}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    if report is not None:
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(found.to_json())
    console = Console()
    if not console.is_terminal:
        console.width = 140  # nothing wrapped or cut in a log
    show(found, console)
    sys.exit(0 if found.passed else 1)


if __name__ == "__main__":
    main()
