"""The brokers' manifests: ConfigMaps, StatefulSet, Services, disruption budget, policy and account.

Pure. A StatefulSet has one template, so every pod mounts the ConfigMaps of all brokers and reads its own: a
pod that restarts outside its turn in a roll has its previous settings. Only the operator replaces pods
(OnDelete); all start at the same time (Parallel).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

from ottla_operator.kubernetes import certificates, naming
from ottla_operator.kubernetes.listeners import (
    CERTIFICATES_DIR,
    METRICS_NAME,
    REPLICATION_PORT,
    Advertised,
    bootstrap_host,
    client_ports,
    listener_settings,
)
from ottla_operator.kubernetes.manifests_common import (
    Images,
    Manifest,
    build,
    claim_template,
    container_ports,
    container_security,
    digest,
    exec_probe,
    headless_service,
    merge_template,
    operator_peers,
    pod_security,
    service_ports,
    spread_over,
)
from ottla_operator.kubernetes.manifests_zookeeper import connect_string
from ottla_operator.kubernetes.observing import Object
from ottla_operator.kubernetes.zookeeper_planning import SET_ACL, BrokerStage, ZooKeeperSecurity
from ottla_operator.planning.cluster_secrets import CLUSTER_CA
from ottla_operator.planning.listener_security import listeners_of
from ottla_operator.planning.revision import RESTART
from ottla_operator.planning.volumes import log_dir_name
from ottla_operator.platform.interfaces import BrokerLaunch
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.listeners import as_manifest
from ottla_operator.resources.pods import RESTARTED_ANNOTATION
from ottla_operator.resources.storage import DEFAULT_SIZE

_STATE_FILE: Final = "/run/ottla/state"
_DATA_DIR: Final = "/var/lib/ottla"
_VOLUMES_DIR: Final = "/var/lib/ottla-volumes"
"""Of the volumes besides volume 0."""

# Log recovery of terabytes may take this long.
_STARTUP_HOURS_MAX: Final = 12
_STARTUP_PERIOD_S: Final = 2
# A controlled shutdown takes a second or two. It cannot succeed after ZooKeeper has stopped, as when the
# namespace is deleted. spec.template.pod may set more, for a broker with very many partitions.
_TERMINATION_GRACE_S: Final = 30
METRICS_PORT: Final = 9404
"""The port of /metrics, /healthz and /readyz, unless a listener uses it; the same as Strimzi's."""
_DEFAULT_RESOURCES: Final[Mapping[str, Any]] = {"requests": {"cpu": "100m", "memory": "256Mi"}}


def traits(cluster: BrokerCluster, images: Images, zookeeper: ZooKeeperSecurity) -> dict[str, str]:
    """The parts of a broker's revision besides its settings, by the name that a restart reason has: the whole
    pod template, of which the number of brokers is no part, and all settings that the operator writes."""
    template = broker_template(cluster, images, range(1))
    for container in template["spec"]["containers"]:
        if container["name"] == "broker":
            container.pop("image")
    return {
        "image": broker_image(cluster, images),
        "listeners": digest(listener_settings(cluster, 0, {})),
        "server.properties": digest(_own_properties(cluster, 0, zookeeper)),
        "pod template": digest(template),
        "zookeeper.connect": brokers_connect(cluster, zookeeper),
        **({"rack": cluster.spec.rack.topology_key} if cluster.spec.rack is not None else {}),
        **({SET_ACL: "true"} if zookeeper.brokers == BrokerStage.ACLS else {}),
    }


def brokers_connect(cluster: BrokerCluster, zookeeper: ZooKeeperSecurity) -> str:
    """zookeeper.connect of the brokers in their current stage."""
    return connect_string(cluster, secure=zookeeper.brokers > BrokerStage.PLAIN)


def broker_image(cluster: BrokerCluster, images: Images) -> str:
    return cluster.spec.image or images.broker


# ---- settings


