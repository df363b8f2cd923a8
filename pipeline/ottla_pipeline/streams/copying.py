"""A copy of a compacted topic as a Delta table, maintained by a query, for topics too large to read in each
batch.

Called by users' jobs through `Job.copy_topic`. Invariant: after each batch the table has the last record
of each key up to the batch's offsets, and no row for a key whose last record is a tombstone. A batch that
is merged again after a crash changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StringType, StructField, StructType

from ottla_pipeline.config.common import KafkaConfig, TopicsConfig, Trigger
from ottla_pipeline.decoding import Plan
from ottla_pipeline.decoding.plans import Schemas
from ottla_pipeline.streams.reading import Invalid, source_options
from ottla_pipeline.streams.tables import last_records, table_plan, table_rows

_DELETED = "_deleted"


def copy_topic(
    spark: SparkSession,
    kafka: KafkaConfig,
    topic: str,
    form: str | Mapping[str, Any],
    *,
    key: str,
    path: str,
    name: str,
    checkpoint: str,
    trigger: Trigger | None = None,
    invalid: Invalid = "fail",
    registry: Schemas | None = None,
    options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Copies the present records of the topic, then starts the query that follows it. `path` is the Delta
    table, which is created if necessary; `delta_table(spark, path)` reads it. The other arguments are as
    in `topic_table` and `write`."""
    topics = TopicsConfig(topics=[topic])
    how = table_plan(spark, topics, form, key, registry)
    made = DeltaTable.createIfNotExists(spark).location(path)
    made.addColumns(StructType([StructField(key, StringType()), *how.fields.fields])).execute()
    records = spark.readStream.format("kafka").options(
        **source_options(kafka, topics), startingOffsets="earliest", **(options or {})
    )

    def merge(batch: DataFrame, batch_id: int) -> None:
        _merge(DeltaTable.forPath(spark, path), changes(batch, how, key, invalid), key)

    def start(when: Trigger) -> StreamingQuery:
        writer = records.load().writeStream.queryName(name).foreachBatch(merge)
        writer = writer.option("checkpointLocation", checkpoint)
        return writer.trigger(**when.write_options()).start()

    start(Trigger(available_now=True)).awaitTermination()
    return start(trigger or Trigger())


def changes(batch: DataFrame, how: Plan, key: str, invalid: Invalid) -> DataFrame:
    """A row for each key of a batch: the table's columns, and `_deleted`, true for a tombstone."""
    last = last_records(batch)
    gone = last.where(sf.col("value").isNull()).select(sf.col("key").cast("string").alias(key))
    there = table_rows(last, how, key, invalid).withColumn(_DELETED, sf.lit(False))
    return there.unionByName(gone.withColumn(_DELETED, sf.lit(True)), allowMissingColumns=True)


def _merge(table: DeltaTable, changed: DataFrame, key: str) -> None:
    columns: dict[str, str | Column] = {
        f"`{name}`": f"s.`{name}`" for name in changed.columns if name != _DELETED
    }
    merge = table.alias("t").merge(changed.alias("s"), f"t.`{key}` = s.`{key}`")
    merge = merge.whenMatchedDelete(f"s.{_DELETED}").whenMatchedUpdate(set=columns)
    merge.whenNotMatchedInsert(f"NOT s.{_DELETED}", values=columns).execute()
