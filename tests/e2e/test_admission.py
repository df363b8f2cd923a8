"""The validating webhook on a real API server: what it says, and that nothing waits for it."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla_operator.resources.common import PAUSE_ANNOTATION
from tests.e2e.cert_manager import cert_manager
from tests.e2e.clusters import NAMESPACE, SYSTEM, Cluster
from tests.e2e.installing import ROOT
from tests.e2e.kube import Kube, Object, wait_for

WRONG = {"retention.ms": "long"}
FAIL_OPEN = "apiserver_admission_webhook_fail_open_count"
MISTAKE = "denied the request: spec.config[retention.ms]: Invalid value long for retention.ms"


def upgrade(kube: Kube, *values: str) -> None:
    sets = [part for value in values for part in ("--set", value)]
    chart = str(ROOT / "charts/ottla")
    kube.helm(
        *("upgrade", "ottla", chart, "-n", SYSTEM, "--reuse-values", "--wait", "--timeout", "3m", *sets)
    )


@pytest.fixture(scope="module")
def cluster(kube: Kube, operator: str) -> Iterator[Cluster]:
    """The resources of a cluster that is paused: it has no brokers."""
    namespace = f"{NAMESPACE}-admission"
    kube.ensure_namespace(namespace)
    cluster = Cluster(kube, namespace, "demo")
    paused = cluster.resource("BrokerCluster", cluster.name, {"replicas": 1})
    paused["metadata"]["annotations"] = {PAUSE_ANNOTATION: "true"}
    kube.apply(paused, cluster.resource("Topic", "events", {"clusterRef": {"name": cluster.name}}))
    yield cluster
    for kind, name in (("topics.ottla.dev", "events"), ("brokercluster", cluster.name)):
        kube.delete(kind, name, namespace)
    kube.kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.fixture(scope="module")
def webhook(kube: Kube, operator: str, cluster: Cluster) -> Iterator[None]:
    """The webhook, served by two replicas."""
    upgrade(kube, "webhook.enabled=true", "replicas=2")
    if kube.has_node:
        _route_to_the_service(kube)
    wait_answers(kube, cluster)
    yield
    upgrade(kube, "webhook.enabled=false", "webhook.certManager.enabled=false", "replicas=1")


def wait_answers(kube: Kube, cluster: Cluster) -> None:
    """Wait until a mistake is denied. The webhook fails open, so that an API server that cannot reach it
    accepts mistakes; its metric tells the one from the other."""
    before = _fail_open_count(kube)
    try:
        wait_for("the webhook answers", lambda: MISTAKE in dry(kube, cluster, config=WRONG), 60)
    except AssertionError as error:
        missed = _fail_open_count(kube) - before
        why = f"the API server could not reach the webhook {missed} times: it has no route to the Service"
        raise AssertionError(
            f"{error}; {why if missed else 'the webhook was reached, and accepted it'}"
        ) from None


def _fail_open_count(kube: Kube) -> int:
    lines = kube.kubectl("get", "--raw", "/metrics").splitlines()
    return sum(int(line.split()[-1]) for line in lines if line.startswith(f"{FAIL_OPEN}{{"))


def _route_to_the_service(kube: Kube) -> None:
    """kube.sh's API server runs beside the pods, on a node without a route to Services."""
    service = kube.get("service", "ottla-webhook", SYSTEM)
    assert service is not None
    device = kube.run_on_node("ip", "-o", "-4", "route").split("dev ")[1].split()[0]
    kube.run_on_node("ip", "route", "replace", service["spec"]["clusterIP"], "dev", device)


def dry(kube: Kube, cluster: Cluster, name: str = "tried", **spec: Any) -> str:
    """What `kubectl apply --dry-run=server` prints for a Topic, with errors and warnings."""
    return dry_run(kube, cluster.resource("Topic", name, {"clusterRef": {"name": cluster.name}, **spec}))


def dry_run(kube: Kube, item: Object) -> str:
    done = subprocess.run(
        kube.command("kubectl", ("apply", "--dry-run=server", "-f", "-")),
        input=json.dumps(item),
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
    backup = {"destination": "s3://b/demo", "schedule": "61 * * * *", "credentialsSecret": "keys"}
    other = cluster.resource("BrokerCluster", "other", {"replicas": 1, "backup": backup})
    assert "denied the request: spec.backup.schedule: '61 * * * *' is not allowed" in dry_run(kube, other)


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


def test_cert_manager_makes_the_certificate(
    kube: Kube, webhook: None, cluster: Cluster, tmp_path: Path
) -> None:
    with cert_manager(kube, tmp_path):
        kube.delete("secret", "ottla-webhook", SYSTEM)
        upgrade(kube, "webhook.certManager.enabled=true")

        def annotations() -> str:
            found = kube.get("secret", "ottla-webhook", SYSTEM) or {"metadata": {}}
            return str(found["metadata"].get("annotations"))

        wait_for("cert-manager has issued it", lambda: "cert-manager.io/issuer-name" in annotations(), 60)
        secret = kube.get("secret", "ottla-webhook", SYSTEM) or {}
        authority = base64.b64decode(secret["data"]["ca.crt"]).strip()

        def injected() -> bool:
            """Also beside the operator's own authority: newer versions of the injector keep that."""
            found = kube.get("validatingwebhookconfiguration", f"ottla-{SYSTEM}", SYSTEM) or {}
            return authority in base64.b64decode(found["webhooks"][0]["clientConfig"].get("caBundle", ""))

        wait_for("cert-manager has injected its authority", injected, 60)
        wait_answers(kube, cluster)
