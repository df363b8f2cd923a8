"""BrokerPools on Kubernetes: their objects, restarts, removals and repairs, over a simulated API server."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_operator.kubernetes import naming
from ottla_operator.kubernetes.api import ApiError, Conflict
from tests.worlds.kubernetes_simulation import KubernetesSimulation

REF = {"clusterRef": {"name": "demo"}}


@pytest.fixture
def sim() -> KubernetesSimulation:
    sim = KubernetesSimulation()
    sim.apply_cluster()
    apply_pool(sim, replicas=2, storage={"size": "2Gi"})
    reconcile_until_settled(sim)
    return sim


def apply_pool(sim: KubernetesSimulation, name: str = "fast", **spec: Any) -> None:
    annotations = spec.pop("annotations", {})
    sim.api.apply_resource("BrokerPool", name, {**REF, **spec}, **annotations)


def reconcile_until_settled(sim: KubernetesSimulation) -> None:
    for _ in range(60):
        if not sim.reconcile() and sim.ready():
            return
    raise AssertionError(f"not settled: {sim.reconcile()}, {sim.status()}")


def broker_pods(sim: KubernetesSimulation) -> dict[str, str]:
    """Uids of the brokers' pods."""
    return {
        name: sim.api.items["Pod", name]["metadata"]["uid"]
        for name in sim.api.names("Pod")
        if naming.broker_of_pod("demo", name) is not None
    }


OBJECTS = [
    ("StatefulSet", "demo-broker-1000"),
    ("ConfigMap", "demo-broker-1000"),
    ("Pod", "demo-broker-1000-0"),
    ("PersistentVolumeClaim", "data-demo-broker-1000-0"),
]


