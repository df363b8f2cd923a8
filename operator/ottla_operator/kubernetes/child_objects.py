"""One cluster's child objects: as listed at the start of a pass, and as our own writes left them since.

Called by the platform. A write is put into the lists at once, so that no step of a pass acts on what the one
before has changed. An error of the API's becomes StepFailed here, and goes no further.
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
    """The objects with a cluster's label in its namespace; `component`: of that one alone."""

    def __init__(self, api: Api, namespace: str, cluster: str, component: str = "") -> None:
        self._api = api
        self.namespace = namespace
        self._selector = f"{naming.CLUSTER_LABEL}={cluster}"
        if component:
            self._selector += f",{naming.COMPONENT_LABEL}={component}"
        self.listed = Listed()

    async def list(self, *, secrets: bool = False, kinds: Sequence[str] = _KINDS) -> None:
        """Begin a pass. Raises ApiError: without lists there is no pass. `secrets`: these, too."""
        kinds = (*kinds, "Secret") if secrets else kinds
        lists = await asyncio.gather(
            *(self._api.list(kind, self.namespace, self._selector) for kind in kinds)
        )
        self.listed = Listed.of(dict(zip(kinds, lists, strict=True)))

    async def find_unlabelled(self, kind: str, name: str) -> None:
        """Take into the lists what has lost its labels, or never had ours: it is not to be overwritten."""
        try:
            self._put(kind, await self._api.get(kind, self.namespace, name))
        except NotFound:
            return
        except ApiError as error:
            raise StepFailed("NotReadable", f"{kind} {name}: {error.message}") from None

    async def nodes(self) -> dict[str, Object]:
        try:
            return {name_of(node): node for node in await self._api.list("Node", None)}
        except ApiError as error:
            raise StepFailed("NodesUnknown", f"the nodes cannot be listed: {error.message}") from None

    # ---- writes

    async def ensure(self, manifest: Manifest) -> str:
        """Apply what is missing or differs. What was done, in words, or ""."""
        kind, name = manifest["kind"], name_of(manifest)
        live = self.listed.find(kind, name)
        differs = ""
        if live is not None:
            differs = difference(live, manifest).lstrip(".")
            # One that is being deleted comes back once it is gone.
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
        ours = _applied(live) != _applied(manifest)
        return f"update {kind} {name}" if ours else f"repair {kind} {name}: {differs}"

    async def patch(self, kind: str, live: Object, patch: Object, reason: str) -> None:
        """Merge-patch the object as it was listed, and no newer version. `reason` of a failure."""
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
        """Its volume goes with it once no pod uses it any more."""
        await self._delete_this("PersistentVolumeClaim", claim)

    async def _delete_this(self, kind: str, item: Object) -> None:
        """This very object: one that came in the meantime is never meant."""
        name = name_of(item)
        try:
            await self._api.delete(kind, self.namespace, name, uid=uid_of(item))
        except Conflict:
            log.info("%s %s is another one by now", kind, name)
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
        """Delete the set and leave its pods behind, for a new one to take over. What was done, or ""."""
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
