"""The charts and the plain manifests: what helm and the API server say of them, and that they are current."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ottla_pipeline.registry.command import main as ottla_registry
from tests import monitoring
from tests.e2e.clusters import NAMESPACE, SYSTEM, Cluster
from tests.e2e.generate import MANIFEST, rendered
from tests.e2e.installing import ROOT
from tests.e2e.kube import KUBE_VERSION, Kube, Object

_CHARTS = ("charts/ottla", "charts/ottla-cluster")


def _objects_in(text: str) -> list[Object]:
    """Read by libyaml: the CustomResourceDefinitions are long."""
    return [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each]


@pytest.mark.parametrize("chart", _CHARTS)
def test_helm_finds_nothing_to_complain_of(kube: Kube, chart: str) -> None:
    said = kube.helm("lint", "--strict", str(ROOT / chart), "--kube-version", KUBE_VERSION)
    assert "0 chart(s) failed" in said
    assert "WARNING" not in said


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"watchNamespaces": ["a", "b"]},
        {"uninstallHook": False},
        {"webhook": {"enabled": True}, "watchNamespaces": ["a"], "replicas": 2},
        {"crds": {"install": False}, "metrics": {"service": False}},
        {"dashboards": {"enabled": True}},
        {"serviceAccount": {"create": False, "name": "mine"}, "podAnnotations": {"a": "b"}},
    ],
)
def test_the_operators_chart_is_taken_by_the_api_server(
    kube: Kube, operator: str, values: dict[str, object], tmp_path: Path
) -> None:
    """Dry, on the server: validation, defaulting and admission all run."""
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(values))
    text = kube.helm(
        *("template", "ottla", str(ROOT / "charts/ottla"), "-n", "default"),
        *("--kube-version", KUBE_VERSION, "-f", str(file)),
    )
    documents = _objects_in(text)
    for document in documents:
        # The namespaces that the values name are not there.
        if document["metadata"].get("namespace"):
            document["metadata"]["namespace"] = "default"
    names = kube.kubectl(
        *("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-o", "name", "-f", "-"),
        text=json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}),
    )
    assert len(names.split()) == len(documents)


@pytest.mark.parametrize(
    ("chart", "values", "problem"),
    [
        ("charts/ottla", {"logLevel": "LOUD"}, "logLevel"),
        ("charts/ottla", {"image": {"repo": "x"}}, "repo"),
        ("charts/ottla-cluster", {"replicas": -1}, "replicas"),
        ("charts/ottla-cluster", {"topics": [1]}, "topics"),
        ("charts/ottla-cluster", {"console": {"clusters": [{"name": "a"}]}}, "bootstrap"),
        (
            "charts/ottla-cluster",
            {
                "console": {
                    "enabled": True,
                    "configSecret": "s",
                    "clusters": [{"name": "a", "bootstrap": "b"}],
                }
            },
            "configSecret replaces console.clusters",
        ),
        (
            "charts/ottla-cluster",
            {
                "console": {"enabled": True},
                "spec": {"listeners": [{"name": "tls", "port": 9094, "authentication": {"type": "tls"}}]},
            },
            "set console.clusters or console.configSecret",
        ),
        ("charts/ottla-cluster", {"schemaRegistry": {"image": {"tags": "1"}}}, "tags"),
        (
            "charts/ottla-cluster",
            {"schemaRegistry": {"tls": {"clientCertificate": "no"}}},
            "clientCertificate",
        ),
        (
            "charts/ottla-cluster",
            {"schemaRegistry": {"enabled": True, "tls": {"clientCaSecret": "ca"}}},
            "clientCaSecret needs schemaRegistry.tls.secretName",
        ),
        (
            "charts/ottla-cluster",
            {
                "schemaRegistry": {
                    "enabled": True,
                    "tls": {"secretName": "own", "clientCertificate": "optional"},
                }
            },
            "optional needs tls.clientCaSecret and schemaRegistry.accessSecret",
        ),
    ],
)
def test_wrong_values_are_refused_by_name(
    kube: Kube, chart: str, values: dict[str, object], problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(values))
    with pytest.raises(AssertionError, match=problem):
        kube.helm("template", "x", str(ROOT / chart), "--kube-version", KUBE_VERSION, "-f", str(file))


SCRAM = {"name": "scram", "port": 9093, "tls": True, "authentication": {"type": "scram-sha-512"}}
PLAIN = {"name": "plain", "port": 9095}
TLS = {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/etc/ottla-console-ca/ca.crt"}


@pytest.mark.parametrize(
    ("listeners", "port", "properties"),
    [
        ([], 9092, {"security.protocol": "PLAINTEXT"}),
        (
            [PLAIN, {"name": "tls", "port": 9094, "authentication": None}],
            9095,
            {"security.protocol": "PLAINTEXT"},
        ),
        (
            [{**SCRAM, "port": 9097, "type": "loadbalancer"}, PLAIN, SCRAM],
            9093,
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", **TLS},
        ),
        ([{**PLAIN, "tls": True}], 9095, {"security.protocol": "SSL", **TLS}),
    ],
    ids=["none", "plaintext", "passwords", "tls"],
)
def test_the_console_uses_a_listener_that_it_can_use(
    kube: Kube, listeners: list[Object], port: int, properties: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps({"console": {"enabled": True}, "spec": {"listeners": listeners}}))
    text = kube.helm(
        *("template", "demo", str(ROOT / "charts/ottla-cluster"), "--kube-version", KUBE_VERSION),
        *("-n", "shop", "-f", str(file), "-s", "templates/console.yaml"),
    )
    objects = {each["kind"]: each for each in _objects_in(text)}
    (cluster,) = yaml.safe_load(objects["ConfigMap"]["data"]["console.yaml"])["clusters"]
    assert cluster["bootstrap"] == f"demo-bootstrap.shop.svc:{port}"
    assert cluster["properties"] == properties
    volumes = {each["name"]: each for each in objects["Deployment"]["spec"]["template"]["spec"]["volumes"]}
    authority = "demo-cluster-ca-cert" if "ssl.truststore.type" in properties else None
    assert volumes.get("ca", {}).get("secret", {}).get("secretName") == authority


SECURED_REGISTRY = {
    "accessSecret": "access",
    "tls": {
        "secretName": "own",
        "clientCaSecret": "clients",
        "principalMapping": "RULE:^CN=([^,]*).*$/$1/,DEFAULT",
    },
}


def registry_container(kube: Kube, tmp_path: Path, values: dict[str, Any]) -> dict[str, Any]:
    """The registry's container, as the chart renders it, with its volumes."""
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps({"schemaRegistry": {"enabled": True, **values}}))
    text = kube.helm(
        *("template", "x", str(ROOT / "charts/ottla-cluster"), "--kube-version", KUBE_VERSION),
        *("-f", str(file), "-s", "templates/schema-registry.yaml"),
    )
    deployment = next(each for each in _objects_in(text) if each["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    return {**pod["containers"][0], "volumes": pod["volumes"]}


def parameters(container: dict[str, Any], secrets: dict[str, dict[str, str]], folder: Path) -> dict[str, Any]:
    """What `ottla-registry` makes of the container's arguments, with these Secrets mounted below a folder."""
    volumes = {each["name"]: each.get("secret") for each in container["volumes"]}
    arguments = [each.replace("$$", "$") for each in container["args"]]
    for mount in container["volumeMounts"]:
        secret = volumes[mount["name"]]
        if secret is None:
            continue
        place = folder / mount["mountPath"].lstrip("/")
        place.mkdir(parents=True)
        found = secrets[secret["secretName"]]
        items = secret.get("items") or [{"key": key, "path": key} for key in found]
        for item in items:
            (place / item["path"]).write_text(found[item["key"]])
        arguments = [each.replace(f"={mount['mountPath']}/", f"={place}/") for each in arguments]
    return ottla_registry.make_context("ottla-registry", arguments).params


@pytest.mark.parametrize("client_certificate", ["required", "optional"])
def test_the_registry_takes_its_access_and_tls_from_secrets(
    kube: Kube, tmp_path: Path, client_certificate: str
) -> None:
    tls = {**SECURED_REGISTRY["tls"], "clientCertificate": client_certificate}  # type: ignore[dict-item]
    container = registry_container(
        kube, tmp_path, {**SECURED_REGISTRY, "kafkaConfigSecret": "login", "tls": tls}
    )
    rule = {"user": "lake", "allow": "read", "subjects": ["*"]}
    secrets = {
        "login": {"kafka.properties": "security.protocol=SSL"},
        "access": {"access.yaml": yaml.safe_dump({"users": {}, "rules": [rule]})},
        "own": {"tls.crt": "certificate", "tls.key": "key", "ca.crt": "not used"},
        "clients": {"ca.crt": "authorities"},
    }
    found = parameters(container, secrets, tmp_path)
    assert Path(found["tls_certificate"]).read_text() == "certificate"
    assert Path(found["tls_key"]).read_text() == "key"
    assert Path(found["tls_client_ca"]).read_text() == "authorities"
    assert found["file_options"] == {"security.protocol": "SSL"}
    assert found["tls_client_optional"] == (client_certificate == "optional")
    assert found["mapping"].name_of("CN=lake,OU=x") == "lake"
    assert [each.user for each in found["access_rules"].rules] == ["lake"]
    https = {"httpGet": {"path": "/healthz", "port": "http", "scheme": "HTTPS"}}
    expected = https if client_certificate == "optional" else {"tcpSocket": {"port": "http"}}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe].items() >= expected.items(), probe


def test_without_these_options_the_registry_is_open(kube: Kube, tmp_path: Path) -> None:
    container = registry_container(kube, tmp_path, {})
    found = parameters(container, {}, tmp_path)
    assert (found["tls_certificate"], found["access_rules"], found["file_options"]) == (None, None, {})
    assert container["startupProbe"]["httpGet"]["scheme"] == "HTTP"


def test_a_cluster_with_everything_is_taken_by_the_api_server(
    kube: Kube, operator: str, tmp_path: Path
) -> None:
    values = {
        "replicas": 5,
        "topics": {"orders": {"partitions": 6, "replicas": 3, "config": {"retention.ms": 604800000}}},
        "quotas": {"everybody": {"entity": {"user": "<default>"}, "limits": {"producerByteRate": 1e6}}},
        "consumerGroups": {"billing": {"maxLag": 10}},
        "pipelines": {"lake": {"job": "lake", "storage": {"size": "1Gi"}, "config": {"any": {"thing": [1]}}}},
        "schemaRegistry": {"enabled": True, "kafkaConfigSecret": "login", **SECURED_REGISTRY},
    }
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(values))
    text = kube.helm(
        *("template", "x", str(ROOT / "charts/ottla-cluster"), "-n", "default"),
        *("--kube-version", KUBE_VERSION, "-f", str(file)),
    )
    names = kube.kubectl("apply", "--dry-run=server", "-o", "name", "-f", "-", text=text).split()
    kinds = {name.split(".")[0] for name in names}
    ours = {"brokercluster", "topic", "quota", "consumergroup", "pipeline"}
    assert kinds == ours | {"deployment", "service/x-schema-registry"}


