"""Converts listed pods, ConfigMaps and claims to BrokerInstances and ZooKeeperState.

Pure; called by the platform in every reconciliation. A broker exists when it has a ConfigMap or a pod. Its
revision is that of its ConfigMap, unless the ConfigMap's annotation says that this pod still has the replaced
revision.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ottla_operator.conditions import parse_iso_time
from ottla_operator.kubernetes import naming
from ottla_operator.planning.observed import (
    BrokerInstance,
    BrokerRunState,
    VolumeLoss,
    VolumeLossKind,
    ZooKeeperState,
)
from ottla_operator.planning.rolling import CRASHES_MAX
from ottla_operator.planning.volumes import volumes_of
from ottla_operator.platform.processes import exit_message
from ottla_operator.resources.common import DELETE_VOLUME_ANNOTATION

Object = Mapping[str, Any]

# Reasons of waiting containers that last until a user changes something.
_NO_IMAGE: Final = frozenset(("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"))
_HOPELESS: Final = _NO_IMAGE | {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
_CRASHING: Final = "CrashLoopBackOff"

# The hash of a pod with an unknown revision; it differs from every target's.
UNKNOWN_HASH: Final = "unknown"


@dataclass(frozen=True, slots=True)
class Listed:
    """A cluster's child objects by kind and name."""

    objects: Mapping[str, Mapping[str, Object]] = field(default_factory=dict)

    @classmethod
    def of(cls, by_kind: Mapping[str, Iterable[Object]]) -> Listed:
        return cls({kind: {name_of(item): item for item in items} for kind, items in by_kind.items()})

    def find(self, kind: str, name: str) -> Object | None:
        return self.objects.get(kind, {}).get(name)

    def of_component(self, kind: str, component: str) -> dict[int, Object]:
        """The objects of a component by ordinal, without those whose name has no ordinal."""
        found = {}
        for name, item in self.objects.get(kind, {}).items():
            ordinal = naming.ordinal_of(name)
            labels = item["metadata"].get("labels") or {}
            if ordinal is not None and labels.get(naming.COMPONENT_LABEL) == component:
                found[ordinal] = item
        return found


def name_of(item: Object) -> str:
    return str(item["metadata"]["name"])


RACK: Final = "broker.rack"
FENCED: Final = "fenced"
"""The key, in the settings that a pod runs with, of a broker that must not run."""


def uid_of(item: Object) -> str:
    return str(item["metadata"].get("uid", ""))


def labels_of(item: Object) -> Mapping[str, str]:
    labels: Mapping[str, str] = item["metadata"].get("labels") or {}
    return labels


def annotations_of(item: Object) -> Mapping[str, str]:
    annotations: Mapping[str, str] = item["metadata"].get("annotations") or {}
    return annotations


def restarted_at(stateful_set: Object) -> str:
    """The value of `kubectl rollout restart` of the StatefulSet, or ""."""
    return annotations_of(stateful_set["spec"]["template"]).get(naming.RESTARTED_AT_ANNOTATION, "")


def last_restart(stateful_set: Object | None, pods: Iterable[Object]) -> str:
    """The value of the last `kubectl rollout restart`, or "": of the StatefulSet's template, else of its
    pods, which have it when the StatefulSet was created again or it was removed."""
    of_set = "" if stateful_set is None else restarted_at(stateful_set)
    of_pods = (annotations_of(pod).get(naming.RESTARTED_AT_ANNOTATION, "") for pod in pods)
    return of_set or max(of_pods, default="")


def pods_of(listed: Listed, cluster: str) -> dict[int, Object]:
    """Broker pods by broker id, also those without an owner."""
    found = {}
    for name, pod in listed.objects.get("Pod", {}).items():
        broker = naming.broker_of_pod(cluster, name)
        if broker is not None and labels_of(pod).get(naming.COMPONENT_LABEL) == naming.BROKER:
            found[broker] = pod
    return found


def configs_of(listed: Listed, cluster: str) -> dict[int, Object]:
    """The brokers' ConfigMaps by broker id."""
    found = listed.of_component("ConfigMap", naming.BROKER)
    return {n: item for n, item in found.items() if name_of(item) == naming.broker_config(cluster, n)}


