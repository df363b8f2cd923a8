"""What is wrong in a spec: one that is invalid is a condition and the last valid one stays in force;
the rest are warnings."""

from __future__ import annotations

from typing import Any

import pytest

from ottla_operator.kubernetes.naming import FINALIZER
from ottla_operator.reconcile import is_ready
from tests.worlds.kubernetes_simulation import Item, KubernetesSimulation
from tests.worlds.operator_simulation import OperatorSimulation

INVALID = {"num.io.threads": "many"}


@pytest.fixture
def sim() -> KubernetesSimulation:
    sim = KubernetesSimulation()
    sim.apply_cluster()
    sim.reconcile_until_ready()
    return sim


def message_of(sim: KubernetesSimulation, kind: str = "BrokerCluster", name: str = "demo") -> str:
    return next(c["message"] for c in sim.status(kind, name)["conditions"] if c["type"] == "Ready")


def reconcile(sim: KubernetesSimulation, number: int = 4) -> None:
    for _ in range(number):
        sim.reconcile()


def group(sim: KubernetesSimulation, name: str = "readers", **spec: Any) -> None:
    sim.api.apply_resource("ConsumerGroup", name, {"clusterRef": {"name": "demo"}, **spec})


def test_children_are_repaired_and_the_rest_goes_on(sim: KubernetesSimulation) -> None:
    sim.apply_cluster(config=INVALID, replicas=5)
    sim.reconcile()
    assert sim.condition() == ("False", "InvalidSpec")
    assert message_of(sim).startswith("spec.config[num.io.threads]: 'many' is not allowed")
    assert message_of(sim).endswith("; the last valid spec stays in force")
    sim.api.delete_resource("Service", "demo-bootstrap")
    sim.api.delete_resource("Pod", "demo-brokers-1")
    group(sim)
    reconcile(sim)
    assert ("Service", "demo-bootstrap") in sim.api.items
    assert len(sim.status()["brokers"]) == 3, "nothing of the invalid spec is applied"
    assert sim.condition("Available")[0] == "True"
    assert sim.condition(kind="ConsumerGroup", name="readers")[0]


def test_a_roll_in_progress_is_completed(sim: KubernetesSimulation) -> None:
    sim.apply_cluster(config={"queued.max.requests": 400})
    sim.reconcile()
    sim.apply_cluster(config=INVALID)
    reconcile(sim, 30)
    assert sim.condition() == ("False", "InvalidSpec")
    for broker in range(3):
        data = sim.api.items["ConfigMap", f"demo-broker-{broker}"]["data"]
        assert "queued.max.requests=400" in data["server.properties"]


def test_a_spec_is_recorded_before_its_first_step(sim: KubernetesSimulation) -> None:
    """It is in force from then on, even if it is replaced before a reconciliation has ended."""
    replaced = False

    def replace_spec(verb: str, kind: str, name: str) -> None:
        nonlocal replaced
        if (verb, kind) == ("list", "Pod") and not replaced:
            replaced = True
            sim.apply_cluster(replicas=4, config=INVALID)

    sim.apply_cluster(replicas=4)
    sim.api.fail = replace_spec
    reconcile(sim)
    assert replaced
    assert len(sim.status()["brokers"]) == 4


def test_a_corrected_spec_is_applied(sim: KubernetesSimulation) -> None:
    sim.apply_cluster(config=INVALID)
    reconcile(sim)
    sim.apply_cluster(replicas=4)
    sim.reconcile_until_ready()
    assert len(sim.status()["brokers"]) == 4


def test_an_unchanged_invalid_spec_causes_no_writes(sim: KubernetesSimulation) -> None:
    sim.apply_cluster(config=INVALID)
    reconcile(sim)
    sim.api.calls.clear()
    result = sim.reconcile_once()
    assert sim.api.writes == []
    assert result.unready == ["BrokerCluster"]
    assert result.converged, "only an edit changes anything: there is nothing to poll"


def test_the_condition_says_when_the_last_valid_spec_is_not_ready_either(sim: KubernetesSimulation) -> None:
    sim.apply_cluster(config=INVALID)
    sim.api.unpullable_images.add("ottla:1")
    sim.api.delete_resource("Pod", "demo-brokers-1")
    reconcile(sim)
    assert "; the last valid spec stays in force, and is not Ready: " in message_of(sim)


