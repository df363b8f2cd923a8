"""Lists, applies, patches and deletes a cluster's child objects.

Used by the platform, which lists the objects at the start of a reconciliation. The lists are updated by each
write, so that later steps of the same reconciliation see the result of earlier ones. An ApiError of a write
becomes StepFailed.

A child is restored completely: fields of the manifest that have another value, and fields that another
manager added (`managed_fields`). An annotation of the child counts the restorations of each field. A field
that comes back again and again is left to its setter for an hour, and is reported (`findings`): two
controllers must not fight. So is a field that a webhook changes in the operator's own request.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from ottla_operator.conditions import Finding, iso_time, parse_iso_time, yes
from ottla_operator.kubernetes import naming
from ottla_operator.kubernetes.api import Api, ApiError, Conflict, Forbidden, Invalid, NotFound
from ottla_operator.kubernetes.managed_fields import (
    MISSING,
    ForeignField,
    applied_part,
    changed_metadata,
    foreign_fields,
    taken_over,
    value_at,
    with_values_of,
    without,
)
from ottla_operator.kubernetes.manifests_common import Manifest, claim_owner, difference
from ottla_operator.kubernetes.observing import Listed, Object, annotations_of, name_of, uid_of
from ottla_operator.kubernetes.volumes import growth
from ottla_operator.platform.interfaces import Ensured, StepFailed
from ottla_operator.resources import BrokerCluster, Pipeline

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
# Kinds that most clusters do not use: listed only for those that do, or may have done so before.
_OPTIONAL: Final = ("Certificate", "Ingress", "TLSRoute")

# A field that comes back after this many restorations is contested, for as long as the last one is this
# recent.
RESTORATIONS_MAX: Final = 5
CONTESTED_MS: Final = 3_600_000

# The deletion of an object in the foreground waits for pods, which take their time.
_DELETION_MS: Final = 300_000

# Kinds that can be deleted and created again without a loss, when a field cannot be changed.
_RECREATED: Final = ("ConfigMap", "RoleBinding", "Service", "ServiceAccount")
_IMMUTABLE: Final = ("immutable", "cannot change roleRef", "updates to statefulset spec")


class ChildObjects:
    """The objects with a cluster's label in its namespace. `component`: only those of that component.
    `selector`: other objects than those of a cluster."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        cluster: str,
        clock_ms: Callable[[], int],
        component: str = "",
        selector: str = "",
    ) -> None:
        self._api = api
        self._clock_ms = clock_ms
        self.namespace = namespace
        self._selector = selector or f"{naming.CLUSTER_LABEL}={cluster}"
        if component:
            self._selector += f",{naming.COMPONENT_LABEL}={component}"
        self.listed = Listed()
        self._contested: dict[tuple[str, str], Sequence[str]] = {}
        self._relabelled: list[tuple[str, str, Mapping[str, str]]] = []
        self.unavailable: Mapping[str, str] = {}
        """Why optional kinds cannot be listed, by kind."""
        self._may_exist = frozenset(_OPTIONAL)

    def findings(self, of: Collection[Manifest] | None = None) -> list[Finding]:
        """The condition with the fields that `ensure` left as another manager set them; empty when there are
        none. `of`: only those of these objects."""
        names = None if of is None else {(manifest["kind"], name_of(manifest)) for manifest in of}
        contested = sorted(item for item in self._contested.items() if names is None or item[0] in names)
        text = "; ".join(f"{kind} {name}: {'; '.join(fields)}" for (kind, name), fields in contested)
        return [yes("Contested", "FieldsComeBack", text)] if text else []

    async def list(
        self,
        *,
        secrets: bool = False,
        kinds: Sequence[str] = _KINDS,
        optional: Collection[str] | None = None,
    ) -> None:
        """List the objects at the start of a reconciliation. `secrets`: with Secrets; `optional`: the
        optional kinds that are used, None: without any. Raises ApiError."""
        kinds = (*kinds, "Secret") if secrets else kinds
        lists = await asyncio.gather(
            *(self._api.list(kind, self.namespace, self._selector) for kind in kinds)
        )
        listed = dict(zip(kinds, lists, strict=True))
        unavailable = {}
        for kind in sorted(self._may_exist.union(optional)) if optional is not None else ():
            try:
                listed[kind] = await self._api.list(kind, self.namespace, self._selector)
            except (NotFound, Forbidden) as error:
                unavailable[kind] = error.message
        self.unavailable = unavailable
        # The first time all are listed; then those that there are, until they are gone.
        self._may_exist = frozenset(kind for kind in _OPTIONAL if listed.get(kind))
        self.listed = Listed.of(listed)
        self._contested = {}
        self._relabelled = []

    async def find_unlabelled(self, kind: str, name: str) -> str:
        """Add an object without the cluster's label to the lists, so that it is not created again."""
        try:
            self._put(kind, await self._api.get(kind, self.namespace, name))
        except NotFound:
            pass
        except ApiError as error:
            raise _failure("NotReadable", f"{kind} {name}", error) from None
        return ""

    async def find_relabelled(self, kind: str, name: str, labels: Mapping[str, str]) -> None:
        """Find a pod or claim of which a user changed or removed the labels by which it is listed: it
        counts as if it had them, until `restore_labels`. Raises ApiError."""
        item = self.listed.find(kind, name)
        if item is None:
            try:
                item = await self._api.get(kind, self.namespace, name)
            except NotFound:
                return
        has = item["metadata"].get("labels") or {}
        if any(has.get(key) != value for key, value in labels.items()):
            self._put(kind, {**item, "metadata": {**item["metadata"], "labels": {**has, **labels}}})
            self._relabelled.append((kind, name, labels))

    async def restore_labels(self, ensured: Ensured) -> None:
        found, self._relabelled = self._relabelled, []
        for kind, name, labels in found:
            await ensured.attempt(self._restore_labels(kind, name, labels))

    async def _restore_labels(self, kind: str, name: str, labels: Mapping[str, str]) -> str:
        live = self.listed.find(kind, name)
        assert live is not None, f"{kind} {name} was found"
        await self.patch(kind, live, {"metadata": {"labels": dict(labels)}}, "LabelsNotRestored")
        return f"restore the labels of {kind} {name}"

    async def nodes(self) -> dict[str, Object]:
        """The nodes of the Kubernetes cluster by name."""
        try:
            return {name_of(node): node for node in await self._api.list("Node", None)}
        except ApiError as error:
            raise StepFailed("NodesUnknown", f"the nodes cannot be listed: {error.message}") from None

    async def check_storage_class(self, name: str, what: str) -> str:
        """Raise StepFailed if there is no such StorageClass. `what`: names it. Returns ""."""
        try:
            await self._api.get("StorageClass", None, name)
        except NotFound:
            existing = ", ".join(sorted(name_of(item) for item in await self._api.list("StorageClass", None)))
            message = f"{what}: there is no StorageClass {name}; existing: {existing or 'none'}"
            raise StepFailed("StorageClassNotFound", message) from None
        except ApiError as error:
            log.warning("StorageClass %s cannot be read: %s", name, error.message)
        return ""

    # ---- writes

    async def ensure(self, manifest: Manifest) -> str:
        """Create the object, or restore it completely. Returns a description, or ""."""
        kind, name = manifest["kind"], name_of(manifest)
        live = self.listed.find(kind, name)
        if live is None:
            self._put(kind, await self._apply(manifest))
            return f"create {kind} {name}"
        if live["metadata"].get("deletionTimestamp"):
            return self._await_deletion(live)
        foreign, now_ms = foreign_fields(live), self._clock_ms()
        history = _restorations(live)
        contested = [field for field in foreign if _is_contested(history.get(str(field)), now_ms)]
        restored = [field for field in foreign if field not in contested]
        yielded = [field.path for field in contested]
        differs = difference(without(live, yielded), without(manifest, yielded)).lstrip(".")
        stays = [f"{field} came back {RESTORATIONS_MAX} times" for field in contested]
        if not differs and not restored:
            self._note(kind, name, stays)
            return ""
        if restored and not await self._take_over(live, manifest, restored, history):
            return ""
        try:
            applied = await self._api.apply(with_values_of(manifest, live, yielded))
        except Invalid as error:
            if not any(text in error.message for text in _IMMUTABLE):
                raise _failure("ApplyFailed", f"{kind} {name}", error) from None
            return await self._recreate(live, manifest, error)
        except ApiError as error:
            raise _failure("ApplyFailed", f"{kind} {name}", error) from None
        self._put(kind, applied)
        other = _changed_by_server(without(applied, yielded), without(manifest, yielded))
        if other:
            stays.append(f"{other} is changed in the operator's own request, as by an admission webhook")
        self._note(kind, name, stays)
        return _described(live, applied, manifest, restored, differs)

    def _await_deletion(self, live: Object) -> str:
        """An object that is being deleted is created again after its deletion, which a finalizer may
        prevent."""
        since = str(live["metadata"]["deletionTimestamp"])
        finalizers = live["metadata"].get("finalizers") or ()
        if finalizers and self._clock_ms() - parse_iso_time(since) > _DELETION_MS:
            what = f"{live['kind']} {name_of(live)} is being deleted since {since}"
            raise StepFailed(
                "DeletionHangs", f"{what}, and waits for its finalizers: {', '.join(finalizers)}"
            )
        return ""

    async def remove_additions(self, manifest: Manifest) -> str:
        """Remove the fields that another manager added to an object whose manifest must not be applied yet.
        Values that the manifest has, too, may have been changed: those wait. Returns a description, or ""."""
        kind, name = manifest["kind"], name_of(manifest)
        live, now_ms = self.listed.find(kind, name), self._clock_ms()
        if live is None or live["metadata"].get("deletionTimestamp"):
            return ""
        history = _restorations(live)
        added = [
            field
            for field in foreign_fields(live)
            if value_at(manifest, field.path) is MISSING
            and not _is_contested(history.get(str(field)), now_ms)
        ]
        own = applied_part(live)
        if not added or not await self._take_over(live, own, added, history):
            return ""
        applied = await self._apply(own)
        self._put(kind, applied)
        return _described(live, applied, own, added, "")

    async def _apply(self, manifest: Manifest) -> Object:
        try:
            return await self._api.apply(manifest)
        except ApiError as error:
            raise _failure("ApplyFailed", f"{manifest['kind']} {name_of(manifest)}", error) from None

    async def _take_over(
        self,
        live: Object,
        manifest: Manifest,
        fields: Sequence[ForeignField],
        history: Mapping[str, tuple[int, int]],
    ) -> bool:
        """Become the owner of these fields, so that the next apply removes them. Returns False when the
        object has changed since it was listed: the next reconciliation restores it."""
        kind, name, now_ms = manifest["kind"], name_of(manifest), self._clock_ms()
        counts = {
            key: (times, at_ms)
            for key, (times, at_ms) in history.items()
            if now_ms - at_ms < CONTESTED_MS or times == RESTORATIONS_MAX
        }
        for field in fields:
            if _differs_at(live, manifest, field):
                counts[str(field)] = (
                    min(history.get(str(field), (0, 0))[0], RESTORATIONS_MAX - 1) + 1,
                    now_ms,
                )
        # Without this annotation, an operator that dies now applies the manifest later.
        left = {key: value for key, value in annotations_of(live).items() if key != naming.APPLIED_ANNOTATION}
        text = json.dumps({key: [times, iso_time(at)] for key, (times, at) in counts.items()}, sort_keys=True)
        annotations = {**left, naming.RESTORED_ANNOTATION: text}
        try:
            await self._api.replace_owners(
                kind, self.namespace, name, _version(live), taken_over(live, fields), annotations
            )
        except Conflict:
            log.debug("%s %s has changed and is restored later", kind, name)
            return False
        except ApiError as error:
            raise _failure("ApplyFailed", f"{kind} {name}", error) from None
        return True

    async def _recreate(self, live: Object, manifest: Manifest, error: ApiError) -> str:
        """Delete the object and create it again, since a field cannot be changed; a StatefulSet without its
        pods, which the new one adopts."""
        kind, name = manifest["kind"], name_of(manifest)
        if kind == "StatefulSet":
            return await self.orphan(live)
        if kind not in _RECREATED or live.get("spec", {}).get("type") == "LoadBalancer":
            raise _failure("ApplyFailed", f"{kind} {name}", error)
        await self._delete_this(kind, live)
        self._put(kind, await self._apply(manifest))
        return f"recreate {kind} {name}: {error.message}"

    def _note(self, kind: str, name: str, fields: Sequence[str]) -> None:
        self._contested.pop((kind, name), None)
        if fields:
            self._contested[kind, name] = fields

    async def patch(self, kind: str, live: Object, patch: Object, reason: str) -> None:
        """Merge-patch the object if it still has the listed version. `reason`: of the StepFailed."""
        name = name_of(live)
        metadata = {"resourceVersion": _version(live), **patch.get("metadata", {})}
        try:
            patched = await self._api.merge(kind, self.namespace, name, {**patch, "metadata": metadata})
        except ApiError as error:
            raise _failure(reason, f"{kind} {name}", error) from None
        self._put(kind, patched)

    async def scale(self, stateful_set: Object, replicas: int) -> None:
        await self.patch("StatefulSet", stateful_set, {"spec": {"replicas": replicas}}, "ScaleFailed")

    async def grow(self, claim: Object, size: str | int, field: str) -> str:
        """`field`: the path of the storage in the spec."""
        try:
            await self.patch("PersistentVolumeClaim", claim, growth(size), "VolumeNotGrown")
        except StepFailed as failure:
            raise StepFailed(failure.reason, f"{field}.size {size}: {failure.message}") from None
        return f"grow volume {name_of(claim)} to {size}"

    async def own_claim(self, owner: BrokerCluster | Pipeline, claim: Object, *, delete: bool) -> str:
        """Have the claim deleted with its BrokerCluster or Pipeline, or not. A StatefulSet's own policy would
        delete it whenever a user deletes the StatefulSet."""
        owners = list(claim["metadata"].get("ownerReferences") or ())
        wanted = [each for each in owners if each.get("uid") != owner.metadata.uid]
        wanted += [claim_owner(owner)] if delete else []
        if wanted == owners:
            return ""
        patch = {"metadata": {"ownerReferences": wanted}}
        await self.patch("PersistentVolumeClaim", claim, patch, "ClaimNotOwned")
        return f"{'delete' if delete else 'keep'} {name_of(claim)} when the {owner.kind} is deleted"

    async def check_pod(self, stateful_set: Manifest, name: str) -> None:
        """Raise StepFailed if the API server would refuse this pod of the set, such as for a service account
        that does not exist: so that none is stopped for it. Creates nothing."""
        template = stateful_set["spec"]["template"]
        claims = [claim["metadata"]["name"] for claim in stateful_set["spec"].get("volumeClaimTemplates", ())]
        volumes = [
            {"name": each, "persistentVolumeClaim": {"claimName": f"{each}-{name}"}} for each in claims
        ]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**template["metadata"], "name": name, "namespace": self.namespace},
            "spec": {**template["spec"], "volumes": [*template["spec"].get("volumes", ()), *volumes]},
        }
        try:
            await self._api.create(pod, dry_run=True)
        except (Forbidden, Invalid) as error:
            # With the old pod, a quota may be used up that is not without it; a role may not allow to ask.
            if not any(text in error.message for text in ("exceeded quota", "cannot create resource")):
                raise _failure("PodRefused", f"the new revision of pod {name}", error) from None
        except ApiError:
            return  # it exists, which is looked at last; or a webhook cannot be asked without effect

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
            raise _failure("DeleteFailed", f"{kind} {name}", error) from None

    async def delete(self, kind: str, name: str) -> None:
        try:
            await self._api.delete(kind, self.namespace, name)
        except ApiError as error:
            raise _failure("DeleteFailed", f"{kind} {name}", error) from None
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
            raise _failure("RecreateFailed", f"StatefulSet {name}", error) from None
        return f"recreate StatefulSet {name} around its pods"

    def _put(self, kind: str, item: Object) -> None:
        items = {**self.listed.objects.get(kind, {}), name_of(item): item}
        self.listed = Listed({**self.listed.objects, kind: items})


