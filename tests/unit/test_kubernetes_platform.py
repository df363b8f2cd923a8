"""A cluster on Kubernetes from its creation to its deletion, with the API server in memory."""

from __future__ import annotations

import json

import pytest
from kubernetes_world import KubernetesWorld

from ottla_operator.kubernetes import naming
from ottla_operator.kubernetes.api import ApiError, Forbidden
from ottla_operator.resources import KINDS


@pytest.fixture
def world() -> KubernetesWorld:
    world = KubernetesWorld()
    world.cluster()
    world.settle()
    return world


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


def pods(world: KubernetesWorld) -> dict[str, str]:
    """Uids of the brokers' pods."""
    return {
        name: world.api.items["Pod", name]["metadata"]["uid"]
        for name in world.api.names("Pod")
        if name.startswith("demo-brokers-")
    }


def test_a_cluster_comes_up(world: KubernetesWorld) -> None:
    assert world.condition() == ("True", "AllBrokersReady")
    for kind, name in CHILDREN:
        assert (kind, name) in world.api.items
    status = world.status()
    assert status["bootstrapServers"] == "demo-bootstrap.shop.svc:9092"
    assert status["selector"] == "ottla.dev/cluster=demo,ottla.dev/component=broker"
    assert [broker["podName"] for broker in status["brokers"]] == [f"demo-brokers-{n}" for n in range(3)]


def test_once_all_is_as_it_should_be_nothing_is_written(world: KubernetesWorld) -> None:
    world.step()
    world.api.calls.clear()
    world.step()
    assert world.api.writes == []


@pytest.mark.parametrize(("kind", "name"), CHILDREN)
def test_what_is_deleted_comes_back(world: KubernetesWorld, kind: str, name: str) -> None:
    uid = world.api.items[kind, name]["metadata"]["uid"]
    world.api.delete_one(kind, name)
    world.api.tick()
    world.until(lambda: (kind, name) in world.api.items and world.ready())
    assert world.api.items[kind, name]["metadata"]["uid"] != uid


def test_a_config_map_that_is_deleted_costs_no_bounce(world: KubernetesWorld) -> None:
    before = pods(world)
    world.api.delete_one("ConfigMap", "demo-broker-1")
    for _ in range(5):
        world.step()
    assert pods(world) == before
    assert world.ready()


@pytest.mark.parametrize(
    ("kind", "name", "path", "value"),
    [
        ("Service", "demo-bootstrap", ("spec", "selector"), {"app": "other"}),
        ("StatefulSet", "demo-brokers", ("spec", "template", "spec", "serviceAccountName"), "root"),
        ("ConfigMap", "demo-zookeeper", ("data", "zoo.cfg"), "tickTime=1"),
        ("PodDisruptionBudget", "demo-brokers", ("spec", "maxUnavailable"), 3),
    ],
)
def test_what_is_changed_is_put_right(
    world: KubernetesWorld, kind: str, name: str, path: tuple[str, ...], value: object
) -> None:
    before = json.dumps(world.api.items[kind, name]["spec" if path[0] == "spec" else "data"], sort_keys=True)
    place = world.api.items[kind, name]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    world.step()
    live = world.api.items[kind, name]
    for key in path:
        live = live[key]
    assert live != value or path[-1] == "selector"
    if path[-1] != "selector":
        assert json.dumps(world.api.items[kind, name][path[0]], sort_keys=True) == before


def test_sidecars_are_refused_by_name_until_the_operator_allows_them(world: KubernetesWorld) -> None:
    before = pods(world)
    world.cluster(template={"pod": {"spec": {"initContainers": [{"name": "x", "image": "y"}]}}})
    world.until(lambda: world.condition() == ("False", "InvalidSpec"))
    message = next(c["message"] for c in world.status()["conditions"] if c["type"] == "Ready")
    assert message.startswith(
        "spec.template.pod.spec.initContainers[0]: this operator does not allow sidecars"
    )
    for _ in range(5):
        world.step()
    assert pods(world) == before


def test_a_roll_replaces_one_pod_at_a_time(world: KubernetesWorld) -> None:
    before = pods(world)
    world.cluster(config={"queued.max.requests": 400})
    world.api.most_down = 0
    world.settle()
    after = pods(world)
    assert all(after[name] != uid for name, uid in before.items())
    assert world.api.most_down == 1
    properties = world.api.items["ConfigMap", "demo-broker-1"]["data"]["server.properties"]
    assert "queued.max.requests=400" in properties


