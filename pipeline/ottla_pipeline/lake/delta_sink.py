"""The lake as Delta tables: one for each topic, or one for all; dead letters are a Delta table, too.

Called by the jobs. Each write has `txnAppId` (the streaming query's id) and `txnVersion` (the batch's
number): Delta skips a version that a table has. That makes one table exactly once. A batch writes several
tables, and between two of them a schema may be registered, or the configuration may change: a record could
then be a dead letter in one write and no event in the other. So the plans of a batch (schemas, and the
tables' columns) are stored beside the checkpoint before its first write, and a repeated batch uses them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from ottla_pipeline.checkpoints import Checkpoint
from ottla_pipeline.decoding import Plan
from ottla_pipeline.decoding.plans import SchemaRegistry
from ottla_pipeline.errors import JobStartError
from ottla_pipeline.filesystem import FileSystem
from ottla_pipeline.lake import rows, schema_evolution
from ottla_pipeline.lake.config import DeltaSinkConfig, LakeConfig
from ottla_pipeline.lake.rows import TopicPlan
from ottla_pipeline.lake.sink import Landed, RecordCounts, persisted

APP = "ottla-lake:"
PLANS = "ottla-plans"


class DeltaLake:
    """The tables of one lake, as its job and its commands write them."""

    def __init__(self, spark: SparkSession, config: LakeConfig, registry: SchemaRegistry | None) -> None:
        assert isinstance(config.sink, DeltaSinkConfig)
        self.spark = spark
        self.files = FileSystem(spark)
        self._config = config
        self._registry = registry
        self._checkpoint = Checkpoint(self.files, config.checkpoint)
        self._root = self.files.absolute(config.sink.path)
        self._dead = self.files.absolute(config.sink.dead_letters_path)
        self._per_topic = config.sink.tables == "perTopic"
        self._has_dead = False

    # -- Tables --

    def table_of(self, topic: str | None) -> str:
        return f"{self._root}/{topic}" if topic is not None else self._root

    def tables(self) -> list[str]:
        """The paths of the existing tables."""
        found = [self.table_of(n) for n in self.files.names(self._root)] if self._per_topic else [self._root]
        return [path for path in found if self.is_table(path)]

    def partitioned_by(self) -> tuple[str, ...]:
        return (rows.EVENT_DATE,) if self._per_topic else (rows.EVENT_DATE, rows.TOPIC)

    def is_table(self, path: str) -> bool:
        return self.files.exists(f"{path}/_delta_log")

    def data_files(self, path: str) -> DataFrame:
        """A table's data files: `path`, `size` in bytes, and `partitionValues`, a map of texts."""
        return DataFrame(_delta_snapshot(self.spark, path).allFiles().toDF(), self.spark)

    def check_owner(self) -> None:
        """Raises JobStartError for tables with batches of another checkpoint: all records would be written
        a second time."""
        ours = self._checkpoint.query_id()
        for path in self.tables():
            for app in delta_transactions(self.spark, path):
                owner = app.removeprefix(APP)
                if app.startswith(APP) and owner != ours:
                    raise JobStartError(
                        f"{path} holds batches of another checkpoint (query {owner}); "
                        f"{self._config.checkpoint} {'is new' if ours is None else f'is that of {ours}'}. "
                        "Records would be written twice. Use the lake's own checkpoint, or a new lake."
                    )

    # -- Writing --

    def land(self, records: DataFrame, batch_id: int) -> Landed | None:
        """Writes one batch to each table that lacks it; None if every table has it."""
        query = self._checkpoint.running_query_id()
        with persisted(records, self._config) as batch:
            path = f"{self._config.checkpoint}/{PLANS}/{batch_id:010d}.json"
            again = self.files.exists(path)
            if again:
                plans = plans_from_json(self.files.read(path))
            else:
                plans = self._plans(batch)
                self._store(path, plans_to_json(plans))
            options = {"txnAppId": f"{APP}{query}", "txnVersion": str(batch_id)}
            landed = self._write(batch, plans, options, again=again)
        self.files.remove(f"{self._config.checkpoint}/{PLANS}/{batch_id - 1:010d}.json")
        return landed

    def _store(self, path: str, text: str) -> None:
        folder, _, name = path.rpartition("/")
        self.files.make_directories(folder)
        self.files.write(f"{folder}/.{name}.part", text)
        self.files.rename(f"{folder}/.{name}.part", path)

    def _plans(self, batch: DataFrame) -> list[tuple[str, StructType, list[TopicPlan]]]:
        """For each table, its event columns after the batch, and the plans of its topics."""
        plans = rows.plans_of(self.spark, self._config, self._registry, batch)
        if not self._per_topic:
            return [(self._root, rows.table_schema(self.schema(self._root), plans), plans)]
        if plans[0].topic is None:  # all topics are read alike, into a table each
            topics = sorted(row["topic"] for row in batch.select("topic").distinct().collect())
            plans = [TopicPlan(topic, plans[0].how, plans[0].problem) for topic in topics]
        made = []
        for each in plans:
            path = self.table_of(each.topic)
            made.append((path, rows.table_schema(self.schema(path), [each]), [each]))
        return made

    def schema(self, path: str) -> StructType | None:
        return self.spark.read.format("delta").load(path).schema if self.is_table(path) else None

    def _write(
        self,
        batch: DataFrame,
        tables: list[tuple[str, StructType, list[TopicPlan]]],
        options: Mapping[str, str],
        *,
        again: bool = False,
        replayed: bool = False,
    ) -> Landed | None:
        events = dead = written = 0
        for path, target, plans in tables:
            if again and self._has(path, options):
                continue
            written += 1
            classified = rows.classified(batch, plans, target, self._config)
            counts = RecordCounts(classified)
            self._append(rows.events(counts.counted, target), path, options)
            landed = counts.landed()
            events += landed.events
            dead += landed.dead_letters
        if not tables or replayed or (again and self._has(self._dead, options)):
            return Landed(events, dead) if written or not tables else None
        if dead or again or not self._dead_is_table():
            found = [
                rows.dead_letters(rows.classified(batch, p, target, self._config)) for _, target, p in tables
            ]
            letters = reduce(DataFrame.unionByName, found)
            letters = letters.withColumn("replayed_at", sf.lit(None).cast("timestamp"))
            if dead or again:
                self._append_dead(letters, options)
            else:  # the table exists for readers before the first dead letter
                self._make_dead(letters.schema)
        return Landed(events, dead)

    def _dead_is_table(self) -> bool:
        """Whether the table of dead letters exists; checked once, not for every batch."""
        self._has_dead = self._has_dead or self.is_table(self._dead)
        return self._has_dead

    def _has(self, path: str, options: Mapping[str, str]) -> bool:
        if not self.is_table(path):
            return False
        return delta_transactions(self.spark, path).get(options["txnAppId"], -1) >= int(options["txnVersion"])

    def _append(self, events: DataFrame, path: str, options: Mapping[str, str]) -> None:
        by = self.partitioned_by()
        spread = rows.repartition_by_folder(events, by, self._config.sink.writers_per_folder)
        writer = spread.write.format("delta").mode("append").partitionBy(*by)
        writer.option("mergeSchema", "true").options(**options).save(path)

    def _append_dead(self, letters: DataFrame, options: Mapping[str, str]) -> None:
        writer = letters.repartition("topic").write.format("delta").mode("append").partitionBy("topic")
        writer.options(**options).save(self._dead)

    def _make_dead(self, schema: StructType) -> None:
        from delta.tables import DeltaTable

        # All columns are nullable, as after an append.
        made = DeltaTable.createIfNotExists(self.spark).location(self._dead).partitionedBy("topic")
        made.addColumns(schema_evolution.merge_structs(StructType(), schema)).execute()

    def add(self, records: DataFrame, *, replayed: bool) -> Landed:
        """Adds records that the lake lacks: from a backfill, or (`replayed`) from its own dead letters. Of
        the latter the valid ones are marked; the others remain dead letters. The records are read several
        times.

        After a crash between two tables it is run again: records that were added before are no longer
        missing.
        """
        tables = self._plans(records)
        landed = self._write(records, tables, {}, replayed=replayed) if tables else None
        if replayed and landed is not None and landed.events:
            good = [rows.classified(records, p, target, self._config) for _, target, p in tables]
            for part in good:
                self.mark(part.where(sf.col("reason").isNull()))
        return landed or Landed(0, 0)

    # -- Reading --

    def origins(self) -> DataFrame | None:
        """Topic, partition and offset of each event in the tables; None if there are none."""
        found: DataFrame | None = None
        for path in self.tables():
            table = self.spark.read.format("delta").load(path)
            part = table.select(
                "topic", sf.col(rows.ORIGIN[0]).alias("partition"), sf.col(rows.ORIGIN[1]).alias("offset")
            )
            found = part if found is None else found.unionByName(part)
        return found

    def dead_letters(self, *, with_replayed: bool = False) -> DataFrame | None:
        """The dead letters, by default without the replayed ones; None if there are none."""
        if not self.is_table(self._dead):
            return None
        found = self.spark.read.format("delta").load(self._dead)
        found = found if with_replayed else found.where(sf.col("replayed_at").isNull())
        return found.drop("replayed_at")

    def mark(self, dead: DataFrame) -> None:
        """Marks dead letters as replayed."""
        from delta.tables import DeltaTable

        marked = dead.select("topic", "partition", "offset").distinct().alias("good")
        same = " AND ".join(f"dead.{name} = good.{name}" for name in ("topic", "partition", "offset"))
        merge = DeltaTable.forPath(self.spark, self._dead).alias("dead").merge(marked, same)
        merge.whenMatchedUpdate(
            condition="dead.replayed_at IS NULL", set={"replayed_at": sf.current_timestamp()}
        ).execute()


