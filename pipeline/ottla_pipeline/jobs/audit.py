"""Audits brokers, mirrors, lakes and applications against the counts of audited producers, window by window.

    ottla-pipeline audit --config audit.yaml [--status-port 9404]

The auditing of Kafka's first paper (section 4) as streaming queries. One query reads the audit topic,
where producers and consumers report; one query per other tier counts records by producer, topic and
window. Records are identified by their numbers (`auditing.events`), so a lost and a duplicated record are
both found although their sum is right. docs/guides/pipeline/audit.md describes the report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from ottla_pipeline.completeness import tiers
from ottla_pipeline.completeness.auditor import Auditor, LedgerStore
from ottla_pipeline.completeness.config import AuditConfig
from ottla_pipeline.completeness.ledger import EVENTS, dead_letters_of
from ottla_pipeline.completeness.report import AuditMetrics
from ottla_pipeline.errors import JobStartError
from ottla_pipeline.filesystem import FileSystem
from ottla_pipeline.running import JobContext
from ottla_pipeline.spark import DELTA_SETTINGS

CONFIG = AuditConfig
SESSION: Final = DELTA_SETTINGS


def begin(context: JobContext, config: AuditConfig) -> tuple[Auditor, Sequence[StreamingQuery]]:
    """Starts the queries and the auditor that processes their batches. The caller closes the auditor when
    the queries have ended. Parquet lakes have no query: `audit-report` counts them."""
    spark = context.spark
    auditor = Auditor(
        config, LedgerStore(FileSystem(spark), config.checkpoint), context.echo, context.details
    )
    context.metrics.register(AuditMetrics(lambda: auditor.result))
    streams: list[tuple[str, DataFrame, Callable[[DataFrame, int], None]]] = [
        (EVENTS, tiers.read_audit_topic(spark, config), auditor.events_batch)
    ]
    for tier in config.tiers:
        if tier.parquet is not None or tier.application is not None:
            continue
        if tier.delta is None:
            found = tiers.read_topics(spark, config, tier)
        else:
            found = tiers.read_tables(spark, config, tier.delta)
        streams.append((tier.name, found, auditor.tier_batch(tier.name)))
        if tier.dead_letters:
            name = dead_letters_of(tier.name)
            dead = tiers.read_tables(spark, config, tier.dead_letters)
            streams.append((name, dead, auditor.tier_batch(tier.name, dead_letters=True)))
    queries: list[StreamingQuery] = []
    try:
        for name, found, batch in streams:
            writer = found.writeStream.queryName(name).foreachBatch(batch)
            writer = writer.option("checkpointLocation", f"{config.checkpoint}/{name.replace(' ', '-')}")
            queries.append(writer.trigger(**config.trigger.write_options()).start())
    except BaseException:
        for query in queries:
            query.stop()
        raise
    auditor.follow(queries)
    return auditor, queries


def start(context: JobContext, config: AuditConfig) -> Sequence[StreamingQuery]:
    if whole := [tier.name for tier in config.tiers if tier.parquet is not None]:
        raise JobStartError(
            f"tiers: {whole[0]} is a Parquet lake, whose rows a compaction moves from file to file: "
            "audit-report counts it, from an empty checkpoint"
        )
    auditor, queries = begin(context, config)
    context.at_end.callback(auditor.close)
    return queries
