"""Spark sessions for the jobs: versions pinned in one place, Java checked, quiet logs, loopback only.

Called by every job and by `ottla_pipeline.prefetch`. Under spark-submit the session is what the command line
made it: nothing is set here but what the jobs need to be right (UTC, the Parquet calendar).

The connector's jars are found once, by Ivy, from `PACKAGES`; `prefetch` writes down where they are, and later
sessions take them from there: no look-up, no network, and two seconds less at every start. What Java makes of
Spark's classes is kept there, too.
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
LOCAL_FILES = "com.globalmentor:hadoop-bare-naked-local-fs:0.1.0"
DELTA_VERSION = "4.0.0"
PACKAGES = (
    f"org.apache.spark:spark-sql-kafka-0-10_{SCALA_VERSION}:{SPARK_VERSION}",
    f"org.apache.spark:spark-avro_{SCALA_VERSION}:{SPARK_VERSION}",
    f"io.delta:delta-spark_{SCALA_VERSION}:{DELTA_VERSION}",
    LOCAL_FILES,
)
EXTRAS: Final[Mapping[str, str]] = {
    "iceberg": f"org.apache.iceberg:iceberg-spark-runtime-4.0_{SCALA_VERSION}:1.10.0",
    "postgresql": "org.postgresql:postgresql:42.7.4",
    "sqlite": "org.xerial:sqlite-jdbc:3.47.1.0",
}
"""Tables that jobs may join: a session has those of them that its job names (`spark.packages`)."""
# What PySpark's own jars hold already, and what is for compilers alone: it would be 50 MB more to copy at
# every start.
SHIPPED = (
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

# Without these (but the last) a job would be wrong, not just slow: event dates are dates in UTC, and a
# timestamp before 1900 is written as it stands instead of failing its whole batch.
NEEDED_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # It would parse the JSON anew for each field that is asked for.
    "spark.sql.optimizer.enableJsonExpressionOptimization": "false",
}
DELTA_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""Settings of a session that reads or writes Delta tables."""
CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"


class JavaMissing(Exception):
    """There is no Java that Spark can use; the message says what was found and what to do."""


def parse_java_version(text: str) -> int | None:
    """The feature release named in what `java -version` prints ("17.0.15" is 17, "1.8.0_402" is 8)."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return None
    major, minor = int(found[1]), int(found[2] or 0)
    return minor if major == 1 else major


def check_java() -> str:
    """The path of a Java that Spark 4 can use (JAVA_HOME's, or the first on PATH); else JavaMissing."""
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
    """Where Ivy keeps what it downloaded: Spark's own default, unless OTTLA_IVY_HOME says otherwise."""
    return Path(os.environ.get("OTTLA_IVY_HOME") or Path.home() / ".ivy2.5.2")


def jar_list() -> Path:
    """The file in which `prefetch` writes the jars of just these packages, one path a line."""
    names = "\n".join((*PACKAGES, *EXTRAS.values(), *SHIPPED))
    pinned = hashlib.sha256(names.encode()).hexdigest()[:12]
    return ivy_home() / f"ottla-{pinned}.txt"


def prefetched_jars() -> list[Path] | None:
    """The connector's jars as found by `prefetch`, or None if it has not run or a jar is gone since."""
    try:
        jars = [Path(line) for line in jar_list().read_text().splitlines() if line]
    except OSError:
        return None
    return jars if jars and all(jar.is_file() for jar in jars) else None


def spark_jars() -> Path:
    """The folder of Spark's own jars, which are on the class path of drivers and executors."""
    return Path(pyspark.__file__).parent / "jars"


def jar_name(package: str) -> str:
    """How Ivy calls the jar of `GROUP:ARTIFACT:VERSION`."""
    group, artifact, version = package.split(":")
    return f"{group}_{artifact}-{version}.jar"


def package_settings(extras: Collection[str] = ()) -> dict[str, str]:
    """How Spark comes by the connector and the `extras`: among its own jars (in an image), jars already here,
    or names for Ivy to resolve."""
    bundled = sorted(spark_jars().glob(f"*{LOCAL_FILES.split(':')[1]}*.jar"))
    if bundled:
        return local_file_settings(bundled)
    jars = prefetched_jars()
    if jars is not None:
        others = {jar_name(package) for name, package in EXTRAS.items() if name not in extras}
        wanted = [jar for jar in jars if jar.name not in others]
        return {"spark.jars": ",".join(str(jar) for jar in wanted)} | local_file_settings(wanted)
    return {
        "spark.jars.packages": ",".join((*PACKAGES, *(EXTRAS[name] for name in sorted(extras)))),
        "spark.jars.excludes": ",".join(SHIPPED),
        "spark.jars.ivy": str(ivy_home()),
    }


def local_file_settings(jars: list[Path]) -> dict[str, str]:
    """Local files by Java's own calls. Hadoop, without its native library, starts a `chmod` for every file
    and folder that it makes: the 1,098 files of a year of flights took 19 s that way, and take 5 s this way.

    The class has to be there before Spark looks for its jars, which Ivy's resolution would be too late for.
    """
    name = LOCAL_FILES.split(":")[1]
    found = [str(jar) for jar in jars if name in jar.name]
    if not found:
        return {}
    return {
        "spark.driver.extraClassPath": found[0],
        "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
    }


def class_archive(java: str) -> Path:
    """Where `prefetch` has this Java keep Spark's classes as it has loaded them once (see `training`)."""
    release = Path(java).resolve().parents[1] / "release"
    build = release.read_text() if release.is_file() else java
    made_of = hashlib.sha256("\n".join((*PACKAGES, str(spark_jars()), build)).encode()).hexdigest()[:12]
    return ivy_home() / f"ottla-{made_of}.jsa"


def java_options(archive: Path | None) -> str:
    """Of the driver's JVM. An archive that does not fit is passed over by Java, and says nothing of it."""
    options = f"-Dlog4j2.configurationFile={LOG_CONFIG.as_uri()} -XX:+UseSerialGC"
    if archive is None or not archive.is_file():
        return options
    return f"{options} -XX:SharedArchiveFile={archive} {QUIET_ARCHIVE}"


def local_settings(java: str, master: str, memory: str) -> dict[str, str]:
    """A small, quiet Spark in this process' own JVM that no other machine can reach."""
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
    """A session with Spark's Kafka connector and `packages`, names of EXTRAS; raises JavaMissing when Java is
    absent or too old.

    `master` and `memory` are left alone under spark-submit, whose command line has the say.
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


def keep_checkpoint(spark: SparkSession, folder: str) -> None:
    """Where `folder` is on a local disk, a query's checkpoint goes there by Java's own calls, too.

    Spark prefers Hadoop's FileContext, for the atomic renames that HDFS has under that name. With local files
    that starts a process for each one made (`chmod`) and four for each renamed (`readlink`): a hundred in a
    batch of a join. Without it, the files and the order of their renames are the same.
    """
    local = FileSystem(spark).absolute(folder).startswith("file:")
    if local and spark.conf.get(CHECKPOINT_FILES, None) is None:
        by_file_system = "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
        spark.conf.set(CHECKPOINT_FILES, by_file_system)
