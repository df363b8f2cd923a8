"""The `Platform` interface over the API server: brokers as pods of a StatefulSet.

Used by the reconciler of one cluster. Every reconciliation begins with `observe`, which lists the objects
that its steps use. A broker's ConfigMap is updated before its pod is deleted, so that a restarted pod always
has the new settings; until then, the ConfigMap's annotations name the pod that still runs with the previous
ones.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from ottla.security.tls import TlsSettings, client_context
from ottla_operator.kubernetes import (
    certificates,
    listeners,
    manifests_brokers,
    manifests_zookeeper,
    naming,
    observing,
)
from ottla_operator.kubernetes.api import Api
from ottla_operator.kubernetes.child_objects import ChildObjects
from ottla_operator.kubernetes.listeners import AddressPending, Advertised
from ottla_operator.kubernetes.manifests_common import Images, Manifest, difference
from ottla_operator.kubernetes.observing import Object, annotations_of, name_of, uid_of
from ottla_operator.kubernetes.zookeeper_client import FindLeader, SetAcls, leader_of, set_acls
from ottla_operator.kubernetes.zookeeper_planning import (
    ServerStage,
    ZooKeeperSecurity,
    next_to_replace,
    plan_security,
    stale_members,
)
from ottla_operator.planning.certificates import RandomBytes
from ottla_operator.planning.cluster_secrets import plan_secrets, secret_names
from ottla_operator.planning.fencing import fenced_brokers
from ottla_operator.planning.listener_security import broker_subject
from ottla_operator.planning.observed import BrokerInstance, ZooKeeperState
from ottla_operator.planning.revision import RESTART_OF_BROKER
from ottla_operator.platform.interfaces import Address, BrokerLaunch, StepFailed
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.cluster import ListenerStatus
from ottla_operator.resources.common import REPLACE_KEY_ANNOTATION, RESTART_POD_ANNOTATION, parse_quantity
from ottla_operator.resources.pods import sidecar_problem


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
        leader_of: FindLeader = leader_of,
        random_bytes: RandomBytes = os.urandom,
    ) -> None:
        self._random_bytes = random_bytes
        self._set_acls = set_acls
        self._leader_of = leader_of
        self._zookeeper = ZooKeeperSecurity()
        self._images = images
        self._clock_ms = clock_ms
        self._name = cluster
        self._objects = ChildObjects(api, namespace, cluster)
        self._nodes: Mapping[str, Object] = {}

    # ---- addresses

    def addresses(self, cluster: BrokerCluster, brokers: Collection[int]) -> Sequence[Address]:
        port = listeners.REPLICATION_PORT
        return [(listeners.broker_host(cluster, broker), port) for broker in sorted(brokers)]

    def bootstrap(self, cluster: BrokerCluster) -> str:
        return manifests_brokers.bootstrap_servers(cluster)

    def listeners(self, cluster: BrokerCluster) -> list[ListenerStatus]:
        listed = self._objects.listed
        outside = [
            listeners.advertised_in_config(listed, cluster, broker) for broker in sorted(self._configs())
        ]
        return listeners.listener_statuses(cluster, outside, certificates.trusted(listed, self._name))

    def client_properties(self) -> Mapping[str, str]:
        """The client properties of the operator's connections, from the Secrets of the last observation."""
        return certificates.client_properties(self._objects.listed, self._name)

    def authority_ends(self) -> Mapping[str, int]:
        """When the authorities' certificates expire, milliseconds since the epoch, by kind."""
        return certificates.authority_ends(self._objects.listed, self._name)

    def traits(self, cluster: BrokerCluster) -> Mapping[str, str]:
        return manifests_brokers.traits(cluster, self._images, self._zookeeper)

    def restart_request(self) -> str:
        return "" if self._set is None else observing.restarted_at(self._set)

    # ---- observing

    async def observe(self, cluster: BrokerCluster) -> tuple[ZooKeeperState, dict[int, BrokerInstance]]:
        await self._objects.list(secrets=cluster.spec.is_secured)
        if _needs_nodes(cluster) and not cluster.metadata.deleting:
            self._nodes = await self._objects.nodes()
        instances = observing.broker_instances(self._objects.listed, self._name, _known_hashes(cluster))
        for broker, instance in instances.items():
            if self._restart_asked(broker):
                settings = {**instance.settings, RESTART_OF_BROKER: "requested"}
                instances[broker] = replace(instance, config_hash=_RESTARTED, settings=settings)
            elif self._has_moved(cluster, broker):
                settings = {**instance.settings, "advertised.listeners": "elsewhere"}
                instances[broker] = replace(instance, config_hash=_MOVED, settings=settings)
        self._zookeeper = plan_security(
            cluster,
            self._objects.listed,
            manifests_zookeeper.managed(cluster).replicas,
            [instance.settings for instance in instances.values()],
            manifests_zookeeper.connect_string(cluster, secure=True),
        )
        return self._zookeeper_state(cluster), instances

    def _zookeeper_state(self, cluster: BrokerCluster) -> ZooKeeperState:
        listed = self._objects.listed
        connect = manifests_brokers.brokers_connect(cluster, self._zookeeper)
        is_external = cluster.spec.zookeeper.connect is not None
        if cluster.metadata.deleting:
            # A deletion waits for the remaining objects.
            left = observing.zookeeper_pods(listed, self._name) or listed.find(
                "StatefulSet", naming.zookeeper_name(self._name)
            )
            return ZooKeeperState(bool(left) and not is_external, connect)
        if is_external:
            return ZooKeeperState(True, connect)
        members = manifests_zookeeper.managed(cluster).replicas
        return observing.zookeeper_state(listed, self._name, members, connect)

    @property
    def _set(self) -> Object | None:
        """The brokers' StatefulSet."""
        return self._objects.listed.find("StatefulSet", naming.brokers_name(self._name))

    def _pods(self) -> dict[int, Object]:
        return observing.pods_of(self._objects.listed, self._name)

    def _configs(self) -> dict[int, Object]:
        return observing.configs_of(self._objects.listed, self._name)

    def _check(self, cluster: BrokerCluster) -> None:
        """Raise StepFailed for an invalid spec before any object is written."""
        problem = naming.name_problem(cluster.metadata.name) or listeners.listeners_problem(cluster)
        if not problem and not self._images.allow_sidecars:
            problem = sidecar_problem({"spec.template.pod": cluster.spec.template.pod})
        if problem:
            raise StepFailed("InvalidSpec", problem)

    # ---- objects around the brokers

    async def ensure_children(
        self, cluster: BrokerCluster, launch: BrokerLaunch, *, under_replicated: bool
    ) -> Sequence[str]:
        self._check(cluster)
        surroundings = manifests_brokers.build_children(
            cluster, self._images, under_replicated=under_replicated
        )
        done = [await self._objects.ensure(manifest) for manifest in surroundings]
        done += await self._ensure_external(cluster)
        done += await self._ensure_certificates(cluster)
        if cluster.spec.zookeeper.connect is None:
            done += await self._ensure_zookeeper(cluster, self._zookeeper.servers)
        done += await self._ensure_configs(cluster, launch)
        done += await self._ensure_racks(cluster)
        if self._set is None:
            done.append(await self._ensure_set(cluster, launch))
        done += await self._grow_volumes(cluster)
        done.append(await self._ensure_set(cluster, launch))
        if self._zookeeper.sets_acls:
            done.append(await self._set_node_acls(cluster))
            done += await self._ensure_zookeeper(cluster, ServerStage.TLS)
        return [what for what in done if what]

    async def _ensure_zookeeper(self, cluster: BrokerCluster, stage: ServerStage) -> list[str]:
        rests = cluster.hibernates and not self._pods()
        certified = certificates.zookeeper_digest(self._objects.listed, self._name)
        manifests = manifests_zookeeper.build_all(cluster, self._images, stage, certified)
        if rests:
            for manifest in manifests:
                if manifest["kind"] == "StatefulSet":
                    manifest["spec"]["replicas"] = 0
        done = [await self._objects.ensure(manifest) for manifest in manifests]
        listed = self._objects.listed
        stateful_set = listed.find("StatefulSet", naming.zookeeper_name(self._name))
        pods = observing.zookeeper_pods(listed, self._name)
        if stateful_set is None or not stale_members(stateful_set, pods):
            return done
        members = manifests_zookeeper.managed(cluster).replicas
        hosts = {member: manifests_zookeeper.member_host(cluster, member) for member in range(members)}
        # Servers have a plain port until all of them have the TLS port.
        if stage >= ServerStage.QUORUM_TLS:
            port, context = manifests_zookeeper.SECURE_PORT, client_context(self._tls())
        else:
            port, context = manifests_zookeeper.CLIENT_PORT, None
        leader = await self._leader_of(hosts, port, context)
        going = next_to_replace(stateful_set, pods, members, leader)
        if going is not None:
            await self._objects.delete_pod(pods[going])
            done.append(f"replace pod {name_of(pods[going])}")
        return done

    async def _set_node_acls(self, cluster: BrokerCluster) -> str:
        connect = manifests_zookeeper.connect_string(cluster, secure=True)
        owner = broker_subject(self._name).distinguished_name
        try:
            changed = await asyncio.to_thread(self._set_acls, connect, self._tls(), owner)
        except Exception as error:
            # Kazoo's errors have no common base class. The next reconciliation tries again.
            raise StepFailed("ZooKeeperAclsNotSet", f"ZooKeeper at {connect}: {error!r}") from error
        return f"set the ACLs of {changed} ZooKeeper nodes"

    def _tls(self) -> TlsSettings:
        return TlsSettings.of(self.client_properties().get)

    async def _ensure_external(self, cluster: BrokerCluster) -> list[str]:
        listed = self._objects.listed
        brokers = self._brokers_wanted(cluster)
        manifests = listeners.build_external_services(cluster, listed, brokers)
        done = [await self._objects.ensure(manifest) for manifest in manifests]
        for service in listeners.obsolete_external_services(cluster, listed, brokers):
            await self._objects.delete("Service", service)
            done.append(f"delete Service {service}")
        return done

    def _brokers_wanted(self, cluster: BrokerCluster) -> int:
        """The number of brokers, including those that leave and are not removed yet."""
        return max([cluster.spec.replicas, *(broker + 1 for broker in self._configs())])

    async def _ensure_certificates(self, cluster: BrokerCluster) -> list[str]:
        if not cluster.spec.is_secured:
            return []
        for name in secret_names(self._name):
            if self._objects.listed.find("Secret", name) is None:
                await self._objects.find_unlabelled("Secret", name)
        done = []
        for name in certificates.keys_to_replace(self._objects.listed, self._name):
            # A missing key is generated, also after an interruption at this point.
            await self._objects.delete("Secret", name)
            done.append(f"delete Secret {name}: {REPLACE_KEY_ANNOTATION} requests a new key")
        names = {
            naming.broker_pod(self._name, broker): self._names_of(cluster, broker)
            for broker in range(self._brokers_wanted(cluster))
        }
        found = certificates.data_of(self._objects.listed)
        servers = manifests_zookeeper.server_names(cluster)
        planned = plan_secrets(cluster, names, found, self._clock_ms(), self._random_bytes, zookeeper=servers)
        for name, data in planned.data.items():
            what = await self._objects.ensure(certificates.build_secret(cluster, name, data))
            why = planned.changes.get(name)
            done.append(f"{what} ({'; '.join(why)})" if what and why else what)
        return done

    def _names_of(self, cluster: BrokerCluster, broker: int) -> list[str]:
        try:
            addresses = self._advertised(cluster, broker)
        except AddressPending:
            addresses = {}
        return certificates.broker_names(cluster, broker, addresses)

    async def _ensure_racks(self, cluster: BrokerCluster) -> list[str]:
        rack = cluster.spec.rack
        if rack is None:
            return []
        without_rack = observing.pods_without_rack(self._pods())
        for pod in without_rack:
            await self._objects.patch(
                "Pod",
                pod,
                manifests_brokers.build_rack_patch(pod, self._nodes, rack.topology_key),
                "RackNotTold",
            )
        return [f"annotate pod {name_of(pod)} with its rack" for pod in without_rack]

    async def _ensure_configs(self, cluster: BrokerCluster, launch: BrokerLaunch) -> list[str]:
        """Create missing ConfigMaps of existing pods. The pod's revision is taken from the status; if it
        is unknown, the pod is restarted in the next roll."""
        configs, known = self._configs(), _known_hashes(cluster)
        done = []
        for broker, pod in self._pods().items():
            if broker in configs or pod["metadata"].get("deletionTimestamp"):
                continue
            running = known.get(broker) or observing.UNKNOWN_HASH
            replaced = None if running == launch.config_hash else _replaced(pod, running, {})
            done.append(await self._objects.ensure(self._config(cluster, broker, launch, replaced)))
        return done

    async def _ensure_set(self, cluster: BrokerCluster, launch: BrokerLaunch) -> str:
        """Apply the StatefulSet, unless its new template must wait for the start of a roll."""
        live = self._set
        if live is None:
            brokers = self._configs()
            return await self._apply_set(cluster, launch, max(brokers) + 1) if brokers else ""
        if annotations_of(live).get(naming.HASH_ANNOTATION) != launch.config_hash:
            return ""
        return await self._apply_set(cluster, launch, _replicas(live))

    async def _apply_set(self, cluster: BrokerCluster, launch: BrokerLaunch, replicas: int) -> str:
        manifest = manifests_brokers.build_stateful_set(cluster, self._images, replicas, launch)
        live = self._set
        if live is not None and not _same_claims(live, manifest):
            # volumeClaimTemplates are immutable: a new StatefulSet adopts the pods.
            return await self._objects.orphan(live)
        return await self._objects.ensure(manifest)

    async def _grow_volumes(self, cluster: BrokerCluster) -> list[str]:
        wanted = {
            naming.BROKER: cluster.spec.storage.size,
            naming.ZOOKEEPER: manifests_zookeeper.managed(cluster).storage.size,
        }
        done = []
        for claim in self._claims():
            size = wanted.get(_component(claim))
            if size is None or not _smaller(claim, size):
                continue
            patch = {"spec": {"resources": {"requests": {"storage": str(size)}}}}
            await self._objects.patch("PersistentVolumeClaim", claim, patch, "VolumeNotGrown")
            done.append(f"grow volume {name_of(claim)} to {size}")
        return done

    def _claims(self) -> list[Object]:
        claims = self._objects.listed.objects.get("PersistentVolumeClaim", {})
        return [claims[name] for name in sorted(claims)]

    # ---- ZooKeeper

    async def ensure_zookeeper(self, cluster: BrokerCluster) -> None:
        """Nothing to do: `ensure_children` creates the objects; the planner waits for the servers with
        this step."""

    async def stop_zookeeper(self, cluster: BrokerCluster) -> None:
        if cluster.hibernates and not cluster.metadata.deleting:
            return  # `ensure_children` scales it
        await self._objects.delete("StatefulSet", naming.zookeeper_name(self._name))
        if manifests_zookeeper.managed(cluster).storage.delete_claim:
            for claim in self._claims():
                if _component(claim) == naming.ZOOKEEPER:
                    await self._objects.delete("PersistentVolumeClaim", name_of(claim))

    # ---- brokers

    async def start_broker(self, cluster: BrokerCluster, broker: int, launch: BrokerLaunch | None) -> None:
        self._check(cluster)
        live = self._set
        replicas = max(broker + 1, _replicas(live) if live is not None else 0)
        if launch is not None:
            await self._replace(cluster, broker, launch, replicas)
        elif live is not None and _replicas(live) < replicas:
            # The StatefulSet starts the pod itself, unless it has too few replicas.
            await self._objects.scale(live, replicas)

    async def stop_broker(
        self, cluster: BrokerCluster, broker: int, after: BrokerLaunch | None = None
    ) -> None:
        live = self._set
        if after is not None:
            await self._replace(cluster, broker, after, _replicas(live) if live is not None else broker + 1)
        elif live is not None and _replicas(live) > broker:
            await self._objects.scale(live, broker)
        elif live is None and broker in self._pods():
            await self._objects.delete_pod(self._pods()[broker])

    async def _replace(
        self, cluster: BrokerCluster, broker: int, launch: BrokerLaunch, replicas: int
    ) -> None:
        """Write the broker's ConfigMap and the set's template, then delete a pod of another revision."""
        pod, config = self._pods().get(broker), self._configs().get(broker)
        running, settings = observing.runs_with(pod, config)
        launch = _fenced(cluster, broker, launch)
        fenced = settings.get(observing.FENCED) != launch.static.get(observing.FENCED)
        stale = running != launch.config_hash or fenced or self._has_moved(cluster, broker)
        stale = stale or self._restart_asked(broker)
        replaced = _replaced(pod, running or observing.UNKNOWN_HASH, settings) if pod and stale else None
        await self._objects.ensure(self._config(cluster, broker, launch, replaced))
        await self._apply_set(cluster, launch, replicas)
        if pod is not None and stale:
            await self._objects.delete_pod(pod)

    def _config(
        self, cluster: BrokerCluster, broker: int, launch: BrokerLaunch, replaced: Mapping[str, str] | None
    ) -> Manifest:
        try:
            addresses = self._advertised(cluster, broker)
        except AddressPending as error:
            raise StepFailed("AddressPending", f"broker {broker}: {error}") from None
        annotations = {**listeners.advertised_annotation(addresses), **(replaced or {})}
        return manifests_brokers.build_broker_config(
            cluster, broker, launch, self._zookeeper, advertised=addresses, annotations=annotations
        )

    def _advertised(self, cluster: BrokerCluster, broker: int) -> Advertised:
        return listeners.advertised_addresses(cluster, broker, self._objects.listed, self._nodes)

    def _restart_asked(self, broker: int) -> bool:
        """Whether an annotation of the broker's pod requests its restart."""
        pod = self._pods().get(broker)
        asked = pod is not None and annotations_of(pod).get(RESTART_POD_ANNOTATION, "")
        return bool(asked) and asked != "false"

    def _has_moved(self, cluster: BrokerCluster, broker: int) -> bool:
        """Whether the broker's external addresses differ from the advertised ones; False while they are
        unknown."""
        if cluster.metadata.deleting or not listeners.external_listeners(cluster):
            return False
        try:
            return listeners.addresses_changed(self._configs().get(broker), self._advertised(cluster, broker))
        except AddressPending:
            return False

    async def remove_broker(self, cluster: BrokerCluster, broker: int, *, delete_volume: bool) -> None:
        live = self._set
        if live is not None and _replicas(live) > broker:
            await self._objects.scale(live, broker)
        pod = naming.broker_pod(self._name, broker)
        if broker in self._pods():
            raise StepFailed("StillRunning", f"pod {pod} still exists")
        # The volume first: after an interruption, the ConfigMap still identifies the broker.
        if delete_volume:
            await self._objects.delete("PersistentVolumeClaim", naming.data_claim(pod))
        await self._objects.delete("ConfigMap", naming.broker_config(self._name, broker))

    async def replace_broker(self, cluster: BrokerCluster, broker: int) -> None:
        # The claim first: it exists until its pod is deleted, and a pod created in between would use it
        # again.
        claim = observing.claim_of(self._objects.listed, self._name, broker)
        if claim is not None and not claim["metadata"].get("deletionTimestamp"):
            await self._objects.delete_claim(claim)
        pod = self._pods().get(broker)
        if pod is not None and not pod["metadata"].get("deletionTimestamp"):
            await self._objects.delete_pod(pod)


