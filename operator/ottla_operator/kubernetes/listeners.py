"""Listener settings of brokers: ports, advertised addresses, and the inter-broker listener.

Pure. Besides the listeners of the spec there is always one for brokers and the operator, so that a change of
the spec never disconnects brokers from each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ottla_operator.kubernetes import naming
from ottla_operator.planning.listener_security import (
    SecurityFiles,
    kafka_name,
    protocol_map,
    security_settings,
)
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.cluster import Listener, ListenerStatus

REPLICATION: Final = "REPLICATION"
REPLICATION_PORT: Final = 9091
CERTIFICATES_DIR: Final = "/etc/ottla-certificates"
CLUSTER_CA, CLIENTS_CA = "cluster-ca.crt", "clients-ca.crt"
_DEFAULT: Final = (Listener(name="plain", port=9092),)

Advertised = Mapping[str, tuple[str, int]]


def listeners_of(cluster: BrokerCluster) -> tuple[Listener, ...]:
    return tuple(cluster.spec.listeners) or _DEFAULT


def client_ports(cluster: BrokerCluster) -> dict[str, int]:
    """Ports by listener name."""
    return {listener.name: listener.port for listener in listeners_of(cluster)}


def external(cluster: BrokerCluster) -> tuple[Listener, ...]:
    return tuple(listener for listener in listeners_of(cluster) if listener.type != "internal")


def problem(cluster: BrokerCluster) -> str:
    """Why spec.listeners is invalid beyond its schema, or ""."""
    listeners = listeners_of(cluster)
    ports = [REPLICATION_PORT, *(listener.port for listener in listeners)]
    names = [REPLICATION, *(kafka_name(listener) for listener in listeners)]
    if len(set(ports)) < len(ports):
        return f"spec.listeners: ports must be unique; {REPLICATION_PORT} is the inter-broker listener"
    if len(set(names)) < len(names):
        return "spec.listeners: names must be unique"
    return ""


def broker_host(cluster: BrokerCluster, broker: int) -> str:
    name = cluster.metadata.name
    return naming.pod_host(
        naming.broker_pod(name, broker), naming.brokers_name(name), str(cluster.metadata.namespace)
    )


def bootstrap_host(cluster: BrokerCluster) -> str:
    return f"{naming.bootstrap_name(cluster.metadata.name)}.{cluster.metadata.namespace}.svc"


def listener_settings(cluster: BrokerCluster, broker: int, advertised: Advertised) -> dict[str, str]:
    """The listener settings of one broker. `advertised`: its addresses for external clients, by listener."""
    host = broker_host(cluster, broker)
    own = [(REPLICATION, REPLICATION_PORT, (host, REPLICATION_PORT))]
    for listener in listeners_of(cluster):
        address = advertised.get(listener.name, (host, listener.port))
        own.append((kafka_name(listener), listener.port, address))
    files = SecurityFiles(
        f"{CERTIFICATES_DIR}/{naming.broker_pod(cluster.metadata.name, broker)}.pem",
        f"{CERTIFICATES_DIR}/{CLUSTER_CA}",
        f"{CERTIFICATES_DIR}/{CLIENTS_CA}",
    )
    return {
        "listeners": ",".join(f"{name}://0.0.0.0:{port}" for name, port, _ in own),
        "advertised.listeners": ",".join(f"{name}://{at[0]}:{at[1]}" for name, _, at in own),
        "listener.security.protocol.map": protocol_map(cluster.spec, listeners_of(cluster), REPLICATION),
        "inter.broker.listener.name": REPLICATION,
        **security_settings(cluster.metadata.name, cluster.spec, listeners_of(cluster), REPLICATION, files),
    }


def statuses(
    cluster: BrokerCluster, brokers: Iterable[Advertised], certificates: str
) -> list[ListenerStatus]:
    """`status.listeners`. `brokers`: each one's external addresses; `certificates`: what clients trust,
    PEM."""
    advertised = list(brokers)
    found = []
    for listener in listeners_of(cluster):
        addresses = [outside[listener.name] for outside in advertised if listener.name in outside]
        if listener.type == "internal":
            addresses = [(bootstrap_host(cluster), listener.port)]
        found.append(
            ListenerStatus(
                name=listener.name,
                bootstrap_servers=",".join(f"{host}:{port}" for host, port in addresses),
                certificates=[certificates] if listener.tls and certificates else [],
            )
        )
    return found
