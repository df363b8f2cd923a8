"""Spark sessions of the jobs: pinned versions, a check of Java, quiet logs, loopback addresses only.

Called by every job and by `prefetch`. Under spark-submit the command line configures the session; this module
then sets only what the jobs need for correct results (UTC, the Parquet calendar).

Ivy resolves `PACKAGES` once; `prefetch` stores the paths of the jars, and later sessions take them from
there: no resolution, no network, two seconds less per start. `prefetch` also creates an archive of Spark's
classes, beside Spark's jars.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import pyspark
from pyspark.sql import SparkSession

from ottla_pipeline.filesystem import FileSystem

SPARK_VERSION = "4.0.0"
SCALA_VERSION = "2.13"
LOCAL_FILE_SYSTEM = "com.globalmentor:hadoop-bare-naked-local-fs:0.1.0"
DELTA_VERSION = "4.0.0"
PACKAGES = (
    f"org.apache.spark:spark-sql-kafka-0-10_{SCALA_VERSION}:{SPARK_VERSION}",
    f"org.apache.spark:spark-avro_{SCALA_VERSION}:{SPARK_VERSION}",
    f"io.delta:delta-spark_{SCALA_VERSION}:{DELTA_VERSION}",
    LOCAL_FILE_SYSTEM,
)
EXTRAS: Final[Mapping[str, str]] = {
    "iceberg": f"org.apache.iceberg:iceberg-spark-runtime-4.0_{SCALA_VERSION}:1.10.0",
    "postgresql": "org.postgresql:postgresql:42.7.4",
    "sqlite": "org.xerial:sqlite-jdbc:3.47.1.0",
}
"""Packages of tables that jobs may join; a session includes those in its job's `spark.packages`."""
# Dependencies that PySpark's jars include, or that only compilers need: 50 MB less to copy at every start.
EXCLUDED = (
    "com.google.code.findbugs:jsr305",
    "org.antlr:antlr4-runtime",
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.checkerframework:checker-qual",
    "org.lz4:lz4-java",
    f"org.scala-lang.modules:scala-parallel-collections_{SCALA_VERSION}",
    "org.slf4j:slf4j-api",
    "org.xerial.snappy:snappy-java",
)
JAVA_VERSIONS = (17, 21)
QUIET_ARCHIVE = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
LOG_CONFIG = Path(__file__).with_name("log4j2.properties")

# All but the last are needed for correct results: event dates are dates in UTC, and a timestamp before 1900
# is written unchanged instead of failing its whole batch.
NEEDED_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # It would parse the JSON once for each field.
    "spark.sql.optimizer.enableJsonExpressionOptimization": "false",
}
DELTA_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""Settings of a session that reads or writes Delta tables."""
CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"


class JavaMissing(Exception):
    """No Java that Spark can use was found; the message says what was found and what to do."""


def parse_java_version(text: str) -> int | None:
    """The feature release in the output of `java -version` ("17.0.15" is 17, "1.8.0_402" is 8)."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return None
    major, minor = int(found[1]), int(found[2] or 0)
    return minor if major == 1 else major


def check_java() -> str:
    """The path of a Java that Spark 4 supports: that of JAVA_HOME, else the first on PATH. Raises
    JavaMissing."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    wanted = " or ".join(str(v) for v in JAVA_VERSIONS)
    if java is None or not Path(java).exists():
        where = f"JAVA_HOME is {home}, which holds no bin/java" if home else "there is no java on PATH"
        raise JavaMissing(f"Spark needs Java {wanted}, but {where}. Install one, or point JAVA_HOME at it.")
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    version = parse_java_version(answer.stderr + answer.stdout)
    if version not in JAVA_VERSIONS:
        raise JavaMissing(
            f"Spark needs Java {wanted}, but {java} is {version or 'of an unknown version'}. "
            "Point JAVA_HOME at a suitable one."
        )
    return java


def ivy_home() -> Path:
    """Ivy's folder of downloads: Spark's default, or OTTLA_IVY_HOME."""
    return Path(os.environ.get("OTTLA_IVY_HOME") or Path.home() / ".ivy2.5.2")


def jar_list() -> Path:
    """The file with the paths of the packages' jars, one per line, written by `prefetch`; its name has a
    hash of the packages' versions."""
    names = "\n".join((*PACKAGES, *EXTRAS.values(), *EXCLUDED))
    pinned = hashlib.sha256(names.encode()).hexdigest()[:12]
    return ivy_home() / f"ottla-{pinned}.txt"


def prefetched_jars() -> list[Path] | None:
    """The jars that `prefetch` found; None if it has not run, or if a jar has been deleted since."""
    try:
        jars = [Path(line) for line in jar_list().read_text().splitlines() if line]
    except OSError:
        return None
    return jars if jars and all(jar.is_file() for jar in jars) else None


