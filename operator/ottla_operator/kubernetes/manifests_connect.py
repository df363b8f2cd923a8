"""A ConnectCluster's manifests: ServiceAccount, ConfigMap, Services, NetworkPolicy, budget, StatefulSet.

Pure. Workers keep no data: the StatefulSet gives them names, by which they forward requests to each other,
and restarts them one by one when their revision changes.
"""

from __future__ import annotations

from typing import Final

from ottla_operator.kubernetes import naming
from ottla_operator.kubernetes.manifests_common import (
    Images,
    Manifest,
    build,
    container_ports,
    container_security,
    headless_service,
    merge_template,
    operator_peers,
    pod_security,
    service_ports,
    spread_over,
)
from ottla_operator.planning.connect import (
    HOST_VARIABLE,
    PLUGINS_DIR,
    REST_PORT,
    SECRETS_DIR,
    WorkerLaunch,
)
from ottla_operator.resources import ConnectCluster

METRICS_PORT: Final = 9404
_PORTS: Final = {"rest": REST_PORT, "metrics": METRICS_PORT}
_PROPERTIES: Final = "connect.properties"
_LOGGING: Final = "log4j.properties"
_METRICS: Final = "metrics.yaml"
_LIBRARIES: Final = "/opt/connect/libs"
_AGENT: Final = "/opt/connect/jmx_prometheus_javaagent.jar"
_GRACE_S: Final = 60
# Names as of Strimzi's dashboards: kafka_connect_connector_metrics_status, with connector and task as labels.
_METRICS_RULES: Final = "lowercaseOutputName: true\nlowercaseOutputLabelNames: true\n"
_LOG4J: Final = """\
log4j.rootLogger=INFO, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=%d{ISO8601} %p %X{connector.context}%m (%c) [%t]%n
log4j.logger.org.apache.kafka.connect.runtime.rest.RestServer=WARN
"""
# The probes and the operator ask every few seconds, and RestServer logs each request.


def url_of(connect: ConnectCluster) -> str:
    """The URL of the REST API."""
    service = naming.connect_api_name(connect.metadata.name)
    return f"http://{service}.{connect.metadata.namespace}.svc:{REST_PORT}"


def image_of(connect: ConnectCluster, images: Images) -> str:
    return connect.spec.image or images.connect


def _build(connect: ConnectCluster, api_version: str, kind: str, body: Manifest, name: str = "") -> Manifest:
    return build(
        connect,
        api_version,
        kind,
        name or naming.connect_name(connect.metadata.name),
        naming.CONNECT,
        body,
    )


def build_config(connect: ConnectCluster, launch: WorkerLaunch) -> Manifest:
    lines = [f"{name}={_escaped(value)}" for name, value in launch.properties.items()]
    data = {_PROPERTIES: "\n".join(lines) + "\n", _LOGGING: _LOG4J, _METRICS: _METRICS_RULES}
    return _build(connect, "v1", "ConfigMap", {"data": data})


def _escaped(value: str) -> str:
    """The value in a Java properties file."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def build_services(connect: ConnectCluster) -> list[Manifest]:
    """The Service of the REST API, and the headless one with the workers' names."""
    selector = naming.connect_selector(connect.metadata.name)
    api = {"type": "ClusterIP", "selector": selector, "ports": service_ports({"rest": REST_PORT})}
    return [
        _build(connect, "v1", "Service", {"spec": api}, name=naming.connect_api_name(connect.metadata.name)),
        _build(connect, "v1", "Service", {"spec": headless_service(selector, _PORTS)}),
    ]


def build_network_policy(connect: ConnectCluster, images: Images) -> Manifest:
    """Allows only workers and the operator on the REST API, which has no authentication."""
    workers = {"matchLabels": naming.connect_selector(connect.metadata.name)}
    spec = {
        "podSelector": workers,
        "policyTypes": ["Ingress"],
        "ingress": [
            {"ports": [{"protocol": "TCP", "port": METRICS_PORT}]},
            {
                "from": [{"podSelector": workers}, *operator_peers(images)],
                "ports": [{"protocol": "TCP", "port": REST_PORT}],
            },
        ],
    }
    return _build(connect, "networking.k8s.io/v1", "NetworkPolicy", {"spec": spec})


def build_disruption_budget(connect: ConnectCluster) -> Manifest:
    selector = {"matchLabels": naming.connect_selector(connect.metadata.name)}
    return _build(
        connect, "policy/v1", "PodDisruptionBudget", {"spec": {"maxUnavailable": 1, "selector": selector}}
    )


