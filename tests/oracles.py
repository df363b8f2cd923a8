"""Finds the external oracles of the tests: Apache Kafka's jars and those of its clients.

A test whose oracle is not available here is skipped with the oracle's name.
"""

from __future__ import annotations

import os
import shutil
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from bench.apache_kafka import JarsUnavailable, KafkaBroker, class_archive, kafka_classpath
from bench.maven import Artifact, fetch_jars, run_maven
from ottla.local.zookeeper import EmbeddedZooKeeper, JavaUnusable

KAFKA_VERSION = "3.9.1"
SLF4J = "org.slf4j:slf4j-api:1.7.36"
REGISTRY_CLIENT = "com.snowflake:snowflake-kafka-connector:2.2.2"
"""With io.confluent's kafka-schema-registry-client and kafka-avro-serializer 7.2.1 under their own names."""
JUDGES = Path(__file__).with_name("judges")
"""Programs in other languages, and in Python, that tests start."""
JAVA = JUDGES / "java"
_CACHE = Path("~/.cache/ottla/kafka").expanduser()


@lru_cache
def maven_jar(artifact: str) -> Path:
    """The jar of `group:name:version`, from the cache or through Maven; skips the test without Maven."""
    _, name, version = artifact.split(":")
    jar = _CACHE / f"{name}-{version}.jar"
    done = _CACHE / f"{jar.name}.complete"
    try:
        run_maven(done, "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={_CACHE}")
    except JarsUnavailable as missing:
        pytest.skip(f"needs {artifact}: {missing}")
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


def kafka_082() -> Path:
    """The folder with the jars of Kafka 0.8.2's clients and tools. Raises JarsUnavailable."""
    return fetch_jars("kafka-0.8.2.2", (Artifact("org.apache.kafka", "kafka_2.11", "0.8.2.2"),))


def streams_and_connect() -> Path:
    """The folder with the jars of Kafka Streams and of Connect with its file connectors, and all they need.
    Raises JarsUnavailable."""
    group = "org.apache.kafka"
    names = ("kafka-streams", "connect-runtime", "connect-file", "connect-json")
    logging = Artifact("org.slf4j", "slf4j-reload4j", "1.7.36")
    artifacts = [*(Artifact(group, name, KAFKA_VERSION) for name in names), logging]
    return fetch_jars(f"streams-and-connect-{KAFKA_VERSION}", artifacts)


def prefetch() -> None:
    """Downloads all oracles before tests with time-outs need them: `python -m tests.oracles`."""
    needs_kafka_jars()
    if not class_archive().exists():
        with TemporaryDirectory() as folder:
            zookeeper = EmbeddedZooKeeper(Path(folder) / "zookeeper")
            zookeeper.start()
            try:
                KafkaBroker.write_class_archive(Path(folder) / "kafka", zookeeper.connect)
            finally:
                zookeeper.stop()
    kafka_clients_jar()
    maven_jar(SLF4J)
    maven_jar(REGISTRY_CLIENT)
    kafka_082()
    streams_and_connect()


if __name__ == "__main__":
    prefetch()
