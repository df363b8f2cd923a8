"""The manifests of a cluster: the fields that other components rely on."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

from ottla.metadata.config import BrokerConfig
from ottla.metadata.zookeeper_access import ZooKeeperAccess
from ottla_operator.kubernetes import certificates, listeners, manifests_brokers, manifests_zookeeper, naming
from ottla_operator.kubernetes.manifests_common import Images, container_security, difference
from ottla_operator.kubernetes.zookeeper_planning import ServerStage, ZooKeeperSecurity
from ottla_operator.planning.cluster_secrets import plan_secrets
from ottla_operator.platform.interfaces import BrokerLaunch
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.loading import parse_resource
from ottla_operator.resources.pods import PodSpec

IMAGES = Images("ottla:1", "ottla:1", "Never", operator_namespace="ottla-system")
OPERATOR = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ottla-system"}},
    "podSelector": {"matchLabels": {"app.kubernetes.io/name": "ottla-operator"}},
}
LAUNCH = BrokerLaunch(
    "abc", {"num.io.threads": "4"}, {"num.io.threads": "4", "default.replication.factor": "3"}
)

SECURED = [{"name": "certified", "port": 9093, "tls": True, "authentication": {"type": "tls"}}]


def a_cluster(name: str = "demo", **spec: Any) -> BrokerCluster:
    metadata = {"name": name, "namespace": "shop", "uid": "u-1", "generation": 1}
    cluster, problems = parse_resource("BrokerCluster", metadata, {"replicas": 3, **spec})
    assert not problems
    assert isinstance(cluster, BrokerCluster)
    return cluster


def all_manifests(cluster: BrokerCluster) -> list[dict[str, Any]]:
    return [
        *manifests_zookeeper.build_all(cluster, IMAGES, ZooKeeperSecurity.of_new(cluster).servers),
        *manifests_brokers.build_children(cluster, IMAGES, under_replicated=False),
        broker_config(cluster, 0),
        manifests_brokers.build_stateful_set(cluster, IMAGES, 3, LAUNCH),
    ]


def broker_config(cluster: BrokerCluster, broker: int) -> dict[str, Any]:
    return manifests_brokers.build_broker_config(cluster, broker, LAUNCH, ZooKeeperSecurity.of_new(cluster))


def traits_of(cluster: BrokerCluster) -> dict[str, str]:
    return manifests_brokers.traits(cluster, IMAGES, ZooKeeperSecurity.of_new(cluster))


def pod_specs(cluster: BrokerCluster) -> list[dict[str, Any]]:
    sets = [m for m in all_manifests(cluster) if m["kind"] == "StatefulSet"]
    assert len(sets) == 2
    return [stateful_set["spec"]["template"]["spec"] for stateful_set in sets]


def properties_of(config_map: dict[str, Any]) -> dict[str, str]:
    lines = config_map["data"]["server.properties"].splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_every_object_is_named_labelled_and_owned_by_its_cluster() -> None:
    for manifest in all_manifests(a_cluster()):
        metadata = manifest["metadata"]
        assert metadata["namespace"] == "shop"
        assert metadata["name"].startswith("demo-")
        assert metadata["labels"][naming.CLUSTER_LABEL] == "demo"
        assert metadata["labels"][naming.MANAGED_BY] == naming.MANAGER
        assert metadata["ownerReferences"][0]["uid"] == "u-1"


def test_the_same_cluster_gives_the_same_manifests() -> None:
    assert all_manifests(a_cluster()) == all_manifests(a_cluster())


def test_no_two_objects_of_a_kind_have_the_same_name() -> None:
    names = [(m["kind"], m["metadata"]["name"]) for m in all_manifests(a_cluster())]
    assert len(names) == len(set(names))


def test_pods_have_the_restricted_security_context() -> None:
    for spec in pod_specs(a_cluster()):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        for container in spec["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_every_mount_has_its_volume() -> None:
    for spec in pod_specs(a_cluster()):
        volumes = {volume["name"] for volume in spec["volumes"]} | {"data"}
        for container in spec["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_the_settings_of_a_broker_are_valid() -> None:
    cluster = a_cluster()
    written = properties_of(broker_config(cluster, 2))
    config = BrokerConfig.from_properties(written)
    assert config.broker_id == 2
    assert config.get_int("num.io.threads") == 4
    assert [listener.name for listener in config.listeners] == ["REPLICATION", "PLAIN"]
    assert config.inter_broker_listener == "REPLICATION"
    advertised = {listener.name: listener.host for listener in config.advertised_listeners}
    assert advertised["PLAIN"] == "demo-brokers-2.demo-brokers.shop.svc"
    assert config.zookeeper_connect == manifests_zookeeper.connect_string(cluster, secure=False)


def test_a_pod_reads_the_settings_of_its_own_ordinal() -> None:
    cluster = a_cluster()
    stateful_set = manifests_brokers.build_stateful_set(cluster, IMAGES, 2, LAUNCH)
    spec = stateful_set["spec"]["template"]["spec"]
    config = next(volume for volume in spec["volumes"] if volume["name"] == "config")
    paths = {
        source["configMap"]["name"]: source["configMap"]["items"][0]["path"]
        for source in config["projected"]["sources"]
    }
    assert paths == {
        "demo-broker-0": "demo-brokers-0/server.properties",
        "demo-broker-1": "demo-brokers-1/server.properties",
    }
    assert "/etc/ottla/$(POD_NAME)/server.properties" in spec["containers"][0]["args"]


def test_every_broker_has_prometheus_annotations() -> None:
    cluster = a_cluster()
    template = manifests_brokers.build_stateful_set(cluster, IMAGES, 2, LAUNCH)["spec"]["template"]
    annotations = template["metadata"]["annotations"]
    (container,) = template["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    written = properties_of(broker_config(cluster, 1))
    config = BrokerConfig.from_properties(written)
    assert annotations["prometheus.io/path"] == "/metrics"
    assert (
        int(annotations["prometheus.io/port"]) == ports["tcp-prometheus"] == config.get_int("ottla.http.port")
    )
    policy = manifests_brokers.build_network_policy(cluster, IMAGES)
    assert ports["tcp-prometheus"] in [port["port"] for port in policy["spec"]["ingress"][0]["ports"]]


def test_a_listener_on_the_metrics_port_disables_metrics() -> None:
    cluster = a_cluster(listeners=[{"name": "plain", "port": manifests_brokers.METRICS_PORT}])
    template = manifests_brokers.build_stateful_set(cluster, IMAGES, 2, LAUNCH)["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert [port["name"] for port in container["ports"]] == ["replication", "plain"]
    assert "ottla.http.port" not in properties_of(broker_config(cluster, 1))


def test_only_the_operator_replaces_pods() -> None:
    for manifest in all_manifests(a_cluster()):
        if manifest["kind"] == "StatefulSet":
            assert manifest["spec"]["updateStrategy"] == {"type": "OnDelete"}
            assert manifest["spec"]["podManagementPolicy"] == "Parallel"


def test_brokers_have_dns_names_before_they_are_ready() -> None:
    service = manifests_brokers.build_headless_service(a_cluster())
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert "publishNotReadyAddresses" not in manifests_brokers.build_bootstrap_service(a_cluster())["spec"]


@pytest.mark.parametrize(("lagging", "allowed"), [(False, 1), (True, 0)])
def test_no_eviction_while_a_partition_is_under_replicated(lagging: bool, allowed: int) -> None:
    budget = manifests_brokers.build_disruption_budget(a_cluster(), under_replicated=lagging)
    assert budget["spec"]["maxUnavailable"] == allowed


def test_an_under_replicated_partition_overrides_the_budget_of_the_spec() -> None:
    cluster = a_cluster(template={"podDisruptionBudget": {"minAvailable": 2}})
    healthy = manifests_brokers.build_disruption_budget(cluster, under_replicated=False)["spec"]
    assert (healthy.get("minAvailable"), healthy.get("maxUnavailable")) == (2, None)
    lagging = manifests_brokers.build_disruption_budget(cluster, under_replicated=True)["spec"]
    assert (lagging.get("minAvailable"), lagging.get("maxUnavailable")) == (None, 0)


def test_only_brokers_and_the_operator_reach_the_inter_broker_listener() -> None:
    policy = manifests_brokers.build_network_policy(a_cluster(), IMAGES)
    rules = {rule["ports"][0]["port"]: rule for rule in policy["spec"]["ingress"]}
    assert "from" not in rules[9092]
    brokers = {"podSelector": {"matchLabels": naming.selector_labels("demo", naming.BROKER)}}
    assert rules[listeners.REPLICATION_PORT]["from"] == [brokers, OPERATOR]


@pytest.mark.parametrize(
    ("stage", "ports"),
    [(ServerStage.PLAIN, [2181]), (ServerStage.QUORUM_TLS, [2181, 2182]), (ServerStage.TLS, [2182])],
)
def test_only_brokers_and_the_operator_reach_zookeeper(stage: ServerStage, ports: list[int]) -> None:
    policy = manifests_zookeeper.build_network_policy(a_cluster(listeners=SECURED), IMAGES, stage)
    clients, servers = policy["spec"]["ingress"]
    selected = {
        component: {"podSelector": {"matchLabels": naming.selector_labels("demo", component)}}
        for component in (naming.BROKER, naming.ZOOKEEPER)
    }
    assert clients["from"] == [selected[naming.BROKER], OPERATOR]
    assert [port["port"] for port in clients["ports"]] == ports
    assert servers["from"] == [selected[naming.ZOOKEEPER]]
    assert [port["port"] for port in servers["ports"]] == [2888, 3888]


def test_an_operator_outside_of_a_pod_is_in_no_network_policy() -> None:
    policy = manifests_brokers.build_network_policy(a_cluster(), replace(IMAGES, operator_namespace=""))
    assert "namespaceSelector" not in str(policy)


def zoo_cfg(cluster: BrokerCluster, stage: ServerStage) -> dict[str, str]:
    """The configuration files of a server's container, by name."""
    config = manifests_zookeeper.build_config(cluster, stage)["data"]
    (container,) = manifests_zookeeper.build_stateful_set(cluster, IMAGES, stage, "")["spec"]["template"][
        "spec"
    ]["containers"]
    file = container["args"][2].rpartition("/")[2]
    return dict(line.split("=", 1) for line in config[file].splitlines())


