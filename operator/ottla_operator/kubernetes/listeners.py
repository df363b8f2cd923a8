"""Listeners of brokers: their settings, the Services of external ones, and the advertised addresses.

Pure. Besides the listeners of the spec there is always one for brokers and the operator, so that a change of
the spec never disconnects brokers from each other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from ottla_operator.kubernetes import naming
from ottla_operator.kubernetes.manifests_common import Manifest, build, digest
from ottla_operator.kubernetes.observing import Listed, Object, annotations_of
from ottla_operator.planning.cluster_secrets import CLIENTS_CA, CLUSTER_CA, listener_file, trusted_file
from ottla_operator.planning.listener_security import (
    REPLICATION,
    SecurityFiles,
    kafka_name,
    listeners_of,
    protocol_map,
    security_settings,
)
from ottla_operator.resources import BrokerCluster, Problem
from ottla_operator.resources.cluster import (
    INTER_BROKER_PORT,
    METRICS_PORT_NAME,
    Listener,
    ListenerStatus,
)

REPLICATION_PORT: Final = INTER_BROKER_PORT
METRICS_NAME: Final = METRICS_PORT_NAME
"""The name of the pods' port of /metrics; the same as Strimzi's."""
CERTIFICATES_DIR: Final = "/etc/ottla-certificates"

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
    )
    return {
        "listeners": ",".join(f"{name}://0.0.0.0:{port}" for name, port, _ in own),
        "advertised.listeners": ",".join(f"{name}://{at[0]}:{at[1]}" for name, _, at in own),
        "listener.security.protocol.map": protocol_map(cluster),
        "inter.broker.listener.name": REPLICATION,
        **security_settings(cluster, files),
    }


def hosts_of(cluster: BrokerCluster, listener: Listener, brokers: Mapping[int, Advertised]) -> list[str]:
    """Where clients of the listener connect to: host names and addresses. `brokers`: each one's external
    addresses."""
    hosts = [bootstrap_host(cluster)] if listener.type == "internal" else []
    for broker, advertised in brokers.items():
        hosts.append(advertised.get(listener.name, (broker_host(cluster, broker), 0))[0])
    return hosts


def listener_statuses(
    cluster: BrokerCluster, brokers: Iterable[Advertised], trusted: Callable[[Listener], bytes]
) -> list[ListenerStatus]:
    """`status.listeners`. `brokers`: each one's external addresses; `trusted`: what clients trust, PEM."""
    advertised = list(brokers)
    found = []
    for listener in listeners_of(cluster):
        addresses = [outside[listener.name] for outside in advertised if listener.name in outside]
        if listener.type == "internal":
            addresses = [(bootstrap_host(cluster), listener.port)]
        certificates = trusted(listener).decode() if listener.tls else ""
        found.append(
            ListenerStatus(
                name=listener.name,
                bootstrap_servers=",".join(f"{host}:{port}" for host, port in addresses),
                certificates=[certificates] if certificates else [],
            )
        )
    return found


# ---- listeners of type nodeport and loadbalancer: a Service for each broker and listener
#
# A NodePort is advertised with an address of the broker's node (before it runs: of any node), a LoadBalancer
# with its assigned address; a broker is not started before it has one. An annotation of the broker's
# ConfigMap has its advertised addresses: a Service that is created again requests the same node port, and a
# broker whose addresses have changed is restarted in the next roll.

_TYPES = {"nodeport": "NodePort", "loadbalancer": "LoadBalancer"}
_SERVICE_NAME_MAX: Final = 63
_POD_LABEL = "statefulset.kubernetes.io/pod-name"


class AddressPending(Exception):
    """The address of a broker is not known yet. The message names what is missing."""


def _service_name(cluster: str, broker: int, listener: str) -> str:
    name = f"{naming.broker_config(cluster, broker)}-{listener}"
    return name if len(name) <= _SERVICE_NAME_MAX else f"{name[: _SERVICE_NAME_MAX - 11]}-{digest(name)}"


def build_external_services(
    cluster: BrokerCluster, listed: Listed, brokers: Collection[int]
) -> list[Manifest]:
    """A Service for each external listener of each of the `brokers`."""
    return [
        _service(cluster, broker, listener, advertised_in_config(listed, cluster, broker).get(listener.name))
        for listener in external_listeners(cluster)
        for broker in brokers
    ]


