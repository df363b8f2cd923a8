"""A mirror and a registry where brokers want TLS, and a certificate or a password.

What is there is told by readers on the brokers' plaintext listeners.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.schema_registry import Schema
from pyspark.sql import SparkSession

from ottla.local.processes import free_port, wait_until
from ottla_pipeline.config.common import validate
from ottla_pipeline.jobs import mirror
from ottla_pipeline.running import JobContext
from tests.judges.mirror_clusters import create, read, run_mirror, send, send_transactions, values
from tests.judges.one_broker import one_broker
from tests.judges.registries import Registry
from tests.judges.secured import ANNA, ANNAS_PASSWORD, Place

pytestmark = pytest.mark.timeout(600)
SPARK = (mirror.SESSION,)
LISTENERS = ("PLAINTEXT", "SSL", "SASL_SSL")


class Cluster:
    """A broker with a listener for each of three protocols, and a client's ways in."""

    def __init__(self, alias: str, folder: Path, ports: dict[str, int], place: Place) -> None:
        self.alias, self.folder, self.place = alias, folder, place
        self.at = {protocol: f"127.0.0.1:{port}" for protocol, port in ports.items()}

    def by_certificate(self) -> dict[str, Any]:
        pem = str(self.place.client_pem)
        tls = {"ca": str(self.place.authority_pem), "certificate": pem, "key": pem}
        return {"alias": self.alias, "bootstrap": self.at["SSL"], "tls": tls}

    def by_password(self) -> dict[str, Any]:
        secret = self.folder / "password"
        secret.write_text(ANNAS_PASSWORD + "\n")
        sasl = {"mechanism": "PLAIN", "username": ANNA, "passwordFile": str(secret)}
        tls = {"ca": str(self.place.authority_pem)}
        return {"alias": self.alias, "bootstrap": self.at["SASL_SSL"], "sasl": sasl, "tls": tls}


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Cluster]]:
    with ExitStack() as running:
        found = []
        for alias in ("east", "west"):
            folder = tmp_path_factory.mktemp(alias)
            place, ports = Place(folder / "keys"), {protocol: free_port() for protocol in LISTENERS}
            running.enter_context(one_broker(folder, place.settings(ports)))
            found.append(Cluster(alias, folder, ports, place))
        yield found[0], found[1]


@pytest.mark.parametrize("by_certificate", ["source", "target"])
def test_a_mirror_reads_and_writes_over_tls(
    clusters: tuple[Cluster, Cluster], spark: SparkSession, tmp_path: Path, by_certificate: str
) -> None:
    """One end knows it by its certificate, the other by its password: Java reads, librdkafka writes."""
    east, west = clusters
    topic, group = f"orders-{by_certificate}", f"app-{by_certificate}"
    create(east.at["PLAINTEXT"], topic)
    send(east.at["PLAINTEXT"], topic, [f"r{number}" for number in range(20)])
    kept = send_transactions(east.at["PLAINTEXT"], topic, [f"t{number}" for number in range(12)], size=4)
    with Consumer({"bootstrap.servers": east.at["PLAINTEXT"], "group.id": group}) as reader:
        reader.commit(offsets=[TopicPartition(topic, 0, 10)], asynchronous=False)
    raw = {
        "name": by_certificate,
        "source": east.by_certificate() if by_certificate == "source" else east.by_password(),
        "target": west.by_certificate() if by_certificate == "target" else west.by_password(),
        "topics": [topic],
        "groups": {"pattern": f"{group}.*"},
        "checkpoint": str(tmp_path / "checkpoint"),
        "trigger": {"availableNow": True},
    }
    run_mirror(JobContext(spark, lambda _: None), validate(raw, mirror.MirrorConfig, "test"))
    there = read(west.at["PLAINTEXT"], f"east.{topic}")
    assert there == read(east.at["PLAINTEXT"], topic)
    assert values(there) == sorted([*(f"r{number}" for number in range(20)), *kept])
    with Consumer({"bootstrap.servers": west.at["PLAINTEXT"], "group.id": group}) as moved:
        assert [each.offset for each in moved.committed([TopicPartition(f"east.{topic}", 0)], 30)] == [10]


def test_a_registry_writes_and_reads_over_tls_and_sasl(
    clusters: tuple[Cluster, Cluster], tmp_path: Path
) -> None:
    cluster, schema = clusters[0], Schema(json.dumps({"type": "record", "name": "A", "fields": []}))
    settings = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(cluster.place.authority_pem),
        "sasl.mechanism": "PLAIN",
        "sasl.username": "bert",
        "sasl.password": "bert",
    }
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    options = ("--kafka-config", str(file))
    with Registry(cluster.at["SASL_SSL"], tmp_path, "_schemas", *options) as registry:
        assert registry.client().register_schema("a", schema) == 1
        registry.kill()
        registry.start()
        assert registry.client().get_latest_version("a").schema_id == 1
    (held,) = read(cluster.at["PLAINTEXT"], "_schemas").values()
    assert b'"subject":"a"' in b"".join(record.key or b"" for record in held)
    wrong = (*options, "--kafka-option", "sasl.password=other")
    refused = Registry(cluster.at["SASL_SSL"], tmp_path, "_schemas", *wrong)
    refused.launch()
    try:
        assert wait_until(lambda: "uthentication" in refused.log.read_text(), timeout_s=60)
    finally:
        refused.kill()
