"""Compaction of small files: OPTIMIZE for Delta; for Parquet, a commit that replaces files.

Called by the job `lake-compact`. Only one compaction at a time may run on a lake; the lake job may run beside
it.

Parquet: the small files of a partition are written to the staging folder as one file, and one commit
replaces them by it. Readers of the manifest see the old files before that commit and the new file after
it, wherever it is by then. Then the new file is moved to its target and the old ones are deleted. After a
crash before the commit nothing has changed; after a crash behind it, the next start of any of the lake's
jobs completes the publication (`CommitLog.recover`). Between the move and the last deletion, a reader that
lists folders sees the rows of one partition twice, and never misses rows: a plain file system cannot swap
two files atomically.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ottla_pipeline.lake import rows
from ottla_pipeline.lake.commits import Commit
from ottla_pipeline.lake.config import Compaction
from ottla_pipeline.lake.delta_sink import DeltaLake
from ottla_pipeline.lake.parquet_sink import ParquetLake

KIND = "compaction"
# Limits of the bytes that are rewritten in one partition, and by one commit.
PARTITION_BYTES_MAX = 1 << 30
COMMIT_BYTES_MAX = 8 << 30


class RowsDiffer(Exception):
    """The new files have another number of rows than the old ones; nothing was committed."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """The number of files before and after."""

    before: int
    after: int


def choose_files(sizes: Mapping[str, int], wanted: Compaction) -> list[str]:
    """The files (by path, with their sizes) to rewrite: the small ones, in folders that have enough of
    them."""
    folders: dict[str, list[str]] = {}
    for path, size in sizes.items():
        if size < wanted.smaller_than_mb << 20:
            folders.setdefault(path.rpartition("/")[0], []).append(path)
    chosen: list[str] = []
    total = 0
    for _, paths in sorted(folders.items()):
        taken = _first(sorted(paths, key=lambda path: (sizes[path], path)), sizes, PARTITION_BYTES_MAX)
        size = sum(sizes[path] for path in taken)
        if len(taken) >= wanted.min_files and total + size <= COMMIT_BYTES_MAX:
            chosen += taken
            total += size
    return chosen


def _first(paths: Iterable[str], sizes: Mapping[str, int], limit: int) -> list[str]:
    taken, total = [], 0
    for path in paths:
        total += sizes[path]
        if total > limit:
            break
        taken.append(path)
    return taken


def compact_parquet(lake: ParquetLake, wanted: Compaction) -> Compacted:
    """Rewrites the small files in one commit and writes a snapshot of the commit log. Raises RowsDiffer."""
    log, files = lake.log, lake.files
    log.recover()
    live = [f"{log.lake}/{file}" for file in lake.manifest().files()]
    crowded = _crowded(live, wanted.min_files)
    # A file that is committed and not yet at its target is left for the next compaction.
    chosen = choose_files({path: files.size(path) for path in crowded if files.exists(path)}, wanted)
    if not chosen:
        log.write_snapshot()
        return Compacted(0, 0)
    owner, schema = log.owner(), lake.schema()
    assert owner is not None, "there are committed files, so there is a commit"
    commit = Commit(owner, None, 0, 0, (), kind=KIND, sequence=log.next_sequence())
    staged, _ = log.stage(commit.name)
    read = lake.spark.read.schema(columns(schema)).option("basePath", log.lake).parquet(*chosen)
    folder = rows.EVENT_DATE, rows.TOPIC
    rows.repartition_by_folder(read, folder, 1).write.partitionBy(*folder).parquet(staged)
    moves = log.moves(commit.name)
    written = lake.spark.read.schema(columns(schema)).parquet(*(move.source for move in moves)).count()
    held = read.count()
    if written != held:
        log.stage(commit.name)
        raise RowsDiffer(f"{log.lake}: {held:,} rows were read, and {written:,} written")
    done = Commit(
        owner,
        None,
        0,
        0,
        moves,
        removes=tuple(chosen),
        kind=KIND,
        sequence=commit.sequence,
        lake=log.lake,
        dead_letters_root=log.dead_letters,
    )
    log.commit(done)
    log.publish(done)
    log.write_snapshot()
    return Compacted(len(chosen), len(moves))


def _crowded(paths: Iterable[str], least: int) -> list[str]:
    """The files in folders with at least this number of files; the sizes of others need no lookup."""
    folders: dict[str, list[str]] = {}
    for path in paths:
        folders.setdefault(path.rpartition("/")[0], []).append(path)
    return [path for each in folders.values() if len(each) >= least for path in each]


def columns(events: StructType | None) -> StructType:
    """All columns of a Parquet lake: those of its events, their origin, and those in folder names."""
    kinds = (IntegerType(), LongType(), TimestampType(), StringType(), TimestampType(), LongType())
    origin = zip((*rows.ORIGIN, *rows.PRODUCED), kinds, strict=True)
    return StructType(
        [
            *(events.fields if events is not None else ()),
            *(StructField(name, kind) for name, kind in origin),
            StructField(rows.EVENT_DATE, DateType()),
            StructField(rows.TOPIC, StringType()),
        ]
    )


def compact_delta(spark: SparkSession, lake: DeltaLake, wanted: Compaction) -> Compacted:
    """Runs OPTIMIZE on each table's partitions with many small files. Readers of an older version keep its
    files until VACUUM."""
    from delta.tables import DeltaTable

    smaller = wanted.smaller_than_mb << 20
    spark.conf.set("spark.databricks.delta.optimize.minFileSize", str(smaller))
    before = after = 0
    for path in lake.tables():
        by = [sf.col("partitionValues")[name].alias(name) for name in lake.partitioned_by()]
        small = lake.data_files(path).where(sf.col("size") < smaller).groupBy(*by).count()
        crowded = small.where(sf.col("count") >= wanted.min_files).drop("count").collect()
        if not crowded:
            continue
        where = " OR ".join(
            "(" + " AND ".join(f"{name} = '{value}'" for name, value in row.asDict().items()) + ")"
            for row in crowded
        )
        table = DeltaTable.forPath(spark, path)
        metrics = table.optimize().where(where).executeCompaction().select("metrics.*").first()
        assert metrics is not None
        before += metrics["numFilesRemoved"]
        after += metrics["numFilesAdded"]
    return Compacted(before, after)
