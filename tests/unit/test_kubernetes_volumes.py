"""Lost and requested volumes of brokers on Kubernetes: detection and replacement."""

from __future__ import annotations

from typing import Any

import pytest

from ottla_operator.kubernetes.observing import volume_loss
from ottla_operator.planning.observed import VolumeLoss
from ottla_operator.resources.common import DELETE_VOLUME_ANNOTATION
from tests.worlds.kubernetes_simulation import KubernetesSimulation

CLAIM = "data-demo-brokers-1"
DELETED = {"deletionTimestamp": "2024-01-01T00:00:00Z"}


def pod(message: str = "", **annotations: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "message": message}
    return {
        "metadata": {"name": "demo-brokers-1", "annotations": annotations},
        "spec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": CLAIM}}]},
        "status": {"conditions": [condition] if message else []},
    }


def claim(phase: str = "Bound", metadata: dict[str, str] | None = None, **annotations: str) -> dict[str, Any]:
    return {
        "metadata": {"name": CLAIM, "annotations": annotations, **(metadata or {})},
        "status": {"phase": phase},
    }


ASKED, FORCED = {DELETE_VOLUME_ANNOTATION: "true"}, {DELETE_VOLUME_ANNOTATION: "force"}
CONFLICT = "had volume node affinity conflict"
PREEMPTION = "preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."


@pytest.mark.parametrize(
    ("seen", "its_claim", "kind"),
    [
        pytest.param(pod(), claim(), None, id="all is well"),
        pytest.param(pod(), None, "Gone", id="no claim"),
        pytest.param(None, None, None, id="neither pod nor claim: the set makes both"),
        pytest.param(pod(), claim("Lost"), "Gone", id="lost"),
        pytest.param(None, claim("Lost"), "Gone", id="lost, and no pod"),
        pytest.param(pod(), claim("Pending"), None, id="not bound yet"),
        pytest.param(pod(), claim("Bound", DELETED), "Requested", id="another client deletes the claim"),
        pytest.param(pod(**ASKED), claim(), "Requested", id="asked for at the pod"),
        pytest.param(pod(), claim("Bound", None, **ASKED), "Requested", id="asked for at the claim"),
        pytest.param(pod(**FORCED), claim(), "Forced", id="forced"),
        pytest.param(pod(**{DELETE_VOLUME_ANNOTATION: "false"}), claim(), None, id="annotation is false"),
        pytest.param(
            pod(f"0/2 nodes are available: 2 node(s) {CONFLICT}. {PREEMPTION}"),
            claim(),
            "Unreachable",
            id="the node is gone",
        ),
        pytest.param(
            pod(f"0/2 nodes are available: 1 node(s) were unschedulable, 1 node(s) {CONFLICT}. {PREEMPTION}"),
            claim(),
            None,
            id="the node is drained, and comes back",
        ),
        pytest.param(
            pod("0/1 nodes are available: 1 Insufficient memory."), claim(), None, id="another reason"
        ),
    ],
)
def test_the_loss_of_a_volume_is_read_from_pod_and_claim(
    seen: dict[str, Any] | None, its_claim: dict[str, Any] | None, kind: str | None
) -> None:
    loss = volume_loss(seen, its_claim, CLAIM)
    assert (loss.kind if loss else None) == kind


def test_a_pod_without_its_own_claim_has_no_volume_loss() -> None:
    bare = pod()
    bare["spec"]["volumes"] = [{"name": "data", "emptyDir": {}}]
    assert volume_loss(bare, None, CLAIM) is None


def test_force_takes_precedence() -> None:
    loss = volume_loss(pod(**FORCED), None, CLAIM)
    assert loss == VolumeLoss("Forced", "ottla.dev/delete-pod-and-pvc is force")


@pytest.fixture
def sim() -> KubernetesSimulation:
    sim = KubernetesSimulation()
    sim.apply_cluster()
    sim.reconcile_until_ready()
    sim.api.now_ms += 60_000
    sim.api.max_unavailable = 0
    return sim


def uids(sim: KubernetesSimulation) -> tuple[str, str]:
    items = sim.api.items
    pod, claim = items["Pod", "demo-brokers-1"], items["PersistentVolumeClaim", CLAIM]
    return pod["metadata"]["uid"], claim["metadata"]["uid"]


def is_replaced(sim: KubernetesSimulation, before: tuple[str, str]) -> bool:
    there = {("Pod", "demo-brokers-1"), ("PersistentVolumeClaim", CLAIM)} <= set(sim.api.items)
    return there and all(new != old for new, old in zip(uids(sim), before, strict=True))