def test_fields_that_an_older_operator_did_not_record_are_recorded(sim: KubernetesSimulation) -> None:
    status: Item = sim.api.items["BrokerCluster", "demo"]["status"]
    del status["lastValidSpec"]
    sim.reconcile()
    assert sim.status()["lastValidSpec"]["replicas"] == 3


def test_a_status_of_a_newer_operator_does_not_matter(sim: KubernetesSimulation) -> None:
    sim.api.items["BrokerCluster", "demo"]["status"]["inventions"] = [{"of": "tomorrow"}]
    sim.apply_cluster(replicas=4)
    sim.reconcile_until_ready()


def test_sidecars_and_names_that_only_kubernetes_refuses_keep_the_last_valid_spec(
    sim: KubernetesSimulation,
) -> None:
    sim.apply_cluster(template={"pod": {"spec": {"containers": [{"name": "x", "image": "y"}]}}})
    sim.api.delete_resource("Service", "demo-bootstrap")
    reconcile(sim)
    assert sim.condition() == ("False", "InvalidSpec")
    assert message_of(sim).startswith("spec.template.pod.spec.containers[0]: this operator does not allow")
    assert ("Service", "demo-bootstrap") in sim.api.items


@pytest.mark.parametrize("ports", [(9092, 9092), (9092, 9091)])
def test_listeners_have_ports_of_their_own(sim: KubernetesSimulation, ports: tuple[int, int]) -> None:
    sim.apply_cluster(listeners=[{"name": f"l{n}", "port": port} for n, port in enumerate(ports)])
    reconcile(sim)
    assert sim.condition() == ("False", "InvalidSpec")
    assert message_of(sim).startswith(f"spec.listeners[1].port: {ports[1]} is not allowed: ports must be")


def test_no_listener_has_the_name_of_the_metrics_port(sim: KubernetesSimulation) -> None:
    sim.apply_cluster(listeners=[{"name": "tcp-prometheus", "port": 9092}])
    reconcile(sim)
    assert message_of(sim).startswith("spec.listeners[0].name: 'tcp-prometheus' is not allowed")


def test_an_edit_of_a_resource_that_refers_to_the_cluster(sim: KubernetesSimulation) -> None:
    group(sim, maxLag=5)
    reconcile(sim)
    group(sim, maxLag="many")
    reconcile(sim)
    assert sim.condition(kind="ConsumerGroup", name="readers") == ("False", "InvalidSpec")
    assert message_of(sim, "ConsumerGroup", "readers").startswith("spec.maxLag: ")
    assert sim.status("ConsumerGroup", "readers")["lastValidSpec"]["maxLag"] == 5
    assert sim.ready()


def test_the_others_learn_that_a_cluster_never_had_a_valid_spec() -> None:
    sim = KubernetesSimulation()
    sim.apply_cluster(config=INVALID)
    group(sim)
    reconcile(sim)
    assert sim.condition() == ("False", "InvalidSpec")
    assert "stays in force" not in message_of(sim)
    assert sim.condition(kind="ConsumerGroup", name="readers") == ("False", "ClusterNotFound")
    assert "invalid spec" in message_of(sim, "ConsumerGroup", "readers")
    assert not sim.api.names("StatefulSet")
    sim.apply_cluster()
    sim.reconcile_until_ready()


def test_a_deletion_follows_what_is_valid_in_the_newest_spec(sim: KubernetesSimulation) -> None:
    """A topic that shall be retained is, though its settings are wrong."""
    topic = {"clusterRef": {"name": "demo"}, "reclaimPolicy": "Delete"}
    sim.api.apply_resource("Topic", "orders", topic)
    sim.api.items["Topic", "orders"]["metadata"]["finalizers"] = [FINALIZER]
    sim.api.items["Topic", "orders"]["status"] = {"lastValidSpec": topic}
    changed = {**topic, "reclaimPolicy": "Retain", "config": {"retention.ms": "never"}}
    sim.api.apply_resource("Topic", "orders", changed)
    sim.api.delete_resource("Topic", "orders")
    sim.reconcile()
    assert ("Topic", "orders") not in sim.api.items


