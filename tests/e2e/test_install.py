"""A cluster from the chart: what kubectl says of it, and that real clients can use it."""

from __future__ import annotations

import json

import pytest

from tests.e2e.clients import Traffic
from tests.e2e.clusters import NAMESPACE, SYSTEM, Cluster
from tests.e2e.kube import Kube, wait_for


def test_real_clients_write_and_read_in_the_cluster(cluster: Cluster) -> None:
    with Traffic(cluster, "events") as traffic:
        traffic.wait_for_more(500)
        traffic.assert_lost_nothing(min_isr=3)


def test_the_bootstrap_address_of_the_status_works_in_pods(cluster: Cluster) -> None:
    address = cluster.status["bootstrapServers"]
    assert address == f"demo-bootstrap.{cluster.namespace}.svc:9092"
    listed = json.loads(cluster.in_pod("ottla", "topics", "list", "-b", address, "-o", "json"))
    assert "events" in json.dumps(listed)


def test_kubectl_shows_the_cluster_in_columns(kube: Kube, cluster: Cluster) -> None:
    header, row = kube.kubectl("get", "bc", "-n", cluster.namespace).strip().splitlines()
    shown = dict(zip(header.split(), row.split(), strict=True))
    assert shown["NAME"] == "demo"
    assert (shown["READY"], shown["DESIRED"], shown["BROKERS"], shown["URP"]) == ("True", "3", "3", "0")
    wide = kube.kubectl("get", "brokerclusters", "-n", cluster.namespace, "-o", "wide")
    assert "UNDERMINISR" in wide
    in_category = kube.kubectl("get", "ottla", "-n", cluster.namespace, "-o", "name")
    assert {"brokercluster.ottla.dev/demo", "topic.ottla.dev/events"} <= set(in_category.split())


@pytest.mark.parametrize("kind", ["brokerclusters", "topics", "users", "quotas", "consumergroups"])
def test_kubectl_explains_every_kind(kube: Kube, operator: str, kind: str) -> None:
    said = kube.kubectl("explain", f"{kind}.spec", "--recursive")
    assert "ottla.dev" in said
    assert "FIELDS" in said


def test_kubectl_explains_a_field_with_its_default(kube: Kube, operator: str) -> None:
    said = kube.kubectl("explain", "brokerclusters.spec.rollingUpdate.minReadySeconds")
    assert "Seconds that a restarted broker must have been ready" in said
    assert "Default: 3." in said


def test_a_status_says_what_generation_it_is_about(kube: Kube, cluster: Cluster) -> None:
    found = kube.get("brokercluster", "demo", cluster.namespace)
    assert found is not None
    generation = found["metadata"]["generation"]
    assert found["status"]["observedGeneration"] == generation
    for condition in found["status"]["conditions"]:
        assert condition["observedGeneration"] == generation, condition
        assert condition["reason"]
        assert condition["lastTransitionTime"].endswith("Z")


def test_pods_may_do_nothing(kube: Kube, cluster: Cluster) -> None:
    """Admitted where the strictest of the Pod Security Standards is enforced."""
    said = kube.kubectl(
        *("label", "namespace", cluster.namespace, "--dry-run=server", "--overwrite"),
        "pod-security.kubernetes.io/enforce=restricted",
    )
    assert "would violate" not in said


