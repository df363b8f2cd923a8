"""The listeners of a cluster, and how clients reach and verify them: the configuration of each type, with
Strimzi's fields.

Used by `cluster` for `spec.listeners[]`. The rules about which field belongs to which type are one table: CEL
for the API server (`ACCESS_RULES`), and the same for `ottla up` and other callers (`access_problems`).
"""

from __future__ import annotations

import ast
import ipaddress
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from ottla.metadata.listeners import LIMITS, listener_key
from ottla_operator.resources.authentication import ListenerAuthentication
from ottla_operator.resources.common import Model, Name, ObjectName, Problem, Rule, SecretEntry, rules

ListenerType = Literal["internal", "cluster-ip", "nodeport", "loadbalancer", "ingress", "tlsroute"]
# The listener of brokers and the operator, beside those of the spec, and its port on Kubernetes.
INTER_BROKER_LISTENER: Final = "replication"
INTER_BROKER_PORT: Final = 9091
METRICS_PORT_NAME: Final = "tcp-prometheus"

NODE_ID, POD_NAME = "{nodeId}", "{nodePodName}"
"""Placeholders of templates: the broker's id, and the name of its pod."""

_INT_MAX: Final = 2**31 - 1
# As Kubernetes: the names of finalizers have a domain.
_FINALIZER: Final = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?/[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$"
_Host = Annotated[str, Field(pattern=r"^[-._:a-zA-Z0-9]+$", max_length=253)]
_HostTemplate = Annotated[
    str, Field(pattern=r"^([-._:a-zA-Z0-9]|\{nodeId\}|\{nodePodName\})+$", max_length=253)
]
_DnsName = Annotated[str, Field(pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", max_length=253)]
_DnsTemplate = Annotated[str, Field(pattern=r"^([-.a-z0-9]|\{nodeId\}|\{nodePodName\})+$", max_length=253)]
_Port = Annotated[int, Field(ge=1, le=65535)]
_Texts = dict[str, str]
_Finalizer = Annotated[str, Field(pattern=_FINALIZER, max_length=253)]


class CertificateSource(Model):
    secret_name: ObjectName = Field(description="A Secret in the same namespace.")
    certificate: SecretEntry = Field(
        default="tls.crt", description="Its entry with the certificate, in PEM, followed by its chain."
    )
    key: SecretEntry = Field(
        default="tls.key", description="Its entry with the private key, in PEM, without a password."
    )


class IssuerRef(Model):
    """An issuer of cert-manager."""

    name: ObjectName = Field(description="The Issuer's name.")
    kind: str = Field(
        default="Issuer",
        pattern=r"^[A-Z][A-Za-z0-9]*$",
        max_length=63,
        description="Issuer, in the same namespace, ClusterIssuer, or the kind of an external issuer.",
    )
    group: ObjectName = Field(default="cert-manager.io", description="The API group of the kind.")


_LoadBalancerIp = Annotated[
    str | None,
    Field(
        alias="loadBalancerIP",
        description="The address to request, where the provider of load balancers can. Default: the "
        "provider chooses one.",
    ),
]
_ExternalIps = Annotated[
    list[str] | None,
    Field(
        alias="externalIPs",
        max_length=100,
        description="Addresses of nodes at which the Service accepts connections, too, for nodeport. "
        "Default: none.",
    ),
]


class BootstrapAccess(Model):
    alternative_names: list[_Host] | None = Field(
        default=None,
        max_length=100,
        description="Host names and addresses by which clients also bootstrap; added to the brokers' "
        "certificates. Default: none.",
    )
    host: _DnsName | None = Field(
        default=None, description="The host name of the bootstrap Ingress or TLSRoute, which both require."
    )
    node_port: _Port | None = Field(
        default=None,
        description="The node port of the bootstrap Service, for nodeport and loadbalancer. Default: "
        "Kubernetes chooses one.",
    )
    load_balancer_ip: _LoadBalancerIp = None
    external_ips: _ExternalIps = None
    annotations: _Texts | None = Field(
        default=None, description="Annotations of the Service, and of the Ingress or TLSRoute. Default: none."
    )
    labels: _Texts | None = Field(
        default=None, description="Labels of the Service, and of the Ingress or TLSRoute. Default: none."
    )


class BrokerAccess(Model):
    broker: int = Field(ge=0, description="The broker's id.")
    advertised_host: _Host | None = Field(
        default=None, description="The advertised host. Default: advertisedHostTemplate."
    )
    advertised_port: _Port | None = Field(
        default=None, description="The advertised port. Default: advertisedPortTemplate."
    )
    host: _DnsName | None = Field(
        default=None,
        description="The host name of the broker's Ingress or TLSRoute. Default: hostTemplate.",
    )
    node_port: _Port | None = Field(
        default=None,
        description="The node port of the broker's Service, for nodeport and loadbalancer. Default: "
        "Kubernetes chooses one.",
    )
    load_balancer_ip: _LoadBalancerIp = None
    external_ips: _ExternalIps = None
    annotations: _Texts | None = Field(
        default=None,
        description="Annotations of the Service, and of the Ingress or TLSRoute. Default: "
        "perBrokerAnnotationsTemplate.",
    )
    labels: _Texts | None = Field(
        default=None,
        description="Labels of the Service, and of the Ingress or TLSRoute. Default: "
        "perBrokerLabelsTemplate.",
    )


class ParentRef(Model):
    """As in the Gateway API."""

    name: ObjectName = Field(description="The Gateway, or another resource that takes TLSRoutes.")
    namespace: ObjectName | None = Field(
        default=None, description="Its namespace. Default: that of the BrokerCluster."
    )
    section_name: ObjectName | None = Field(
        default=None, description="The Gateway's listener. Default: all that match."
    )
    port: _Port | None = Field(default=None, description="The Gateway's port. Default: all that match.")
    group: str | None = Field(
        default=None, max_length=253, description="Its API group. Default: gateway.networking.k8s.io."
    )
    kind: str | None = Field(default=None, max_length=63, description="Its kind. Default: Gateway.")


class ListenerConfiguration(Model):
    """How clients reach and verify the listener; the fields are those of Strimzi."""

    broker_cert_chain_and_key: CertificateSource | None = Field(
        default=None,
        description="The listener's own certificate, the same on all brokers; applied without a restart when "
        "the Secret changes. Needs tls. Default: certificates of clusterCa.",
    )
    issuer_ref: IssuerRef | None = Field(
        default=None,
        description="The issuer of cert-manager that issues the listener's certificate, for all hosts of "
        "status.listeners. Needs tls; excludes brokerCertChainAndKey. Default: certificates of clusterCa.",
    )
    bootstrap: BootstrapAccess = Field(
        default_factory=BootstrapAccess, description="The bootstrap Service, Ingress or TLSRoute."
    )
    brokers: list[BrokerAccess] = Field(
        default_factory=list,
        max_length=1000,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["broker"]},
        description="What is different for single brokers.",
    )
    advertised_host_template: _HostTemplate | None = Field(
        default=None,
        description="The advertised host of each broker, with the placeholders {nodeId} and {nodePodName}. "
        "Default: the address of its Service, Ingress, TLSRoute or pod.",
    )
    advertised_port_template: str | None = Field(
        default=None,
        pattern=r"^([-+*() 0-9]|\{nodeId\})+$",
        max_length=100,
        description="The advertised port of each broker: a formula of numbers, {nodeId}, +, -, * and "
        "parentheses, such as 9100 + {nodeId}. Default: the port of its Service, 443 for ingress and "
        "tlsroute.",
    )
    host_template: _DnsTemplate | None = Field(
        default=None,
        description="The host name of each broker's Ingress or TLSRoute, with the placeholders {nodeId} and "
        "{nodePodName}. Default: brokers[].host.",
    )
    per_broker_annotations_template: _Texts | None = Field(
        default=None,
        description="Annotations of each broker's Service, Ingress or TLSRoute; values may have the "
        "placeholders {nodeId} and {nodePodName}. Default: none.",
    )
    per_broker_labels_template: _Texts | None = Field(
        default=None, description="Labels, in the same way. Default: none."
    )
    controller_class: ObjectName | None = Field(
        default=None,
        alias="class",
        description="The ingressClassName, or the loadBalancerClass, which Kubernetes never changes in an "
        "existing Service. Default: the controller that is the default one.",
    )
    parent_refs: list[ParentRef] | None = Field(
        default=None,
        min_length=1,
        max_length=32,
        description="What the TLSRoutes attach to, usually a Gateway; tlsroute requires it.",
    )
    load_balancer_source_ranges: list[str] | None = Field(
        default=None,
        max_length=1000,
        description="Ranges of addresses (10.0.0.0/8) from which load balancers accept connections, where "
        "the provider can. Default: all.",
    )
    allocate_load_balancer_node_ports: bool | None = Field(
        default=None, description="Whether Services of load balancers have node ports, too. Default: true."
    )
    create_bootstrap_service: bool | None = Field(
        default=None,
        description="Whether there is a load balancer for the bootstrap. Without it the bootstrap servers "
        "are the brokers. Default: true.",
    )
    external_traffic_policy: Literal["Cluster", "Local"] | None = Field(
        default=None,
        description="Local: only the node of a broker's pod accepts connections to it, and brokers see the "
        "clients' addresses; Cluster: each node forwards them. Default: Cluster.",
    )
    preferred_node_port_address_type: (
        Literal["ExternalDNS", "ExternalIP", "InternalDNS", "InternalIP", "Hostname"] | None
    ) = Field(
        default=None,
        description="The first choice among the addresses of a node. Default: the first that it has of "
        "ExternalDNS, ExternalIP, InternalDNS, InternalIP, Hostname.",
    )
    publish_not_ready_addresses: bool | None = Field(
        default=None,
        description="Whether Services lead to brokers that are not ready. Default: true for those of single "
        "brokers, which clients need while brokers recover, false for the bootstrap.",
    )
    finalizers: list[_Finalizer] | None = Field(
        default=None,
        max_length=16,
        description="Finalizers of the Services of load balancers, which their provider must remove when "
        "such a Service is deleted. Default: none.",
    )
    max_connections: int | None = Field(
        default=None,
        ge=1,
        le=_INT_MAX,
        description="The maximum of connections of the listener on each broker; more are accepted when "
        "others have closed. Altered without a restart. Default: no limit but spec.config's.",
    )
    max_connection_creation_rate: int | None = Field(
        default=None,
        ge=1,
        le=_INT_MAX,
        description="The maximum of new connections of the listener on each broker, per second; more are "
        "accepted later. Altered without a restart. Default: no limit but spec.config's.",
    )
    ip_family_policy: Literal["SingleStack", "PreferDualStack", "RequireDualStack"] | None = Field(
        default=None, description="As in Kubernetes' Services. Default: SingleStack."
    )
    ip_families: list[Literal["IPv4", "IPv6"]] | None = Field(
        default=None, max_length=2, description="As in Kubernetes' Services. Default: Kubernetes chooses."
    )
    use_service_dns_domain: bool | None = Field(
        default=None,
        description="Whether advertised hosts within the Kubernetes cluster end in .cluster.local. Default: "
        "false.",
    )

    # ---- of a broker

    def of_broker(self, broker: int) -> BrokerAccess:
        """What is configured for a single broker."""
        return next((each for each in self.brokers if each.broker == broker), BrokerAccess(broker=broker))

    def host_of(self, broker: int, pod: str) -> str | None:
        """The host name of its Ingress or TLSRoute."""
        return self.of_broker(broker).host or rendered(self.host_template, broker, pod)

    def advertised_host_of(self, broker: int, pod: str) -> str | None:
        """Its advertised host, if it is configured."""
        return self.of_broker(broker).advertised_host or rendered(self.advertised_host_template, broker, pod)

    def advertised_port_of(self, broker: int) -> int | None:
        """Its advertised port, if it is configured. Raises ValueError for an impossible formula."""
        if self.of_broker(broker).advertised_port is not None:
            return self.of_broker(broker).advertised_port
        template = self.advertised_port_template
        return None if template is None else port_of(template, broker)

    def annotations_of(self, broker: int, pod: str) -> _Texts:
        return self._texts(
            self.of_broker(broker).annotations, self.per_broker_annotations_template, pod, broker
        )

    def labels_of(self, broker: int, pod: str) -> _Texts:
        return self._texts(self.of_broker(broker).labels, self.per_broker_labels_template, pod, broker)

    def _texts(self, own: _Texts | None, template: _Texts | None, pod: str, broker: int) -> _Texts:
        if own:
            return own
        return {name: rendered(value, broker, pod) or "" for name, value in (template or {}).items()}


def rendered(template: str | None, broker: int, pod: str) -> str | None:
    """The template with its placeholders replaced."""
    return None if template is None else template.replace(NODE_ID, str(broker)).replace(POD_NAME, pod)


def port_of(template: str, broker: int) -> int:
    """The value of a formula for a port. Raises ValueError if it is no formula, or no port."""
    text = template.replace(NODE_ID, str(broker))
    try:
        value = _value_of(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError):
        raise ValueError("is no formula of numbers, {nodeId}, +, -, * and parentheses") from None
    if not 1 <= value <= 65535:
        raise ValueError(f"is {value} for broker {broker}, which is no port: 1 to 65535")
    return value


_OPERATIONS: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: lambda one, other: one + other,
    ast.Sub: lambda one, other: one - other,
    ast.Mult: lambda one, other: one * other,
}


def _value_of(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.BinOp(left, operator, right) if type(operator) in _OPERATIONS:
            return _OPERATIONS[type(operator)](_value_of(left), _value_of(right))
        case ast.UnaryOp(ast.USub(), operand):
            return -_value_of(operand)
        case ast.UnaryOp(ast.UAdd(), operand):
            return _value_of(operand)
    raise SyntaxError


# ---- which field belongs to which type

_ROUTED: Final = ("ingress", "tlsroute")
_EXTERNAL: Final = ("cluster-ip", "nodeport", "loadbalancer", *_ROUTED)
_WITH_NODE_PORTS: Final = ("nodeport", "loadbalancer")
_BALANCED: Final = ("loadbalancer",)

_OF_LISTENER: Final[Mapping[str, Collection[str]]] = {
    "host_template": _ROUTED,
    "per_broker_annotations_template": _EXTERNAL,
    "per_broker_labels_template": _EXTERNAL,
    "controller_class": ("loadbalancer", "ingress"),
    "parent_refs": ("tlsroute",),
    "load_balancer_source_ranges": _BALANCED,
    "allocate_load_balancer_node_ports": _BALANCED,
    "create_bootstrap_service": _BALANCED,
    "finalizers": _BALANCED,
    "external_traffic_policy": _WITH_NODE_PORTS,
    "preferred_node_port_address_type": ("nodeport",),
    "publish_not_ready_addresses": _EXTERNAL,
    "ip_family_policy": _EXTERNAL,
    "ip_families": _EXTERNAL,
    "use_service_dns_domain": ("internal", "cluster-ip"),
}
# Of the bootstrap, and of single brokers.
_OF_SERVICE: Final[Mapping[str, Collection[str]]] = {
    "host": _ROUTED,
    "node_port": _WITH_NODE_PORTS,
    "load_balancer_ip": _BALANCED,
    "external_ips": ("nodeport",),
    "annotations": _EXTERNAL,
    "labels": _EXTERNAL,
}


def _alias(model: type[Model], attribute: str) -> str:
    return str(model.model_fields[attribute].alias)


def _belongs(name: str, types: Collection[str]) -> str:
    return f"{name} belongs to listeners of type {' or '.join(types)}"


def _rules() -> Iterator[Rule]:
    configured, type_ = "has(self.configuration)", "(has(self.type) ? self.type : 'internal')"
    for attribute, types in _OF_LISTENER.items():
        name = _alias(ListenerConfiguration, attribute)
        field = f"self.configuration.{name}"
        cel = f"!{configured} || !has({field}) || {type_} in {list(types)}"
        yield Rule(_belongs(name, types), cel)
    for attribute, types in _OF_SERVICE.items():
        name = _alias(BrokerAccess, attribute)
        of_bootstrap = f"has(self.configuration.bootstrap) && has(self.configuration.bootstrap.{name})"
        of_brokers = f"has(self.configuration.brokers) && self.configuration.brokers.exists(b, has(b.{name}))"
        cel = f"{type_} in {list(types)} || !{configured} || !(({of_bootstrap}) || ({of_brokers}))"
        yield Rule(_belongs(name, types), cel)
    unless_routed = f"!({type_} in {list(_ROUTED)})"
    yield Rule("ingress and tlsroute require tls: true", f"{unless_routed} || (has(self.tls) && self.tls)")
    yield Rule(
        "ingress and tlsroute require configuration.bootstrap.host",
        f"{unless_routed} || ({configured} && has(self.configuration.bootstrap) && "
        "has(self.configuration.bootstrap.host))",
    )
    yield Rule(
        "ingress and tlsroute require configuration.hostTemplate, or a host of each broker in "
        "configuration.brokers",
        f"{unless_routed} || ({configured} && (has(self.configuration.hostTemplate) || "
        "(has(self.configuration.brokers) && self.configuration.brokers.exists(b, has(b.host)))))",
    )
    yield Rule(
        "tlsroute requires configuration.parentRefs",
        f"{type_} != 'tlsroute' || ({configured} && has(self.configuration.parentRefs))",
    )


ACCESS_RULES: Final = tuple(_rules())


def access_problems(
    type_: str, *, tls: bool, configuration: ListenerConfiguration, brokers: Collection[int]
) -> Iterator[tuple[str, str]]:
    """(path below the listener, message) of what is wrong. `brokers`: the ids in the spec."""
    of = "configuration"
    for attribute, types in _OF_LISTENER.items():
        if getattr(configuration, attribute) is not None and type_ not in types:
            name = _alias(ListenerConfiguration, attribute)
            yield f"{of}.{name}", _misplaced(type_, types)
    services: list[tuple[str, BootstrapAccess | BrokerAccess]] = [
        (f"{of}.bootstrap", configuration.bootstrap)
    ]
    services += [(f"{of}.brokers[{n}]", each) for n, each in enumerate(configuration.brokers)]
    for path, service in services:
        for attribute, types in _OF_SERVICE.items():
            if getattr(service, attribute) is not None and type_ not in types:
                yield f"{path}.{_alias(BrokerAccess, attribute)}", _misplaced(type_, types)
        yield from _address_problems(path, service)
    yield from _value_problems(configuration, brokers)
    if type_ in _ROUTED:
        yield from _route_problems(type_, tls=tls, configuration=configuration, brokers=brokers)


def _misplaced(type_: str, types: Collection[str]) -> str:
    return f"is not allowed: the listener's type is {type_}; allowed for {' and '.join(types)}"


def _address_problems(path: str, service: BootstrapAccess | BrokerAccess) -> Iterator[tuple[str, str]]:
    addresses = [("loadBalancerIP", service.load_balancer_ip)] if service.load_balancer_ip else []
    addresses += [(f"externalIPs[{n}]", each) for n, each in enumerate(service.external_ips or ())]
    for name, address in addresses:
        try:
            ipaddress.ip_address(address)
        except ValueError:
            yield f"{path}.{name}", f"{address!r} is not allowed: must be an IP address"


def _value_problems(
    configuration: ListenerConfiguration, brokers: Collection[int]
) -> Iterator[tuple[str, str]]:
    seen: set[int] = set()
    for n, each in enumerate(configuration.brokers):
        if each.broker in seen:
            yield f"configuration.brokers[{n}].broker", f"{each.broker} is there twice"
        seen.add(each.broker)
    for n, text in enumerate(configuration.load_balancer_source_ranges or ()):
        try:
            ipaddress.ip_network(text, strict=False)
        except ValueError:
            path = f"configuration.loadBalancerSourceRanges[{n}]"
            yield path, f"{text!r} is not allowed: must be a range of addresses, such as 10.0.0.0/8"
    template = configuration.advertised_port_template
    for broker in sorted(brokers) if template is not None else ():
        try:
            port_of(template or "", broker)
        except ValueError as error:
            yield "configuration.advertisedPortTemplate", f"{template!r} {error}"
            break


def _route_problems(
    type_: str, *, tls: bool, configuration: ListenerConfiguration, brokers: Collection[int]
) -> Iterator[tuple[str, str]]:
    if not tls:
        yield "tls", f"must be true: {type_} leads to brokers by the host name in TLS"
    if type_ == "tlsroute" and configuration.parent_refs is None:
        yield "configuration.parentRefs", "is required for tlsroute"
    if configuration.bootstrap.host is None:
        yield "configuration.bootstrap.host", f"is required for {type_}"
    if not brokers and configuration.host_template is None and not any(b.host for b in configuration.brokers):
        yield "configuration.hostTemplate", f"is required for {type_}"
    users: dict[str, str] = {}
    if configuration.bootstrap.host is not None:
        users[configuration.bootstrap.host] = "the bootstrap"
    for broker in sorted(brokers):
        # Only a name without placeholders can be the same for two pods.
        host = configuration.host_of(broker, f"pod-{broker}")
        if host is None:
            message = f"is required for {type_}, or brokers[].host for broker {broker}"
            yield "configuration.hostTemplate", message
            break
        if host in users:
            message = f"the host of broker {broker} and of {users[host]} is {host}; each needs its own"
            yield "configuration.hostTemplate", message
            break
        users[host] = f"broker {broker}"


def unused_brokers(configuration: ListenerConfiguration, brokers: Collection[int]) -> list[int]:
    """The ids in the configuration that no broker of the spec has."""
    return sorted({each.broker for each in configuration.brokers}.difference(brokers))


# ---- who may connect

_Operator = Literal["In", "NotIn", "Exists", "DoesNotExist"]


class LabelRequirement(Model):
    key: str = Field(max_length=317, description="The label.")
    operator: _Operator = Field(description="In, NotIn, Exists or DoesNotExist.")
    values: list[str] | None = Field(default=None, description="Values for In and NotIn.")


class LabelSelector(Model):
    match_labels: _Texts | None = Field(default=None, description="Labels that an object must have.")
    match_expressions: list[LabelRequirement] | None = Field(
        default=None, description="Further requirements, all of which must be met."
    )


class IpBlock(Model):
    cidr: str = Field(description="A range of addresses, such as 10.0.0.0/8.")
    excluded: list[str] | None = Field(
        default=None, alias="except", description="Ranges within it that are not included."
    )


class NetworkPolicyPeer(Model):
    """As in Kubernetes' NetworkPolicies."""

    model_config = rules(
        Rule(
            "a peer has ipBlock, or podSelector and namespaceSelector, or one of these two",
            "has(self.ipBlock) ? !has(self.podSelector) && !has(self.namespaceSelector) : "
            "has(self.podSelector) || has(self.namespaceSelector)",
        )
    )

    pod_selector: LabelSelector | None = Field(
        default=None,
        description="Pods with these labels; {} for all. Without namespaceSelector: of the same namespace.",
    )
    namespace_selector: LabelSelector | None = Field(
        default=None, description="Namespaces with these labels; {} for all."
    )
    ip_block: IpBlock | None = Field(default=None, description="Clients outside of the Kubernetes cluster.")


def peer_problems(peers: Collection[NetworkPolicyPeer]) -> Iterator[tuple[str, str]]:
    """(path below the listener, message) of what is wrong."""
    for n, peer in enumerate(peers):
        selectors = (peer.pod_selector, peer.namespace_selector)
        has_selector = any(selector is not None for selector in selectors)
        if has_selector == (peer.ip_block is not None):
            message = "needs ipBlock, or podSelector or namespaceSelector or both of these two"
            yield f"networkPolicyPeers[{n}]", message
        blocks = (peer.ip_block.cidr, *(peer.ip_block.excluded or ())) if peer.ip_block is not None else ()
        for text in blocks:
            try:
                ipaddress.ip_network(text)
            except ValueError as error:
                yield f"networkPolicyPeers[{n}].ipBlock", f"{text!r} is not allowed: {error}"


class Listener(Model):
    model_config = rules(
        Rule(
            "authentication of type tls requires tls: true on the listener",
            "!has(self.authentication) || self.authentication.type != 'tls' || (has(self.tls) && self.tls)",
        ),
        Rule(
            "brokerCertChainAndKey requires tls: true on the listener",
            "!has(self.configuration) || !has(self.configuration.brokerCertChainAndKey) || "
            "(has(self.tls) && self.tls)",
        ),
        Rule(
            "issuerRef requires tls: true on the listener and excludes brokerCertChainAndKey",
            "!has(self.configuration) || !has(self.configuration.issuerRef) || (has(self.tls) && self.tls && "
            "!has(self.configuration.brokerCertChainAndKey))",
        ),
        *ACCESS_RULES,
    )

    name: Name = Field(
        description="The listener's name, unique in the cluster. In Kafka's settings it has capitals, and "
        "_ for -."
    )
    port: int = Field(
        ge=1,
        le=65535,
        description="The listener's port on each broker and on the bootstrap Service, unique in the cluster.",
    )
    type: ListenerType = Field(
        default="internal",
        description="internal: clients in the Kubernetes cluster, at the bootstrap Service and the pods; "
        "cluster-ip: the same, at a Service of each broker; nodeport and loadbalancer: others, at a Service "
        "of each broker; ingress and tlsroute: others, by host names in TLS, at an Ingress or a TLSRoute of "
        "the Gateway API of each broker.",
    )
    tls: bool = Field(
        default=False, description="Whether connections are encrypted, with certificates of clusterCa."
    )
    authentication: ListenerAuthentication | None = Field(
        default=None,
        description="How clients authenticate. Without it, clients of the listener are User:ANONYMOUS.",
    )
    configuration: ListenerConfiguration = Field(
        default_factory=ListenerConfiguration, description="How clients reach and verify the listener."
    )
    network_policy_peers: list[NetworkPolicyPeer] = Field(
        default_factory=list,
        max_length=100,
        description="Who may connect to the listener, as in Kubernetes' NetworkPolicies, which the network "
        "plug-in of the Kubernetes cluster must enforce. Default: everybody.",
    )

    @property
    def kafka_name(self) -> str:
        """The listener's name in Kafka's settings."""
        return self.name.upper().replace("-", "_")

    @property
    def limits(self) -> dict[str, str]:
        """Kafka's settings of the listener, which brokers alter while they run."""
        of, given = self.kafka_name, self.configuration
        limits = (given.max_connections, given.max_connection_creation_rate)
        names = (listener_key(of, name) for name in LIMITS)
        return {name: str(limit) for name, limit in zip(names, limits, strict=True) if limit is not None}

    @property
    def has_own_certificate(self) -> bool:
        """Whether its certificate is not of the cluster's authority."""
        return self.configuration.broker_cert_chain_and_key is not None or (
            self.configuration.issuer_ref is not None
        )

    def problems(self, path: str, brokers: Collection[int]) -> Iterator[Problem]:
        """What is wrong with it, at this path, in a cluster with these brokers."""
        found = access_problems(self.type, tls=self.tls, configuration=self.configuration, brokers=brokers)
        for below, message in (*found, *peer_problems(self.network_policy_peers)):
            yield Problem(f"{path}.{below}", message)
        if self.authentication is not None:
            if self.authentication.type == "tls" and not self.tls:
                yield Problem(f"{path}.authentication.type", "tls requires tls: true on the listener")
            yield from self.authentication.problems(f"{path}.authentication", self.kafka_name)
        configuration = self.configuration
        if configuration.broker_cert_chain_and_key is not None and not self.tls:
            yield Problem(f"{path}.configuration.brokerCertChainAndKey", "requires tls: true on the listener")
        if configuration.issuer_ref is not None and not self.tls:
            yield Problem(f"{path}.configuration.issuerRef", "requires tls: true on the listener")
        if configuration.issuer_ref is not None and configuration.broker_cert_chain_and_key is not None:
            yield Problem(f"{path}.configuration.issuerRef", "excludes brokerCertChainAndKey")


def as_manifest(model: Model) -> dict[str, Any]:
    """The model as a part of a manifest, without what is not set."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)
