"""Where the tests find the outside judges of Ottla: Apache Kafka's own jars.

A judge that cannot be had here skips the test that needs it, by name; it never fails it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

import pytest

from bench.apache_kafka import JarsUnavailable, kafka_classpath
from ottla.local.java import JavaUnusable

KAFKA_VERSION = "3.9.1"
_CACHE = Path("~/.cache/ottla/kafka").expanduser()


@lru_cache
def maven_jar(artifact: str) -> Path:
    """The jar of `group:name:version`, from the cache or through Maven; skips the test without Maven."""
    _, name, version = artifact.split(":")
    jar = _CACHE / f"{name}-{version}.jar"
    if jar.exists():
        return jar
    if shutil.which("mvn") is None:
        pytest.skip(f"needs Maven for {artifact}")
    _CACHE.mkdir(parents=True, exist_ok=True)
    copy = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={_CACHE}"]
    done = subprocess.run(copy, capture_output=True, text=True, timeout=240, check=False)
    if done.returncode != 0 or not jar.exists():
        pytest.skip(f"needs {artifact}, which Maven could not get: {done.stdout[-500:]}")
    return jar


def kafka_clients_jar() -> Path:
    """The kafka-clients jar of the version we follow; OTTLA_KAFKA_CLIENTS_JAR may name it."""
    named = os.environ.get("OTTLA_KAFKA_CLIENTS_JAR")
    if named:
        return Path(named)
    return maven_jar(f"org.apache.kafka:kafka-clients:{KAFKA_VERSION}")


def java() -> str:
    """The `java` command; skips the test where there is none."""
    found = shutil.which("java")
    if found is None:
        pytest.skip("needs Java")
    return found


def needs_kafka_jars() -> None:
    """Skip the test where Apache Kafka's broker and tools cannot be had."""
    try:
        kafka_classpath()
    except (JarsUnavailable, JavaUnusable) as missing:
        pytest.skip(str(missing))
