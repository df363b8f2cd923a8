"""The validating webhook on a real API server: what it says, and that nothing waits for it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.clusters import SYSTEM, Cluster
from tests.e2e.installing import ROOT
from tests.e2e.kube import Kube, wait_for

WRONG = {"retention.ms": "long"}
MISTAKE = "denied the request: spec.config[retention.ms]: Invalid value long for retention.ms"


def upgrade(kube: Kube, *values: str) -> None:
    sets = [part for value in values for part in ("--set", value)]
    chart = str(ROOT / "charts/ottla")
    kube.helm(
        *("upgrade", "ottla", chart, "-n", SYSTEM, "--reuse-values", "--wait", "--timeout", "3m", *sets)
    )


@pytest.fixture
def webhook(kube: Kube, operator: str, cluster: Cluster) -> Iterator[None]:
    """The webhook, served by two replicas."""
    upgrade(kube, "webhook.enabled=true", "replicas=2")
    if kube.has_node:
        _route_to_the_service(kube)
    wait_for("the webhook answers", lambda: "denied" in dry(kube, cluster, config=WRONG), 60)
    yield
    upgrade(kube, "webhook.enabled=false", "replicas=1")


def _route_to_the_service(kube: Kube) -> None:
    """kube.sh's API server runs beside the pods, on a node without a route to Services."""
    service = kube.get("service", "ottla-webhook", SYSTEM)
    assert service is not None
    device = kube.run_on_node("ip", "-o", "-4", "route").split("dev ")[1].split()[0]
    kube.run_on_node("ip", "route", "replace", service["spec"]["clusterIP"], "dev", device)


def dry(kube: Kube, cluster: Cluster, name: str = "tried", **spec: Any) -> str:
    """What `kubectl apply --dry-run=server` prints for a Topic, with errors and warnings."""
    topic = cluster.resource("Topic", name, {"clusterRef": {"name": cluster.name}, **spec})
    done = subprocess.run(
        kube.command("kubectl", ("apply", "--dry-run=server", "-f", "-")),
        input=json.dumps(topic),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr


def test_a_dry_run_tells_mistakes_and_warnings(kube: Kube, webhook: None, cluster: Cluster) -> None:
    assert MISTAKE in dry(kube, cluster, config=WRONG)
    assert MISTAKE in dry(kube, cluster, "events", config=WRONG)
    assert "Warning: ResourceConflict: Topic events is about topic events" in dry(
        kube, cluster, topicName="events"
    )
    waits = dry(kube, cluster, clusterRef={"name": "nowhere"})
    assert "Warning: spec.clusterRef.name: there is no BrokerCluster nowhere" in waits
    assert "created (server dry run)" in waits


def test_without_an_operator_everything_that_the_crds_accept_is_accepted(
    kube: Kube, webhook: None, cluster: Cluster
) -> None:
    kube.kubectl("scale", "deployment", "ottla", "-n", SYSTEM, "--replicas=0")
    selector = "app.kubernetes.io/name=ottla-operator"
    wait_for("no operator runs", lambda: not kube.list("pod", SYSTEM, selector), 60)
    assert "created (server dry run)" in dry(kube, cluster, config=WRONG)
    assert "reserved for internal topics" in dry(kube, cluster, topicName="__x")
    kube.kubectl("scale", "deployment", "ottla", "-n", SYSTEM, "--replicas=2")
    wait_for("the webhook answers again", lambda: MISTAKE in dry(kube, cluster, config=WRONG), 60)
