"""From a broker's pod and its claim to what is wrong with its volume, or what people asked to do with it.

Pure; called by observing. A claim that is being deleted is a wish, too: it cannot be taken back, and the
volume goes as soon as the pod does. A volume whose node is drained or down is expected back: only one that no
node at all can have, for each has another volume affinity, counts as out of reach.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from ottla_operator.planning.observed import VolumeLoss
from ottla_operator.resources.common import DELETE_VOLUME_ANNOTATION

Object = Mapping[str, Any]

# The scheduler says: "0/3 nodes are available: 3 node(s) had volume node affinity conflict. preemption: …".
_NODES_AVAILABLE = re.compile(r"^0/[0-9]+ nodes are available: (.*?)\.(?: |$)")
_WRONG_NODE: Final = (
    "had volume node affinity conflict",
    "didn't match PersistentVolume's node affinity",
)


def volume_loss(pod: Object | None, claim: Object | None, claim_name: str) -> VolumeLoss | None:
    """None: the volume is to stay."""
    if pod is not None and not _uses(pod, claim_name):
        return None
    asked = {_asked(item) for item in (pod, claim) if item is not None}
    if "force" in asked:
        return VolumeLoss("Forced", f"{DELETE_VOLUME_ANNOTATION} says force")
    if claim is None:
        # Without a pod there is nothing to lose: the set makes a claim, then the pod.
        return VolumeLoss("Gone", f"its claim {claim_name} is gone") if pod is not None else None
    if (claim.get("status") or {}).get("phase") == "Lost":
        return VolumeLoss("Gone", f"its claim {claim_name} has lost its volume")
    if "true" in asked:
        return VolumeLoss("Requested", f"{DELETE_VOLUME_ANNOTATION} asks for it")
    if claim["metadata"].get("deletionTimestamp"):
        return VolumeLoss("Requested", f"its claim {claim_name} is being deleted")
    if pod is not None and _out_of_reach(pod):
        return VolumeLoss("Unreachable", "no node that is left can have its volume")
    return None


def _uses(pod: Object, claim_name: str) -> bool:
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    return any((v.get("persistentVolumeClaim") or {}).get("claimName") == claim_name for v in volumes)


def _asked(item: Object) -> str:
    annotations = item["metadata"].get("annotations") or {}
    return str(annotations.get(DELETE_VOLUME_ANNOTATION, "")).lower()


def _out_of_reach(pod: Object) -> bool:
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            found = _NODES_AVAILABLE.match(str(condition.get("message") or ""))
            reasons = found[1].split(", ") if found else []
            return bool(reasons) and all(reason.endswith(_WRONG_NODE) for reason in reasons)
    return False
