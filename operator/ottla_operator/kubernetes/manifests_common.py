"""What the builders of manifests share: metadata, owners, pods that may do nothing, merges.

Pure: dicts in, dicts out. Every object says in an annotation what was applied, so that a field taken back
from a manifest is seen to be left over in the live object.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ottla_operator.kubernetes import naming
from ottla_operator.resources import API_VERSION, BrokerCluster, Pipeline
from ottla_operator.resources.cluster import Storage
from ottla_operator.resources.common import parse_quantity

Manifest = dict[str, Any]

USER: Final = 10001


@dataclass(frozen=True, slots=True)
class Images:
    """What pods run where a resource names nothing else."""

    broker: str = "ottla:dev"
    zookeeper: str = "ottla:dev"
    pull_policy: str = "IfNotPresent"
    pipeline: str = "ottla-spark:dev"
    driver_role: str = "ottla-spark-driver"
    """The ClusterRole that pipelines' drivers are bound to."""


def digest(value: object) -> str:
    """A short hash of anything that is JSON, the same for equal values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:10]


def owner(resource: BrokerCluster | Pipeline) -> Manifest:
    return {
        "apiVersion": API_VERSION,
        "kind": resource.kind,
        "name": resource.metadata.name,
        "uid": resource.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def build(
    cluster: BrokerCluster,
    api_version: str,
    kind: str,
    name: str,
    component: str,
    body: Mapping[str, Any],
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """The object `body`, ours to apply: named, labelled, owned by the cluster."""
    metadata: Manifest = {
        "name": name,
        "namespace": cluster.metadata.namespace,
        "labels": naming.labels(cluster.metadata.name, component),
        "annotations": dict(annotations or {}),
        "ownerReferences": [owner(cluster)],
    }
    manifest: Manifest = {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}
    metadata["annotations"][naming.APPLIED_ANNOTATION] = digest(manifest)
    return manifest


def merged(base: Any, over: Any) -> Any:
    """`over` laid over `base`: mappings by key, lists of named things by name, all else replaced."""
    if isinstance(base, dict) and isinstance(over, Mapping):
        result = dict(base)
        for key, value in over.items():
            result[key] = merged(base[key], value) if key in base else copy.deepcopy(value)
        return result
    if isinstance(base, list) and isinstance(over, list) and _named([*base, *over]):
        by_name = {item["name"]: item for item in base}
        for item in over:
            by_name[item["name"]] = merged(by_name.get(item["name"], {}), item)
        return list(by_name.values())
    return copy.deepcopy(over)


def _named(items: list[Any]) -> bool:
    return bool(items) and all(isinstance(item, dict) and "name" in item for item in items)


def difference(live: Any, wanted: Any, path: str = "") -> str:
    """The first field that is not as wanted, or "". What the API server adds is no difference."""
    if isinstance(wanted, Mapping):
        if not isinstance(live, Mapping):
            return path
        return _first(difference(live.get(key), value, f"{path}.{key}") for key, value in wanted.items())
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
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def pod_security() -> Manifest:
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def claim_template(storage: Storage, default_size: str) -> Manifest:
    spec: Manifest = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": str(storage.size or default_size)}},
    }
    if storage.storage_class is not None:
        spec["storageClassName"] = storage.storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": spec,
    }


def exec_probe(command: list[str], *, period_s: int, failures: int, timeout_s: int = 5) -> Manifest:
    return {
        "exec": {"command": command},
        "periodSeconds": period_s,
        "failureThreshold": failures,
        "timeoutSeconds": timeout_s,
    }
