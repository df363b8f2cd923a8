"""After an upgrade of the operator, its clusters roll one after the other; rolls of changed resources do not
wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ottla_operator.kubernetes.roll_gate import RollQueue
from ottla_operator.planning.holds import Due
from tests.worlds.kubernetes_simulation import NAMESPACE, InMemoryApi, KubernetesSimulation

pytestmark = pytest.mark.budget(4)  # rolls of three clusters on the fake API server

NAMES = ("alpha", "beta", "gamma")
NEW_IMAGE = "ottla:2"


class Fleet:
    """Three clusters of one operator."""

    def __init__(self, clusters_max: int = 1) -> None:
        self.api = InMemoryApi()
        self.clusters_max = clusters_max
        self.woken: list[str] = []
        self.clusters: dict[str, KubernetesSimulation] = {}
        self.start_operator("ottla:1")
        for sim in self.clusters.values():
            sim.apply_cluster()
        self.run_until(lambda: all(sim.ready() for sim in self.clusters.values()))

    def start_operator(self, image: str, expected: tuple[str, ...] = NAMES) -> None:
        """A new process of the operator, with this image for brokers and ZooKeeper."""
        self.queue = RollQueue(self.clusters_max, lambda key: self.woken.append(key[1]))
        self.queue.expect((NAMESPACE, name) for name in expected)
        for name in NAMES:
            sim = KubernetesSimulation(name, self.api, self.queue.gate_of((NAMESPACE, name)))
            sim.images = replace(sim.images, broker=image, zookeeper=image)
            self.clusters[name] = sim

    def reconcile(self, *names: str) -> None:
        for name in names or NAMES:
            self.clusters[name].reconcile_once()
            self.queue.observed((NAMESPACE, name))
        self.api.tick()

    def run_until(self, condition: Any, reconciles_max: int = 300) -> None:
        for _ in range(reconciles_max):
            if condition():
                return
            self.reconcile(*reversed(NAMES))
        raise AssertionError({name: self.rolling(name) for name in NAMES})

    def rolling(self, name: str) -> tuple[str, str]:
        return self.clusters[name].condition("Rolling")

    def message(self, name: str) -> str:
        conditions = self.clusters[name].status()["conditions"]
        return next(str(c["message"]) for c in conditions if c["type"] == "Rolling")

    def new_pods(self, name: str, component: str = "") -> int:
        """How many pods of the cluster have the new image."""
        return sum(
            item["spec"]["containers"][0]["image"] == NEW_IMAGE
            for (kind, pod), item in self.api.items.items()
            if kind == "Pod" and pod.startswith(f"{name}-{component}")
        )

    def begun(self) -> list[str]:
        return [name for name in NAMES if self.new_pods(name)]

    def is_new(self, name: str) -> bool:
        cluster = self.clusters[name]
        return (
            self.new_pods(name) == 6 and cluster.condition("ConfigApplied")[0] == "True" and cluster.ready()
        )


def test_clusters_roll_one_after_the_other_by_name() -> None:
    fleet = Fleet()
    fleet.start_operator(NEW_IMAGE)
    seen: list[list[str]] = []
    for _ in range(400):
        fleet.reconcile(*reversed(NAMES))
        begun = fleet.begun()
        if not seen or seen[-1] != begun:
            seen.append(begun)
            for name in begun[:-1]:
                assert fleet.is_new(name), f"{name} is not complete, and {begun[-1]} has begun"
        if all(fleet.is_new(name) for name in NAMES):
            break
    assert [each for each in seen if each] == [["alpha"], ["alpha", "beta"], ["alpha", "beta", "gamma"]]
    assert "gamma" in fleet.woken, "a cluster that waits is reconciled when it may roll"


def test_clusters_that_wait_say_for_whom_and_stay_ready() -> None:
    fleet = Fleet()
    fleet.start_operator(NEW_IMAGE)
    fleet.run_until(lambda: fleet.new_pods("alpha") > 0)
    fleet.reconcile()
    assert fleet.rolling("alpha") == ("True", "Rolling")
    assert fleet.rolling("gamma") == ("False", "WaitingForOtherClusters")
    assert fleet.clusters["gamma"].condition()[0] == "True"
    waits = "broker 0 waits for clusters shop/alpha, shop/beta, which roll first"
    assert fleet.message("gamma") == f"0 of 3 brokers are updated; {waits}"
    waiting = [server["waitingFor"] for server in fleet.clusters["gamma"].status()["zookeeper"]["servers"]]
    assert waiting == ["clusters shop/alpha, shop/beta, which roll first"] * 3
    assert fleet.clusters["gamma"].status()["rollout"]["cause"] == "Operator"


def test_two_clusters_roll_at_the_same_time_where_that_is_allowed() -> None:
    fleet = Fleet(clusters_max=2)
    fleet.start_operator(NEW_IMAGE)
    fleet.run_until(lambda: len(fleet.begun()) == 2)
    assert fleet.begun() == ["alpha", "beta"]
    assert fleet.rolling("gamma") == ("False", "WaitingForOtherClusters")


def test_without_a_limit_all_roll() -> None:
    fleet = Fleet(clusters_max=0)
    fleet.start_operator(NEW_IMAGE)
    fleet.run_until(lambda: fleet.begun() == list(NAMES), 20)


def test_a_roll_that_has_stopped_keeps_the_others_from_beginning() -> None:
    fleet = Fleet()
    fleet.api.unpullable_images.add(NEW_IMAGE)
    fleet.start_operator(NEW_IMAGE)
    fleet.run_until(lambda: fleet.rolling("alpha") == ("False", "Stalled"))
    for _ in range(30):
        fleet.reconcile()
    assert fleet.begun() == ["alpha"]
    assert "shop/alpha has stopped: " in fleet.message("beta")
    assert "cannot be pulled" in fleet.message("beta")


def test_a_last_broker_that_does_not_start_keeps_the_others_from_beginning() -> None:
    fleet = Fleet()
    fleet.start_operator(NEW_IMAGE)
    fleet.run_until(lambda: fleet.new_pods("alpha") == 5)
    fleet.api.tick()  # the fifth starts
    fleet.api.unpullable_images.add(NEW_IMAGE)
    for _ in range(12):
        fleet.reconcile()
    assert (fleet.new_pods("alpha"), fleet.begun()) == (6, ["alpha"])
    assert "shop/alpha" in fleet.message("beta")
    fleet.api.unpullable_images.clear()
    for (kind, name), item in fleet.api.items.items():
        if kind == "Pod" and name.startswith("alpha"):
            item["status"] = {}  # the kubelet pulls the image
    fleet.run_until(lambda: fleet.new_pods("beta") > 0, 20)


def test_a_roll_of_a_changed_resource_does_not_wait() -> None:
    fleet = Fleet()
    fleet.api.unpullable_images.add(NEW_IMAGE)
    fleet.start_operator(NEW_IMAGE)
    fleet.run_until(lambda: fleet.rolling("alpha") == ("False", "Stalled"))
    fleet.clusters["gamma"].apply_cluster(image="own:1", config={"queued.max.requests": 77})
    fleet.run_until(lambda: fleet.clusters["gamma"].status()["rollout"]["cause"] == "Spec")
    fleet.run_until(lambda: "rollout" not in fleet.clusters["gamma"].status())
    assert fleet.rolling("beta") == ("False", "WaitingForOtherClusters")


def test_the_next_operator_lets_in_the_cluster_that_has_begun() -> None:
    fleet = Fleet()
    fleet.start_operator(NEW_IMAGE, expected=("gamma",))
    while not fleet.new_pods("gamma", "brokers"):
        fleet.reconcile("gamma")
    fleet.start_operator(NEW_IMAGE)
    fleet.reconcile("beta", "alpha")
    assert fleet.message("alpha").endswith("waits for cluster shop/gamma to be observed")
    while not fleet.is_new("gamma"):
        assert fleet.begun() == ["gamma"]
        fleet.reconcile("alpha", "beta", "gamma")


def test_a_requested_restart_does_not_wait() -> None:
    fleet = Fleet()
    fleet.start_operator(NEW_IMAGE)
    fleet.run_until(lambda: fleet.new_pods("alpha") > 0)
    fleet.clusters["gamma"].apply_cluster(annotations={"restart_requested_at": "now"})
    fleet.run_until(lambda: fleet.new_pods("gamma", "brokers") == 3)


def queue(clusters_max: int = 1, *names: str) -> RollQueue:
    made = RollQueue(clusters_max, lambda key: None)
    made.expect((NAMESPACE, name) for name in names)
    for name in names:
        made.observed((NAMESPACE, name))
    return made


DUE, STARTING = Due(brokers="Operator"), Due(starting=True)


def test_none_is_let_in_before_it_is_known_which_clusters_there_are() -> None:
    rolls = RollQueue(1, lambda key: None)
    hold = rolls.ask((NAMESPACE, "alpha"), DUE)
    assert hold is not None
    assert hold.message == "all clusters to be observed"
    rolls.expect([(NAMESPACE, "alpha")])
    assert rolls.ask((NAMESPACE, "alpha"), DUE) is None


@pytest.mark.parametrize("leaves", [True, False])
def test_the_next_cluster_is_let_in_when_one_is_complete_or_gone(leaves: bool) -> None:
    rolls = queue(1, "alpha", "beta")
    alpha, beta = (NAMESPACE, "alpha"), (NAMESPACE, "beta")
    assert rolls.ask(alpha, DUE) is None
    assert rolls.ask(beta, DUE) is not None
    assert rolls.ask(alpha, DUE) is None, "it stays until it is complete"
    if leaves:
        rolls.forget(alpha)
    else:
        rolls.ask(alpha, None)
    assert rolls.ask(beta, DUE) is None


def test_a_cluster_stays_until_its_last_broker_is_ready() -> None:
    rolls = queue(1, "alpha", "beta")
    alpha, beta = (NAMESPACE, "alpha"), (NAMESPACE, "beta")
    assert rolls.ask(beta, STARTING) is None, "no roll is due"
    assert rolls.ask(alpha, DUE) is None
    assert rolls.ask(alpha, STARTING) is None
    assert rolls.ask(beta, DUE) is not None
    rolls.ask(alpha, Due())
    assert rolls.ask(beta, DUE) is None
