"""`kubectl ottla` as a user types it: found by kubectl on the PATH, and using kubectl in turn."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.clusters import SYSTEM, Cluster
from tests.e2e.conftest import Plugin
from tests.e2e.kube import Kube, wait_for


@pytest.fixture
def resumed(cluster: Cluster) -> Iterator[Cluster]:
    yield cluster
    cluster.kube.kubectl(
        *("annotate", "brokercluster", cluster.name, "-n", cluster.namespace),
        "ottla.dev/pause-reconciliation-",
    )


def test_status_shows_brokers_and_what_refers_to_the_cluster(ottla: Plugin) -> None:
    text = ottla("status")
    assert "demo: Ready (3 brokers are ready)" in text
    assert all(f"demo-brokers-{broker}" in text for broker in range(3))
    assert "ready: Topic" in text
    assert "demo" in ottla("status", "--all-namespaces")


def test_logs_are_those_of_all_pods_by_name(ottla: Plugin) -> None:
    text = ottla("logs", "demo", "--component", "broker", "--since", "24h")
    assert all(f"[pod/demo-brokers-{broker}/broker]" in text for broker in range(3))


def test_a_paused_cluster_is_observed_only(ottla: Plugin, kube: Kube, resumed: Cluster) -> None:
    ottla("pause", "demo")
    wait_for(
        "the status says that it is paused",
        lambda: resumed.condition("ReconciliationPaused").get("status") == "True",
        60,
    )
    before = resumed.status["observedGeneration"]
    kube.delete("service", "demo-bootstrap", resumed.namespace)
    resumed.patch({"template": {"podDisruptionBudget": {}}})
    assert kube.get("service", "demo-bootstrap", resumed.namespace) is None
    assert resumed.status["observedGeneration"] == before
    ottla("resume", "demo")
    wait_for("the Service is back", lambda: kube.get("service", "demo-bootstrap", resumed.namespace), 60)


def test_roll_bounces_every_broker(ottla: Plugin, cluster: Cluster) -> None:
    before = set(cluster.brokers().values())
    ottla("roll", "demo")
    wait_for("every pod is a new one", lambda: not before & set(cluster.brokers().values()), 300)
    cluster.wait_ready()


def test_the_shell_runs_commands_as_a_broker(ottla: Plugin) -> None:
    assert "events" in ottla("shell", "demo", "topics", "list")
    described = ottla("shell", "demo", "topics", "describe", "events")
    assert [line.split()[0] for line in described.splitlines()[2:]] == ["0", "1", "2", "3", "4", "5"]


def test_the_report_is_complete_and_has_no_secret(ottla: Plugin, tmp_path: Path) -> None:
    target = tmp_path / "report.tar.gz"
    ottla("report", "demo", "--operator-namespace", SYSTEM, "-f", str(target))
    with tarfile.open(target) as tar:
        files = {member.name.partition("/")[2]: tar.extractfile(member) for member in tar}
        texts = {name: file.read().decode() for name, file in files.items() if file is not None}
    expected = [f"logs/demo-brokers-{broker}.broker.txt" for broker in range(3)]
    expected += ["resources/brokerclusters.yaml", "objects/statefulsets.yaml", "operator/deployments.yaml"]
    assert not [name for name in expected if name not in texts]
    assert "not-read.txt" not in texts
    assert "PRIVATE KEY" not in "".join(texts.values())
