"""Backups on a real Kubernetes, to an S3 server: on schedule and on request, restored by `kubectl ottla
restore`, and by a new cluster that starts from one. Apache Kafka's tools compare the clusters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.clusters import NAMESPACE, Cluster, cluster_spec
from tests.e2e.conftest import Plugin, plugin_in
from tests.e2e.installing import ROOT
from tests.e2e.kills import KilledAtEachStep, kill_operator
from tests.e2e.kube import CommandFailed, Kube, wait_for
from tests.judges.s3_server import BUCKET, S3Server, s3_command
from tests.oracles import needs_kafka_jars

_READY_S: Final = 240
_PORT: Final = 7070
_SECRET: Final = "s3"
_CONNECT: Final = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)"


@pytest.fixture(scope="module")
def namespace(kube: Kube, operator: str) -> Iterator[str]:
    needs_kafka_jars()
    if not kube.has_node:
        pytest.skip("needs OTTLA_KUBE: Kafka's tools and the S3 server run on its node")
    name = f"{NAMESPACE}-backup"
    kube.ensure_namespace(name)
    yield name
    kube.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="module")
def s3(kube: Kube, namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server on the node, which pods reach, and a Secret with its credentials."""
    folder = tmp_path_factory.mktemp("s3")
    path = '{.items[0].status.addresses[?(@.type=="InternalIP")].address}'
    host = kube.kubectl("get", "nodes", "-o", f"jsonpath={path}")
    server, command = s3_command(folder, f"{host}:{_PORT}")
    pid = folder / "pid"
    shell = kube.on_node("sh", "-c", f'echo $$ > {pid}; exec "$@"', "sh", *command)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(shell, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_for("the S3 server", lambda: _connects(kube, host), 30)
        set_credentials(kube, namespace, server.credentials)
        yield server
    finally:
        kube.run_on_node("kill", pid.read_text().strip())
        process.wait(30)


def _connects(kube: Kube, host: str) -> bool:
    kube.run_on_node(sys.executable, "-c", _CONNECT, host, str(_PORT))
    return True


def set_credentials(kube: Kube, namespace: str, credentials: dict[str, str]) -> None:
    about = {"name": _SECRET, "namespace": namespace}
    kube.apply({"apiVersion": "v1", "kind": "Secret", "metadata": about, "stringData": credentials})


def spec(**more: Any) -> dict[str, Any]:
    """A cluster of one broker, with an authorizer."""
    small = {"size": "64Mi", "deleteClaim": True}
    return cluster_spec(
        replicas=1,
        storage=small,
        zookeeper={"managed": {"replicas": 1, "storage": small}},
        authorization={"type": "simple", "superUsers": ["ANONYMOUS"]},
        config={"offsets.topic.num.partitions": 3, "auto.create.topics.enable": False},
        **more,
    )


def store(s3: S3Server, **more: Any) -> dict[str, Any]:
    return {"endpoint": s3.endpoint, "credentialsSecret": _SECRET, **more}


@pytest.fixture(scope="module")
def source(kube: Kube, namespace: str, s3: S3Server) -> Cluster:
    """A cluster with metadata of all kinds and some records."""
    cluster = Cluster(kube, namespace, "source")
    backup = store(s3, destination=f"s3://{BUCKET}/kafka", schedule="* * * * *", retention=5)
    cluster.create(spec(backup=backup))
    cluster.wait_ready(_READY_S)
    metadata(cluster, "fill")
    metadata(cluster, "produce")
    return cluster


@pytest.fixture
def ottla(kube: Kube, namespace: str, tmp_path: Path) -> Plugin:
    return plugin_in(namespace, kube, tmp_path)


def metadata(cluster: Cluster, what: str, *more: str) -> str:
    """Run `tests.judges.cluster_metadata` on the node."""
    address = f"{cluster.name}-brokers-0.{cluster.name}-brokers.{cluster.namespace}.svc:9092"
    home = ("env", f"PYTHONPATH={os.pathsep.join([*sys.path, str(ROOT)])}", f"HOME={Path.home()}")
    program = (*home, sys.executable, "-m", "tests.judges.cluster_metadata", what, address, *more)
    return cluster.kube.run_on_node(*program, timeout_s=300)


def shown(cluster: Cluster, folder: Path) -> list[str]:
    """What Kafka's tools print of the cluster, and of the group's offsets."""
    found: list[str] = json.loads(metadata(cluster, "shown", str(folder)))
    return found


def latest(s3: S3Server) -> Path:
    return max(s3.folder.rglob("source-*.ndjson.gz"), key=lambda path: path.name)


def test_backups_are_taken_on_schedule_and_on_request(
    kube: Kube, source: Cluster, s3: S3Server, ottla: Plugin
) -> None:
    wait_for("a scheduled backup", lambda: source.status.get("backup", {}).get("lastObject"), 120)
    assert latest(s3).stat().st_size > 0
    printed = ottla("backup", "source", "--wait")
    assert "2 topics, 2 settings, 4 ACLs, 2 quotas, 2 offsets" in printed
    assert printed.startswith(f"s3://{BUCKET}/kafka/{latest(s3).name}: ")
    assert source.condition("BackedUp")["status"] == "True"
    wait_for("older ones are deleted", lambda: len(list(s3.folder.rglob("source-*.gz"))) <= 5, 60)
    try:
        set_credentials(kube, source.namespace, {**s3.credentials, "AWS_SECRET_ACCESS_KEY": "wrong"})
        with pytest.raises(AssertionError, match="SignatureDoesNotMatch"):
            ottla("backup", "source", "--wait")
        assert source.condition("BackedUp")["reason"] == "BackupFailed"
        assert source.is_ready()
    finally:
        set_credentials(kube, source.namespace, s3.credentials)
    assert ottla("backup", "source", "--wait").startswith(f"s3://{BUCKET}/")


def test_a_backup_is_restored_into_an_empty_cluster(
    kube: Kube, source: Cluster, s3: S3Server, ottla: Plugin, tmp_path: Path
) -> None:
    ottla("backup", "source", "--wait")
    target = Cluster(kube, source.namespace, "target")
    target.create(spec())
    target.wait_ready(_READY_S)
    file = str(latest(s3))
    would = ottla("restore", "target", "--from", file, "--dry-run")
    assert "would restore topic orders: 3 partitions of 1 replicas" in would
    restored = ottla("restore", "target", "--from", file)
    assert "left: group shop: the records of 1 offsets are not there" in restored
    metadata(target, "produce")
    assert "restore offset 7 of group shop in orders-0" in ottla("restore", "target", "--from", file)
    expected = shown(source, tmp_path)
    assert "PartitionCount: 3" in expected[0]
    assert "orders 0 7 10 3" in expected[-1]
    assert shown(target, tmp_path) == expected
    kube.delete("brokercluster", "target", source.namespace)


def test_a_new_cluster_starts_from_a_backup_once_though_operators_die(
    kube: Kube, source: Cluster, s3: S3Server, ottla: Plugin, tmp_path: Path
) -> None:
    ottla("backup", "source", "--wait")
    new = Cluster(kube, source.namespace, "new")
    config = {"retention.ms": 100000, "cleanup.policy": "compact,delete"}
    topic = {"clusterRef": {"name": "new"}, "partitions": 3, "replicas": 1, "config": config}
    recovery = store(s3, source=f"s3://{BUCKET}/kafka", name="source")

    def state() -> object:
        recovered = new.condition("Recovered")
        return new.status.get("recovery"), recovered.get("status"), new.is_ready("topic", "orders")

    with KilledAtEachStep(kube, state) as killed:
        kube.apply(
            new.resource("BrokerCluster", "new", spec(bootstrap={"recovery": recovery})),
            new.resource("Topic", "orders", topic),
        )
        new.wait_ready(_READY_S)
        wait_for("the topic is Ready", lambda: new.is_ready("topic", "orders"), 120)
    assert len(killed.at) >= 2
    status = new.status["recovery"]
    assert status["source"].startswith(f"s3://{BUCKET}/kafka/source-")
    assert status["startedAt"] <= status["completedAt"]
    assert any("password of user anna" in left for left in status["left"])
    assert new.condition("Recovered")["reason"] == "Completed"

    metadata(new, "produce")
    assert "restore offset 7 of group shop in orders-0" in ottla("restore", "new", "--from", str(latest(s3)))
    assert shown(new, tmp_path) == shown(source, tmp_path)

    address = new.status["bootstrapServers"]
    new.in_pod("ottla", "topics", "delete", "Clicks_EU", "--yes", "-b", address)
    kill_operator(kube)
    new.patch({"bootstrap": {"recovery": {"name": None}}})
    new.wait_ready()
    assert "Clicks_EU" not in new.in_pod("ottla", "topics", "list", "-b", address)
    assert new.status["recovery"] == status
    with pytest.raises(CommandFailed, match="cannot be added to an existing one"):
        source.patch({"bootstrap": {"recovery": recovery}})
