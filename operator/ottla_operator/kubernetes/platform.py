"""The `Platform` interface over the API server: brokers as pods of a StatefulSet.

Used by the reconciler of one cluster. Every reconciliation begins with `observe`, which lists the objects
that its steps use. A broker's ConfigMap is updated before its pod is deleted, so that a restarted pod always
has the new settings; until then, the ConfigMap's annotations name the pod that still runs with the previous
ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from ottla.security.tls import TlsSettings
from ottla_operator.kubernetes import (
    certificates,
    external_access,
    issuing,
    listeners,
    manifests_brokers,
    naming,
    observing,
    volumes,
)
from ottla_operator.kubernetes.api import Api
from ottla_operator.kubernetes.child_objects import ChildObjects
from ottla_operator.kubernetes.cluster_access import ClusterAccess
from ottla_operator.kubernetes.cluster_certificates import ClusterCertificates
from ottla_operator.kubernetes.cluster_volumes import ClusterVolumes
from ottla_operator.kubernetes.external_access import ROUTE_KINDS, AddressPending
from ottla_operator.kubernetes.managed_fields import foreign_fields
from ottla_operator.kubernetes.manifests_common import Images, Manifest, is_of_former
from ottla_operator.kubernetes.observing import Object, annotations_of, name_of, uid_of
from ottla_operator.kubernetes.zookeeper_client import FindRoles, SetAcls, roles_of, set_acls
from ottla_operator.kubernetes.zookeeper_servers import ZooKeeperServers
from ottla_operator.planning.certificates import RandomBytes
from ottla_operator.planning.cluster_secrets import clients_trust
from ottla_operator.planning.fencing import fenced_brokers
from ottla_operator.planning.listener_security import listeners_of
from ottla_operator.planning.observed import BrokerInstance, ZooKeeperState
from ottla_operator.planning.revision import RESTART_OF_BROKER, PerBroker
from ottla_operator.platform.interfaces import Address, BrokerLaunch, Ensured, StepFailed
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.cluster_status import ListenerStatus
from ottla_operator.resources.common import RESTART_POD_ANNOTATION


class KubernetesPlatform:
    """The brokers and the ZooKeeper of one BrokerCluster."""

    def __init__(
        self,
        api: Api,
        images: Images,
        namespace: str,
        cluster: str,
        clock_ms: Callable[[], int],
        set_acls: SetAcls = set_acls,
        roles_of: FindRoles = roles_of,
        random_bytes: RandomBytes = os.urandom,
    ) -> None:
        self._images = images
        self._name = cluster
        self._objects = ChildObjects(api, namespace, cluster, clock_ms)
        self._access = ClusterAccess(self._objects, cluster)
        self._certificates = ClusterCertificates(self._objects, self._access, cluster, clock_ms, random_bytes)
        self._volumes = ClusterVolumes(self._objects)
        self._servers = ZooKeeperServers(
            self._objects, images, cluster, clock_ms, set_acls, roles_of, self._tls
        )

    def kept_volumes(self) -> Mapping[int, str]:
        return observing.kept_volumes(self._objects.listed, self._name)

    # ---- addresses

    def addresses(self, cluster: BrokerCluster, brokers: Collection[int]) -> Sequence[Address]:
        port = listeners.REPLICATION_PORT
        return [(listeners.broker_host(cluster, broker), port) for broker in sorted(brokers)]

    def bootstrap(self, cluster: BrokerCluster) -> str:
        return manifests_brokers.bootstrap_servers(cluster)

    def listeners(self, cluster: BrokerCluster) -> list[ListenerStatus]:
        bootstrap = {
            listener.name: self._access.known_bootstrap(cluster, listener)
            for listener in listeners_of(cluster)
        }
        data = certificates.data_of(self._objects.listed)
        return listeners.listener_statuses(
            cluster, bootstrap, lambda listener: clients_trust(cluster, listener, data)
        )

    def client_properties(self) -> Mapping[str, str]:
        """The client properties of the operator's connections, from the Secrets of the last observation."""
        return certificates.client_properties(self._objects.listed, self._name)

    def _tls(self) -> TlsSettings:
        return TlsSettings.of(self.client_properties().get)

    def authority_ends(self) -> Mapping[str, int]:
        """When the authorities' certificates expire, milliseconds since the epoch, by kind."""
        return certificates.authority_ends(self._objects.listed, self._name)

    def traits(self, cluster: BrokerCluster) -> Mapping[str, str]:
        return manifests_brokers.traits(cluster, self._images, self._servers.security)

    def metrics_addresses(self) -> Mapping[int, str]:
        """host:port of each broker's /metrics, of the pods of the last observation."""
        return observing.metrics_addresses(self._objects.listed, self._name, manifests_brokers.METRICS_PORT)

    def restart_request(self) -> str:
        return "" if self._set is None else observing.restarted_at(self._set)

    # ---- observing

    async def observe(self, cluster: BrokerCluster) -> tuple[ZooKeeperState, dict[int, BrokerInstance]]:
        routes = {ROUTE_KINDS[each.type] for each in listeners_of(cluster) if each.type in ROUTE_KINDS}
        issued = {issuing.KIND} if issuing.is_used(cluster) else set()
        await self._objects.list(secrets=cluster.spec.is_secured, optional=routes | issued)
        self._wait_for_deletion(cluster)
        await self._find_relabelled()
        await self._certificates.find_given(cluster)
        await self._access.find_nodes(cluster)
        instances = observing.broker_instances(self._objects.listed, self._name, _known_hashes(cluster))
        pods = self._pods()
        for broker, instance in instances.items():
            if _restart_asked(pods.get(broker)):
                settings = {**instance.settings, RESTART_OF_BROKER: "requested"}
                instances[broker] = replace(instance, config_hash=_RESTARTED, settings=settings)
            elif self._access.has_moved(cluster, broker):
                settings = {**instance.settings, "advertised.listeners": "elsewhere"}
                instances[broker] = replace(instance, config_hash=_MOVED, settings=settings)
        zookeeper = await self._servers.observe(
            cluster, [instance.settings for instance in instances.values()]
        )
        return zookeeper, instances

    async def _find_relabelled(self) -> None:
        """Find pods and claims whose labels were changed: without its claim, a broker would count as one
        that has lost its volume."""
        sets = (self._set, *self._broker_sets().values(), self._servers.stateful_set)
        for stateful_set in sets:
            if stateful_set is None:
                continue
            labels: Mapping[str, str] = stateful_set["spec"]["selector"]["matchLabels"]
            for ordinal in range(_replicas(stateful_set)):
                pod = f"{name_of(stateful_set)}-{ordinal}"
                await self._objects.find_relabelled("Pod", pod, labels)
                for template in stateful_set["spec"].get("volumeClaimTemplates") or ():
                    claim = f"{name_of(template)}-{pod}"
                    await self._objects.find_relabelled("PersistentVolumeClaim", claim, labels)

    def _wait_for_deletion(self, cluster: BrokerCluster) -> None:
        """Raise StepFailed while there are objects of a former BrokerCluster of this name. Adopted, some of
        its volumes would survive the others."""
        former = [
            f"{kind} {name}"
            for kind, items in sorted(self._objects.listed.objects.items())
            for name, item in sorted(items.items())
            if is_of_former(cluster, item)
        ]
        if former:
            names = ", ".join(former[:3]) + (f" and {len(former) - 3} more" if len(former) > 3 else "")
            raise StepFailed(
                "WaitingForDeletion", f"{names} of the deleted BrokerCluster of this name still exist"
            )

    @property
    def _set(self) -> Object | None:
        """The StatefulSet of the cluster's own pool."""
        return self._objects.listed.find("StatefulSet", naming.brokers_name(self._name))

    def _set_of(self, broker: int) -> Object | None:
        """The StatefulSet of a broker."""
        return self._objects.listed.find("StatefulSet", naming.broker_set(self._name, broker))

    def _broker_sets(self) -> dict[int, Object]:
        """The StatefulSets of brokers of BrokerPools, by broker id."""
        found = {}
        for name, item in self._objects.listed.objects.get("StatefulSet", {}).items():
            broker = naming.ordinal_of(name)
            if broker is not None and naming.is_of_pool(broker) and self._set_of(broker) is item:
                found[broker] = item
        return found

    def _pods(self) -> dict[int, Object]:
        return observing.pods_of(self._objects.listed, self._name)

    def _configs(self) -> dict[int, Object]:
        return observing.configs_of(self._objects.listed, self._name)

    # ---- objects around the brokers

    async def ensure_children(
        self,
        cluster: BrokerCluster,
        launches: PerBroker[BrokerLaunch],
        *,
        under_replicated: bool,
        hold_servers: bool = False,
    ) -> Ensured:
        surroundings = manifests_brokers.build_children(
            cluster, self._images, under_replicated=under_replicated
        )
        ensured = Ensured()
        await self._objects.restore_labels(ensured)
        for manifest in surroundings:
            await ensured.attempt(self._objects.ensure(manifest))
        await self._access.ensure(cluster, ensured)
        certified = await self._certificates.ensure(cluster, ensured)
        # Servers restart with their certificates; without all Secrets, those are unknown.
        if cluster.spec.zookeeper.connect is None and certified:
            await self._servers.ensure(cluster, ensured, hold=hold_servers)
        await self._ensure_configs(cluster, launches, ensured)
        await self._ensure_racks(cluster, ensured)
        if self._set is None:
            await ensured.attempt(self._ensure_set(cluster, launches.default))
        await self._volumes.ensure(cluster, ensured)
        await ensured.attempt(self._ensure_set(cluster, launches.default))
        for broker in sorted({*self._configs(), *self._broker_sets()}):
            if naming.is_of_pool(broker) and not _is_left_alone(cluster, broker):
                await ensured.attempt(self._ensure_broker_set(cluster, broker, launches.of(broker)))
        if certified:
            await self._servers.ensure_acls(cluster, ensured)
        ensured.findings += [*self._volumes.findings(cluster), *self._objects.findings()]
        return ensured

    async def _ensure_racks(self, cluster: BrokerCluster, ensured: Ensured) -> None:
        rack = cluster.spec.rack
        if rack is None:
            return
        pods = {b: pod for b, pod in self._pods().items() if cluster.of_broker(b).spec.rack is not None}
        for pod in observing.pods_without_rack(pods):
            await ensured.attempt(self._annotate_with_rack(pod, rack.topology_key))

    async def _annotate_with_rack(self, pod: Object, topology_key: str) -> str:
        patch = manifests_brokers.build_rack_patch(pod, self._access.nodes, topology_key)
        await self._objects.patch("Pod", pod, patch, "RackNotTold")
        return f"annotate pod {name_of(pod)} with its rack"

    async def _ensure_configs(
        self, cluster: BrokerCluster, launches: PerBroker[BrokerLaunch], ensured: Ensured
    ) -> None:
        """Restore ConfigMaps of the current revision, and create missing ones of existing pods. The revision
        of such a pod is taken from the status; if it is unknown, the pod is restarted in the next roll. What
        else is to change waits for the broker's restart."""
        configs, known = self._configs(), _known_hashes(cluster)
        for broker, pod in self._pods().items():
            if (
                broker in configs
                or pod["metadata"].get("deletionTimestamp")
                or _is_left_alone(cluster, broker)
            ):
                continue
            launch = launches.of(broker)
            running = known.get(broker) or observing.UNKNOWN_HASH
            replaced = None if running == launch.config_hash else _replaced(pod, running, {})
            await ensured.attempt(self._ensure_config(cluster, broker, launch, replaced))
        for broker, config in configs.items():
            annotations, launch = annotations_of(config), launches.of(broker)
            if annotations.get(naming.HASH_ANNOTATION) != launch.config_hash or _is_left_alone(
                cluster, broker
            ):
                continue
            if not self._access.has_moved(cluster, broker) and not self._access.is_address_pending(
                cluster, broker
            ):
                replaced = {key: annotations[key] for key in _OF_REPLACED if key in annotations}
                # Whether it is fenced changes with a restart only.
                own = _fenced(launch) if observing.is_fenced(config) else launch
                await ensured.attempt(self._ensure_config(cluster, broker, own, replaced))

    async def _ensure_config(
        self, cluster: BrokerCluster, broker: int, launch: BrokerLaunch, replaced: Mapping[str, str] | None
    ) -> str:
        return await self._objects.ensure(self._config(cluster, broker, launch, replaced))

    async def _ensure_set(self, cluster: BrokerCluster, launch: BrokerLaunch) -> str:
        """Apply the StatefulSet, unless its new template must wait for the start of a roll."""
        live = self._set
        if live is None:
            brokers = [broker for broker in self._configs() if not naming.is_of_pool(broker)]
            return await self._apply_set(cluster, launch, max(brokers) + 1) if brokers else ""
        return await self._ensure_live_set(live, self._set_manifest(cluster, launch, _replicas(live)), launch)

    async def _ensure_broker_set(self, cluster: BrokerCluster, broker: int, launch: BrokerLaunch) -> str:
        """The same for a broker of a BrokerPool. One that was deleted is created with the broker's pod, or
        without it; only steps start and stop brokers."""
        live, pod = self._set_of(broker), self._pods().get(broker)
        if live is not None:
            replicas = min(1, _replicas(live))
            manifest = self._broker_set_manifest(cluster, broker, launch, replicas)
            return await self._ensure_live_set(live, manifest, launch)
        replicas = 0 if pod is None else 1
        return await self._objects.ensure(self._broker_set_manifest(cluster, broker, launch, replicas))

    async def _ensure_live_set(self, live: Object, manifest: Manifest, launch: BrokerLaunch) -> str:
        if annotations_of(live).get(naming.HASH_ANNOTATION) != launch.config_hash:
            return await self._objects.remove_additions(manifest)
        done = await self._objects.ensure(manifest)
        # The brokers are started or stopped by steps of their own.
        scaled = [
            str(field)
            for field in foreign_fields(live)
            if field.name == "spec.replicas" and field.manager != naming.MANAGER
        ]
        if not scaled:
            return done
        what = done or f"keep StatefulSet {name_of(live)}"
        return f"{what}, which was scaled to {_replicas(live)}: {scaled[0]}"

    async def _apply_set(self, cluster: BrokerCluster, launch: BrokerLaunch, replicas: int) -> str:
        return await self._objects.ensure(self._set_manifest(cluster, launch, replicas))

    def _set_manifest(self, cluster: BrokerCluster, launch: BrokerLaunch, replicas: int) -> Manifest:
        manifest = manifests_brokers.build_stateful_set(cluster, self._images, replicas, launch)
        return volumes.never_shrinking(manifest, self._set)

    def _broker_set_manifest(
        self, cluster: BrokerCluster, broker: int, launch: BrokerLaunch, replicas: int
    ) -> Manifest:
        manifest = manifests_brokers.build_broker_set(cluster, self._images, broker, replicas, launch)
        return volumes.never_shrinking(manifest, self._set_of(broker))

    # ---- ZooKeeper

    async def ensure_zookeeper(self, cluster: BrokerCluster) -> None:
        """Nothing to do: `ensure_children` creates the objects; the planner waits for the servers with
        this step."""

    async def stop_zookeeper(self, cluster: BrokerCluster) -> None:
        """Nothing to do: the garbage collector deletes what a deleted BrokerCluster owns; `ensure_children`
        scales the servers of one that hibernates."""

    # ---- brokers

    async def start_broker(self, cluster: BrokerCluster, broker: int, launch: BrokerLaunch | None) -> None:
        live = self._set_of(broker)
        replicas = self._replicas_with(broker)
        if launch is not None:
            await self._replace(cluster, broker, launch, replicas)
        elif live is not None and _replicas(live) < replicas:
            # The StatefulSet starts the pod itself, unless it has too few replicas.
            await self._objects.scale(live, replicas)

    def _replicas_with(self, broker: int) -> int:
        """The replicas of the broker's StatefulSet with which it runs."""
        live = self._set_of(broker)
        if naming.is_of_pool(broker):
            return 1
        return max(broker + 1, _replicas(live) if live is not None else 0)

    async def stop_broker(
        self, cluster: BrokerCluster, broker: int, after: BrokerLaunch | None = None
    ) -> None:
        live = self._set_of(broker)
        without = 0 if naming.is_of_pool(broker) else broker
        if after is not None:
            with_it = self._replicas_with(broker)
            await self._replace(cluster, broker, after, with_it if live is None else _replicas(live))
        elif live is not None and _replicas(live) > without:
            await self._objects.scale(live, without)
        elif live is None and broker in self._pods():
            await self._objects.delete_pod(self._pods()[broker])

    async def _replace(
        self, cluster: BrokerCluster, broker: int, launch: BrokerLaunch, replicas: int
    ) -> None:
        """Write the broker's ConfigMap and the set's template, then delete a pod of another revision."""
        pod, config = self._pods().get(broker), self._configs().get(broker)
        running, settings = observing.runs_with(pod, config)
        if broker in fenced_brokers(cluster.metadata.annotations, cluster.broker_ids)[0]:
            launch = _fenced(launch)
        fenced = settings.get(observing.FENCED) != launch.static.get(observing.FENCED)
        stale = running != launch.config_hash or fenced or self._access.has_moved(cluster, broker)
        stale = stale or _restart_asked(pod)
        replaced = _replaced(pod, running or observing.UNKNOWN_HASH, settings) if pod and stale else None
        if naming.is_of_pool(broker):
            manifest = self._broker_set_manifest(cluster, broker, launch, min(1, replicas))
        else:
            manifest = self._set_manifest(cluster, launch, replicas)
        if pod is None or stale:
            await self._objects.check_pod(manifest, naming.broker_pod(self._name, broker))
        await self._objects.ensure(self._config(cluster, broker, launch, replaced))
        await self._objects.ensure(manifest)
        if pod is not None and stale:
            await self._objects.delete_pod(pod)

    def _config(
        self, cluster: BrokerCluster, broker: int, launch: BrokerLaunch, replaced: Mapping[str, str] | None
    ) -> Manifest:
        try:
            addresses = self._access.advertised(cluster, broker)
        except AddressPending as error:
            raise StepFailed("AddressPending", f"broker {broker}: {error}") from None
        annotations = {**external_access.advertised_annotation(addresses), **(replaced or {})}
        return manifests_brokers.build_broker_config(
            cluster, broker, launch, self._servers.security, advertised=addresses, annotations=annotations
        )

    async def remove_broker(self, cluster: BrokerCluster, broker: int, *, delete_volume: bool) -> None:
        live = self._set_of(broker)
        without = 0 if naming.is_of_pool(broker) else broker
        if live is not None and _replicas(live) > without:
            await self._objects.scale(live, without)
        pod = naming.broker_pod(self._name, broker)
        if broker in self._pods():
            raise StepFailed("StillRunning", f"pod {pod} still exists")
        # The volumes first: after an interruption, the ConfigMap still identifies the broker.
        claims = observing.claims_of(self._objects.listed, self._name, broker) if delete_volume else {}
        for claim in claims.values():
            await self._objects.delete("PersistentVolumeClaim", name_of(claim))
        if naming.is_of_pool(broker):
            await self._objects.delete("StatefulSet", naming.broker_set(self._name, broker))
        await self._objects.delete("ConfigMap", naming.broker_config(self._name, broker))

    async def replace_broker(self, cluster: BrokerCluster, broker: int) -> None:
        # The claims first: they exist until their pod is deleted, and a pod created in between would use them
        # again.
        listed = self._objects.listed
        for name in observing.volume_losses(listed, self._name, broker):
            claim = listed.find("PersistentVolumeClaim", name)
            if claim is not None and not claim["metadata"].get("deletionTimestamp"):
                await self._objects.delete_claim(claim)
        pod = self._pods().get(broker)
        if pod is not None and not pod["metadata"].get("deletionTimestamp"):
            await self._objects.delete_pod(pod)