def delta_transactions(spark: SparkSession, path: str) -> dict[str, int]:
    """The newest transaction version of each application in a table."""
    found = _delta_snapshot(spark, path).transactions().iterator()
    versions = {}
    while found.hasNext():
        pair = found.next()
        versions[str(pair._1())] = int(pair._2())
    return versions


def _delta_snapshot(spark: SparkSession, path: str) -> Any:
    """The present snapshot of a table's log (Delta's Java object)."""
    jvm: Any = spark.sparkContext._jvm
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)
    return log.update(*(getattr(log, f"update$default${number}")() for number in (1, 2, 3)))


def plans_to_json(tables: list[tuple[str, StructType, list[TopicPlan]]]) -> str:
    """The plans of a batch, for a repetition of the batch."""
    return json.dumps(
        [
            {
                "path": path,
                "target": target.jsonValue(),
                "plans": [
                    {
                        "topic": each.topic,
                        "problem": each.problem,
                        "kind": each.how.kind,
                        "fields": each.how.fields.jsonValue(),
                        "reader": each.how.reader,
                        "framed": each.how.framed,
                        "writers": [[number, *writer] for number, writer in each.how.writers.items()],
                        "problems": list(each.how.problems.items()),
                    }
                    for each in plans
                ],
            }
            for path, target, plans in tables
        ]
    )


def plans_from_json(text: str) -> list[tuple[str, StructType, list[TopicPlan]]]:
    return [
        (
            table["path"],
            StructType.fromJson(table["target"]),
            [
                TopicPlan(
                    each["topic"],
                    Plan(
                        each["kind"],
                        StructType.fromJson(each["fields"]),
                        each["reader"],
                        each["framed"],
                        {number: (writer, others) for number, writer, others in each["writers"]},
                        dict(each["problems"]),
                    ),
                    each["problem"],
                )
                for each in table["plans"]
            ],
        )
        for table in json.loads(text)
    ]
