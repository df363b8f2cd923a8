"""How clients reach the brokers of one BrokerCluster: Services, Ingresses, TLSRoutes and their addresses.

Part of the platform; `external_access` has the rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla_operator.kubernetes import certificates, external_access, listeners, manifests_brokers, observing
from ottla_operator.kubernetes.child_objects import ChildObjects
from ottla_operator.kubernetes.external_access import TLS_ROUTE_API, AddressPending
from ottla_operator.kubernetes.listeners import Advertised
from ottla_operator.kubernetes.observing import Object
from ottla_operator.platform.interfaces import Ensured, StepFailed
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.listeners import Listener


class ClusterAccess:
    """The nodes, of whose addresses advertised ones are made, are those of the last `find_nodes`."""

    def __init__(self, objects: ChildObjects, cluster: str) -> None:
        self._objects = objects
        self._name = cluster
        self.nodes: Mapping[str, Object] = {}

    async def find_nodes(self, cluster: BrokerCluster) -> None:
        """List the nodes, if addresses or racks of brokers come from them."""
        node_ports = any(each.type == "nodeport" for each in listeners.external_listeners(cluster))
        if node_ports or cluster.spec.rack is not None:
            self.nodes = await self._objects.nodes()

    async def ensure(self, cluster: BrokerCluster, ensured: Ensured) -> None:
        """Services, Ingresses and TLSRoutes of the listeners, and the bootstrap Service, which has the node
        ports of the others."""
        wanted = external_access.build_access(cluster, self._objects.listed, self.brokers_wanted(cluster))
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

    def brokers_wanted(self, cluster: BrokerCluster) -> list[int]:
        """The ids of all brokers, including those that leave and are not removed yet."""
        return sorted({*cluster.broker_ids, *self._configs()})

    def _bootstrap(self, cluster: BrokerCluster, listener: Listener) -> list[tuple[str, int]]:
        """The bootstrap servers of a listener. Raises AddressPending."""
        return external_access.bootstrap_addresses(
            cluster, listener, sorted(self._configs()), self._objects.listed, self.nodes
        )

    def known_bootstrap(self, cluster: BrokerCluster, listener: Listener) -> list[tuple[str, int]]:
        try:
            return self._bootstrap(cluster, listener)
        except AddressPending:
            return []

    def names_of(self, cluster: BrokerCluster, broker: int) -> list[str]:
        """The names in the certificate of a broker."""
        listed, nodes = self._objects.listed, self.nodes
        bootstrap = external_access.bootstrap_names(cluster, sorted(self._configs()), listed, nodes)
        return certificates.broker_names(cluster, broker, self.known_addresses(cluster, broker), bootstrap)

    def known_addresses(self, cluster: BrokerCluster, broker: int) -> Advertised:
        return external_access.known_addresses(cluster, broker, self._objects.listed, self.nodes)

    def advertised(self, cluster: BrokerCluster, broker: int) -> Advertised:
        """The external addresses of a broker. Raises AddressPending."""
        return external_access.advertised_addresses(cluster, broker, self._objects.listed, self.nodes)

    def is_address_pending(self, cluster: BrokerCluster, broker: int) -> bool:
        try:
            self.advertised(cluster, broker)
        except AddressPending:
            return True
        return False

    def has_moved(self, cluster: BrokerCluster, broker: int) -> bool:
        """Whether the broker's external addresses differ from the advertised ones; False while they are
        unknown."""
        try:
            addresses = self.advertised(cluster, broker)
            return external_access.addresses_changed(self._configs().get(broker), addresses)
        except AddressPending:
            return False

    def hosts(self, cluster: BrokerCluster) -> dict[str, Sequence[str]]:
        """The hosts in the certificate of each listener, by the listener's name."""
        addresses = {broker: self.known_addresses(cluster, broker) for broker in cluster.broker_ids}
        return {
            listener.name: listeners.hosts_of(
                cluster,
                listener,
                addresses,
                [host for host, _ in self.known_bootstrap(cluster, listener)],
            )
            for listener in cluster.spec.listeners
        }

    def listeners_without_address(self, cluster: BrokerCluster) -> set[str]:
        """The names of external listeners of which not each broker has an address yet."""
        addresses = [self.known_addresses(cluster, broker) for broker in cluster.broker_ids]
        return {
            listener.name
            for listener in listeners.external_listeners(cluster)
            if not all(listener.name in advertised for advertised in addresses)
        }

    def _configs(self) -> dict[int, Object]:
        return observing.configs_of(self._objects.listed, self._name)


def _kind_missing(kind: str, message: str) -> StepFailed:
    """Of a kind that the API server does not serve, or that the operator may not list."""
    hint = f"; tlsroute needs the Gateway API, 1.5 or newer ({TLS_ROUTE_API})" if kind == "TLSRoute" else ""
    return StepFailed(f"{kind}NotAvailable", f"{kind}: {message.strip()}{hint}")
