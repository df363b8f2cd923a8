"""Lists, applies, patches and deletes a cluster's child objects.

Used by the platform, which lists the objects at the start of a reconciliation. The lists are updated by each
write, so that later steps of the same reconciliation see the result of earlier ones. An ApiError of a write
becomes StepFailed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from ottla_operator.kubernetes import naming
from ottla_operator.kubernetes.api import Api, ApiError, Conflict, NotFound
from ottla_operator.kubernetes.manifests_common import Manifest, difference
from ottla_operator.kubernetes.observing import Listed, Object, annotations_of, name_of, uid_of
from ottla_operator.platform.interfaces import StepFailed

log = logging.getLogger(__name__)

_KINDS: Final = (
    "Pod",
    "ConfigMap",
    "StatefulSet",
    "Service",
    "ServiceAccount",
    "PersistentVolumeClaim",
    "PodDisruptionBudget",
    "NetworkPolicy",
)


class ChildObjects:
    """The objects with a cluster's label in its namespace. `component`: only those of that component."""

    def __init__(self, api: Api, namespace: str, cluster: str, component: str = "") -> None:
        self._api = api
        self.namespace = namespace
        self._selector = f"{naming.CLUSTER_LABEL}={cluster}"
        if component:
            self._selector += f",{naming.COMPONENT_LABEL}={component}"
        self.listed = Listed()

    async def list(self, *, secrets: bool = False, kinds: Sequence[str] = _KINDS) -> None:
        """List the objects at the start of a reconciliation. `secrets`: with Secrets. Raises ApiError."""
        kinds = (*kinds, "Secret") if secrets else kinds
        lists = await asyncio.gather(
            *(self._api.list(kind, self.namespace, self._selector) for kind in kinds)
        )
        self.listed = Listed.of(dict(zip(kinds, lists, strict=True)))

    async def find_unlabelled(self, kind: str, name: str) -> None:
        """Add an object without the cluster's label to the lists, so that it is not created again."""
        try:
            self._put(kind, await self._api.get(kind, self.namespace, name))
        except NotFound:
            return
        except ApiError as error:
            raise StepFailed("NotReadable", f"{kind} {name}: {error.message}") from None

    async def nodes(self) -> dict[str, Object]:
        """The nodes of the Kubernetes cluster by name."""
        try:
            return {name_of(node): node for node in await self._api.list("Node", None)}
        except ApiError as error:
            raise StepFailed("NodesUnknown", f"the nodes cannot be listed: {error.message}") from None

    # ---- writes

    async def ensure(self, manifest: Manifest) -> str:
        """Apply a manifest if the object is missing or differs. Returns a description, or ""."""
        kind, name = manifest["kind"], name_of(manifest)
        live = self.listed.find(kind, name)
        differs = ""
        if live is not None:
            differs = difference(live, manifest).lstrip(".")
            # An object that is being deleted is created again after its deletion.
            if not differs or live["metadata"].get("deletionTimestamp"):
                return ""
        try:
            applied = await self._api.apply(manifest)
        except ApiError as error:
            raise StepFailed("ApplyFailed", f"{kind} {name}: {error.message}") from None
        self._put(kind, applied)
        if live is None:
            return f"create {kind} {name}"
        if _version(live) == _version(applied):
            return ""
        has_new_manifest = _applied(live) != _applied(manifest)
        return f"update {kind} {name}" if has_new_manifest else f"repair {kind} {name}: {differs}"

    async def patch(self, kind: str, live: Object, patch: Object, reason: str) -> None:
        """Merge-patch the object if it still has the listed version. `reason`: of the StepFailed."""
        name = name_of(live)
        metadata = {"resourceVersion": _version(live), **patch.get("metadata", {})}
        try:
            patched = await self._api.merge(kind, self.namespace, name, {**patch, "metadata": metadata})
        except ApiError as error:
            raise StepFailed(reason, f"{kind} {name}: {error.message}") from None
        self._put(kind, patched)

    async def scale(self, stateful_set: Object, replicas: int) -> None:
        await self.patch("StatefulSet", stateful_set, {"spec": {"replicas": replicas}}, "ScaleFailed")

    async def delete_pod(self, pod: Object) -> None:
        await self._delete_this("Pod", pod)

    async def delete_claim(self, claim: Object) -> None:
        """Delete a claim; its volume is deleted when no pod uses it."""
        await self._delete_this("PersistentVolumeClaim", claim)

    async def _delete_this(self, kind: str, item: Object) -> None:
        """Delete the object with this uid, not a newer one of the same name."""
        name = name_of(item)
        try:
            await self._api.delete(kind, self.namespace, name, uid=uid_of(item))
        except Conflict:
            log.info("%s %s was replaced by a newer object and is not deleted", kind, name)
        except ApiError as error:
            raise StepFailed("DeleteFailed", f"{kind} {name}: {error.message}") from None

    async def delete(self, kind: str, name: str) -> None:
        try:
            await self._api.delete(kind, self.namespace, name)
        except ApiError as error:
            raise StepFailed("DeleteFailed", f"{kind} {name}: {error.message}") from None
        left = {other: item for other, item in self.listed.objects.get(kind, {}).items() if other != name}
        self.listed = Listed({**self.listed.objects, kind: left})

    async def orphan(self, stateful_set: Object) -> str:
        """Delete the StatefulSet without its pods, which a new one adopts. Returns a description, or ""."""
        name = name_of(stateful_set)
        if stateful_set["metadata"].get("deletionTimestamp"):
            return ""
        try:
            await self._api.delete(
                "StatefulSet", self.namespace, name, uid=uid_of(stateful_set), propagation="Orphan"
            )
        except ApiError as error:
            raise StepFailed("RecreateFailed", f"StatefulSet {name}: {error.message}") from None
        return f"recreate StatefulSet {name} around its pods"

    def _put(self, kind: str, item: Object) -> None:
        items = {**self.listed.objects.get(kind, {}), name_of(item): item}
        self.listed = Listed({**self.listed.objects, kind: items})


def _version(item: Object) -> str:
    return str(item["metadata"].get("resourceVersion", ""))


def _applied(item: Object) -> str | None:
    return annotations_of(item).get(naming.APPLIED_ANNOTATION)