def worker_template(connect: ConnectCluster, images: Images, launch: WorkerLaunch) -> Manifest:
    """The pod template of the workers, with the spec's template merged into it."""
    name = connect.metadata.name
    service = naming.connect_name(name)
    reference = connect.spec.cluster_ref
    plugins = [
        (f"plugin-{plugin.name}-{n}", f"{PLUGINS_DIR}/{plugin.name}/{n}", artifact)
        for plugin in connect.spec.plugins
        for n, artifact in enumerate(plugin.artifacts)
    ]
    secrets = [(f"secret-{n}", secret) for n, secret in enumerate(launch.secrets)]
    container = {
        "name": "connect",
        "image": image_of(connect, images),
        "imagePullPolicy": images.pull_policy,
        "command": [
            *("/usr/bin/tini", "--", "java", f"-Xmx{connect.spec.heap}", "-XX:+ExitOnOutOfMemoryError"),
            f"-Dlog4j.configuration=file:{naming.CONFIG_DIR}/{_LOGGING}",
            f"-javaagent:{_AGENT}={METRICS_PORT}:{naming.CONFIG_DIR}/{_METRICS}",
            *("-cp", f"{_LIBRARIES}/*", "org.apache.kafka.connect.cli.ConnectDistributed"),
            f"{naming.CONFIG_DIR}/{_PROPERTIES}",
        ],
        "workingDir": "/tmp",
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {
                "name": HOST_VARIABLE,
                "value": naming.pod_host("$(POD_NAME)", service, str(connect.metadata.namespace)),
            },
        ],
        "ports": container_ports(_PORTS),
        "resources": connect.spec.resources or {"requests": {"cpu": "100m", "memory": "768Mi"}},
        "securityContext": container_security(),
        # KIP-1017: 200 when the worker has joined its group and read the internal topics.
        "readinessProbe": {
            "httpGet": {"path": "/health", "port": REST_PORT},
            "periodSeconds": 5,
            "timeoutSeconds": 5,
        },
        "livenessProbe": {
            "httpGet": {"path": "/", "port": REST_PORT},
            "initialDelaySeconds": 60,
            "periodSeconds": 10,
            "timeoutSeconds": 10,
            "failureThreshold": 6,
        },
        "volumeMounts": [
            {"name": "config", "mountPath": naming.CONFIG_DIR, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            *(
                {"name": volume, "mountPath": f"{SECRETS_DIR}/{secret}", "readOnly": True}
                for volume, secret in secrets
            ),
            *({"name": volume, "mountPath": path, "readOnly": True} for volume, path, _ in plugins),
        ],
    }
    scraped = {"scrape": "true", "port": str(METRICS_PORT), "path": "/metrics"}
    selector = {"matchLabels": naming.connect_selector(name)}
    template = {
        "metadata": {
            "labels": naming.connect_labels(name, "" if reference is None else reference.name),
            "annotations": {
                naming.HASH_ANNOTATION: launch.revision,
                **{f"prometheus.io/{key}": value for key, value in scraped.items()},
            },
        },
        "spec": {
            "serviceAccountName": service,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": pod_security(),
            "terminationGracePeriodSeconds": _GRACE_S,
            "topologySpreadConstraints": [spread_over("kubernetes.io/hostname", selector)],
            "containers": [container],
            "volumes": [
                {"name": "config", "configMap": {"name": service}},
                {"name": "tmp", "emptyDir": {}},
                *({"name": volume, "secret": {"secretName": secret}} for volume, secret in secrets),
                *(
                    {
                        "name": volume,
                        "image": {
                            "reference": artifact.reference,
                            "pullPolicy": artifact.pull_policy or images.pull_policy,
                        },
                    }
                    for volume, _, artifact in plugins
                ),
            ],
        },
    }
    return merge_template(template, connect.spec.template.pod, allow_sidecars=images.allow_sidecars)


def build_stateful_set(
    connect: ConnectCluster, images: Images, launch: WorkerLaunch, restarted_at: str = ""
) -> Manifest:
    """`restarted_at`: of `kubectl rollout restart`."""
    template = worker_template(connect, images, launch)
    if restarted_at:
        template["metadata"]["annotations"][naming.RESTARTED_AT_ANNOTATION] = restarted_at
    spec = {
        "replicas": connect.spec.replicas,
        "serviceName": naming.connect_name(connect.metadata.name),
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "RollingUpdate"},
        "selector": {"matchLabels": naming.connect_selector(connect.metadata.name)},
        "template": template,
    }
    return _build(connect, "apps/v1", "StatefulSet", {"spec": spec})


def build_all(
    connect: ConnectCluster, images: Images, launch: WorkerLaunch, restarted_at: str = ""
) -> list[Manifest]:
    """All objects of a ConnectCluster, in the order in which they are needed."""
    return [
        _build(connect, "v1", "ServiceAccount", {}),
        build_config(connect, launch),
        *build_services(connect),
        build_network_policy(connect, images),
        build_disruption_budget(connect),
        build_stateful_set(connect, images, launch, restarted_at),
    ]