def test_zookeeper_of_a_secured_cluster_trusts_only_the_cluster_authority() -> None:
    cluster = a_cluster(listeners=SECURED)
    stage = ZooKeeperSecurity.of_new(cluster).servers
    found = zoo_cfg(cluster, stage)
    assert "clientPort" not in found
    assert (found["secureClientPort"], found["ssl.clientAuth"]) == ("2182", "need")
    assert (found["sslQuorum"], found["portUnification"], found["ssl.quorum.clientAuth"]) == (
        "true",
        "false",
        "need",
    )
    assert found["X509AuthenticationProvider.superUser"] == "CN=demo-operator,O=ottla.dev"
    spec = manifests_zookeeper.build_stateful_set(cluster, IMAGES, stage, "")["spec"]["template"]["spec"]
    (volume,) = [v for v in spec["volumes"] if v["name"] == "certificates"]
    planned = plan_secrets(
        cluster, {}, {}, 0, os.urandom, zookeeper=manifests_zookeeper.server_names(cluster)
    ).data
    there = {}
    for source in volume["projected"]["sources"]:
        data = planned[source["secret"]["name"]]
        items = source["secret"].get("items") or [{"key": entry, "path": entry} for entry in data]
        there |= {f"/etc/ottla-certificates/{item['path']}": data[item["key"]] for item in items}
    for prefix in ("ssl", "ssl.quorum"):
        assert there[found[f"{prefix}.keyStore.location"]] == planned["demo-zookeeper"]["zookeeper.pem"]
        trusted = there[found[f"{prefix}.trustStore.location"]]
        store = load_pkcs12(trusted, found[f"{prefix}.trustStore.password"].encode())
        (only,) = [each.certificate.public_bytes(Encoding.PEM) for each in store.additional_certs]
        assert only == planned["demo-cluster-ca-cert"]["ca.crt"]
    assert planned["demo-clients-ca-cert"]["ca.crt"] not in there.values()


