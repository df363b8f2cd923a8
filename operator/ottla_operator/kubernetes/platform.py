"""The `Platform` interface over the API server: brokers as pods of a StatefulSet.

Used by the reconciler of one cluster. Every reconciliation begins with `observe`, which lists the objects
that its steps use. A broker's ConfigMap is updated before its pod is deleted, so that a restarted pod always
has the new settings; until then, the ConfigMap's annotations name the pod that still runs with the previous
ones.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from ssl import SSLError

from ottla.security.stores import StoreProblem
from ottla.security.tls import TlsSettings, client_context
from ottla_operator.conditions import Finding
from ottla_operator.kubernetes import (
    certificates,
    external_access,
    issuing,
    listeners,
    manifests_brokers,
    manifests_zookeeper,
    naming,
    observing,
    volumes,
)
from ottla_operator.kubernetes.api import Api
from ottla_operator.kubernetes.child_objects import ChildObjects
from ottla_operator.kubernetes.external_access import ROUTE_KINDS, TLS_ROUTE_API, AddressPending
from ottla_operator.kubernetes.listeners import Advertised
from ottla_operator.kubernetes.managed_fields import foreign_fields
from ottla_operator.kubernetes.manifests_common import Images, Manifest, is_of_former
from ottla_operator.kubernetes.observing import Object, annotations_of, labels_of, name_of, uid_of
from ottla_operator.kubernetes.zookeeper_client import FindRoles, SetAcls, roles_of, set_acls
from ottla_operator.kubernetes.zookeeper_planning import (
    ServerRole,
    ServerRoll,
    ServerStage,
    ZooKeeperSecurity,
    is_held,
    plan_roll,
    plan_security,
    revision_of,
)
from ottla_operator.planning.certificates import RandomBytes
from ottla_operator.planning.cluster_secrets import (
    Data,
    authorities,
    clients_trust,
    generated_authorities,
    given_config_maps,
    given_secrets,
    issued_secret,
    plan_secrets,
    renewable_secrets,
    secret_names,
)
from ottla_operator.planning.fencing import fenced_brokers
from ottla_operator.planning.given_certificates import Flaw, finding_of
from ottla_operator.planning.listener_security import broker_subject, listeners_of
from ottla_operator.planning.observed import BrokerInstance, ZooKeeperServer, ZooKeeperState
from ottla_operator.planning.revision import RESTART_OF_BROKER, PerBroker
from ottla_operator.platform.interfaces import Address, BrokerLaunch, Ensured, StepFailed
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.cluster_status import ListenerStatus
from ottla_operator.resources.common import (
    RENEW_ANNOTATION,
    REPLACE_KEY_ANNOTATION,
    RESTART_POD_ANNOTATION,
    Storage,
)
from ottla_operator.resources.listeners import Listener

log = logging.getLogger(__name__)


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
        self._random_bytes = random_bytes
        self._set_acls = set_acls
        self._roles_of = roles_of
        self._roles: Mapping[int, ServerRole] = {}
        self._zookeeper = ZooKeeperSecurity()
        self._images = images
        self._clock_ms = clock_ms
        self._name = cluster
        self._objects = ChildObjects(api, namespace, cluster, clock_ms)
        self._nodes: Mapping[str, Object] = {}
        self._hold_servers = False

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
            listener.name: self._known_bootstrap(cluster, listener) for listener in listeners_of(cluster)
        }
        data = certificates.data_of(self._objects.listed)
        return listeners.listener_statuses(
            cluster, bootstrap, lambda listener: clients_trust(cluster, listener, data)
        )

    def client_properties(self) -> Mapping[str, str]:
        """The client properties of the operator's connections, from the Secrets of the last observation."""
        return certificates.client_properties(self._objects.listed, self._name)

    def authority_ends(self) -> Mapping[str, int]:
        """When the authorities' certificates expire, milliseconds since the epoch, by kind."""
        return certificates.authority_ends(self._objects.listed, self._name)

    def traits(self, cluster: BrokerCluster) -> Mapping[str, str]:
        return manifests_brokers.traits(cluster, self._images, self._zookeeper)

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
        await self._find_given(cluster)
        if _needs_nodes(cluster):
            self._nodes = await self._objects.nodes()
        instances = observing.broker_instances(self._objects.listed, self._name, _known_hashes(cluster))
        pods = self._pods()
        for broker, instance in instances.items():
            if _restart_asked(pods.get(broker)):
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
        self._roles = await self._find_roles(cluster)
        self._hold_servers = False
        return self._zookeeper_state(cluster), instances

    async def _find_given(self, cluster: BrokerCluster) -> None:
        """Find the Secrets and ConfigMaps of others. One that cannot be read counts as missing."""
        if not cluster.spec.is_secured:
            return
        wanted = [("Secret", name) for name in sorted(given_secrets(cluster))]
        wanted += [("ConfigMap", name) for name in sorted(given_config_maps(cluster))]
        for kind, name in wanted:
            if self._objects.listed.find(kind, name) is None:
                try:
                    await self._objects.find_unlabelled(kind, name)
                except StepFailed as failure:
                    log.warning("%s", failure.message)

    async def _find_relabelled(self) -> None:
        """Find pods and claims whose labels were changed: without its claim, a broker would count as one
        that has lost its volume."""
        sets = (self._set, *self._broker_sets().values(), self._servers_set)
        for stateful_set in sets:
            if stateful_set is None:
                continue
            labels: Mapping[str, str] = stateful_set["spec"]["selector"]["matchLabels"]
            for ordinal in range(_replicas(stateful_set)):
                pod = f"{name_of(stateful_set)}-{ordinal}"
                await self._objects.find_relabelled("Pod", pod, labels)
                await self._objects.find_relabelled("PersistentVolumeClaim", naming.data_claim(pod), labels)

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

    async def _find_roles(self, cluster: BrokerCluster) -> Mapping[int, ServerRole]:
        """The roles of the servers that are ready."""
        pods = observing.zookeeper_pods(self._objects.listed, self._name)
        ready = [member for member, pod in pods.items() if observing.is_ready(pod)]
        if cluster.spec.zookeeper.connect is not None or not ready:
            return {}
        hosts = {member: manifests_zookeeper.member_host(cluster, member) for member in ready}
        # Servers have a plain port until all of them have the TLS port.
        if self._zookeeper.servers < ServerStage.QUORUM_TLS:
            return await self._roles_of(hosts, manifests_zookeeper.CLIENT_PORT, None)
        try:
            context = client_context(self._tls())
        except (StoreProblem, SSLError):
            # Certificates are missing or damaged; they are created again later in this reconciliation.
            return {}
        return await self._roles_of(hosts, manifests_zookeeper.SECURE_PORT, context)

    def _zookeeper_state(self, cluster: BrokerCluster) -> ZooKeeperState:
        listed = self._objects.listed
        connect = manifests_brokers.brokers_connect(cluster, self._zookeeper)
        is_external = cluster.spec.zookeeper.connect is not None
        if is_external:
            return ZooKeeperState(True, connect)
        members = manifests_zookeeper.managed(cluster).replicas
        state = observing.zookeeper_state(listed, self._name, members, connect)
        wanted = self._zookeeper_manifests(cluster, self._zookeeper.servers)[-1]
        roll = self._plan_servers(cluster, wanted)
        servers = tuple(
            ZooKeeperServer(
                id=member,
                name=name_of(pod),
                ready=observing.is_ready(pod),
                role=self._roles.get(member, ServerRole()).name,
                revision=revision_of(pod),
                waiting_for=roll.waiting.get(member, ""),
                urgent=member in roll.urgent,
            )
            for member, pod in sorted(observing.zookeeper_pods(listed, self._name).items())
        )
        revision = revision_of(wanted["spec"]["template"])
        return replace(state, revision=revision, servers=servers, stalled=roll.stalled)

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
        self._hold_servers = hold_servers
        surroundings = manifests_brokers.build_children(
            cluster, self._images, under_replicated=under_replicated
        )
        ensured = Ensured()
        await self._objects.restore_labels(ensured)
        for manifest in surroundings:
            await ensured.attempt(self._objects.ensure(manifest))
        await self._ensure_external(cluster, ensured)
        certified = await self._ensure_certificates(cluster, ensured)
        # Servers restart with their certificates; without all Secrets, those are unknown.
        if cluster.spec.zookeeper.connect is None and certified:
            await self._ensure_zookeeper(cluster, self._zookeeper.servers, ensured)
        await self._ensure_configs(cluster, launches, ensured)
        await self._ensure_racks(cluster, ensured)
        if self._set is None:
            await ensured.attempt(self._ensure_set(cluster, launches.default))
        await self._check_classes(cluster, ensured)
        await self._own_claims(cluster, ensured)
        await self._grow_volumes(cluster, ensured)
        await ensured.attempt(self._ensure_set(cluster, launches.default))
        for broker in sorted({*self._configs(), *self._broker_sets()}):
            if cluster.pool_of(broker) is not None:
                await ensured.attempt(self._ensure_broker_set(cluster, broker, launches.of(broker)))
        if self._zookeeper.sets_acls and certified and await ensured.attempt(self._set_node_acls(cluster)):
            await self._ensure_zookeeper(cluster, ServerStage.TLS, ensured)
        ensured.findings += [*self._volume_findings(cluster), *self._objects.findings()]
        return ensured

    async def _ensure_zookeeper(self, cluster: BrokerCluster, stage: ServerStage, ensured: Ensured) -> None:
        *around, config, stateful_set = self._zookeeper_manifests(cluster, stage)
        for manifest in around:
            await ensured.attempt(self._objects.ensure(manifest))
        pods = observing.zookeeper_pods(self._objects.listed, self._name)
        # A server restarts with the newest configuration, so that the StatefulSet needs its ConfigMap.
        if is_held(cluster, self._servers_set, stateful_set, pods, hold=self._hold_servers):
            complete = await ensured.attempt(self._keep_servers(config, stateful_set))
        else:
            complete = await ensured.attempt(self._objects.ensure(config)) and await ensured.attempt(
                self._objects.ensure(stateful_set)
            )
        if complete:
            await ensured.attempt(self._replace_server(cluster, stateful_set))

    async def _replace_server(self, cluster: BrokerCluster, stateful_set: Manifest) -> str:
        """Delete the pod of the next server with an older revision. Returns a description, or ""."""
        going = self._plan_servers(cluster, stateful_set).replace
        if going is None:
            return ""
        pod = observing.zookeeper_pods(self._objects.listed, self._name)[going]
        await self._objects.check_pod(stateful_set, name_of(pod))
        await self._objects.delete_pod(pod)
        return f"replace pod {name_of(pod)}"

    @property
    def _servers_set(self) -> Object | None:
        """The StatefulSet of ZooKeeper."""
        return self._objects.listed.find("StatefulSet", naming.zookeeper_name(self._name))

    def _zookeeper_manifests(self, cluster: BrokerCluster, stage: ServerStage) -> list[Manifest]:
        listed = self._objects.listed
        live = self._servers_set
        pods = observing.zookeeper_pods(listed, self._name)
        restarted_at = observing.last_restart(live, pods.values())
        certified = certificates.zookeeper_digest(listed, self._name)
        *others, stateful_set = manifests_zookeeper.build_all(
            cluster, self._images, stage, certified, restarted_at
        )
        if cluster.hibernates and not self._pods():
            stateful_set["spec"]["replicas"] = 0
        return [*others, volumes.never_shrinking(stateful_set, live)]

    def _plan_servers(self, cluster: BrokerCluster, wanted: Manifest) -> ServerRoll:
        live = self._servers_set
        if live is None:
            return ServerRoll()
        pods = observing.zookeeper_pods(self._objects.listed, self._name)
        members = manifests_zookeeper.managed(cluster).replicas
        now_ms, hold = self._clock_ms(), self._hold_servers
        return plan_roll(cluster, live, wanted, pods, members, self._roles, now_ms, hold=hold)

    async def _keep_servers(self, config: Manifest, wanted: Manifest) -> str:
        """While the new template waits for an approval: new certificates only, and a ConfigMap that is as it
        was applied."""
        live = self._servers_set
        assert live is not None, "a new StatefulSet waits for no approval"
        found = self._objects.listed.find("ConfigMap", name_of(config))
        same = naming.APPLIED_ANNOTATION
        if found is None or annotations_of(found).get(same) == annotations_of(config)[same]:
            await self._objects.ensure(config)
        restored = await self._objects.remove_additions(wanted)
        if restored:
            return restored
        key = naming.CERTIFICATES_ANNOTATION
        template = live["spec"]["template"]
        certified = annotations_of(wanted["spec"]["template"]).get(key)
        if key not in annotations_of(template) or annotations_of(template)[key] == certified:
            return ""
        patch = {"spec": {"template": {"metadata": {"annotations": {key: certified}}}}}
        await self._objects.patch("StatefulSet", live, patch, "CertificatesNotSet")
        return f"update the certificates of StatefulSet {name_of(live)}"

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

    async def _ensure_external(self, cluster: BrokerCluster, ensured: Ensured) -> None:
        """Services, Ingresses and TLSRoutes of the listeners, and the bootstrap Service, which has the node
        ports of the others."""
        wanted = external_access.build_access(cluster, self._objects.listed, self._brokers_wanted(cluster))
        unavailable = self._objects.unavailable
        for kind in sorted({manifest["kind"] for manifest in wanted}.intersection(unavailable)):
            ensured.failures.append(_kind_missing(kind, unavailable[kind]))
        for manifest in wanted:
            if manifest["kind"] not in unavailable:
                await ensured.attempt(self._objects.ensure(manifest))
        listed = self._objects.listed
        ports = external_access.node_ports_annotation(cluster, listed, wanted)
        service = manifests_brokers.build_bootstrap_service(cluster, ports)
        await ensured.attempt(self._objects.ensure(service))

        async def delete(kind: str, name: str) -> str:
            await self._objects.delete(kind, name)
            return f"delete {kind} {name}"

        for kind, name in external_access.obsolete(cluster, listed, wanted):
            await ensured.attempt(delete(kind, name))
        for listener in listeners.external_listeners(cluster):
            try:
                self._bootstrap(cluster, listener)
            except AddressPending as pending:
                message = f"the bootstrap of listener {listener.name}: {pending}"
                ensured.failures.append(StepFailed("AddressPending", message))

    def _brokers_wanted(self, cluster: BrokerCluster) -> list[int]:
        """The ids of all brokers, including those that leave and are not removed yet."""
        return sorted({*cluster.broker_ids, *self._configs()})

    def _bootstrap(self, cluster: BrokerCluster, listener: Listener) -> list[tuple[str, int]]:
        """The bootstrap servers of a listener. Raises AddressPending."""
        return external_access.bootstrap_addresses(
            cluster, listener, sorted(self._configs()), self._objects.listed, self._nodes
        )

    def _known_bootstrap(self, cluster: BrokerCluster, listener: Listener) -> list[tuple[str, int]]:
        try:
            return self._bootstrap(cluster, listener)
        except AddressPending:
            return []

    async def _ensure_certificates(self, cluster: BrokerCluster, ensured: Ensured) -> bool:
        """Returns whether all Secrets exist. The first failure ends it: certificates are signed with the keys
        before them."""
        if not cluster.spec.is_secured:
            return True
        for name in secret_names(self._name):
            if self._objects.listed.find("Secret", name) is None and not await ensured.attempt(
                self._objects.find_unlabelled("Secret", name)
            ):
                return False
        listed = self._objects.listed
        for name in certificates.annotated(listed, generated_authorities(cluster), REPLACE_KEY_ANNOTATION):
            if not await ensured.attempt(self._delete_key(name)):
                return False
        names = {
            naming.broker_pod(self._name, broker): self._names_of(cluster, broker)
            for broker in self._brokers_wanted(cluster)
        }
        found = certificates.data_of(self._objects.listed)
        servers = manifests_zookeeper.server_names(cluster)
        addresses = {broker: self._known_addresses(cluster, broker) for broker in cluster.broker_ids}
        hosts = {
            listener.name: listeners.hosts_of(
                cluster,
                listener,
                addresses,
                [host for host, _ in self._known_bootstrap(cluster, listener)],
            )
            for listener in cluster.spec.listeners
        }
        await self._ensure_issued(cluster, hosts, addresses, ensured)
        renew = certificates.annotated(self._objects.listed, renewable_secrets(cluster), RENEW_ANNOTATION)
        planned = plan_secrets(
            cluster,
            names,
            found,
            self._clock_ms(),
            self._random_bytes,
            zookeeper=servers,
            hosts=hosts,
            in_use=certificates.files_in_use(self._objects.listed, cluster),
            config_maps=certificates.config_maps_of(self._objects.listed),
            renew=renew,
            pending=issuing.pending(cluster, self._objects.listed, self._objects.unavailable),
        )
        given = [name for name in authorities(self._name) if name not in generated_authorities(cluster)]
        ignored = [
            Flaw("NotGenerated", f"Secret {name}: {REPLACE_KEY_ANNOTATION} is ignored, since {_GIVEN}")
            for name in certificates.annotated(self._objects.listed, given, REPLACE_KEY_ANNOTATION)
        ]
        ensured.findings += finding_of([*planned.flaws, *ignored])
        for name, data in planned.data.items():
            if not await ensured.attempt(
                self._ensure_secret(cluster, name, data, planned.changes.get(name, ()))
            ):
                return False
            if name in renew and name in planned.changes:
                await ensured.attempt(self._renewed(name))
        await self._ensure_bundle(cluster, {**found, **planned.data}, ensured)
        return True

    async def _ensure_issued(
        self,
        cluster: BrokerCluster,
        hosts: Mapping[str, Sequence[str]],
        addresses: Mapping[int, Advertised],
        ensured: Ensured,
    ) -> None:
        """Certificates for cert-manager, once the addresses of a listener are known."""
        if issuing.KIND in self._objects.unavailable:
            return
        unknown = {
            listener.name
            for listener in listeners.external_listeners(cluster)
            if not all(listener.name in advertised for advertised in addresses.values())
        }
        known = {name: each for name, each in hosts.items() if name not in unknown}
        wanted = issuing.build_certificates(cluster, known)
        for manifest in wanted:
            await ensured.attempt(self._objects.ensure(manifest))
        kept = {issued_secret(self._name, name) for name in unknown}
        for name in issuing.obsolete(self._objects.listed, wanted):
            if name not in kept:
                await ensured.attempt(self._delete(issuing.KIND, name))

    async def _delete(self, kind: str, name: str) -> str:
        await self._objects.delete(kind, name)
        return f"delete {kind} {name}"

    async def _ensure_bundle(
        self, cluster: BrokerCluster, data: Mapping[str, Data], ensured: Ensured
    ) -> None:
        """The ConfigMap with what clients must trust."""
        trusted = {
            listener.name: clients_trust(cluster, listener, data)
            for listener in cluster.spec.listeners
            if listener.tls
        }
        if any(trusted.values()):
            await ensured.attempt(self._objects.ensure(certificates.build_bundle(cluster, trusted)))
        elif self._objects.listed.find("ConfigMap", naming.bundle_name(self._name)) is not None:
            await ensured.attempt(self._delete("ConfigMap", naming.bundle_name(self._name)))

    async def _renewed(self, name: str) -> str:
        """Remove the request, which would be carried out again otherwise."""
        live = self._objects.listed.find("Secret", name)
        assert live is not None, f"Secret {name} was just applied"
        patch = {"metadata": {"annotations": {RENEW_ANNOTATION: None}}}
        await self._objects.patch("Secret", live, patch, "AnnotationNotRemoved")
        return ""

    async def _delete_key(self, name: str) -> str:
        # A missing key is generated, also after an interruption at this point.
        await self._objects.delete("Secret", name)
        return f"delete Secret {name}: {REPLACE_KEY_ANNOTATION} requests a new key"

    async def _ensure_secret(
        self, cluster: BrokerCluster, name: str, data: Mapping[str, bytes], why: Sequence[str]
    ) -> str:
        what = await self._objects.ensure(certificates.build_secret(cluster, name, data))
        return f"{what} ({'; '.join(why)})" if what and why else what

    def _names_of(self, cluster: BrokerCluster, broker: int) -> list[str]:
        listed, nodes = self._objects.listed, self._nodes
        bootstrap = external_access.bootstrap_names(cluster, sorted(self._configs()), listed, nodes)
        return certificates.broker_names(cluster, broker, self._known_addresses(cluster, broker), bootstrap)

    def _known_addresses(self, cluster: BrokerCluster, broker: int) -> Advertised:
        return external_access.known_addresses(cluster, broker, self._objects.listed, self._nodes)

    async def _ensure_racks(self, cluster: BrokerCluster, ensured: Ensured) -> None:
        rack = cluster.spec.rack
        if rack is None:
            return
        pods = {b: pod for b, pod in self._pods().items() if cluster.of_broker(b).spec.rack is not None}
        for pod in observing.pods_without_rack(pods):
            await ensured.attempt(self._annotate_with_rack(pod, rack.topology_key))

    async def _annotate_with_rack(self, pod: Object, topology_key: str) -> str:
        patch = manifests_brokers.build_rack_patch(pod, self._nodes, topology_key)
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
            if broker in configs or pod["metadata"].get("deletionTimestamp") or _is_left(cluster, broker):
                continue
            launch = launches.of(broker)
            running = known.get(broker) or observing.UNKNOWN_HASH
            replaced = None if running == launch.config_hash else _replaced(pod, running, {})
            await ensured.attempt(self._ensure_config(cluster, broker, launch, replaced))
        for broker, config in configs.items():
            annotations, launch = annotations_of(config), launches.of(broker)
            if annotations.get(naming.HASH_ANNOTATION) != launch.config_hash or _is_left(cluster, broker):
                continue
            if not self._has_moved(cluster, broker) and not self._is_address_pending(cluster, broker):
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

    async def _grow_volumes(self, cluster: BrokerCluster, ensured: Ensured) -> None:
        for volume in _volumes(cluster):
            for claim in self._claims(volume):
                if volumes.is_smaller(claim, volume.size):
                    await ensured.attempt(self._objects.grow(claim, volume.size))

    async def _check_classes(self, cluster: BrokerCluster, ensured: Ensured) -> None:
        for volume in _volumes(cluster):
            needed = volumes.classes_to_check(
                self._claims(volume), volume.storage.storage_class, volume.field
            )
            for name, what in needed.items():
                if name is None:
                    ensured.failures.append(
                        StepFailed("StorageClassNotFound", f"{what}: {_NO_DEFAULT_CLASS}")
                    )
                elif name:
                    await ensured.attempt(self._objects.check_storage_class(name, what))

    async def _own_claims(self, cluster: BrokerCluster, ensured: Ensured) -> None:
        """Have claims deleted with the BrokerCluster, or not: `deleteClaim`. A StatefulSet's own policy would
        delete them whenever a user deletes the StatefulSet."""
        for volume in _volumes(cluster):
            for claim in self._claims(volume):
                delete = volume.storage.delete_claim
                await ensured.attempt(self._objects.own_claim(cluster, claim, delete=delete))

    def _volume_findings(self, cluster: BrokerCluster) -> list[Finding]:
        return volumes.finding_of(
            difference
            for volume in _volumes(cluster)
            for difference in volumes.differences(
                self._claims(volume), volume.size, volume.storage.storage_class, volume.field
            )
        )

    def _claims(self, volume: _Volume) -> list[Object]:
        claims = self._objects.listed.objects.get("PersistentVolumeClaim", {})
        return [claims[name] for name in sorted(claims) if volume.is_of(claims[name])]

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
        stale = running != launch.config_hash or fenced or self._has_moved(cluster, broker)
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
            addresses = self._advertised(cluster, broker)
        except AddressPending as error:
            raise StepFailed("AddressPending", f"broker {broker}: {error}") from None
        annotations = {**external_access.advertised_annotation(addresses), **(replaced or {})}
        return manifests_brokers.build_broker_config(
            cluster, broker, launch, self._zookeeper, advertised=addresses, annotations=annotations
        )

    def _advertised(self, cluster: BrokerCluster, broker: int) -> Advertised:
        return external_access.advertised_addresses(cluster, broker, self._objects.listed, self._nodes)

    def _is_address_pending(self, cluster: BrokerCluster, broker: int) -> bool:
        try:
            self._advertised(cluster, broker)
        except AddressPending:
            return True
        return False

    def _has_moved(self, cluster: BrokerCluster, broker: int) -> bool:
        """Whether the broker's external addresses differ from the advertised ones; False while they are
        unknown."""
        try:
            addresses = self._advertised(cluster, broker)
            return external_access.addresses_changed(self._configs().get(broker), addresses)
        except AddressPending:
            return False

    async def remove_broker(self, cluster: BrokerCluster, broker: int, *, delete_volume: bool) -> None:
        live = self._set_of(broker)
        without = 0 if naming.is_of_pool(broker) else broker
        if live is not None and _replicas(live) > without:
            await self._objects.scale(live, without)
        pod = naming.broker_pod(self._name, broker)
        if broker in self._pods():
            raise StepFailed("StillRunning", f"pod {pod} still exists")
        # The volume first: after an interruption, the ConfigMap still identifies the broker.
        if delete_volume:
            await self._objects.delete("PersistentVolumeClaim", naming.data_claim(pod))
        if naming.is_of_pool(broker):
            await self._objects.delete("StatefulSet", naming.broker_set(self._name, broker))
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


