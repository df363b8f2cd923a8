"""Brokers as pods of a StatefulSet: the `Platform` port over the API server.

Called by the reconciler of one cluster. Every pass begins with `observe`, whose lists the steps of that pass
work on; a write is put into them at once, so that no step acts on what the one before has changed. What a
pass deletes it deletes by uid: a pod that came in the meantime is never meant.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from ottla_operator.kubernetes import listeners, manifests_brokers, manifests_zookeeper, naming, observing
from ottla_operator.kubernetes.api import Api, ApiError, Conflict
from ottla_operator.kubernetes.manifests_common import Images, Manifest, difference
from ottla_operator.kubernetes.observing import Listed, Object, annotations_of, name_of, uid_of
from ottla_operator.kubernetes.zookeeper_roll import leader_of, next_to_replace, stale_members
from ottla_operator.planning.observed import BrokerInstance, ZooKeeperState
from ottla_operator.platform.port import Address, Launch, StepFailed
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.common import parse_quantity

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


class KubernetesPlatform:
    """The brokers and the ZooKeeper of one BrokerCluster."""

    def __init__(self, api: Api, images: Images) -> None:
        self._api = api
        self._images = images
        self._listed = Listed()

    # ---- where things are

    def addresses(self, cluster: BrokerCluster, brokers: Collection[int]) -> Sequence[Address]:
        port = listeners.REPLICATION_PORT
        return [(listeners.broker_host(cluster, broker), port) for broker in sorted(brokers)]

    def bootstrap(self, cluster: BrokerCluster) -> str:
        return manifests_brokers.bootstrap_servers(cluster)

    def traits(self, cluster: BrokerCluster) -> Mapping[str, str]:
        return manifests_brokers.traits(cluster, self._images)

    # ---- observing

    async def observe(self, cluster: BrokerCluster) -> tuple[ZooKeeperState, dict[int, BrokerInstance]]:
        name = cluster.metadata.name
        selector = f"{naming.CLUSTER_LABEL}={name}"
        lists = await asyncio.gather(
            *(self._api.list(kind, _namespace(cluster), selector) for kind in _KINDS)
        )
        self._listed = Listed.of(dict(zip(_KINDS, lists, strict=True)))
        instances = observing.broker_instances(self._listed, name, _known_hashes(cluster))
        return self._zookeeper_state(cluster), instances

    def _zookeeper_state(self, cluster: BrokerCluster) -> ZooKeeperState:
        name, connect = cluster.metadata.name, manifests_zookeeper.connect_string(cluster)
        external = cluster.spec.zookeeper.connect is not None
        if cluster.metadata.deleting:
            # What is left of it, for that is what a deletion waits for.
            left = observing.zookeeper_pods(self._listed, name) or self._listed.find(
                "StatefulSet", naming.zookeeper_name(name)
            )
            return ZooKeeperState(bool(left) and not external, connect)
        if external:
            return ZooKeeperState(True, connect)
        members = manifests_zookeeper.managed(cluster).replicas
        return observing.zookeeper_state(self._listed, name, members, connect)

    # ---- applying

    async def _ensure(self, manifest: Manifest) -> str:
        """Apply what is missing or differs. What was done, in words, or ""."""
        kind, name = manifest["kind"], name_of(manifest)
        live = self._listed.find(kind, name)
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

    def _put(self, kind: str, item: Object) -> None:
        objects = {**self._listed.objects, kind: {**self._listed.objects.get(kind, {}), name_of(item): item}}
        self._listed = Listed(objects)

    def _forget(self, kind: str, name: str) -> None:
        left = {other: item for other, item in self._listed.objects.get(kind, {}).items() if other != name}
        self._listed = Listed({**self._listed.objects, kind: left})

    def _set_of(self, cluster: BrokerCluster) -> Object | None:
        return self._listed.find("StatefulSet", naming.brokers_name(cluster.metadata.name))

    # ---- what surrounds the brokers

    async def keep(self, cluster: BrokerCluster, launch: Launch, *, under_replicated: bool) -> Sequence[str]:
        _check(cluster)
        surroundings = manifests_brokers.build_surroundings(cluster, under_replicated=under_replicated)
        done = [await self._ensure(manifest) for manifest in surroundings]
        if cluster.spec.zookeeper.connect is None:
            done += await self._keep_zookeeper(cluster)
        done += await self._keep_configs(cluster, launch)
        done += await self._grow_volumes(cluster)
        done.append(await self._keep_set(cluster, launch))
        return [what for what in done if what]

    async def _keep_zookeeper(self, cluster: BrokerCluster) -> list[str]:
        done = [
            await self._ensure(manifest) for manifest in manifests_zookeeper.build_all(cluster, self._images)
        ]
        name = naming.zookeeper_name(cluster.metadata.name)
        stateful_set = self._listed.find("StatefulSet", name)
        pods = observing.zookeeper_pods(self._listed, cluster.metadata.name)
        if stateful_set is None or not stale_members(stateful_set, pods):
            return done
        members = manifests_zookeeper.managed(cluster).replicas
        hosts = {member: manifests_zookeeper.member_host(cluster, member) for member in range(members)}
        leader = await leader_of(hosts, manifests_zookeeper.CLIENT_PORT)
        going = next_to_replace(stateful_set, pods, members, leader)
        if going is not None:
            await self._delete_pod(cluster, pods[going])
            done.append(f"replace pod {name_of(pods[going])}")
        return done

    async def _keep_configs(self, cluster: BrokerCluster, launch: Launch) -> list[str]:
        """Make anew the ConfigMaps that are missing beside their pods. What such a pod runs with, the status
        may know; where it does not, the pod is due in the next roll."""
        name = cluster.metadata.name
        configs = observing.configs_of(self._listed, name)
        known = _known_hashes(cluster)
        done = []
        for broker, pod in observing.pods_of(self._listed, name).items():
            if broker in configs or pod["metadata"].get("deletionTimestamp"):
                continue
            running = known.get(broker) or observing.UNKNOWN_HASH
            replaced = None if running == launch.config_hash else _replaced(pod, running, "{}")
            done.append(await self._ensure(self._config(cluster, broker, launch, replaced)))
        return done

    def _config(
        self, cluster: BrokerCluster, broker: int, launch: Launch, replaced: Mapping[str, str] | None
    ) -> Manifest:
        return manifests_brokers.build_broker_config(cluster, broker, launch, replaced=replaced)

    async def _keep_set(self, cluster: BrokerCluster, launch: Launch) -> str:
        """The StatefulSet as it should be, unless its template waits for a roll to begin."""
        name = cluster.metadata.name
        live = self._set_of(cluster)
        if live is None:
            brokers = observing.configs_of(self._listed, name)
            return await self._apply_set(cluster, launch, max(brokers) + 1) if brokers else ""
        if annotations_of(live).get(naming.HASH_ANNOTATION) != launch.config_hash:
            return ""
        return await self._apply_set(cluster, launch, _replicas(live))

    async def _apply_set(self, cluster: BrokerCluster, launch: Launch, replicas: int) -> str:
        manifest = manifests_brokers.build_stateful_set(cluster, self._images, replicas, launch.config_hash)
        live = self._set_of(cluster)
        if live is not None and not _same_claims(live, manifest):
            return await self._recreate_set(live)
        return await self._ensure(manifest)

    async def _recreate_set(self, live: Object) -> str:
        """Volumes' templates cannot be changed: a new set takes over the pods that this one leaves behind."""
        if live["metadata"].get("deletionTimestamp"):
            return ""
        namespace, name = live["metadata"]["namespace"], name_of(live)
        try:
            await self._api.delete("StatefulSet", namespace, name, uid=uid_of(live), propagation="Orphan")
        except ApiError as error:
            raise StepFailed("RecreateFailed", f"StatefulSet {name}: {error.message}") from None
        return f"recreate StatefulSet {name} around its pods"

    # ---- volumes

    async def _grow_volumes(self, cluster: BrokerCluster) -> list[str]:
        wanted = {
            naming.BROKER: cluster.spec.storage.size,
            naming.ZOOKEEPER: manifests_zookeeper.managed(cluster).storage.size,
        }
        done = []
        for name, claim in sorted(self._listed.objects.get("PersistentVolumeClaim", {}).items()):
            size = wanted.get(claim["metadata"]["labels"].get(naming.COMPONENT_LABEL, ""))
            if size is None or not _smaller(claim, size):
                continue
            patch = {"spec": {"resources": {"requests": {"storage": str(size)}}}}
            try:
                grown = await self._api.merge("PersistentVolumeClaim", _namespace(cluster), name, patch)
            except ApiError as error:
                raise StepFailed("VolumeNotGrown", f"volume {name}: {error.message}") from None
            self._put("PersistentVolumeClaim", grown)
            done.append(f"grow volume {name} to {size}")
        return done

    # ---- ZooKeeper

    async def ensure_zookeeper(self, cluster: BrokerCluster) -> None:
        """`keep` has done it on every pass before; the planner asks while its servers come up."""

    async def stop_zookeeper(self, cluster: BrokerCluster) -> None:
        name = naming.zookeeper_name(cluster.metadata.name)
        await self._delete("StatefulSet", cluster, name)
        if manifests_zookeeper.managed(cluster).storage.delete_claim:
            for claim, item in self._listed.objects.get("PersistentVolumeClaim", {}).items():
                if item["metadata"]["labels"].get(naming.COMPONENT_LABEL) == naming.ZOOKEEPER:
                    await self._delete("PersistentVolumeClaim", cluster, claim)

    # ---- brokers

    async def start_broker(self, cluster: BrokerCluster, broker: int, launch: Launch | None) -> None:
        _check(cluster)
        live = self._set_of(cluster)
        replicas = max(broker + 1, _replicas(live) if live is not None else 0)
        if launch is None:
            # The set starts it by itself, with what its ConfigMap says; unless it was made too small.
            if live is not None and _replicas(live) < replicas:
                await self._scale(live, replicas)
            return
        await self._replace(cluster, broker, launch, replicas)

    async def stop_broker(self, cluster: BrokerCluster, broker: int, after: Launch | None = None) -> None:
        live = self._set_of(cluster)
        if after is not None:
            await self._replace(cluster, broker, after, _replicas(live) if live is not None else broker + 1)
            return
        if live is not None and _replicas(live) > broker:
            await self._scale(live, broker)
        elif live is None:
            pod = observing.pods_of(self._listed, cluster.metadata.name).get(broker)
            if pod is not None:
                await self._delete_pod(cluster, pod)

    async def _replace(self, cluster: BrokerCluster, broker: int, launch: Launch, replicas: int) -> None:
        """Give the broker its settings, the set its template, and let go of a pod that ran with others."""
        name = cluster.metadata.name
        pod = observing.pods_of(self._listed, name).get(broker)
        config = observing.configs_of(self._listed, name).get(broker)
        running, settings = observing.runs_with(pod, config)
        stale = pod is not None and running != launch.config_hash
        replaced = None
        if pod is not None and stale:
            replaced = _replaced(pod, running or observing.UNKNOWN_HASH, _settings_text(settings))
        await self._ensure(self._config(cluster, broker, launch, replaced))
        await self._apply_set(cluster, launch, replicas)
        if pod is not None and stale:
            await self._delete_pod(cluster, pod)

    async def remove_broker(self, cluster: BrokerCluster, broker: int, *, delete_volume: bool) -> None:
        name = cluster.metadata.name
        live = self._set_of(cluster)
        if live is not None and _replicas(live) > broker:
            await self._scale(live, broker)
        if broker in observing.pods_of(self._listed, name):
            raise StepFailed("StillRunning", f"pod {naming.broker_pod(name, broker)} is still there")
        # First the volume: were we interrupted, the ConfigMap would still say that there is a broker.
        if delete_volume:
            claim = naming.data_claim(naming.broker_pod(name, broker))
            await self._delete("PersistentVolumeClaim", cluster, claim)
        await self._delete("ConfigMap", cluster, naming.broker_config(name, broker))

    # ---- writes

    async def _scale(self, live: Object, replicas: int) -> None:
        namespace, name = live["metadata"]["namespace"], name_of(live)
        patch = {"metadata": {"resourceVersion": _version(live)}, "spec": {"replicas": replicas}}
        try:
            self._put("StatefulSet", await self._api.merge("StatefulSet", namespace, name, patch))
        except ApiError as error:
            raise StepFailed("ScaleFailed", f"StatefulSet {name}: {error.message}") from None

    async def _delete_pod(self, cluster: BrokerCluster, pod: Object) -> None:
        try:
            await self._api.delete("Pod", _namespace(cluster), name_of(pod), uid=uid_of(pod))
        except Conflict:
            log.info("pod %s is another one by now", name_of(pod))
        except ApiError as error:
            raise StepFailed("DeleteFailed", f"pod {name_of(pod)}: {error.message}") from None

    async def _delete(self, kind: str, cluster: BrokerCluster, name: str) -> None:
        try:
            await self._api.delete(kind, _namespace(cluster), name)
        except ApiError as error:
            raise StepFailed("DeleteFailed", f"{kind} {name}: {error.message}") from None
        self._forget(kind, name)


