"""The `Store` interface over the API server: the resources of one cluster.

Used by the reconciler. Invariants: before any step for a resource, its spec is in `status.lastValidSpec`, and
a resource whose deletion reaches Kafka has the operator's finalizer. No other has one: the garbage collector
deletes what a BrokerCluster or a Pipeline owns. A status replaces only the version that was read. An invalid
spec becomes a condition and has no other effect: the last valid one stays in force.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ottla_operator.conditions import Condition, Finding, find, is_unusual, no, parse_iso_time
from ottla_operator.kubernetes.api import Api, Conflict, NotFound, Object
from ottla_operator.kubernetes.external_access import metadata_problems
from ottla_operator.kubernetes.listeners import port_problems
from ottla_operator.kubernetes.manifests_common import Images
from ottla_operator.kubernetes.naming import FINALIZER, connect_of, name_problem
from ottla_operator.planning.reassign_requests import EMPTY, REBALANCE
from ottla_operator.planning.rebalance_run import LOAD_REBALANCE
from ottla_operator.platform.interfaces import Recorder
from ottla_operator.reconcile import DELETION_DEADLINE_MS
from ottla_operator.resources import (
    API_VERSION,
    KINDS,
    AnyResource,
    BrokerCluster,
    BrokerPool,
    ConnectCluster,
    Connector,
    Pipeline,
    Problem,
)
from ottla_operator.resources.backup import BackupSpec, RecoverySpec
from ottla_operator.resources.common import Metadata, Status
from ottla_operator.resources.loading import invalid_finding, parse_resource, status_with
from ottla_operator.resources.pods import PodTemplate, sidecar_problems

log = logging.getLogger(__name__)

_OF_CONNECT: Final = (ConnectCluster.definition.kind, Connector.definition.kind)
_RECORDS: Final = ("lastValidSpec", "operator")
"""Fields of a status that only the store reads and writes."""


class KubernetesStore:
    """The BrokerCluster of this name in this namespace, and the resources that refer to it; or the
    ConnectCluster with this key (`naming.connect_key`), and its Connectors."""

    def __init__(
        self,
        api: Api,
        images: Images,
        namespace: str,
        cluster: str,
        clock_ms: Callable[[], int],
        recorder: Recorder,
    ) -> None:
        self._api = api
        self._images = images
        self._namespace = namespace
        self._cluster = cluster
        self._clock_ms = clock_ms
        self._recorder = recorder
        self._live: dict[str, Object] = {}
        """Objects by resource key, as listed in this reconciliation or returned by the last write."""
        self._in_force: dict[str, Object] = {}
        """Valid specs by resource key: the newest ones, or the last that were valid."""
        self._invalid_keys: set[str] = set()
        self._returned: set[str] = set()
        """The keys of the valid resources."""
        self.resource_count = 0
        """The number of listed resources, including invalid ones."""

    # ---- reading

    async def resources(self) -> Sequence[AnyResource]:
        kinds = [kind for kind in KINDS if (kind in _OF_CONNECT) == bool(connect_of(self._cluster))]
        lists = await asyncio.gather(*(self._api.list(kind, self._namespace) for kind in kinds))
        listed = [
            (kind, item)
            for kind, items in zip(kinds, lists, strict=True)
            for item in items
            if self._refers_to_cluster(kind, item)
        ]
        self.resource_count = len(listed)
        self._live = {f"{kind}/{item['metadata']['name']}": item for kind, item in listed}
        self._in_force, self._invalid_keys = {}, set()
        admitted = await asyncio.gather(*(self._admit(kind, item) for kind, item in listed))
        valid = [resource for resource in admitted if resource is not None]
        self._returned = {resource.key for resource in valid}
        cluster = f"{BrokerCluster.definition.kind}/{self._cluster}"
        live = self._live.get(cluster)
        if live is None or _is_leaving(live):
            return valid
        if any(resource.key == cluster for resource in valid) and not self._has_changed_pool():
            return valid
        # Without a valid BrokerCluster, the resources that refer to it wait; deletions until their deadline.
        if cluster in self._invalid_keys:
            await asyncio.gather(*(self._wait_for_cluster(r) for r in valid if not r.metadata.deleting))
        return [resource for resource in valid if self._is_overdue(resource.metadata.deletion_timestamp)]

    def _has_changed_pool(self) -> bool:
        """Whether a BrokerPool has changed since it was listed: nothing is planned without it. The change
        causes an event, and another reconciliation."""
        kind = f"{BrokerPool.definition.kind}/"
        return any(key.startswith(kind) and key not in self._invalid_keys for key in self.withheld())

    def _refers_to_cluster(self, kind: str, item: Object) -> bool:
        if kind == BrokerCluster.definition.kind:
            return bool(item["metadata"]["name"] == self._cluster)
        connect = connect_of(self._cluster)
        if kind == ConnectCluster.definition.kind:
            return bool(item["metadata"]["name"] == connect)
        field = "connectRef" if connect else "clusterRef"
        reference = (item.get("spec") or {}).get(field) or {}
        return bool(reference.get("name") == (connect or self._cluster))

    def _is_overdue(self, deleted_at: str | None) -> bool:
        """Whether a deletion has reached its deadline."""
        return deleted_at is not None and self._clock_ms() - parse_iso_time(deleted_at) > DELETION_DEADLINE_MS

    async def _admit(self, kind: str, item: Object) -> AnyResource | None:
        """The resource with the spec that is in force, which is recorded, and with the finalizer set; None
        without a valid spec, and when the resource is deleted or changed concurrently."""
        metadata = item["metadata"]
        key = f"{kind}/{metadata['name']}"
        deleting = _is_leaving(item)
        finalizers = metadata.get("finalizers") or []
        if deleting and FINALIZER not in finalizers:
            # Only finalizers of others are left.
            return None
        resource, problems = self._parse(kind, item, item.get("spec"))
        spec = item.get("spec")
        if resource is None and deleting:
            resource, _ = self._parse(kind, item, _minimal_spec(item))
        if resource is None:
            spec = (item.get("status") or {}).get("lastValidSpec")
            last_valid, _ = self._parse(kind, item, spec)
            if last_valid is not None:
                resource = last_valid.in_force_despite([str(problem) for problem in problems])
        if deleting and (resource is None or not resource.deletes_in_kafka):
            # Or the spec cannot be parsed at all. The garbage collector deletes what the resource owns.
            await self._remove_finalizer(key)
            return None
        if resource is None:
            await self._invalid(kind, item, [str(problem) for problem in problems])
            return None
        if deleting:
            return resource
        self._in_force[key] = spec or {}
        wanted = [name for name in finalizers if name != FINALIZER] + [FINALIZER] * resource.deletes_in_kafka
        if wanted != finalizers and not await self._set_finalizers(key, wanted):
            return None
        return resource if await self._recorded(key) else None

    def _parse(self, kind: str, item: Object, spec: object) -> tuple[AnyResource | None, list[Problem]]:
        """The resource with this spec, or None and the problems of the spec."""
        metadata, status = item["metadata"], dict(item.get("status") or {})
        for field in _RECORDS:
            status.pop(field, None)
        resource, problems = parse_resource(kind, metadata, spec, status)
        if problems and all(problem.path.startswith("status") for problem in problems):
            log.warning(
                "%s/%s/%s: the status cannot be read: %s", self._namespace, kind, metadata["name"], problems
            )
            resource, problems = parse_resource(kind, metadata, spec, {})
        if resource is not None:
            problems = list(problems_on_kubernetes(resource, allow_sidecars=self._images.allow_sidecars))
        return (None if problems else resource), problems

    async def _recorded(self, key: str) -> bool:
        """Record the spec in force before any step for it. Returns False after a concurrent change.

        A new resource costs no other request: its first status has the record. Of a BrokerCluster, whose
        steps may take long, it is recorded first.
        """
        status = self._live[key].get("status") or {}
        if all(status.get(field) == value for field, value in self._record_of(key).items()):
            return True
        if not status and not key.startswith(f"{BrokerCluster.definition.kind}/"):
            return True
        return await self._write_status(key, status)

    def _record_of(self, key: str) -> Object:
        """The fields of the status that only the store knows."""
        if key not in self._in_force:
            return {}
        operator = {"operator": self._images.operator} if self._images.operator else {}
        return {"lastValidSpec": self._in_force[key], **operator}

    async def _invalid(self, kind: str, item: Object, problems: list[str]) -> None:
        self._invalid_keys.add(f"{kind}/{item['metadata']['name']}")
        if await self._report(kind, item, invalid_finding(problems, None)):
            message = "; ".join(problems)
            self._recorder.record(_InvalidResource.of(kind, item), "InvalidSpec", message, warning=True)

    async def _wait_for_cluster(self, resource: AnyResource) -> None:
        message = f"BrokerCluster {self._cluster} has an invalid spec, and had no valid one before"
        item = self._live[resource.key]
        await self._report(resource.kind, item, no("Ready", "ClusterNotFound", message))

    async def _report(self, kind: str, item: Object, ready: Finding) -> bool:
        """Write Ready of a resource that is not reconciled. Returns whether it is news for its generation."""
        status, metadata = item.get("status") or {}, item["metadata"]
        wanted = status_with(kind, metadata, status, ready, self._clock_ms())
        if wanted == status:
            return False
        written = await self._write_status(f"{kind}/{metadata['name']}", wanted)
        return written and not _is_reported(status, ready.reason, metadata.get("generation"))

    def withheld(self) -> Sequence[str]:
        return [
            key for key, item in self._live.items() if key not in self._returned and not _is_leaving(item)
        ]

    # ---- writing

    async def update_status(self, resource: AnyResource, status: Status) -> None:
        written = await self._write_status(resource.key, status.model_dump(by_alias=True, exclude_none=True))
        if not written:
            return
        for text in status.warnings:
            if text not in resource.status.warnings:
                self._recorder.record(resource, "SpecWarning", text, warning=True)
        for condition in status.conditions:
            old = find(resource.status.conditions, condition.type)
            if not _deserves_event(old, condition) and not _refuses_another(old, condition):
                continue
            message = f"{condition.type} is {condition.status}: {condition.message or condition.reason}"
            warning = is_unusual(condition) and condition.reason not in _EXPECTED
            self._recorder.record(resource, condition.reason, message, warning=warning)

    async def _write_status(self, key: str, status: dict[str, Any]) -> bool:
        kind, _, name = key.partition("/")
        version = self._live[key]["metadata"]["resourceVersion"]
        status = {**status, **self._record_of(key)}
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
        leaving = cluster is None or _is_leaving(cluster)
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


def _is_leaving(item: Object) -> bool:
    return item["metadata"].get("deletionTimestamp") is not None


def _is_reported(status: Object, reason: str, generation: int | None) -> bool:
    """Whether Ready in the status has this reason for this generation, so that there was an Event."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "Ready":
            return (condition.get("reason"), condition.get("observedGeneration")) == (reason, generation)
    return False


