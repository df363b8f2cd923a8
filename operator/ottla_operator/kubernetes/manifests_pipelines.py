"""A pipeline's manifests: ConfigMap, headless Service, ServiceAccount, RoleBinding, StatefulSet.

Pure. The driver is the only pod of a StatefulSet, which never runs two pods of one name, so that no two
drivers share a checkpoint. It runs Spark in client mode; Spark's Kubernetes scheduler creates the executors
with the driver's pod as owner, so they are deleted with it. Only the operator replaces the driver's pod
(OnDelete).
"""

from __future__ import annotations

import json
from typing import Final

from ottla_operator.kubernetes import naming
from ottla_operator.kubernetes.manifests_common import (
    Images,
    Manifest,
    build,
    claim_template,
    container_ports,
    container_security,
    headless_service,
    merge_template,
    pod_security,
)
from ottla_operator.planning.pipeline_config import (
    DRIVER_MEMORY,
    EXECUTOR_MEMORY,
    DriverLaunch,
    complete_config,
    driver_heap_mib,
    heap_mib,
)
from ottla_operator.planning.pipelines import CONFIG_FILE
from ottla_operator.resources import Pipeline
from ottla_operator.resources.pipeline import memory_of

STATUS_PORT: Final = 8080
_DRIVER_PORT: Final = 7078
_BLOCKS_PORT: Final = 7079
_PORTS: Final = {"status": STATUS_PORT, "driver": _DRIVER_PORT, "blocks": _BLOCKS_PORT}
_DATA_DIR: Final = "/var/lib/ottla"
_SECRETS_DIR: Final = "/etc/ottla-secrets"
_EXECUTOR_TEMPLATE: Final = "executor.yaml"
_API_SERVER: Final = "k8s://https://kubernetes.default.svc"
_GRACE_S: Final = 120
_ENTRY: Final = ("/usr/bin/tini", "--")


def image_of(pipeline: Pipeline, images: Images) -> str:
    return pipeline.spec.image or images.pipeline


def _has_executors(pipeline: Pipeline) -> bool:
    return pipeline.spec.executor.instances > 0


# ---- the configuration


def build_config(pipeline: Pipeline, images: Images, launch: DriverLaunch) -> Manifest:
    """The ConfigMap with the job's configuration and the executors' pod template. JSON is valid YAML."""
    content = complete_config(
        pipeline,
        launch,
        checkpoint=f"{_DATA_DIR}/checkpoint" if pipeline.spec.storage is not None else None,
        path_of=lambda secret, entry: f"{_SECRETS_DIR}/{secret}/{entry}",
        settings=spark_settings(pipeline, images),
    )
    data = {
        CONFIG_FILE: json.dumps(content, indent=1, default=str) + "\n",
        _EXECUTOR_TEMPLATE: json.dumps(executor_template(pipeline, images), indent=1) + "\n",
    }
    return build(
        pipeline,
        "v1",
        "ConfigMap",
        naming.driver_name(pipeline.metadata.name),
        naming.PIPELINE,
        {"data": data},
    )


def spark_settings(pipeline: Pipeline, images: Images) -> dict[str, str]:
    """Spark settings that override the configuration's, since driver and executors need them to connect."""
    name = naming.driver_name(pipeline.metadata.name)
    pod = naming.driver_pod(pipeline.metadata.name)
    found = {
        "spark.driver.host": naming.pod_host(pod, name, str(pipeline.metadata.namespace)),
        "spark.driver.bindAddress": "0.0.0.0",
        "spark.driver.port": str(_DRIVER_PORT),
        "spark.driver.blockManager.port": str(_BLOCKS_PORT),
    }
    if not _has_executors(pipeline):
        return found
    executor = pipeline.spec.executor
    memory = memory_of(executor.resources, EXECUTOR_MEMORY)
    heap = heap_mib(memory)
    cpu = {
        f"spark.kubernetes.executor.{kind}.cores": str(given["cpu"])
        for kind, given in (
            ("request", executor.resources.get("requests") or {}),
            ("limit", executor.resources.get("limits") or {}),
        )
        if given.get("cpu") is not None
    }
    return {
        **found,
        "spark.executor.instances": str(executor.instances),
        "spark.executor.cores": str(executor.cores),
        "spark.executor.memory": f"{heap}m",
        "spark.executor.memoryOverhead": f"{(memory >> 20) - heap}m",
        **cpu,
        "spark.kubernetes.namespace": str(pipeline.metadata.namespace),
        "spark.kubernetes.driver.pod.name": pod,
        "spark.kubernetes.container.image": image_of(pipeline, images),
        "spark.kubernetes.container.image.pullPolicy": images.pull_policy,
        "spark.kubernetes.executor.podTemplateFile": f"{naming.CONFIG_DIR}/{_EXECUTOR_TEMPLATE}",
        "spark.kubernetes.executor.podTemplateContainerName": "executor",
        # Executors get all settings from the driver; this saves the driver permissions for ConfigMaps.
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
    }


def executor_template(pipeline: Pipeline, images: Images) -> Manifest:
    """The executors' pod template. Spark adds image, arguments, environment and resources."""
    name = pipeline.metadata.name
    mounts = [{"name": "tmp", "mountPath": "/tmp"}]
    volumes: list[Manifest] = [{"name": "tmp", "emptyDir": {}}]
    if pipeline.spec.storage is not None:
        claim = naming.data_claim(naming.driver_pod(name))
        mounts.append({"name": "data", "mountPath": _DATA_DIR})
        volumes.append({"name": "data", "persistentVolumeClaim": {"claimName": claim}})
    template = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": naming.pipeline_labels(pipeline.spec.cluster_ref.name, name, naming.EXECUTOR)},
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": pod_security(),
            "containers": [
                {
                    "name": "executor",
                    "command": [*_ENTRY, "python3", "-m", "ottla_pipeline.executor"],
                    "workingDir": "/tmp",
                    "securityContext": container_security(),
                    "volumeMounts": mounts,
                }
            ],
            "volumes": volumes,
        },
    }
    return merge_template(template, pipeline.spec.executor.template.pod, allow_sidecars=images.allow_sidecars)