def broker_properties(
    cluster: BrokerCluster,
    broker: int,
    launch: BrokerLaunch,
    advertised: Advertised,
    zookeeper: ZooKeeperSecurity,
) -> dict[str, str]:
    """All of one broker's settings."""
    return {
        **launch.properties,
        **listener_settings(cluster, broker, advertised),
        "zookeeper.connect": brokers_connect(cluster, zookeeper),
        **_own_properties(cluster, broker, zookeeper),
    }


def _own_properties(cluster: BrokerCluster, broker: int, zookeeper: ZooKeeperSecurity) -> dict[str, str]:
    """The settings that the operator writes, besides listeners and zookeeper.connect."""
    return {
        "broker.id": str(broker),
        **_zookeeper_access(cluster, broker, zookeeper.brokers),
        "log.dirs": ",".join(f"{path}/{name}" for name, path in _mounts(cluster.of_broker(broker)).items()),
        **({"ottla.http.port": str(METRICS_PORT)} if _serves_metrics(cluster) else {}),
    }


def _mounts(cluster: BrokerCluster) -> dict[str, str]:
    """The mount path of each volume of a broker. A volume, its mount and its log directory have one name."""
    return {
        log_dir_name(each.id): _DATA_DIR if each.id == 0 else f"{_VOLUMES_DIR}/{each.id}"
        for each in cluster.spec.storage.all_volumes
    }


def _zookeeper_access(cluster: BrokerCluster, broker: int, stage: BrokerStage) -> dict[str, str]:
    """Settings for ZooKeeper over TLS, with the certificate of the inter-broker listener."""
    if stage == BrokerStage.PLAIN:
        return {}
    pem = f"{naming.broker_pod(cluster.metadata.name, broker)}.pem"
    return {
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
        "zookeeper.ssl.keystore.type": "PEM",
        "zookeeper.ssl.keystore.location": f"{CERTIFICATES_DIR}/{pem}",
        "zookeeper.ssl.truststore.type": "PEM",
        "zookeeper.ssl.truststore.location": f"{CERTIFICATES_DIR}/{CLUSTER_CA}",
        **({SET_ACL: "true"} if stage == BrokerStage.ACLS else {}),
    }


def _serves_metrics(cluster: BrokerCluster) -> bool:
    return METRICS_PORT not in client_ports(cluster).values()


