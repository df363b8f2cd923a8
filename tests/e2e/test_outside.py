"""Listeners for clients outside, and volumes that grow: one small cluster with all of it.

There is no provider of load balancers here, and no provisioner that makes a volume larger. The tests play the
provider: they write the Service's status as one would. Of growth they see all but the last step: claims are
grown, and the StatefulSet is made anew around its pods.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest

from tests.e2e.clusters import NAMESPACE, Cluster, cluster_spec
from tests.e2e.kube import Kube, Object, wait_for

_READY_S = 240
_CLASS = "ottla-e2e-growing"
_LB, _NODE_PORT = "demo-broker-0-balanced", "demo-broker-0-ported"
_LB_OF_BOOTSTRAP = "demo-bootstrap-balanced"

_ECHO = """
import sys
from confluent_kafka import Consumer, Producer
address, topic = sys.argv[1:]
producer = Producer({"bootstrap.servers": address, "message.timeout.ms": 60000})
producer.produce(topic, address.encode())
assert producer.flush(70) == 0
consumer = Consumer({"bootstrap.servers": address, "group.id": address, "auto.offset.reset": "earliest"})
consumer.subscribe([topic])
for _ in range(240):
    message = consumer.poll(0.25)
    if message is not None and message.error() is None and message.value() == address.encode():
        print("got it")
        break
consumer.close()
"""


@pytest.fixture(scope="module")
def outside(kube: Kube, operator: str) -> Iterator[Cluster]:
    """One broker, which nobody has given an address yet."""
    namespace = f"{NAMESPACE}-outside"
    kube.ensure_namespace(namespace)
    kube.apply(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": _CLASS},
            "provisioner": _provisioner(kube),
            "volumeBindingMode": "WaitForFirstConsumer",
            "allowVolumeExpansion": True,
        }
    )
    cluster = Cluster(kube, namespace, "demo")
    one = {"managed": {"replicas": 1, "storage": {"size": "64Mi", "deleteClaim": True}}}
    listeners = [
        {"name": "plain", "port": 9092},
        {"name": "balanced", "port": 9094, "type": "loadbalancer"},
        {"name": "ported", "port": 9095, "type": "nodeport"},
    ]
    storage = {"size": "64Mi", "class": _CLASS, "deleteClaim": True}
    cluster.create(
        cluster_spec(zookeeper=one, listeners=listeners, storage=storage)
        | {"replicas": 1, "config": {"offsets.topic.replication.factor": 1, "min.insync.replicas": 1}}
    )
    yield cluster
    kube.kubectl("delete", "namespace", namespace, "--wait=false")
    kube.kubectl("delete", "storageclass", _CLASS, "--ignore-not-found")


def _provisioner(kube: Kube) -> str:
    classes = json.loads(kube.kubectl("get", "storageclass", "-o", "json"))["items"]
    return str(classes[0]["provisioner"])


def _node_address(kube: Kube) -> str:
    node: Object = json.loads(kube.kubectl("get", "nodes", "-o", "json"))["items"][0]
    addresses = {entry["type"]: entry["address"] for entry in node["status"]["addresses"]}
    return str(addresses.get("ExternalIP") or addresses["InternalIP"])


def _provide(kube: Kube, cluster: Cluster, address: str) -> None:
    """What a provider of load balancers does."""
    status = {"status": {"loadBalancer": {"ingress": [{"ip": address}]}}}
    for service in (_LB, _LB_OF_BOOTSTRAP):
        kube.kubectl(
            *("patch", "service", service, "-n", cluster.namespace, "--subresource=status"),
            *("--type=merge", "-p", json.dumps(status)),
        )


def _assert_usable(kube: Kube, cluster: Cluster, address: str) -> None:
    """A client on the node, that is not in the pods' network, writes and reads."""
    if not kube.has_node:
        pytest.skip("needs OTTLA_KUBE: a client runs on its node")
    assert "got it" in kube.run_on_node(sys.executable, "-c", _ECHO, address, "echo", timeout_s=180)


def test_a_broker_waits_for_its_load_balancers_address_and_advertises_it(
    kube: Kube, outside: Cluster
) -> None:
    def waits() -> bool:
        ready = outside.condition("Ready")
        return ready.get("reason") == "AddressPending" and _LB in ready.get("message", "")

    wait_for("the status says what is waited for", waits, 120)
    assert not outside.brokers()
    _provide(kube, outside, _node_address(kube))
    print(f"address to Ready: {outside.wait_ready(_READY_S):.0f} s")
    outside.create_topic("echo", partitions=1, replicas=1)
    _assert_usable(kube, outside, f"{_node_address(kube)}:9094")


def test_a_node_port_leads_to_the_broker_and_is_kept_when_its_service_is_lost(
    kube: Kube, outside: Cluster
) -> None:
    outside.wait_ready(_READY_S)
    before = _node_port(kube, outside)
    assert before is not None
    _assert_usable(kube, outside, f"{_node_address(kube)}:{before}")
    pods = outside.brokers()
    kube.delete("service", _NODE_PORT, outside.namespace)
    wait_for("the Service is back", lambda: _node_port(kube, outside), 60)
    assert _node_port(kube, outside) == before
    outside.wait_ready(_READY_S)
    assert outside.brokers() == pods


def _node_port(kube: Kube, cluster: Cluster) -> int | None:
    service = kube.get("service", _NODE_PORT, cluster.namespace)
    return int(service["spec"]["ports"][0]["nodePort"]) if service is not None else None


def test_another_address_rolls_the_broker_so_that_it_advertises_it(kube: Kube, outside: Cluster) -> None:
    outside.wait_ready(_READY_S)
    before = outside.brokers()
    _provide(kube, outside, "192.0.2.7")
    wait_for("the pod is a new one", lambda: outside.brokers() and outside.brokers() != before, 120)
    wait_for("it says its new address", lambda: _advertises(outside, "192.0.2.7:9094"), 120)
    outside.wait_ready(_READY_S)


def _advertises(cluster: Cluster, address: str) -> bool:
    try:
        return address in cluster.in_pod("sh", "-c", "cat /etc/ottla/*/server.properties")
    except AssertionError:
        # Its pod is only starting.
        return False


def test_volumes_grow_around_pods_that_stay(kube: Kube, outside: Cluster) -> None:
    outside.wait_ready(_READY_S)
    pods = outside.brokers()
    old = kube.get("statefulset", "demo-brokers", outside.namespace)
    assert old is not None
    outside.patch({"storage": {"size": "96Mi"}})

    def grown() -> bool:
        claim = kube.get("pvc", "data-demo-brokers-0", outside.namespace) or {}
        new = kube.get("statefulset", "demo-brokers", outside.namespace)
        return (
            claim["spec"]["resources"]["requests"]["storage"] == "96Mi"
            and new is not None
            and new["metadata"]["uid"] != old["metadata"]["uid"]
            and "96Mi" in json.dumps(new["spec"]["volumeClaimTemplates"])
        )

    wait_for("the claim is grown and the set is made anew", grown, 120)
    outside.wait_ready(_READY_S)
    assert outside.brokers() == pods


def test_a_listener_that_is_taken_away_takes_its_services_along(kube: Kube, outside: Cluster) -> None:
    outside.wait_ready(_READY_S)
    outside.patch({"listeners": [{"name": "plain", "port": 9092}]})
    wait_for(
        "its Services are gone",
        lambda: (
            not any(
                kube.get("service", name, outside.namespace) for name in (_LB, _NODE_PORT, _LB_OF_BOOTSTRAP)
            )
        ),
        120,
    )
    outside.wait_ready(_READY_S)