_SAMPLES = ROOT / "manifests/samples"


@pytest.mark.parametrize(
    "sample", sorted(str(path.relative_to(_SAMPLES)) for path in _SAMPLES.rglob("*.yaml"))
)
def test_the_samples_are_taken_by_the_api_server(kube: Kube, operator: str, sample: str) -> None:
    path = _SAMPLES / sample
    assert kube.kubectl("apply", "--dry-run=server", "-o", "name", "-n", "default", "-f", str(path))


@pytest.mark.parametrize(
    ("kind", "spec", "problem"),
    [
        ("BrokerCluster", {"replicas": -1}, "replicas"),
        ("BrokerCluster", {"replicas": 3, "relicas": 3}, "relicas"),
        ("Topic", {"clusterRef": {"name": "demo"}, "partitions": 0}, "partitions"),
        ("Topic", {"partitions": 1}, "clusterRef"),
        ("Pipeline", {"clusterRef": {"name": "demo"}, "job": "No Job"}, "job"),
    ],
)
def test_the_api_server_refuses_what_the_schema_forbids(
    kube: Kube, operator: str, kind: str, spec: dict[str, object], problem: str
) -> None:
    resource = {
        "apiVersion": "ottla.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": "wrong", "namespace": "default"},
        "spec": spec,
    }
    with pytest.raises(AssertionError, match=problem):
        kube.kubectl(
            "apply",
            "--server-side",
            "--dry-run=server",
            "--validate=strict",
            "-f",
            "-",
            text=json.dumps(resource),
        )