# ---- the driver


def _command(pipeline: Pipeline) -> list[str]:
    master = _API_SERVER if _has_executors(pipeline) else "local[*]"
    return [
        *(*_ENTRY, "ottla-pipeline", pipeline.spec.job, "--config", f"{naming.CONFIG_DIR}/{CONFIG_FILE}"),
        *("--status-port", str(STATUS_PORT), "--status-host", "0.0.0.0", "--master", master),
        *("--memory", f"{driver_heap_mib(pipeline)}m"),
    ]


def driver_template(pipeline: Pipeline, images: Images, launch: DriverLaunch) -> Manifest:
    """The pod template of the driver, with the spec's template merged into it."""
    name, cluster = pipeline.metadata.name, pipeline.spec.cluster_ref.name
    scraped = {"scrape": "true", "port": str(STATUS_PORT), "path": "/metrics"}
    secrets = _secrets(launch)
    has_data = pipeline.spec.storage is not None
    container = {
        "name": "driver",
        "image": image_of(pipeline, images),
        "imagePullPolicy": images.pull_policy,
        "command": _command(pipeline),
        "workingDir": _DATA_DIR if has_data else "/tmp",
        "ports": container_ports(_PORTS),
        "resources": pipeline.spec.driver.resources
        or {"requests": {"cpu": "100m", "memory": str(DRIVER_MEMORY)}},
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "config", "mountPath": naming.CONFIG_DIR, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            *([{"name": "data", "mountPath": _DATA_DIR}] if has_data else []),
            *(
                {"name": secret, "mountPath": f"{_SECRETS_DIR}/{secret}", "readOnly": True}
                for secret in secrets
            ),
        ],
    }
    template = {
        "metadata": {
            "labels": naming.pipeline_labels(cluster, name, naming.PIPELINE),
            "annotations": {
                naming.HASH_ANNOTATION: launch.revision,
                **{f"prometheus.io/{key}": value for key, value in scraped.items()},
            },
        },
        "spec": {
            "serviceAccountName": naming.driver_name(name),
            "enableServiceLinks": False,
            "securityContext": pod_security(),
            "terminationGracePeriodSeconds": _GRACE_S,
            "containers": [container],
            "volumes": [
                {"name": "config", "configMap": {"name": naming.driver_name(name)}},
                {"name": "tmp", "emptyDir": {}},
                *({"name": secret, "secret": {"secretName": secret}} for secret in secrets),
            ],
        },
    }
    return merge_template(template, pipeline.spec.driver.template.pod, allow_sidecars=images.allow_sidecars)


def _secrets(launch: DriverLaunch) -> list[str]:
    if launch.login is None:
        return []
    return [name for name in (launch.login.authority, launch.login.secret) if name]


def build_stateful_set(
    pipeline: Pipeline, images: Images, launch: DriverLaunch, restarted_at: str = ""
) -> Manifest:
    """`restarted_at`: of `kubectl rollout restart`, which is part of the revision."""
    name = pipeline.metadata.name
    storage = pipeline.spec.storage
    template = driver_template(pipeline, images, launch)
    if restarted_at:
        template["metadata"]["annotations"][naming.RESTARTED_AT_ANNOTATION] = restarted_at
    spec: Manifest = {
        "replicas": 1,
        "serviceName": naming.driver_name(name),
        "updateStrategy": {"type": "OnDelete"},
        "selector": {"matchLabels": naming.pipeline_selector(pipeline.spec.cluster_ref.name, name)},
        "template": template,
    }
    if storage is not None:
        claim = claim_template(storage.size, storage.storage_class, storage.access_mode)
        spec["volumeClaimTemplates"] = [claim]
    return build(
        pipeline, "apps/v1", "StatefulSet", naming.driver_name(name), naming.PIPELINE, {"spec": spec}
    )


# ---- Service, account and role binding


def build_service(pipeline: Pipeline) -> Manifest:
    """The headless Service with the driver's DNS name, which executors use also before the driver is
    ready."""
    selector = naming.pipeline_selector(pipeline.spec.cluster_ref.name, pipeline.metadata.name)
    spec = headless_service(selector, _PORTS)
    return build(
        pipeline, "v1", "Service", naming.driver_name(pipeline.metadata.name), naming.PIPELINE, {"spec": spec}
    )


def build_service_account(pipeline: Pipeline) -> Manifest:
    name = naming.driver_name(pipeline.metadata.name)
    return build(pipeline, "v1", "ServiceAccount", name, naming.PIPELINE, {})


def build_role_binding(pipeline: Pipeline, role: str) -> Manifest:
    """`role`: the ClusterRole that the chart installs, the only one that the operator may bind."""
    name = naming.driver_name(pipeline.metadata.name)
    group = "rbac.authorization.k8s.io"
    body = {
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": pipeline.metadata.namespace}],
    }
    return build(pipeline, f"{group}/v1", "RoleBinding", name, naming.PIPELINE, body)


def build_all(
    pipeline: Pipeline, images: Images, launch: DriverLaunch, restarted_at: str = ""
) -> list[Manifest]:
    """All objects of a pipeline, in the order in which they are needed."""
    return [
        build_service_account(pipeline),
        *([build_role_binding(pipeline, images.driver_role)] if _has_executors(pipeline) else []),
        build_config(pipeline, images, launch),
        build_service(pipeline),
        build_stateful_set(pipeline, images, launch, restarted_at),
    ]
