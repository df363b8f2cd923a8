"""The event handlers under kopf's runner and the controller, against a fake API server over HTTP."""

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

from ottla_operator.kubernetes import handlers
from ottla_operator.kubernetes.api import Api, load_config
from ottla_operator.kubernetes.controller import Controller
from ottla_operator.kubernetes.manifests_common import Images
from ottla_operator.kubernetes.metrics import Metrics
from ottla_operator.kubernetes.naming import CLUSTER_LABEL, FINALIZER
from tests.worlds.fake_api_server import FakeApiServer, kubeconfig
from tests.worlds.kubernetes_simulation import InMemoryApi

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
    """kopf's runner in one thread, the controller in another; both use HTTP."""

    def __init__(self, server: FakeApiServer, resync_s: float) -> None:
        self.server = server
        self.metrics = Metrics()
        self.poked: list[str] = []
        """The names of the enqueued clusters."""
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._api = Api(self.metrics.count_request)
        self.controller = Controller(
            self._api, Images(), self.metrics, lambda: time.time_ns() // 1_000_000, resync_s
        )
        self._thread = threading.Thread(
            target=lambda: self._loop.run_until_complete(self.controller.run(self._stopping))
        )
        registry = handlers.registry_for(self._enqueue)
        arguments = ["run", "--standalone", "--all-namespaces", "--quiet"]
        self._kopf = KopfRunner(arguments, registry=registry, settings=handlers.settings(), timeout=TIMEOUT_S)

    def _enqueue(self, namespace: str, cluster: str) -> None:
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

    # ---- actions and observations of users

    def apply(self, kind: str, name: str, spec: dict[str, Any]) -> None:
        self.server.edit(lambda api: api.apply_resource(kind, name, spec))

    def delete(self, kind: str, name: str) -> None:
        self.server.edit(lambda api: api.delete_resource(kind, name))

    def exists(self, kind: str, name: str) -> bool:
        return self.server.get(kind, name) is not None

    def reason(self, kind: str, name: str, generation: int = 1) -> str:
        """The reason of Ready for this generation, or ""."""
        item = self.server.get(kind, name) or {}
        for condition in item.get("status", {}).get("conditions", []):
            if condition["type"] == "Ready" and condition["observedGeneration"] == generation:
                return str(condition["reason"])
        return ""

    def missed_clusters(self) -> float:
        return self.metrics.registry.get_sample_value("ottla_operator_unheard_clusters_total") or 0


@contextmanager
def running(folder: Path, resync_s: float) -> Iterator[Operator]:
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    with FakeApiServer() as server, pytest.MonkeyPatch.context() as patch:
        file = folder / "kubeconfig"
        file.write_text(kubeconfig(server.url))
        patch.setattr(kubernetes.config.kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(file))
        patch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        load_config()
        operator = Operator(server, resync_s)
        operator.start()
        try:
            # kopf lists first; only events after that come from a watch.
            until(lambda: server.watches >= len(handlers.WATCHED))
            yield operator
        finally:
            operator.stop()
            root.level, root.handlers[:] = before[0], before[1]


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """An operator whose resync is so rare that only events cause reconciliations."""
    with running(tmp_path_factory.mktemp("kopf"), NEVER_S) as it:
        yield it


def test_an_event_wakes_the_controller_and_a_status_is_written(operator: Operator) -> None:
    operator.apply("BrokerCluster", "demo", CLUSTER)
    until(lambda: operator.reason("BrokerCluster", "demo") == "ZooKeeperNotReady")
    until(lambda: operator.exists("StatefulSet", "demo-zookeeper"))
    item = operator.server.get("BrokerCluster", "demo")
    assert item is not None
    assert not item["metadata"].get("finalizers"), "the garbage collector needs no help"
    operator.apply("Topic", "prices", {"clusterRef": {"name": "demo"}})
    until(lambda: operator.reason("Topic", "prices") == "ClusterNotReady")
    topic = operator.server.get("Topic", "prices")
    assert topic is not None
    assert topic["metadata"]["finalizers"] == [FINALIZER], "and none of kopf's"
    assert not item["metadata"]["annotations"], "nor is anything of kopf's kept there"


def test_an_invalid_spec_sets_a_condition_and_a_corrected_one_resets_it(operator: Operator) -> None:
    operator.apply("Topic", "bad", {**TOPIC, "partitions": "many"})
    until(lambda: operator.reason("Topic", "bad") == "InvalidSpec")
    operator.apply("Topic", "bad", {**TOPIC, "partitions": 3})
    until(lambda: operator.reason("Topic", "bad", 2) == "ClusterNotFound")


def test_a_deletion_releases_the_finalizer(operator: Operator) -> None:
    operator.apply("Topic", "orders", TOPIC)
    until(lambda: operator.reason("Topic", "orders") == "ClusterNotFound")
    operator.delete("Topic", "orders")
    until(lambda: not operator.exists("Topic", "orders"))


def test_any_secret_with_the_cluster_label_causes_an_event(operator: Operator) -> None:
    def write(name: str, labels: dict[str, str], version: str) -> None:
        metadata = {"name": name, "namespace": "shop", "labels": labels}
        secret = {"metadata": {**metadata, "uid": name, "resourceVersion": version}, "data": {}}
        operator.server.edit(lambda api: api.items.__setitem__(("Secret", name), secret))

    for version in ("1", "2"):
        operator.poked.clear()
        write("any", {}, version)
        write("mine", {CLUSTER_LABEL: "passworded"}, version)
        until(lambda: "passworded" in operator.poked)


def test_deleting_a_cluster_deletes_its_resources(operator: Operator) -> None:
    operator.apply("BrokerCluster", "leaving", CLUSTER)
    until(lambda: operator.exists("StatefulSet", "leaving-zookeeper"))
    operator.delete("BrokerCluster", "leaving")
    until(lambda: not operator.exists("BrokerCluster", "leaving"))
    until(lambda: not operator.exists("StatefulSet", "leaving-zookeeper"))


def test_events_continue_after_all_watches_were_closed(operator: Operator) -> None:
    operator.server.close_watches()
    operator.apply("Topic", "after", TOPIC)
    until(lambda: operator.reason("Topic", "after") == "ClusterNotFound")


def test_a_watch_without_events_is_covered_by_the_resync(tmp_path: Path) -> None:
    with running(tmp_path, 0.5) as operator:
        operator.server.suppresses_events = True
        operator.apply("Topic", "unheard", {"clusterRef": {"name": "elsewhere"}})
        until(lambda: operator.reason("Topic", "unheard") == "ClusterNotFound")
        assert operator.missed_clusters() >= 1
        assert operator.controller.unhealthy() == []


def test_the_fake_server_rejects_what_an_api_server_rejects(tmp_path: Path) -> None:
    """The tests above rely on this: a status for an old version is rejected."""
    with FakeApiServer() as server:
        server.edit(lambda api: api.apply_resource("Topic", "t", TOPIC))

        async def write(api: InMemoryApi) -> object:
            try:
                return await api.replace_status("Topic", "shop", "t", "0", {})
            except Exception as error:
                return error

        found = server.edit(lambda api: asyncio.ensure_future(write(api)))
        until(found.done)
        assert type(found.result()).__name__ == "Conflict"