def _version(item: Object) -> str:
    return str(item["metadata"].get("resourceVersion", ""))


def _applied(item: Object) -> str | None:
    return annotations_of(item).get(naming.APPLIED_ANNOTATION)


def _failure(reason: str, what: str, error: ApiError) -> StepFailed:
    return StepFailed(reason, f"{what}: {error.message}", unreachable=error.status == 0)


# ---- restorations


def _restorations(live: Object) -> dict[str, tuple[int, int]]:
    """How often each foreign field was restored, and when last, in milliseconds since the epoch."""
    try:
        content = json.loads(annotations_of(live).get(naming.RESTORED_ANNOTATION, "{}"))
        return {str(key): (int(times), parse_iso_time(at)) for key, (times, at) in content.items()}
    except (AttributeError, TypeError, ValueError):
        # It was edited.
        return {}


def _is_contested(restoration: tuple[int, int] | None, now_ms: int) -> bool:
    if restoration is None:
        return False
    times, at_ms = restoration
    return times >= RESTORATIONS_MAX and now_ms - at_ms < CONTESTED_MS


def _differs_at(live: Object, manifest: Manifest, field: ForeignField) -> bool:
    """Whether the field has another value than in the manifest; also one that is only there."""
    wanted = value_at(manifest, field.path)
    return wanted is MISSING or bool(difference({"": value_at(live, field.path)}, {"": wanted}))


