"""The archive of Spark's classes (class data sharing, JEP 350), which shortens the start of a job's JVM.

Called by `prefetch`. Java writes the archive at its exit, so a process of its own (`main`) runs a small
query that loads the classes of a typical job: windows over JSON, with state. The archive holds some 20,000
parsed and verified classes; a job needs a quarter less CPU time until its first batch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from ottla_pipeline.spark import QUIET_ARCHIVE, build_session, check_java, class_archive, java_options

WAIT_S = 300


def create() -> Path | None:
    """Creates the archive unless it exists; returns its path, or None if this Java cannot create one."""
    archive = class_archive(check_java())
    if not archive.is_file():
        part = archive.with_suffix(f".{os.getpid()}.part")
        command = [sys.executable, "-m", "ottla_pipeline.cds_archive", str(part)]
        run = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        if run.returncode or not part.is_file():
            part.unlink(missing_ok=True)
            return None
        part.replace(archive)
    return archive


def exercise(spark: SparkSession, folder: Path) -> None:
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


def main(archive: str) -> None:
    """Runs the query with a JVM that writes `archive` at its exit."""
    quick = "-XX:TieredStopAtLevel=1"
    options = f"{java_options(None)} {quick} -XX:ArchiveClassesAtExit={archive} {QUIET_ARCHIVE}"
    spark = build_session("ottla-training", extra={"spark.driver.extraJavaOptions": options})
    with tempfile.TemporaryDirectory() as folder:
        exercise(spark, Path(folder))
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.proc.stdin.close()  # Java's end
    gateway.proc.wait(WAIT_S)


if __name__ == "__main__":
    main(sys.argv[1])
