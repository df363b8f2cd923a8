"""External access: which fields fit which listener, what is built for it, and what clients are told."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cryptography import x509

from ottla_operator.kubernetes import external_access, listeners, manifests_brokers, naming
from ottla_operator.kubernetes.api import Forbidden
from ottla_operator.kubernetes.external_access import AddressPending
from ottla_operator.kubernetes.manifests_common import Images
from ottla_operator.kubernetes.observing import Listed
from ottla_operator.planning.certificates import Pair
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.listeners import port_of
from ottla_operator.resources.loading import parse_resource
from tests.worlds.kubernetes_simulation import KubernetesSimulation

Manifest = dict[str, Any]

HOSTS = {"bootstrap": {"host": "kafka.example.org"}, "hostTemplate": "b{nodeId}.example.org"}
ROUTED: Manifest = {**HOSTS, "parentRefs": [{"name": "gateway", "namespace": "infra"}]}


def a_listener(type_: str, *, tls: bool = False, **configuration: Any) -> Manifest:
    return {"name": "ext", "port": 9094, "type": type_, "tls": tls, "configuration": configuration}


def parsed(*given: Manifest, name: str = "demo", **spec: Any) -> tuple[Any, list[str]]:
    metadata = {"name": name, "namespace": "shop", "uid": "u-1", "generation": 1}
    cluster, problems = parse_resource(
        "BrokerCluster", metadata, {"replicas": 3, "listeners": list(given), **spec}
    )
    return cluster, [str(problem) for problem in problems]


def a_cluster(*given: Manifest, **spec: Any) -> BrokerCluster:
    cluster, problems = parsed(*given, **spec)
    assert not problems
    assert isinstance(cluster, BrokerCluster)
    return cluster


# ---- which fields fit

FITTING: list[tuple[str, Manifest]] = [
    ("internal", {"useServiceDnsDomain": True, "advertisedHostTemplate": "b{nodeId}"}),
    ("cluster-ip", {"brokers": [{"broker": 1, "labels": {"a": "b"}}], "publishNotReadyAddresses": False}),
    ("nodeport", {"bootstrap": {"nodePort": 30100, "externalIPs": ["192.0.2.1"]}}),
    ("nodeport", {"preferredNodePortAddressType": "Hostname", "externalTrafficPolicy": "Local"}),
    ("loadbalancer", {"class": "x", "loadBalancerSourceRanges": ["10.0.0.0/8"]}),
    ("loadbalancer", {"allocateLoadBalancerNodePorts": False, "createBootstrapService": False}),
    ("loadbalancer", {"brokers": [{"broker": 0, "loadBalancerIP": "192.0.2.1", "nodePort": 30001}]}),
    (
        "ingress",
        {**HOSTS, "class": "nginx", "bootstrap": {"host": "k.example.org", "annotations": {"a": "b"}}},
    ),
    ("ingress", {"bootstrap": {"host": "k"}, "brokers": [{"broker": n, "host": f"b{n}"} for n in range(3)]}),
    ("loadbalancer", {"finalizers": ["service.kubernetes.io/load-balancer-cleanup"]}),
    ("internal", {"maxConnections": 1, "maxConnectionCreationRate": 2147483647}),
    ("tlsroute", {**ROUTED, "ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6", "IPv4"]}),
]


@pytest.mark.parametrize(("type_", "configuration"), FITTING)
def test_fields_of_the_type_are_accepted(type_: str, configuration: Manifest) -> None:
    a_cluster(a_listener(type_, tls=True, **configuration))


REFUSED: list[tuple[str, Manifest, str, str]] = [
    ("nodeport", {"loadBalancerSourceRanges": ["10.0.0.0/8"]}, "loadBalancerSourceRanges", "is nodeport"),
    ("internal", {"publishNotReadyAddresses": True}, "publishNotReadyAddresses", "is internal"),
    ("nodeport", {"finalizers": ["a.b/c"]}, "finalizers", "is nodeport"),
    ("nodeport", {"class": "x"}, "class", "allowed for loadbalancer and ingress"),
    ("cluster-ip", {"externalTrafficPolicy": "Local"}, "externalTrafficPolicy", "is cluster-ip"),
    (
        "loadbalancer",
        {"preferredNodePortAddressType": "Hostname"},
        "preferredNodePortAddressType",
        "nodeport",
    ),
    ("ingress", {**HOSTS, "createBootstrapService": False}, "createBootstrapService", "is ingress"),
    ("nodeport", {"bootstrap": {"host": "x"}}, "bootstrap.host", "allowed for ingress and tlsroute"),
    ("loadbalancer", {"brokers": [{"broker": 2, "host": "x"}]}, "brokers[0].host", "is loadbalancer"),
    ("internal", {"brokers": [{"broker": 2, "labels": {}}]}, "brokers[0].labels", "is internal"),
    ("nodeport", {"brokers": [{"broker": 2}, {"broker": 2}]}, "brokers[1].broker", "2 is there twice"),
    ("nodeport", {"hostTemplate": "x"}, "hostTemplate", "is nodeport"),
    ("nodeport", {"useServiceDnsDomain": True}, "useServiceDnsDomain", "is nodeport"),
    ("ingress", {"bootstrap": {"host": "k"}}, "hostTemplate", "or brokers[].host for broker 0"),
    ("ingress", {"hostTemplate": "b{nodeId}"}, "bootstrap.host", "is required for ingress"),
    ("ingress", {**HOSTS, "hostTemplate": "b"}, "hostTemplate", "the host of broker 1 and of broker 0 is b"),
    (
        "ingress",
        {"bootstrap": {"host": "b1"}, "hostTemplate": "b{nodeId}"},
        "hostTemplate",
        "the bootstrap is b1",
    ),
    ("tlsroute", HOSTS, "parentRefs", "is required for tlsroute"),
    ("nodeport", {"advertisedPortTemplate": "9000 *"}, "advertisedPortTemplate", "is no formula"),
    ("nodeport", {"advertisedPortTemplate": "({nodeId})"}, "advertisedPortTemplate", "is 0 for broker 0"),
    ("nodeport", {"advertisedHostTemplate": "b{node}"}, "advertisedHostTemplate", "is not allowed"),
    ("loadbalancer", {"loadBalancerSourceRanges": ["10"]}, "loadBalancerSourceRanges[0]", "must be a range"),
    ("nodeport", {"bootstrap": {"externalIPs": ["x"]}}, "bootstrap.externalIPs[0]", "must be an IP address"),
]


@pytest.mark.parametrize(("type_", "configuration", "field", "message"), REFUSED)
def test_fields_that_do_not_fit_the_listeners_type_are_refused(
    type_: str, configuration: Manifest, field: str, message: str
) -> None:
    _, problems = parsed(a_listener(type_, tls=True, **configuration))
    (problem,) = problems
    assert problem.startswith(f"spec.listeners[0].configuration.{field}: ")
    assert message in problem


@pytest.mark.parametrize("type_", ["ingress", "tlsroute"])
def test_routes_by_host_name_need_tls(type_: str) -> None:
    configuration = ROUTED if type_ == "tlsroute" else HOSTS
    _, problems = parsed(a_listener(type_, **configuration))
    assert problems == [
        f"spec.listeners[0].tls: must be true: {type_} leads to brokers by the host name in TLS"
    ]


@pytest.mark.parametrize(
    ("peer", "message"),
    [
        ({}, "networkPolicyPeers[0]: needs ipBlock"),
        ({"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}, "networkPolicyPeers[0]: needs ipBlock"),
        ({"ipBlock": {"cidr": "10.0.0.1/8"}}, "networkPolicyPeers[0].ipBlock: '10.0.0.1/8' is not allowed"),
        ({"podSelectors": {}}, "networkPolicyPeers[0].podSelectors: unknown field"),
    ],
)
def test_a_peer_that_kubernetes_would_refuse_or_drop_is_refused(peer: Manifest, message: str) -> None:
    _, problems = parsed({"name": "ext", "port": 9094, "networkPolicyPeers": [peer]})
    (problem,) = problems
    assert problem.startswith(f"spec.listeners[0].{message}")


def test_a_configured_broker_that_does_not_exist_is_a_warning() -> None:
    cluster = a_cluster(a_listener("nodeport", brokers=[{"broker": 7, "nodePort": 30007}]))
    assert list(cluster.notes()) == ["spec.listeners[0].configuration.brokers: there is no broker 7"]


def test_the_operators_labels_are_its_own() -> None:
    cluster = a_cluster(
        a_listener("nodeport", bootstrap={"labels": {naming.CLUSTER_LABEL: "other", "a": "b"}})
    )
    (problem,) = external_access.metadata_problems(cluster)
    assert problem.path == "spec.listeners[0].configuration.bootstrap.labels[ottla.dev/cluster]"


@pytest.mark.parametrize(
    ("template", "port"),
    [("9100 + {nodeId}", 9102), ("{nodeId} * 10 + (9000 - 1)", 9019), ("-(1 - 9094)", 9093), ("9000", 9000)],
)
def test_a_formula_gives_the_port(template: str, port: int) -> None:
    assert port_of(template, 2) == port


@pytest.mark.parametrize("template", ["9 ** 9", "9000 +", "70000", "()", "9" * 5000, "9 9", "8 // 2"])
def test_anything_else_is_no_formula(template: str) -> None:
    with pytest.raises(ValueError, match=r"is no formula|is no port"):
        port_of(template, 2)


def test_up_says_which_fields_it_ignores() -> None:
    given = {**a_listener("nodeport", tls=True, bootstrap={"nodePort": 30000}), "networkPolicyPeers": []}
    assert [text.partition(" ")[0] for text in a_cluster(given).ignored_by_up()] == [
        "spec.listeners[0].type",
        "spec.listeners[0].configuration.bootstrap",
    ]


# ---- what is built


def built(cluster: BrokerCluster, *brokers: int) -> dict[tuple[str, str], Manifest]:
    found = external_access.build_access(cluster, Listed(), brokers or (0, 1, 2))
    names = {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in found}
    assert len(names) == len(found)
    return names


def test_an_internal_listener_has_no_objects_of_its_own() -> None:
    assert not built(a_cluster({"name": "plain", "port": 9092}))


def test_names_are_those_that_kubernetes_allows() -> None:
    given = {"name": "b" * 63, "port": 9094, "type": "nodeport"}
    found = built(a_cluster(given, name="a" * 40), *range(1000))
    assert len(found) == 1001
    assert max(len(name) for _, name in found) == 63
    assert all(manifest["spec"]["ports"][0]["name"] == "b" * 63 for manifest in found.values())


@pytest.mark.parametrize(
    ("type_", "of_service"),
    [("cluster-ip", "ClusterIP"), ("nodeport", "NodePort"), ("loadbalancer", "LoadBalancer")],
)
def test_a_listener_has_a_service_for_each_broker_and_one_for_the_bootstrap(
    type_: str, of_service: str
) -> None:
    """The ids need not be consecutive."""
    found = built(a_cluster(a_listener(type_)), 0, 7)
    assert set(found) == {
        ("Service", name) for name in ("demo-bootstrap-ext", "demo-broker-0-ext", "demo-broker-7-ext")
    }
    bootstrap, broker = (
        found["Service", "demo-bootstrap-ext"]["spec"],
        found["Service", "demo-broker-7-ext"]["spec"],
    )
    assert bootstrap["type"] == broker["type"] == of_service
    assert bootstrap["selector"] == naming.selector_labels("demo", naming.BROKER)
    assert broker["selector"]["statefulset.kubernetes.io/pod-name"] == "demo-brokers-7"
    # A client needs the leader also while it recovers; a new client a broker that is ready.
    assert broker["publishNotReadyAddresses"] is True
    assert "publishNotReadyAddresses" not in bootstrap


def test_fields_of_services_reach_them() -> None:
    configuration = {
        "class": "cheap",
        "loadBalancerSourceRanges": ["10.0.0.0/8"],
        "allocateLoadBalancerNodePorts": False,
        "externalTrafficPolicy": "Local",
        "publishNotReadyAddresses": False,
        "finalizers": ["example.org/cleanup"],
        "ipFamilyPolicy": "PreferDualStack",
        "ipFamilies": ["IPv6"],
        "bootstrap": {"loadBalancerIP": "192.0.2.9", "labels": {"a": "1"}, "annotations": {"b": "2"}},
        "brokers": [{"broker": 1, "loadBalancerIP": "192.0.2.1", "annotations": {"mine": "yes"}}],
        "perBrokerAnnotationsTemplate": {"dns": "b{nodeId}.example.org", "pod": "{nodePodName}"},
        "perBrokerLabelsTemplate": {"id": "n{nodeId}"},
    }
    found = built(a_cluster(a_listener("loadbalancer", **configuration)))
    bootstrap, second = found["Service", "demo-bootstrap-ext"], found["Service", "demo-broker-1-ext"]
    for manifest in (bootstrap, second):
        spec = manifest["spec"]
        assert (spec["loadBalancerClass"], spec["loadBalancerSourceRanges"]) == ("cheap", ["10.0.0.0/8"])
        assert (spec["allocateLoadBalancerNodePorts"], spec["externalTrafficPolicy"]) == (False, "Local")
        assert (spec["ipFamilyPolicy"], spec["ipFamilies"]) == ("PreferDualStack", ["IPv6"])
        assert "publishNotReadyAddresses" not in spec
        assert manifest["metadata"]["finalizers"] == ["example.org/cleanup"]
    assert (bootstrap["spec"]["loadBalancerIP"], second["spec"]["loadBalancerIP"]) == (
        "192.0.2.9",
        "192.0.2.1",
    )
    assert bootstrap["metadata"]["labels"].items() >= {"a": "1", naming.CLUSTER_LABEL: "demo"}.items()
    assert bootstrap["metadata"]["annotations"]["b"] == "2"
    third = found["Service", "demo-broker-2-ext"]["metadata"]
    assert third["annotations"].items() >= {"dns": "b2.example.org", "pod": "demo-brokers-2"}.items()
    assert third["labels"]["id"] == "n2"
    # A broker's own ones are instead of the template, as in Strimzi.
    assert "dns" not in second["metadata"]["annotations"]
    assert second["metadata"]["annotations"]["mine"] == "yes"


def test_a_load_balancer_for_the_bootstrap_can_be_left_out() -> None:
    found = built(a_cluster(a_listener("loadbalancer", createBootstrapService=False)))
    assert {name for _, name in found} == {f"demo-broker-{n}-ext" for n in range(3)}


def test_an_ingress_passes_tls_through_to_the_service_of_its_broker() -> None:
    found = built(a_cluster(a_listener("ingress", tls=True, **HOSTS, **{"class": "nginx"})))
    assert sorted(kind for kind, _ in found) == ["Ingress"] * 4 + ["Service"] * 4
    ingress = found["Ingress", "demo-broker-2-ext"]
    assert ingress["metadata"]["annotations"]["nginx.ingress.kubernetes.io/ssl-passthrough"] == "true"
    (rule,) = ingress["spec"]["rules"]
    assert rule["host"] == "b2.example.org"
    assert rule["http"]["paths"][0]["backend"]["service"] == {
        "name": "demo-broker-2-ext",
        "port": {"number": 9094},
    }
    assert ingress["spec"]["tls"] == [{"hosts": ["b2.example.org"]}]
    assert ingress["spec"]["ingressClassName"] == "nginx"
    assert found["Service", "demo-broker-2-ext"]["spec"]["type"] == "ClusterIP"
    (bootstrap,) = found["Ingress", "demo-bootstrap-ext"]["spec"]["rules"]
    assert bootstrap["host"] == "kafka.example.org"


def test_a_tls_route_attaches_the_host_of_a_broker_to_the_gateway() -> None:
    route = built(a_cluster(a_listener("tlsroute", tls=True, **ROUTED)))["TLSRoute", "demo-broker-1-ext"]
    assert route["apiVersion"] == "gateway.networking.k8s.io/v1"
    assert route["spec"] == {
        "parentRefs": [{"name": "gateway", "namespace": "infra"}],
        "hostnames": ["b1.example.org"],
        "rules": [{"backendRefs": [{"name": "demo-broker-1-ext", "port": 9094}]}],
    }


def test_a_broker_without_a_host_has_no_route_yet() -> None:
    hosts = [{"broker": n, "host": f"b{n}.example.org"} for n in range(3)]
    cluster = a_cluster(a_listener("ingress", tls=True, bootstrap=HOSTS["bootstrap"], brokers=hosts))
    found = built(cluster, 0, 1, 2, 3)
    assert ("Service", "demo-broker-3-ext") in found
    assert ("Ingress", "demo-broker-3-ext") not in found
    with pytest.raises(AddressPending, match="ext has no host for broker 3"):
        external_access.advertised_addresses(cluster, 3, Listed(), {})


def test_peers_restrict_their_listener_only() -> None:
    peers = [{"podSelector": {"matchLabels": {"app": "shop"}}, "namespaceSelector": {}}]
    given = [{"name": "plain", "port": 9092}, {**a_listener("nodeport"), "networkPolicyPeers": peers}]
    policy = manifests_brokers.build_network_policy(a_cluster(*given), Images(operator_namespace="ops"))
    rules = {
        tuple(port["port"] for port in rule["ports"]): rule.get("from") for rule in policy["spec"]["ingress"]
    }
    assert rules[9092, manifests_brokers.METRICS_PORT] is None
    assert rules[9094,] == peers
    assert len(rules[listeners.REPLICATION_PORT,] or ()) == 2


def test_a_policy_without_open_ports_opens_none() -> None:
    """A rule without ports would open all."""
    given = {
        "name": "plain",
        "port": manifests_brokers.METRICS_PORT,
        "networkPolicyPeers": [{"podSelector": {}}],
    }
    policy = manifests_brokers.build_network_policy(a_cluster(given), Images())
    assert all(rule["ports"] and rule["from"] for rule in policy["spec"]["ingress"])


# ---- addresses

NODE = {
    "metadata": {"name": "a"},
    "status": {
        "addresses": [
            {"type": "Hostname", "address": "node-a"},
            {"type": "InternalIP", "address": "10.0.0.1"},
            {"type": "ExternalIP", "address": "203.0.113.1"},
        ]
    },
}


def a_service(name: str, spec: Manifest | None = None, **status: Any) -> Manifest:
    return {"metadata": {"name": name}, "spec": spec or {}, "status": status}


def of_node_port(port: int) -> Manifest:
    return {"type": "NodePort", "ports": [{"nodePort": port}]}


SERVICES = [
    a_service("demo-broker-1-ext", of_node_port(31001)),
    a_service("demo-bootstrap-ext", of_node_port(31100)),
]
BALANCED = [
    a_service("demo-broker-1-ext", loadBalancer={"ingress": [{"ip": "192.0.2.1"}]}),
    a_service("demo-bootstrap-ext", loadBalancer={"ingress": [{"hostname": "lb.example.org"}]}),
]
PODS = [{"metadata": {"name": f"demo-brokers-{n}"}, "spec": {"nodeName": "a"}} for n in range(2)]


@pytest.mark.parametrize(
    ("type_", "configuration", "services", "broker", "bootstrap"),
    [
        ("nodeport", {}, SERVICES, ("203.0.113.1", 31001), ("203.0.113.1", 31100)),
        (
            "nodeport",
            {"preferredNodePortAddressType": "InternalIP"},
            SERVICES,
            ("10.0.0.1", 31001),
            ("10.0.0.1", 31100),
        ),
        (
            "nodeport",
            {
                "brokers": [{"broker": 1, "advertisedHost": "vip"}],
                "advertisedPortTemplate": "9 + 9 * {nodeId}",
            },
            SERVICES,
            ("vip", 18),
            ("203.0.113.1", 31100),
        ),
        ("loadbalancer", {}, BALANCED, ("192.0.2.1", 9094), ("lb.example.org", 9094)),
        (
            "loadbalancer",
            {"advertisedHostTemplate": "{nodePodName}.example.org"},
            BALANCED[1:],
            ("demo-brokers-1.example.org", 9094),
            ("lb.example.org", 9094),
        ),
        ("cluster-ip", {}, [], ("demo-broker-1-ext.shop.svc", 9094), ("demo-bootstrap-ext.shop.svc", 9094)),
        (
            "cluster-ip",
            {"useServiceDnsDomain": True},
            [],
            ("demo-broker-1-ext.shop.svc.cluster.local", 9094),
            ("demo-bootstrap-ext.shop.svc.cluster.local", 9094),
        ),
        ("ingress", HOSTS, [], ("b1.example.org", 443), ("kafka.example.org", 443)),
        (
            "tlsroute",
            {**ROUTED, "advertisedPortTemplate": "8443"},
            [],
            ("b1.example.org", 8443),
            ("kafka.example.org", 443),
        ),
        (
            "internal",
            {"useServiceDnsDomain": True},
            [],
            ("demo-brokers-1.demo-brokers.shop.svc.cluster.local", 9094),
            ("demo-bootstrap.shop.svc.cluster.local", 9094),
        ),
        ("internal", {}, [], None, ("demo-bootstrap.shop.svc", 9094)),
    ],
)
def test_brokers_and_the_bootstrap_have_the_addresses_of_the_type(
    type_: str,
    configuration: Manifest,
    services: list[Manifest],
    broker: tuple[str, int] | None,
    bootstrap: tuple[str, int],
) -> None:
    cluster = a_cluster(a_listener(type_, tls=True, **configuration))
    listed = Listed.of({"Service": services, "Pod": PODS})
    nodes = {"a": NODE}
    assert external_access.advertised_addresses(cluster, 1, listed, nodes).get("ext") == broker
    (listener,) = cluster.spec.listeners
    assert external_access.bootstrap_addresses(cluster, listener, [0, 1], listed, nodes) == [bootstrap]


def test_a_known_address_stays_while_the_current_one_is_unknown() -> None:
    """A certificate that lost a name would break clients whose load balancer is only being created again."""
    cluster = a_cluster(a_listener("loadbalancer"), {**a_listener("cluster-ip"), "name": "two", "port": 9095})
    recorded = {naming.ADVERTISED_ANNOTATION: json.dumps({"ext": ["192.0.2.1", 9094], "old": ["x", 1]})}
    config = {"metadata": {"name": "demo-broker-1", "annotations": recorded}}
    found = external_access.known_addresses(cluster, 1, Listed.of({"ConfigMap": [config]}), {})
    assert found == {"ext": ("192.0.2.1", 9094), "two": ("demo-broker-1-two.shop.svc", 9095)}


# ---- on the API server


def put_node(sim: KubernetesSimulation) -> None:
    sim.api.put("Node", "a", {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}})


def give_node_ports(sim: KubernetesSimulation) -> None:
    for number, name in enumerate(sim.api.names("Service")):
        spec = sim.api.items["Service", name]["spec"]
        if spec.get("type") == "NodePort":
            spec["ports"][0].setdefault("nodePort", 30000 + number)


def ready_with(*given: Manifest, **spec: Any) -> KubernetesSimulation:
    sim = KubernetesSimulation()
    put_node(sim)
    sim.apply_cluster(listeners=list(given), **spec)
    sim.reconcile()
    give_node_ports(sim)
    sim.reconcile_until_ready()
    sim.reconcile()
    return sim


def listener_status(sim: KubernetesSimulation, name: str = "ext") -> Manifest:
    (found,) = [each for each in sim.status()["listeners"] if each["name"] == name]
    return dict(found)


def certificate_names(sim: KubernetesSimulation, broker: int) -> set[str]:
    pem = sim.api.items["Secret", "demo-brokers"]["data"][f"demo-brokers-{broker}.pem"]
    certificate = x509.load_pem_x509_certificate(Pair.of_pem(base64.b64decode(pem)).certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}


def test_the_bootstrap_servers_are_the_nodes_with_the_node_port_of_the_bootstrap() -> None:
    sim = ready_with(a_listener("nodeport"))
    port = sim.api.items["Service", "demo-bootstrap-ext"]["spec"]["ports"][0]["nodePort"]
    assert listener_status(sim)["bootstrapServers"] == f"10.0.0.1:{port}"


def test_node_ports_are_kept_when_all_services_are_deleted_at_once() -> None:
    sim = ready_with(a_listener("nodeport"))
    names = ["demo-bootstrap-ext", *(f"demo-broker-{n}-ext" for n in range(3))]
    before = {name: sim.api.items["Service", name]["spec"]["ports"][0]["nodePort"] for name in names}
    for name in names:
        sim.api.delete_resource("Service", name)
    sim.reconcile()
    assert before == {name: sim.api.items["Service", name]["spec"]["ports"][0]["nodePort"] for name in names}


def test_node_ports_of_a_cluster_of_an_older_operator_are_kept() -> None:
    sim = ready_with(a_listener("nodeport"))
    before = sim.api.items["Service", "demo-broker-1-ext"]["spec"]["ports"][0]["nodePort"]
    del sim.api.items["Service", "demo-bootstrap"]["metadata"]["annotations"][naming.NODE_PORTS_ANNOTATION]
    sim.api.delete_resource("Service", "demo-broker-1-ext")
    sim.reconcile()
    assert sim.api.items["Service", "demo-broker-1-ext"]["spec"]["ports"][0]["nodePort"] == before


def test_an_advertised_port_is_never_requested_as_a_node_port() -> None:
    sim = ready_with(a_listener("nodeport", advertisedPortTemplate="9000 + {nodeId}"))
    assert "EXT://10.0.0.1:9001" in sim.api.items["ConfigMap", "demo-broker-1"]["data"]["server.properties"]
    del sim.api.items["Service", "demo-bootstrap"]["metadata"]["annotations"][naming.NODE_PORTS_ANNOTATION]
    sim.api.delete_resource("Service", "demo-broker-1-ext")
    sim.reconcile()
    (port,) = sim.api.items["Service", "demo-broker-1-ext"]["spec"]["ports"]
    assert "nodePort" not in port


def test_certificates_have_the_names_by_which_clients_bootstrap_and_connect() -> None:
    names = {**HOSTS, "bootstrap": {"host": "kafka.example.org", "alternativeNames": ["kafka.other.org"]}}
    sim = ready_with(a_listener("ingress", tls=True, **names))
    assert {"kafka.example.org", "kafka.other.org", "b1.example.org"} <= certificate_names(sim, 1)
    assert "b2.example.org" not in certificate_names(sim, 1)
    names["bootstrap"]["alternativeNames"] = ["kafka.third.org"]
    sim.apply_cluster(listeners=[a_listener("ingress", tls=True, **names)])
    sim.reconcile()
    assert "kafka.third.org" in certificate_names(sim, 1)
    assert "kafka.other.org" not in certificate_names(sim, 1)


def test_certificates_have_the_node_of_each_broker_since_any_of_them_may_answer_the_bootstrap() -> None:
    sim = KubernetesSimulation()
    put_node(sim)
    sim.api.put("Node", "b", {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.2"}]}})
    sim.api.node_of = lambda pod: "b" if pod.endswith("-2") else "a"
    sim.apply_cluster(listeners=[a_listener("nodeport", tls=True)])
    sim.reconcile()
    give_node_ports(sim)
    sim.reconcile_until_ready()
    sim.reconcile_until(lambda: sim.condition("ConfigApplied")[0] == "True")
    sim.reconcile()
    assert {"10.0.0.1", "10.0.0.2"} <= certificate_names(sim, 0)
    port = sim.api.items["Service", "demo-bootstrap-ext"]["spec"]["ports"][0]["nodePort"]
    assert listener_status(sim)["bootstrapServers"] == f"10.0.0.1:{port},10.0.0.2:{port}"


@pytest.mark.parametrize("configuration", [{}, {"advertisedHostTemplate": "b{nodeId}.example.org"}])
def test_a_restart_changes_neither_certificates_nor_bootstrap_servers(configuration: Manifest) -> None:
    """While its pod is away, a broker has no node."""
    sim = KubernetesSimulation()
    put_node(sim)
    sim.api.put("Node", "b", {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.2"}]}})
    sim.api.node_of = lambda pod: "b" if pod.endswith("-2") else "a"
    sim.apply_cluster(listeners=[a_listener("nodeport", tls=True, **configuration)])
    sim.reconcile()
    give_node_ports(sim)
    sim.reconcile_until_ready()
    sim.reconcile_until(lambda: sim.condition("ConfigApplied")[0] == "True")
    sim.reconcile()
    secret, servers = sim.api.items["Secret", "demo-brokers"]["data"], listener_status(sim)
    settings = dict(sim.api.items["ConfigMap", "demo-broker-2"]["data"])
    del sim.api.items["Pod", "demo-brokers-2"]
    sim.reconcile_once()
    assert sim.api.items["Secret", "demo-brokers"]["data"] == secret
    assert sim.api.items["ConfigMap", "demo-broker-2"]["data"] == settings
    if not configuration:
        assert listener_status(sim) == servers
    sim.reconcile_until_ready()
    assert sim.api.items["Secret", "demo-brokers"]["data"] == secret


def test_a_bootstrap_without_an_address_is_reported_and_stops_nothing_else() -> None:
    sim = KubernetesSimulation()
    sim.apply_cluster(listeners=[a_listener("loadbalancer", advertisedHostTemplate="b{nodeId}")])
    sim.reconcile_until(lambda: sim.status().get("readyReplicas") == 3)
    sim.reconcile()
    assert sim.condition() == ("False", "AddressPending")
    assert sim.condition("Available")[0] == "True"
    (message,) = [c["message"] for c in sim.status()["conditions"] if c["type"] == "Ready"]
    assert message == "the bootstrap of listener ext: LoadBalancer demo-bootstrap-ext has no address yet"
    balancer = {"loadBalancer": {"ingress": [{"ip": "192.0.2.5"}]}}
    sim.api.items["Service", "demo-bootstrap-ext"]["status"] = balancer
    sim.reconcile_until_ready()
    assert listener_status(sim)["bootstrapServers"] == "192.0.2.5:9094"


@pytest.mark.parametrize("type_", ["cluster-ip", "nodeport", "ingress", "tlsroute"])
def test_a_converged_cluster_causes_no_writes(type_: str) -> None:
    configuration = {"ingress": HOSTS, "tlsroute": ROUTED}.get(type_, {})
    sim = ready_with(a_listener(type_, tls=True, **configuration))
    sim.api.calls.clear()
    sim.reconcile()
    assert sim.api.writes == []


def test_finalizers_of_a_load_balancer_come_back_and_those_of_its_provider_stay() -> None:
    sim = KubernetesSimulation()
    sim.apply_cluster(listeners=[a_listener("loadbalancer", finalizers=["example.org/cleanup"])])
    sim.reconcile()
    for name in sim.api.names("Service"):
        if sim.api.items["Service", name]["spec"].get("type") == "LoadBalancer":
            address = {"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}}
            sim.api.items["Service", name]["status"] = address
    sim.reconcile_until_ready()
    sim.reconcile()
    service = ("Service", "demo-broker-1-ext")

    def finalizers() -> list[str]:
        return list(sim.api.items[service]["metadata"].get("finalizers") or ())

    assert finalizers() == ["example.org/cleanup"]

    def add(item: Manifest) -> None:
        item["metadata"]["finalizers"] = ["example.org/cleanup", "provider/of-its-own"]

    sim.api.edit(*service, add)
    sim.api.calls.clear()
    assert sim.reconcile() == []
    assert sim.api.writes == []

    def remove(item: Manifest) -> None:
        item["metadata"]["finalizers"] = ["provider/of-its-own"]

    sim.api.edit(*service, remove)
    assert sim.reconcile() == ["repair Service demo-broker-1-ext: metadata.finalizers"]
    assert "example.org/cleanup" in finalizers()


@pytest.mark.parametrize(("type_", "kind"), [("ingress", "Ingress"), ("tlsroute", "TLSRoute")])
def test_routes_that_were_edited_or_deleted_are_restored(type_: str, kind: str) -> None:
    sim = ready_with(a_listener(type_, tls=True, **(ROUTED if type_ == "tlsroute" else HOSTS)))
    before = dict(sim.api.items[kind, "demo-broker-1-ext"]["spec"])

    def add(route: Manifest) -> None:
        route["spec"]["defaultBackend"] = {"service": {"name": "other"}}

    sim.api.edit(kind, "demo-broker-1-ext", add)
    sim.api.delete_resource(kind, "demo-bootstrap-ext")
    sim.reconcile()
    assert sim.api.items[kind, "demo-broker-1-ext"]["spec"] == before
    assert (kind, "demo-bootstrap-ext") in sim.api.items


def test_another_type_replaces_the_objects_of_the_former_one() -> None:
    sim = ready_with(a_listener("tlsroute", tls=True, **ROUTED))
    sim.apply_cluster(listeners=[a_listener("ingress", tls=True, **HOSTS)])
    sim.reconcile()
    assert not sim.api.names("TLSRoute")
    assert len(sim.api.names("Ingress")) == 4
    sim.apply_cluster(listeners=[{"name": "ext", "port": 9094, "tls": True}])
    sim.reconcile_until_ready()
    assert not sim.api.names("Ingress")
    assert not [name for name in sim.api.names("Service") if "ext" in name]


def test_a_broker_that_is_scaled_away_takes_its_route_along() -> None:
    sim = ready_with(a_listener("ingress", tls=True, **HOSTS))
    sim.apply_cluster(listeners=[a_listener("ingress", tls=True, **HOSTS)], replicas=2)
    sim.reconcile_until_ready()
    sim.reconcile()
    assert sim.api.names("Ingress") == ["demo-bootstrap-ext", "demo-broker-0-ext", "demo-broker-1-ext"]
    assert "demo-broker-2-ext" not in sim.api.names("Service")


def test_other_peoples_ingresses_stay() -> None:
    sim = ready_with(a_listener("ingress", tls=True, **HOSTS))
    sim.api.put("Ingress", "demo-broker-9-mine", {"metadata": {"labels": {naming.CLUSTER_LABEL: "demo"}}})
    sim.reconcile()
    assert "demo-broker-9-mine" in sim.api.names("Ingress")


def test_without_the_gateway_api_only_the_routes_are_missing() -> None:
    sim = KubernetesSimulation()
    sim.api.missing_kinds = {"TLSRoute"}
    plain = {"name": "plain", "port": 9092}
    sim.apply_cluster(listeners=[plain, a_listener("tlsroute", tls=True, **ROUTED)])
    sim.reconcile_until(lambda: sim.status().get("readyReplicas") == 3)
    sim.reconcile()
    assert sim.condition() == ("False", "TLSRouteNotAvailable")
    (message,) = [c["message"] for c in sim.status()["conditions"] if c["type"] == "Ready"]
    assert message == (
        "TLSRoute: the server could not find the requested resource; "
        "tlsroute needs the Gateway API, 1.5 or newer (gateway.networking.k8s.io/v1)"
    )
    assert sim.condition("Available")[0] == "True"
    assert "demo-broker-0-ext" in sim.api.names("Service")
    sim.api.missing_kinds = set()
    sim.reconcile_until_ready()
    assert len(sim.api.names("TLSRoute")) == 4


@pytest.mark.parametrize("missing", [True, False])
def test_kinds_that_a_cluster_does_not_use_need_not_exist(missing: bool) -> None:
    sim = KubernetesSimulation()
    sim.api.missing_kinds = {"TLSRoute"} if missing else set()
    refused = Forbidden(403, "Forbidden", "no")
    sim.api.fail = lambda verb, kind, name: refused if kind == "Ingress" else None
    sim.apply_cluster()
    sim.reconcile_until_ready()


def test_changed_addresses_roll_and_changed_peers_do_not() -> None:
    given = a_listener("cluster-ip")
    sim = ready_with(given)
    pods = [sim.api.items["Pod", f"demo-brokers-{n}"]["metadata"]["uid"] for n in range(3)]
    sim.apply_cluster(listeners=[{**given, "networkPolicyPeers": [{"podSelector": {}}]}])
    for _ in range(4):
        sim.reconcile()
    assert pods == [sim.api.items["Pod", f"demo-brokers-{n}"]["metadata"]["uid"] for n in range(3)]
    sim.api.max_unavailable = 0
    sim.apply_cluster(listeners=[a_listener("cluster-ip", advertisedHostTemplate="b{nodeId}.example.org")])
    sim.reconcile()
    sim.reconcile_until_ready()
    sim.reconcile_until(lambda: sim.condition("ConfigApplied")[0] == "True")
    for broker in range(3):
        settings = sim.api.items["ConfigMap", f"demo-broker-{broker}"]["data"]["server.properties"]
        assert f"EXT://b{broker}.example.org:9094" in settings
    assert sim.api.max_unavailable == 1


def test_addresses_of_an_internal_listener_that_are_taken_back_roll_too() -> None:
    sim = ready_with(a_listener("internal", useServiceDnsDomain=True))
    assert (
        "svc.cluster.local:9094" in sim.api.items["ConfigMap", "demo-broker-0"]["data"]["server.properties"]
    )
    sim.apply_cluster(listeners=[a_listener("internal")])
    sim.reconcile()
    sim.reconcile_until(lambda: sim.condition("ConfigApplied")[0] == "True" and sim.ready())
    for broker in range(3):
        settings = sim.api.items["ConfigMap", f"demo-broker-{broker}"]["data"]["server.properties"]
        assert "cluster.local" not in settings


def test_brokers_of_pools_have_access_too_and_lose_it_with_their_pool() -> None:
    given = a_listener("ingress", tls=True, **HOSTS)
    sim = KubernetesSimulation()
    sim.apply_cluster(listeners=[given])
    sim.api.apply_resource("BrokerPool", "fast", {"clusterRef": {"name": "demo"}, "replicas": 1})
    sim.reconcile_until(lambda: sim.status().get("readyReplicas") == 4 and sim.ready())
    sim.reconcile()
    service = sim.api.items["Service", "demo-broker-1000-ext"]["spec"]
    assert service["selector"]["statefulset.kubernetes.io/pod-name"] == "demo-broker-1000-0"
    (rule,) = sim.api.items["Ingress", "demo-broker-1000-ext"]["spec"]["rules"]
    assert rule["host"] == "b1000.example.org"
    settings = sim.api.items["ConfigMap", "demo-broker-1000"]["data"]["server.properties"]
    assert "EXT://b1000.example.org:443" in settings
    pem = base64.b64decode(sim.api.items["Secret", "demo-brokers"]["data"]["demo-broker-1000-0.pem"])
    certificate = x509.load_pem_x509_certificate(Pair.of_pem(pem).certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "b1000.example.org" in names.get_values_for_type(x509.DNSName)
    sim.api.apply_resource("BrokerPool", "fast", {"clusterRef": {"name": "demo"}, "replicas": 0})
    sim.reconcile_until(lambda: ("Ingress", "demo-broker-1000-ext") not in sim.api.items)
    assert ("Service", "demo-broker-1000-ext") not in sim.api.items


def test_a_cluster_whose_brokers_are_in_pools_needs_hosts_too() -> None:
    """Otherwise the API server would refuse what is accepted here: it does not know of the pools."""
    _, problems = parsed(a_listener("ingress", tls=True, bootstrap={"host": "k"}), replicas=0)
    assert problems == ["spec.listeners[0].configuration.hostTemplate: is required for ingress"]
