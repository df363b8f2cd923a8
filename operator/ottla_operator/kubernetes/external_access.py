"""External access: Services, Ingresses and TLSRoutes of listeners, and the addresses for clients.

Pure; used by the platform. A listener of another type than internal has a Service for each broker, and one
for the bootstrap; of type ingress or tlsroute, also an Ingress or a TLSRoute (Gateway API) of the same name,
which passes TLS through by host name. A node port leads to the address of the broker's node (before it runs:
of any node), a load balancer to its assigned address; a broker is not started before its addresses are known.

An annotation of the broker's ConfigMap has its advertised addresses: a broker whose addresses have changed is
restarted in the next roll. An annotation of the bootstrap Service has the node ports of all others, so that a
Service that is created again requests the same one.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from ottla_operator.kubernetes import naming
from ottla_operator.kubernetes.listeners import (
    CLUSTER_DOMAIN,
    Advertised,
    addresses_in,
    bootstrap_host,
    broker_host,
    external_listeners,
)
from ottla_operator.kubernetes.manifests_common import Manifest, build, digest
from ottla_operator.kubernetes.observing import Listed, Object, annotations_of, name_of
from ottla_operator.planning.listener_security import listeners_of
from ottla_operator.resources import BrokerCluster, Problem
from ottla_operator.resources.common import GROUP
from ottla_operator.resources.listeners import BootstrapAccess, BrokerAccess, Listener, as_manifest

TLS_ROUTE_API: Final = "gateway.networking.k8s.io/v1"
ROUTE_KINDS: Final = {"ingress": "Ingress", "tlsroute": "TLSRoute"}
"""The kind of the route of a listener, by type."""
_ROUTE_PORT: Final = 443
_SERVICE_TYPES: Final = {"nodeport": "NodePort", "loadbalancer": "LoadBalancer"}
_SERVICE_NAME_MAX: Final = 63
_POD_LABEL: Final = "statefulset.kubernetes.io/pod-name"
# By these, NGINX's and HAProxy's controllers leave TLS to the brokers.
_PASSTHROUGH: Final = {
    "ingress.kubernetes.io/ssl-passthrough": "true",
    "nginx.ingress.kubernetes.io/ssl-passthrough": "true",
    "nginx.ingress.kubernetes.io/backend-protocol": "HTTPS",
}
_ADDRESS_TYPES: Final = ("ExternalDNS", "ExternalIP", "InternalDNS", "InternalIP", "Hostname")

Address = tuple[str, int]


class AddressPending(Exception):
    """The address of a broker is not known yet. The message names what is missing."""


# ---- manifests


def _short(name: str) -> str:
    return name if len(name) <= _SERVICE_NAME_MAX else f"{name[: _SERVICE_NAME_MAX - 11]}-{digest(name)}"


def _broker_service(cluster: str, broker: int, listener: str) -> str:
    return _short(f"{naming.broker_config(cluster, broker)}-{listener}")


def _bootstrap_service(cluster: str, listener: str) -> str:
    return _short(f"{naming.bootstrap_name(cluster)}-{listener}")


def _has_bootstrap(listener: Listener) -> bool:
    return listener.configuration.create_bootstrap_service is not False


def build_access(cluster: BrokerCluster, listed: Listed, brokers: Collection[int]) -> list[Manifest]:
    """The Services, Ingresses and TLSRoutes of all external listeners. `brokers`: all ids, also of those that
    leave."""
    ports = node_ports(cluster, listed)
    found: list[Manifest] = []
    for listener in external_listeners(cluster):
        if _has_bootstrap(listener):
            found += _of_bootstrap(cluster, listener, ports)
        for broker in sorted(brokers):
            found += _of_broker(cluster, listener, broker, ports, listed)
    return found


def _of_bootstrap(cluster: BrokerCluster, listener: Listener, ports: Mapping[str, int]) -> Iterator[Manifest]:
    given, configuration = listener.configuration.bootstrap, listener.configuration
    name = _bootstrap_service(cluster.metadata.name, listener.name)
    spec = _service_spec(cluster, listener, given, ports.get(name))
    spec["selector"] = naming.selector_labels(cluster.metadata.name, naming.BROKER)
    if configuration.publish_not_ready_addresses:
        spec["publishNotReadyAddresses"] = True
    texts = (dict(given.annotations or {}), dict(given.labels or {}))
    yield _built(cluster, "v1", "Service", name, spec, *texts, configuration.finalizers or ())
    if given.host is not None:
        yield from _route(cluster, listener, name, given.host, *texts)


def _of_broker(
    cluster: BrokerCluster, listener: Listener, broker: int, ports: Mapping[str, int], listed: Listed
) -> Iterator[Manifest]:
    configuration = listener.configuration
    name = _broker_service(cluster.metadata.name, broker, listener.name)
    pod = naming.broker_pod(cluster.metadata.name, broker)
    before = ports.get(name) or _former_node_port(cluster, listener, broker, listed)
    spec = _service_spec(cluster, listener, configuration.of_broker(broker), before)
    spec["selector"] = {**naming.selector_labels(cluster.metadata.name, naming.BROKER), _POD_LABEL: pod}
    # Clients connect to the leader of a partition also while the broker is not ready.
    if configuration.publish_not_ready_addresses is not False:
        spec["publishNotReadyAddresses"] = True
    texts = configuration.annotations_of(broker, pod), configuration.labels_of(broker, pod)
    yield _built(cluster, "v1", "Service", name, spec, *texts, configuration.finalizers or ())
    host = configuration.host_of(broker, pod)
    if host is not None:
        yield from _route(cluster, listener, name, host, *texts)


def _service_spec(
    cluster: BrokerCluster, listener: Listener, given: BootstrapAccess | BrokerAccess, before: int | None
) -> Manifest:
    """The spec without its selector. `before`: the Service's node port when it existed before."""
    configuration = listener.configuration
    port: Manifest = {
        "name": listener.name,
        "port": listener.port,
        "targetPort": listener.port,
        "protocol": "TCP",
    }
    if given.node_port is not None:
        port["nodePort"] = given.node_port
    elif listener.type == "nodeport" and before is not None:
        port["nodePort"] = before
    optional = {
        "externalTrafficPolicy": configuration.external_traffic_policy,
        "loadBalancerSourceRanges": configuration.load_balancer_source_ranges or None,
        "loadBalancerClass": configuration.controller_class if listener.type == "loadbalancer" else None,
        "allocateLoadBalancerNodePorts": configuration.allocate_load_balancer_node_ports,
        "loadBalancerIP": given.load_balancer_ip,
        "externalIPs": given.external_ips or None,
        "ipFamilyPolicy": configuration.ip_family_policy,
        "ipFamilies": configuration.ip_families or None,
    }
    return {
        "type": _SERVICE_TYPES.get(listener.type, "ClusterIP"),
        "ports": [port],
        **{name: value for name, value in optional.items() if value is not None},
    }


