"""Audits all present records once; the exit status says whether they are complete.

    ottla-pipeline audit-report --config audit.yaml

Takes the audit job's configuration and runs its queries up to the present end of their sources. Give it its
own checkpoint: an existing one makes the next run short; with an empty folder everything is counted again,
and records that were deleted since are missing.

Exit status: 0 complete, 3 pending (a window has not ended, or is within its grace), 1 anything else.
"""

from __future__ import annotations

from ottla_pipeline.completeness import tiers
from ottla_pipeline.completeness.config import AuditConfig
from ottla_pipeline.completeness.verdicts import COMPLETE, PENDING
from ottla_pipeline.jobs import audit
from ottla_pipeline.running import JobContext

CONFIG = AuditConfig
SESSION = audit.SESSION


def run(context: JobContext, config: AuditConfig) -> int:
    once = config.trigger.model_copy(update={"available_now": True})
    auditor, queries = audit.begin(context, config.model_copy(update={"trigger": once}))
    try:
        for tier in config.tiers:
            if tier.parquet is not None:
                auditor.add_all_records(tier.name, tiers.count_parquet_lake(context.spark, config, tier))
            if tier.parquet is not None and tier.dead_letters is not None:
                dead = tiers.count_parquet_dead_letters(context.spark, config, tier.dead_letters)
                auditor.add_all_records(tier.name, dead, dead_letters=True)
        for query in queries:
            query.awaitTermination()  # raises what it failed with
    finally:
        for query in queries:
            query.stop()
        auditor.close()
    for row in auditor.result.rows:
        if row.differs:
            context.echo(f"{row.status}: {row.topic} {row.start_ms} {row.tier} {', '.join(row.samples)}")
    for line in auditor.result.problems:
        context.echo(line)
    return {COMPLETE: 0, PENDING: 3}.get(auditor.result.verdict, 1)
