"""Writes topics to a lake, each record exactly once: Delta tables, or Parquet files with a commit log.

    ottla-pipeline lake --config FILE [--available-now]

Exactly-once delivery has three conditions: Spark writes a batch's offsets to the checkpoint before it runs
the batch, and repeats the same offsets with the same number after a crash; a committed batch is never
written again (`lake.parquet_sink`, `lake.delta_sink`); a lake accepts batches of one checkpoint only. If
records were deleted before they were read, the job stops (`failOnDataLoss`) instead of leaving a gap.

The other jobs of a lake (`lake-compact`, `replay`, `backfill`) use its session settings and `open_lake`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ottla_pipeline.decoding.avro import EXECUTOR_OPTIONS
from ottla_pipeline.decoding.formats import JsonFormat, SchemaUnusable
from ottla_pipeline.decoding.plans import ddl
from ottla_pipeline.errors import JobStartError
from ottla_pipeline.lake import rows
from ottla_pipeline.lake.config import DeltaSinkConfig, LakeConfig
from ottla_pipeline.lake.delta_sink import DeltaLake
from ottla_pipeline.lake.parquet_sink import ParquetLake
from ottla_pipeline.lake.sink import Lake
from ottla_pipeline.running import JobContext
from ottla_pipeline.spark import DELTA_SETTINGS

SESSION: Final[Mapping[str, str]] = {
    **DELTA_SETTINGS,
    # The rule replaces a plan without rows by an empty relation. Spark then loses the observation of the
    # batch, and a job would wait for it without end.
    "spark.sql.adaptive.optimizer.excludedRules": (
        "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"
    ),
    # Staged files need neither a second commit by rename nor a marker.
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.executor.extraJavaOptions": EXECUTOR_OPTIONS,
}


def open_lake(spark: SparkSession, config: LakeConfig) -> Lake:
    """The configured lake, after a check of its columns as far as they are known. Raises JobStartError."""
    if isinstance(config.format, JsonFormat):
        try:
            rows.check_fields(ddl(config.format.fields), config.event)
        except SchemaUnusable as error:
            raise JobStartError(f"format.fields: {error}") from error
    registry = config.registry_client()
    if isinstance(config.sink, DeltaSinkConfig):
        return DeltaLake(spark, config, registry)
    return ParquetLake(spark, config, registry)


CONFIG = LakeConfig


class LakeMetrics:
    """The job's own metrics at /metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.events = Counter("ottla_lake_events", "Events landed.", registry=registry)
        self.dead_letters = Counter(
            "ottla_lake_dead_letters", "Records that are not events.", registry=registry
        )


def start(context: JobContext, config: LakeConfig) -> Sequence[StreamingQuery]:
    """Starts the streaming query."""
    lake = open_lake(context.spark, config)
    lake.check_owner()
    metrics = LakeMetrics(context.metrics)

    def land(records: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        landed = lake.land(records, batch_id)
        if landed is None:
            context.echo(f"batch {batch_id}: was committed before; publication completed")
            return
        metrics.events.inc(landed.events)
        metrics.dead_letters.inc(landed.dead_letters)
        files = "" if landed.files is None else f"{landed.files:,} files, "
        context.echo(
            f"batch {batch_id}: {landed.events:,} events landed, {landed.dead_letters:,} dead letters, "
            f"{files}{time.monotonic() - began:.1f} s"
        )

    records = context.spark.readStream.format("kafka").options(**config.read_options()).load()
    writer = records.writeStream.queryName(config.name).foreachBatch(land)
    writer = writer.option("checkpointLocation", config.checkpoint)
    return [writer.trigger(**config.trigger.write_options()).start()]
