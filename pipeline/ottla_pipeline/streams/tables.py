"""Tables to join streams with (`join_table`), read again for each batch.

Called by users' jobs. A batch sees the table's state when the batch runs, so a change that was made before a
record was produced is visible to that record. A batch that is repeated after a crash may see a newer state:
each sink still has its results once, computed from one of the two states; only two sinks of one query may
then differ.

A batch reads the whole table, which suits tables of a moderate size; for a database or a Delta table, use
a query or a filter that selects what the join needs. For a topic that is too large for that, `copy_topic`
maintains a Delta table by a query. After each of its batches the table has the last record of each key up to
the batch's offsets, and no row for a key whose last record is a tombstone; a batch that is merged again after
a crash changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from delta.tables import DeltaTable
from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StringType, StructField, StructType

from ottla_pipeline.config.common import KafkaConfig, TopicsConfig, Trigger
from ottla_pipeline.decoding import Plan
from ottla_pipeline.decoding.plans import SchemaRegistry
from ottla_pipeline.errors import JobStartError
from ottla_pipeline.streams.reading import (
    RECORD,
    Invalid,
    apply_invalid_policy,
    decoded,
    plan_of,
    source_options,
)

DRIVERS: Final[Mapping[str, str]] = {"postgresql": "org.postgresql.Driver", "sqlite": "org.sqlite.JDBC"}
"""By the word after `jdbc:` in an URL, which is also the name of the package that has the class."""


def topic_table(
    spark: SparkSession,
    kafka: KafkaConfig,
    topic: str,
    form: str | Mapping[str, Any],
    *,
    key: str,
    invalid: Invalid = "fail",
    registry: SchemaRegistry | None = None,
) -> DataFrame:
    """A compacted topic as a table: the last record of each key, without tombstones.

    Columns are the record's key as text, named `key`, and the fields of `form` (see `read_topic`). Records
    without a key are ignored. The last record of a key is the one with the highest offset; if a key is in
    several partitions, for example after a change of their number, the one of these with the latest
    timestamp.
    """
    topics = TopicsConfig(topics=[topic])
    loaded = spark.read.format("kafka").options(
        **source_options(kafka, topics), startingOffsets="earliest", endingOffsets="latest"
    )
    how = table_plan(spark, topics, form, key, registry)
    return table_rows(last_records(loaded.load()), how, key, invalid)


def table_plan(
    spark: SparkSession,
    topics: TopicsConfig,
    form: str | Mapping[str, Any],
    key: str,
    registry: SchemaRegistry | None,
) -> Plan:
    """The decoding plan of a table's values. Raises JobStartError if a field has the name of the key's
    column."""
    how = plan_of(spark, form, topics, registry)
    if key.lower() in (name.lower() for name in how.fields.names):
        raise JobStartError(f"key: {key!r} is also the name of a field; use another name")
    return how


def last_records(records: DataFrame) -> DataFrame:
    """For each key, the last record of its partition, and of several partitions the one with the latest
    timestamp."""
    columns = ("key", "value", "topic", "partition", "offset", "timestamp")
    found = records.where(sf.col("key").isNotNull()).select(*columns)
    return _last(_last(found, ("key", "partition"), "offset"), ("key",), "timestamp")


def table_rows(last: DataFrame, how: Plan, key: str, invalid: Invalid) -> DataFrame:
    """The last records as rows of the table, without tombstones."""
    found = apply_invalid_policy(decoded(last.where(sf.col("value").isNotNull()), how), invalid)
    return found.select(sf.col(RECORD)["key"].cast("string").alias(key), *found.columns).drop(RECORD)


def _last(records: DataFrame, by: tuple[str, ...], order: str) -> DataFrame:
    """For each value of `by`, the record with the highest `order`."""
    whole = sf.max_by(sf.struct(*records.columns), sf.struct(order, "partition")).alias("last")
    return records.groupBy(*by).agg(whole).select("last.*")


def delta_table(spark: SparkSession, path: str) -> DataFrame:
    """A Delta table, by its path: its newest version in each batch. Raises JobStartError if it does not
    exist."""
    if not DeltaTable.isDeltaTable(spark, path):
        raise JobStartError(f"{path} is not a Delta table")
    return spark.read.format("delta").load(path)


def iceberg_table(spark: SparkSession, name: str) -> DataFrame:
    """An Iceberg table, as CATALOG.DATABASE.TABLE: its newest snapshot in each batch.

    Requires the package `iceberg` and the catalog in the session's settings (`spark.sql.catalog.CATALOG`
    …), with `cache-enabled: false`: otherwise batches would see the snapshot of the job's start. Raises
    JobStartError if these are missing.
    """
    catalog = name.partition(".")[0]
    setting = f"spark.sql.catalog.{catalog}"
    if spark.conf.get(setting, None) is None:
        raise JobStartError(f"{name}: there is no catalog {catalog}: set {setting} in spark.settings")
    if str(spark.conf.get(f"{setting}.cache-enabled", "true")).lower() != "false":
        raise JobStartError(
            f"{name}: set {setting}.cache-enabled to false, or changes of the table are not visible"
        )
    return spark.table(name)


def jdbc_table(
    spark: SparkSession,
    url: str,
    table: str,
    *,
    user: str | None = None,
    password_file: str | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """A table of a database, or a query in parentheses with an alias ("(SELECT …) t"), read by one statement.

    `url` is JDBC's ("jdbc:postgresql://host:5432/shop", "jdbc:sqlite:/data/shop.db"). The driver is in the
    package `postgresql` or `sqlite` of `spark.packages`; for another database, set the option `driver` to
    its class. `options` are those of Spark's JDBC source. Raises JobStartError if the driver is missing,
    OSError if the password cannot be read.
    """
    given = {"url": url, "dbtable": table, **(options or {})}
    kind = url.removeprefix("jdbc:").partition(":")[0]
    if "driver" not in given:
        if not url.startswith("jdbc:") or kind not in DRIVERS:
            known = " or ".join(f"jdbc:{name}:" for name in DRIVERS)
            raise JobStartError(
                f"{url.partition('?')[0]}: must begin with {known}; for others, give the option driver"
            )
        given["driver"] = DRIVERS[kind]
        _check_driver(spark, DRIVERS[kind], f"add {kind} to spark.packages")
    if user is not None:
        given["user"] = user
    if password_file is not None:
        given["password"] = Path(password_file).read_text().rstrip("\n")
    return spark.read.format("jdbc").options(**given).load()


def _check_driver(spark: SparkSession, driver: str, hint: str) -> None:
    jvm: Any = spark.sparkContext._jvm
    try:
        jvm.org.apache.spark.util.Utils.classForName(driver, True, False)
    except Py4JError as error:
        raise JobStartError(f"there is no JDBC driver {driver}: {hint}") from error


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
    registry: SchemaRegistry | None = None,
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
