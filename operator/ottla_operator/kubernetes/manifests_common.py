"""Helpers for manifests: metadata, owner references, security contexts, merging of pod templates.

Pure: dicts in, dicts out. An annotation of every object has a digest of the applied manifest, so that a field
that was removed from the manifest is detected in the live object.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ottla_operator.kubernetes import naming
from ottla_operator.resources import API_VERSION, BrokerCluster, ConnectCluster, Pipeline
from ottla_operator.resources.common import parse_quantity
from ottla_operator.resources.pods import MAIN_CONTAINERS, PodTemplate

Manifest = dict[str, Any]

USER: Final = 10001

# As Kubernetes validates names of container ports: RFC 6335, with a letter and no two - in a row.
_PORT_NAME_MAX: Final = 15
_PORT_NAME: Final = re.compile(r"^(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*$")


@dataclass(frozen=True, slots=True)
class Images:
    """The default images of pods, and other settings of the operator's installation."""

    broker: str = "ottla:dev"
    zookeeper: str = "ottla:dev"
    pull_policy: str = "IfNotPresent"
    pipeline: str = "ottla-spark:dev"
    driver_role: str = "ottla-spark-driver"
    """The ClusterRole of pipelines' drivers."""
    allow_sidecars: bool = False
    """Whether pod templates may have additional containers."""
    operator: str = ""
    """NAMESPACE/NAME of the operator's Deployment; "" outside of Kubernetes."""
    operator_namespace: str = ""
    """The namespace of the operator's pod; "" outside of Kubernetes."""
    connect: str = "ottla-connect:dev"
    """The default image of workers of Kafka Connect."""


def digest(value: object) -> str:
    """A short hash of a JSON value, equal for equal values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:10]


def _owner_reference(resource: BrokerCluster | Pipeline | ConnectCluster) -> Manifest:
    return {
        "apiVersion": API_VERSION,
        "kind": resource.kind,
        "name": resource.metadata.name,
        "uid": resource.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def claim_owner(resource: BrokerCluster | Pipeline) -> Manifest:
    """The owner reference of a claim that is deleted with its resource, and does not hold it up."""
    return {**_owner_reference(resource), "controller": False, "blockOwnerDeletion": False}


def is_of_former(cluster: BrokerCluster, item: Mapping[str, Any]) -> bool:
    """Whether the object belongs to a deleted BrokerCluster of the same name: the garbage collector is about
    to delete it."""
    owners = [o for o in item["metadata"].get("ownerReferences") or () if o.get("kind") == cluster.kind]
    return bool(owners) and all(owner.get("uid") != cluster.metadata.uid for owner in owners)


def build(
    resource: BrokerCluster | Pipeline | ConnectCluster,
    api_version: str,
    kind: str,
    name: str,
    component: str,
    body: Mapping[str, Any],
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    finalizers: Sequence[str] = (),
) -> Manifest:
    """The manifest with `body`: named, labelled and owned by the resource, with the digest annotation.
    `annotations` and `labels`: more than these."""
    if isinstance(resource, Pipeline):
        cluster = resource.spec.cluster_ref.name
        own = naming.pipeline_labels(cluster, resource.metadata.name, component)
    elif isinstance(resource, ConnectCluster):
        reference = resource.spec.cluster_ref
        own = naming.connect_labels(resource.metadata.name, "" if reference is None else reference.name)
    else:
        own = naming.labels(resource.metadata.name, component)
    metadata: Manifest = {
        "name": name,
        "namespace": resource.metadata.namespace,
        "labels": {**(labels or {}), **own},
        "annotations": dict(annotations or {}),
        "ownerReferences": [_owner_reference(resource)],
        **({"finalizers": list(finalizers)} if finalizers else {}),
    }
    manifest: Manifest = {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}
    metadata["annotations"][naming.APPLIED_ANNOTATION] = digest(manifest)
    return manifest


def merge_template(base: Manifest, template: PodTemplate, *, allow_sidecars: bool) -> Manifest:
    """The pod template `base`, extended by a resource's template. Additional containers are included only if
    `allow_sidecars`, and get the operator's security context."""
    given = template.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    metadata, spec = given.get("metadata", {}), given.get("spec", {})
    by_name = {each["name"]: each for each in spec.pop("containers", [])}
    initial = [_hardened(each) for each in spec.pop("initContainers", [])]
    containers = [_extended(each, by_name.get(each["name"], {})) for each in base["spec"]["containers"]]
    if allow_sidecars:
        containers += [_hardened(each) for name, each in by_name.items() if name not in MAIN_CONTAINERS]
    volumes = [*base["spec"]["volumes"], *spec.pop("volumes", [])]
    of_base = base.get("metadata", {})
    return {
        **base,
        "metadata": {
            **of_base,
            # The operator's have precedence; validation has rejected others of the same name.
            **{
                kind: {**metadata.get(kind, {}), **of_base.get(kind, {})}
                for kind in ("labels", "annotations")
                if kind in metadata or kind in of_base
            },
        },
        "spec": {
            **base["spec"],
            **spec,
            "containers": containers,
            "volumes": volumes,
            **({"initContainers": initial} if allow_sidecars and initial else {}),
        },
    }


