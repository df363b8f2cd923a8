"""Racks: passes the rack label of a pod's node to the broker as `broker.rack`.

A pod cannot read the labels of its node. The operator writes the label into an annotation of the pod, which a
volume of the downward API shows as a file; the container waits for this file before it starts the broker.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla_operator.kubernetes import naming
from ottla_operator.kubernetes.manifests_common import Manifest
from ottla_operator.kubernetes.observing import Object, annotations_of

_DIR: Final = "/etc/pod"

VOLUME: Final[Manifest] = {
    "name": "pod",
    "downwardAPI": {
        "items": [
            {
                "path": "rack",
                "fieldRef": {"fieldPath": f"metadata.annotations['{naming.RACK_ANNOTATION}']"},
            }
        ]
    },
}
MOUNT: Final[Manifest] = {"name": "pod", "mountPath": _DIR, "readOnly": True}


def command(arguments: list[str]) -> list[str]:
    """The container's command: waits for the rack's file, then executes the broker with `arguments`."""
    script = (
        f"until [ -s {_DIR}/rack ]; do sleep 0.2; done; rack=$(cat {_DIR}/rack); "
        f'[ "$rack" = {naming.NO_RACK} ] || set -- "$@" --override "broker.rack=$rack"; exec ottla "$@"'
    )
    return ["/usr/bin/tini", "--", "sh", "-c", script, "ottla", *arguments]


def without_rack(pods: Mapping[int, Object]) -> list[Object]:
    """Scheduled pods without the rack annotation."""
    return [
        pod
        for pod in pods.values()
        if (pod.get("spec") or {}).get("nodeName") and naming.RACK_ANNOTATION not in annotations_of(pod)
    ]


def rack_patch(pod: Object, nodes: Mapping[str, Object], topology_key: str) -> Object:
    """The patch that annotates a pod with the rack of its node."""
    node = nodes.get(str(pod["spec"]["nodeName"]), {})
    labels = (node.get("metadata") or {}).get("labels") or {}
    return {"metadata": {"annotations": {naming.RACK_ANNOTATION: labels.get(topology_key) or naming.NO_RACK}}}
