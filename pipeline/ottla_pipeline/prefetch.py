"""Downloads the Spark packages that the jobs need: `python -m ottla_pipeline.prefetch`.

Called by `make setup`, and with `--into-spark` by an image's build, which copies the jars into Spark's own
folder, onto the class path of drivers and executors. Runs spark-submit's resolution (Ivy, with its cache)
and writes the paths of the jars to a file (`spark.jar_list`), so that later sessions resolve and download
nothing.

It also creates the archive of Spark's classes (class data sharing, JEP 350), which shortens the start of a
job's JVM. Java writes the archive at its exit, so a process of its own runs a small query that loads the
classes of a typical job: windows over JSON, with state. The archive holds some 20,000 parsed and verified
classes; a job needs a quarter less CPU time until its first batch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from ottla_pipeline.spark import (
    EXTRAS,
    QUIET_ARCHIVE,
    JavaMissing,
    build_session,
    check_java,
    class_archive,
    ivy_home,
    jar_list,
    java_options,
    prefetched_jars,
    spark_jars,
)
from ottla_pipeline.trust_store import system_trust_store

WRITE_ARCHIVE: Final = "--write-class-archive"
ARCHIVE_S: Final = 300


def prefetch() -> list[str]:
    """Paths of the packages' jars, downloaded if necessary. Raises JavaMissing if Spark cannot start."""
    jars = prefetched_jars()
    if jars is None:
        click.echo("prefetch: downloads Spark's connectors from Maven Central (80 MB); the log is Spark's")
        session = build_session("ottla-prefetch", master="local[1]", memory="512m", packages=EXTRAS)
        urls = session.conf.get("spark.jars") or ""
        session.stop()
        paths = [unquote(urlsplit(url).path) for url in urls.split(",") if url]
        target = jar_list()
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".part")
        part.write_text("".join(f"{path}\n" for path in paths))
        part.replace(target)
        return paths
    return [str(jar) for jar in jars]


def into_spark(jars: list[str]) -> None:
    """Copies the jars into Spark's own folder."""
    for jar in jars:
        shutil.copy(jar, spark_jars())


def create_class_archive() -> Path | None:
    """Creates the archive unless it exists, and deletes those of other jars; returns its path, or None if
    this Java cannot create one, or Spark's folder is not ours."""
    archive = class_archive(check_java())
    if not archive.is_file():
        try:
            archive.parent.mkdir(exist_ok=True)
        except PermissionError:
            return None
        click.echo("prefetch: creates the archive of Spark's classes; on a busy machine, that takes minutes")
        part = archive.with_suffix(f".{os.getpid()}.part")
        command = [sys.executable, "-m", "ottla_pipeline.prefetch", WRITE_ARCHIVE, str(part)]
        run = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        if run.returncode or not part.is_file():
            part.unlink(missing_ok=True)
            return None
        part.replace(archive)
    for other in set(archive.parent.glob("spark-*.jsa")) - {archive}:
        other.unlink(missing_ok=True)
    return archive


def run_typical_query(spark: SparkSession, folder: Path) -> None:
    """Runs one batch that uses what most jobs use."""

    def write(found: DataFrame, number: int) -> None:
        kept = found.persist()
        kept.repartition("start").write.mode("append").partitionBy("start").parquet(str(folder / "out"))
        kept.select(sf.to_json(sf.struct("*"))).collect()
        kept.unpersist()

    records = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "10").load()
    text = sf.concat(sf.lit('{"n": '), sf.col("value").cast("string"), sf.lit("}"))
    events = records.select("timestamp", sf.from_json(text, "n INT").alias("event"))
    counted = events.withWatermark("timestamp", "1 second").groupBy(sf.window("timestamp", "1 second"))
    found = counted.agg(sf.count("*").alias("count"), sf.sum("event.n").alias("sum"))
    found = found.select(sf.date_format("window.start", "yyyy-MM-dd").alias("start"), "count", "sum")
    writer = found.writeStream.foreachBatch(write).outputMode("update")
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        while query.lastProgress is None and query.isActive:
            query.awaitTermination(1)
    finally:
        query.stop()
    spark.read.parquet(str(folder / "out")).agg(sf.sum("count")).collect()


def write_class_archive(archive: str) -> None:
    """Runs the query with a JVM that writes `archive` at its exit."""
    quick = "-XX:TieredStopAtLevel=1"
    options = f"{java_options(None)} {quick} -XX:ArchiveClassesAtExit={archive} {QUIET_ARCHIVE}"
    spark = build_session("ottla-class-archive", extra={"spark.driver.extraJavaOptions": options})
    with tempfile.TemporaryDirectory() as folder:
        run_typical_query(spark, Path(folder))
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.proc.stdin.close()  # ends Java
    gateway.proc.wait(ARCHIVE_S)


def main(arguments: Sequence[str]) -> int:
    if WRITE_ARCHIVE in arguments:
        write_class_archive(arguments[-1])
        return 0
    try:
        if "--into-spark" in arguments:
            options = system_trust_store(ivy_home() / "authorities.p12")
            if options:
                os.environ["JAVA_TOOL_OPTIONS"] = options
        jars = prefetch()
    except JavaMissing as error:
        click.echo(f"prefetch: {error}", err=True)
        return 2
    if "--into-spark" in arguments:
        into_spark(jars)
    click.echo(f"prefetch: {len(jars)} jars for Spark are available")
    if "--into-spark" not in arguments and create_class_archive() is None:
        click.echo(
            "prefetch: this Java cannot create an archive of Spark's classes, or Spark's folder cannot be "
            "written to; jobs start a few seconds slower"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
