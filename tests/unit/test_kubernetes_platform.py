"""A cluster on Kubernetes from its creation to its deletion, over a simulated API server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ottla_operator.conditions import Condition, ConditionStatus
from ottla_operator.kubernetes import naming
from ottla_operator.kubernetes.api import ApiError, Forbidden
from ottla_operator.kubernetes.store import KubernetesStore
from ottla_operator.resources import KINDS
from tests.worlds.kubernetes_simulation import NAMESPACE, KubernetesSimulation


@pytest.fixture
def sim() -> KubernetesSimulation:
    sim = KubernetesSimulation()
    sim.apply_cluster()
    sim.reconcile_until_ready()
    return sim


CHILDREN = [
    ("ServiceAccount", "demo-brokers"),
    ("Service", "demo-brokers"),
    ("Service", "demo-bootstrap"),
    ("Service", "demo-zookeeper"),
    ("ConfigMap", "demo-zookeeper"),
    ("ConfigMap", "demo-broker-0"),
    ("ConfigMap", "demo-broker-2"),
    ("StatefulSet", "demo-zookeeper"),
    ("StatefulSet", "demo-brokers"),
    ("PodDisruptionBudget", "demo-brokers"),
    ("PodDisruptionBudget", "demo-zookeeper"),
    ("NetworkPolicy", "demo-brokers"),
    ("NetworkPolicy", "demo-zookeeper"),
    ("Pod", "demo-brokers-1"),
    ("Pod", "demo-zookeeper-1"),
]


def pods(sim: KubernetesSimulation) -> dict[str, str]:
    """Uids of the brokers' pods."""
    return {
        name: sim.api.items["Pod", name]["metadata"]["uid"]
        for name in sim.api.names("Pod")
        if name.startswith("demo-brokers-")
    }


def test_a_new_cluster_becomes_ready(sim: KubernetesSimulation) -> None:
    assert sim.condition() == ("True", "AllBrokersReady")
    for kind, name in CHILDREN:
        assert (kind, name) in sim.api.items
    status = sim.status()
    assert status["bootstrapServers"] == "demo-bootstrap.shop.svc:9092"
    assert status["selector"] == "ottla.dev/cluster=demo,ottla.dev/component=broker,!ottla.dev/pool"
    assert [broker["podName"] for broker in status["brokers"]] == [f"demo-brokers-{n}" for n in range(3)]


def test_a_converged_cluster_causes_no_writes(sim: KubernetesSimulation) -> None:
    sim.reconcile()
    sim.api.calls.clear()
    sim.reconcile()
    assert sim.api.writes == []


@pytest.mark.parametrize(("kind", "name"), CHILDREN)
def test_a_deleted_object_is_created_again(sim: KubernetesSimulation, kind: str, name: str) -> None:
    uid = sim.api.items[kind, name]["metadata"]["uid"]
    sim.api.delete_resource(kind, name)
    sim.api.tick()
    sim.reconcile_until(lambda: (kind, name) in sim.api.items and sim.ready())
    assert sim.api.items[kind, name]["metadata"]["uid"] != uid


def test_a_deleted_config_map_causes_no_bounce(sim: KubernetesSimulation) -> None:
    before = pods(sim)
    sim.api.delete_resource("ConfigMap", "demo-broker-1")
    for _ in range(5):
        sim.reconcile()
    assert pods(sim) == before
    assert sim.ready()


@pytest.mark.parametrize(
    ("kind", "name", "path", "value"),
    [
        ("Service", "demo-bootstrap", ("spec", "selector"), {"app": "other"}),
        ("StatefulSet", "demo-brokers", ("spec", "template", "spec", "serviceAccountName"), "root"),
        ("ConfigMap", "demo-zookeeper", ("data", "zoo.cfg"), "tickTime=1"),
        ("PodDisruptionBudget", "demo-brokers", ("spec", "maxUnavailable"), 3),
    ],
)
def test_changed_objects_are_repaired(
    sim: KubernetesSimulation, kind: str, name: str, path: tuple[str, ...], value: object
) -> None:
    before = json.dumps(sim.api.items[kind, name]["spec" if path[0] == "spec" else "data"], sort_keys=True)
    place = sim.api.items[kind, name]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    sim.reconcile()
    live = sim.api.items[kind, name]
    for key in path:
        live = live[key]
    assert live != value or path[-1] == "selector"
    if path[-1] != "selector":
        assert json.dumps(sim.api.items[kind, name][path[0]], sort_keys=True) == before


