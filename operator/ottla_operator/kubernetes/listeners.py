"""Listeners of brokers: their ports, settings and statuses.

Pure; `external_access` has the Services of external ones, and the addresses. Besides the listeners of the
spec there is always one for brokers and the operator, so that a change of the spec never disconnects brokers
from each other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from ottla_operator.kubernetes import naming
from ottla_operator.kubernetes.observing import Object, annotations_of
from ottla_operator.planning.cluster_secrets import (
    CLIENTS_CA,
    CLUSTER_CA,
    ZOOKEEPER_TRUSTED,
    listener_file,
    trusted_file,
)
from ottla_operator.planning.listener_security import (
    REPLICATION,
    SecurityFiles,
    kafka_name,
    listeners_of,
    protocol_map,
    security_settings,
)
from ottla_operator.resources import BrokerCluster, Problem
from ottla_operator.resources.cluster_status import ListenerStatus
from ottla_operator.resources.listeners import INTER_BROKER_PORT, METRICS_PORT_NAME, Listener

REPLICATION_PORT: Final = INTER_BROKER_PORT
METRICS_NAME: Final = METRICS_PORT_NAME
"""The name of the pods' port of /metrics; the same as Strimzi's."""
CERTIFICATES_DIR: Final = "/etc/ottla-certificates"
CLUSTER_DOMAIN: Final = "cluster.local"
"""The default domain of Kubernetes clusters."""

Advertised = Mapping[str, tuple[str, int]]
"""The address of a broker for external clients, by listener name."""


def client_ports(cluster: BrokerCluster) -> dict[str, int]:
    """Ports by listener name."""
    return {listener.name: listener.port for listener in listeners_of(cluster)}


def external_listeners(cluster: BrokerCluster) -> tuple[Listener, ...]:
    """The listeners for clients outside of the Kubernetes cluster."""
    return tuple(listener for listener in listeners_of(cluster) if listener.type != "internal")


def port_problems(cluster: BrokerCluster) -> Iterator[Problem]:
    """Listeners that cannot be on one pod."""
    ports = {REPLICATION_PORT}
    for n, listener in enumerate(cluster.spec.listeners):
        if listener.name == METRICS_NAME:
            message = f"{METRICS_NAME!r} is not allowed: the port of /metrics has this name"
            yield Problem(f"spec.listeners[{n}].name", message)
        if listener.port in ports:
            message = f"ports must be unique, and {REPLICATION_PORT} is the inter-broker listener's"
            yield Problem(f"spec.listeners[{n}].port", f"{listener.port} is not allowed: {message}")
        ports.add(listener.port)


def broker_host(cluster: BrokerCluster, broker: int) -> str:
    """The DNS name of a broker's pod."""
    name = cluster.metadata.name
    return naming.pod_host(
        naming.broker_pod(name, broker), naming.brokers_name(name), str(cluster.metadata.namespace)
    )


def bootstrap_host(cluster: BrokerCluster) -> str:
    """The DNS name of the bootstrap Service."""
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
        lambda name: f"{CERTIFICATES_DIR}/{listener_file(name)}.pem",
        lambda name: f"{CERTIFICATES_DIR}/{trusted_file(name)}",
        f"{CERTIFICATES_DIR}/{ZOOKEEPER_TRUSTED}",
    )
    return {
        "listeners": ",".join(f"{name}://0.0.0.0:{port}" for name, port, _ in own),
        "advertised.listeners": ",".join(f"{name}://{_joined(at)}" for name, _, at in own),
        "listener.security.protocol.map": protocol_map(cluster),
        "inter.broker.listener.name": REPLICATION,
        **security_settings(cluster, files),
    }


def _joined(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def hosts_of(
    cluster: BrokerCluster, listener: Listener, brokers: Mapping[int, Advertised], bootstrap: Sequence[str]
) -> list[str]:
    """Where clients of the listener connect to: host names and addresses. `brokers`: each one's external
    addresses; `bootstrap`: the hosts of the bootstrap."""
    own = [
        advertised.get(listener.name, (broker_host(cluster, broker), 0))[0]
        for broker, advertised in brokers.items()
    ]
    return list(dict.fromkeys([*bootstrap, *own]))


def listener_statuses(
    cluster: BrokerCluster,
    bootstrap: Mapping[str, Sequence[tuple[str, int]]],
    trusted: Callable[[Listener], bytes],
) -> list[ListenerStatus]:
    """`status.listeners`. `bootstrap`: the bootstrap servers by listener; `trusted`: what clients trust,
    PEM."""
    found = []
    for listener in listeners_of(cluster):
        certificates = trusted(listener).decode() if listener.tls else ""
        servers = ",".join(_joined(address) for address in bootstrap.get(listener.name, ()))
        found.append(
            ListenerStatus(
                name=listener.name,
                bootstrap_servers=servers,
                certificates=[certificates] if certificates else [],
            )
        )
    return found


def addresses_in(config: Object) -> dict[str, tuple[str, int]]:
    """The advertised addresses in a broker's ConfigMap."""
    try:
        content = json.loads(annotations_of(config).get(naming.ADVERTISED_ANNOTATION) or "{}")
        return {str(name): (str(host), int(port)) for name, (host, port) in content.items()}
    except (ValueError, TypeError, AttributeError):
        return {}