def _hardened(container: Mapping[str, Any]) -> Manifest:
    return {**container, "securityContext": container_security()}


def _extended(container: Manifest, by: Mapping[str, Any]) -> Manifest:
    return {
        **container,
        **{
            name: [*container.get(name, []), *by[name]]
            for name in ("env", "envFrom", "volumeMounts")
            if name in by
        },
    }


def difference(live: Any, wanted: Any, path: str = "") -> str:
    """The path of the first field that differs from `wanted`, or "". Additional fields in `live` are
    ignored, and finalizers of others."""
    if isinstance(wanted, Mapping):
        if not isinstance(live, Mapping):
            return path
        return _first(difference(live.get(key), value, f"{path}.{key}") for key, value in wanted.items())
    if path == ".metadata.finalizers":
        return "" if set(wanted) <= set(live or ()) else path
    if isinstance(wanted, list):
        if not isinstance(live, list) or len(live) != len(wanted):
            return path
        pairs = zip(live, wanted, strict=True)
        return _first(difference(mine, other, f"{path}[{n}]") for n, (mine, other) in enumerate(pairs))
    return "" if live == wanted or _same_quantity(live, wanted) else path


def _first(differences: Iterable[str]) -> str:
    return next((path for path in differences if path), "")


def _same_quantity(one: object, other: object) -> bool:
    if not isinstance(one, str | int) or not isinstance(other, str | int):
        return False
    quantity = parse_quantity(other)
    return quantity is not None and quantity == parse_quantity(one)


def container_security() -> Manifest:
    """The security context of every container: no privileges, a read-only root file system."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def pod_security() -> Manifest:
    """The security context of every pod: the images' user, not root."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def claim_template(
    size: str | int, storage_class: str | None, access_mode: str = "ReadWriteOnce", name: str = "data"
) -> Manifest:
    """A volumeClaimTemplate of a StatefulSet; without a class, the cluster's default one."""
    spec: Manifest = {"accessModes": [access_mode], "resources": {"requests": {"storage": str(size)}}}
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": spec,
    }


def container_ports(ports: Mapping[str, int]) -> list[Manifest]:
    """A container's TCP ports, under names that Kubernetes allows."""
    return [
        {"name": name, "containerPort": number, "protocol": "TCP"}
        for name, number in zip(_port_names(list(ports)), ports.values(), strict=True)
    ]


def _port_names(names: Sequence[str]) -> list[str]:
    """Names for a container's ports: the first 15 characters of each; if these are no port name or begin
    another one's name, too, fewer of them and a hash of the name.

    A name without need of a hash never gets one, since it is part of the pod template.
    """
    short = [name[:_PORT_NAME_MAX] for name in names]
    return [
        first if _PORT_NAME.match(first) and short.count(first) == 1 else _hashed(name)
        for name, first in zip(names, short, strict=True)
    ]


def _hashed(name: str) -> str:
    stem = re.sub(r"-+", "-", name[: _PORT_NAME_MAX - 7]).strip("-")
    return f"{stem}-p{hashlib.sha256(name.encode()).hexdigest()[:5]}"


def service_ports(ports: Mapping[str, int]) -> list[Manifest]:
    """A Service's TCP ports by name, with the same numbers as in the pods."""
    return [
        {"name": name, "port": number, "targetPort": number, "protocol": "TCP"}
        for name, number in ports.items()
    ]


def headless_service(selector: Mapping[str, str], ports: Mapping[str, int]) -> Manifest:
    """The spec of a Service with DNS names of the pods, also of those that are not ready."""
    return {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": dict(selector),
        "ports": service_ports(ports),
    }


def spread_over(topology_key: str, selector: Manifest) -> Manifest:
    """The topologySpreadConstraint that balances the pods over a topology where possible."""
    return {
        "maxSkew": 1,
        "topologyKey": topology_key,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": selector,
    }


def operator_peers(images: Images) -> list[Manifest]:
    """NetworkPolicy peers for the operator's pod; empty when it does not run in a pod."""
    if not images.operator_namespace:
        return []
    return [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": images.operator_namespace}},
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": naming.MANAGER}},
        }
    ]


def exec_probe(command: list[str], *, period_s: int, failures: int, timeout_s: int = 5) -> Manifest:
    """A probe that runs a command in the container."""
    return {
        "exec": {"command": command},
        "periodSeconds": period_s,
        "failureThreshold": failures,
        "timeoutSeconds": timeout_s,
    }
