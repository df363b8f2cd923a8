"""ConnectClusters on Kubernetes: the store, the workers' objects, over the fake API server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla_operator.kubernetes import naming
from ottla_operator.kubernetes.connect_workers import KubernetesWorkers
from ottla_operator.kubernetes.handlers import cluster_of
from ottla_operator.kubernetes.manifests_common import Images
from ottla_operator.kubernetes.store import KubernetesStore
from ottla_operator.reconcile_connect import ConnectEnvironment, ConnectReconciler
from tests.worlds.connect_simulation import SimulatedConnect
from tests.worlds.kubernetes_simulation import NAMESPACE, FakeRecorder, InMemoryApi, Item

IMAGES = Images("ottla:1", pull_policy="Never", connect="connect:1")
COPY = {"connectRef": {"name": "main"}, "class": "Copy", "config": {"topic": "orders"}}


class Operator:
    """The worker of the ConnectCluster `main`; each reconciliation has a new operator."""

    def __init__(self) -> None:
        self.api, self.connect = InMemoryApi(), SimulatedConnect()
        self.recorder = FakeRecorder()
        self.api.apply_resource("ConnectCluster", "main", {"bootstrapServers": "b:9092", "replicas": 2})

    def reconcile(self, times: int = 4) -> list[str]:
        """Reconcile, with a second between. Returns the steps of the last one."""
        steps: list[str] = []
        for _ in range(times):
            clock = lambda: self.api.now_ms  # noqa: E731
            key = naming.connect_key("main")
            store = KubernetesStore(self.api, IMAGES, NAMESPACE, key, clock, self.recorder)
            workers = KubernetesWorkers(self.api, IMAGES, NAMESPACE, "main", clock)
            environment = ConnectEnvironment(store, workers, self.connect, clock, self.recorder)
            steps = asyncio.run(ConnectReconciler(environment).reconcile()).steps
            self.api.tick()
        return steps

    def get(self, kind: str, name: str) -> Item:
        return self.api.items[kind, name]

    def ready(self, kind: str, name: str) -> tuple[str, str]:
        (found,) = [each for each in self.get(kind, name)["status"]["conditions"] if each["type"] == "Ready"]
        return found["status"], found["reason"]


@pytest.fixture
def operator() -> Operator:
    return Operator()


def test_workers_become_ready_and_then_nothing_changes(operator: Operator) -> None:
    operator.reconcile(6)
    assert operator.ready("ConnectCluster", "main") == ("True", "Ready")
    status = operator.get("ConnectCluster", "main")["status"]
    assert (status["replicas"], status["readyReplicas"]) == (2, 2)
    assert status["url"] == "http://main-connect-api.shop.svc:8083"
    assert status["connectorPlugins"] == [{"class": "Copy", "type": "source", "version": "1"}]
    assert "finalizers" not in operator.get("ConnectCluster", "main")["metadata"]
    before = operator.api.writes
    assert operator.reconcile(2) == []
    assert operator.api.writes == before


def test_an_edited_object_is_repaired_and_a_rollout_restart_is_kept(operator: Operator) -> None:
    operator.reconcile(6)

    def edit(item: Item) -> None:
        item["spec"]["template"]["spec"]["containers"][0]["image"] = "other"
        item["spec"]["template"]["metadata"]["annotations"][naming.RESTARTED_AT_ANNOTATION] = "now"

    operator.api.edit("StatefulSet", "main-connect", edit)
    operator.reconcile(2)
    template = operator.get("StatefulSet", "main-connect")["spec"]["template"]
    assert template["spec"]["containers"][0]["image"] == "connect:1"
    assert template["metadata"]["annotations"][naming.RESTARTED_AT_ANNOTATION] == "now"


def test_a_connector_has_a_finalizer_until_it_is_deleted_in_connect(operator: Operator) -> None:
    operator.api.apply_resource("Connector", "copy", COPY)
    operator.reconcile(8)
    assert operator.ready("Connector", "copy") == ("True", "Running")
    assert operator.get("Connector", "copy")["metadata"]["finalizers"] == [naming.FINALIZER]
    operator.api.delete_resource("Connector", "copy")
    operator.reconcile(3)
    assert ("Connector", "copy") not in operator.api.items
    assert operator.connect.connectors == {}


def test_resources_of_other_workers_are_left_alone(operator: Operator) -> None:
    operator.api.apply_resource("Connector", "other", {**COPY, "connectRef": {"name": "elsewhere"}})
    operator.api.apply_resource("Topic", "orders", {"clusterRef": {"name": "main"}})
    operator.reconcile(4)
    assert "status" not in operator.get("Connector", "other")
    assert "status" not in operator.get("Topic", "orders")


def test_a_workers_failure_is_the_reason(operator: Operator) -> None:
    operator.api.unpullable_images.add("connect:1")
    operator.reconcile(4)
    assert operator.ready("ConnectCluster", "main") == ("False", "WorkerFailing")


@pytest.mark.parametrize(
    ("kind", "spec", "key"),
    [
        ("ConnectCluster", {"clusterRef": {"name": "demo"}}, "connect/x"),
        ("Connector", COPY, "connect/main"),
        ("Connector", {}, ""),
        ("Topic", {"clusterRef": {"name": "demo"}}, "demo"),
    ],
)
def test_an_event_wakes_the_worker_of_the_connect_cluster(kind: str, spec: dict[str, Any], key: str) -> None:
    assert cluster_of({"kind": kind, "metadata": {"name": "x"}, "spec": spec}) == key