@pytest.mark.parametrize("path", ["spec", "spec.zookeeper.managed"])
def test_sidecars_are_rejected_unless_the_operator_allows_them(sim: KubernetesSimulation, path: str) -> None:
    before = pods(sim)
    template = {"template": {"pod": {"spec": {"initContainers": [{"name": "x", "image": "y"}]}}}}
    sim.apply_cluster(**(template if path == "spec" else {"zookeeper": {"managed": template}}))
    sim.reconcile_until(lambda: sim.condition() == ("False", "InvalidSpec"))
    message = next(c["message"] for c in sim.status()["conditions"] if c["type"] == "Ready")
    assert message.startswith(
        f"{path}.template.pod.spec.initContainers[0]: this operator does not allow sidecars"
    )
    for _ in range(5):
        sim.reconcile()
    assert pods(sim) == before


_NO_ACCOUNT = "pods is forbidden: error looking up service account default/edited: not found"


@pytest.mark.parametrize(
    ("spec", "component"),
    [
        ({"template": {"pod": {"spec": {"serviceAccountName": "edited"}}}}, "broker"),
        ({"zookeeper": {"managed": {"template": {"pod": {"spec": {"serviceAccountName": "edited"}}}}}},
         "zookeeper"),
    ],
)  # fmt: skip
def test_no_pod_is_stopped_for_a_revision_that_the_api_server_refuses(
    sim: KubernetesSimulation, spec: dict[str, Any], component: str
) -> None:
    """Found by a random edit: the first pod was gone, and no condition said why it did not come back."""
    before = pods(sim)
    refuse = Forbidden(403, "Forbidden", _NO_ACCOUNT)
    sim.api.fail = lambda verb, kind, name: refuse if (verb, kind) == ("create", "Pod") else None
    sim.apply_cluster(**spec)
    sim.reconcile_until(lambda: sim.condition() == ("False", "PodRefused"))
    for _ in range(5):
        sim.reconcile()
    assert pods(sim) == before
    [message] = [c["message"] for c in sim.status()["conditions"] if c["type"] == "Ready"]
    assert component in message
    assert message.endswith(_NO_ACCOUNT)
    sim.apply_cluster()
    sim.reconcile_until_ready()
    assert pods(sim) == before


@pytest.mark.parametrize(
    "error",
    [
        Forbidden(403, "Forbidden", "pods is forbidden: exceeded quota: pods"),
        Forbidden(403, "Forbidden", 'User "operator" cannot create resource "pods"'),
        ApiError(400, "BadRequest", 'admission webhook "x" does not support dry run'),
    ],
)
def test_a_failed_dry_run_stops_no_roll(sim: KubernetesSimulation, error: ApiError) -> None:
    before = pods(sim)
    sim.api.fail = lambda verb, kind, name: error if (verb, kind) == ("create", "Pod") else None
    sim.apply_cluster(config={"queued.max.requests": 400})
    sim.reconcile_until(lambda: not set(pods(sim).values()) & set(before.values()))


def test_a_roll_replaces_one_pod_at_a_time(sim: KubernetesSimulation) -> None:
    before = pods(sim)
    sim.apply_cluster(config={"queued.max.requests": 400})
    sim.api.max_unavailable = 0
    sim.reconcile_until_ready()
    after = pods(sim)
    assert all(after[name] != uid for name, uid in before.items())
    assert sim.api.max_unavailable == 1
    properties = sim.api.items["ConfigMap", "demo-broker-1"]["data"]["server.properties"]
    assert "queued.max.requests=400" in properties


def test_a_pod_that_dies_outside_its_turn_restarts_on_its_previous_revision(
    sim: KubernetesSimulation,
) -> None:
    sim.apply_cluster(config={"queued.max.requests": 400})
    sim.reconcile_until(lambda: len(sim.status()["brokers"][2]["restartReasons"]) > 0)
    sim.api.delete_resource("Pod", "demo-brokers-2")
    properties = sim.api.items["ConfigMap", "demo-broker-2"]["data"]["server.properties"]
    assert "queued.max.requests" not in properties
    sim.reconcile_until_ready()


