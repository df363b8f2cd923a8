"""Writes a stream's rows to topics and tables, each batch once.

Called by users' jobs, and in parts by the windows job. Exactly-once delivery has three conditions: Spark
writes a batch's offsets to the checkpoint before it runs the batch, and repeats the same offsets with the
same state and number after a crash; each sink stores the number of the last batch together with its rows;
and a sink accepts batches of one checkpoint only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BinaryType, StringType

from ottla_pipeline.checkpoints import Checkpoint
from ottla_pipeline.config.common import KafkaConfig, Trigger
from ottla_pipeline.decoding.avro import EXECUTOR_OPTIONS
from ottla_pipeline.filesystem import FileSystem
from ottla_pipeline.sinks.transactional import OutgoingRecord, TransactionalWriter
from ottla_pipeline.spark import DELTA_SETTINGS
from ottla_pipeline.streams.reading import RECORD

SESSION: Final[Mapping[str, str]] = {
    **DELTA_SETTINGS,
    # The number of tasks that read a table's log in each batch. Delta's default, 50, suits millions of files.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.executor.extraJavaOptions": EXECUTOR_OPTIONS,
}
"""Settings of a session that uses these sinks."""
COLLECTED_MAX = 1_000
"""The driver collects up to this number of rows at once, more by partition."""

OutputMode = Literal["append", "update"]


class Sink(Protocol):
    """A destination of batches. `open` is called first, with the id of the checkpoint's query; it raises
    JobStartError if there are batches of another query. `write` adds a batch's `count` rows, unless the
    batch is there."""

    def open(self, query_id: str) -> None: ...
    def write(self, rows: DataFrame, count: int, batch_id: int) -> None: ...
    def close(self) -> None: ...


class TopicSink:
    """Writes rows as records of a topic, each batch in one transaction (`sinks.transactional`).

    A value is a JSON object of all columns, with times in ISO 8601 in UTC and with nulls. The key consists
    of the columns `key`: the text of one column of text or bytes (null if it is null), else a JSON object
    of them; without columns, records have no key. `name` is the transactional id and, with "-results", the
    group that stores the batches' numbers; it belongs to one job only.
    """

    def __init__(self, kafka: KafkaConfig, topic: str, *, name: str, key: Sequence[str] = ()) -> None:
        self._topic = topic
        self._key = list(key)
        self._topics = TransactionalWriter(
            kafka.librdkafka(), transactional_id=name, group=f"{name}-results", marker=topic
        )

    def open(self, query_id: str) -> None:
        self._topics.open(query_id)

    def write(self, rows: DataFrame, count: int, batch_id: int) -> None:
        value = json_bytes(sf.struct(*rows.columns))
        records = rows.select(key_bytes(rows, self._key).alias("key"), value.alias("value"))
        self._topics.write(batch_id, lambda: outgoing(records, count, self._topic))

    def close(self) -> None:
        self._topics.close()


def write(
    rows: DataFrame,
    to: Sequence[Sink],
    *,
    name: str,
    checkpoint: str,
    trigger: Trigger | None = None,
    output_mode: OutputMode = "append",
) -> StreamingQuery:
    """Starts a query that writes a stream's rows to all of `to`, in their order; it continues from its
    checkpoint, a folder of its own. `output_mode`: "append" writes final rows, "update" those of windows
    that changed in a batch. The column `_record` and batches without rows are not written."""
    rows = rows.drop(RECORD)
    progress = Checkpoint(FileSystem(rows.sparkSession), checkpoint)
    opened: list[Sink] = []

    def write_batch(found: DataFrame, batch_id: int) -> None:
        if not opened:
            query = progress.running_query_id()
            for sink in to:
                sink.open(query)
            opened.extend(to)
        # Computed once: two sinks get the same rows, even if a joined table changes meanwhile.
        kept = found.persist()
        try:
            count = kept.count()
            for sink in to if count else ():
                sink.write(kept, count, batch_id)
        finally:
            kept.unpersist()

    writer = rows.writeStream.queryName(name).foreachBatch(write_batch).outputMode(output_mode)
    writer = writer.option("checkpointLocation", checkpoint)
    return writer.trigger(**(trigger or Trigger()).write_options()).start()


def json_bytes(column: Column) -> Column:
    """A struct as the bytes of a JSON object."""
    return sf.to_json(column, {"ignoreNullFields": "false"}).cast("binary")


def key_bytes(rows: DataFrame, names: Sequence[str]) -> Column:
    """The key of `TopicSink`'s records."""
    if not names:
        return sf.lit(None).cast("binary")
    if len(names) == 1 and isinstance(rows.schema[names[0]].dataType, StringType | BinaryType):
        return sf.col(names[0]).cast("binary")
    return json_bytes(sf.struct(*names))


def outgoing(records: DataFrame, count: int, topic: str) -> Iterator[OutgoingRecord]:
    """Records of `count` rows with `key` and `value`: few rows are collected by one Spark job, more by one
    job per partition, so that the driver holds one partition at a time."""
    rows = records.collect() if count <= COLLECTED_MAX else records.toLocalIterator()
    for row in rows:
        key = row["key"]
        yield OutgoingRecord(topic, bytes(key) if key is not None else None, bytes(row["value"]))