def test_a_pod_that_dies_outside_its_turn_comes_back_with_what_it_ran_with(world: KubernetesWorld) -> None:
    world.cluster(config={"queued.max.requests": 400})
    world.until(lambda: len(world.status()["brokers"][2]["restartReasons"]) > 0)
    world.api.delete_one("Pod", "demo-brokers-2")
    properties = world.api.items["ConfigMap", "demo-broker-2"]["data"]["server.properties"]
    assert "queued.max.requests" not in properties
    world.settle()


def test_an_image_that_cannot_be_had_stops_the_roll_and_taking_it_back_heals(world: KubernetesWorld) -> None:
    world.api.images_that_fail.add("ottla:bad")
    world.api.most_down = 0
    world.cluster(image="ottla:bad")
    world.until(lambda: world.condition() == ("False", "RollStalled"))
    for _ in range(10):
        world.step()
    assert world.api.most_down == 1
    assert world.condition("Rolling") == ("False", "Stalled")
    world.cluster()
    world.settle()
    assert world.api.most_down == 1


def test_a_scale_up_and_down_again_leaves_nothing_behind(world: KubernetesWorld) -> None:
    names = sorted(world.api.items)
    world.cluster(replicas=5)
    world.settle()
    assert ("ConfigMap", "demo-broker-4") in world.api.items
    world.cluster()
    world.settle()
    assert sorted(world.api.items) == names


def test_a_kept_volume_outlives_its_broker(world: KubernetesWorld) -> None:
    world.cluster(replicas=2, storage={"size": "1Gi", "deleteClaim": False})
    world.settle()
    assert ("PersistentVolumeClaim", "data-demo-brokers-2") in world.api.items
    assert ("ConfigMap", "demo-broker-2") not in world.api.items


def test_volumes_grow_and_the_set_is_made_anew_around_its_pods(world: KubernetesWorld) -> None:
    before = pods(world)
    uid = world.api.items["StatefulSet", "demo-brokers"]["metadata"]["uid"]
    world.cluster(storage={"size": "2Gi", "deleteClaim": True})
    for _ in range(3):
        world.step()
    world.settle()
    for broker in range(3):
        claim = world.api.items["PersistentVolumeClaim", f"data-demo-brokers-{broker}"]
        assert claim["spec"]["resources"]["requests"]["storage"] == "2Gi"
    assert world.api.items["StatefulSet", "demo-brokers"]["metadata"]["uid"] != uid
    assert pods(world) == before


def test_volumes_that_cannot_grow_are_said_and_the_rest_goes_on(world: KubernetesWorld) -> None:
    world.api.fail = lambda verb, kind, name: (
        Forbidden(403, "Forbidden", "the class must support resize")
        if (verb, kind) == ("patch", "PersistentVolumeClaim")
        else None
    )
    world.cluster(storage={"size": "2Gi", "deleteClaim": True})
    world.step()
    assert world.condition() == ("False", "VolumeNotGrown")
    assert world.condition("Available")[0] == "True"
    world.api.delete_one("Service", "demo-bootstrap")
    world.step()
    assert ("Service", "demo-bootstrap") in world.api.items


def test_a_deletion_leaves_nothing_but_what_was_there_before_us(world: KubernetesWorld) -> None:
    world.api.delete_one("BrokerCluster", "demo")
    world.until(lambda: ("BrokerCluster", "demo") not in world.api.items)
    world.api.tick()
    left = [key for key in world.api.items if key[0] != "PersistentVolumeClaim"]
    assert left == []
    assert all(name.startswith("data-demo-zookeeper") for name in world.api.names("PersistentVolumeClaim"))


def test_a_deletion_needs_nothing_created(world: KubernetesWorld) -> None:
    """A namespace that is being deleted takes nothing new."""
    world.api.fail = lambda verb, kind, name: (
        Forbidden(403, "Forbidden", "the namespace is being terminated")
        if verb in ("create", "apply")
        else None
    )
    world.api.delete_one("BrokerCluster", "demo")
    world.until(lambda: ("BrokerCluster", "demo") not in world.api.items)


@pytest.mark.parametrize("number", range(1, 24))
def test_an_operator_that_dies_at_any_write_of_a_roll_loses_nothing(number: int) -> None:
    world = KubernetesWorld()
    world.cluster()
    world.settle()
    world.api.most_down = 0
    count = 0

    def die(verb: str, kind: str, name: str) -> ApiError | None:
        nonlocal count
        writes = verb in ("apply", "patch", "delete")
        count += writes
        return ApiError(0, "Unreachable", "the operator is gone") if writes and count == number else None

    world.api.fail = die
    world.cluster(config={"queued.max.requests": 400}, replicas=4)
    world.settle()
    assert world.api.most_down == 1
    for broker in range(4):
        properties = world.api.items["ConfigMap", f"demo-broker-{broker}"]["data"]["server.properties"]
        assert "queued.max.requests=400" in properties


