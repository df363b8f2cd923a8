"""Audits all there is now, once, and says by its exit status whether it is complete.

    ottla-pipeline audit-report --config audit.yaml

The audit job's configuration and its streams, each to its end of now. Give it a checkpoint of its own: one
that is kept makes the next run quick, an empty folder has everything counted anew, also what has gone since.

Exit status: 0 complete, 3 pending (some window is not yet over, or within its grace), 1 anything else.
"""

from __future__ import annotations

from ottla_pipeline.completeness import landed
from ottla_pipeline.completeness.config import AuditConfig
from ottla_pipeline.completeness.verdicts import COMPLETE, PENDING
from ottla_pipeline.jobs import audit
from ottla_pipeline.running import Context

CONFIG = AuditConfig
SESSION = audit.SESSION


def run(context: Context, config: AuditConfig) -> int:
    once = config.trigger.model_copy(update={"available_now": True})
    watch, queries = audit.begin(context, config.model_copy(update={"trigger": once}))
    try:
        for tier in config.tiers:
            if tier.parquet is not None:
                watch.add_whole(tier.name, landed.count(context.spark, config, tier))
            if tier.parquet is not None and tier.dead_letters is not None:
                dead = landed.count_dead_letters(context.spark, config, tier.dead_letters)
                watch.add_whole(tier.name, dead, dead_letters=True)
        for query in queries:
            query.awaitTermination()  # raises what it failed with
    finally:
        for query in queries:
            query.stop()
        watch.close()
    for row in watch.found.rows:
        if row.differs:
            context.say(f"{row.status}: {row.topic} {row.start_ms} {row.tier} {', '.join(row.samples)}")
    for line in watch.found.problems:
        context.say(line)
    return {COMPLETE: 0, PENDING: 3}.get(watch.found.verdict, 1)
