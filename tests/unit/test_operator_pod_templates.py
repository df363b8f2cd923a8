"""Pod templates: supported fields are accepted, and all others are rejected by name."""

from __future__ import annotations

from typing import Any

import pytest

from ottla_operator.resources.crds import build_crd
from ottla_operator.resources.loading import parse_resource
from ottla_operator.resources.pods import RESTARTED_ANNOTATION

VOLUME = {"name": "extra", "emptyDir": {}}


def refused(pod: dict[str, Any]) -> list[str]:
    spec = {"replicas": 1, "template": {"pod": pod}}
    cluster, problems = parse_resource("BrokerCluster", {"name": "demo"}, spec)
    assert (cluster is None) == bool(problems)
    return [str(problem) for problem in problems]


def of_pipeline(**spec: Any) -> list[str]:
    content = {"clusterRef": {"name": "demo"}, "job": "lake", **spec}
    _, problems = parse_resource("Pipeline", {"name": "lake"}, content)
    return [str(problem) for problem in problems]


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {"disk": "ssd"}, "priorityClassName": "high", "terminationGracePeriodSeconds": 60},
        {
            "tolerations": [
                {"key": "kafka", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9}
            ]
        },
        {"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}},
        {"imagePullSecrets": [{"name": "of-the-registry"}]},
        {"serviceAccountName": "brokers"},
        {
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
            ]
        },
        {
            "volumes": [
                {"name": "a", "configMap": {"name": "x"}},
                {"name": "b", "secret": {"secretName": "x", "items": [{"key": "k", "path": "p"}]}},
                {"name": "c", "emptyDir": {"medium": "Memory"}},
                {
                    "name": "d",
                    "projected": {"sources": [{"secret": {"name": "x"}}, {"downwardAPI": {"items": []}}]},
                },
                {"name": "e", "downwardAPI": {"items": []}},
                {"name": "f", "persistentVolumeClaim": {"claimName": "x"}},
            ],
            "containers": [
                {
                    "name": "broker",
                    "env": [
                        {"name": "KAFKA_OPTS", "value": "-Dx=y"},
                        {"name": "PW", "valueFrom": {"secretKeyRef": {"name": "x", "key": "y"}}},
                    ],
                    "envFrom": [{"configMapRef": {"name": "x"}}],
                    "volumeMounts": [{"name": "a", "mountPath": "/etc/ottla-more/x", "readOnly": True}],
                }
            ],
        },
        {"containers": [{"name": "exporter", "image": "exporter:1", "ports": [{"containerPort": 9999}]}]},
    ],
)
def test_supported_fields_of_pod_templates_are_accepted(spec: dict[str, Any]) -> None:
    metadata = {
        "labels": {"team": "data", "app.kubernetes.io/version": "7"},
        "annotations": {"sidecar.istio.io/inject": "false", RESTARTED_ANNOTATION: "2026-11-24T01:00:00Z"},
    }
    assert refused({"metadata": metadata, "spec": spec}) == []


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"hostNetwork": True}, "hostNetwork"),
        ({"hostPID": True}, "hostPID"),
        ({"hostIPC": True}, "hostIPC"),
        ({"hostUsers": True}, "hostUsers"),
        ({"serviceAccount": "admin"}, "serviceAccount"),
        ({"automountServiceAccountToken": True}, "automountServiceAccountToken"),
        ({"securityContext": {"runAsUser": 0}}, "securityContext"),
        ({"nodeName": "node-1"}, "nodeName"),
        ({"runtimeClassName": "runc"}, "runtimeClassName"),
        ({"shareProcessNamespace": True}, "shareProcessNamespace"),
        ({"ephemeralContainers": []}, "ephemeralContainers"),
        ({"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}, "volumes[0].hostPath"),
        ({"volumes": [{"name": "x", "nfs": {"server": "x", "path": "/"}}]}, "volumes[0].nfs"),
        ({"volumes": [{"name": "x", "csi": {"driver": "x"}}]}, "volumes[0].csi"),
        ({"volumes": [{"name": "x"}]}, "volumes[0]"),
        ({"volumes": [{"name": "x", "emptyDir": {}, "secret": {}}]}, "volumes[0]"),
        ({"volumes": [{"name": "config", "emptyDir": {}}]}, "volumes[0].name"),
        (
            {"volumes": [{"name": "x", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]},
            "volumes[0].projected.sources[0].serviceAccountToken",
        ),
        (
            {"containers": [{"name": "broker", "securityContext": {"privileged": True}}]},
            "containers[0].securityContext",
        ),
        ({"containers": [{"name": "broker", "image": "mine"}]}, "containers[0].image"),
        ({"containers": [{"name": "broker", "command": ["sh"]}]}, "containers[0].command"),
        (
            {"containers": [{"name": "broker", "env": [{"name": "POD_NAME", "value": "x"}]}]},
            "containers[0].env[0].name",
        ),
        ({"containers": [{"name": "driver", "env": []}]}, "containers[0].name"),
        (
            {"containers": [{"name": "x", "image": "x", "securityContext": {}}]},
            "containers[0].securityContext",
        ),
        ({"containers": [{"name": "x", "image": "x", "lifecycle": {}}]}, "containers[0].lifecycle"),
        ({"containers": [{"name": "x", "image": "x", "volumeDevices": []}]}, "containers[0].volumeDevices"),
        ({"containers": [{"name": "x"}]}, "containers[0].image"),
        ({"containers": [{"name": "x", "image": "x"}, {"name": "x", "image": "x"}]}, "containers[1].name"),
        ({"initContainers": [{"name": "broker", "image": "x"}]}, "initContainers[0].name"),
        (
            {
                "containers": [
                    {"name": "broker", "volumeMounts": [{"name": "certificates", "mountPath": "/x"}]}
                ]
            },
            "containers[0].volumeMounts[0].name",
        ),
    ],
)
def test_fields_that_grant_permissions_are_rejected_by_name(spec: dict[str, Any], path: str) -> None:
    found = refused({"spec": spec})
    assert found
    assert found[0].startswith(f"spec.template.pod.spec.{path}: "), found


@pytest.mark.parametrize(
    "path", ["/", "/etc", "/etc/ottla", "/etc/ottla/x", "/opt/ottla/lib", "/var", "/tmp/x", "/a/../b", "x"]
)
def test_mounts_over_the_operators_paths_are_rejected(path: str) -> None:
    mounts = [{"name": "extra", "mountPath": path}]
    spec = {"volumes": [VOLUME], "containers": [{"name": "broker", "volumeMounts": mounts}]}
    (found,) = refused({"spec": spec})
    assert found.startswith("spec.template.pod.spec.containers[0].volumeMounts[0].mountPath: ")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("labels", "ottla.dev/component"),
        ("labels", "app.kubernetes.io/name"),
        ("annotations", "ottla.dev/rack"),
        ("annotations", "container.apparmor.security.beta.kubernetes.io/broker"),
    ],
)
def test_labels_of_selectors_are_rejected(kind: str, name: str) -> None:
    (found,) = refused({"metadata": {kind: {name: "zookeeper"}}})
    assert found.startswith(f"spec.template.pod.metadata.{kind}[{name}]: ")