def test_a_topic_with_a_wrong_edit_is_looked_after_and_says_so() -> None:
    """On every platform: what the store refuses is reported by the reconciler, beside what it does."""
    sim = OperatorSimulation()
    sim.apply_cluster()
    sim.apply_topic("orders")
    sim.reconcile_until_ready()
    stored = sim.store.stored
    stored["Topic/orders"] = stored["Topic/orders"].in_force_despite(["orders.yaml: spec.partitions: 'x'"])
    for _ in range(3):
        sim.reconcile()
    ready = stored["Topic/orders"].status.conditions[0]
    assert (ready.status, ready.reason) == ("False", "InvalidSpec")
    assert ready.message == "orders.yaml: spec.partitions: 'x'; the last valid spec stays in force"
    assert "orders" in sim.cluster.topics
    assert is_ready(stored["BrokerCluster/demo"])
    stored["Topic/orders"] = stored["Topic/orders"].in_force_despite([])
    sim.reconcile()
    assert is_ready(stored["Topic/orders"])


# ---- storage


def test_a_storage_class_that_does_not_exist_is_reported(sim: KubernetesSimulation) -> None:
    """Existing brokers do not need it; the next one would wait for its volume for ever."""
    sim.api.missing_classes.add("fsat")
    storage = {"size": "1Gi", "deleteClaim": True, "class": "fsat"}
    sim.apply_cluster(storage=storage)
    reconcile(sim)
    assert sim.condition() == ("False", "StorageClassNotFound")
    assert message_of(sim).startswith("spec.storage.class: there is no StorageClass fsat; existing: ")
    assert sim.condition("Available")[0] == "True"
    sim.apply_cluster(storage={**storage, "class": "fast"})
    sim.reconcile_until_ready()


def test_a_class_of_volumes_that_were_created_by_hand_need_not_exist(sim: KubernetesSimulation) -> None:
    sim.api.missing_classes.add("manual")
    for name in sim.api.names("PersistentVolumeClaim"):
        claim = sim.api.items["PersistentVolumeClaim", name]
        claim["status"] = {"phase": "Bound"}
        claim["spec"]["storageClassName"] = "manual"
    sim.apply_cluster(storage={"size": "1Gi", "deleteClaim": True, "class": "manual"})
    sim.reconcile_until_ready()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone", "PersistentVolumeClaim data-demo-brokers-1: there is no StorageClass gone; existing: none"),
        (None, "PersistentVolumeClaim data-demo-brokers-1: it names no StorageClass, and the Kubernetes"),
    ],
)
def test_a_claim_that_waits_for_a_class_is_reported(
    sim: KubernetesSimulation, name: str | None, message: str
) -> None:
    sim.api.missing_classes.add("gone")
    claim = sim.api.items["PersistentVolumeClaim", "data-demo-brokers-1"]
    claim["status"] = {"phase": "Pending"}
    claim["spec"]["storageClassName"] = name
    sim.reconcile()
    assert sim.condition() == ("False", "StorageClassNotFound")
    assert message_of(sim).startswith(message)


# ---- warnings


def events(sim: KubernetesSimulation, reason: str) -> list[str]:
    return [message for _, found, message, _ in sim.recorder.events if found == reason]


def test_a_warning_is_in_the_status_and_an_event_when_it_appears(sim: KubernetesSimulation) -> None:
    sim.apply_cluster(config={"num.partitons": 3})  # codespell:ignore partitons
    sim.reconcile_until_ready()
    (warning,) = sim.status()["warnings"]
    assert "did you mean num.partitions?" in warning
    reconcile(sim)
    assert events(sim, "SpecWarning") == [warning]
    sim.apply_cluster()
    sim.reconcile_until_ready()
    assert not sim.status().get("warnings")


def test_a_topic_below_the_min_isr_of_the_cluster_has_a_warning() -> None:
    sim = OperatorSimulation()
    sim.apply_cluster(config={"min.insync.replicas": "2"})
    sim.apply_topic("one", replicas=1)
    sim.apply_topic("three", replicas=3)
    sim.reconcile_until_ready()
    stored = sim.store.stored
    (warning,) = stored["Topic/one"].status.warnings
    assert warning.startswith(
        "the cluster's min.insync.replicas is 2, and the topic has 1 replicas: no write"
    )
    assert not stored["Topic/three"].status.warnings
    assert not stored["BrokerCluster/demo"].status.warnings
    sim.apply_topic("one", replicas=2)
    sim.reconcile_until_ready()
    assert not stored["Topic/one"].status.warnings