# The revision hashes of a broker whose advertised addresses are outdated, and of one whose pod is annotated.
_MOVED, _RESTARTED = "moved", "restart-requested"


def _restart_asked(pod: Object | None) -> bool:
    """Whether an annotation of the broker's pod requests its restart."""
    return pod is not None and annotations_of(pod).get(RESTART_POD_ANNOTATION, "") not in ("", "false")


def _fenced(launch: BrokerLaunch) -> BrokerLaunch:
    """The launch configuration, with which a broker waits instead of serving."""
    return replace(
        launch,
        static={**launch.static, observing.FENCED: "true"},
        properties={**launch.properties, "ottla.fenced": "true"},
    )


def _known_hashes(cluster: BrokerCluster) -> dict[int, str]:
    return {broker.id: broker.config_hash for broker in cluster.status.brokers}


def _replicas(stateful_set: Object) -> int:
    return int(stateful_set["spec"].get("replicas", 1))


def _is_left_alone(cluster: BrokerCluster, broker: int) -> bool:
    """Whether the broker's BrokerPool is paused, or deleted, so that its settings are not known any more."""
    deleted = naming.is_of_pool(broker) and cluster.pool_of(broker) is None
    return deleted or cluster.is_paused(broker)


_OF_REPLACED = (
    naming.REPLACES_ANNOTATION,
    naming.REPLACED_HASH_ANNOTATION,
    naming.REPLACED_SETTINGS_ANNOTATION,
)


def _replaced(pod: Object, config_hash: str, settings: Mapping[str, str]) -> dict[str, str]:
    return {
        naming.REPLACES_ANNOTATION: uid_of(pod),
        naming.REPLACED_HASH_ANNOTATION: config_hash,
        naming.REPLACED_SETTINGS_ANNOTATION: json.dumps(dict(settings), sort_keys=True),
    }
