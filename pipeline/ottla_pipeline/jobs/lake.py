"""Writes topics to a lake, each record exactly once: Delta tables, or Parquet files with a commit log.

    ottla-pipeline lake --config FILE [--available-now]

Exactly-once delivery has three conditions: Spark writes a batch's offsets to the checkpoint before it runs
the batch, and repeats the same offsets with the same number after a crash; a committed batch is never
written again (`lake.parquet_sink`, `lake.delta_sink`); a lake accepts batches of one checkpoint only. If
records were deleted before they were read, the job stops (`failOnDataLoss`) instead of leaving a gap.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from prometheus_client import Counter
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from ottla_pipeline.lake import session
from ottla_pipeline.lake.config import LakeConfig
from ottla_pipeline.lake.session import open_lake
from ottla_pipeline.running import JobContext

CONFIG = LakeConfig
SESSION = session.SESSION


def start(context: JobContext, config: LakeConfig) -> Sequence[StreamingQuery]:
    """Starts the streaming query."""
    lake = open_lake(context.spark, config)
    lake.check_owner()
    events = Counter("ottla_lake_events", "Events landed.", registry=context.metrics)
    dead = Counter("ottla_lake_dead_letters", "Records that are not events.", registry=context.metrics)

    def land(records: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        landed = lake.land(records, batch_id)
        if landed is None:
            context.echo(f"batch {batch_id}: was committed before; publication completed")
            return
        events.inc(landed.events)
        dead.inc(landed.dead_letters)
        files = "" if landed.files is None else f"{landed.files:,} files, "
        context.echo(
            f"batch {batch_id}: {landed.events:,} events landed, {landed.dead_letters:,} dead letters, "
            f"{files}{time.monotonic() - began:.1f} s"
        )

    records = context.spark.readStream.format("kafka").options(**config.read_options()).load()
    writer = records.writeStream.queryName(config.name).foreachBatch(land)
    writer = writer.option("checkpointLocation", config.checkpoint)
    return [writer.trigger(**config.trigger.write_options()).start()]