@given(cluster=st.from_regex(r"[a-z]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True), broker=st.integers(0, 9999))
def test_the_name_of_a_pod_has_the_id_of_its_broker(cluster: str, broker: int) -> None:
    assert naming.broker_of_pod(cluster, naming.broker_pod(cluster, broker)) == broker


@pytest.mark.parametrize(
    "pod", ["demo-zookeeper-0", "demo-broker-1000", "demo-broker-3-0", "demo-brokers-1000"]
)
def test_other_pods_are_no_brokers(pod: str) -> None:
    assert naming.broker_of_pod("demo", pod) is None


def test_each_broker_of_a_pool_has_a_set_a_volume_and_a_name_of_its_own(sim: KubernetesSimulation) -> None:
    for kind, name in OBJECTS:
        labels = sim.api.items[kind, name]["metadata"]["labels"]
        assert (labels["ottla.dev/pool"], labels["ottla.dev/broker-id"]) == ("fast", "1000")
        assert (labels["ottla.dev/cluster"], labels["ottla.dev/component"]) == ("demo", "broker")
    spec = sim.api.items["StatefulSet", "demo-broker-1000"]["spec"]
    assert spec["serviceName"] == "demo-brokers", "the headless Service of all brokers"
    config = sim.api.items["ConfigMap", "demo-broker-1000"]["data"]["server.properties"]
    assert "broker.id=1000\n" in config
    assert "REPLICATION://demo-broker-1000-0.demo-brokers.shop.svc:9091" in config
    volumes = {volume["name"]: volume for volume in spec["template"]["spec"]["volumes"]}
    sources = volumes["config"]["projected"]["sources"]
    assert [source["configMap"]["name"] for source in sources] == ["demo-broker-1000"]
    size = sim.api.items["PersistentVolumeClaim", "data-demo-broker-1000-0"]["spec"]["resources"]
    assert size == {"requests": {"storage": "2Gi"}}
    assert sim.status("BrokerPool", "fast")["brokerIds"] == [1000, 1001]
    assert [b["podName"] for b in sim.status()["brokers"]][3:] == ["demo-broker-1000-0", "demo-broker-1001-0"]


def test_services_and_the_disruption_budget_select_all_brokers(
    sim: KubernetesSimulation,
) -> None:
    selectors = [
        sim.api.items["Service", "demo-bootstrap"]["spec"]["selector"],
        sim.api.items["Service", "demo-brokers"]["spec"]["selector"],
        sim.api.items["PodDisruptionBudget", "demo-brokers"]["spec"]["selector"]["matchLabels"],
        sim.api.items["NetworkPolicy", "demo-brokers"]["spec"]["podSelector"]["matchLabels"],
    ]
    for pod in ("demo-brokers-0", "demo-broker-1001-0"):
        labels = sim.api.items["Pod", pod]["metadata"]["labels"]
        assert all(selector.items() <= labels.items() for selector in selectors)


def test_a_pool_changes_nothing_about_the_clusters_own_pods() -> None:
    sim = KubernetesSimulation()
    sim.apply_cluster()
    reconcile_until_settled(sim)
    before, spec = broker_pods(sim), sim.api.items["StatefulSet", "demo-brokers"]["spec"]
    apply_pool(sim, replicas=1)
    reconcile_until_settled(sim)
    assert broker_pods(sim).items() >= before.items()
    assert sim.api.items["StatefulSet", "demo-brokers"]["spec"] == spec


def test_a_converged_pool_causes_no_writes(sim: KubernetesSimulation) -> None:
    sim.api.calls.clear()
    sim.reconcile()
    assert sim.api.writes == []


@pytest.mark.parametrize(("kind", "name"), OBJECTS)
def test_a_deleted_object_of_a_pool_is_created_again(sim: KubernetesSimulation, kind: str, name: str) -> None:
    uid = sim.api.items[kind, name]["metadata"]["uid"]
    sim.api.delete_resource(kind, name)
    sim.api.now_ms += 60_000
    sim.api.tick()
    sim.reconcile_until(lambda: (kind, name) in sim.api.items)
    reconcile_until_settled(sim)
    assert sim.api.items[kind, name]["metadata"]["uid"] != uid
    assert sim.api.items[kind, name]["metadata"]["labels"]["ottla.dev/pool"] == "fast"


def test_objects_of_a_paused_pool_are_neither_repaired_nor_changed(sim: KubernetesSimulation) -> None:
    pods = broker_pods(sim)
    paused = {"pause_reconciliation": "true"}
    apply_pool(sim, replicas=3, storage={"size": "9Gi", "deleteClaim": True}, annotations=paused)

    def edit(item: Any) -> None:
        item["spec"]["template"]["spec"]["nodeSelector"] = {"a": "b"}

    sim.api.edit("StatefulSet", "demo-broker-1000", edit)
    sim.api.delete_resource("ConfigMap", "demo-broker-1001")
    sim.api.delete_resource("StatefulSet", "demo-broker-1001")
    for _ in range(6):
        sim.reconcile()
    items = sim.api.items
    assert items["StatefulSet", "demo-broker-1000"]["spec"]["template"]["spec"]["nodeSelector"] == {"a": "b"}
    assert ("ConfigMap", "demo-broker-1001") not in items
    claim = items["PersistentVolumeClaim", "data-demo-broker-1000-0"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "2Gi"
    assert not claim["metadata"].get("ownerReferences")
    assert broker_pods(sim).items() <= pods.items()
    assert sim.condition("ReconciliationPaused", "BrokerPool", "fast") == ("True", "Paused")
    apply_pool(sim, replicas=3, storage={"size": "9Gi"})
    reconcile_until_settled(sim)
    assert "nodeSelector" not in items["StatefulSet", "demo-broker-1000"]["spec"]["template"]["spec"]
    assert len(broker_pods(sim)) == 6


def test_a_pool_has_its_own_resources_template_and_rack(sim: KubernetesSimulation) -> None:
    before = broker_pods(sim)
    apply_pool(
        sim,
        replicas=2,
        storage={"size": "2Gi"},
        rack="r1",
        resources={"requests": {"cpu": "1"}},
        template={"pod": {"spec": {"nodeSelector": {"disk": "fast"}}}},
    )
    sim.api.max_unavailable = 0
    reconcile_until_settled(sim)
    after = broker_pods(sim)
    changed = {pod for pod, uid in before.items() if after[pod] != uid}
    assert changed == {"demo-broker-1000-0", "demo-broker-1001-0"}
    assert sim.api.max_unavailable == 1
    pod = sim.api.items["Pod", "demo-broker-1001-0"]["spec"]
    assert pod["nodeSelector"] == {"disk": "fast"}
    assert pod["containers"][0]["resources"] == {"requests": {"cpu": "1"}}
    assert "broker.rack=r1\n" in sim.api.items["ConfigMap", "demo-broker-1001"]["data"]["server.properties"]
    assert "broker.rack" not in sim.api.items["ConfigMap", "demo-broker-1"]["data"]["server.properties"]


def test_fields_that_a_pool_leaves_out_are_those_of_the_cluster() -> None:
    sim = KubernetesSimulation()
    sim.apply_cluster(resources={"requests": {"cpu": "2"}})
    apply_pool(sim, replicas=1)
    reconcile_until_settled(sim)
    pod = sim.api.items["Pod", "demo-broker-1000-0"]["spec"]
    assert pod["containers"][0]["resources"] == {"requests": {"cpu": "2"}}
    claim = sim.api.items["PersistentVolumeClaim", "data-demo-broker-1000-0"]["spec"]
    assert claim["resources"] == {"requests": {"storage": "1Gi"}}


@pytest.mark.parametrize("delete", [True, False])
def test_a_broker_that_leaves_goes_with_its_objects_and_by_deleteclaim_with_its_volume(
    sim: KubernetesSimulation, delete: bool
) -> None:
    storage = {"size": "2Gi", "deleteClaim": delete}
    apply_pool(sim, replicas=2, storage=storage)
    reconcile_until_settled(sim)
    apply_pool(sim, replicas=1, storage=storage, annotations={"remove_broker_ids": "[1000]"})
    reconcile_until_settled(sim)
    left = [(kind, name) for kind, name in sim.api.items if "demo-broker-1000" in name]
    assert left == ([] if delete else [("PersistentVolumeClaim", "data-demo-broker-1000-0")])
    assert ("Pod", "demo-broker-1001-0") in sim.api.items
    assert sim.status("BrokerPool", "fast")["brokerIds"] == [1001]


@pytest.mark.parametrize("delete", [True, False])
def test_a_deleted_pool_is_gone_at_once_and_its_brokers_after_it(
    sim: KubernetesSimulation, delete: bool
) -> None:
    apply_pool(sim, replicas=2, storage={"size": "2Gi", "deleteClaim": delete})
    reconcile_until_settled(sim)
    sim.api.delete_resource("BrokerPool", "fast")
    assert ("BrokerPool", "fast") not in sim.api.items, "it has no finalizer"
    reconcile_until_settled(sim)
    left = [name for _, name in sim.api.items if "demo-broker-100" in name]
    assert left == ([] if delete else ["data-demo-broker-1000-0", "data-demo-broker-1001-0"])


def test_another_pool_does_not_get_a_volume_that_was_kept(sim: KubernetesSimulation) -> None:
    sim.api.delete_resource("BrokerPool", "fast")
    reconcile_until_settled(sim)
    apply_pool(sim, "other", replicas=1)
    reconcile_until_settled(sim)
    assert sim.status("BrokerPool", "other")["brokerIds"] == [1002]
    apply_pool(sim, replicas=1)
    reconcile_until_settled(sim)
    assert sim.status("BrokerPool", "fast")["brokerIds"] == [1000], "its own volume, as in the own pool"


def test_an_invalid_pool_keeps_its_brokers_even_without_its_status(sim: KubernetesSimulation) -> None:
    before = broker_pods(sim)
    item = sim.api.items["BrokerPool", "fast"]
    item["status"] = {}
    item["spec"] = {**REF, "replicas": "many"}
    for _ in range(20):
        sim.reconcile()
    assert broker_pods(sim) == before
    assert sim.condition() == ("False", "PoolInvalid")
    assert sim.condition(kind="BrokerPool", name="fast") == ("False", "InvalidSpec")


def test_a_pool_that_changes_while_it_is_read_is_not_taken_for_a_deleted_one(
    sim: KubernetesSimulation,
) -> None:
    def conflict(verb: str, kind: str, name: str) -> ApiError | None:
        written = kind == "BrokerPool" and verb == "patch"
        return Conflict(409, "Conflict", "the object has been modified") if written else None

    before, events = broker_pods(sim), len(sim.recorder.events)
    sim.api.fail = conflict
    apply_pool(sim, replicas=2, storage={"size": "3Gi"})
    for _ in range(3):
        assert sim.reconcile() == []
    assert broker_pods(sim) == before
    assert sim.recorder.events[events:] == []
    sim.api.fail = lambda verb, kind, name: None
    reconcile_until_settled(sim)


def test_the_labels_of_a_pool_are_restored(sim: KubernetesSimulation) -> None:
    before = broker_pods(sim)
    for kind, name in OBJECTS:
        sim.api.edit(kind, name, lambda item: item["metadata"]["labels"].pop("ottla.dev/pool"))
    reconcile_until_settled(sim)
    for kind, name in OBJECTS:
        assert sim.api.items[kind, name]["metadata"]["labels"]["ottla.dev/pool"] == "fast", (kind, name)
    assert broker_pods(sim) == before


def test_the_volumes_of_a_pool_grow_by_its_own_spec(sim: KubernetesSimulation) -> None:
    apply_pool(sim, replicas=2, storage={"size": "3Gi"})
    reconcile_until_settled(sim)

    def size(claim: str) -> str:
        spec = sim.api.items["PersistentVolumeClaim", claim]["spec"]
        return str(spec["resources"]["requests"]["storage"])

    assert size("data-demo-broker-1001-0") == "3Gi"
    assert size("data-demo-brokers-0") == "1Gi"


def test_hibernation_and_waking_cover_pools(sim: KubernetesSimulation) -> None:
    sim.apply_cluster(annotations={"hibernate": "true"})
    sim.reconcile_until(lambda: sim.condition() == ("False", "Hibernated"))
    assert broker_pods(sim) == {}
    sim.apply_cluster()
    reconcile_until_settled(sim)
    assert len(broker_pods(sim)) == 5


def test_a_fenced_broker_of_a_pool_waits_instead_of_serving(sim: KubernetesSimulation) -> None:
    sim.apply_cluster(annotations={"fenced": "1001"})

    def states() -> dict[int, str]:
        return {broker["id"]: broker["state"] for broker in sim.status()["brokers"]}

    sim.reconcile_until(lambda: states()[1001] == "Fenced")
    assert states() == {0: "Running", 1: "Running", 2: "Running", 1000: "Running", 1001: "Fenced"}
    assert sim.condition() == ("False", "BrokersFenced")
    sim.apply_cluster()
    reconcile_until_settled(sim)


def test_one_broker_of_a_pool_restarts_on_request(sim: KubernetesSimulation) -> None:
    before = broker_pods(sim)
    sim.api.edit(
        "Pod",
        "demo-broker-1000-0",
        lambda pod: pod["metadata"].setdefault("annotations", {}).update({"ottla.dev/restart": "true"}),
    )
    reconcile_until_settled(sim)
    changed = [name for name, uid in broker_pods(sim).items() if before[name] != uid]
    assert changed == ["demo-broker-1000-0"]


def test_the_last_brokers_of_the_own_pool_leave_a_cluster_with_pools(sim: KubernetesSimulation) -> None:
    sim.apply_cluster(replicas=0)
    reconcile_until_settled(sim)
    assert sorted(broker_pods(sim)) == ["demo-broker-1000-0", "demo-broker-1001-0"]
    assert (sim.status()["replicas"], sim.status()["desiredBrokers"]) == (0, 2)


@pytest.mark.parametrize("write", range(1, 26))
def test_an_operator_that_dies_at_a_write_moves_a_cluster_to_a_pool(write: int) -> None:
    sim = KubernetesSimulation()
    sim.apply_cluster(replicas=1)
    reconcile_until_settled(sim)
    apply_pool(sim, replicas=2)
    sim.apply_cluster(replicas=0)
    sim.fail_write(write)
    reconcile_until_settled(sim)
    assert sorted(broker_pods(sim)) == ["demo-broker-1000-0", "demo-broker-1001-0"]
