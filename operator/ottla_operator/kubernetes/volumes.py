"""Detects the loss of a broker's volume, or a request to replace it, from its pod and its claim.

Pure; called by `observing`. A claim that is being deleted counts as a request: the deletion cannot be undone,
and completes with the pod's. A volume on a node that is drained or down is expected to return: only a volume
whose affinity matches no existing node counts as unreachable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from ottla_operator.planning.observed import VolumeLoss
from ottla_operator.resources.common import DELETE_VOLUME_ANNOTATION

Object = Mapping[str, Any]

# The scheduler's message: "0/3 nodes are available: 3 node(s) had volume node affinity conflict. preemption:
# …".
_NODES_AVAILABLE = re.compile(r"^0/[0-9]+ nodes are available: (.*?)\.(?: |$)")
_WRONG_NODE: Final = (
    "had volume node affinity conflict",
    "didn't match PersistentVolume's node affinity",
)


def volume_loss(pod: Object | None, claim: Object | None, claim_name: str) -> VolumeLoss | None:
    """Why the volume must be replaced; None: it stays."""
    if pod is not None and not _uses(pod, claim_name):
        return None
    requested = {_requested(item) for item in (pod, claim) if item is not None}
    if "force" in requested:
        return VolumeLoss("Forced", f"{DELETE_VOLUME_ANNOTATION} is force")
    if claim is None:
        # Without a pod no data is lost: the StatefulSet creates the claim, then the pod.
        return VolumeLoss("Gone", f"its claim {claim_name} does not exist") if pod is not None else None
    if (claim.get("status") or {}).get("phase") == "Lost":
        return VolumeLoss("Gone", f"its claim {claim_name} has lost its volume")
    if "true" in requested:
        return VolumeLoss("Requested", f"{DELETE_VOLUME_ANNOTATION} is true")
    if claim["metadata"].get("deletionTimestamp"):
        return VolumeLoss("Requested", f"its claim {claim_name} is being deleted")
    if pod is not None and _is_unreachable(pod):
        return VolumeLoss("Unreachable", "no existing node can attach its volume")
    return None


def _uses(pod: Object, claim_name: str) -> bool:
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    return any((v.get("persistentVolumeClaim") or {}).get("claimName") == claim_name for v in volumes)


def _requested(item: Object) -> str:
    annotations = item["metadata"].get("annotations") or {}
    return str(annotations.get(DELETE_VOLUME_ANNOTATION, "")).lower()


def _is_unreachable(pod: Object) -> bool:
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            found = _NODES_AVAILABLE.match(str(condition.get("message") or ""))
            reasons = found[1].split(", ") if found else []
            return bool(reasons) and all(reason.endswith(_WRONG_NODE) for reason in reasons)
    return False
