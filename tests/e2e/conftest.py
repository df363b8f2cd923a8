"""The operator installed from its chart on a real Kubernetes, and one small cluster that the tests share.

Skipped where there is no Kubernetes for the taking: OTTLA_KUBE is the path of kube.sh, which brings one up on
a machine without registries, or KUBECONFIG points at one that has the image `ottla:dev`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.clusters import IMAGE, Cluster, cluster_spec
from tests.e2e.kube import Kube, wait_for

ROOT = Path(__file__).parents[2]
SYSTEM = os.environ.get("OTTLA_E2E_SYSTEM", "ottla-system")
NAMESPACE = os.environ.get("OTTLA_E2E_NAMESPACE", "ottla-e2e")
_WHY_NOT = "needs OTTLA_KUBE, the path of kube.sh, or a KUBECONFIG"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The first of them waits for the cluster and the image, which may have to be built.
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(2400))


@pytest.fixture(scope="session")
def kube() -> Kube:
    """A cluster that answers, with the image in it. OTTLA_E2E_IMAGE=keep: the image is there already."""
    script = os.environ.get("OTTLA_KUBE")
    if script:
        subprocess.run([script, "up"], check=True, timeout=1500)
        if os.environ.get("OTTLA_E2E_IMAGE") != "keep":
            _load_image(script)
        return Kube(Path(script))
    if not os.environ.get("KUBECONFIG"):
        pytest.skip(_WHY_NOT)
    return Kube(None)


def _load_image(script: str) -> None:
    base = "localhost/python:3.12-slim"
    subprocess.run([script, "base-image", base], check=True, timeout=900)
    subprocess.run([script, "load-image", str(ROOT), IMAGE, f"BASE_IMAGE={base}"], check=True, timeout=1500)


@pytest.fixture(scope="session")
def operator(kube: Kube) -> Iterator[str]:
    """The chart, installed. The name of the operator's Deployment in the namespace SYSTEM."""
    repository, tag = IMAGE.split(":")
    kube.helm(
        *("upgrade", "--install", "ottla", str(ROOT / "charts/ottla"), "-n", SYSTEM, "--create-namespace"),
        *("--set", f"image.repository={repository}", "--set", f"image.tag={tag}"),
        *("--set", "resources.requests.cpu=10m", "--take-ownership", "--wait", "--timeout", "3m"),
        *_only_these_namespaces(kube),
    )
    yield "ottla"
    if not os.environ.get("OTTLA_E2E_KEEP"):
        kube.helm("uninstall", "ottla", "-n", SYSTEM, "--wait")


def _only_these_namespaces(kube: Kube) -> list[str]:
    """OTTLA_E2E_NAMESPACED: where others share the cluster, with operators of their own."""
    if not os.environ.get("OTTLA_E2E_NAMESPACED"):
        return []
    for name in (NAMESPACE, f"{NAMESPACE}-gone"):
        kube.ensure_namespace(name)
    return ["--set", f"watchNamespaces={{{NAMESPACE},{NAMESPACE}-gone}}"]


def kill_operator(kube: Kube) -> None:
    """At once, as a node that is lost takes it along; its Deployment starts another."""
    kube.kubectl(
        *("delete", "pod", "-n", SYSTEM, "-l", "app.kubernetes.io/name=ottla-operator"),
        *("--grace-period=0", "--force", "--wait=false"),
    )


@pytest.fixture(scope="session")
def demo(kube: Kube, operator: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers and three ZooKeeper servers, Ready. A test leaves them as it found them."""
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
