"""Small files made into few. For Delta that is its own OPTIMIZE; for Parquet, a commit that swaps files.

Called by the job `lake-compact`. One of them at a time works on a lake; the lake job may run beside it.

Parquet: small files of a partition are written anew into the staging folder, and one commit says that the new
file stands for the old ones. Who reads by the manifest sees the old ones before that rename, and the new one
after it, wherever it is by then. Then the new file is moved to its place and the old ones are deleted. Killed
before the commit, nothing has happened; killed after it, the next start of any of the lake's jobs goes on
(`CommitLog.recover`). Between the move and the last deletion, a reader that lists folders sees the rows of
one partition twice, and never misses any: no two files can be swapped in one step on a plain file system.
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
# No partition's small files are made into more than this, nor is more rewritten by one commit.
PARTITION_BYTES_MAX = 1 << 30
COMMIT_BYTES_MAX = 8 << 30


class RowsDiffer(Exception):
    """New files do not hold as many rows as the old ones: nothing was committed."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """Files before and after; rows were counted where they were written."""

    before: int
    after: int


def choose(sizes: Mapping[str, int], wanted: Compaction) -> list[str]:
    """Which files (by path, with their sizes) to rewrite: the small ones of folders that have enough."""
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
    """Rewrites what is small, in one commit, and folds the commit log. Raises RowsDiffer."""
    log, files = lake.log, lake.files
    log.recover()
    live = [f"{log.lake}/{file}" for file in lake.manifest().files()]
    crowded = _crowded(live, wanted.min_files)
    # A file that is committed and not yet at its place is left for the next time.
    chosen = choose({path: files.size(path) for path in crowded if files.exists(path)}, wanted)
    if not chosen:
        log.write_snapshot()
        return Compacted(0, 0)
    owner, schema = log.owner(), lake.schema()
    assert owner is not None, "there are committed files, so there is a commit"
    commit = Commit(owner, None, 0, 0, (), kind=KIND, sequence=log.next_sequence())
    staged, _ = log.stage(commit.name)
    read = lake.spark.read.schema(columns(schema)).option("basePath", log.lake).parquet(*chosen)
    folder = rows.EVENT_DATE, rows.TOPIC
    rows.by_folder(read, folder, 1).write.partitionBy(*folder).parquet(staged)
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
    """Files of folders with so many: the size of others need not be asked for."""
    folders: dict[str, list[str]] = {}
    for path in paths:
        folders.setdefault(path.rpartition("/")[0], []).append(path)
    return [path for each in folders.values() if len(each) >= least for path in each]


def columns(events: StructType | None) -> StructType:
    """All columns of a Parquet lake: its events', their origin, and those of the folders' names."""
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
    """OPTIMIZE of each table's crowded partitions. Readers of an older version go on with its files, until
    VACUUM."""
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