def test_a_missing_image_stalls_the_roll_and_reverting_it_recovers(
    sim: KubernetesSimulation,
) -> None:
    sim.api.unpullable_images.add("ottla:bad")
    sim.api.max_unavailable = 0
    sim.apply_cluster(image="ottla:bad")
    sim.reconcile_until(lambda: sim.condition() == ("False", "RollStalled"))
    for _ in range(10):
        sim.reconcile()
    assert sim.api.max_unavailable == 1
    assert sim.condition("Rolling") == ("False", "Stalled")
    sim.apply_cluster()
    sim.reconcile_until_ready()
    assert sim.api.max_unavailable == 1


def test_a_scheduler_that_does_not_exist_is_named_while_the_roll_waits(sim: KubernetesSimulation) -> None:
    sim.apply_cluster(template={"pod": {"spec": {"schedulerName": "edited"}}})
    for _ in range(10):
        sim.reconcile()
    message = next(c["message"] for c in sim.status()["conditions"] if c["type"] == "Ready")
    assert message.endswith(
        "starting on revision "
        + sim.status()["rollout"]["targetHash"]
        + (": no scheduler has handled the pod, whose schedulerName is 'edited'")
    )
    sim.apply_cluster()
    sim.reconcile_until_ready()


def test_scaling_up_and_down_leaves_no_objects(sim: KubernetesSimulation) -> None:
    names = sorted(sim.api.items)
    sim.apply_cluster(replicas=5)
    sim.reconcile_until_ready()
    assert ("ConfigMap", "demo-broker-4") in sim.api.items
    sim.apply_cluster()
    sim.reconcile_until_ready()
    assert sorted(sim.api.items) == names


def test_a_retained_volume_remains_after_its_broker(sim: KubernetesSimulation) -> None:
    sim.apply_cluster(replicas=2, storage={"size": "1Gi", "deleteClaim": False})
    sim.reconcile_until_ready()
    assert ("PersistentVolumeClaim", "data-demo-brokers-2") in sim.api.items
    assert ("ConfigMap", "demo-broker-2") not in sim.api.items


def test_growing_volumes_recreates_the_stateful_set_around_its_pods(sim: KubernetesSimulation) -> None:
    before = pods(sim)
    uid = sim.api.items["StatefulSet", "demo-brokers"]["metadata"]["uid"]
    sim.apply_cluster(storage={"size": "2Gi", "deleteClaim": True})
    for _ in range(3):
        sim.reconcile()
    sim.reconcile_until_ready()
    for broker in range(3):
        claim = sim.api.items["PersistentVolumeClaim", f"data-demo-brokers-{broker}"]
        assert claim["spec"]["resources"]["requests"]["storage"] == "2Gi"
    assert sim.api.items["StatefulSet", "demo-brokers"]["metadata"]["uid"] != uid
    assert pods(sim) == before


def test_volumes_that_cannot_grow_are_reported_and_other_steps_continue(sim: KubernetesSimulation) -> None:
    sim.api.fail = lambda verb, kind, name: (
        Forbidden(403, "Forbidden", "the class must support resize")
        if (verb, kind) == ("patch", "PersistentVolumeClaim")
        else None
    )
    sim.apply_cluster(storage={"size": "2Gi", "deleteClaim": True})
    sim.reconcile()
    assert sim.condition() == ("False", "VolumeNotGrown")
    message = next(c["message"] for c in sim.status()["conditions"] if c["type"] == "Ready")
    assert message.startswith("spec.storage.size 2Gi: PersistentVolumeClaim data-demo-brokers-0: ")
    assert sim.condition("Available")[0] == "True"
    sim.api.delete_resource("Service", "demo-bootstrap")
    sim.reconcile()
    assert ("Service", "demo-bootstrap") in sim.api.items


def test_a_deletion_leaves_only_objects_of_others(sim: KubernetesSimulation) -> None:
    sim.api.delete_resource("BrokerCluster", "demo")
    sim.reconcile_until(lambda: ("BrokerCluster", "demo") not in sim.api.items)
    sim.api.tick()
    left = [key for key in sim.api.items if key[0] != "PersistentVolumeClaim"]
    assert left == []
    assert all(name.startswith("data-demo-zookeeper") for name in sim.api.names("PersistentVolumeClaim"))