def build_broker_config(
    cluster: BrokerCluster,
    broker: int,
    launch: BrokerLaunch,
    zookeeper: ZooKeeperSecurity,
    *,
    advertised: Advertised | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """`annotations`: additional ones, such as those for a pod that still runs with the previous settings."""
    properties = broker_properties(cluster, broker, launch, advertised or {}, zookeeper)
    lines = [f"{name}={_escaped(value)}" for name, value in properties.items()]
    all_annotations = {
        naming.HASH_ANNOTATION: launch.config_hash,
        naming.SETTINGS_ANNOTATION: json.dumps(dict(launch.static), sort_keys=True),
        **(annotations or {}),
    }
    return build(
        cluster,
        "v1",
        "ConfigMap",
        naming.broker_config(cluster.metadata.name, broker),
        naming.BROKER,
        {"data": {naming.PROPERTIES: "\n".join(lines) + "\n"}},
        all_annotations,
        _pool_labels(cluster, broker),
    )


def _pool_labels(cluster: BrokerCluster, broker: int) -> dict[str, str]:
    """The labels of the objects of a BrokerPool's broker; {} for a broker of the cluster's own pool."""
    pool = cluster.pool_of(broker)
    return {} if pool is None else {naming.POOL_LABEL: pool.name, naming.BROKER_LABEL: str(broker)}


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\")


# ---- pods


def broker_template(cluster: BrokerCluster, images: Images, brokers: Collection[int]) -> Manifest:
    """The pod template of these brokers, with the spec's template merged into it."""
    name = cluster.metadata.name
    template = {
        "metadata": {"labels": naming.labels(name, naming.BROKER), **_scrape_annotations(cluster)},
        "spec": {
            "serviceAccountName": naming.brokers_name(name),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": pod_security(),
            "terminationGracePeriodSeconds": _TERMINATION_GRACE_S,
            "topologySpreadConstraints": _spread(cluster),
            "containers": [_container(cluster, images)],
            "volumes": [
                {"name": "config", "projected": {"sources": _config_sources(name, brokers)}},
                {"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
                {"name": "tmp", "emptyDir": {}},
                *([_RACK_VOLUME] if cluster.spec.rack is not None else []),
                *([certificates.volume(name)] if cluster.spec.is_secured else []),
            ],
        },
    }
    merged = merge_template(template, cluster.spec.template.pod, allow_sidecars=images.allow_sidecars)
    # A request (`planning.restarts`), whose removal restarts nothing.
    merged["metadata"].get("annotations", {}).pop(RESTARTED_ANNOTATION, None)
    return merged


def _scrape_annotations(cluster: BrokerCluster) -> Manifest:
    if not _serves_metrics(cluster):
        return {}
    scrape = {"scrape": "true", "port": str(METRICS_PORT), "path": "/metrics"}
    return {"annotations": {f"prometheus.io/{name}": value for name, value in scrape.items()}}


def _config_sources(cluster: str, brokers: Collection[int]) -> list[Manifest]:
    """Each broker's settings in a directory of its pod's name. A missing ConfigMap affects its own broker
    only."""
    return [
        {
            "configMap": {
                "name": naming.broker_config(cluster, broker),
                "optional": True,
                "items": [
                    {
                        "key": naming.PROPERTIES,
                        "path": f"{naming.broker_pod(cluster, broker)}/{naming.PROPERTIES}",
                    }
                ],
            }
        }
        for broker in brokers
    ]


def _container(cluster: BrokerCluster, images: Images) -> Manifest:
    ports = {"replication": REPLICATION_PORT, **client_ports(cluster)}
    if _serves_metrics(cluster):
        ports[METRICS_NAME] = METRICS_PORT
    racked = cluster.spec.rack is not None
    arguments = [
        "broker",
        "--config",
        f"{naming.CONFIG_DIR}/$(POD_NAME)/{naming.PROPERTIES}",
        "--state-file",
        _STATE_FILE,
    ]
    return {
        "name": "broker",
        "image": broker_image(cluster, images),
        "imagePullPolicy": images.pull_policy,
        **({"command": _rack_command(arguments)} if racked else {"args": arguments}),
        "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "ports": container_ports(ports),
        "resources": cluster.spec.resources or dict(_DEFAULT_RESOURCES),
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "startupProbe": exec_probe(
            ["grep", "-q", "ready", _STATE_FILE],
            period_s=_STARTUP_PERIOD_S,
            failures=_STARTUP_HOURS_MAX * 3600 // _STARTUP_PERIOD_S,
        ),
        "readinessProbe": exec_probe(["grep", "-q", "ready", _STATE_FILE], period_s=3, failures=2),
        # The event loop writes the file every second: an old one means that the loop is blocked.
        "livenessProbe": exec_probe(
            ["sh", "-c", f"find {_STATE_FILE} -mmin -1 | grep -q ."], period_s=20, failures=3
        ),
        "volumeMounts": [
            *({"name": name, "mountPath": path} for name, path in _mounts(cluster).items()),
            {"name": "config", "mountPath": naming.CONFIG_DIR, "readOnly": True},
            {"name": "run", "mountPath": "/run/ottla"},
            {"name": "tmp", "mountPath": "/tmp"},
            *([_RACK_MOUNT] if racked else []),
            *([certificates.MOUNT] if cluster.spec.is_secured else []),
        ],
    }


def _spread(cluster: BrokerCluster) -> list[Manifest]:
    """The spec's constraints; by default, racks and nodes are balanced where possible."""
    given = cluster.spec.template.topology_spread_constraints
    selector = {"matchLabels": naming.selector_labels(cluster.metadata.name, naming.BROKER)}
    if given:
        return [{"labelSelector": selector, **constraint} for constraint in given]
    keys = ["kubernetes.io/hostname"]
    if cluster.spec.rack is not None and cluster.spec.rack.topology_key not in keys:
        keys.insert(0, cluster.spec.rack.topology_key)
    return [spread_over(key, selector) for key in keys]


def build_stateful_set(
    cluster: BrokerCluster, images: Images, replicas: int, launch: BrokerLaunch
) -> Manifest:
    """The StatefulSet of the cluster's own pool. `launch`: of the revision of its template."""
    return _stateful_set(
        cluster, images, naming.brokers_name(cluster.metadata.name), range(replicas), replicas, launch, {}
    )


def build_broker_set(
    cluster: BrokerCluster, images: Images, broker: int, replicas: int, launch: BrokerLaunch
) -> Manifest:
    """The StatefulSet of one broker of a BrokerPool. Its pod has a DNS name of the headless Service of all
    brokers. `replicas`: 0 or 1."""
    name, labels = naming.broker_set(cluster.metadata.name, broker), _pool_labels(cluster, broker)
    assert labels, f"broker {broker} belongs to a BrokerPool"
    return _stateful_set(cluster.of_broker(broker), images, name, [broker], replicas, launch, labels)


def _stateful_set(
    cluster: BrokerCluster,
    images: Images,
    name: str,
    brokers: Collection[int],
    replicas: int,
    launch: BrokerLaunch,
    labels: Mapping[str, str],
) -> Manifest:
    """`labels`: of the set and its pods and claims, besides those of all brokers. A restart has the
    annotation of `kubectl rollout restart`, which the operator would undo otherwise."""
    template = broker_template(cluster, images, brokers)
    template["metadata"]["labels"] = {**template["metadata"]["labels"], **labels}
    if RESTART in launch.static:
        annotations = template["metadata"].setdefault("annotations", {})
        annotations[naming.RESTARTED_AT_ANNOTATION] = launch.static[RESTART]
    selected = naming.selector_labels(cluster.metadata.name, naming.BROKER)
    spec = {
        "replicas": replicas,
        "serviceName": naming.brokers_name(cluster.metadata.name),
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "selector": {"matchLabels": {**selected, **labels}},
        "template": template,
        "volumeClaimTemplates": [
            claim_template(each.size or DEFAULT_SIZE, each.storage_class, name=log_dir_name(each.id))
            for each in cluster.spec.storage.all_volumes
        ],
    }
    of_set = {naming.HASH_ANNOTATION: launch.config_hash}
    return build(cluster, "apps/v1", "StatefulSet", name, naming.BROKER, {"spec": spec}, of_set, labels)


# ---- racks: the rack label of a pod's node becomes `broker.rack`
#
# A pod cannot read the labels of its node. The operator writes the label into an annotation of the pod, which
# a volume of the downward API shows as a file; the container waits for this file before it starts the broker.

_RACK_DIR: Final = "/etc/pod"
_RACK_VOLUME: Final[Manifest] = {
    "name": "pod",
    "downwardAPI": {
        "items": [
            {
                "path": "rack",
                "fieldRef": {"fieldPath": f"metadata.annotations['{naming.RACK_ANNOTATION}']"},
            }
        ]
    },
}
_RACK_MOUNT: Final[Manifest] = {"name": "pod", "mountPath": _RACK_DIR, "readOnly": True}


def _rack_command(arguments: list[str]) -> list[str]:
    """The container's command: waits for the rack's file, then executes the broker with `arguments`."""
    script = (
        f"until [ -s {_RACK_DIR}/rack ]; do sleep 0.2; done; rack=$(cat {_RACK_DIR}/rack); "
        f'[ "$rack" = {naming.NO_RACK} ] || set -- "$@" --override "broker.rack=$rack"; exec ottla "$@"'
    )
    return ["/usr/bin/tini", "--", "sh", "-c", script, "ottla", *arguments]


def build_rack_patch(pod: Object, nodes: Mapping[str, Object], topology_key: str) -> Manifest:
    """The patch that annotates a pod with the rack of its node."""
    node = nodes.get(str(pod["spec"]["nodeName"]), {})
    labels = (node.get("metadata") or {}).get("labels") or {}
    return {"metadata": {"annotations": {naming.RACK_ANNOTATION: labels.get(topology_key) or naming.NO_RACK}}}


# ---- Services, policies and the account


def build_headless_service(cluster: BrokerCluster) -> Manifest:
    """DNS names of the brokers, also of those not ready: brokers connect to each other before they are
    ready."""
    ports = {"replication": REPLICATION_PORT, **client_ports(cluster)}
    spec = headless_service(naming.selector_labels(cluster.metadata.name, naming.BROKER), ports)
    name = naming.brokers_name(cluster.metadata.name)
    return build(cluster, "v1", "Service", name, naming.BROKER, {"spec": spec})


def build_bootstrap_service(cluster: BrokerCluster, annotations: Mapping[str, str] | None = None) -> Manifest:
    """The bootstrap Service of clients: any ready broker."""
    spec = {
        "type": "ClusterIP",
        "selector": naming.selector_labels(cluster.metadata.name, naming.BROKER),
        "ports": service_ports(client_ports(cluster)),
    }
    name = naming.bootstrap_name(cluster.metadata.name)
    return build(cluster, "v1", "Service", name, naming.BROKER, {"spec": spec}, annotations)


def bootstrap_servers(cluster: BrokerCluster) -> str:
    """The bootstrap servers of the first listener."""
    port = next(iter(client_ports(cluster).values()))
    return f"{bootstrap_host(cluster)}:{port}"


def build_service_account(cluster: BrokerCluster) -> Manifest:
    """The account of brokers and ZooKeeper, which do not use the API server: no token, no permissions."""
    name = naming.brokers_name(cluster.metadata.name)
    return build(
        cluster, "v1", "ServiceAccount", name, naming.BROKER, {"automountServiceAccountToken": False}
    )


def build_disruption_budget(cluster: BrokerCluster, *, under_replicated: bool) -> Manifest:
    """Evictions do not consider ISRs: allows one broker at a time, and none while a partition is
    under-replicated."""
    given = cluster.spec.template.pod_disruption_budget
    spec = given.model_dump(by_alias=True, exclude_none=True)
    if under_replicated:
        spec.pop("minAvailable", None)
        spec["maxUnavailable"] = 0
    elif given.min_available is None:
        spec.setdefault("maxUnavailable", 1)
    spec["selector"] = {"matchLabels": naming.selector_labels(cluster.metadata.name, naming.BROKER)}
    name = naming.brokers_name(cluster.metadata.name)
    return build(cluster, "policy/v1", "PodDisruptionBudget", name, naming.BROKER, {"spec": spec})


def build_network_policy(cluster: BrokerCluster, images: Images) -> Manifest:
    """Allows the peers of each of the spec's listeners, by default all clients; only brokers and the operator
    on the inter-broker listener."""
    name = cluster.metadata.name
    brokers = {"matchLabels": naming.selector_labels(name, naming.BROKER)}
    restricted = [listener for listener in listeners_of(cluster) if listener.network_policy_peers]
    open_ports = [listener.port for listener in listeners_of(cluster) if not listener.network_policy_peers]
    open_ports += [METRICS_PORT] if _serves_metrics(cluster) else []
    spec = {
        "podSelector": brokers,
        "policyTypes": ["Ingress"],
        "ingress": [
            *([{"ports": [{"protocol": "TCP", "port": port} for port in open_ports]}] if open_ports else []),
            *(
                {
                    "from": [as_manifest(peer) for peer in listener.network_policy_peers],
                    "ports": [{"protocol": "TCP", "port": listener.port}],
                }
                for listener in restricted
            ),
            {
                "from": [{"podSelector": brokers}, *operator_peers(images)],
                "ports": [{"protocol": "TCP", "port": REPLICATION_PORT}],
            },
        ],
    }
    return build(
        cluster,
        "networking.k8s.io/v1",
        "NetworkPolicy",
        naming.brokers_name(name),
        naming.BROKER,
        {"spec": spec},
    )


def build_children(cluster: BrokerCluster, images: Images, *, under_replicated: bool) -> list[Manifest]:
    """All objects besides ConfigMaps, the StatefulSet and the Services for clients, in the order in which
    they are needed."""
    return [
        build_service_account(cluster),
        build_headless_service(cluster),
        build_disruption_budget(cluster, under_replicated=under_replicated),
        build_network_policy(cluster, images),
    ]
