"""The real handlers under kopf's own runner, with the real client, against an API server in this process."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kubernetes.config.kube_config
import pytest
from kopf.testing import KopfRunner
from kubernetes_server import KubernetesServer, kubeconfig
from kubernetes_world import FakeApi

from ottla_operator.kubernetes import handlers
from ottla_operator.kubernetes.api import Api, load_config
from ottla_operator.kubernetes.controller import Controller
from ottla_operator.kubernetes.manifests_common import Images
from ottla_operator.kubernetes.metrics import Metrics
from ottla_operator.kubernetes.naming import CLUSTER_LABEL, FINALIZER

TIMEOUT_S = 90.0
NEVER_S = 3600.0
CLUSTER = {"replicas": 3, "storage": {"size": "1Gi", "deleteClaim": True}}
TOPIC = {"clusterRef": {"name": "nowhere"}}


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


class Operator:
    """Kopf's runner in one thread, the controller in another; both speak HTTP to the server."""

    def __init__(self, server: KubernetesServer, resync_s: float) -> None:
        self.server = server
        self.metrics = Metrics()
        self.poked: list[str] = []
        """Clusters, by name."""
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._api = Api(self.metrics.count_request)
        self.controller = Controller(
            self._api, Images(), self.metrics, lambda: time.time_ns() // 1_000_000, resync_s
        )
        self._thread = threading.Thread(
            target=lambda: self._loop.run_until_complete(self.controller.run(self._stopping))
        )
        registry = handlers.registry_for(self._poke)
        arguments = ["run", "--standalone", "--all-namespaces", "--quiet"]
        self._kopf = KopfRunner(arguments, registry=registry, settings=handlers.settings(), timeout=TIMEOUT_S)

    def _poke(self, namespace: str, cluster: str) -> None:
        self.poked.append(cluster)
        self._loop.call_soon_threadsafe(self.controller.enqueue, namespace, cluster)

    def start(self) -> None:
        self._thread.start()
        self._kopf.__enter__()

    def stop(self) -> None:
        try:
            self._kopf.__exit__(None, None, None)
            assert self._kopf.exit_code == 0
        finally:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(TIMEOUT_S)
            self._loop.close()
            self._api.close()

    # ---- what people do and see

    def apply(self, kind: str, name: str, spec: dict[str, Any]) -> None:
        self.server.edit(lambda api: api.resource(kind, name, spec))

    def delete(self, kind: str, name: str) -> None:
        self.server.edit(lambda api: api.delete_one(kind, name))

    def exists(self, kind: str, name: str) -> bool:
        return self.server.look(kind, name) is not None

    def reason(self, kind: str, name: str, generation: int = 1) -> str:
        """Of Ready, as far as it is about this generation."""
        item = self.server.look(kind, name) or {}
        for condition in item.get("status", {}).get("conditions", []):
            if condition["type"] == "Ready" and condition["observedGeneration"] == generation:
                return str(condition["reason"])
        return ""

    def unheard(self) -> float:
        return self.metrics.registry.get_sample_value("ottla_operator_unheard_clusters_total") or 0


@contextmanager
def running(folder: Path, resync_s: float) -> Iterator[Operator]:
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    with KubernetesServer() as server, pytest.MonkeyPatch.context() as patch:
        file = folder / "kubeconfig"
        file.write_text(kubeconfig(server.url))
        patch.setattr(kubernetes.config.kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(file))
        patch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        load_config()
        operator = Operator(server, resync_s)
        operator.start()
        try:
            # It lists first; only what comes after proves that a watch tells of it.
            until(lambda: server.watches >= len(handlers.WATCHED))
            yield operator
        finally:
            operator.stop()
            root.level, root.handlers[:] = before[0], before[1]


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """It looks around by itself so seldom that all it does here comes of events."""
    with running(tmp_path_factory.mktemp("kopf"), NEVER_S) as it:
        yield it


def test_an_event_wakes_the_controller_and_a_status_is_written(operator: Operator) -> None:
    operator.apply("BrokerCluster", "demo", CLUSTER)
    until(lambda: operator.reason("BrokerCluster", "demo") == "ZooKeeperNotReady")
    until(lambda: operator.exists("StatefulSet", "demo-zookeeper"))
    item = operator.server.look("BrokerCluster", "demo")
    assert item is not None
    assert item["metadata"]["finalizers"] == [FINALIZER], "and none of kopf's"
    assert not item["metadata"]["annotations"], "nor is anything of kopf's kept there"


def test_an_invalid_spec_gets_its_condition_and_a_mended_one_another(operator: Operator) -> None:
    operator.apply("Topic", "bad", {**TOPIC, "partitions": "many"})
    until(lambda: operator.reason("Topic", "bad") == "InvalidSpec")
    operator.apply("Topic", "bad", {**TOPIC, "partitions": 3})
    until(lambda: operator.reason("Topic", "bad", 2) == "ClusterNotFound")


def test_a_deletion_releases_the_finalizer(operator: Operator) -> None:
    operator.apply("Topic", "orders", TOPIC)
    until(lambda: operator.reason("Topic", "orders") == "ClusterNotFound")
    operator.delete("Topic", "orders")
    until(lambda: not operator.exists("Topic", "orders"))


def test_a_secret_with_the_label_of_a_cluster_is_heard_of_whosever_it_is(operator: Operator) -> None:
    def write(name: str, labels: dict[str, str], version: str) -> None:
        metadata = {"name": name, "namespace": "shop", "labels": labels}
        secret = {"metadata": {**metadata, "uid": name, "resourceVersion": version}, "data": {}}
        operator.server.edit(lambda api: api.items.__setitem__(("Secret", name), secret))

    for version in ("1", "2"):
        operator.poked.clear()
        write("any", {}, version)
        write("mine", {CLUSTER_LABEL: "passworded"}, version)
        until(lambda: "passworded" in operator.poked)


def test_a_cluster_goes_with_all_that_it_has(operator: Operator) -> None:
    operator.apply("BrokerCluster", "leaving", CLUSTER)
    until(lambda: operator.exists("StatefulSet", "leaving-zookeeper"))
    operator.delete("BrokerCluster", "leaving")
    until(lambda: not operator.exists("BrokerCluster", "leaving"))
    until(lambda: not operator.exists("StatefulSet", "leaving-zookeeper"))


def test_events_come_again_after_all_watches_were_cut(operator: Operator) -> None:
    operator.server.cut()
    operator.apply("Topic", "after", TOPIC)
    until(lambda: operator.reason("Topic", "after") == "ClusterNotFound")


def test_a_deaf_watch_costs_a_look_around_and_no_more(tmp_path: Path) -> None:
    with running(tmp_path, 0.5) as operator:
        operator.server.deaf = True
        operator.apply("Topic", "unheard", {"clusterRef": {"name": "elsewhere"}})
        until(lambda: operator.reason("Topic", "unheard") == "ClusterNotFound")
        assert operator.unheard() >= 1
        assert operator.controller.unhealthy() == []


def test_the_server_judges_as_an_api_server_does(tmp_path: Path) -> None:
    """What the tests above rely on: a status over an old version is refused."""
    with KubernetesServer() as server:
        server.edit(lambda api: api.resource("Topic", "t", TOPIC))

        async def write(api: FakeApi) -> object:
            try:
                return await api.replace_status("Topic", "shop", "t", "0", {})
            except Exception as error:
                return error

        found = server.edit(lambda api: asyncio.ensure_future(write(api)))
        until(found.done)
        assert type(found.result()).__name__ == "Conflict"