def _refuses_another(old: Condition | None, new: Condition) -> bool:
    """Whether the condition reports a generation as invalid that the old one did not."""
    known = old is not None and (old.reason, old.observed_generation) == (new.reason, new.observed_generation)
    return new.reason == "InvalidSpec" and not known


def problems_on_kubernetes(resource: AnyResource, *, allow_sidecars: bool) -> Iterator[Problem]:
    """Errors in a spec that are none for `ottla up`."""
    templates: dict[str, PodTemplate] = {}
    if isinstance(resource, BrokerCluster):
        problem = name_problem(resource.metadata.name)
        if problem:
            yield Problem("metadata.name", problem)
        yield from port_problems(resource)
        yield from _backup_problems(resource)
        yield from metadata_problems(resource)
        templates = {"spec.template.pod": resource.spec.template.pod}
        managed = resource.spec.zookeeper.managed
        if managed is not None:
            templates["spec.zookeeper.managed.template.pod"] = managed.template.pod
    elif isinstance(resource, BrokerPool):
        if resource.spec.template.pod is not None:
            templates = {"spec.template.pod": resource.spec.template.pod}
    elif isinstance(resource, Pipeline):
        templates = {
            "spec.driver.template.pod": resource.spec.driver.template.pod,
            "spec.executor.template.pod": resource.spec.executor.template.pod,
        }
    elif isinstance(resource, ConnectCluster):
        templates = {"spec.template.pod": resource.spec.template.pod}
    if not allow_sidecars:
        yield from sidecar_problems(templates)


def _backup_problems(cluster: BrokerCluster) -> Iterator[Problem]:
    backup, recovery = cluster.spec.backup, cluster.spec.bootstrap.recovery
    if backup is not None:
        yield from _store_problems("spec.backup", "destination", backup.destination, backup)
    if recovery is not None:
        yield from _store_problems("spec.bootstrap.recovery", "source", recovery.source, recovery)


def _store_problems(path: str, name: str, url: str, of: BackupSpec | RecoverySpec) -> Iterator[Problem]:
    if url.startswith("file:"):
        yield Problem(f"{path}.{name}", "file:// is for `ottla up` only")
    if of.credentials_secret is None:
        message = "is required: a backup never uses the credentials of the operator"
        yield Problem(f"{path}.credentialsSecret", message)


# Reasons of a healthy resource in transition: their Events are Normal.
_EXPECTED = frozenset(
    (
        *("Pending", "Deleting", "Rolling", "ScaleUp", "ScaleDown", "NotRolling", "NotScaling"),
        *("Proposed", "Rebalancing", LOAD_REBALANCE, REBALANCE, EMPTY),
    )
)

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