def test_a_disruption_budget_selects_no_other_pods() -> None:
    spec = {"replicas": 1, "template": {"podDisruptionBudget": {"selector": {}}}}
    _, (problem,) = parse_resource("BrokerCluster", {"name": "demo"}, spec)
    assert str(problem).startswith("spec.template.podDisruptionBudget.selector: unknown field; allowed: ")


@pytest.mark.parametrize("part", ["driver", "executor"])
def test_pod_templates_of_pipelines_are_validated_alike(part: str) -> None:
    pod = {"spec": {"hostNetwork": True, "volumes": [{"name": "x", "hostPath": {"path": "/"}}]}}
    found = of_pipeline(**{part: {"template": {"pod": pod}}})
    path = f"spec.{part}.template.pod.spec"
    wanted = [f"{path}.volumes[0].hostPath", f"{path}.hostNetwork"]
    assert [each.partition(": ")[0] for each in found] == wanted
    assert not of_pipeline(
        **{part: {"template": {"pod": {"spec": {"containers": [{"name": part, "env": []}]}}}}}
    )


@pytest.mark.parametrize(
    "name",
    [
        "spark.kubernetes.executor.podTemplateFile",
        "spark.kubernetes.executor.volumes.hostPath.root.mount.path",
        "spark.kubernetes.authenticate.executor.serviceAccountName",
        "spark.kubernetes.executor.label.ottla.dev/component",
        "spark.master",
    ],
)
def test_spark_settings_about_pods_are_rejected(name: str) -> None:
    (found,) = of_pipeline(config={"spark": {"settings": {name: "x"}}})
    assert found.startswith(f"spec.config.spark.settings[{name}]: ")
    own = {"spark.sql.shuffle.partitions": "4", "spark.kubernetes.allocation.batch.size": "2"}
    assert not of_pipeline(config={"spark": {"settings": own}})


def test_the_crd_checks_types_and_preserves_unknown_fields() -> None:
    (version,) = build_crd("BrokerCluster")["spec"]["versions"]
    pod = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["template"]["properties"][
        "pod"
    ]
    spec = pod["properties"]["spec"]
    container = spec["properties"]["containers"]["items"]
    for each in (pod, spec, container, spec["properties"]["volumes"]["items"]):
        assert each["type"] == "object"
        assert each["x-kubernetes-preserve-unknown-fields"] is True
    assert spec["properties"]["priorityClassName"]["type"] == "string"
    assert container["required"] == ["name"]


@pytest.mark.parametrize("part", ["driver", "executor"])
def test_the_service_account_of_pipelines_is_the_operators(part: str) -> None:
    (problem,) = of_pipeline(**{part: {"template": {"pod": {"spec": {"serviceAccountName": "mine"}}}}})
    assert problem.startswith(f"spec.{part}.template.pod.spec.serviceAccountName: ")


def refused_of_servers(pod: dict[str, Any]) -> list[str]:
    spec = {"replicas": 1, "zookeeper": {"managed": {"template": {"pod": pod}}}}
    _, problems = parse_resource("BrokerCluster", {"name": "demo"}, spec)
    return [problem.path for problem in problems]


def test_pod_templates_of_zookeeper_are_validated_with_its_container_and_its_paths() -> None:
    path = "spec.zookeeper.managed.template.pod.spec"
    mounts = {"volumeMounts": [{"name": "extra", "mountPath": "/mine"}]}
    assert not refused_of_servers(
        {"spec": {"volumes": [VOLUME], "containers": [{"name": "zookeeper", **mounts}]}}
    )
    assert refused_of_servers({"spec": {"containers": [{"name": "broker"}]}}) == [
        f"{path}.containers[0].name"
    ]
    assert refused_of_servers({"spec": {"hostNetwork": True}}) == [f"{path}.hostNetwork"]
    mounts = {"volumeMounts": [{"name": "extra", "mountPath": "/var/lib/zookeeper/data"}]}
    pod = {"spec": {"volumes": [VOLUME], "containers": [{"name": "zookeeper", **mounts}]}}
    assert refused_of_servers(pod) == [f"{path}.containers[0].volumeMounts[0].mountPath"]
