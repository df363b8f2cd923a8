"""Compacts a lake's small files; the lake job may run meanwhile. Takes the lake job's configuration."""

from __future__ import annotations

from ottla_pipeline.jobs.lake import SESSION as LAKE_SESSION
from ottla_pipeline.jobs.lake import open_lake
from ottla_pipeline.lake import compaction
from ottla_pipeline.lake.config import LakeConfig
from ottla_pipeline.lake.delta_sink import DeltaLake
from ottla_pipeline.lake.parquet_sink import ParquetLake
from ottla_pipeline.running import JobContext

CONFIG = LakeConfig
SESSION = LAKE_SESSION


def run(context: JobContext, config: LakeConfig) -> int:
    """Compacts the lake once."""
    lake = open_lake(context.spark, config)
    if isinstance(lake, DeltaLake):
        done = compaction.compact_delta(context.spark, lake, config.compaction)
    else:
        assert isinstance(lake, ParquetLake)
        done = compaction.compact_parquet(lake, config.compaction)
    context.echo(
        f"{done.before:,} small files became {done.after:,}" if done.before else "there are no small files"
    )
    return 0
