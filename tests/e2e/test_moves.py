"""Replicas moved because somebody asked for it, throttled; brokers given an empty volume; a new image."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import pytest

from tests.e2e.clients import Traffic
from tests.e2e.clusters import IMAGE, Cluster
from tests.e2e.conftest import Plugin
from tests.e2e.kube import CommandFailed, Kube, wait_for

_WAIT_S = 300
_RATE = 4 << 20


@pytest.fixture
def four(cluster: Cluster) -> Iterator[Cluster]:
    """Four brokers whose moves are throttled; three, and no throttle, afterwards."""
    cluster.patch({"rebalance": {"replicationThrottle": _RATE}, "replicas": 4})
    yield cluster
    cluster.annotate("ottla.dev/reassign", None)
    cluster.patch({"rebalance": None, "replicas": 3})
    cluster.wait_ready(_WAIT_S)


def test_brokers_are_drained_and_refilled_on_request(kube: Kube, four: Cluster, ottla: Plugin) -> None:
    four.wait_ready(_WAIT_S)
    wait_for("the new broker holds replicas", partial(four.holds_replicas, 3), _WAIT_S)
    four.wait_ready(_WAIT_S)
    kept = four.brokers()
    watch = partial(kube.watching, "brokercluster", four.name, four.namespace)
    with Traffic(four, "events") as traffic, watch(".status.throttle.rate") as throttles:
        said = ottla("reassign", "demo", "--empty", "1", "--wait")
        assert "Completed: broker 1 is empty" in said
        assert not four.holds_replicas(1)
        wait_for("the throttle is gone", lambda: throttles[-1] == "", 60)
        assert str(_RATE) in throttles
        # Kept so: nothing new lands on it.
        four.create_topic("elsewhere", partitions=4, replicas=3)
        assert not four.holds_replicas(1, "elsewhere")
        kube.delete("topic", "elsewhere", four.namespace)
        ottla("reassign", "demo", "--release")
        wait_for("it holds replicas again", partial(four.holds_replicas, 1), _WAIT_S)
        four.wait_ready(_WAIT_S)
        assert "Completed" in ottla("reassign", "demo", "--wait")
        traffic.wait_for_more(200)
        traffic.assert_lost_nothing(min_isr=3)
    assert four.brokers() == kept
    settings = four.in_pod(
        "ottla", "configs", "describe", "broker", "0", "-b", four.status["bootstrapServers"]
    )
    assert "throttled.rate" not in settings


def test_impossible_moves_are_refused_with_a_message(cluster: Cluster, ottla: Plugin) -> None:
    try:
        with pytest.raises(AssertionError, match="broker 7 does not exist"):
            ottla("reassign", "demo", "--empty", "7", "--wait")
    finally:
        ottla("reassign", "demo", "--release")
    cluster.wait_ready(_WAIT_S)


@pytest.mark.parametrize("how", ["claim", "annotation"])
def test_a_broker_is_given_an_empty_volume_and_fetches_everything_again(
    kube: Kube, cluster: Cluster, how: str
) -> None:
    pod, claim = "demo-brokers-1", "data-demo-brokers-1"
    before = cluster.brokers()
    old = kube.get("pvc", claim, cluster.namespace)
    assert old is not None
    with Traffic(cluster, "events") as traffic:
        if how == "claim":
            # It stays as long as the pod does; the operator sees to that.
            kube.delete("pvc", claim, cluster.namespace, "--wait=false")
        else:
            kube.kubectl(
                *("annotate", "pod", pod, "-n", cluster.namespace, "ottla.dev/delete-pod-and-pvc=true")
            )

        def replaced() -> bool:
            new = kube.get("pvc", claim, cluster.namespace)
            return new is not None and new["metadata"]["uid"] != old["metadata"]["uid"]

        wait_for("the claim is a new one", replaced, _WAIT_S)
        wait_for("the pod is a new one", lambda: cluster.brokers().get(pod, "") not in ("", before[pod]), 120)
        cluster.wait_ready(_WAIT_S)
        wait_for("all is in sync", cluster.is_in_sync, _WAIT_S)
        traffic.wait_for_more(200)
        traffic.assert_lost_nothing()
    after = cluster.brokers()
    assert [name for name in before if after[name] != before[name]] == [pod]
    assert "ReplaceBroker" in {event["reason"] for event in kube.list("event", cluster.namespace)}


def test_a_new_image_rolls_through_all_brokers_under_load(kube: Kube, cluster: Cluster) -> None:
    """The same one by another name: as an upgrade does it."""
    if not kube.has_node:
        pytest.skip("needs OTTLA_KUBE: a second name for the image")
    tags = kube.run_on_node("ctr", "-n", "k8s.io", "images", "ls", "-q").split()
    name = next(tag for tag in tags if tag.endswith("/ottla:dev")).removesuffix(":dev")
    kube.run_on_node("ctr", "-n", "k8s.io", "images", "tag", "--force", f"{name}:dev", f"{name}:next")
    before = cluster.brokers()
    try:
        with Traffic(cluster, "events") as traffic:
            cluster.patch({"image": IMAGE.replace(":dev", ":next")})
            cluster.wait_rolled(before, _WAIT_S)
            traffic.wait_for_more(200)
            traffic.assert_lost_nothing()
        images = json.dumps(kube.list("pod", cluster.namespace, "ottla.dev/component=broker"))
        assert "ottla:next" in images
    finally:
        cluster.patch({"image": None})
        cluster.wait_ready(_WAIT_S)


def test_a_version_that_is_not_served_is_refused_in_words(cluster: Cluster) -> None:
    with pytest.raises(CommandFailed, match=r"version must be one of .*3\.9"):
        cluster.patch({"version": "4.1"})
