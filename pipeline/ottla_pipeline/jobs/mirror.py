"""Mirrors topics of one cluster to another, each record exactly once.

    ottla-pipeline mirror --config mirror.yaml

Keys, values, headers, timestamps, partitions and their order are preserved. Offsets are not (a transaction
marker takes one), so the offsets of consumer groups are translated. docs/guides/pipeline/mirror.md
describes the configuration.

Spark's Kafka source reads. Spark's Kafka sink writes at least once, so it is not used: the task of each
source partition writes through a transactional producer, which commits the position of the partition together
with the records (`ottla_pipeline.mirroring.writer`). If Spark repeats a batch, the task continues from that
position. Spark's checkpoint has the next offsets to read; the target has the written positions, which may be
ahead of it.

A batch has one task per source partition, so that partitions are written in parallel. Before it is
written, its topics are created on the target, with all their partitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Final

from prometheus_client import Counter, Gauge
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from ottla_pipeline.errors import check_reachable
from ottla_pipeline.mirroring.config import MirrorConfig, seconds
from ottla_pipeline.mirroring.groups import GroupFilter, GroupSync, GroupSyncThread, Offsets
from ottla_pipeline.mirroring.target import syncs_topic
from ottla_pipeline.mirroring.tasks import COLUMNS, REPORT_SCHEMA, mirror_partition
from ottla_pipeline.mirroring.topics import TopicSync
from ottla_pipeline.running import JobContext

CONFIG = MirrorConfig
SESSION: Final[Mapping[str, str]] = {
    # Two concurrent attempts at the same partition would fence each other without end.
    "spark.speculation": "false",
}
ROWS_SETTING: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
ROWS: Final = "1000"
"""This number of records of a megabyte fits into the two gigabytes of an Arrow column; Spark's default is ten
times as high. A configuration overrides it."""
SYNCS_SETTINGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "CreateTime",
    "segment.bytes": str(64 * 2**20),
}


class MirrorMetrics:
    """The mirror's own metrics at /metrics."""

    def __init__(self, context: JobContext) -> None:
        registry = context.metrics
        self._counters = {
            name: Counter(f"ottla_mirror_{name}", text, registry=registry)
            for name, text in (
                ("records", "Records written to the target."),
                ("bytes", "Size of their keys, values and headers in Arrow."),
                ("transactions", "Transactions committed on the target."),
                ("skipped", "Records of repeated batches that were on the target already."),
                ("looped", "Records skipped because they came from the target."),
            )
        }
        self._age = Gauge(
            "ottla_mirror_age_seconds",
            "Age of the newest record of the last batch when it was on the target.",
            registry=registry,
        )
        self.offsets = Counter(
            "ottla_mirror_group_offsets", "Offsets of groups committed on the target.", registry=registry
        )

    def add(self, rows: Sequence[Row], now_s: float) -> None:
        for name, counter in self._counters.items():
            counter.inc(sum(row[name] for row in rows))
        if rows:
            self._age.set(max(0.0, now_s - max(row["newest_ms"] for row in rows) / 1000))


def mirror_batch(
    config: MirrorConfig, topics: TopicSync, metrics: MirrorMetrics, context: JobContext
) -> Callable[[DataFrame, int], None]:
    """The function for `foreachBatch`."""
    target = config.target_of()
    owners: dict[tuple[str, int], str] = {}

    def mirror(records: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        # The batch was planned before, so all its partitions exist now.
        mirrored = topics.refresh()
        columns = records.withColumn("timestamp", sf.unix_millis("timestamp")).select(*COLUMNS)
        rows = columns.mapInArrow(mirror_partition(target, mirrored, dict(owners)), REPORT_SCHEMA).collect()
        owners.update({(row["topic"], row["partition"]): row["worker"] for row in rows})
        metrics.add(rows, time.time())
        context.echo(batch_summary(batch_id, rows, time.monotonic() - began))

    return mirror


def batch_summary(batch_id: int, rows: Sequence[Row], took_s: float) -> str:
    """A batch in one line."""

    def total(name: str) -> int:
        return sum(row[name] for row in rows)

    extra = "".join(f", {total(name):,} {name}" for name in ("skipped", "looped") if total(name))
    return (
        f"batch {batch_id}: {total('records'):,} records of {len(rows)} partitions in "
        f"{total('transactions')} transactions{extra}, {took_s:.1f} s"
    )


def wanted_topics(context: JobContext, config: MirrorConfig) -> Callable[[str], bool]:
    """Whether a topic of the source is mirrored, decided by Java's regular expressions, as in Spark."""
    if config.topics is not None:
        return frozenset(config.topics).__contains__
    jvm = context.spark._jvm
    assert jvm is not None
    matches = jvm.java.util.regex.Pattern.matches
    pattern = config.replication_policy.source_pattern(str(config.topic_pattern))
    return cache(lambda topic: bool(matches(pattern, topic)))


def start(
    context: JobContext, config: MirrorConfig, metrics: MirrorMetrics | None = None
) -> Sequence[StreamingQuery]:
    """Starts the mirror; the thread of the group sync ends with its query."""
    check_reachable(config.target.bootstrap)
    metrics = metrics or MirrorMetrics(context)
    topics = topics_of(context, config)
    context.at_end.callback(topics.close)  # Spark keeps the function of foreachBatch, and what that refers to
    topics.ensure(syncs_topic(config.mirror), {**SYNCS_SETTINGS, **config.target_topics.syncs_settings})
    topics.refresh()
    context.spark.conf.set(ROWS_SETTING, config.spark.settings.get(ROWS_SETTING, ROWS))
    records = context.spark.readStream.format("kafka").options(**config.spark_source()).load()
    writer = records.writeStream.queryName(config.name)
    writer = writer.foreachBatch(mirror_batch(config, topics, metrics, context))
    writer = writer.option("checkpointLocation", config.checkpoint)
    query = writer.trigger(**config.trigger.write_options()).start()
    if config.groups is not None:
        start_group_sync(config, topics, metrics, context, query)
    return [query]


def topics_of(context: JobContext, config: MirrorConfig) -> TopicSync:
    made = config.target_topics
    return TopicSync(
        config.kafka.librdkafka(),
        config.target.librdkafka(),
        config.replication_policy,
        wanted_topics(context, config),
        replication_factor=made.replication_factor,
        not_copied=made.not_copied,
        sync_configs=made.sync_configs,
        interval_s=seconds(made.interval),
        echo=context.echo,
    )


def start_group_sync(
    config: MirrorConfig,
    topics: TopicSync,
    metrics: MirrorMetrics,
    context: JobContext,
    query: StreamingQuery,
) -> None:
    """Starts the thread that synchronizes the offsets of consumer groups while the query runs."""
    assert config.groups is not None

    def active() -> bool:
        try:
            return bool(query.isActive)
        except (PySparkException, Py4JError, OSError):
            return False  # the session has ended

    def passed(done: Mapping[str, Offsets]) -> None:
        metrics.offsets.inc(sum(len(offsets) for offsets in done.values()))

    wanted = GroupFilter(config.groups.pattern, (*config.groups.exclude, config.consumer_group))
    sync = GroupSync(
        config.kafka.librdkafka(),
        config.target.librdkafka(),
        syncs_topic(config.mirror),
        wanted,
        lambda: topics.mirrored,
    )
    GroupSyncThread(sync, active, seconds(config.groups.interval), context.echo, passed).start()