def spark_jars() -> Path:
    """The folder of Spark's own jars, which is on the class path of drivers and executors."""
    return Path(pyspark.__file__).parent / "jars"


def jar_name(package: str) -> str:
    """The file name that Ivy gives to the jar of `GROUP:ARTIFACT:VERSION`."""
    group, artifact, version = package.split(":")
    return f"{group}_{artifact}-{version}.jar"


def package_settings(extras: Collection[str] = ()) -> dict[str, str]:
    """Settings that add the connector and the `extras` to a session: none if they are among Spark's own
    jars (in an image), the paths of prefetched jars, or coordinates for Ivy to resolve."""
    bundled = sorted(spark_jars().glob(f"*{LOCAL_FILE_SYSTEM.split(':')[1]}*.jar"))
    if bundled:
        return local_file_settings(bundled)
    jars = prefetched_jars()
    if jars is not None:
        others = {jar_name(package) for name, package in EXTRAS.items() if name not in extras}
        wanted = [jar for jar in jars if jar.name not in others]
        return {"spark.jars": ",".join(str(jar) for jar in wanted)} | local_file_settings(wanted)
    return {
        "spark.jars.packages": ",".join((*PACKAGES, *(EXTRAS[name] for name in sorted(extras)))),
        "spark.jars.excludes": ",".join(EXCLUDED),
        "spark.jars.ivy": str(ivy_home()),
    }


def local_file_settings(jars: list[Path]) -> dict[str, str]:
    """Settings for local files without child processes. Hadoop without its native library starts `chmod` for
    every file and folder that it creates: the 1,098 files of a year of flights took 19 s, and take 5 s with
    this class.

    The class must be on the class path before Spark looks for its jars, which is before Ivy's resolution.
    """
    name = LOCAL_FILE_SYSTEM.split(":")[1]
    found = [str(jar) for jar in jars if name in jar.name]
    if not found:
        return {}
    return {
        "spark.driver.extraClassPath": found[0],
        "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
    }


def class_archive(java: str) -> Path:
    """The path of the archive of Spark's classes for this Java and these jars (see `prefetch`), beside the
    jars, so that it goes with them. Java ignores the archive after the same jars were installed again: it
    compares their times."""
    release = Path(java).resolve().parents[1] / "release"
    build = release.read_text() if release.is_file() else java
    times = sorted((jar.name, jar.stat().st_mtime) for jar in os.scandir(spark_jars()))
    made_of = "\n".join((*PACKAGES, str(spark_jars()), str(times), build))
    name = f"spark-{hashlib.sha256(made_of.encode()).hexdigest()[:12]}.jsa"
    return spark_jars().parent / "ottla-classes" / name


def java_options(archive: Path | None) -> str:
    """Options of the driver's JVM. Java ignores an archive that does not match, without a message."""
    options = f"-Dlog4j2.configurationFile={LOG_CONFIG.as_uri()} -XX:+UseSerialGC"
    if archive is None or not archive.is_file():
        return options
    return f"{options} -XX:SharedArchiveFile={archive} {QUIET_ARCHIVE}"


def local_settings(java: str, master: str, memory: str) -> dict[str, str]:
    """Settings of a small Spark in this process' own JVM that no other machine can reach."""
    return {
        "spark.master": master,
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": java_options(class_archive(java)),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    }


def build_session(
    app_name: str,
    *,
    master: str = "local[2]",
    memory: str = "1g",
    extra: Mapping[str, str] | None = None,
    packages: Collection[str] = (),
) -> SparkSession:
    """A session with Spark's Kafka connector and `packages`, names of EXTRAS. Raises JavaMissing if Java is
    absent or too old.

    Under spark-submit `master` and `memory` have no effect: its command line sets them.
    """
    settings = dict(NEEDED_SETTINGS)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # set by spark-submit for the Python that it starts
        java = check_java()
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings |= local_settings(java, master, memory) | package_settings(packages)
    settings |= extra or {}
    builder = SparkSession.builder.appName(app_name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def use_java_checkpoint_files(spark: SparkSession, folder: str) -> None:
    """Writes the checkpoints of queries below `folder` with Java's file operations if it is on a local disk.

    Spark prefers Hadoop's FileContext, for the atomic renames of HDFS. For local files FileContext starts
    one process for each created file (`chmod`) and four for each rename (`readlink`): a hundred in one
    batch of a join. Without it the files and the order of renames are the same.
    """
    local = FileSystem(spark).absolute(folder).startswith("file:")
    if local and spark.conf.get(CHECKPOINT_FILES, None) is None:
        by_file_system = "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
        spark.conf.set(CHECKPOINT_FILES, by_file_system)
