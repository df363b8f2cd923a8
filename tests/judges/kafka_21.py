"""Apache Kafka 2.1.1 of 2019 as a broker, the oldest that the client library and the console are for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.maven import Artifact, JarsUnavailable, fetch_jars
from ottla.client.blocking import AdminClient
from ottla.client.errors import ClientError
from ottla.local.brokers import escaped
from ottla.local.processes import ChildProcess, free_port, wait_until
from ottla.local.zookeeper import EmbeddedZooKeeper, find_java

VERSION = "2.1.1"
_ARTIFACTS = (
    Artifact("org.apache.kafka", "kafka_2.12", VERSION),
    Artifact("org.slf4j", "slf4j-simple", "1.7.25"),
    Artifact("org.apache.zookeeper", "zookeeper", "3.5.10"),  # its own cannot connect on Java 14 and later
)
JVM = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)


@contextmanager
def kafka_21(directory: Path) -> Iterator[str]:
    """The bootstrap address of a broker; skips the test where its jars cannot be had."""
    if shutil.which("java") is None:
        pytest.skip("needs Java")
    try:
        jars = fetch_jars(f"kafka-{VERSION}", _ARTIFACTS)
    except JarsUnavailable as missing:
        pytest.skip(f"needs Apache Kafka {VERSION}: {missing}")
    zookeeper = EmbeddedZooKeeper(directory / "zookeeper")
    address = f"127.0.0.1:{free_port()}"
    settings = {
        "broker.id": "0",
        "listeners": f"PLAINTEXT://{address}",
        "zookeeper.connect": zookeeper.connect,
        "log.dirs": str(directory / "data"),
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    properties = directory / "kafka-21.properties"
    properties.write_text("".join(f"{name}={escaped(text)}\n" for name, text in settings.items()))
    command = [str(find_java()), *JVM, "-cp", f"{jars}/*", "kafka.Kafka", str(properties)]
    log = directory / "kafka-21.log"
    process = ChildProcess("Apache Kafka 2.1", command, log=log)
    try:
        zookeeper.start()
        process.start()
        assert wait_until(lambda: not process.running or _serves(address), timeout_s=120), log.read_text()
        assert process.running, log.read_text()
        yield address
    finally:
        process.kill()
        zookeeper.stop()


def _serves(address: str) -> bool:
    try:
        with AdminClient(bootstrap_servers=address, default_api_timeout_ms=2_000) as admin:
            return bool(admin.describe_cluster().brokers)
    except ClientError:
        return False