def claims_of(listed: Listed, cluster: str, broker: int) -> dict[int, Object]:
    """The PersistentVolumeClaims of a broker by volume."""
    found, pod = {}, naming.broker_pod(cluster, broker)
    for name, claim in listed.objects.get("PersistentVolumeClaim", {}).items():
        volume, of = naming.volume_of_claim(name)
        if of == pod:
            found[volume] = claim
    return dict(sorted(found.items()))


def volume_losses(listed: Listed, cluster: str, broker: int) -> dict[str, VolumeLoss]:
    """Why volumes of a broker must be replaced, by claim. Without a pod, only those that it needs count."""
    pod, claims = pods_of(listed, cluster).get(broker), claims_of(listed, cluster, broker)
    _, settings = runs_with(pod, configs_of(listed, cluster).get(broker))
    needed = {*volumes_of(settings), *(claims if pod is not None else ())}
    names = {naming.data_claim(naming.broker_pod(cluster, broker), each): each for each in sorted(needed)}
    losses = {name: volume_loss(pod, claims.get(volume), name) for name, volume in names.items()}
    return {name: loss for name, loss in losses.items() if loss is not None}


def broker_instances(
    listed: Listed, cluster: str, known: Mapping[int, str] | None = None
) -> dict[int, BrokerInstance]:
    """`known`: the status' hashes, for pods whose ConfigMap was deleted."""
    pods, configs = pods_of(listed, cluster), configs_of(listed, cluster)
    return {
        broker: _instance(
            broker,
            naming.broker_pod(cluster, broker),
            pods.get(broker),
            configs.get(broker),
            (known or {}).get(broker) or UNKNOWN_HASH,
            claims_of(listed, cluster, broker).values(),
            volume_losses(listed, cluster, broker).values(),
        )
        for broker in sorted({*pods, *configs})
    }


def kept_volumes(listed: Listed, cluster: str) -> dict[int, str]:
    """The BrokerPool of each claim of a broker of one that does not exist any more, by broker id."""
    existing = {*pods_of(listed, cluster), *configs_of(listed, cluster)}
    found = {}
    for name, claim in listed.objects.get("PersistentVolumeClaim", {}).items():
        broker = naming.broker_of_pod(cluster, naming.volume_of_claim(name)[1])
        if broker is not None and naming.is_of_pool(broker) and broker not in existing:
            found[broker] = labels_of(claim).get(naming.POOL_LABEL, "")
    return found


def metrics_addresses(listed: Listed, cluster: str, port: int) -> dict[int, str]:
    """host:port of the metrics of each broker's pod that has an address."""
    found = {}
    for broker, pod in pods_of(listed, cluster).items():
        address = str((pod.get("status") or {}).get("podIP") or "")
        if address and not pod["metadata"].get("deletionTimestamp"):
            found[broker] = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    return found


def runs_with(pod: Object | None, config: Object | None) -> tuple[str, dict[str, str]]:
    """(revision hash, settings) of a broker; ("", {}) when they are unknown."""
    if config is None:
        return "", {}
    annotations = annotations_of(config)
    replaced = pod is not None and annotations.get(naming.REPLACES_ANNOTATION) == uid_of(pod)
    key = naming.REPLACED_HASH_ANNOTATION if replaced else naming.HASH_ANNOTATION
    settings = naming.REPLACED_SETTINGS_ANNOTATION if replaced else naming.SETTINGS_ANNOTATION
    return annotations.get(key, ""), _json(annotations.get(settings))


def is_fenced(config: Object) -> bool:
    """Whether the ConfigMap is that of a fenced broker."""
    return _json(annotations_of(config).get(naming.SETTINGS_ANNOTATION)).get(FENCED) == "true"