@pytest.mark.parametrize("kind", ["Pod", "PersistentVolumeClaim"])
def test_an_annotation_replaces_pod_and_claim_once(sim: KubernetesSimulation, kind: str) -> None:
    before = uids(sim)
    name = "demo-brokers-1" if kind == "Pod" else CLAIM
    sim.api.items[kind, name]["metadata"].setdefault("annotations", {})[DELETE_VOLUME_ANNOTATION] = "true"
    sim.reconcile_until(lambda: is_replaced(sim, before) and sim.ready())
    after = uids(sim)
    for _ in range(40):
        sim.reconcile()
    assert uids(sim) == after
    assert sim.api.max_unavailable == 1
    assert any(reason == "ReplaceBroker" for _, reason, _, _ in sim.recorder.events)


def test_a_deleted_claim_replaces_its_pod(sim: KubernetesSimulation) -> None:
    before = uids(sim)
    sim.api.delete_resource("PersistentVolumeClaim", CLAIM)
    assert ("PersistentVolumeClaim", CLAIM) in sim.api.items, "it is in use"
    sim.reconcile_until(lambda: is_replaced(sim, before) and sim.ready())
    assert sim.api.max_unavailable == 1


@pytest.mark.parametrize("how", ["lost", "gone"])
def test_a_broker_with_a_lost_volume_recovers(sim: KubernetesSimulation, how: str) -> None:
    before = uids(sim)
    if how == "lost":
        sim.api.items["PersistentVolumeClaim", CLAIM]["status"] = {"phase": "Lost"}
    else:
        del sim.api.items["PersistentVolumeClaim", CLAIM]
    del sim.api.items["Pod", "demo-brokers-1"]["status"]
    sim.reconcile_until(lambda: is_replaced(sim, before) and sim.ready())
    assert sim.api.max_unavailable == 1


@pytest.mark.parametrize("number", range(1, 5))
def test_an_operator_killed_during_a_replacement_completes_it_later(
    sim: KubernetesSimulation, number: int
) -> None:
    before = uids(sim)
    sim.fail_write(number)
    claim = sim.api.items["PersistentVolumeClaim", CLAIM]
    claim["metadata"].setdefault("annotations", {})[DELETE_VOLUME_ANNOTATION] = "true"
    sim.reconcile_until(lambda: is_replaced(sim, before) and sim.ready())
    assert sim.api.max_unavailable == 1


# ---- several volumes


def volumes(*ids: int, **more: object) -> dict[str, object]:
    return {"volumes": [{"id": each, **({"size": "20Gi"} if each else {})} for each in ids], **more}


def settle(sim: KubernetesSimulation) -> None:
    for _ in range(80):
        if not sim.reconcile() and sim.ready():
            return
    raise AssertionError(f"not settled: {sim.reconcile()}, {sim.status()}")


def apply_pool(sim: KubernetesSimulation, name: str, replicas: int, **spec: object) -> None:
    whole = {"clusterRef": {"name": "demo"}, "replicas": replicas, **spec}
    sim.api.apply_resource("BrokerPool", name, whole)


def claims(sim: KubernetesSimulation, pod: str = "demo-brokers-0") -> dict[str, str]:
    """The sizes of a pod's claims."""
    return {
        name.removesuffix(f"-{pod}"): item["spec"]["resources"]["requests"]["storage"]
        for (kind, name), item in sim.api.items.items()
        if kind == "PersistentVolumeClaim" and name.endswith(f"-{pod}")
    }


def mounts(sim: KubernetesSimulation, pod: str = "demo-brokers-0") -> dict[str, str]:
    container = sim.api.items["Pod", pod]["spec"]["containers"][0]
    return {
        each["name"]: each["mountPath"]
        for each in container["volumeMounts"]
        if each["name"].startswith("data")
    }


def log_dirs(sim: KubernetesSimulation, broker: int = 0) -> str:
    text = sim.api.items["ConfigMap", f"demo-broker-{broker}"]["data"]["server.properties"]
    return str(next(line for line in text.splitlines() if line.startswith("log.dirs=")))


def test_a_volume_is_added_to_a_running_cluster(sim: KubernetesSimulation) -> None:
    before = {name: uid_of(sim, name) for name in ("data-demo-brokers-0", "data-demo-brokers-2")}
    sim.apply_cluster(storage=volumes(0, 3))
    settle(sim)
    for pod in ("demo-brokers-0", "demo-brokers-1", "demo-brokers-2"):
        assert claims(sim, pod) == {"data": "10Gi", "data-3": "20Gi"}
        assert mounts(sim, pod) == {"data": "/var/lib/ottla", "data-3": "/var/lib/ottla-volumes/3"}
    assert log_dirs(sim, 2) == "log.dirs=/var/lib/ottla/data,/var/lib/ottla-volumes/3/data-3"
    assert before == {name: uid_of(sim, name) for name in before}, "the data is kept"
    assert sim.api.max_unavailable == 1


def uid_of(sim: KubernetesSimulation, claim: str) -> str:
    return str(sim.api.items["PersistentVolumeClaim", claim]["metadata"]["uid"])


