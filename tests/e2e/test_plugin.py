"""`kubectl ottla` as a user types it: found by kubectl on the PATH, and using kubectl in turn."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.clusters import Cluster
from tests.e2e.kube import Kube, wait_for

Plugin = Callable[..., str]


@pytest.fixture
def ottla(kube: Kube, cluster: Cluster, tmp_path: Path) -> Plugin:
    """Runs `kubectl ottla ARGS…`, or the plugin itself, in the cluster's namespace; what it prints."""
    beside = Path(sys.executable).parent
    path = f"{beside}{os.pathsep}{os.environ['PATH']}"
    command, plugin = kube.command("kubectl"), ["kubectl", "ottla"]
    if len(command) > 1:
        # kube.sh gives kubectl a flag of its own, and then kubectl looks for no plugin.
        plugin = ["kubectl-ottla"]
        script = tmp_path / "kubectl"
        script.write_text(f'#!/bin/sh\nexec {" ".join(command)} "$@"\n')
        script.chmod(0o755)
        path = f"{tmp_path}{os.pathsep}{path}"
    assert (beside / "kubectl-ottla").exists(), "this tree is not installed: make setup"

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [*plugin, "-n", cluster.namespace, *arguments],
            capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "PATH": path},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


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
