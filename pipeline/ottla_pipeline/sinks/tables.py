"""Sinks that write each batch once to a Delta table, or to Parquet files with a commit log.

Called by `streams.writing` and `windowing.batch`, on the driver. Delta stores the number of each writer's
last batch in its own log (a transaction's `txn` action) and skips a batch that it has. With `keys` a row
replaces the row of the same keys, so a repeated batch changes nothing. The Parquet log is that of the lake
job's Parquet sink: the files are staged, committed by one rename, then moved to their targets; for a
committed batch only the moves are completed. Readers use `lake.manifest`, or the folders.
"""

from __future__ import annotations

from collections.abc import Sequence

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from ottla_pipeline.errors import JobStartError
from ottla_pipeline.filesystem import FileSystem
from ottla_pipeline.lake.commits import Commit, CommitLog
from ottla_pipeline.lake.delta_sink import delta_transactions


class DeltaSink:
    """A Delta table. With `keys`, a later row replaces an earlier one of the same keys; a batch must have
    at most one row for each."""

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        *,
        partition_by: Sequence[str] = (),
        keys: Sequence[str] | None = None,
    ) -> None:
        self._spark = spark
        self._path = path
        self._partition_by = partition_by
        self._keys = keys
        self._query_id = ""

    def open(self, query_id: str) -> None:
        """Sets the query whose batches are numbered. Raises JobStartError if the table has batches of
        another query."""
        self._query_id = query_id
        if DeltaTable.isDeltaTable(self._spark, self._path):
            others = sorted(delta_transactions(self._spark, self._path).keys() - {query_id})
            if others:
                raise JobStartError(
                    f"{self._path} holds batches of another checkpoint (query {others[0]}); this one is "
                    f"{query_id}. Results would be written twice. Use that checkpoint, or another table."
                )

    def write(self, rows: DataFrame, count: int, batch_id: int) -> None:
        """Adds the `count` rows of the batch, unless the table has the batch."""
        if self._keys is not None and DeltaTable.isDeltaTable(self._spark, self._path):
            self._merge(rows, self._keys)
            return
        writer = rows.write.format("delta").mode("append").partitionBy(*self._partition_by)
        writer.option("txnAppId", self._query_id).option("txnVersion", batch_id).save(self._path)

    def _merge(self, rows: DataFrame, keys: Sequence[str]) -> None:
        same = " AND ".join(f"t.`{name}` <=> s.`{name}`" for name in keys)
        table = DeltaTable.forPath(self._spark, self._path).alias("t")
        merge = table.merge(rows.alias("s"), same)
        merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()

    def close(self) -> None:
        pass


# No compaction writes snapshots of this log, and readers read all of it.
SNAPSHOT_EVERY = 100


class ParquetSink:
    """Parquet files, partitioned by `partition_by`."""

    def __init__(self, spark: SparkSession, path: str, *, partition_by: Sequence[str] = ()) -> None:
        self._log = CommitLog(FileSystem(spark), path, f"{path}-dead-letters")
        self._partition_by = partition_by
        self._query_id = ""

    def open(self, query_id: str) -> None:
        """Sets the query whose batches are numbered. Raises JobStartError if the folder has batches of
        another query."""
        self._query_id = query_id
        owner = self._log.owner()
        if owner not in (None, query_id):
            raise JobStartError(
                f"{self._log.lake} holds batches of another checkpoint (query {owner}); this one is "
                f"{query_id}. Results would be written twice. Use that checkpoint, or another folder."
            )
        self._log.recover()

    def write(self, rows: DataFrame, count: int, batch_id: int) -> None:
        """Adds the `count` rows of the batch, unless the log has the batch."""
        log = self._log
        known = log.find(batch_id)
        if known is not None:
            log.publish(known)
            return
        sequence = log.next_sequence()
        name = Commit(self._query_id, batch_id, 0, 0, ()).name
        staged, _ = log.stage(name)
        spread = rows.repartition(*self._partition_by) if self._partition_by else rows
        spread.write.partitionBy(*self._partition_by).parquet(staged)
        commit = Commit(
            self._query_id,
            batch_id,
            count,
            0,
            log.moves(name),
            schema=rows.schema.jsonValue(),
            sequence=sequence,
            lake=log.lake,
            dead_letters_root=log.dead_letters,
        )
        log.commit(commit)
        log.publish(commit)
        if sequence % SNAPSHOT_EVERY == 0:
            log.write_snapshot()

    def close(self) -> None:
        pass
