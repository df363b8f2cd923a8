"""Listeners of type nodeport and loadbalancer: a Service for each broker and listener, and its address.

Pure. A NodePort is advertised with an address of the broker's node (before it runs: of any node), a
LoadBalancer with its assigned address; a broker is not started before it has one. An annotation of the
broker's ConfigMap has its advertised addresses: a Service that is created again requests the same node port,
and a broker whose addresses have changed is restarted in the next roll.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ottla_operator.kubernetes import naming
from ottla_operator.kubernetes.listeners import Advertised, external
from ottla_operator.kubernetes.manifests_common import Manifest, build
from ottla_operator.kubernetes.observing import Listed, Object, annotations_of
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.cluster import Listener

_TYPES = {"nodeport": "NodePort", "loadbalancer": "LoadBalancer"}
_POD_LABEL = "statefulset.kubernetes.io/pod-name"


class AddressPending(Exception):
    """The address of a broker is not known yet. The message names what is missing."""


def service_name(cluster: str, broker: int, listener: str) -> str:
    return f"{naming.broker_config(cluster, broker)}-{listener}"


def build_services(cluster: BrokerCluster, listed: Listed, brokers: int) -> list[Manifest]:
    return [
        _service(cluster, broker, listener, advertised_in_config(listed, cluster, broker).get(listener.name))
        for listener in external(cluster)
        for broker in range(brokers)
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
        cluster, "v1", "Service", service_name(name, broker, listener.name), naming.BROKER, {"spec": spec}
    )


def obsolete_services(cluster: BrokerCluster, listed: Listed, brokers: int) -> list[str]:
    """Names of Services whose listener or broker no longer exists."""
    name = cluster.metadata.name
    wanted = {service_name(name, broker, one.name) for one in external(cluster) for broker in range(brokers)}
    prefix = f"{name}-broker-"
    return [
        service
        for service in sorted(listed.objects.get("Service", {}))
        if service.startswith(prefix) and service not in wanted
    ]


# ---- addresses


def advertised(
    cluster: BrokerCluster, broker: int, listed: Listed, nodes: Mapping[str, Object]
) -> Advertised:
    """Host and port for external clients, by listener. Raises AddressPending."""
    name = cluster.metadata.name
    addresses = {}
    for listener in external(cluster):
        service = listed.find("Service", service_name(name, broker, listener.name))
        if service is None:
            raise AddressPending(f"Service {service_name(name, broker, listener.name)} does not exist yet")
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


def as_annotation(addresses: Advertised) -> dict[str, str]:
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