# The revision hashes of a broker whose advertised addresses are outdated, and of one whose pod is annotated.
_MOVED, _RESTARTED = "moved", "restart-requested"


def _fenced(cluster: BrokerCluster, broker: int, launch: BrokerLaunch) -> BrokerLaunch:
    """The launch configuration, with which a fenced broker waits instead of serving."""
    fenced, _ = fenced_brokers(cluster.metadata.annotations, cluster.spec.replicas)
    if broker not in fenced:
        return launch
    return replace(
        launch,
        static={**launch.static, observing.FENCED: "true"},
        properties={**launch.properties, "ottla.fenced": "true"},
    )


def _needs_nodes(cluster: BrokerCluster) -> bool:
    node_ports = any(listener.type == "nodeport" for listener in listeners.external_listeners(cluster))
    return node_ports or cluster.spec.rack is not None


def _known_hashes(cluster: BrokerCluster) -> dict[int, str]:
    return {broker.id: broker.config_hash for broker in cluster.status.brokers}


def _replicas(stateful_set: Object) -> int:
    return int(stateful_set["spec"].get("replicas", 1))


def _component(item: Object) -> str:
    return str((item["metadata"].get("labels") or {}).get(naming.COMPONENT_LABEL, ""))


def _same_claims(live: Object, manifest: Manifest) -> bool:
    wanted = manifest["spec"]["volumeClaimTemplates"]
    return not difference(live["spec"].get("volumeClaimTemplates"), wanted)


def _smaller(claim: Object, size: str | int) -> bool:
    requested = parse_quantity(claim["spec"]["resources"]["requests"]["storage"])
    wanted = parse_quantity(size)
    return requested is not None and wanted is not None and requested < wanted


def _replaced(pod: Object, config_hash: str, settings: Mapping[str, str]) -> dict[str, str]:
    return {
        naming.REPLACES_ANNOTATION: uid_of(pod),
        naming.REPLACED_HASH_ANNOTATION: config_hash,
        naming.REPLACED_SETTINGS_ANNOTATION: json.dumps(dict(settings), sort_keys=True),
    }
