"""Batches to plain Parquet files with a commit log, each batch once.

Called by `streams.writing` and `windowing.batch`, on the driver. The log is that of the lake job's Parquet
sink: a batch's files are staged, one rename commits them, then they are moved into sight; a batch that is
committed is only moved to the end. Readers go by `lake.manifest`, or by the folders.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from ottla_pipeline.errors import CannotBegin
from ottla_pipeline.lake.commits import Commit, CommitLog
from ottla_pipeline.lake.files import Files

# Nothing else folds this log, and who reads it reads all of it.
FOLDED_EVERY = 100


class ParquetSink:
    """Files in folders by `partition_by`."""

    def __init__(self, spark: SparkSession, path: str, *, partition_by: Sequence[str] = ()) -> None:
        self._log = CommitLog(Files(spark), path, f"{path}-dead-letters")
        self._partition_by = partition_by
        self._query_id = ""

    def open(self, query_id: str) -> None:
        """Whose batches are numbered. CannotBegin if the lake holds those of another."""
        self._query_id = query_id
        owner = self._log.owner()
        if owner not in (None, query_id):
            raise CannotBegin(
                f"{self._log.lake} holds batches of another checkpoint (query {owner}); this one is "
                f"{query_id}. Results would be there twice. Use that checkpoint, or another folder."
            )
        self._log.recover()

    def write(self, rows: DataFrame, count: int, batch_id: int) -> None:
        """Adds the batch's rows, of which there are so many, unless it is there."""
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
        if sequence % FOLDED_EVERY == 0:
            log.fold()

    def close(self) -> None:
        pass