def _namespace(cluster: BrokerCluster) -> str:
    assert cluster.metadata.namespace, "on Kubernetes every resource has a namespace"
    return cluster.metadata.namespace


def _known_hashes(cluster: BrokerCluster) -> dict[int, str]:
    return {broker.id: broker.config_hash for broker in cluster.status.brokers}


def _check(cluster: BrokerCluster) -> None:
    """Refuse what cannot be made, before half of it is."""
    problem = naming.name_problem(cluster.metadata.name) or listeners.problem(cluster)
    if problem:
        raise StepFailed("InvalidSpec", problem)


def _version(item: Object) -> str:
    return str(item["metadata"].get("resourceVersion", ""))


def _applied(item: Object) -> str | None:
    return annotations_of(item).get(naming.APPLIED_ANNOTATION)


def _replicas(stateful_set: Object) -> int:
    return int(stateful_set["spec"].get("replicas", 1))


def _same_claims(live: Object, manifest: Manifest) -> bool:
    wanted = manifest["spec"]["volumeClaimTemplates"]
    return not difference(live["spec"].get("volumeClaimTemplates"), wanted)


def _smaller(claim: Object, size: str | int) -> bool:
    asked = parse_quantity(claim["spec"]["resources"]["requests"]["storage"])
    wanted = parse_quantity(size)
    return asked is not None and wanted is not None and asked < wanted


def _replaced(pod: Object, config_hash: str, settings: str) -> dict[str, str]:
    return {
        naming.REPLACES_ANNOTATION: uid_of(pod),
        naming.REPLACED_HASH_ANNOTATION: config_hash,
        naming.REPLACED_SETTINGS_ANNOTATION: settings,
    }


def _settings_text(settings: Mapping[str, str]) -> str:
    return json.dumps(dict(settings), sort_keys=True)