def _json(text: str | None) -> dict[str, str]:
    try:
        content = json.loads(text or "{}")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _instance(
    broker: int,
    name: str,
    pod: Object | None,
    config: Object | None,
    known: str,
    claims: Collection[Object],
    losses: Iterable[VolumeLoss],
) -> BrokerInstance:
    config_hash, settings = runs_with(pod, config)
    loss = min(losses, key=lambda loss: _LOSSES.index(loss.kind), default=None)
    if pod is None:
        return BrokerInstance(
            broker,
            "Stopped",
            config_hash=config_hash,
            settings=settings,
            rack=settings.get(RACK),
            name=name,
            volume_loss=loss,
            pool=_pool(pod, config),
            delete_volume=_is_owned(claims),
        )
    seen = container_of(pod, "broker")
    state, message = pod_state(pod, seen)
    ready_since = _ready_since(pod) if state == "Running" else None
    restarts = int(seen.get("restartCount", 0))
    crashes = 0 if ready_since is not None else restarts
    if state == "Crashed" and _waiting(seen) in _HOPELESS:
        # The kubelet retries without success.
        crashes = max(crashes, CRASHES_MAX)
    return BrokerInstance(
        id=broker,
        state=state,
        ready=ready_since is not None,
        config_hash=config_hash or known,
        settings=settings,
        ready_since_ms=ready_since,
        started_at_ms=_started_at(pod, seen),
        crashes=crashes,
        rack=settings.get(RACK) or _rack(pod),
        pool=_pool(pod, config),
        delete_volume=_is_owned(claims),
        name=name,
        message=message,
        process_started=state != "Starting" or "running" in (seen.get("state") or {}),
        volume_loss=loss,
        fenced=settings.get(FENCED) == "true",
    )


def _pool(pod: Object | None, config: Object | None) -> str:
    """The BrokerPool in the labels of the broker's objects."""
    found = (labels_of(item).get(naming.POOL_LABEL, "") for item in (config, pod) if item is not None)
    return next((pool for pool in found if pool), "")


def _is_owned(claims: Iterable[Object]) -> bool:
    """Whether the claims have an owner with which they are deleted: the deleteClaim that was applied last."""
    return any(claim["metadata"].get("ownerReferences") for claim in claims)


def _started_at(pod: Object, seen: Object) -> int | None:
    """When the current container started, since time-outs begin again with a restarted container."""
    running = (seen.get("state") or {}).get("running") or {}
    return _time(running.get("startedAt")) or _time(pod["metadata"].get("creationTimestamp"))


def pods_without_rack(pods: Mapping[int, Object]) -> list[Object]:
    """Scheduled pods without the rack annotation."""
    return [
        pod
        for pod in pods.values()
        if (pod.get("spec") or {}).get("nodeName") and naming.RACK_ANNOTATION not in annotations_of(pod)
    ]


def _rack(pod: Object) -> str | None:
    """The pod's rack; None when its node has no rack label."""
    rack = annotations_of(pod).get(naming.RACK_ANNOTATION)
    return None if rack in (None, "", naming.NO_RACK) else rack


def pod_state(pod: Object, seen: Object) -> tuple[BrokerRunState, str]:
    """(state, why it is not running or not ready), from the container's status `seen`."""
    status = pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp"):
        return "Stopping", ""
    if status.get("phase") in ("Failed", "Succeeded"):
        return "Crashed", str(status.get("message") or status.get("reason") or "the pod has terminated")
    waiting = _waiting(seen)
    if waiting in _HOPELESS or waiting == _CRASHING:
        return "Crashed", _why_waiting(seen, waiting)
    state = seen.get("state") or {}
    if "terminated" in state:
        return "Crashed", _why_ended(state["terminated"])
    if "running" not in state:
        return "Starting", _unscheduled(pod)
    if _condition(pod, "Ready") == "True":
        return "Running", ""
    if not seen.get("started"):
        last = (seen.get("lastState") or {}).get("terminated")
        return "Starting", f"restarting: the container {_why_ended(last)}" if last else ""
    return "Running", "the pod is not ready"


def is_failing(pod: Object, seen: Object) -> bool:
    """Whether the pod will not come up: its container crashes again and again, or cannot be created."""
    state, _ = pod_state(pod, seen)
    hopeless = _waiting(seen) in _HOPELESS or int(seen.get("restartCount", 0)) >= CRASHES_MAX
    return state == "Crashed" and hopeless


def created_at(pod: Object) -> int:
    """When the pod was created, milliseconds since the epoch."""
    return _time(pod["metadata"].get("creationTimestamp")) or 0