def test_helm_upgrade_brings_the_definitions_up_to_date(kube: Kube, cluster: Cluster, tmp_path: Path) -> None:
    """From a chart that calls a column of BrokerClusters otherwise, as an older one might; clusters stay."""
    older = tmp_path / "ottla"
    shutil.copytree(ROOT / "charts/ottla", older)
    definition = older / "templates/crds/brokerclusters.yaml"
    definition.write_text(definition.read_text().replace("name: UnderMinISR", "name: Insufficient"))
    before = (cluster.status["clusterId"], cluster.brokers())
    options = ("-n", SYSTEM, "--reuse-values", "--wait", "--timeout", "3m")
    try:
        kube.helm("upgrade", "ottla", str(older), *options)
        assert "Insufficient" in _columns(kube)
    finally:
        kube.helm("upgrade", "ottla", str(ROOT / "charts/ottla"), *options)
    assert "UnderMinISR" in _columns(kube)
    assert "Insufficient" not in _columns(kube)
    cluster.wait_ready()
    assert (cluster.status["clusterId"], cluster.brokers()) == before


def _columns(kube: Kube) -> set[str]:
    text = kube.kubectl("get", "customresourcedefinition", "brokerclusters.ottla.dev", "-o", "json")
    (version,) = json.loads(text)["spec"]["versions"]
    return {column["name"] for column in version["additionalPrinterColumns"]}