# ---- listeners for clients outside


def with_node_ports(world: KubernetesWorld) -> None:
    address = {"type": "InternalIP", "address": "10.0.0.1"}
    world.api.put("Node", "node-a", {"status": {"addresses": [address]}})
    world.cluster(
        listeners=[{"name": "plain", "port": 9092}, {"name": "ext", "port": 9094, "type": "nodeport"}]
    )


def give_node_ports(world: KubernetesWorld) -> None:
    for number, name in enumerate(world.api.names("Service")):
        spec = world.api.items["Service", name]["spec"]
        if spec.get("type") == "NodePort":
            spec["ports"][0].setdefault("nodePort", 30000 + number)


def test_a_broker_advertises_the_port_of_its_own_service(world: KubernetesWorld) -> None:
    with_node_ports(world)
    world.step()
    assert world.condition()[1] in ("AddressPending", "Rolling")
    give_node_ports(world)
    world.settle()
    config = world.api.items["ConfigMap", "demo-broker-1"]
    port = world.api.items["Service", "demo-broker-1-ext"]["spec"]["ports"][0]["nodePort"]
    assert f"EXT://10.0.0.1:{port}" in config["data"]["server.properties"]


def test_a_service_that_is_lost_comes_back_with_its_port(world: KubernetesWorld) -> None:
    with_node_ports(world)
    world.step()
    give_node_ports(world)
    world.settle()
    before, port = (
        pods(world),
        world.api.items["Service", "demo-broker-1-ext"]["spec"]["ports"][0]["nodePort"],
    )
    world.api.delete_one("Service", "demo-broker-1-ext")
    for _ in range(4):
        world.step()
    assert world.api.items["Service", "demo-broker-1-ext"]["spec"]["ports"][0]["nodePort"] == port
    assert pods(world) == before


def test_brokers_whose_address_has_changed_are_bounced_one_by_one(world: KubernetesWorld) -> None:
    with_node_ports(world)
    world.step()
    give_node_ports(world)
    world.settle()
    world.api.most_down = 0
    world.api.items["Node", "node-a"]["status"]["addresses"][0]["address"] = "10.0.0.9"
    world.step()
    world.settle()
    world.until(lambda: world.condition("ConfigApplied")[0] == "True")
    for broker in range(3):
        config = world.api.items["ConfigMap", f"demo-broker-{broker}"]
        assert "EXT://10.0.0.9:" in config["data"]["server.properties"]
    assert world.api.most_down == 1


def test_a_listener_that_is_taken_back_takes_its_services_along(world: KubernetesWorld) -> None:
    with_node_ports(world)
    world.step()
    give_node_ports(world)
    world.settle()
    world.cluster()
    world.settle()
    assert world.api.names("Service") == ["demo-bootstrap", "demo-brokers", "demo-zookeeper"]


def test_pods_are_told_the_rack_of_their_node(world: KubernetesWorld) -> None:
    world.api.put("Node", "node-a", {"metadata": {"labels": {"zone": "a"}}})
    for name in pods(world):
        world.api.items["Pod", name]["spec"]["nodeName"] = "node-a"
    world.cluster(rack={"topologyKey": "zone"})
    world.step()
    annotations = world.api.items["Pod", "demo-brokers-0"]["metadata"]["annotations"]
    assert annotations[naming.RACK_ANNOTATION] == "a"


def test_a_roll_takes_as_many_of_one_rack_as_it_may_and_never_two_racks() -> None:
    """Six brokers in three racks, two of a rack at a time: three times two, not six times one."""
    world = KubernetesWorld()
    for zone in "abc":
        world.api.put("Node", f"node-{zone}", {"metadata": {"labels": {"zone": zone}}})

    def zone_of(pod: str) -> str:
        return "abc"[int(pod.rpartition("-")[2]) % 3]

    world.api.node_of = lambda pod: f"node-{zone_of(pod)}" if pod.startswith("demo-brokers-") else None
    racked = {
        "replicas": 6,
        "rack": {"topologyKey": "zone"},
        "rollingUpdate": {"minReadySeconds": 0, "maxUnavailablePerRack": 2},
    }
    world.cluster(**racked)
    world.settle()
    before = pods(world)
    seen: list[set[str]] = []

    def over() -> bool:
        down = {name for name in before if not is_up(world, name)}
        if down and (not seen or down != seen[-1]):
            seen.append(down)
        return world.ready()

    world.cluster(**racked, config={"queued.max.requests": 400})
    world.step()
    world.until(over)
    assert all(pods(world)[name] != uid for name, uid in before.items())
    assert all(len({zone_of(name) for name in down}) == 1 for down in seen), seen
    assert max(len(down) for down in seen) == 2