def _changed_by_server(applied: Object, manifest: Manifest) -> str:
    """The path of a field that has another value after the apply; not one that is empty in the manifest,
    which the API server may leave out."""
    return difference(applied, _without_empty(manifest)).lstrip(".")


def _without_empty(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _without_empty(inner) for key, inner in value.items() if inner or inner is True}
    return [_without_empty(inner) for inner in value] if isinstance(value, list) else value


def _described(
    live: Object, applied: Object, manifest: Manifest, restored: Collection[ForeignField], differs: str
) -> str:
    """What has changed, and who had changed it before."""
    what = f"{manifest['kind']} {name_of(manifest)}"
    if _content(live) == _content(applied):
        return ""
    changed = [field for field in restored if value_at(live, field.path) != value_at(applied, field.path)]
    changed += changed_metadata(live, manifest)
    parts = [str(field) for field in changed]
    if _applied(live) != _applied(manifest):
        return f"update {what}" + (f", restoring {'; '.join(parts)}" if parts else "")
    if differs and not any(_stem(differs).startswith(_stem(field.name)) for field in changed):
        parts.append(differs)
    return f"repair {what}: {'; '.join(parts)}"


def _stem(path: str) -> str:
    """The path to the first list: items have indices in one notation and keys in the other."""
    return path.partition("[")[0]


def _content(item: Object) -> Object:
    """The object without what each write changes, and what the operator notes."""
    metadata = {
        name: value
        for name, value in item["metadata"].items()
        if name not in ("managedFields", "resourceVersion", "generation")
    }
    annotations = {**annotations_of(item)}
    annotations.pop(naming.RESTORED_ANNOTATION, None)
    return {**item, "metadata": {**metadata, "annotations": annotations}}
