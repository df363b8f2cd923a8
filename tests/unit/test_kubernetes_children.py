"""Edits of the objects that the operator owns, and changes that Kubernetes does not allow."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ottla_operator.kubernetes import naming
from ottla_operator.kubernetes.api import ApiError, Forbidden
from ottla_operator.kubernetes.child_objects import CONTESTED_MS, RESTORATIONS_MAX
from tests.worlds.kubernetes_simulation import KubernetesSimulation

Item = dict[str, Any]

BROKERS, ZOOKEEPER, BOOTSTRAP = "demo-brokers", "demo-zookeeper", "demo-bootstrap"


@pytest.fixture
def sim() -> KubernetesSimulation:
    sim = KubernetesSimulation()
    sim.apply_cluster()
    sim.reconcile_until_ready()
    sim.recorder.events.clear()
    return sim


def content(sim: KubernetesSimulation, kind: str, name: str) -> Item:
    """The object without its metadata, and with its labels."""
    item = sim.api.items[kind, name]
    labels = item["metadata"]["labels"]
    return json.loads(json.dumps({**item, "metadata": labels, "status": None}))  # type: ignore[no-any-return]


def uids(sim: KubernetesSimulation) -> dict[str, str]:
    return {name: sim.api.items["Pod", name]["metadata"]["uid"] for name in sim.api.names("Pod")}


def settle(sim: KubernetesSimulation) -> None:
    sim.reconcile_until(lambda: not sim.reconcile() and sim.ready())


def messages(sim: KubernetesSimulation) -> list[str]:
    return [message for _, _, message, _ in sim.recorder.events]


# ---- somebody edits a child


def add_to_selector(item: Item) -> None:
    item["spec"]["selector"]["release"] = "blue"


def change_port(item: Item) -> None:
    item["spec"]["ports"][0]["port"] = 9093


def add_port(item: Item) -> None:
    item["spec"]["ports"].append({"name": "more", "port": 1, "targetPort": 1, "protocol": "TCP"})


def spread_wider(item: Item) -> None:
    item["spec"]["selector"]["matchLabels"]["release"] = "blue"


def pin_to_node(item: Item) -> None:
    item["spec"]["template"]["spec"]["nodeSelector"] = {"disk": "ssd"}


def add_environment(item: Item) -> None:
    item["spec"]["template"]["spec"]["containers"][0].setdefault("env", []).append(
        {"name": "X", "value": "1"}
    )


def add_container_port(item: Item) -> None:
    port = {"name": "more", "containerPort": 1, "protocol": "TCP"}
    item["spec"]["template"]["spec"]["containers"][0]["ports"].append(port)


def annotate_template(item: Item) -> None:
    item["spec"]["template"]["metadata"].setdefault("annotations", {})["team"] = "red"


def rename_container(item: Item) -> None:
    item["spec"]["template"]["spec"]["containers"][0]["name"] = "mine"


def delete_claims(item: Item) -> None:
    item["spec"]["persistentVolumeClaimRetentionPolicy"] = {"whenDeleted": "Delete"}


def add_peer(item: Item) -> None:
    item["spec"]["ingress"][0].setdefault("from", []).append({"ipBlock": {"cidr": "10.0.0.0/8"}})


def allow_egress(item: Item) -> None:
    item["spec"]["egress"] = [{}]


def add_data(item: Item) -> None:
    item["data"]["more.properties"] = "x=1"


def change_settings(item: Item) -> None:
    item["data"]["server.properties"] += "auto.create.topics.enable=true\n"


def relabel(item: Item) -> None:
    item["metadata"]["labels"]["app.kubernetes.io/instance"] = "other"


EDITS: list[tuple[str, str, Callable[[Item], None], str]] = [
    ("Service", BOOTSTRAP, add_to_selector, "spec.selector"),
    ("Service", BOOTSTRAP, change_port, "spec.ports[port=9093,protocol=TCP]"),
    ("Service", BROKERS, change_port, "spec.ports[port=9093,protocol=TCP]"),
    ("Service", ZOOKEEPER, add_port, "spec.ports[port=1,protocol=TCP]"),
    ("PodDisruptionBudget", BROKERS, spread_wider, "spec.selector"),
    ("PodDisruptionBudget", ZOOKEEPER, spread_wider, "spec.selector"),
    ("StatefulSet", BROKERS, pin_to_node, "spec.template.spec.nodeSelector"),
    ("StatefulSet", ZOOKEEPER, pin_to_node, "spec.template.spec.nodeSelector"),
    ("StatefulSet", BROKERS, add_environment, "spec.template.spec.containers[name=broker].env[name=X]"),
    ("StatefulSet", ZOOKEEPER, add_environment, "spec.template.spec.containers[name=zookeeper].env"),
    (
        "StatefulSet",
        BROKERS,
        add_container_port,
        "spec.template.spec.containers[name=broker].ports[containerPort=1,protocol=TCP]",
    ),
    ("StatefulSet", BROKERS, annotate_template, "spec.template.metadata.annotations.team"),
    ("StatefulSet", BROKERS, rename_container, "spec.template.spec.containers[name=mine]"),
    ("StatefulSet", BROKERS, delete_claims, "spec.persistentVolumeClaimRetentionPolicy.whenDeleted"),
    ("NetworkPolicy", BROKERS, add_peer, "spec.ingress"),
    ("NetworkPolicy", BROKERS, allow_egress, "spec.egress"),
    ("ConfigMap", ZOOKEEPER, add_data, "data[more.properties]"),
    ("ConfigMap", "demo-broker-1", change_settings, "data[server.properties]"),
    ("Service", BOOTSTRAP, relabel, "metadata.labels[app.kubernetes.io/instance]"),
]


@pytest.mark.parametrize(("kind", "name", "change", "path"), EDITS)
def test_an_edit_is_undone_and_an_event_says_what_was_edited_by_whom(
    sim: KubernetesSimulation, kind: str, name: str, change: Callable[[Item], None], path: str
) -> None:
    before, pods = content(sim, kind, name), uids(sim)
    sim.api.edit(kind, name, change)
    assert content(sim, kind, name) != before
    settle(sim)
    assert content(sim, kind, name) == before
    assert uids(sim) == pods, "nothing restarts"
    [event] = [m for m in messages(sim) if m.startswith("repair")]
    assert event.startswith(f"repair {kind} {name}: {path}")
    assert "by kubectl-edit (Update)" in event


def test_edits_of_several_children_are_undone_in_one_reconciliation(sim: KubernetesSimulation) -> None:
    for kind, name, change, _ in (EDITS[1], EDITS[4], EDITS[6], EDITS[16]):
        sim.api.edit(kind, name, change)
    assert len([step for step in sim.reconcile() if step.startswith("repair")]) == 4
    assert sim.condition()[0] == "True"


@pytest.mark.parametrize("writes", range(1, 4))
def test_an_operator_killed_during_a_repair_completes_it_later(
    sim: KubernetesSimulation, writes: int
) -> None:
    before = content(sim, "Service", BOOTSTRAP)
    sim.api.edit("Service", BOOTSTRAP, change_port)
    sim.fail_write(writes)
    sim.reconcile()
    sim.api.fail = lambda verb, kind, name: None
    settle(sim)
    assert content(sim, "Service", BOOTSTRAP) == before


def test_a_child_created_by_somebody_else_is_adopted(sim: KubernetesSimulation) -> None:
    """Its creator owns all fields, also the defaults, which stay."""
    before = content(sim, "Service", BOOTSTRAP)
    copied = dict(sim.api.items["Service", BOOTSTRAP])
    copied["metadata"] = {**copied["metadata"], "managedFields": []}
    copied["spec"] = {**copied["spec"], "externalIPs": ["10.1.1.1"]}
    del sim.api.items["Service", BOOTSTRAP]
    sim.api.put("Service", BOOTSTRAP, sim.api._owned(None, copied, "velero-server"))
    settle(sim)
    assert content(sim, "Service", BOOTSTRAP) == before
    writes = len(sim.api.writes)
    sim.reconcile()
    assert len(sim.api.writes) == writes


def test_a_child_without_managed_fields_is_restored(sim: KubernetesSimulation) -> None:
    before = content(sim, "PodDisruptionBudget", BROKERS)

    def edit(item: Item) -> None:
        spread_wider(item)
        item["metadata"]["managedFields"] = []

    sim.api.edit("PodDisruptionBudget", BROKERS, edit)
    settle(sim)
    assert content(sim, "PodDisruptionBudget", BROKERS) == before


@pytest.mark.parametrize("name", [BROKERS, ZOOKEEPER])
@pytest.mark.parametrize("replicas", [0, 2, 5])
def test_a_scaled_stateful_set_is_scaled_back(sim: KubernetesSimulation, name: str, replicas: int) -> None:
    before, pods = content(sim, "StatefulSet", name), set(uids(sim))
    sim.api.scale(name, replicas)
    sim.reconcile_until(lambda: content(sim, "StatefulSet", name) == before and sim.ready())
    assert set(uids(sim)) == pods
    assert any("spec.replicas" in m and "by kubectl (Update)" in m for m in messages(sim))


@pytest.mark.parametrize("name", [BROKERS, ZOOKEEPER])
def test_additions_are_removed_while_a_roll_waits_for_its_approval(
    sim: KubernetesSimulation, name: str
) -> None:
    resources = {"resources": {"requests": {"cpu": "7"}}}
    servers = {"zookeeper": {"managed": resources}}
    sim.apply_cluster(rollingUpdate={"strategy": "OnApproval"}, **resources, **servers)
    sim.reconcile()
    before, pods = content(sim, "StatefulSet", name), uids(sim)
    assert "7" not in json.dumps(before["spec"]["template"]["spec"]["containers"][0]["resources"])
    for change in (pin_to_node, add_environment, add_container_port, annotate_template):
        sim.api.edit("StatefulSet", name, change)
    sim.reconcile_until(lambda: not sim.reconcile())
    assert content(sim, "StatefulSet", name) == before
    assert uids(sim) == pods
    assert sum(m.startswith(f"repair StatefulSet {name}: spec.template") for m in messages(sim)) == 1


@pytest.mark.parametrize("kind", ["Pod", "PersistentVolumeClaim"])
@pytest.mark.parametrize("name", ["demo-brokers-1", "demo-zookeeper-1"])
@pytest.mark.parametrize("label", [naming.CLUSTER_LABEL, naming.COMPONENT_LABEL])
def test_labels_of_pods_and_claims_are_restored(
    sim: KubernetesSimulation, kind: str, name: str, label: str
) -> None:
    """Otherwise a broker whose claim is not listed would be restarted again and again."""
    name = name if kind == "Pod" else naming.data_claim(name)
    pods, before = uids(sim), dict(sim.api.items[kind, name]["metadata"]["labels"])
    sim.api.items[kind, name]["metadata"]["labels"].pop(label)
    for _ in range(10):
        sim.reconcile()
    assert sim.api.items[kind, name]["metadata"]["labels"] == before
    assert uids(sim) == pods
    assert sim.condition()[0] == "True"
    assert f"restore the labels of {kind} {name}" in messages(sim)


def test_a_deletion_that_a_finalizer_prevents_is_reported(sim: KubernetesSimulation) -> None:
    sim.api.items["Service", BOOTSTRAP]["metadata"]["finalizers"] = ["example.com/hold"]
    sim.api.delete_resource("Service", BOOTSTRAP)
    sim.reconcile()
    assert sim.condition()[0] == "True"
    sim.api.now_ms += 400_000
    sim.reconcile()
    assert sim.condition() == ("False", "DeletionHangs")


# ---- what others may set


def track(item: Item) -> None:
    item["metadata"]["annotations"]["argocd.argoproj.io/tracking-id"] = "shop:v1/Service"
    item["metadata"]["labels"]["velero.io/backup-name"] = "nightly"


def fix_node_port(item: Item) -> None:
    item["spec"]["ports"][0]["nodePort"] = 30092


def give_address(item: Item) -> None:
    item["spec"]["loadBalancerIP"] = "10.1.1.1"


def give_pull_secret(item: Item) -> None:
    item["imagePullSecrets"] = [{"name": "registry"}]


def restart(item: Item) -> None:
    template = item["spec"]["template"]["metadata"]
    template.setdefault("annotations", {})[naming.RESTARTED_AT_ANNOTATION] = "2026-11-27T10:00:00Z"


@pytest.mark.parametrize(
    ("kind", "name", "change"),
    [
        ("Service", BOOTSTRAP, track),
        ("StatefulSet", BROKERS, track),
        ("Service", BOOTSTRAP, fix_node_port),
        ("Service", BOOTSTRAP, give_address),
        ("ServiceAccount", BROKERS, give_pull_secret),
    ],
)
def test_fields_that_other_components_set_stay(
    sim: KubernetesSimulation, kind: str, name: str, change: Callable[[Item], None]
) -> None:
    sim.api.edit(kind, name, change, "somebody")
    edited = {**sim.api.items[kind, name], "status": None}
    sim.reconcile()
    assert {**sim.api.items[kind, name], "status": None} == edited


def test_kubectl_rollout_restart_is_no_edit(sim: KubernetesSimulation) -> None:
    sim.api.edit("StatefulSet", BROKERS, restart, "kubectl-rollout")
    settle(sim)
    annotations = sim.api.items["StatefulSet", BROKERS]["spec"]["template"]["metadata"]["annotations"]
    assert annotations[naming.RESTARTED_AT_ANNOTATION] == "2026-11-27T10:00:00Z"
    assert not [m for m in messages(sim) if m.startswith("repair")]


# ---- two controllers


def test_a_field_that_comes_back_again_and_again_is_left_alone_and_reported(
    sim: KubernetesSimulation,
) -> None:
    for _ in range(RESTORATIONS_MAX + 3):
        sim.api.edit("StatefulSet", BROKERS, pin_to_node, "kyverno")
        sim.reconcile()
    assert sim.condition("Contested") == ("True", "FieldsComeBack")
    assert sim.condition()[0] == "True"
    repairs = [m for m in messages(sim) if m.startswith("repair")]
    assert len(repairs) == RESTORATIONS_MAX
    [warning] = [event for event in sim.recorder.events if event[1] == "FieldsComeBack"]
    assert "spec.template.spec.nodeSelector by kyverno (Update) came back 5 times" in warning[2]
    writes = len(sim.api.writes)
    sim.reconcile()
    assert len(sim.api.writes) == writes
    # Another field of the object is still restored.
    sim.api.edit("StatefulSet", BROKERS, add_environment)
    settle(sim)
    spec = sim.api.items["StatefulSet", BROKERS]["spec"]["template"]["spec"]
    assert [each["name"] for each in spec["containers"][0]["env"]] == ["POD_NAME"]
    assert spec["nodeSelector"] == {"disk": "ssd"}
    # The other controller is gone.
    sim.api.now_ms += CONTESTED_MS
    settle(sim)
    assert "nodeSelector" not in sim.api.items["StatefulSet", BROKERS]["spec"]["template"]["spec"]
    assert sim.condition("Contested") == ("", "")


def test_a_contested_value_of_the_manifest_is_left_alone_too(sim: KubernetesSimulation) -> None:
    def widen(item: Item) -> None:
        item["spec"]["maxUnavailable"] = 2

    for _ in range(RESTORATIONS_MAX + 1):
        sim.api.edit("PodDisruptionBudget", BROKERS, widen, "tuner")
        sim.reconcile()
    assert sim.condition("Contested") == ("True", "FieldsComeBack")
    sim.api.edit("PodDisruptionBudget", BROKERS, spread_wider)
    settle(sim)
    spec = sim.api.items["PodDisruptionBudget", BROKERS]["spec"]
    assert spec["maxUnavailable"] == 2
    assert "release" not in spec["selector"]["matchLabels"]


def test_edits_that_are_hours_apart_are_all_undone(sim: KubernetesSimulation) -> None:
    for _ in range(RESTORATIONS_MAX + 3):
        sim.api.edit("StatefulSet", BROKERS, pin_to_node)
        settle(sim)
        sim.api.now_ms += CONTESTED_MS
    assert "nodeSelector" not in sim.api.items["StatefulSet", BROKERS]["spec"]["template"]["spec"]


def test_a_webhook_that_changes_a_child_is_reported_and_not_fought(sim: KubernetesSimulation) -> None:
    def mutate(item: Item) -> None:
        if item["kind"] == "StatefulSet" and item["metadata"]["name"] == BROKERS:
            item["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] = "Always"
            item["spec"]["template"]["spec"]["priorityClassName"] = "high"

    sim.api.webhook = mutate
    sim.api.edit("StatefulSet", BROKERS, add_environment)
    settle(sim)
    assert sim.condition() == ("True", "AllBrokersReady")
    assert sim.condition("Contested") == ("True", "FieldsComeBack")
    [message] = [c["message"] for c in sim.status()["conditions"] if c["type"] == "Contested"]
    assert "spec.template.spec.containers[0].imagePullPolicy is changed" in message
    version = sim.api.items["StatefulSet", BROKERS]["metadata"]["resourceVersion"]
    assert sim.reconcile() == []
    assert sim.api.items["StatefulSet", BROKERS]["metadata"]["resourceVersion"] == version


# ---- one child that cannot be applied


def failing(kind: str, name: str) -> Callable[[str, str, str], ApiError | None]:
    def fail(verb: str, k: str, n: str) -> ApiError | None:
        refused = (verb, k, n) == ("apply", kind, name)
        return Forbidden(403, "Forbidden", "a policy of the platform team forbids it") if refused else None

    return fail


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("ServiceAccount", BROKERS),
        ("Service", BROKERS),
        ("PodDisruptionBudget", BROKERS),
        ("NetworkPolicy", ZOOKEEPER),
        ("StatefulSet", ZOOKEEPER),
        ("ConfigMap", ZOOKEEPER),
    ],
)
def test_a_child_that_cannot_be_applied_stops_no_other(
    sim: KubernetesSimulation, kind: str, name: str
) -> None:
    sim.api.items.pop((kind, name))
    sim.api.items.pop(("NetworkPolicy", BROKERS))
    sim.api.fail = failing(kind, name)
    sim.apply_cluster(storage={"size": "2Gi", "deleteClaim": True}, config={"queued.max.requests": 9})
    sim.reconcile_until(lambda: len(uids(sim)) == 6 and "2Gi" in json.dumps(claim(sim, "demo-brokers-0")))
    for _ in range(30):
        sim.reconcile()
    assert ("NetworkPolicy", BROKERS) in sim.api.items
    for broker in range(3):
        data = sim.api.items["ConfigMap", f"demo-broker-{broker}"]["data"]
        assert "queued.max.requests=9" in data["server.properties"], "the roll is complete"
    assert sim.condition() == ("False", "ApplyFailed")
    [message] = [c["message"] for c in sim.status()["conditions"] if c["type"] == "Ready"]
    assert message == f"{kind} {name}: a policy of the platform team forbids it"
    assert ("BrokerCluster/demo", "ApplyFailed", message, True) in sim.recorder.events


def test_all_children_that_cannot_be_applied_are_reported(sim: KubernetesSimulation) -> None:
    for name in (BROKERS, ZOOKEEPER):
        sim.api.items.pop(("PodDisruptionBudget", name))

    def fail(verb: str, kind: str, name: str) -> ApiError | None:
        refused = (verb, kind) == ("apply", "PodDisruptionBudget")
        return Forbidden(403, "Forbidden", "not allowed") if refused else None

    sim.api.fail = fail
    sim.reconcile()
    [message] = [c["message"] for c in sim.status()["conditions"] if c["type"] == "Ready"]
    assert message == (
        "PodDisruptionBudget demo-brokers: not allowed; PodDisruptionBudget demo-zookeeper: not allowed"
    )


def test_an_api_server_that_does_not_respond_is_not_asked_again_and_again(
    sim: KubernetesSimulation,
) -> None:
    for name in (BROKERS, ZOOKEEPER):
        sim.api.items.pop(("PodDisruptionBudget", name))
    sim.api.fail = lambda verb, kind, name: (
        ApiError(0, "Unreachable", "timed out") if verb == "apply" else None
    )
    before = len(sim.api.writes)
    sim.reconcile()
    assert [verb for verb, _, _ in sim.api.writes[before:]].count("apply") == 1


# ---- immutable fields


def claim(sim: KubernetesSimulation, pod: str) -> Item:
    return sim.api.items["PersistentVolumeClaim", naming.data_claim(pod)]["spec"]


def template_of(sim: KubernetesSimulation, name: str) -> Item:
    item = sim.api.items["StatefulSet", name]
    return item["spec"]["volumeClaimTemplates"][0]["spec"]  # type: ignore[no-any-return]


def spec_of(component: str, **storage: Any) -> Item:
    if component == BROKERS:
        return {"storage": {"size": "1Gi", "deleteClaim": True, **storage}}
    return {"zookeeper": {"managed": {"storage": {"size": "2Gi", **storage}}}}


@pytest.mark.parametrize("name", [BROKERS, ZOOKEEPER])
def test_a_storage_class_can_be_set_and_taken_back(sim: KubernetesSimulation, name: str) -> None:
    pods = uids(sim)
    for item in sim.api.items.values():
        if item["kind"] == "PersistentVolumeClaim":
            item["spec"]["storageClassName"] = "standard"
    sim.apply_cluster(**spec_of(name, **{"class": "fast"}))
    settle(sim)
    assert template_of(sim, name)["storageClassName"] == "fast"
    assert sim.condition("VolumesMatch") == ("False", "VolumesDiffer")
    [message] = [c["message"] for c in sim.status()["conditions"] if c["type"] == "VolumesMatch"]
    assert f"data-{name}-0 has class standard, not spec." in message
    sim.apply_cluster(**spec_of(name))
    settle(sim)
    assert "storageClassName" not in template_of(sim, name)
    assert sim.condition("VolumesMatch") == ("", "")
    assert uids(sim) == pods
    assert all(sim.api.items["Pod", pod]["metadata"]["ownerReferences"] for pod in pods)


@pytest.mark.parametrize("name", [BROKERS, ZOOKEEPER])
def test_volumes_grow_and_never_shrink(sim: KubernetesSimulation, name: str) -> None:
    pods = uids(sim)
    sim.apply_cluster(**spec_of(name, size="3Gi"))
    settle(sim)
    assert claim(sim, f"{name}-2")["resources"]["requests"]["storage"] == "3Gi"
    assert template_of(sim, name)["resources"]["requests"]["storage"] == "3Gi"
    sim.apply_cluster(**spec_of(name, size="2.5Gi"), config={"queued.max.requests": 9})
    sim.reconcile_until_ready()
    settle(sim)
    assert claim(sim, f"{name}-2")["resources"]["requests"]["storage"] == "3Gi"
    assert template_of(sim, name)["resources"]["requests"]["storage"] == "3Gi"
    assert sim.condition("VolumesMatch") == ("False", "VolumesDiffer")
    data = sim.api.items["ConfigMap", "demo-broker-2"]["data"]
    assert "queued.max.requests=9" in data["server.properties"], "all the rest is applied"
    left = {pod: uid for pod, uid in uids(sim).items() if pod.startswith(ZOOKEEPER)}
    assert left.items() <= pods.items()


@pytest.mark.parametrize("field", ["serviceName", "podManagementPolicy"])
def test_a_stateful_set_created_by_hand_with_other_immutable_fields_is_recreated(
    sim: KubernetesSimulation, field: str
) -> None:
    pods = uids(sim)
    wanted = sim.api.items["StatefulSet", BROKERS]["spec"][field]
    copied = dict(sim.api.items["StatefulSet", BROKERS])
    copied["metadata"] = {**copied["metadata"], "managedFields": []}
    copied["spec"] = {**copied["spec"], field: "OrderedReady"}
    sim.api.put("StatefulSet", BROKERS, sim.api._owned(None, copied, "kubectl-replace"))
    settle(sim)
    assert sim.api.items["StatefulSet", BROKERS]["spec"][field] == wanted
    assert uids(sim) == pods


def test_an_immutable_config_map_is_recreated(sim: KubernetesSimulation) -> None:
    def freeze(item: Item) -> None:
        item["immutable"] = True

    before = content(sim, "ConfigMap", ZOOKEEPER)
    sim.api.edit("ConfigMap", ZOOKEEPER, freeze)
    settle(sim)
    assert content(sim, "ConfigMap", ZOOKEEPER) == before
    assert any(m.startswith("recreate ConfigMap demo-zookeeper") for m in messages(sim))


def test_a_headless_service_that_was_created_with_an_address_is_recreated(
    sim: KubernetesSimulation,
) -> None:
    before = content(sim, "Service", BROKERS)
    copied = dict(sim.api.items["Service", BROKERS])
    copied["metadata"] = {**copied["metadata"], "managedFields": []}
    copied["spec"] = {**copied["spec"], "clusterIP": "10.96.0.7"}
    sim.api.put("Service", BROKERS, sim.api._owned(None, copied, "kubectl-create"))
    settle(sim)
    assert content(sim, "Service", BROKERS) == before