def test_a_template_that_asks_for_more_rights_is_refused_by_the_names_of_its_fields(
    kube: Kube, operator: str
) -> None:
    kube.ensure_namespace(NAMESPACE)
    refused = Cluster(kube, NAMESPACE, "refused")
    node = {"volumes": [{"name": "node", "hostPath": {"path": "/"}}]}
    with pytest.raises(AssertionError, match=r"volumes\[0\]: Invalid value: must have exactly one of"):
        refused.create({"replicas": 1, "template": {"pod": {"spec": node}}})
    pod = {
        "containers": [{"name": "broker", "securityContext": {"privileged": True}}],
        "volumes": [{"name": "node", "emptyDir": {}, "hostPath": {"path": "/"}}],
        "automountServiceAccountToken": True,
        "hostNetwork": True,
    }
    refused.create({"replicas": 1, "template": {"pod": {"spec": pod}}})

    def why() -> str:
        condition = refused.condition("Ready")
        return condition["message"] if condition.get("reason") == "InvalidSpec" else ""

    try:
        message = wait_for("it is refused", why, 60)
        path = "spec.template.pod.spec"
        for field in (
            "containers[0].securityContext",
            "volumes[0].hostPath",
            "automountServiceAccountToken",
            "hostNetwork",
        ):
            assert f"{path}.{field}: unknown field; allowed: " in message
        assert not refused.children()
        # Once these are taken out, it is made; a sidecar needs the operator's leave.
        sidecar = {"containers": [{"name": "more", "image": "busybox"}]}
        refused.patch({"template": {"pod": {"spec": {**dict.fromkeys(pod), **sidecar}}}})
        message = wait_for("its sidecar is refused", lambda: "--allow-sidecars" in why() and why(), 60)
        assert message.startswith(f"{path}.containers[0]: ")
        assert not refused.brokers()
    finally:
        kube.delete("brokercluster", "refused", NAMESPACE)


def test_the_operator_serves_health_and_metrics(kube: Kube, cluster: Cluster) -> None:
    service = f"/api/v1/namespaces/{SYSTEM}/services/ottla-metrics:http/proxy"
    assert kube.kubectl("get", "--raw", f"{service}/healthz").strip() == "ok"
    figures = kube.kubectl("get", "--raw", f"{service}/metrics")
    assert "ottla_operator" in figures


def test_events_say_what_was_done_and_why(kube: Kube, cluster: Cluster) -> None:
    found = json.loads(
        kube.kubectl(
            *("get", "events", "-n", cluster.namespace, "-o", "json"),
            *("--field-selector", "involvedObject.kind=BrokerCluster,involvedObject.name=demo"),
        )
    )["items"]
    assert found
    for event in found:
        assert event["reason"][0].isupper(), event["reason"]
        assert event["reason"].isalnum(), event["reason"]
        assert event["message"]


_RBAC = "rbac.authorization.k8s.io"


@pytest.mark.parametrize(
    ("account", "verb", "group", "resource", "may"),
    [
        # Certificates and users' credentials are the operator's to keep.
        (f"{SYSTEM}:ottla", "list", "", "secrets", True),
        # A pod is created in a dry run only; StatefulSets could have it created in any case.
        (f"{SYSTEM}:ottla", "create", "", "pods", True),
        (f"{SYSTEM}:ottla", "create", "", "pods/exec", False),
        (f"{SYSTEM}:ottla", "create", "", "serviceaccounts/token", False),
        (f"{SYSTEM}:ottla", "create", _RBAC, "roles", False),
        (f"{SYSTEM}:ottla", "create", _RBAC, "clusterrolebindings", False),
        # One ClusterRole alone, and that by its name: pipelines' drivers are bound to it.
        (f"{SYSTEM}:ottla", "bind", _RBAC, "clusterroles", False),
        (f"{SYSTEM}:ottla", "escalate", _RBAC, "clusterroles", False),
        (f"{NAMESPACE}:demo-brokers", "get", "", "secrets", False),
        (f"{NAMESPACE}:demo-brokers", "list", "", "pods", False),
    ],
)
def test_roles_grant_only_required_permissions(
    kube: Kube, cluster: Cluster, account: str, verb: str, group: str, resource: str, may: bool
) -> None:
    name, _, subresource = resource.partition("/")
    wanted = {"namespace": NAMESPACE, "verb": verb, "group": group, "resource": name}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{account}",
            "resourceAttributes": {**wanted, "subresource": subresource},
        },
    }
    said = kube.kubectl("create", "-f", "-", "-o", "json", text=json.dumps(review))
    assert json.loads(said)["status"]["allowed"] is may
