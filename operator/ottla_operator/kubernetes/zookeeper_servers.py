"""The ZooKeeper servers of one BrokerCluster, as pods of a StatefulSet.

Part of the platform: `observe` follows the listing of the objects, `ensure` the certificates. A server
restarts with the newest configuration, one at a time, as `zookeeper_planning` decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from ssl import SSLError

from ottla.security.stores import StoreProblem
from ottla.security.tls import TlsSettings, client_context
from ottla_operator.kubernetes import (
    certificates,
    manifests_brokers,
    manifests_zookeeper,
    naming,
    observing,
    volumes,
)
from ottla_operator.kubernetes.child_objects import ChildObjects
from ottla_operator.kubernetes.manifests_common import Images, Manifest
from ottla_operator.kubernetes.observing import Object, annotations_of, name_of
from ottla_operator.kubernetes.zookeeper_client import FindRoles, SetAcls
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
from ottla_operator.planning.listener_security import broker_subject
from ottla_operator.planning.observed import ZooKeeperServer, ZooKeeperState
from ottla_operator.platform.interfaces import Ensured, StepFailed
from ottla_operator.resources import BrokerCluster


class ZooKeeperServers:
    def __init__(
        self,
        objects: ChildObjects,
        images: Images,
        cluster: str,
        clock_ms: Callable[[], int],
        set_acls: SetAcls,
        roles_of: FindRoles,
        tls: Callable[[], TlsSettings],
    ) -> None:
        """`tls`: of the operator's connections."""
        self._objects = objects
        self._images = images
        self._name = cluster
        self._clock_ms = clock_ms
        self._set_acls = set_acls
        self._roles_of = roles_of
        self._tls = tls
        self._roles: Mapping[int, ServerRole] = {}
        self._hold = False
        self.security = ZooKeeperSecurity()

    async def observe(self, cluster: BrokerCluster, settings: Sequence[Mapping[str, str]]) -> ZooKeeperState:
        """`settings`: of the brokers that run."""
        self.security = plan_security(
            cluster,
            self._objects.listed,
            manifests_zookeeper.managed(cluster).replicas,
            settings,
            manifests_zookeeper.connect_string(cluster, secure=True),
        )
        self._roles = await self._find_roles(cluster)
        self._hold = False
        return self._state(cluster)

    async def _find_roles(self, cluster: BrokerCluster) -> Mapping[int, ServerRole]:
        """The roles of the servers that are ready."""
        pods = observing.zookeeper_pods(self._objects.listed, self._name)
        ready = [member for member, pod in pods.items() if observing.is_ready(pod)]
        if cluster.spec.zookeeper.connect is not None or not ready:
            return {}
        hosts = {member: manifests_zookeeper.member_host(cluster, member) for member in ready}
        # Servers have a plain port until all of them have the TLS port.
        if self.security.servers < ServerStage.QUORUM_TLS:
            return await self._roles_of(hosts, manifests_zookeeper.CLIENT_PORT, None)
        try:
            context = client_context(self._tls())
        except (StoreProblem, SSLError):
            # Certificates are missing or damaged; they are created again later in this reconciliation.
            return {}
        return await self._roles_of(hosts, manifests_zookeeper.SECURE_PORT, context)

    def _state(self, cluster: BrokerCluster) -> ZooKeeperState:
        listed = self._objects.listed
        connect = manifests_brokers.brokers_connect(cluster, self.security)
        is_external = cluster.spec.zookeeper.connect is not None
        if is_external:
            return ZooKeeperState(True, connect)
        members = manifests_zookeeper.managed(cluster).replicas
        state = observing.zookeeper_state(listed, self._name, members, connect)
        wanted = self._manifests(cluster, self.security.servers)[-1]
        roll = self._plan(cluster, wanted)
        servers = tuple(
            ZooKeeperServer(
                id=member,
                name=name_of(pod),
                ready=observing.is_ready(pod),
                role=self._roles.get(member, ServerRole()).name,
                revision=revision_of(pod),
                waiting_for=roll.waiting.get(member, ""),
                urgent=member in roll.urgent,
                restarts=member in roll.restarting,
            )
            for member, pod in sorted(observing.zookeeper_pods(listed, self._name).items())
        )
        absent = tuple(sorted(roll.restarting - {server.id for server in servers}))
        revision = revision_of(wanted["spec"]["template"])
        return replace(state, revision=revision, servers=servers, stalled=roll.stalled, absent=absent)

    async def ensure(self, cluster: BrokerCluster, ensured: Ensured, *, hold: bool) -> None:
        """`hold`: no server may restart now."""
        self._hold = hold
        await self._ensure(cluster, self.security.servers, ensured)

    async def ensure_acls(self, cluster: BrokerCluster, ensured: Ensured) -> None:
        """Set the ACLs of the nodes, once all servers authenticate brokers."""
        if self.security.sets_acls and await ensured.attempt(self._set_node_acls(cluster)):
            await self._ensure(cluster, ServerStage.TLS, ensured)

    async def _ensure(self, cluster: BrokerCluster, stage: ServerStage, ensured: Ensured) -> None:
        *around, config, stateful_set = self._manifests(cluster, stage)
        for manifest in around:
            await ensured.attempt(self._objects.ensure(manifest))
        pods = observing.zookeeper_pods(self._objects.listed, self._name)
        # A server restarts with the newest configuration, so that the StatefulSet needs its ConfigMap.
        if is_held(cluster, self.stateful_set, stateful_set, pods, hold=self._hold):
            complete = await ensured.attempt(self._keep(config, stateful_set))
        else:
            complete = await ensured.attempt(self._objects.ensure(config)) and await ensured.attempt(
                self._objects.ensure(stateful_set)
            )
        if complete:
            await ensured.attempt(self._replace_server(cluster, stateful_set))

    async def _replace_server(self, cluster: BrokerCluster, stateful_set: Manifest) -> str:
        """Delete the pod of the next server with an older revision. Returns a description, or ""."""
        going = self._plan(cluster, stateful_set).replace
        if going is None:
            return ""
        pod = observing.zookeeper_pods(self._objects.listed, self._name)[going]
        await self._objects.check_pod(stateful_set, name_of(pod))
        await self._objects.delete_pod(pod)
        return f"replace pod {name_of(pod)}"

    @property
    def stateful_set(self) -> Object | None:
        """The StatefulSet of ZooKeeper."""
        return self._objects.listed.find("StatefulSet", naming.zookeeper_name(self._name))

    def _manifests(self, cluster: BrokerCluster, stage: ServerStage) -> list[Manifest]:
        listed = self._objects.listed
        live = self.stateful_set
        pods = observing.zookeeper_pods(listed, self._name)
        restarted_at = observing.last_restart(live, pods.values())
        certified = certificates.zookeeper_digest(listed, self._name)
        *others, stateful_set = manifests_zookeeper.build_all(
            cluster, self._images, stage, certified, restarted_at
        )
        if cluster.hibernates and not observing.pods_of(listed, self._name):
            stateful_set["spec"]["replicas"] = 0
        return [*others, volumes.never_shrinking(stateful_set, live)]

    def _plan(self, cluster: BrokerCluster, wanted: Manifest) -> ServerRoll:
        live = self.stateful_set
        if live is None:
            return ServerRoll()
        pods = observing.zookeeper_pods(self._objects.listed, self._name)
        members = manifests_zookeeper.managed(cluster).replicas
        brokers = observing.pods_of(self._objects.listed, self._name).items()
        stopping = [broker for broker, pod in brokers if pod["metadata"].get("deletionTimestamp")]
        now_ms, hold = self._clock_ms(), self._hold
        return plan_roll(
            cluster, live, wanted, pods, members, self._roles, now_ms, hold=hold, stopping=stopping
        )

    async def _keep(self, config: Manifest, wanted: Manifest) -> str:
        """While the new template waits for an approval: new certificates only, and a ConfigMap that is as it
        was applied."""
        live = self.stateful_set
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
