"""A plain Parquet lake as a tier: all the files that its commit log names now, counted whole.

Called by `audit-report`. There is no stream of such a lake: a compaction swaps files that were read for one
that holds their rows beside others', and no reader could tell which. So it is counted from the beginning, and
once in an audit's ledger.
"""

from __future__ import annotations

from collections.abc import Iterator

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ottla_pipeline.completeness import tiers
from ottla_pipeline.completeness.columns import PRODUCED_AT, PRODUCED_NUMBER, PRODUCER
from ottla_pipeline.completeness.config import AuditConfig, TierConfig
from ottla_pipeline.completeness.ledger import Counted
from ottla_pipeline.errors import CannotBegin
from ottla_pipeline.lake.files import Files
from ottla_pipeline.lake.manifest import Manifest
from ottla_pipeline.lake.parquet_sink import manifest_of

COLUMNS = f"topic STRING, {PRODUCER} STRING, {PRODUCED_AT} TIMESTAMP, {PRODUCED_NUMBER} BIGINT"
TRIES_MAX = 5


def count(spark: SparkSession, config: AuditConfig, tier: TierConfig) -> list[Counted]:
    """The lake's rows as counts. A list of files that a compaction overtook is made again."""
    assert tier.parquet is not None
    files = Files(spark)
    lake = files.absolute(tier.parquet)
    if not files.exists(f"{lake}/_commits"):
        raise CannotBegin(f"tiers: {lake} has no commit log: it is no Parquet lake of the lake job's")
    for attempt in range(TRIES_MAX):
        known = manifest_of(files, lake)
        paths = list(_paths(files, lake, known))
        if not paths:
            return []
        try:
            return _counted(spark.read.schema(COLUMNS).option("basePath", lake).parquet(*paths), config)
        except (PySparkException, Py4JError):
            if attempt == TRIES_MAX - 1 or manifest_of(files, lake).files() == known.files():
                raise
    raise AssertionError("the last attempt returned or raised")


def count_dead_letters(spark: SparkSession, config: AuditConfig, folders: list[str]) -> list[Counted]:
    """The same of its dead letters, which nothing swaps."""
    files = Files(spark)
    found: list[Counted] = []
    for folder in folders:
        if any(name.startswith("topic=") for name in files.names(folder)):
            found += _counted(spark.read.schema(COLUMNS).parquet(folder), config)
    return found


def _paths(files: Files, lake: str, known: Manifest) -> Iterator[str]:
    """Where the lake's files are: the newest may not have been moved to their places yet."""
    staged = {
        file: at for change in known.changes for file, at in zip(change.files, change.staged, strict=True)
    }
    for file in known.files():
        moved = file not in staged or files.exists(f"{lake}/{file}")
        yield f"{lake}/{file}" if moved else f"{lake}/{staged[file]}"


def _counted(rows: DataFrame, config: AuditConfig) -> list[Counted]:
    return tiers.count(rows.where(tiers.wanted(config.topics)), config.window_ms)
