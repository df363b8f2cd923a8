"""The lake as Parquet files with a commit log: a batch is staged, committed by one rename, then published.

Called by the jobs. Layout: `LAKE/event_date=2013-01-01/topic=flights.jfk/*.parquet`; invalid records go to
the dead-letter folder (`topic=…/*.parquet`).

Why `foreachBatch` with a commit log of its own, and not Spark's file sink with its `_spark_metadata`: the
file sink writes directly to the visible folders, so the files of an unfinished batch remain there after a
crash, and only Spark skips them; DuckDB, pyarrow or a backup would count their records twice. Its manifest
can never be trimmed, nor the folder compacted. And a sink has one output: dead letters would need a second
query that reads every topic again, with its own offsets. Here events and dead letters become visible
together (see `ottla_pipeline.lake.commits`).
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from ottla_pipeline.checkpoints import Checkpoint
from ottla_pipeline.decoding.plans import SchemaRegistry
from ottla_pipeline.errors import JobStartError
from ottla_pipeline.filesystem import FileSystem
from ottla_pipeline.lake import rows, schema_evolution
from ottla_pipeline.lake.commits import REPLAYED, Commit, CommitLog
from ottla_pipeline.lake.config import LakeConfig
from ottla_pipeline.lake.manifest import COMMITS, Manifest, read_with
from ottla_pipeline.lake.sink import Landed, RecordCounts, persisted

ADDED = "added"
BATCH = "batch"


class ParquetLake:
    """One lake, as its job and its commands write it."""

    def __init__(self, spark: SparkSession, config: LakeConfig, registry: SchemaRegistry | None) -> None:
        self.spark = spark
        self.files = FileSystem(spark)
        self.log = CommitLog(self.files, config.sink.path, config.sink.dead_letters_path)
        self._config = config
        self._registry = registry
        self._checkpoint = Checkpoint(self.files, config.checkpoint)

    def check_owner(self) -> None:
        """Raises JobStartError for a lake with batches of another checkpoint: all records would be written
        a second time."""
        owner, ours = self.log.owner(), self._checkpoint.query_id()
        if owner is not None and owner != ours:
            raise JobStartError(
                f"{self.log.lake} holds batches of another checkpoint (query {owner}); "
                f"{self._config.checkpoint} {'is new' if ours is None else f'is that of query {ours}'}. "
                "Records would be written twice. Use the lake's own checkpoint, or a new lake and checkpoint."
            )
        self.log.recover()

    # -- Writing --

    def land(self, records: DataFrame, batch_id: int) -> Landed | None:
        """Commits and publishes one batch; None if it was committed before.

        Kafka is read once, and a second time only if the batch has dead letters, which costs less than
        persisting every batch; a batch is persisted if planning reads it first.
        """
        known = self.log.find(batch_id)
        if known is not None:
            self.log.publish(known)
            return None
        with persisted(records, self._config) as batch:
            return self._write(batch, BATCH, batch_id)

    def add(self, records: DataFrame, *, replayed: bool) -> Landed:
        """Adds records that the lake lacks: from a backfill, or (`replayed`) from its own dead letters. Of
        the latter the valid ones are marked; the others remain dead letters. One commit, or none if it is
        empty. The records are read several times."""
        return self._write(records, ADDED, None, replayed=replayed)

    def _write(
        self, records: DataFrame, kind: str, batch_id: int | None, *, replayed: bool = False
    ) -> Landed:
        query = self._checkpoint.running_query_id()
        sequence = self.log.next_sequence()
        name = Commit(query, batch_id, 0, 0, (), kind=kind, sequence=sequence).name
        staged_events, staged_dead = self.log.stage(name)
        plans = rows.plans_of(self.spark, self._config, self._registry, records)
        target = rows.table_schema(self.schema(), plans)
        classified = rows.classified(records, plans, target, self._config)
        counts = RecordCounts(classified)
        folder = (rows.EVENT_DATE, rows.TOPIC)
        events = rows.events(counts.counted, target)
        spread = rows.repartition_by_folder(events, folder, self._config.sink.writers_per_folder)
        spread.write.partitionBy(*folder).parquet(staged_events)
        landed = counts.landed()
        if replayed:
            good = classified.where(sf.col("reason").isNull()).select("topic", "partition", "offset")
            if landed.events:
                marks = good.withColumn("replayed_at", sf.current_timestamp())
                marks.coalesce(1).write.parquet(f"{staged_dead}/{REPLAYED}")
        elif landed.dead_letters:
            rows.dead_letters(classified).repartition("topic").write.partitionBy("topic").parquet(staged_dead)
        if batch_id is None and not landed.events and (replayed or not landed.dead_letters):
            self.log.stage(name)
            return landed
        commit = Commit(
            query,
            batch_id,
            landed.events,
            0 if replayed else landed.dead_letters,
            self.log.moves(name),
            schema=target.jsonValue(),
            kind=kind,
            sequence=sequence,
            lake=self.log.lake,
            dead_letters_root=self.log.dead_letters,
        )
        self.log.commit(commit)
        self.log.publish(commit)
        return Landed(landed.events, landed.dead_letters, len(commit.moves))

    # -- Reading --

    def schema(self) -> StructType | None:
        """The event columns of the lake."""
        found = [StructType.fromJson(dict(schema)) for schema in self.log.schemas()]
        return reduce(schema_evolution.merge_structs, found) if found else None

    def manifest(self) -> Manifest:
        return manifest_of(self.files, self.log.lake)

    def origins(self) -> DataFrame | None:
        """Topic, partition and offset of each event in the lake; None if it is empty."""
        files = [f"{self.log.lake}/{file}" for file in self.manifest().files()]
        if not files:
            return None
        columns = "kafka_partition INT, kafka_offset BIGINT, event_date DATE, topic STRING"
        found = self.spark.read.schema(columns).option("basePath", self.log.lake).parquet(*files)
        return found.select("topic", *partition_and_offset())

    def dead_letters(self, *, with_replayed: bool = False) -> DataFrame | None:
        """The dead letters, by default without the replayed ones; None if there are none."""
        if not any(name.startswith("topic=") for name in self.files.names(self.log.dead_letters)):
            return None
        columns = (
            "reason STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY, "
            "headers ARRAY<STRUCT<key: STRING, value: BINARY>>, topic STRING"
        )
        found = self.spark.read.schema(columns).parquet(self.log.dead_letters)
        marks = f"{self.log.dead_letters}/{REPLAYED}"
        if with_replayed or not self.files.names(marks):
            return found
        marked = self.spark.read.schema("topic STRING, partition INT, offset BIGINT").parquet(marks)
        return found.join(marked, ["topic", "partition", "offset"], "left_anti")

    def mark(self, dead: DataFrame) -> None:
        """Marks dead letters as replayed that were sent to a topic, or were added to the lake before."""
        dead.select("topic", "partition", "offset", sf.current_timestamp().alias("replayed_at")).coalesce(
            1
        ).write.mode("append").parquet(f"{self.log.dead_letters}/{REPLAYED}")


def partition_and_offset() -> tuple[Column, Column]:
    """The origin columns under Kafka's names."""
    return sf.col(rows.ORIGIN[0]).alias("partition"), sf.col(rows.ORIGIN[1]).alias("offset")


def manifest_of(files: FileSystem, lake: str) -> Manifest:
    """A lake's commit log, read through Hadoop's file system."""
    folder = f"{lake}/{COMMITS}"

    def text(name: str) -> str:
        if not files.exists(f"{folder}/{name}"):
            raise FileNotFoundError(name)
        return files.read(f"{folder}/{name}")

    return read_with(lambda: files.names(folder), text)
