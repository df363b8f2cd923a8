"""Spark sessions of tests, for the fixtures `spark` and `quick_spark` of conftest.py.

PySpark keeps its JVM when a session is stopped: the test files of a process share it, with the jars of all
kinds of tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from ottla_pipeline.spark import (
    EXTRAS,
    JavaMissing,
    build_session,
    check_java,
    use_java_checkpoint_files,
)

# Tests end before the second compiler pays; without it, the first has little room for code by default.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"


SUBMIT_ARGS = f'--conf "spark.driver.defaultJavaOptions={QUICK_JAVA}" pyspark-shell'
"""PYSPARK_SUBMIT_ARGS, and no SPARK_CONF_DIR: a folder on the class path would make Java's archive unfit."""


@contextmanager
def session_of(*settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session with these settings, later ones override earlier ones; skips where there is no Java."""
    try:
        check_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    extra = {name: each[name] for each in settings for name in each}
    session = build_session("ottla-tests", extra=extra, packages=EXTRAS)
    use_java_checkpoint_files(session, "/")  # as the command does
    try:
        yield session
    finally:
        session.stop()