def _route(
    cluster: BrokerCluster,
    listener: Listener,
    service: str,
    host: str,
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
) -> Iterator[Manifest]:
    """The Ingress or TLSRoute that leads from the host to the Service; none for other types."""
    if listener.type == "ingress":
        backend = {"service": {"name": service, "port": {"number": listener.port}}}
        ingress: Manifest = {
            "rules": [
                {"host": host, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}
            ],
            "tls": [{"hosts": [host]}],
        }
        if listener.configuration.controller_class is not None:
            ingress["ingressClassName"] = listener.configuration.controller_class
        both = {**_PASSTHROUGH, **annotations}
        yield _built(cluster, "networking.k8s.io/v1", "Ingress", service, ingress, both, labels)
    elif listener.type == "tlsroute":
        route = {
            "parentRefs": [as_manifest(parent) for parent in listener.configuration.parent_refs or ()],
            "hostnames": [host],
            "rules": [{"backendRefs": [{"name": service, "port": listener.port}]}],
        }
        yield _built(cluster, TLS_ROUTE_API, "TLSRoute", service, route, annotations, labels)


def _built(
    cluster: BrokerCluster,
    api_version: str,
    kind: str,
    name: str,
    spec: Manifest,
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    finalizers: Sequence[str] = (),
) -> Manifest:
    body = {"spec": spec}
    return build(cluster, api_version, kind, name, naming.BROKER, body, annotations, labels, finalizers)