def _kind_missing(kind: str, message: str) -> StepFailed:
    """Of a kind that the API server does not serve, or that the operator may not list."""
    hint = f"; tlsroute needs the Gateway API, 1.5 or newer ({TLS_ROUTE_API})" if kind == "TLSRoute" else ""
    return StepFailed(f"{kind}NotAvailable", f"{kind}: {message.strip()}{hint}")


_GIVEN = "generateCertificateAuthority is false: replace the key and the certificate themselves"
_NO_DEFAULT_CLASS = "it names no StorageClass, and the Kubernetes cluster has no default one"

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


def _needs_nodes(cluster: BrokerCluster) -> bool:
    node_ports = any(listener.type == "nodeport" for listener in listeners.external_listeners(cluster))
    return node_ports or cluster.spec.rack is not None


def _known_hashes(cluster: BrokerCluster) -> dict[int, str]:
    return {broker.id: broker.config_hash for broker in cluster.status.brokers}


def _replicas(stateful_set: Object) -> int:
    return int(stateful_set["spec"].get("replicas", 1))


def _is_left(cluster: BrokerCluster, broker: int) -> bool:
    """Whether the broker's BrokerPool is deleted, so that its settings are not known any more."""
    return naming.is_of_pool(broker) and cluster.pool_of(broker) is None