def test_a_broker_of_a_secured_cluster_connects_to_zookeeper_with_its_certificate_and_sets_acls() -> None:
    cluster = a_cluster(listeners=SECURED)
    config = BrokerConfig.from_properties(properties_of(broker_config(cluster, 1)))
    access = ZooKeeperAccess.of(config, {})
    assert access.secure_acls
    assert access.tls is not None
    assert access.tls.keystore_location == "/etc/ottla-certificates/demo-brokers-1.pem"
    assert config.zookeeper_connect == manifests_zookeeper.connect_string(cluster, secure=True)
    assert config.zookeeper_connect.count(":2182") == 3


def test_settings_of_an_external_zookeeper_are_used() -> None:
    cluster = a_cluster(listeners=SECURED, zookeeper={"connect": "zk:2181"})
    assert ZooKeeperSecurity.of_new(cluster) == ZooKeeperSecurity()
    assert not [name for name in properties_of(broker_config(cluster, 1)) if "zookeeper.ssl" in name]


def test_zoo_cfg_lists_all_servers_and_brokers_connect_to_all() -> None:
    cluster = a_cluster(zookeeper={"managed": {"replicas": 3}})
    config = manifests_zookeeper.build_config(cluster, ServerStage.PLAIN)["data"]["zoo.cfg"]
    servers = [line for line in config.splitlines() if line.startswith("server.")]
    assert servers[0] == "server.1=demo-zookeeper-0.demo-zookeeper.shop.svc:2888:3888"
    assert len(servers) == 3
    assert manifests_zookeeper.connect_string(cluster, secure=False).count(":2181") == 3


