"""The `Store` interface over the API server: the resources of one cluster.

Used by the reconciler. Invariants: a resource gets the operator's finalizer before any step for it; a status
replaces only the version that was read; an invalid spec becomes a condition and has no other effect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ottla_operator.conditions import Condition, find, is_unusual, parse_iso_time
from ottla_operator.kubernetes.api import Api, Conflict, NotFound, Object
from ottla_operator.kubernetes.naming import FINALIZER
from ottla_operator.platform.interfaces import Recorder
from ottla_operator.reconcile import DELETION_DEADLINE_MS
from ottla_operator.resources import API_VERSION, KINDS, AnyResource, BrokerCluster
from ottla_operator.resources.common import Metadata, Status
from ottla_operator.resources.loading import invalid_status, parse_resource

log = logging.getLogger(__name__)


class KubernetesStore:
    """The BrokerCluster of this name in this namespace, and the resources that refer to it."""

    def __init__(
        self, api: Api, namespace: str, cluster: str, clock_ms: Callable[[], int], recorder: Recorder
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._cluster = cluster
        self._clock_ms = clock_ms
        self._recorder = recorder
        self._live: dict[str, Object] = {}
        """Objects by resource key, as listed in this reconciliation or returned by the last write."""
        self.resource_count = 0
        """The number of listed resources, including invalid ones."""

    # ---- reading

    async def resources(self) -> Sequence[AnyResource]:
        lists = await asyncio.gather(*(self._api.list(kind, self._namespace) for kind in KINDS))
        listed = [
            (kind, item)
            for kind, items in zip(KINDS, lists, strict=True)
            for item in items
            if self._refers_to_cluster(kind, item)
        ]
        self.resource_count = len(listed)
        self._live = {f"{kind}/{item['metadata']['name']}": item for kind, item in listed}
        admitted = await asyncio.gather(*(self._admit(kind, item) for kind, item in listed))
        valid = [resource for resource in admitted if resource is not None]
        cluster = f"{BrokerCluster.definition.kind}/{self._cluster}"
        if cluster in self._live and not any(resource.key == cluster for resource in valid):
            # With an invalid BrokerCluster the brokers run unchanged, and the resources that refer to it
            # wait. Deletions wait until their deadline.
            return [resource for resource in valid if self._is_overdue(resource.metadata.deletion_timestamp)]
        return valid

    def _refers_to_cluster(self, kind: str, item: Object) -> bool:
        if kind == BrokerCluster.definition.kind:
            return bool(item["metadata"]["name"] == self._cluster)
        reference = (item.get("spec") or {}).get("clusterRef") or {}
        return bool(reference.get("name") == self._cluster)

    def _is_overdue(self, deleted_at: str | None) -> bool:
        """Whether a deletion has reached its deadline."""
        return deleted_at is not None and self._clock_ms() - parse_iso_time(deleted_at) > DELETION_DEADLINE_MS

    async def _admit(self, kind: str, item: Object) -> AnyResource | None:
        """The resource, with the finalizer set; None when it is invalid, deleted or changed concurrently."""
        metadata = item["metadata"]
        deleting = metadata.get("deletionTimestamp") is not None
        finalizers = metadata.get("finalizers") or []
        if deleting and FINALIZER not in finalizers:
            # Only finalizers of others are left.
            return None
        resource, problems = parse_resource(kind, metadata, item.get("spec"), item.get("status") or {})
        if resource is None and deleting:
            resource, problems = parse_resource(kind, metadata, _minimal_spec(item), {})
        if resource is None and deleting:
            # The spec cannot be parsed at all. The garbage collector deletes what the resource owns.
            await self._remove_finalizer(f"{kind}/{metadata['name']}")
            return None
        if resource is None:
            await self._invalid(kind, item, [str(problem) for problem in problems])
            return None
        if not deleting and FINALIZER not in finalizers:
            return resource if await self._set_finalizers(resource.key, [*finalizers, FINALIZER]) else None
        return resource

    async def _invalid(self, kind: str, item: Object, problems: list[str]) -> None:
        status = item.get("status") or {}
        try:
            wanted = invalid_status(kind, item["metadata"], status, problems, self._clock_ms())
        except ValueError:
            # The status cannot be parsed, either.
            wanted = invalid_status(kind, item["metadata"], {}, problems, self._clock_ms())
        if wanted == status:
            return
        written = await self._write_status(f"{kind}/{item['metadata']['name']}", wanted)
        if written and not _reported_invalid(status, item["metadata"]):
            message = "; ".join(problems)
            self._recorder.record(_InvalidResource.of(kind, item), "InvalidSpec", message, warning=True)

    # ---- writing

    async def update_status(self, resource: AnyResource, status: Status) -> None:
        written = await self._write_status(resource.key, status.model_dump(by_alias=True, exclude_none=True))
        if not written:
            return
        for condition in status.conditions:
            old = find(resource.status.conditions, condition.type)
            if not _deserves_event(old, condition):
                continue
            message = f"{condition.type} is {condition.status}: {condition.message or condition.reason}"
            warning = is_unusual(condition) and condition.reason not in _EXPECTED
            self._recorder.record(resource, condition.reason, message, warning=warning)

    async def _write_status(self, key: str, status: dict[str, Any]) -> bool:
        kind, _, name = key.partition("/")
        version = self._live[key]["metadata"]["resourceVersion"]
        try:
            self._live[key] = await self._api.replace_status(kind, self._namespace, name, version, status)
        except (Conflict, NotFound):
            # A concurrent change. It causes an event and another reconciliation.
            log.debug("%s changed while its status was written", key)
            return False
        return True

    async def release(self, resource: AnyResource) -> None:
        await self._remove_finalizer(resource.key)

    async def release_deleting(self) -> None:
        """Remove the finalizers of resources that are being deleted, when the operator may not observe their
        cluster.

        This happens in a namespace that is being deleted, after the operator's role binding there. The
        objects that a BrokerCluster owns are deleted with it; topics, quotas and groups with its volumes.
        """
        cluster = self._live.get(f"{BrokerCluster.definition.kind}/{self._cluster}")
        leaving = cluster is None or cluster["metadata"].get("deletionTimestamp") is not None
        for key, item in list(self._live.items()):
            deleted_at = item["metadata"].get("deletionTimestamp")
            has_finalizer = FINALIZER in (item["metadata"].get("finalizers") or [])
            if has_finalizer and deleted_at is not None and (leaving or self._is_overdue(deleted_at)):
                log.warning(
                    "%s/%s is released: the operator has no permission to observe its cluster",
                    self._namespace,
                    key,
                )
                await self._remove_finalizer(key)

    async def _remove_finalizer(self, key: str) -> None:
        finalizers = self._live[key]["metadata"].get("finalizers") or []
        await self._set_finalizers(key, [name for name in finalizers if name != FINALIZER])

    async def _set_finalizers(self, key: str, finalizers: list[str]) -> bool:
        kind, _, name = key.partition("/")
        version = self._live[key]["metadata"]["resourceVersion"]
        patch = {"metadata": {"resourceVersion": version, "finalizers": finalizers}}
        try:
            self._live[key] = await self._api.merge(kind, self._namespace, name, patch)
        except (Conflict, NotFound):
            return False
        return True


@dataclass(frozen=True, slots=True)
class _InvalidResource:
    """The part of a resource with an invalid spec that an Event needs."""

    kind: str
    metadata: Metadata
    api_version: str = API_VERSION

    @classmethod
    def of(cls, kind: str, item: Object) -> _InvalidResource:
        known = {name: item["metadata"].get(name) for name in ("name", "namespace", "uid")}
        return cls(kind, Metadata.model_validate(known))

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.metadata.name}"


def _reported_invalid(status: Object, metadata: Object) -> bool:
    """Whether the status already reports this generation as invalid, so that there was an Event."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "Ready":
            reported = (condition.get("reason"), condition.get("observedGeneration"))
            return reported == ("InvalidSpec", metadata.get("generation"))
    return False


# Reasons of a healthy resource in transition: their Events are Normal.
_EXPECTED = frozenset(("Pending", "Deleting", "Rolling", "ScaleUp", "ScaleDown", "NotRolling", "NotScaling"))

# Reasons without an Event: the steps themselves are recorded.
_TRANSIENT = frozenset(("Applying", "Creating", "ClusterNotReady", "Pending", "WaitingForBrokers"))


def _deserves_event(old: Condition | None, new: Condition) -> bool:
    """Whether a change of a condition is recorded as an Event; not all are, since there may be thousands
    of resources."""
    if new.status == "Unknown" or new.reason in _TRANSIENT:
        return False
    if old is None or old.status == "Unknown":
        return new.type == "Ready"
    return old.status != new.status or (new.status == "False" and old.reason != new.reason)


def _minimal_spec(item: Object) -> Object:
    """The part of an invalid spec that a deletion needs."""
    spec = dict(item.get("spec") or {})
    spec.pop("config", None)
    return spec