def _service(
    cluster: BrokerCluster, broker: int, listener: Listener, before: tuple[str, int] | None
) -> Manifest:
    name = cluster.metadata.name
    port: Manifest = {
        "name": listener.name,
        "port": listener.port,
        "targetPort": listener.port,
        "protocol": "TCP",
    }
    if listener.type == "nodeport" and before is not None:
        port["nodePort"] = before[1]
    spec = {
        "type": _TYPES[listener.type],
        # Clients connect to the leader of a partition also while the broker is not ready.
        "publishNotReadyAddresses": True,
        "selector": {
            **naming.selector_labels(name, naming.BROKER),
            _POD_LABEL: naming.broker_pod(name, broker),
        },
        "ports": [port],
    }
    return build(
        cluster, "v1", "Service", _service_name(name, broker, listener.name), naming.BROKER, {"spec": spec}
    )


def obsolete_external_services(cluster: BrokerCluster, listed: Listed, brokers: Collection[int]) -> list[str]:
    """Names of Services whose listener or broker no longer exists."""
    name = cluster.metadata.name
    wanted = {
        _service_name(name, broker, one.name) for one in external_listeners(cluster) for broker in brokers
    }
    prefix = f"{name}-broker-"
    return [
        service
        for service in sorted(listed.objects.get("Service", {}))
        if service.startswith(prefix) and service not in wanted
    ]


def advertised_addresses(
    cluster: BrokerCluster, broker: int, listed: Listed, nodes: Mapping[str, Object]
) -> Advertised:
    """The broker's current addresses for external clients. Raises AddressPending."""
    name = cluster.metadata.name
    addresses = {}
    for listener in external_listeners(cluster):
        service = listed.find("Service", _service_name(name, broker, listener.name))
        if service is None:
            raise AddressPending(f"Service {_service_name(name, broker, listener.name)} does not exist yet")
        if listener.type == "nodeport":
            pod = listed.find("Pod", naming.broker_pod(name, broker))
            addresses[listener.name] = (_node_address(pod, nodes), _node_port(service))
        else:
            addresses[listener.name] = (_ingress(service), listener.port)
    return addresses


def _node_port(service: Object) -> int:
    port = service["spec"]["ports"][0].get("nodePort")
    if not port:
        raise AddressPending(f"Service {service['metadata']['name']} has no node port yet")
    return int(port)


def _node_address(pod: Object | None, nodes: Mapping[str, Object]) -> str:
    node = nodes.get(str((pod or {}).get("spec", {}).get("nodeName")))
    candidates = [node] if node is not None else [nodes[name] for name in sorted(nodes)]
    for type_ in ("ExternalIP", "InternalIP"):
        for candidate in candidates:
            for address in candidate.get("status", {}).get("addresses") or ():
                if address.get("type") == type_:
                    return str(address["address"])
    raise AddressPending("no node has an address")


def _ingress(service: Object) -> str:
    for ingress in service.get("status", {}).get("loadBalancer", {}).get("ingress") or ():
        address = ingress.get("hostname") or ingress.get("ip")
        if address:
            return str(address)
    raise AddressPending(f"LoadBalancer {service['metadata']['name']} has no address yet")


def advertised_annotation(addresses: Advertised) -> dict[str, str]:
    """The annotation of a broker's ConfigMap with its advertised addresses; {} without external listeners."""
    if not addresses:
        return {}
    text = json.dumps({name: list(address) for name, address in addresses.items()}, sort_keys=True)
    return {naming.ADVERTISED_ANNOTATION: text}


def addresses_changed(config: Object | None, addresses: Advertised) -> bool:
    """Whether the broker's advertised addresses differ from `addresses`."""
    return config is not None and _addresses_in(config) != dict(addresses)


def advertised_in_config(listed: Listed, cluster: BrokerCluster, broker: int) -> Advertised:
    """The advertised addresses in the broker's ConfigMap."""
    config = listed.find("ConfigMap", naming.broker_config(cluster.metadata.name, broker))
    return _addresses_in(config) if config is not None else {}


def _addresses_in(config: Object) -> dict[str, tuple[str, int]]:
    try:
        content = json.loads(annotations_of(config).get(naming.ADVERTISED_ANNOTATION) or "{}")
        return {str(name): (str(host), int(port)) for name, (host, port) in content.items()}
    except (ValueError, TypeError, AttributeError):
        return {}
