"""Resources without an operator: their status says so, and their deletion waits for nobody."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ottla_operator.kubernetes.api import ApiError, Conflict, Forbidden
from ottla_operator.kubernetes.controller import Controller
from ottla_operator.kubernetes.manifests_common import Images
from ottla_operator.kubernetes.metrics import Metrics
from ottla_operator.kubernetes.naming import FINALIZER
from ottla_operator.kubernetes.release import release_all, release_unwatched
from tests.worlds.clocks import run_in_virtual_time
from tests.worlds.kubernetes_simulation import NAMESPACE, Item, KubernetesSimulation

OPERATOR = "system/ottla"


@pytest.fixture
def sim() -> KubernetesSimulation:
    """A Ready cluster and a User, which has a finalizer."""
    sim = KubernetesSimulation()
    sim.images = replace(sim.images, operator=OPERATOR)
    sim.apply_cluster()
    sim.api.apply_resource("User", "app", {"clusterRef": {"name": "demo"}})
    sim.reconcile_until_ready()
    sim.reconcile()
    return sim


def release(sim: KubernetesSimulation, operator: str = OPERATOR, *namespaces: str) -> int:
    return asyncio.run(release_all(sim.api, operator, namespaces, lambda: sim.api.now_ms))


def unwatch(sim: KubernetesSimulation, *namespaces: str) -> int:
    return asyncio.run(release_unwatched(sim.api, OPERATOR, namespaces, lambda: sim.api.now_ms))


def user(sim: KubernetesSimulation) -> Item:
    return sim.api.items["User", "app"]


def test_a_status_names_its_operator(sim: KubernetesSimulation) -> None:
    assert sim.status()["operator"] == OPERATOR
    assert sim.status("User", "app")["operator"] == OPERATOR


def test_an_uninstalled_operator_leaves_no_finalizer_and_no_claim(sim: KubernetesSimulation) -> None:
    assert user(sim)["metadata"]["finalizers"] == [FINALIZER]
    assert release(sim) == 2
    assert user(sim)["metadata"]["finalizers"] == []
    for kind, name in (("BrokerCluster", "demo"), ("User", "app")):
        assert sim.condition(kind=kind, name=name) == ("Unknown", "NotWatched")
        assert {c["status"] for c in sim.status(kind, name)["conditions"]} == {"Unknown"}
    assert "was uninstalled" in sim.status()["conditions"][0]["message"]
    assert sim.status()["lastValidSpec"], "for the next operator"
    sim.api.delete_resource("User", "app")
    assert ("User", "app") not in sim.api.items


def test_the_next_operator_takes_over(sim: KubernetesSimulation) -> None:
    release(sim)
    sim.images = replace(sim.images, operator="system/other")
    sim.reconcile_until_ready()
    assert sim.status()["operator"] == "system/other"
    sim.reconcile()
    assert user(sim)["metadata"]["finalizers"] == [FINALIZER]
    assert sim.condition(kind="User", name="app")[0] == "True"


def test_resources_of_another_operator_stay_as_they_are(sim: KubernetesSimulation) -> None:
    assert release(sim, "elsewhere/ottla") == 0
    assert release(sim, OPERATOR, "other-namespace") == 0
    assert sim.ready()


def test_a_resource_that_is_being_deleted_goes(sim: KubernetesSimulation) -> None:
    sim.api.delete_resource("User", "app")
    assert ("User", "app") in sim.api.items
    release(sim)
    assert ("User", "app") not in sim.api.items


def test_a_concurrent_change_is_no_obstacle(sim: KubernetesSimulation) -> None:
    changed: set[str] = set()

    def change(verb: str, kind: str, name: str) -> ApiError | None:
        if verb != "patch" or name in changed:
            return None
        changed.add(name)
        return Conflict(409, "Conflict", "modified")

    sim.api.fail = change
    release(sim)
    assert changed == {"demo", "app"}
    assert user(sim)["metadata"]["finalizers"] == []
    assert sim.condition()[0] == "Unknown"


def test_a_namespace_that_is_no_longer_watched(sim: KubernetesSimulation) -> None:
    assert unwatch(sim, NAMESPACE) == 0
    assert sim.ready()
    assert unwatch(sim, "other") == 2
    assert sim.condition() == ("Unknown", "NotWatched")
    assert sim.status()["conditions"][0]["message"].endswith("no longer watches this namespace")
    assert unwatch(sim, "other") == 0, "once"


@pytest.mark.parametrize("forbidden", [False, True])
def test_the_operator_releases_what_it_no_longer_watches_at_its_start(
    sim: KubernetesSimulation, forbidden: bool
) -> None:
    failures = [Forbidden(403, "Forbidden", "no")] if forbidden else [ApiError(0, "Unreachable", "away")]

    def fail(verb: str, kind: str, name: str) -> ApiError | None:
        return failures.pop() if failures and verb == "list" else None

    async def scenario() -> None:
        images = Images(operator=OPERATOR)
        controller = Controller(sim.api, images, Metrics(), lambda: sim.api.now_ms, 30, ["other"])
        controller.enqueue = lambda namespace, cluster: None  # type: ignore[method-assign]
        stopping = asyncio.Event()
        running = asyncio.ensure_future(controller.run(stopping))
        await asyncio.sleep(100)
        stopping.set()
        await running

    sim.api.fail = fail
    run_in_virtual_time(scenario())
    assert not failures
    assert sim.condition()[0] == ("True" if forbidden else "Unknown")
