"""The operator installed from its chart on a real Kubernetes, and one small cluster that the tests share.

Skipped without a Kubernetes: OTTLA_KUBE is the path of kube.sh, which starts one on a machine without
registries, or KUBECONFIG names one that has the image `ottla:dev`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.clusters import NAMESPACE, Cluster, cluster_spec
from tests.e2e.installing import ROOT, WHY_NOT, connect, install_operator, uninstall_operator
from tests.e2e.kube import Kube, wait_for


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The first of them waits for the cluster and the image, which may have to be built.
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(2400))


_unproven: list[str] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _unproven:
        terminalreporter.section("what this cluster cannot prove")
        for line in _unproven:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def kube() -> Kube:
    """A reachable cluster that has the image."""
    found = connect()
    if found is None:
        pytest.skip(WHY_NOT)
    _unproven.extend(_beyond(found))
    return found


def _beyond(kube: Kube) -> Iterator[str]:
    nodes = kube.kubectl("get", "nodes", "-o", "name").split()
    if len(nodes) < 2:
        yield "racks, and the loss of a node: there is one node (planners and builders: tests/unit)"
    growing = kube.kubectl("get", "storageclass", "-o", "jsonpath={.items[*].allowVolumeExpansion}")
    if "true" not in growing:
        yield "a file system that grows: no StorageClass allows it (test_outside: claims grow around pods)"
    yield "a provider's load balancers (test_outside plays the provider), and NetworkPolicies being enforced"


@pytest.fixture(scope="session")
def operator(kube: Kube) -> Iterator[str]:
    """The chart, installed. The name of the operator's Deployment in the namespace SYSTEM."""
    install_operator(kube)
    yield "ottla"
    if not os.environ.get("OTTLA_E2E_KEEP"):
        uninstall_operator(kube)


@pytest.fixture(scope="session")
def demo(kube: Kube, operator: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers and three ZooKeeper servers, Ready. A test restores the state that it found."""
    cluster = Cluster(kube, NAMESPACE, "demo")
    kube.ensure_namespace(NAMESPACE)
    values = tmp_path_factory.mktemp("chart") / "values.yaml"
    topic = {"partitions": 6, "replicas": 3}
    values.write_text(json.dumps({"replicas": 3, "spec": cluster_spec(), "topics": {"events": topic}}))
    kube.helm(
        "upgrade", "--install", "demo", str(ROOT / "charts/ottla-cluster"), "-n", NAMESPACE, "-f", str(values)
    )
    cluster.as_in_the_chart()
    print(f"apply to Ready: {cluster.wait_ready(300):.0f} s")
    wait_for("topic events is Ready", lambda: cluster.is_ready("topic", "events"), 60)
    yield cluster
    if not os.environ.get("OTTLA_E2E_KEEP"):
        kube.helm("uninstall", "demo", "-n", NAMESPACE)
        wait_for("the cluster is gone", lambda: not cluster.brokers() and not cluster.zookeepers(), 120)


@pytest.fixture
def cluster(demo: Cluster) -> Cluster:
    """The shared cluster, Ready with three brokers."""
    demo.wait_ready()
    return demo


Plugin = Callable[..., str]


@pytest.fixture
def ottla(kube: Kube, cluster: Cluster, tmp_path: Path) -> Plugin:
    """Runs `kubectl ottla ARGS…`, or the plugin itself, in the cluster's namespace; what it prints."""
    return plugin_in(cluster.namespace, kube, tmp_path)


def plugin_in(namespace: str, kube: Kube, folder: Path) -> Plugin:
    """`kubectl ottla` in this namespace. `folder`: for a script of its own."""
    beside = Path(sys.executable).parent
    path = f"{beside}{os.pathsep}{os.environ['PATH']}"
    command, plugin = kube.command("kubectl"), ["kubectl", "ottla"]
    if len(command) > 1:
        # kube.sh gives kubectl a flag of its own, and then kubectl looks for no plugin.
        plugin = ["kubectl-ottla"]
        script = folder / "kubectl"
        script.write_text(f'#!/bin/sh\nexec {" ".join(command)} "$@"\n')
        script.chmod(0o755)
        path = f"{folder}{os.pathsep}{path}"
    assert (beside / "kubectl-ottla").exists(), "this tree is not installed: make setup"

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [*plugin, "-n", namespace, *arguments],
            capture_output=True, text=True, timeout=600, check=False, env={**os.environ, "PATH": path},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