@pytest.mark.parametrize(
    ("chart", "switch", "namespace", "component"),
    [
        ("charts/ottla-cluster", "podMonitor.enabled", NAMESPACE, "ottla.dev/component=broker"),
        ("charts/ottla", "metrics.podMonitor.enabled", SYSTEM, "app.kubernetes.io/name=ottla-operator"),
    ],
)
def test_a_pod_monitor_finds_the_pods_and_their_port(
    kube: Kube, cluster: Cluster, chart: str, switch: str, namespace: str, component: str
) -> None:
    release = "demo" if namespace == NAMESPACE else "ottla"
    options = ("--kube-version", KUBE_VERSION, "--set", f"{switch}=true", "-n", namespace)
    text = kube.helm("template", release, str(ROOT / chart), *options)
    label, value = component.split("=")
    (spec,) = (
        found["spec"]
        for found in _objects_in(text)
        if found["kind"] == "PodMonitor" and found["spec"]["selector"]["matchLabels"].get(label) == value
    )
    selector = ",".join(f"{name}={value}" for name, value in spec["selector"]["matchLabels"].items())
    found = kube.list("pod", namespace, selector)
    names = {pod["metadata"]["name"] for pod in kube.list("pod", namespace, component)}
    assert names
    assert {pod["metadata"]["name"] for pod in found} == names
    for pod in found:
        ports = {port.get("name") for port in pod["spec"]["containers"][0]["ports"]}
        assert {endpoint["port"] for endpoint in spec["podMetricsEndpoints"]} <= ports


def test_dashboards_and_alerts_are_those_of_the_files(kube: Kube) -> None:
    switches = "dashboards.enabled=true,alerts.enabled=true,alerts.runbooks=https://docs.example/monitoring"
    options = ("--kube-version", KUBE_VERSION, "--set", switches)
    found = _objects_in(kube.helm("template", "ottla", str(ROOT / "charts/ottla"), *options))
    maps = [each for each in found if each["metadata"].get("labels", {}).get("grafana_dashboard") == "1"]
    rendered = {name: json.loads(text) for each in maps for name, text in each["data"].items()}
    assert rendered == {f"{name}.json": dashboard for name, dashboard in monitoring.dashboards().items()}
    (rule,) = (each for each in found if each["kind"] == "PrometheusRule")
    text = monitoring.ALERTS.read_text().replace(
        "docs/operations/monitoring.md#", "https://docs.example/monitoring#"
    )
    assert rule["spec"] == yaml.safe_load(text)


_RULES = "prometheusrules.monitoring.coreos.com"


@pytest.fixture
def prometheus_rules(kube: Kube) -> Iterator[None]:
    """The Prometheus Operator's definition; one that accepts any spec where it is not installed."""
    if kube.kubectl("get", "crd", _RULES, "--ignore-not-found", "-o", "name"):
        yield
        return
    names = {"kind": "PrometheusRule", "plural": "prometheusrules", "singular": "prometheusrule"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    spec = {"group": "monitoring.coreos.com", "scope": "Namespaced", "names": names, "versions": [version]}
    metadata = {"name": _RULES}
    kube.apply(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": metadata,
            "spec": spec,
        }
    )
    kube.kubectl("wait", "crd", _RULES, "--for=condition=Established", "--timeout=60s")
    yield
    kube.kubectl("delete", "crd", _RULES)


@pytest.mark.usefixtures("prometheus_rules", "operator")
def test_dashboards_and_alerts_come_and_go_with_their_switches(kube: Kube) -> None:
    def switch(on: str) -> None:
        switches = f"dashboards.enabled={on},alerts.enabled={on}"
        chart = str(ROOT / "charts/ottla")
        kube.helm("upgrade", "ottla", chart, "-n", SYSTEM, "--reuse-values", "--set", switches, "--wait")

    def dashboards() -> dict[str, Any]:
        found = kube.list("configmap", SYSTEM, "grafana_dashboard=1")
        return {name: json.loads(text) for each in found for name, text in each["data"].items()}

    switch("true")
    try:
        assert dashboards() == {f"{name}.json": each for name, each in monitoring.dashboards().items()}
        (rule,) = kube.list(_RULES, SYSTEM)
        assert rule["spec"] == yaml.safe_load(monitoring.ALERTS.read_text())
    finally:
        switch("false")
    assert not dashboards()
    assert not kube.list(_RULES, SYSTEM)


def test_the_plain_manifest_is_what_the_chart_renders(kube: Kube) -> None:
    assert MANIFEST.read_text() == rendered(kube), "run `python -m tests.e2e.generate`"