REFERENCE = {"clusterRef": {"name": "demo"}}
JOB = {**REFERENCE, "job": "lake"}
QUOTA = {**REFERENCE, "entity": {"user": "u"}, "limits": {"producerByteRate": 1}}


@pytest.mark.parametrize(
    ("kind", "spec", "finalizers"),
    [
        ("Topic", REFERENCE, [naming.FINALIZER]),
        ("Topic", {**REFERENCE, "reclaimPolicy": "Retain"}, []),
        ("User", REFERENCE, [naming.FINALIZER]),
        ("Quota", QUOTA, [naming.FINALIZER]),
        ("ConsumerGroup", {**REFERENCE, "deletionPolicy": "Delete"}, [naming.FINALIZER]),
        ("ConsumerGroup", REFERENCE, []),
        ("Pipeline", JOB, []),
    ],
)
@pytest.mark.parametrize("before", [[], ["other/one", naming.FINALIZER], ["other/one"]])
def test_only_resources_that_delete_something_in_kafka_have_a_finalizer(
    sim: KubernetesSimulation,
    kind: str,
    spec: dict[str, object],
    finalizers: list[str],
    before: list[str],
) -> None:
    """Also of resources that an older operator has set one on."""
    sim.api.apply_resource(kind, "one", spec)
    sim.api.items[kind, "one"]["metadata"]["finalizers"] = before
    sim.reconcile()
    others = [name for name in before if name != naming.FINALIZER]
    assert sim.api.items[kind, "one"]["metadata"].get("finalizers", []) == [*others, *finalizers]


def test_a_cluster_needs_no_operator_to_be_deleted(sim: KubernetesSimulation) -> None:
    assert not sim.api.items["BrokerCluster", "demo"]["metadata"].get("finalizers")
    sim.api.delete_resource("BrokerCluster", "demo")
    for _ in range(3):
        sim.api.tick()
    assert {kind for kind, _ in sim.api.items} == {"PersistentVolumeClaim"}
    assert all("zookeeper" in name for name in sim.api.names("PersistentVolumeClaim")), "deleteClaim"


def test_a_cluster_that_an_older_operator_held_is_released(sim: KubernetesSimulation) -> None:
    sim.api.items["BrokerCluster", "demo"]["metadata"]["finalizers"] = [naming.FINALIZER]
    sim.api.delete_resource("BrokerCluster", "demo")
    sim.reconcile()
    assert ("BrokerCluster", "demo") not in sim.api.items


def test_nothing_is_created_again_during_a_foreground_deletion(sim: KubernetesSimulation) -> None:
    sim.api.apply_resource("Topic", "orders", {**REFERENCE, "reclaimPolicy": "Retain"})
    metadata = sim.api.items["BrokerCluster", "demo"]["metadata"]
    metadata["finalizers"] = ["foregroundDeletion"]
    sim.api.delete_resource("BrokerCluster", "demo")
    sim.api.delete_resource("Service", "demo-bootstrap")
    sim.reconcile()
    assert ("Service", "demo-bootstrap") not in sim.api.items
    assert sim.condition(kind="Topic", name="orders") == ("False", "ClusterNotFound")


def test_a_cluster_created_again_at_once_waits_until_the_former_one_is_gone(
    sim: KubernetesSimulation,
) -> None:
    """Some volumes of the former one would survive otherwise, with another cluster's id."""
    sim.reconcile()
    former = dict(sim.api.items)
    sim.api.delete_resource("BrokerCluster", "demo")
    sim.apply_cluster()
    # The garbage collector is late.
    sim.api.items.update({key: item for key, item in former.items() if key[0] != "BrokerCluster"})
    sim.api.calls.clear()
    sim.reconcile()
    assert sim.condition() == ("False", "WaitingForDeletion")
    assert {kind for _, kind, _ in sim.api.writes} == {"BrokerCluster"}
    for key in former:
        if key[0] != "BrokerCluster":
            del sim.api.items[key]
    sim.reconcile_until_ready()