@pytest.mark.parametrize("delete_claim", [False, True])
def test_a_removed_volume_keeps_its_claim_unless_deleteclaim(
    sim: KubernetesSimulation, delete_claim: bool
) -> None:
    sim.apply_cluster(storage=volumes(0, 3, deleteClaim=delete_claim))
    settle(sim)
    sim.apply_cluster(storage=volumes(0, deleteClaim=delete_claim))
    settle(sim)
    assert mounts(sim) == {"data": "/var/lib/ottla"}
    assert log_dirs(sim) == "log.dirs=/var/lib/ottla/data"
    assert set(claims(sim)) == {"data"} | (set() if delete_claim else {"data-3"})


def test_each_volume_grows_by_itself(sim: KubernetesSimulation) -> None:
    sim.apply_cluster(storage=volumes(0, 3))
    settle(sim)
    pods = {pod: sim.api.items["Pod", pod]["metadata"]["uid"] for pod in ("demo-brokers-0", "demo-brokers-1")}
    sim.apply_cluster(storage={"volumes": [{"id": 0}, {"id": 3, "size": "30Gi"}]})
    settle(sim)
    assert claims(sim, "demo-brokers-1") == {"data": "10Gi", "data-3": "30Gi"}
    templates = sim.api.items["StatefulSet", "demo-brokers"]["spec"]["volumeClaimTemplates"]
    sizes = {each["metadata"]["name"]: each["spec"]["resources"]["requests"]["storage"] for each in templates}
    assert sizes == {"data": "10Gi", "data-3": "30Gi"}
    assert pods == {pod: sim.api.items["Pod", pod]["metadata"]["uid"] for pod in pods}, "without a restart"


def test_a_volume_that_cannot_change_is_named(sim: KubernetesSimulation) -> None:
    sim.apply_cluster(storage=volumes(0, 3))
    settle(sim)
    sim.apply_cluster(storage={"volumes": [{"id": 0}, {"id": 3, "size": "5Gi"}]})
    sim.reconcile_until(lambda: sim.condition("VolumesMatch") == ("False", "VolumesDiffer"))
    found = next(c for c in sim.status()["conditions"] if c["type"] == "VolumesMatch")
    message = "data-3-demo-brokers-0 has 20Gi, more than spec.storage.volumes[id=3].size 5Gi"
    assert message in found["message"]


def test_only_the_lost_volume_of_several_is_replaced(sim: KubernetesSimulation) -> None:
    sim.apply_cluster(storage=volumes(0, 3))
    settle(sim)
    sim.api.now_ms += 60_000
    kept, lost = (uid_of(sim, name) for name in ("data-demo-brokers-1", "data-3-demo-brokers-1"))
    sim.api.items["PersistentVolumeClaim", "data-3-demo-brokers-1"]["status"] = {"phase": "Lost"}
    claim = ("PersistentVolumeClaim", "data-3-demo-brokers-1")
    sim.reconcile_until(
        lambda: claim in sim.api.items and uid_of(sim, "data-3-demo-brokers-1") != lost and sim.ready()
    )
    assert uid_of(sim, "data-demo-brokers-1") == kept


def test_all_volumes_of_a_broker_of_a_pool_are_deleted_with_it(sim: KubernetesSimulation) -> None:
    apply_pool(sim, "large", 2, storage=volumes(1, 2, deleteClaim=True))
    settle(sim)
    assert set(claims(sim, "demo-broker-1001-0")) == {"data-1", "data-2"}
    assert mounts(sim, "demo-broker-1001-0") == {
        "data-1": "/var/lib/ottla-volumes/1",
        "data-2": "/var/lib/ottla-volumes/2",
    }
    assert log_dirs(sim, 1001).endswith("/1/data-1,/var/lib/ottla-volumes/2/data-2")
    apply_pool(sim, "large", 1, storage=volumes(1, 2, deleteClaim=True))
    settle(sim)
    assert claims(sim, "demo-broker-1001-0") == {}
    assert set(claims(sim, "demo-broker-1000-0")) == {"data-1", "data-2"}


def test_the_id_of_a_broker_that_left_volumes_is_not_given_to_another_pool(sim: KubernetesSimulation) -> None:
    apply_pool(sim, "large", 1, storage=volumes(2))
    settle(sim)
    sim.api.delete_resource("BrokerPool", "large")
    settle(sim)
    assert ("Pod", "demo-broker-1000-0") not in sim.api.items
    apply_pool(sim, "other", 1)
    settle(sim)
    assert ("Pod", "demo-broker-1001-0") in sim.api.items


@pytest.mark.parametrize("number", range(1, 9))
def test_an_operator_that_dies_while_a_volume_is_added_adds_it_later(
    sim: KubernetesSimulation, number: int
) -> None:
    sim.fail_write(number)
    sim.apply_cluster(storage=volumes(0, 3))
    settle(sim)
    for pod in ("demo-brokers-0", "demo-brokers-1", "demo-brokers-2"):
        assert set(claims(sim, pod)) == {"data", "data-3"}
        assert set(mounts(sim, pod)) == {"data", "data-3"}
    assert sim.api.max_unavailable == 1
