"""Decodes a lake's dead letters again and adds the valid ones to the lake, or sends them to a topic.

    ottla-pipeline replay --config lake.yaml [--reason "unknown schema id"] [--topic A] [--to-topic B]

Takes the lake job's configuration and uses its present schema. Records that are valid now are added to the
lake and marked as replayed; the others remain dead letters. With `--to-topic` the keys, values and headers
are written to that topic and the dead letters are marked; after a crash in between they are sent again.
"""

from __future__ import annotations

import click

from ottla_pipeline.jobs.lake import SESSION as LAKE_SESSION
from ottla_pipeline.jobs.lake import open_lake
from ottla_pipeline.lake import reprocessing
from ottla_pipeline.lake.config import LakeConfig
from ottla_pipeline.running import JobContext

CONFIG = LakeConfig
SESSION = LAKE_SESSION
PARAMS = (
    click.Option(
        ["--reason"],
        multiple=True,
        help="Only dead letters whose reason begins with this text. May be repeated.",
    ),
    click.Option(["--topic"], multiple=True, help="Only dead letters of this topic. May be repeated."),
    click.Option(["--to-topic"], help="Send them to this topic instead of the lake."),
)


def run(context: JobContext, config: LakeConfig) -> int:
    """Runs the replay once."""
    lake = open_lake(context.spark, config)
    lake.check_owner()
    reasons, topics = context.params["reason"], context.params["topic"]
    target = context.params["to_topic"]
    if target is None:
        done = reprocessing.replay(lake, reasons, topics)
        context.echo(f"{done.tried:,} dead letters tried: {done.landed:,} landed, {done.bad:,} still bad")
        return 0
    dead = lake.dead_letters()
    kept = None if dead is None else reprocessing.select_dead_letters(dead, reasons, topics).persist()
    count = 0 if kept is None else kept.count()
    if kept is not None and count:
        sent = kept.select("key", "value", "headers").write.format("kafka")
        sent.options(**config.kafka.spark_options()).option("topic", target).option(
            "includeHeaders", "true"
        ).save()
        lake.mark(kept)
    context.echo(f"{count:,} dead letters sent to {target}")
    return 0