def obsolete(cluster: BrokerCluster, listed: Listed, wanted: Collection[Manifest]) -> list[tuple[str, str]]:
    """(kind, name) of the objects for external access that are not among the wanted ones."""
    keys = {(manifest["kind"], name_of(manifest)) for manifest in wanted}
    name = cluster.metadata.name
    prefixes = (f"{name}-broker-", f"{naming.bootstrap_name(name)}-")
    return [
        (kind, found)
        for kind in ("Service", *ROUTE_KINDS.values())
        for found, item in sorted(listed.objects.get(kind, {}).items())
        if found.startswith(prefixes)
        and (item["metadata"].get("labels") or {}).get(naming.COMPONENT_LABEL) == naming.BROKER
        and (kind, found) not in keys
    ]


def metadata_problems(cluster: BrokerCluster) -> Iterator[Problem]:
    """Labels and annotations that would replace the operator's own."""
    for n, listener in enumerate(cluster.spec.listeners):
        configuration = listener.configuration
        given: list[tuple[str, Mapping[str, str] | None]] = [
            ("bootstrap.annotations", configuration.bootstrap.annotations),
            ("bootstrap.labels", configuration.bootstrap.labels),
            ("perBrokerAnnotationsTemplate", configuration.per_broker_annotations_template),
            ("perBrokerLabelsTemplate", configuration.per_broker_labels_template),
        ]
        for m, each in enumerate(configuration.brokers):
            given += [(f"brokers[{m}].annotations", each.annotations), (f"brokers[{m}].labels", each.labels)]
        own = naming.labels(cluster.metadata.name, naming.BROKER)
        for path, texts in given:
            for name in texts or ():
                if name in own or name.startswith(f"{GROUP}/"):
                    field = f"spec.listeners[{n}].configuration.{path}[{name}]"
                    yield Problem(field, "is not allowed: it is the operator's")


# ---- node ports


def node_ports(cluster: BrokerCluster, listed: Listed) -> dict[str, int]:
    """The node ports of all Services of nodeport listeners, by name: the live ones, else the recorded."""
    found = _recorded_ports(cluster, listed)
    for name, service in listed.objects.get("Service", {}).items():
        spec = service.get("spec", {})
        port = (spec.get("ports") or [{}])[0].get("nodePort")
        if spec.get("type") == "NodePort" and port:
            found[name] = int(port)
    return found


def node_ports_annotation(
    cluster: BrokerCluster, listed: Listed, wanted: Collection[Manifest]
) -> dict[str, str]:
    """The annotation of the bootstrap Service; {} without nodeport listeners."""
    names = {name_of(each) for each in wanted if each["spec"].get("type") == "NodePort"}
    ports = {name: port for name, port in node_ports(cluster, listed).items() if name in names}
    return {naming.NODE_PORTS_ANNOTATION: json.dumps(ports, sort_keys=True)} if ports else {}


