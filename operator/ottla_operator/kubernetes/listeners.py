"""A cluster's listeners as brokers get them: ports, advertised addresses, the one between brokers.

Pure. Beside the listeners of the spec there is always one for brokers and the operator alone, so that a
change of the others never separates brokers from one another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla_operator.kubernetes import naming
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.cluster import Listener

REPLICATION: Final = "REPLICATION"
REPLICATION_PORT: Final = 9091
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
    """What is wrong with spec.listeners beyond its schema, or ""."""
    listeners = listeners_of(cluster)
    ports = [REPLICATION_PORT, *(listener.port for listener in listeners)]
    names = [REPLICATION, *(_kafka_name(listener) for listener in listeners)]
    if len(set(ports)) < len(ports):
        return f"spec.listeners: a port is given twice ({REPLICATION_PORT} is between brokers)"
    if len(set(names)) < len(names):
        return "spec.listeners: a name is given twice"
    if any(listener.tls for listener in listeners):
        return "spec.listeners: TLS is not served yet"
    return ""


def broker_host(cluster: BrokerCluster, broker: int) -> str:
    name = cluster.metadata.name
    return naming.pod_host(
        naming.broker_pod(name, broker), naming.brokers_name(name), str(cluster.metadata.namespace)
    )


def listener_settings(cluster: BrokerCluster, broker: int, advertised: Advertised) -> dict[str, str]:
    """The settings of one broker. `advertised`: by listener, where clients outside reach this broker."""
    host = broker_host(cluster, broker)
    own = [(REPLICATION, REPLICATION_PORT, (host, REPLICATION_PORT))]
    for listener in listeners_of(cluster):
        address = advertised.get(listener.name, (host, listener.port))
        own.append((_kafka_name(listener), listener.port, address))
    return {
        "listeners": ",".join(f"{name}://0.0.0.0:{port}" for name, port, _ in own),
        "advertised.listeners": ",".join(f"{name}://{at[0]}:{at[1]}" for name, _, at in own),
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name, _, _ in own),
        "inter.broker.listener.name": REPLICATION,
    }


def _kafka_name(listener: Listener) -> str:
    return listener.name.upper().replace("-", "_")
