"""Scaling through the resource, by `kubectl scale`, under load: replicas move first, nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.e2e.clients import Traffic
from tests.e2e.clusters import Cluster
from tests.e2e.kills import KilledAtEachStep
from tests.e2e.kube import Kube, wait_for

_SCALE_S = 300


@pytest.fixture
def scaled(cluster: Cluster) -> Iterator[Cluster]:
    """Three brokers again afterwards."""
    yield cluster
    cluster.scale(3)
    cluster.wait_ready(_SCALE_S)


def test_up_to_four_and_down_to_three_under_load(kube: Kube, scaled: Cluster) -> None:
    kept = scaled.brokers()
    with Traffic(scaled, "events") as traffic:
        scaled.scale(4)
        print(f"up to four: {scaled.wait_ready(_SCALE_S):.0f} s")
        wait_for("the new broker holds replicas", partial(scaled.holds_replicas, 3), 120)
        traffic.wait_for_more(200)
        scaled.scale(3)
        print(f"down to three: {scaled.wait_ready(_SCALE_S):.0f} s")
        traffic.wait_for_more(200)
        traffic.assert_lost_nothing()
    assert not scaled.holds_replicas(3)
    assert scaled.brokers() == kept
    claims = {item["metadata"]["name"] for item in kube.list("pvc", scaled.namespace)}
    assert "data-demo-brokers-3" not in claims


def test_the_operator_killed_at_each_step_of_scaling_up_and_down(kube: Kube, scaled: Cluster) -> None:
    def step() -> object:
        move = scaled.status.get("reassignment") or {}
        scaling = scaled.condition("Scaling").get("reason")
        return [scaled.stages().get("demo-brokers-3"), scaling, move.get("moved"), move.get("total")]

    with Traffic(scaled, "events") as traffic:
        with KilledAtEachStep(kube, step) as up:
            scaled.scale(4)
            scaled.wait_ready(_SCALE_S)
            wait_for("the new broker holds replicas", partial(scaled.holds_replicas, 3), 120)
            scaled.wait_ready(_SCALE_S)
        assert up.at
        with KilledAtEachStep(kube, step) as down:
            scaled.scale(3)
            scaled.wait_ready(_SCALE_S)
        assert down.at
        traffic.wait_for_more(200)
        traffic.assert_lost_nothing()
    assert len(scaled.brokers()) == 3
    assert not scaled.holds_replicas(3)


def test_scaling_down_below_the_replication_factor_is_refused_in_words(scaled: Cluster) -> None:
    before = scaled.brokers()
    scaled.scale(2)

    def explained() -> bool:
        ready = scaled.condition("Ready")
        return ready.get("status") == "False" and "2" in ready.get("message", "")

    wait_for("the status says why it cannot", explained, 60)
    assert scaled.brokers() == before