def _recorded_ports(cluster: BrokerCluster, listed: Listed) -> dict[str, int]:
    service = listed.find("Service", naming.bootstrap_name(cluster.metadata.name))
    text = annotations_of(service).get(naming.NODE_PORTS_ANNOTATION, "{}") if service is not None else "{}"
    try:
        return {str(name): int(port) for name, port in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        # It was edited.
        return {}


def _former_node_port(cluster: BrokerCluster, listener: Listener, broker: int, listed: Listed) -> int | None:
    """Of a broker whose Service an older operator created: its node ports are those that it advertises."""
    if listener.configuration.advertised_port_of(broker) is not None:
        return None
    recorded = listed.find("Service", naming.bootstrap_name(cluster.metadata.name))
    if recorded is not None and naming.NODE_PORTS_ANNOTATION in annotations_of(recorded):
        return None
    address = advertised_in_config(listed, cluster, broker).get(listener.name)
    return address[1] if address is not None else None


# ---- addresses


def advertised_addresses(
    cluster: BrokerCluster, broker: int, listed: Listed, nodes: Mapping[str, Object]
) -> Advertised:
    """The broker's current addresses, by listener, without those that are its pod's. Raises
    AddressPending."""
    return {
        listener.name: _advertised(cluster, listener, broker, listed, nodes)
        for listener in listeners_of(cluster)
        if _is_configured(listener, broker)
    }


def known_addresses(
    cluster: BrokerCluster, broker: int, listed: Listed, nodes: Mapping[str, Object]
) -> Advertised:
    """The same, with the address that it advertises instead of one that is not known yet."""
    known = dict(advertised_in_config(listed, cluster, broker))
    for listener in listeners_of(cluster):
        try:
            if _is_configured(listener, broker):
                known[listener.name] = _advertised(cluster, listener, broker, listed, nodes)
        except AddressPending:
            continue
    wanted = {listener.name for listener in listeners_of(cluster) if _is_configured(listener, broker)}
    return {name: address for name, address in known.items() if name in wanted}


def _is_configured(listener: Listener, broker: int) -> bool:
    """Whether the address is another one than the pod's."""
    configuration, own = listener.configuration, listener.configuration.of_broker(broker)
    given = (
        *(own.advertised_host, own.advertised_port, configuration.advertised_host_template),
        *(configuration.advertised_port_template, configuration.use_service_dns_domain or None),
    )
    return listener.type != "internal" or any(each is not None for each in given)


def _advertised(
    cluster: BrokerCluster, listener: Listener, broker: int, listed: Listed, nodes: Mapping[str, Object]
) -> Address:
    configuration, pod = listener.configuration, naming.broker_pod(cluster.metadata.name, broker)
    host = configuration.advertised_host_of(broker, pod)
    port = configuration.advertised_port_of(broker)
    service = _broker_service(cluster.metadata.name, broker, listener.name)
    if port is None:
        port = _port(listener, service, listed)
    if host is None and listener.type == "internal":
        host = _with_domain(listener, broker_host(cluster, broker))
    elif host is None and listener.type == "nodeport":
        host = _node_host(cluster, listener, broker, listed, nodes) or _node_address(listener, nodes.values())
    elif host is None and listener.type in ROUTE_KINDS:
        host = configuration.host_of(broker, pod)
        if host is None:
            raise AddressPending(f"listener {listener.name} has no host for broker {broker}")
    elif host is None:
        host = _service_host(cluster, listener, service, listed)
    return host, port


def bootstrap_addresses(
    cluster: BrokerCluster,
    listener: Listener,
    brokers: Sequence[int],
    listed: Listed,
    nodes: Mapping[str, Object],
) -> list[Address]:
    """The listener's bootstrap servers. `brokers`: those with a ConfigMap. Raises AddressPending."""
    if listener.type == "internal":
        return [(_with_domain(listener, bootstrap_host(cluster)), listener.port)]
    if listener.type in ROUTE_KINDS:
        return [(listener.configuration.bootstrap.host or "", _ROUTE_PORT)]
    if not _has_bootstrap(listener):
        found = [advertised_in_config(listed, cluster, broker).get(listener.name) for broker in brokers]
        return [address for address in found if address is not None]
    service = _bootstrap_service(cluster.metadata.name, listener.name)
    port = _port(listener, service, listed)
    if listener.type != "nodeport":
        return [(_service_host(cluster, listener, service, listed), port)]
    hosts = [_node_host(cluster, listener, broker, listed, nodes) for broker in brokers]
    return [(host, port) for host in dict.fromkeys(hosts) if host is not None]


def bootstrap_names(
    cluster: BrokerCluster, brokers: Sequence[int], listed: Listed, nodes: Mapping[str, Object]
) -> list[str]:
    """The names and addresses by which clients bootstrap, for the brokers' certificates."""
    names: list[str] = []
    for listener in listeners_of(cluster):
        names += listener.configuration.bootstrap.alternative_names or ()
        if listener.type == "cluster-ip":
            service = _bootstrap_service(cluster.metadata.name, listener.name)
            host = f"{service}.{cluster.metadata.namespace}.svc"
            names += [service, host.removesuffix(".svc"), host, f"{host}.{CLUSTER_DOMAIN}"]
        elif listener.type != "internal" and _has_bootstrap(listener):
            of_nodes = listener.type == "nodeport"
            # Where a broker advertises another host, nothing records its node while its pod is away, and a
            # restart would renew all certificates.
            shown = [b for b in brokers if not (of_nodes and _has_host(cluster, listener, b))]
            try:
                found = bootstrap_addresses(cluster, listener, shown, listed, nodes)
            except AddressPending:
                continue
            names += [host for host, _ in found]
    return list(dict.fromkeys(names))


def _with_domain(listener: Listener, host: str) -> str:
    return f"{host}.{CLUSTER_DOMAIN}" if listener.configuration.use_service_dns_domain else host


def _port(listener: Listener, service: str, listed: Listed) -> int:
    if listener.type in ROUTE_KINDS:
        return _ROUTE_PORT
    if listener.type != "nodeport":
        return listener.port
    port = _existing(service, listed)["spec"]["ports"][0].get("nodePort")
    if not port:
        raise AddressPending(f"Service {service} has no node port yet")
    return int(port)


def _existing(service: str, listed: Listed) -> Object:
    found = listed.find("Service", service)
    if found is None:
        raise AddressPending(f"Service {service} does not exist yet")
    return found


def _service_host(cluster: BrokerCluster, listener: Listener, service: str, listed: Listed) -> str:
    """Of a ClusterIP its name, of a load balancer its address."""
    if listener.type == "cluster-ip":
        return _with_domain(listener, f"{service}.{cluster.metadata.namespace}.svc")
    status: Mapping[str, Any] = _existing(service, listed).get("status") or {}
    for ingress in status.get("loadBalancer", {}).get("ingress") or ():
        address = ingress.get("hostname") or ingress.get("ip")
        if address:
            return str(address)
    raise AddressPending(f"LoadBalancer {service} has no address yet")


def _has_host(cluster: BrokerCluster, listener: Listener, broker: int) -> bool:
    """Whether the broker's advertised host is configured."""
    pod = naming.broker_pod(cluster.metadata.name, broker)
    return listener.configuration.advertised_host_of(broker, pod) is not None


def _node_host(
    cluster: BrokerCluster, listener: Listener, broker: int, listed: Listed, nodes: Mapping[str, Object]
) -> str | None:
    """An address of the broker's node; while its pod is away, the one that it advertises; else None."""
    pod = listed.find("Pod", naming.broker_pod(cluster.metadata.name, broker)) or {}
    node = nodes.get(str(pod.get("spec", {}).get("nodeName")))
    if node is not None:
        return _node_address(listener, [node])
    before = advertised_in_config(listed, cluster, broker).get(listener.name)
    known = {address["address"] for each in nodes.values() for address in _addresses_of(each)}
    return before[0] if before is not None and before[0] in known else None


def _node_address(listener: Listener, nodes: Collection[Object]) -> str:
    preferred = listener.configuration.preferred_node_port_address_type
    for type_ in (*([preferred] if preferred is not None else ()), *_ADDRESS_TYPES):
        for node in sorted(nodes, key=name_of):
            for address in _addresses_of(node):
                if address.get("type") == type_:
                    return str(address["address"])
    raise AddressPending("no node has an address")


def _addresses_of(node: Object) -> Sequence[Mapping[str, str]]:
    addresses: Sequence[Mapping[str, str]] = node.get("status", {}).get("addresses") or ()
    return addresses


# ---- what brokers advertise


def advertised_annotation(addresses: Advertised) -> dict[str, str]:
    """The annotation of a broker's ConfigMap with its advertised addresses; {} if they are all its pod's."""
    if not addresses:
        return {}
    text = json.dumps({name: list(address) for name, address in addresses.items()}, sort_keys=True)
    return {naming.ADVERTISED_ANNOTATION: text}


def addresses_changed(config: Object | None, addresses: Advertised) -> bool:
    """Whether the broker's advertised addresses differ from `addresses`."""
    return config is not None and addresses_in(config) != dict(addresses)


def advertised_in_config(listed: Listed, cluster: BrokerCluster, broker: int) -> Advertised:
    """The advertised addresses in the broker's ConfigMap."""
    config = listed.find("ConfigMap", naming.broker_config(cluster.metadata.name, broker))
    return addresses_in(config) if config is not None else {}