def test_an_external_zookeeper_is_connected_to_as_given() -> None:
    cluster = a_cluster(zookeeper={"connect": "zk:2181/kafka"})
    assert manifests_zookeeper.connect_string(cluster, secure=False) == "zk:2181/kafka"


@pytest.mark.parametrize(
    ("change", "traits_changed"),
    [
        ({"image": "ottla:2"}, {"image"}),
        ({"resources": {"requests": {"cpu": "1"}}}, {"pod template"}),
        ({"template": {"pod": {"spec": {"nodeSelector": {"disk": "ssd"}}}}}, {"pod template"}),
        ({"template": {"pod": {"metadata": {"annotations": {"restarted": "now"}}}}}, {"pod template"}),
        ({"listeners": [{"name": "plain", "port": 9095}]}, {"listeners", "pod template"}),
        ({"zookeeper": {"connect": "zk:2181"}}, {"zookeeper.connect"}),
        ({"replicas": 5}, set()),
        ({"storage": {"size": "20Gi"}}, set()),
    ],
)
def test_changes_that_need_a_bounce_change_their_trait(
    change: dict[str, Any], traits_changed: set[str]
) -> None:
    before = traits_of(a_cluster())
    after = traits_of(a_cluster(**change))
    assert {name for name in before if before[name] != after[name]} == traits_changed


_OF_PODS: dict[str, Any] = {
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "kafka", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [{"maxSkew": 1}],
    "priorityClassName": "high",
    "serviceAccountName": "mine",
    "schedulerName": "mine",
    "imagePullSecrets": [{"name": "of-the-registry"}],
    "terminationGracePeriodSeconds": 60,
    "volumes": [{"name": "zones", "emptyDir": {}}],
    "containers": [{"name": "broker", "env": [{"name": "TZ", "value": "UTC"}]}],
    "initContainers": [{"name": "first", "image": "first:1"}],
}
"""A value of each field of a pod template."""


def test_each_field_of_the_pod_template_needs_a_bounce() -> None:
    assert {field.alias or name for name, field in PodSpec.model_fields.items()} == set(_OF_PODS)
    templates = [{"spec": {name: value}} for name, value in _OF_PODS.items()]
    templates += [{"metadata": {kind: {"team": "data"}}} for kind in ("labels", "annotations")]
    specs: list[dict[str, Any]] = [{"template": {"pod": template}} for template in templates]
    specs.append({"template": {"topologySpreadConstraints": [{"maxSkew": 1}]}})
    images = replace(IMAGES, allow_sidecars=True)
    none = ZooKeeperSecurity()
    before = manifests_brokers.traits(a_cluster(), images, none)
    for spec in specs:
        after = manifests_brokers.traits(a_cluster(**spec), images, none)
        assert [name for name in after if after[name] != before.get(name)] == ["pod template"], spec


