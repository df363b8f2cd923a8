"""The operator over a simulated API server with its controllers, in virtual time.

`InMemoryApi` replaces the requests of `Api`. Like the API server, it keeps the owners of the fields of child
objects, sets defaults, and refuses changes of immutable fields and ports with the same name. StatefulSets
create and delete pods and claims; the garbage collector deletes owned objects with their owner.
`max_unavailable` is the largest number of brokers that were unavailable at the same time.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import itertools
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ottla.security.tls import TlsSettings
from ottla_operator.conditions import iso_time
from ottla_operator.kubernetes import naming
from ottla_operator.kubernetes.api import Api, ApiError, Conflict, Invalid, NotFound
from ottla_operator.kubernetes.controller import reconcile
from ottla_operator.kubernetes.drivers import KubernetesDrivers
from ottla_operator.kubernetes.manifests_common import Images
from ottla_operator.kubernetes.observing import uses_claim
from ottla_operator.kubernetes.platform import KubernetesPlatform
from ottla_operator.kubernetes.secrets import KubernetesSecrets
from ottla_operator.kubernetes.store import KubernetesStore
from ottla_operator.kubernetes.zookeeper_planning import ServerRole
from ottla_operator.planning.observed import AccessState, GroupState, KafkaState, LogDir
from ottla_operator.planning.steps import KafkaStep
from ottla_operator.platform.interfaces import Address, Environment, InvolvedObject, Recoveries, RollGate
from ottla_operator.reconcile import Reconciler
from ottla_operator.resources import API_VERSION, KINDS
from ottla_operator.step_executor import ReconcileResult
from tests.worlds import server_side_apply

Item = dict[str, Any]
NAMESPACE = "shop"
WRITES = ("apply", "create", "patch", "delete")
_VERSIONED = ("apiVersion", "kind")
_CHILD_KINDS = {
    *("Certificate", "ConfigMap", "Secret", "Service", "ServiceAccount", "StatefulSet"),
    *("PodDisruptionBudget", "NetworkPolicy", "RoleBinding", "Ingress", "TLSRoute"),
}
_MUTABLE_OF_SET = {
    *("replicas", "template", "updateStrategy", "ordinals", "minReadySeconds", "revisionHistoryLimit"),
    "persistentVolumeClaimRetentionPolicy",
}
_SCHEDULER = "default-scheduler"
"""The only one that runs."""


def matches_selector(item: Item, selector: str) -> bool:
    """Whether a label selector, such as `name=value,other`, selects the object."""
    labels = item["metadata"].get("labels") or {}
    wanted = (each.partition("=") for each in selector.split(",") if each)
    return all(labels.get(name) == value if sign else name in labels for name, sign, value in wanted)


class InMemoryApi(Api):
    """Objects by (kind, name) in one namespace, with the controllers of StatefulSets and pods."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000
        self.items: dict[tuple[str, str], Item] = {}
        self.calls: list[tuple[str, str, str]] = []
        self.fail: Callable[[str, str, str], ApiError | None] = lambda verb, kind, name: None
        self.missing_classes: set[str] = set()
        """StorageClasses that do not exist; all others do."""
        self.missing_kinds: set[str] = set()
        """Kinds whose CustomResourceDefinition is not installed."""
        self.unpullable_images: set[str] = set()
        self.max_unavailable = 0
        self.node_of: Callable[[str], str | None] = lambda pod: None
        self.webhook: Callable[[Item], None] = lambda item: None
        """A mutating webhook: it changes child objects in each create, patch and apply."""
        self._ids = itertools.count(1)

    @property
    def writes(self) -> list[tuple[str, str, str]]:
        return [call for call in self.calls if call[0] in WRITES and call[1] != "Event"]

    # ---- requests

    async def _request(
        self,
        verb: str,
        kind: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
    ) -> Item:
        query = query or {}
        parts = path.split("/")
        status = parts[-1] == "status"
        named = verb not in ("list", "create")
        name = parts[-2 if status else -1] if named else ""
        refused = self.fail(verb, kind, name)
        self.calls.append((verb, kind, name))
        if refused is not None:
            raise refused
        if kind in self.missing_kinds:
            raise NotFound(404, "NotFound", "the server could not find the requested resource")
        if verb == "list":
            return {"items": [_listed(item) for item in self._matching(kind, query.get("labelSelector", ""))]}
        if verb == "get" and kind == "StorageClass" and name not in self.missing_classes:
            return {"kind": kind, "metadata": {"name": name}}
        if verb == "create":
            assert isinstance(body, dict)
            return self._create(kind, copy.deepcopy(body), is_dry_run="dryRun" in query)
        if verb == "apply":
            assert isinstance(body, dict)
            return self._apply(kind, name, body)
        item = self.items.get((kind, name))
        if item is None:
            raise NotFound(404, "NotFound", f"{kind} {name} not found")
        if verb == "get":
            return item
        if verb == "delete":
            assert isinstance(body, dict)
            self._delete(item, body)
            return item
        if content_type == "application/json-patch+json":
            assert isinstance(body, list)
            return self._json_patch(item, body, "status" if status else "", query.get("fieldManager", ""))
        assert isinstance(body, dict)
        wanted = body.get("metadata", {}).get("resourceVersion")
        if wanted is not None and wanted != item["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", "the object has been modified")
        return self._write(item, self._owned(item, _merged(item, body), query.get("fieldManager", "")))

    def _json_patch(self, item: Item, patch: list[Item], subresource: str, manager: str) -> Item:
        content = copy.deepcopy(item)
        for each in patch:
            *parents, last = [
                part.replace("~1", "/").replace("~0", "~") for part in each["path"].split("/")[1:]
            ]
            at = content
            for name in parents:
                at = at[name]
            if each["op"] == "test":
                if at[last] != each["value"]:
                    raise Invalid(422, "Invalid", f"test of {each['path']} failed")
            else:
                assert each["op"] in ("add", "replace")
                at[last] = copy.deepcopy(each["value"])
        if content["metadata"]["resourceVersion"] != item["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", "the object has been modified")
        return self._write(item, self._owned(item, content, manager, subresource))

    def _owned(self, before: Item | None, after: Item, manager: str, subresource: str = "") -> Item:
        """`after` with the owners of its fields, defaults and the webhook's changes; checked."""
        if after["kind"] not in _CHILD_KINDS:
            return after
        at = iso_time(self.now_ms)
        after = server_side_apply.updated(before, after, manager, at, subresource)
        return self._admitted(before, after)

    def _admitted(self, before: Item | None, after: Item) -> Item:
        after = copy.deepcopy(after)
        self.webhook(after)
        _set_defaults(before, after)
        _check(before, after)
        return after

    def edit(
        self, kind: str, name: str, change: Callable[[Item], None], manager: str = "kubectl-edit"
    ) -> None:
        """kubectl edit."""
        item = self.items[kind, name]
        content = copy.deepcopy(item)
        change(content)
        self._write(item, self._owned(item, content, manager))

    def scale(self, name: str, replicas: int) -> None:
        """kubectl scale statefulset."""
        item = self.items["StatefulSet", name]
        content = {**item, "spec": {**item["spec"], "replicas": replicas}}
        self._write(item, self._owned(item, content, "kubectl", "scale"))

    def _matching(self, kind: str, selector: str) -> list[Item]:
        return [
            item
            for (one, _), item in sorted(self.items.items())
            if one == kind and matches_selector(item, selector)
        ]

    def _create(self, kind: str, body: Item, *, is_dry_run: bool) -> Item:
        if kind == "Event":
            return body
        name = body["metadata"]["name"]
        if (kind, name) in self.items:
            raise Conflict(409, "AlreadyExists", f"{kind} {name} already exists")
        return body if is_dry_run else self.put(kind, name, body)

    def _apply(self, kind: str, name: str, body: Item) -> Item:
        item = self.items.get((kind, name))
        if kind in _CHILD_KINDS:
            content = server_side_apply.applied(item, body, naming.MANAGER, iso_time(self.now_ms))
            content = self._admitted(item, content)
        else:
            content = body if item is None else _merged(item, body)
        return self.put(kind, name, content) if item is None else self._write(item, content)

    def _write(self, item: Item, content: Item) -> Item:
        kind, name = content["kind"], content["metadata"]["name"]
        if _without_times(content) != _without_times(item):
            content = copy.deepcopy(content)
            content["metadata"]["resourceVersion"] = str(next(self._ids))
            if kind == "StatefulSet" and content["spec"] != item["spec"]:
                content["metadata"]["generation"] += 1
            self.items[kind, name] = content
        metadata = content["metadata"]
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers") and kind in KINDS:
            self._remove(content)
        return copy.deepcopy(content)

    def put(self, kind: str, name: str, body: Mapping[str, Any]) -> Item:
        """Create an object, as the API server does for another client."""
        number = next(self._ids)
        content = copy.deepcopy(dict(body))
        content["kind"] = kind
        content["metadata"] = {
            **content.get("metadata", {}),
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{number}",
            "resourceVersion": str(number),
            "generation": 1,
            "creationTimestamp": iso_time(self.now_ms),
        }
        self.items[kind, name] = content
        return content

    def _delete(self, item: Item, options: Item) -> None:
        metadata = item["metadata"]
        uid = options.get("preconditions", {}).get("uid")
        if uid is not None and uid != metadata["uid"]:
            raise Conflict(409, "Conflict", "the uid in the precondition does not match")
        in_use = item["kind"] == "PersistentVolumeClaim" and self._in_use(metadata["name"])
        if item["kind"] == "Pod" or metadata.get("finalizers") or in_use:
            metadata.setdefault("deletionTimestamp", iso_time(self.now_ms))
            return
        self._remove(item, orphan=options.get("propagationPolicy") == "Orphan")

    def _in_use(self, claim: str) -> bool:
        """Whether a pod uses the claim: pvc-protection keeps it until the pod is deleted."""
        pod = self.items.get(("Pod", naming.volume_of_claim(claim)[1]))
        return pod is not None and uses_claim(pod, claim)

    def _remove(self, item: Item, *, orphan: bool = False) -> None:
        del self.items[item["kind"], item["metadata"]["name"]]
        for child in list(self.items.values()):
            owners = child["metadata"].get("ownerReferences") or []
            if any(owner["uid"] == item["metadata"]["uid"] for owner in owners):
                if orphan:
                    child["metadata"]["ownerReferences"] = []
                elif child["kind"] == "Pod":
                    child["metadata"].setdefault("deletionTimestamp", iso_time(self.now_ms))
                elif (child["kind"], child["metadata"]["name"]) in self.items:
                    self._remove(child)

    # ---- controllers

    def tick(self) -> None:
        """Let a second pass: deleted pods disappear, others start or become ready."""
        self.now_ms += 1000
        for item in list(self.items.values()):
            if item["kind"] == "Pod" and item["metadata"].get("deletionTimestamp"):
                del self.items["Pod", item["metadata"]["name"]]
        for item in list(self.items.values()):
            leaving = item["kind"] == "PersistentVolumeClaim" and item["metadata"].get("deletionTimestamp")
            if leaving and not self._in_use(item["metadata"]["name"]):
                self._remove(item)
        for pod in (item for item in self.items.values() if item["kind"] == "Pod"):
            self._advance(pod)
        for item in list(self.items.values()):
            if item["kind"] == "StatefulSet":
                self._run_set(item)
        brokers = [*self._set_pods("demo-brokers"), *self._set_pods("demo-broker")]
        self.max_unavailable = max(self.max_unavailable, sum(not self.is_ready(pod) for pod in brokers))

    def _set_pods(self, name: str) -> list[Item]:
        return [
            item for (kind, pod), item in self.items.items() if kind == "Pod" and pod.startswith(f"{name}-")
        ]

    def is_ready(self, pod: Item) -> bool:
        conditions = pod.get("status", {}).get("conditions", [])
        return not pod["metadata"].get("deletionTimestamp") and any(c["status"] == "True" for c in conditions)

    def _advance(self, pod: Item) -> None:
        container = pod["spec"]["containers"][0]
        seen = {"name": container["name"], "restartCount": 0, "started": True}
        for volume in pod["spec"].get("volumes", ()):
            if "persistentVolumeClaim" in volume:
                claim = volume["persistentVolumeClaim"]["claimName"]
                found = self.items.get(("PersistentVolumeClaim", claim))
                if found is None or found.get("status", {}).get("phase") == "Lost":
                    return
        if pod["spec"].get("schedulerName", _SCHEDULER) != _SCHEDULER:
            return
        if container["image"] in self.unpullable_images:
            state: Item = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
            ready = False
        else:
            state, ready = {"running": {}}, not self._is_fenced(pod)
            seen["started"] = ready
        if pod.get("status", {}).get("containerStatuses"):
            return
        condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": iso_time(self.now_ms)}
        pod["status"] = {"conditions": [condition], "containerStatuses": [{**seen, "state": state}]}

    def _is_fenced(self, pod: Item) -> bool:
        name = pod["metadata"]["name"]
        cluster = pod["metadata"]["labels"].get(naming.CLUSTER_LABEL, "")
        broker = naming.broker_of_pod(cluster, name)
        config = self.items.get(("ConfigMap", naming.broker_config(cluster, broker or 0)), {})
        return "ottla.fenced=true" in config.get("data", {}).get("server.properties", "")

    def _run_set(self, item: Item) -> None:
        name, spec = item["metadata"]["name"], item["spec"]
        generation = item["metadata"]["generation"]
        revision = hashlib.sha256(json.dumps(spec["template"], sort_keys=True).encode()).hexdigest()[:8]
        item["status"] = {"observedGeneration": generation, "updateRevision": revision}
        for ordinal in range(spec["replicas"]):
            pod_name = f"{name}-{ordinal}"
            owner = {"uid": item["metadata"]["uid"]}
            pod = self.items.get(("Pod", pod_name))
            if pod is None:
                template = copy.deepcopy(spec["template"])
                template["metadata"]["ownerReferences"] = [owner]
                template["metadata"]["labels"]["controller-revision-hash"] = revision
                node = self.node_of(pod_name)
                template["spec"] |= {"nodeName": node} if node else {}
                for each in spec.get("volumeClaimTemplates", ()):
                    claim = {"claimName": f"{each['metadata']['name']}-{pod_name}"}
                    volume = {"name": each["metadata"]["name"], "persistentVolumeClaim": claim}
                    template["spec"]["volumes"] = [*template["spec"].get("volumes", []), volume]
                self.put("Pod", pod_name, template)
            elif not pod["metadata"].get("ownerReferences"):
                pod["metadata"]["ownerReferences"] = [owner]
            for each in spec.get("volumeClaimTemplates", ()) if pod is None else ():
                claim_name = f"{each['metadata']['name']}-{pod_name}"
                if ("PersistentVolumeClaim", claim_name) not in self.items:
                    claim = copy.deepcopy(each)
                    # As the admission of the API server does.
                    claim["spec"].setdefault("storageClassName", "standard")
                    claim["metadata"]["labels"] = dict(spec["selector"]["matchLabels"])
                    self.put("PersistentVolumeClaim", claim_name, claim)
        for pod in self._set_pods(name):
            ordinal_of = naming.ordinal_of(pod["metadata"]["name"])
            if ordinal_of is not None and ordinal_of >= spec["replicas"]:
                pod["metadata"].setdefault("deletionTimestamp", iso_time(self.now_ms))

    # ---- users

    def apply_resource(self, kind: str, name: str, spec: Mapping[str, Any], **annotations: str) -> None:
        """kubectl apply."""
        prefixed = {f"ottla.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
        item = self.items.get((kind, name))
        if item is None:
            content = {"apiVersion": API_VERSION, "metadata": {"annotations": prefixed}, "spec": dict(spec)}
            self.put(kind, name, content)
            return
        item["metadata"]["generation"] += item["spec"] != spec
        item["metadata"]["annotations"] = prefixed
        item["metadata"]["resourceVersion"] = str(next(self._ids))
        item["spec"] = copy.deepcopy(dict(spec))

    def delete_resource(self, kind: str, name: str, propagation: str = "Background") -> None:
        """kubectl delete --wait=false."""
        self._delete(self.items[kind, name], {"propagationPolicy": propagation})

    def names(self, kind: str) -> list[str]:
        return sorted(name for one, name in self.items if one == kind)


def _listed(item: Item) -> Item:
    """The object as a list has it: without apiVersion and kind."""
    return copy.deepcopy({key: value for key, value in item.items() if key not in _VERSIONED})


def _without_times(item: Item) -> Item:
    """The object without the times of its managedFields, which do not count as a change."""
    metadata = item["metadata"]
    entries = [{**entry, "time": ""} for entry in metadata.get("managedFields", ())]
    return {**item, "metadata": {**metadata, "managedFields": entries}}


def _set_defaults(before: Item | None, item: Item) -> None:
    kind, spec = item["kind"], item.get("spec", {})
    if kind == "Service":
        spec.setdefault("type", "ClusterIP")
        spec.setdefault("sessionAffinity", "None")
        if before is not None and before["spec"].get("clusterIP"):
            spec.setdefault("clusterIP", before["spec"]["clusterIP"])
        spec.setdefault("clusterIP", "10.96.0.1")
    elif kind == "StatefulSet":
        spec.setdefault("revisionHistoryLimit", 10)
        spec.setdefault("persistentVolumeClaimRetentionPolicy", {"whenDeleted": "Retain"})
        spec["template"]["spec"].setdefault("dnsPolicy", "ClusterFirst")
        for claim in spec.get("volumeClaimTemplates", ()):
            claim["spec"].setdefault("volumeMode", "Filesystem")
            claim.setdefault("status", {"phase": "Pending"})


def _check(before: Item | None, item: Item) -> None:
    """Raise Invalid for what an API server refuses."""
    kind, spec = item["kind"], item.get("spec", {})
    if kind == "Service":
        names = [port.get("name") for port in spec.get("ports", ())]
        double = next((name for name in names if names.count(name) > 1), None)
        if double is not None:
            raise Invalid(422, "Invalid", f'spec.ports[1].name: Duplicate value: "{double}"')
    if before is None:
        return
    old = before.get("spec", {})
    if kind == "Service" and old.get("clusterIP") != spec.get("clusterIP"):
        raise Invalid(422, "Invalid", "spec.clusterIPs[0]: Invalid value: field is immutable")
    if kind == "StatefulSet":
        differing = {name for name in {*old, *spec} if old.get(name) != spec.get(name)}
        if differing - _MUTABLE_OF_SET:
            raise Invalid(
                422, "Invalid", "spec: Forbidden: updates to statefulset spec for fields are forbidden"
            )
    if kind == "RoleBinding" and before["roleRef"] != item["roleRef"]:
        raise Invalid(422, "Invalid", "roleRef: Invalid value: cannot change roleRef")
    if kind in ("ConfigMap", "Secret") and before.get("immutable"):
        is_same = item.get("immutable") and before.get("data") == item.get("data")
        if not is_same:
            raise Invalid(422, "Invalid", "data: Forbidden: field is immutable when `immutable` is set")


def _merged(base: Any, patch: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(base)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(base.get(key), value)
    return result


class EmptyKafka:
    """The Kafka interface of a cluster without topics; its brokers are those with an address. `known`: its
    consumer groups."""

    def __init__(self, known: Mapping[str, GroupState]) -> None:
        self._known = known

    async def observe(
        self,
        brokers: Sequence[Address],
        groups: Collection[str],
        *,
        access: bool = False,
        log_dirs: bool = False,
    ) -> KafkaState:
        hosts = (host.split(".") for host, _ in brokers)
        found = (naming.broker_of_pod(service.removesuffix("-brokers"), pod) for pod, service, *_ in hosts)
        ids = frozenset(broker for broker in found if broker is not None)
        if not ids:
            return KafkaState(problem="no broker is running")
        dirs: dict[int, tuple[LogDir, ...]] = dict.fromkeys(ids, ()) if log_dirs else {}
        access_state = AccessState({}, None)
        known = {group: self._known[group] for group in groups if group in self._known}
        return KafkaState(
            *(True, "cluster", min(ids), ids),
            quotas={},
            access=access_state,
            log_dirs=dirs,
            groups=known,
        )

    async def execute(self, step: KafkaStep) -> None:
        raise AssertionError(f"unexpected step: {step}")


class FakeRecorder:
    """A Recorder that keeps the Events in a list."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str, bool]] = []

    def record(self, resource: InvolvedObject, reason: str, message: str, *, warning: bool = False) -> None:
        self.events.append((resource.key, reason, message, warning))


class KubernetesSimulation:
    """The operator over the simulated API server. Each reconciliation has a new operator. `api`: shared with
    the simulations of other clusters; `gate`: decides about rolls that the operator causes."""

    def __init__(
        self, name: str = "demo", api: InMemoryApi | None = None, gate: RollGate | None = None
    ) -> None:
        self.name = name
        self.api = InMemoryApi() if api is None else api
        self._gate = gate
        self.recorder = FakeRecorder()
        self.recoveries: Recoveries | None = None
        self.groups: dict[str, GroupState] = {}
        self.images = Images("ottla:1", "ottla:1", "Never", operator_namespace="ottla-system")
        self.acl_migrations: list[tuple[str, str]] = []
        """(zookeeper.connect, owner) of each migration of ZooKeeper's node ACLs."""
        self.acl_migration_fails = False
        self.zookeeper_leader = 1
        self.lagging_followers = 0

    def apply_cluster(self, **spec: Any) -> None:
        rolling = {"minReadySeconds": 0}
        storage = {"size": "1Gi", "deleteClaim": True}
        content = {"replicas": 3, "storage": storage, "rollingUpdate": rolling, **spec}
        annotations = content.pop("annotations", {})
        self.api.apply_resource("BrokerCluster", self.name, content, **annotations)

    def fail_write(self, number: int) -> None:
        """Have the write of that number, from 1, fail as if the operator died before it."""
        count = 0

        def fail(verb: str, kind: str, name: str) -> ApiError | None:
            nonlocal count
            writes = verb in ("apply", "patch", "delete")
            count += writes
            return ApiError(0, "Unreachable", "the operator is gone") if writes and count == number else None

        self.api.fail = fail

    def reconcile(self) -> list[str]:
        """Reconcile once, then let a second pass. Returns the steps."""
        try:
            return self.reconcile_once().steps
        except ApiError as error:
            return [f"failed: {error}"]
        finally:
            self.api.tick()

    def reconcile_once(self) -> ReconcileResult:
        store = KubernetesStore(
            self.api, self.images, NAMESPACE, self.name, lambda: self.api.now_ms, self.recorder
        )
        platform = KubernetesPlatform(
            *(self.api, self.images, NAMESPACE, self.name, lambda: self.api.now_ms),
            *(self._set_acls, self._roles_of),
        )
        secrets = KubernetesSecrets(self.api, NAMESPACE, self.name)
        drivers = KubernetesDrivers(self.api, self.images, NAMESPACE, self.name, lambda: self.api.now_ms)
        reconciler = Reconciler(
            Environment(
                *(
                    platform,
                    EmptyKafka(self.groups),
                    store,
                    secrets,
                    drivers,
                    lambda: self.api.now_ms,
                    self.recorder,
                ),
                gate=self._gate,
                recoveries=self.recoveries,
            )
        )
        return asyncio.run(reconcile(reconciler, store))

    async def _roles_of(
        self, hosts: Mapping[int, str], port: int, context: object
    ) -> Mapping[int, ServerRole]:
        """Of the servers that are ready: the leader is the one that leads while it is one of them."""
        if self.zookeeper_leader not in hosts:
            self.zookeeper_leader = max(hosts, default=-1)
        synced = len(hosts) - 1 - self.lagging_followers
        return {
            member: ServerRole("leader", synced)
            if member == self.zookeeper_leader
            else ServerRole("follower")
            for member in hosts
        }

    def _set_acls(self, connect: str, tls: TlsSettings, owner: str) -> int:
        assert tls.key
        assert tls.certificates
        if self.acl_migration_fails:
            raise TimeoutError("no server responds")
        self.acl_migrations.append((connect, owner))
        return 7

    def reconcile_until(self, condition: Callable[[], bool], reconciles_max: int = 100) -> None:
        for _ in range(reconciles_max):
            if condition():
                return
            self.reconcile()
        raise AssertionError(f"the condition did not become true: {json.dumps(self.status(), indent=1)}")

    def reconcile_until_ready(self) -> None:
        self.reconcile_until(self.ready)

    def status(self, kind: str = "BrokerCluster", name: str | None = None) -> Item:
        item = self.api.items.get((kind, name or self.name), {})
        status: Item = item.get("status", {})
        return status

    def condition(
        self, type_: str = "Ready", kind: str = "BrokerCluster", name: str | None = None
    ) -> tuple[str, str]:
        for condition in self.status(kind, name).get("conditions", []):
            if condition["type"] == type_:
                return condition["status"], condition["reason"]
        return "", ""

    def ready(self) -> bool:
        item = self.api.items["BrokerCluster", self.name]
        current = self.status().get("observedGeneration") == item["metadata"]["generation"]
        return current and self.condition()[0] == "True"