def test_delete_claim_decides_who_owns_the_claims(sim: KubernetesSimulation) -> None:
    def owners() -> set[str]:
        claims = {name: sim.api.items["PersistentVolumeClaim", name] for name in names}
        return {name for name, claim in claims.items() if claim["metadata"].get("ownerReferences")}

    names = sim.api.names("PersistentVolumeClaim")
    of_brokers = {name for name in names if "zookeeper" not in name}
    sim.reconcile()
    assert owners() == of_brokers
    for name in of_brokers:
        (owner,) = sim.api.items["PersistentVolumeClaim", name]["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["controller"]) == ("BrokerCluster", False)
    sim.apply_cluster(storage={"size": "1Gi", "deleteClaim": False})
    sim.reconcile()
    assert owners() == set()
    sim.api.delete_resource("StatefulSet", "demo-brokers")
    assert sim.api.names("PersistentVolumeClaim") == names, "whatever deleteClaim says"


def test_a_deletion_creates_no_objects(sim: KubernetesSimulation) -> None:
    """A namespace that is being deleted accepts no new objects."""
    sim.api.fail = lambda verb, kind, name: (
        Forbidden(403, "Forbidden", "the namespace is being terminated")
        if verb in ("create", "apply")
        else None
    )
    sim.api.delete_resource("BrokerCluster", "demo")
    sim.reconcile_until(lambda: ("BrokerCluster", "demo") not in sim.api.items)


@pytest.mark.parametrize("number", range(1, 24))
def test_an_operator_killed_at_any_write_of_a_roll_completes_it_later(number: int) -> None:
    sim = KubernetesSimulation()
    sim.apply_cluster()
    sim.reconcile_until_ready()
    sim.api.max_unavailable = 0
    sim.fail_write(number)
    sim.apply_cluster(config={"queued.max.requests": 400}, replicas=4)
    sim.reconcile_until_ready()
    assert sim.api.max_unavailable == 1
    for broker in range(4):
        properties = sim.api.items["ConfigMap", f"demo-broker-{broker}"]["data"]["server.properties"]
        assert "queued.max.requests=400" in properties


# ---- external listeners


def with_node_ports(sim: KubernetesSimulation) -> None:
    address = {"type": "InternalIP", "address": "10.0.0.1"}
    sim.api.put("Node", "node-a", {"status": {"addresses": [address]}})
    sim.apply_cluster(
        listeners=[{"name": "plain", "port": 9092}, {"name": "ext", "port": 9094, "type": "nodeport"}]
    )


def give_node_ports(sim: KubernetesSimulation) -> None:
    for number, name in enumerate(sim.api.names("Service")):
        spec = sim.api.items["Service", name]["spec"]
        if spec.get("type") == "NodePort":
            spec["ports"][0].setdefault("nodePort", 30000 + number)


def test_a_broker_advertises_the_port_of_its_own_service(sim: KubernetesSimulation) -> None:
    with_node_ports(sim)
    sim.reconcile()
    assert sim.condition()[1] in ("AddressPending", "Rolling")
    give_node_ports(sim)
    sim.reconcile_until_ready()
    config = sim.api.items["ConfigMap", "demo-broker-1"]
    port = sim.api.items["Service", "demo-broker-1-ext"]["spec"]["ports"][0]["nodePort"]
    assert f"EXT://10.0.0.1:{port}" in config["data"]["server.properties"]


def test_a_deleted_service_is_created_with_the_same_node_port(sim: KubernetesSimulation) -> None:
    with_node_ports(sim)
    sim.reconcile()
    give_node_ports(sim)
    sim.reconcile_until_ready()
    before, port = (
        pods(sim),
        sim.api.items["Service", "demo-broker-1-ext"]["spec"]["ports"][0]["nodePort"],
    )
    sim.api.delete_resource("Service", "demo-broker-1-ext")
    for _ in range(4):
        sim.reconcile()
    assert sim.api.items["Service", "demo-broker-1-ext"]["spec"]["ports"][0]["nodePort"] == port
    assert pods(sim) == before


def test_brokers_whose_address_has_changed_are_bounced_one_by_one(sim: KubernetesSimulation) -> None:
    with_node_ports(sim)
    sim.reconcile()
    give_node_ports(sim)
    sim.reconcile_until_ready()
    sim.api.max_unavailable = 0
    sim.api.items["Node", "node-a"]["status"]["addresses"][0]["address"] = "10.0.0.9"
    sim.reconcile()
    sim.reconcile_until_ready()
    sim.reconcile_until(lambda: sim.condition("ConfigApplied")[0] == "True")
    for broker in range(3):
        config = sim.api.items["ConfigMap", f"demo-broker-{broker}"]
        assert "EXT://10.0.0.9:" in config["data"]["server.properties"]
    assert sim.api.max_unavailable == 1


def test_a_removed_listener_removes_its_services(sim: KubernetesSimulation) -> None:
    with_node_ports(sim)
    sim.reconcile()
    give_node_ports(sim)
    sim.reconcile_until_ready()
    sim.apply_cluster()
    sim.reconcile_until_ready()
    assert sim.api.names("Service") == ["demo-bootstrap", "demo-brokers", "demo-zookeeper"]


def test_pods_are_annotated_with_the_rack_of_their_node(sim: KubernetesSimulation) -> None:
    sim.api.put("Node", "node-a", {"metadata": {"labels": {"zone": "a"}}})
    for name in pods(sim):
        sim.api.items["Pod", name]["spec"]["nodeName"] = "node-a"
    sim.apply_cluster(rack={"topologyKey": "zone"})
    sim.reconcile()
    annotations = sim.api.items["Pod", "demo-brokers-0"]["metadata"]["annotations"]
    assert annotations[naming.RACK_ANNOTATION] == "a"


def test_a_roll_bounces_within_one_rack_up_to_the_limit() -> None:
    """Six brokers in three racks are bounced in three steps of two."""
    sim = KubernetesSimulation()
    for zone in "abc":
        sim.api.put("Node", f"node-{zone}", {"metadata": {"labels": {"zone": zone}}})

    def zone_of(pod: str) -> str:
        return "abc"[int(pod.rpartition("-")[2]) % 3]

    sim.api.node_of = lambda pod: f"node-{zone_of(pod)}" if pod.startswith("demo-brokers-") else None
    racked = {
        "replicas": 6,
        "rack": {"topologyKey": "zone"},
        "rollingUpdate": {"minReadySeconds": 0, "maxUnavailablePerRack": 2},
    }
    sim.apply_cluster(**racked)
    sim.reconcile_until_ready()
    before = pods(sim)
    seen: list[set[str]] = []

    def over() -> bool:
        down = {name for name in before if not is_up(sim, name)}
        if down and (not seen or down != seen[-1]):
            seen.append(down)
        return sim.ready()

    sim.apply_cluster(**racked, config={"queued.max.requests": 400})
    sim.reconcile()
    sim.reconcile_until(over)
    assert all(pods(sim)[name] != uid for name, uid in before.items())
    assert all(len({zone_of(name) for name in down}) == 1 for down in seen), seen
    assert max(len(down) for down in seen) == 2


def is_up(sim: KubernetesSimulation, pod: str) -> bool:
    return ("Pod", pod) in sim.api.items and sim.api.is_ready(sim.api.items["Pod", pod])


# ---- deletions without permissions or with invalid specs


def test_an_operator_without_permissions_releases_deleted_resources(
    sim: KubernetesSimulation,
) -> None:
    """A namespace that is being deleted may lose its Role first."""
    sim.api.apply_resource("Topic", "orders", {"clusterRef": {"name": "demo"}})
    sim.reconcile()
    sim.api.delete_resource("BrokerCluster", "demo")
    sim.api.delete_resource("Topic", "orders")
    sim.api.fail = lambda verb, kind, name: (
        None if kind in KINDS else Forbidden(403, "Forbidden", "no rights are left")
    )
    sim.reconcile_until(
        lambda: not {"BrokerCluster", "Topic"} & {kind for kind, _ in sim.api.items}, reconciles_max=3
    )


def test_an_operator_without_permissions_keeps_a_topic_of_an_existing_cluster(
    sim: KubernetesSimulation,
) -> None:
    sim.api.apply_resource("Topic", "orders", {"clusterRef": {"name": "demo"}})
    sim.reconcile()
    sim.api.delete_resource("Topic", "orders")
    sim.api.fail = lambda verb, kind, name: (
        None if kind in KINDS else Forbidden(403, "Forbidden", "no rights are left")
    )
    sim.reconcile()
    assert ("Topic", "orders") in sim.api.items
    sim.api.now_ms += 61_000
    sim.reconcile()
    assert ("Topic", "orders") not in sim.api.items


def test_a_resource_that_cannot_be_parsed_can_be_deleted(sim: KubernetesSimulation) -> None:
    sim.api.apply_resource("Topic", "orders", {"clusterRef": {"name": "demo"}})
    sim.reconcile()
    sim.api.items["Topic", "orders"]["spec"]["partitions"] = "many"
    sim.api.delete_resource("Topic", "orders")
    sim.reconcile()
    assert ("Topic", "orders") not in sim.api.items


def test_an_invalid_spec_is_a_condition_and_changes_nothing(sim: KubernetesSimulation) -> None:
    before = pods(sim)
    sim.apply_cluster(config={"num.io.threads": "many"})
    for _ in range(3):
        sim.reconcile()
    assert sim.condition() == ("False", "InvalidSpec")
    assert sim.condition("Available")[0] == "True"
    assert pods(sim) == before
    sim.apply_cluster()
    sim.reconcile_until_ready()


def test_an_invalid_spec_causes_one_event_per_generation(sim: KubernetesSimulation) -> None:
    def event_messages() -> list[str]:
        return [message for key, reason, message, _ in sim.recorder.events if reason == "InvalidSpec"]

    sim.apply_cluster(config={"num.io.threads": "many"})
    for _ in range(3):
        sim.reconcile()
    assert len(event_messages()) == 1
    assert "num.io.threads" in event_messages()[0]
    sim.apply_cluster(config={"num.io.threads": "more"})
    for _ in range(3):
        sim.reconcile()
    assert len(event_messages()) == 2
    sim.apply_cluster()
    sim.reconcile_until_ready()
    sim.apply_cluster(config={"num.io.threads": "many"})
    sim.reconcile()
    assert len(event_messages()) == 3


def test_a_paused_cluster_is_observed_only(sim: KubernetesSimulation) -> None:
    sim.apply_cluster(annotations={"pause_reconciliation": "true"})
    sim.api.delete_resource("Service", "demo-bootstrap")
    sim.reconcile()
    assert ("Service", "demo-bootstrap") not in sim.api.items
    assert sim.condition("ReconciliationPaused")[0] == "True"
    sim.apply_cluster()
    sim.reconcile()
    assert ("Service", "demo-bootstrap") in sim.api.items


def test_a_status_is_not_written_for_an_outdated_spec(sim: KubernetesSimulation) -> None:
    """The spec changes during a reconciliation."""
    changed = False

    def change(verb: str, kind: str, name: str) -> ApiError | None:
        nonlocal changed
        if (verb, kind) == ("list", "Pod") and not changed:
            changed = True
            sim.apply_cluster(replicas=4)
        return None

    sim.apply_cluster(config={"queued.max.requests": 400})
    sim.api.fail = change
    sim.reconcile()
    assert changed
    assert sim.status()["observedGeneration"] == 1
    sim.reconcile_until_ready()
    assert len(sim.status()["brokers"]) == 4


@pytest.mark.parametrize(
    ("type_", "status", "reason", "warning"),
    [
        ("Balanced", "False", "Proposed", False),
        ("Balanced", "False", "Rebalancing", False),
        ("Scaling", "True", "LoadRebalance", False),
        ("Scaling", "True", "Rebalance", False),
        ("Scaling", "True", "Empty", False),
        ("Scaling", "True", "ScaleDown", False),
        ("Available", "False", "PartitionsOffline", True),
    ],
)
def test_what_begins_as_asked_is_a_normal_event(
    type_: str, status: ConditionStatus, reason: str, warning: bool
) -> None:
    sim = KubernetesSimulation()
    sim.apply_cluster()
    sim.reconcile_until_ready()
    store = KubernetesStore(sim.api, sim.images, NAMESPACE, "demo", lambda: sim.api.now_ms, sim.recorder)
    (cluster,) = asyncio.run(store.resources())
    before: ConditionStatus = "False" if status == "True" else "True"
    old = [Condition(type=type_, status=before, reason="Before", last_transition_time="2024-01-01T00:00:00Z")]
    new = [Condition(type=type_, status=status, reason=reason, last_transition_time="2024-01-01T00:00:00Z")]
    known = cluster.model_copy(update={"status": cluster.status.model_copy(update={"conditions": old})})
    changed = cluster.status.model_copy(update={"conditions": new})
    asyncio.run(store.update_status(known, changed))
    assert ("BrokerCluster/demo", reason, f"{type_} is {status}: {reason}", warning) in sim.recorder.events