@dataclass(frozen=True, slots=True)
class _Volume:
    """The volumes of a component, or of a BrokerPool, in the spec."""

    component: str
    pool: str
    storage: Storage
    size: str | int
    field: str
    """The path in the spec."""

    def is_of(self, claim: Object) -> bool:
        labels = labels_of(claim)
        component, pool = labels.get(naming.COMPONENT_LABEL), labels.get(naming.POOL_LABEL, "")
        return (component, pool) == (self.component, self.pool)


def _volumes(cluster: BrokerCluster) -> list[_Volume]:
    def of_brokers(pool: str, storage: Storage, field: str) -> _Volume:
        size = storage.size or manifests_brokers.DEFAULT_SIZE
        return _Volume(naming.BROKER, pool, storage, size, field)

    found = [of_brokers("", cluster.spec.storage, "spec.storage")]
    found += [
        of_brokers(pool.name, pool.spec.storage, f"BrokerPool {pool.name} spec.storage")
        for pool in cluster.pools
    ]
    if cluster.spec.zookeeper.connect is None:
        storage = manifests_zookeeper.managed(cluster).storage
        size = storage.size or manifests_zookeeper.DEFAULT_SIZE
        found.append(_Volume(naming.ZOOKEEPER, "", storage, size, "spec.zookeeper.managed.storage"))
    return found


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
