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