def is_up(world: KubernetesWorld, pod: str) -> bool:
    return ("Pod", pod) in world.api.items and world.api.is_ready(world.api.items["Pod", pod])


# ---- what must not hang


def test_an_operator_without_rights_lets_go_of_what_is_being_deleted(world: KubernetesWorld) -> None:
    """As in a namespace that is being deleted, when its Role went first."""
    world.api.resource("Topic", "orders", {"clusterRef": {"name": "demo"}})
    world.step()
    world.api.delete_one("BrokerCluster", "demo")
    world.api.delete_one("Topic", "orders")
    world.api.fail = lambda verb, kind, name: (
        None if kind in KINDS else Forbidden(403, "Forbidden", "no rights are left")
    )
    world.until(lambda: not {"BrokerCluster", "Topic"} & {kind for kind, _ in world.api.items}, passes=3)


def test_an_operator_without_rights_keeps_a_topic_whose_cluster_stays(world: KubernetesWorld) -> None:
    world.api.resource("Topic", "orders", {"clusterRef": {"name": "demo"}})
    world.step()
    world.api.delete_one("Topic", "orders")
    world.api.fail = lambda verb, kind, name: (
        None if kind in KINDS else Forbidden(403, "Forbidden", "no rights are left")
    )
    world.step()
    assert ("Topic", "orders") in world.api.items
    world.api.now_ms += 61_000
    world.step()
    assert ("Topic", "orders") not in world.api.items


def test_a_resource_that_cannot_be_understood_can_be_deleted(world: KubernetesWorld) -> None:
    world.api.resource("Topic", "orders", {"clusterRef": {"name": "demo"}})
    world.step()
    world.api.items["Topic", "orders"]["spec"]["partitions"] = "many"
    world.api.delete_one("Topic", "orders")
    world.step()
    assert ("Topic", "orders") not in world.api.items


def test_an_invalid_spec_is_a_condition_and_changes_nothing(world: KubernetesWorld) -> None:
    before = pods(world)
    world.cluster(config={"num.io.threads": "many"})
    for _ in range(3):
        world.step()
    assert world.condition() == ("False", "InvalidSpec")
    assert world.condition("Available")[0] == "True"
    assert pods(world) == before
    world.cluster()
    world.settle()


def test_an_invalid_spec_is_said_once_for_each_generation(world: KubernetesWorld) -> None:
    def said() -> list[str]:
        return [message for key, reason, message, _ in world.said.events if reason == "InvalidSpec"]

    world.cluster(config={"num.io.threads": "many"})
    for _ in range(3):
        world.step()
    assert len(said()) == 1
    assert "num.io.threads" in said()[0]
    world.cluster(config={"num.io.threads": "more"})
    for _ in range(3):
        world.step()
    assert len(said()) == 2
    world.cluster()
    world.settle()
    world.cluster(config={"num.io.threads": "many"})
    world.step()
    assert len(said()) == 3


def test_a_paused_cluster_is_observed_only(world: KubernetesWorld) -> None:
    world.cluster(annotations={"pause_reconciliation": "true"})
    world.api.delete_one("Service", "demo-bootstrap")
    world.step()
    assert ("Service", "demo-bootstrap") not in world.api.items
    assert world.condition("ReconciliationPaused")[0] == "True"
    world.cluster()
    world.step()
    assert ("Service", "demo-bootstrap") in world.api.items


def test_a_status_is_not_written_over_a_newer_spec(world: KubernetesWorld) -> None:
    """Somebody changes the spec while a pass is under way."""
    changed = False

    def change(verb: str, kind: str, name: str) -> ApiError | None:
        nonlocal changed
        if (verb, kind) == ("list", "Pod") and not changed:
            changed = True
            world.cluster(replicas=4)
        return None

    world.cluster(config={"queued.max.requests": 400})
    world.api.fail = change
    world.step()
    assert changed
    assert world.status()["observedGeneration"] == 1
    world.settle()
    assert len(world.status()["brokers"]) == 4
