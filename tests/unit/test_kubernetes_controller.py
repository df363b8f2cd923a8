"""The controller: workers per cluster, events, resync, liveness and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla_operator.kubernetes import command, handlers
from ottla_operator.kubernetes.api import ApiError, Forbidden
from ottla_operator.kubernetes.command import images_from
from ottla_operator.kubernetes.controller import Controller
from ottla_operator.kubernetes.manifests_common import Images
from ottla_operator.kubernetes.metrics import Metrics
from ottla_operator.planning.observed import GroupState
from ottla_operator.resources import KINDS
from tests.worlds.clocks import run_in_virtual_time
from tests.worlds.kubernetes_simulation import NAMESPACE, InMemoryApi, KubernetesSimulation

TIMEOUT_S = 60


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - a worker's end comes with no event
            await asyncio.sleep(0.01)


async def with_controller(api: InMemoryApi, use: Callable[[Controller], None]) -> Metrics:
    """A controller that runs until no cluster is left."""
    metrics = Metrics()
    controller = Controller(api, Images(), metrics, lambda: api.now_ms, 30)
    stopping = asyncio.Event()
    running = asyncio.ensure_future(controller.run(stopping))
    use(controller)
    await until(lambda: not controller.clusters)
    stopping.set()
    await running
    return metrics


def test_a_worker_ends_when_no_resource_is_left() -> None:
    api = InMemoryApi()

    def use(controller: Controller) -> None:
        controller.enqueue(NAMESPACE, "demo")
        assert controller.clusters == [(NAMESPACE, "demo")]

    metrics = run_in_virtual_time(with_controller(api, use))
    assert api.writes == []
    assert b'namespace="shop"' not in metrics.text(), "a cluster that is gone leaves no numbers behind"


def test_a_topic_whose_cluster_does_not_exist_can_be_deleted() -> None:
    api = InMemoryApi()
    api.apply_resource("Topic", "orders", {"clusterRef": {"name": "nowhere"}})
    api.items["Topic", "orders"]["metadata"]["finalizers"] = ["ottla.dev/operator"]
    api.delete_resource("Topic", "orders")

    def use(controller: Controller) -> None:
        controller.enqueue(NAMESPACE, "nowhere")

    run_in_virtual_time(with_controller(api, use))
    assert ("Topic", "orders") not in api.items


def test_the_resync_finds_clusters_without_events() -> None:
    """Watches can stall, and a namespace that is being deleted has none."""

    async def scenario() -> None:
        api = InMemoryApi()
        api.apply_resource("Topic", "orders", {"clusterRef": {"name": "nowhere"}})
        controller = Controller(api, Images(), Metrics(), lambda: api.now_ms, 30, [NAMESPACE])
        stopping = asyncio.Event()
        running = asyncio.ensure_future(controller.run(stopping))
        await until(lambda: controller.clusters == [(NAMESPACE, "nowhere")])
        stopping.set()
        await running

    run_in_virtual_time(scenario())


def test_the_resync_continues_after_the_api_server_did_not_respond() -> None:
    async def scenario() -> None:
        api = InMemoryApi()
        api.apply_resource("BrokerCluster", "demo", {"replicas": 0})
        api.fail = lambda verb, kind, name: ApiError(0, "Unreachable", "away") if verb == "list" else None
        controller = Controller(api, Images(), Metrics(), lambda: api.now_ms, 0.05)
        stopping = asyncio.Event()
        running = asyncio.ensure_future(controller.run(stopping))
        await until(lambda: len(api.calls) > len(KINDS))
        assert controller.clusters == []
        api.fail = lambda verb, kind, name: None
        await until(lambda: controller.clusters == [(NAMESPACE, "demo")])
        stopping.set()
        await running

    run_in_virtual_time(scenario())


def test_an_overdue_resync_is_unhealthy() -> None:
    async def scenario() -> None:
        api, now_s = InMemoryApi(), 0.0
        api.fail = lambda verb, kind, name: ApiError(0, "Unreachable", "away")
        controller = Controller(api, Images(), Metrics(), lambda: 0, 0.02, (), lambda: now_s)
        stopping = asyncio.Event()
        running = asyncio.ensure_future(controller.run(stopping))
        await until(lambda: len(api.calls) > len(KINDS))
        assert controller.unhealthy() == []
        now_s = 601.0
        assert controller.unhealthy() == ["the periodic resync of all clusters has not completed"]
        # A resource without permission is no failed resync.
        api.fail = lambda verb, kind, name: Forbidden(403, "Forbidden", "no rights")
        await until(lambda: controller.unhealthy() == [])
        stopping.set()
        await running

    run_in_virtual_time(scenario())


def test_metrics_count_the_cluster_and_its_resources() -> None:
    sim = KubernetesSimulation()
    sim.apply_cluster()
    sim.reconcile_until_ready()
    sim.apply_cluster(config={"queued.max.requests": 400})
    sim.api.apply_resource("Topic", "orders", {"clusterRef": {"name": "demo"}, "replicas": 9})
    metrics = Metrics()

    def sample(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(
            f"ottla_operator_{name}", {"namespace": NAMESPACE, "cluster": "demo", **labels}
        )

    sim.api.apply_resource("ConsumerGroup", "readers", {"clusterRef": {"name": "demo"}, "maxLag": 9})
    sim.api.apply_resource("ConsumerGroup", "unseen", {"clusterRef": {"name": "demo"}, "maxLag": 9})
    sim.groups["readers"] = GroupState("readers", "Stable", 1, 1, {"orders": 11})
    metrics.count_reconcile(NAMESPACE, "demo", 0.1, 1.0, sim.reconcile_once())
    assert sample("cluster_ready") == 0
    assert sample("group_max_lag_records", consumergroup="readers") == 9
    assert sample("group_lag_records", consumergroup="readers") == 11
    assert sample("group_lag_records", consumergroup="unseen") is None
    assert sample("cluster_condition", type="Rolling", status="True", reason="Rolling") == 1
    assert sample("outdated_brokers") == 3
    assert sample("unready_resources", kind="Topic") == 1
    sim.api.delete_resource("Topic", "orders")
    sim.api.delete_resource("ConsumerGroup", "readers")
    sim.api.delete_resource("ConsumerGroup", "unseen")
    sim.reconcile_until_ready()
    metrics.count_reconcile(NAMESPACE, "demo", 0.1, 1.0, sim.reconcile_once())
    assert sample("cluster_ready") == 1
    assert sample("outdated_brokers") == 0
    assert sample("group_lag_records", consumergroup="readers") is None
    assert sample("cluster_condition", type="Rolling", status="True", reason="Rolling") is None
    assert sample("unready_resources", kind="Topic") == 0
    metrics.remove_cluster(NAMESPACE, "demo")
    assert sample("cluster_ready") is None


def test_all_custom_resources_and_child_objects_are_watched() -> None:
    registry = handlers.registry_for(lambda namespace, cluster: None)
    plurals = {selector.any_name for selector in registry._watching.get_all_selectors()}
    assert {model.definition.plural for model in KINDS.values()} <= plurals
    assert {"pods", "configmaps", "services", "statefulsets", "poddisruptionbudgets"} <= plurals


def test_kopf_writes_nothing_into_objects() -> None:
    registry = handlers.registry_for(lambda namespace, cluster: None)
    assert not registry._changing.get_all_selectors()
    assert not registry._spawning.get_all_selectors()
    assert handlers.settings().posting.enabled is False


@pytest.mark.parametrize(
    ("body", "cluster"),
    [
        ({"kind": "BrokerCluster", "metadata": {"name": "demo"}}, "demo"),
        ({"kind": "Topic", "metadata": {"name": "t"}, "spec": {"clusterRef": {"name": "demo"}}}, "demo"),
        ({"kind": "Topic", "metadata": {"name": "t"}, "spec": {}}, ""),
        ({"kind": "Topic", "metadata": {"name": "t"}}, ""),
    ],
)
def test_the_cluster_of_a_resource_is_found(body: dict[str, object], cluster: str) -> None:
    assert handlers.cluster_of(body) == cluster


def test_zookeeper_uses_the_brokers_image_by_default() -> None:
    assert images_from({"OTTLA_BROKER_IMAGE": "ottla:2"}) == Images("ottla:2", "ottla:2")
    given = {"OTTLA_BROKER_IMAGE": "a", "OTTLA_ZOOKEEPER_IMAGE": "b", "OTTLA_IMAGE_PULL_POLICY": "Always"}
    assert images_from(given) == Images("a", "b", "Always")


def test_the_operators_namespace_is_known_only_in_a_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert images_from({}).operator_namespace == ""
    (tmp_path / "namespace").write_text("ottla-system\n")
    monkeypatch.setattr(command, "_NAMESPACE_FILE", tmp_path / "namespace")
    assert images_from({}).operator_namespace == "ottla-system"
