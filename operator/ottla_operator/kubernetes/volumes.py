"""Compares the volumes of brokers, ZooKeeper servers and drivers with the storage that a spec describes.

Pure; called by the platform and the drivers. What Kubernetes allows: a claim can grow, never shrink, and
keeps its class. The volumeClaimTemplate of a StatefulSet cannot change at all, so the StatefulSet is created
again around its pods; it applies to new volumes only.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from ottla_operator.conditions import Finding, no
from ottla_operator.kubernetes.manifests_common import Manifest
from ottla_operator.kubernetes.observing import Object, name_of
from ottla_operator.resources.common import parse_quantity


def is_smaller(claim: Object, size: str | int) -> bool:
    """Whether the claim, or the template of one, requests less than this."""
    requested, wanted = parse_quantity(_requested(claim)), parse_quantity(size)
    return requested is not None and wanted is not None and requested < wanted


def is_larger(claim: Object, size: str | int) -> bool:
    """Whether the claim requests more than this."""
    requested, wanted = parse_quantity(_requested(claim)), parse_quantity(size)
    return requested is not None and wanted is not None and requested > wanted


def growth(size: str | int) -> Manifest:
    """The patch that lets a claim grow."""
    return {"spec": {"resources": {"requests": {"storage": str(size)}}}}


def never_shrinking(manifest: Manifest, live: Object | None) -> Manifest:
    """The StatefulSet's manifest with the size of the live one's volumes, if that is larger: new volumes are
    not smaller than those of the others."""
    existing = {name_of(template): _requested(template) for template in _templates(live or {})}
    kept = copy.deepcopy(manifest)
    for template in _templates(kept):
        size = existing.get(name_of(template), "0")
        if is_smaller(template, size):
            template["spec"]["resources"]["requests"]["storage"] = size
    return kept


def differences(
    claims: Iterable[Object], size: str | int, storage_class: str | None, field: str
) -> list[str]:
    """What the volumes do not have of the spec's storage. `field`: its path in the spec."""
    found = []
    for claim in claims:
        has, name = claim["spec"].get("storageClassName"), name_of(claim)
        if is_larger(claim, size):
            found.append(f"{name} has {_requested(claim)}, more than {field}.size {size}")
        if storage_class is not None and has is not None and has != storage_class:
            found.append(f"{name} has class {has or repr(has)}, not {field}.class {storage_class}")
    return found


def classes_to_check(
    claims: Iterable[Object], storage_class: str | None, field: str
) -> dict[str | None, str]:
    """Classes that the volumes need and that may not exist, each with what names it; None for the default
    one. A class that a bound claim has need not exist: its volumes may be created by hand."""
    claims = list(claims)
    bound = {claim["spec"].get("storageClassName") for claim in claims if _phase(claim) == "Bound"}
    needed: dict[str | None, str] = {} if storage_class is None else {storage_class: f"{field}.class"}
    for claim in claims:
        if _phase(claim) == "Pending":
            needed.setdefault(
                claim["spec"].get("storageClassName"), f"PersistentVolumeClaim {name_of(claim)}"
            )
    return {name: what for name, what in needed.items() if name is None or name not in bound}


def _phase(claim: Object) -> str:
    return str((claim.get("status") or {}).get("phase", ""))


def finding_of(found: Iterable[str]) -> list[Finding]:
    """The condition of a resource whose volumes differ from its spec; empty when none does."""
    text = "; ".join(found)
    if not text:
        return []
    why = "volumes cannot shrink or change their class; only new ones and replacements get the spec's class"
    return [no("VolumesMatch", "VolumesDiffer", f"{text}: {why}")]


def _requested(claim: Object) -> str:
    return str(claim["spec"]["resources"]["requests"]["storage"])


def _templates(stateful_set: Any) -> list[Any]:
    return list((stateful_set.get("spec") or {}).get("volumeClaimTemplates") or ())
