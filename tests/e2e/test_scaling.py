"""Scaling through the resource, by `kubectl scale`, under load: replicas move first, nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.e2e.clients import Traffic
from tests.e2e.clusters import Cluster
from tests.e2e.conftest import kill_operator
from tests.e2e.kube import Kube, wait_for

_SCALE_S = 300


@pytest.fixture
def scaled(cluster: Cluster) -> Iterator[Cluster]:
    """Three brokers again afterwards."""
    yield cluster
    cluster.scale(3)
    cluster.wait_ready(_SCALE_S)


def _holds_replicas(cluster: Cluster, broker: int) -> bool:
    address = cluster.status["bootstrapServers"]
    text = cluster.in_pod("ottla", "topics", "describe", "events", "-b", address, "-o", "json")
    return broker in _replicas(json.loads(text))


def _replicas(described: object) -> set[int]:
    """Whatever stands under `replicas`, at any depth."""
    if isinstance(described, dict):
        here = described.get("replicas")
        own = set(here) if isinstance(here, list) else set()
        return own.union(*(_replicas(inner) for inner in described.values()))
    if isinstance(described, list):
        return set().union(*(_replicas(inner) for inner in described))
    return set()


def test_up_to_four_and_down_to_three_under_load(kube: Kube, scaled: Cluster) -> None:
    kept = scaled.brokers()
    with Traffic(scaled, "events") as traffic:
        scaled.scale(4)
        print(f"up to four: {scaled.wait_ready(_SCALE_S):.0f} s")
        wait_for("the new broker holds replicas", lambda: _holds_replicas(scaled, 3), 120)
        traffic.wait_for_more(200)
        scaled.scale(3)
        print(f"down to three: {scaled.wait_ready(_SCALE_S):.0f} s")
        traffic.wait_for_more(200)
        traffic.assert_lost_nothing()
    assert not _holds_replicas(scaled, 3)
    assert scaled.brokers() == kept
    claims = {item["metadata"]["name"] for item in kube.list("pvc", scaled.namespace)}
    assert "data-demo-brokers-3" not in claims


def test_the_operator_killed_while_it_scales_up_and_while_it_drains(kube: Kube, scaled: Cluster) -> None:
    with Traffic(scaled, "events") as traffic:
        scaled.scale(4)
        wait_for("the new pod is there", lambda: len(scaled.brokers()) == 4, 60, poll_s=0.2)
        kill_operator(kube)
        scaled.wait_ready(_SCALE_S)
        wait_for("the new broker holds replicas", lambda: _holds_replicas(scaled, 3), 120)
        scaled.scale(3)
        wait_for("the drain begins", lambda: scaled.status.get("reassignment"), 60, poll_s=0.2)
        kill_operator(kube)
        scaled.wait_ready(_SCALE_S)
        traffic.wait_for_more(200)
        traffic.assert_lost_nothing()
    assert len(scaled.brokers()) == 3


def test_scaling_down_below_the_replication_factor_is_refused_in_words(scaled: Cluster) -> None:
    before = scaled.brokers()
    scaled.scale(2)

    def explained() -> bool:
        ready = scaled.condition("Ready")
        return ready.get("status") == "False" and "2" in ready.get("message", "")

    wait_for("the status says why it cannot", explained, 60)
    assert scaled.brokers() == before