def container_of(pod: Object, name: str) -> Object:
    """The status of a container in a pod; empty without one."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((status for status in statuses if status.get("name") == name), {})


def _waiting(seen: Object) -> str:
    waiting = (seen.get("state") or {}).get("waiting") or {}
    return str(waiting.get("reason") or "")


def _why_waiting(seen: Object, reason: str) -> str:
    if reason == _CRASHING:
        return _why_ended((seen.get("lastState") or {}).get("terminated") or {})
    if reason in _NO_IMAGE:
        # The kubelet's reason alternates between pulling and backing off; this message does not.
        return f"the image {seen.get('image', '')} cannot be pulled"
    message = str(seen["state"]["waiting"].get("message") or "")
    return f"{reason}: {message}" if message else reason


def _why_ended(terminated: Object) -> str:
    code, cause = terminated.get("exitCode"), exit_message(str(terminated.get("message") or ""))
    if terminated.get("reason") == "OOMKilled":
        return "was killed for lack of memory (OOMKilled)"
    return f"ended with code {code}" + (f": {cause}" if cause else "")


def _unscheduled(pod: Object) -> str:
    """Why the pod has no node, or ""."""
    spec = pod.get("spec") or {}
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "")
    scheduler = spec.get("schedulerName")
    if spec.get("nodeName") or not scheduler or _condition(pod, "PodScheduled"):
        return ""
    # There is no scheduler of this name, or it does not run.
    return f"no scheduler has handled the pod, whose schedulerName is {scheduler!r}"


def _condition(pod: Object, type_: str) -> str:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return str(next((c.get("status") for c in conditions if c.get("type") == type_), ""))


def _ready_since(pod: Object) -> int | None:
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Ready" and condition.get("status") == "True":
            return _time(condition.get("lastTransitionTime")) or 0
    return None


def _time(text: object) -> int | None:
    return parse_iso_time(text) if isinstance(text, str) else None


def is_ready(pod: Object) -> bool:
    """Whether the pod is Ready and not being deleted."""
    return not pod["metadata"].get("deletionTimestamp") and _ready_since(pod) is not None


# ---- volumes
#
# A claim that is being deleted counts as a request to replace its volume: the deletion cannot be undone, and
# completes with the pod's. A volume on a node that is drained or down is expected to return: only a volume
# whose affinity matches no existing node counts as unreachable.

# Of several lost volumes of a broker, the one about which the conditions are the strictest counts.
_LOSSES: Final[tuple[VolumeLossKind, ...]] = ("Forced", "Unreachable", "Requested", "Gone")

# The scheduler's message: "0/3 nodes are available: 3 node(s) had volume node affinity conflict. preemption:
# …".
_NODES_AVAILABLE = re.compile(r"^0/[0-9]+ nodes are available: (.*?)\.(?: |$)")
_WRONG_NODE: Final = (
    "had volume node affinity conflict",
    "didn't match PersistentVolume's node affinity",
)


def volume_loss(pod: Object | None, claim: Object | None, claim_name: str) -> VolumeLoss | None:
    """Why the volume of a broker's pod must be replaced; None when it stays."""
    if pod is not None and not uses_claim(pod, claim_name):
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


def uses_claim(pod: Object, claim_name: str) -> bool:
    """Whether the pod has this claim's volume."""
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


# ---- ZooKeeper


def zookeeper_pods(listed: Listed, cluster: str) -> dict[int, Object]:
    """The ZooKeeper servers' pods by ordinal."""
    found = listed.of_component("Pod", naming.ZOOKEEPER)
    name = naming.zookeeper_name(cluster)
    return {n: pod for n, pod in found.items() if name_of(pod) == f"{name}-{n}"}


def zookeeper_state(listed: Listed, cluster: str, members: int, connect: str) -> ZooKeeperState:
    """The ensemble's state; it is running while a majority of the members is ready."""
    pods = zookeeper_pods(listed, cluster)
    ready = sum(is_ready(pod) for pod in pods.values())
    if ready > members // 2:
        return ZooKeeperState(True, connect)
    reasons = [
        f"{name_of(pod)}: {message}"
        for pod in pods.values()
        for message in (pod_state(pod, container_of(pod, "zookeeper"))[1],)
        if message
    ]
    message = "; ".join([f"{ready} of {members} ZooKeeper servers are ready", *reasons])
    return ZooKeeperState(False, connect, message)