def test_the_rack_of_the_nodes_needs_a_bounce_also_with_constraints_of_the_users_own() -> None:
    constraints = {"topologySpreadConstraints": [{"maxSkew": 1}]}
    zones, rooms = (
        traits_of(a_cluster(rack={"topologyKey": key}, template=constraints)) for key in ("zone", "room")
    )
    assert [name for name in rooms if rooms[name] != zones[name]] == ["rack"]


WITH_A_SIDECAR = {
    "metadata": {"labels": {"team": "data"}},
    "spec": {
        "volumes": [{"name": "zones", "configMap": {"name": "zones"}}],
        "containers": [
            {
                "name": "broker",
                "env": [{"name": "TZ", "value": "UTC"}],
                "volumeMounts": [{"name": "zones", "mountPath": "/etc/zones"}],
            },
            {"name": "sidecar", "image": "busybox"},
        ],
        "initContainers": [{"name": "first", "image": "busybox"}],
    },
}


@pytest.mark.parametrize("allowed", [True, False])
def test_a_pod_template_is_merged_and_sidecars_only_if_allowed(allowed: bool) -> None:
    images = replace(IMAGES, allow_sidecars=allowed)
    template = manifests_brokers.broker_template(
        a_cluster(template={"pod": WITH_A_SIDECAR}), images, range(1)
    )
    spec = template["spec"]
    broker, *sidecars = spec["containers"]
    assert broker["image"] == "ottla:1"
    assert [variable["name"] for variable in broker["env"]] == ["POD_NAME", "TZ"]
    assert broker["volumeMounts"][-1] == {"name": "zones", "mountPath": "/etc/zones"}
    assert spec["volumes"][-1] == {"name": "zones", "configMap": {"name": "zones"}}
    assert template["metadata"]["labels"]["team"] == "data"
    assert template["metadata"]["labels"][naming.CLUSTER_LABEL] == "demo"
    added = [*sidecars, *spec.get("initContainers", [])]
    assert [each["name"] for each in added] == (["sidecar", "first"] if allowed else [])
    for each in added:
        assert each["securityContext"] == container_security()
    assert spec["automountServiceAccountToken"] is False


def test_a_disruption_budget_of_the_spec_selects_only_brokers() -> None:
    cluster = a_cluster(template={"podDisruptionBudget": {"maxUnavailable": "20%"}})
    budget = manifests_brokers.build_disruption_budget(cluster, under_replicated=False)["spec"]
    selector = {"matchLabels": naming.selector_labels("demo", naming.BROKER)}
    assert budget == {"maxUnavailable": "20%", "selector": selector}


PORT_NAME = re.compile(r"^(?=.*[a-z])[a-z0-9]([a-z0-9]|-(?=[a-z0-9]))*$")


def port_names(*listeners: str) -> list[str]:
    """The names of the broker's container ports for these listeners."""
    given = [{"name": name, "port": 9100 + n} for n, name in enumerate(listeners)]
    manifest = manifests_brokers.build_stateful_set(a_cluster(listeners=given), IMAGES, 3, LAUNCH)
    ports = manifest["spec"]["template"]["spec"]["containers"][0]["ports"]
    return [port["name"] for port in ports][1 : 1 + len(listeners)]


@pytest.mark.parametrize(
    "names",
    [
        ["aaaaaaaaaaaaaa-b"],
        ["9092"],
        ["1234567890123456"],
        ["a--b"],
        ["abcdefghijklmno-one", "abcdefghijklmno-two"],
        ["abcdefghijklmno", "abcdefghijklmno-two"],
        ["a" * 63, "a" * 62],
        ["replication-of-others", "tcp-prometheus-2"],
    ],
)
def test_any_listener_name_has_a_port_name(names: list[str]) -> None:
    """Kubernetes refuses a StatefulSet with others."""
    found = port_names(*names)
    assert len({*found, "replication", "tcp-prometheus"}) == len(names) + 2
    for name in found:
        assert len(name) <= 15
        assert PORT_NAME.match(name), name


def test_port_names_that_were_valid_stay() -> None:
    """They are part of the pod template: a change would restart the brokers."""
    assert port_names("plain", "tls", "a-listener-of-many") == ["plain", "tls", "a-listener-of-m"]
    assert port_names("plain", "9092")[0] == "plain"


def test_the_files_of_a_secured_brokers_settings_are_in_its_pod() -> None:
    cluster = a_cluster(listeners=SECURED, authorization={"type": "simple"})
    written = properties_of(broker_config(cluster, 2))
    config = BrokerConfig.from_properties(written)
    assert {listener.name: listener.protocol for listener in config.listeners} == {
        "REPLICATION": "SSL",
        "CERTIFIED": "SSL",
    }
    spec = manifests_brokers.broker_template(cluster, IMAGES, range(3))["spec"]
    (mount,) = [m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "certificates"]
    (volume,) = [v for v in spec["volumes"] if v["name"] == "certificates"]
    assert volume["projected"] == {"sources": [{"secret": {"name": "demo-brokers"}}]}
    there = plan_secrets(cluster, {"demo-brokers-2": ["a"]}, {}, 0, os.urandom).data["demo-brokers"]
    named = {value for name, value in written.items() if name.endswith("store.location")}
    assert named == {f"{mount['mountPath']}/{path}" for path in there}


def test_super_users_are_a_trait_and_certificate_lifetimes_are_not() -> None:
    def traits(**more: Any) -> dict[str, str]:
        return traits_of(a_cluster(listeners=SECURED, **more))

    assert traits(clusterCa={"validityDays": 90}) == traits()
    assert traits(authorization={"type": "simple"}) != traits()


def test_a_broker_certificate_has_the_names_that_clients_use() -> None:
    names = certificates.broker_names(a_cluster(), 1, {"outside": ("192.0.2.7", 31000)})
    assert {
        *("demo-bootstrap", "demo-bootstrap.shop", "demo-bootstrap.shop.svc"),
        *("demo-bootstrap.shop.svc.cluster.local", "192.0.2.7"),
        *("demo-brokers-1.demo-brokers.shop.svc", "demo-brokers-1.demo-brokers.shop.svc.cluster.local"),
    } <= set(names)


def test_the_status_has_bootstrap_servers_and_certificates_of_each_listener() -> None:
    cluster = a_cluster(
        listeners=[
            {"name": "plain", "port": 9092},
            {"name": "out", "port": 9094, "type": "nodeport", "tls": True},
        ]
    )
    bootstrap = {"plain": [("demo-bootstrap.shop.svc", 9092)], "out": [("10.0.0.1", 30001), ("::1", 30001)]}
    plain, out = listeners.listener_statuses(cluster, bootstrap, lambda listener: b"PEM")
    assert (plain.bootstrap_servers, plain.certificates) == ("demo-bootstrap.shop.svc:9092", [])
    assert (out.bootstrap_servers, out.certificates) == ("10.0.0.1:30001,[::1]:30001", ["PEM"])


@pytest.mark.parametrize("name", ["x" * 41, "1st", "with.dot"])
def test_cluster_names_that_are_invalid_for_services_are_rejected(name: str) -> None:
    assert naming.name_problem(name)
    assert not naming.name_problem("x" * 40)


def test_fields_added_by_the_api_server_are_no_difference() -> None:
    wanted = {"spec": {"ports": [{"port": 1}], "cpu": "1000Mi", "empty": {}}}
    live = {"spec": {"ports": [{"port": 1, "nodePort": 3}], "cpu": "1000Mi", "empty": {}, "more": 1}}
    assert difference(live, wanted) == ""


@pytest.mark.parametrize(
    ("live", "wanted", "path"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 2}}, ".a.b"),
        ({"a": {}}, {"a": {"b": 2}}, ".a.b"),
        ({"a": [1, 2]}, {"a": [1]}, ".a"),
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, ".a[0].b"),
        ({"a": "1Gi"}, {"a": "2Gi"}, ".a"),
    ],
)
def test_the_field_that_differs_is_named(live: Any, wanted: Any, path: str) -> None:
    assert difference(live, wanted) == path


def test_equal_quantities_are_no_difference_however_they_are_written() -> None:
    assert difference({"a": "1Gi"}, {"a": "1024Mi"}) == ""
