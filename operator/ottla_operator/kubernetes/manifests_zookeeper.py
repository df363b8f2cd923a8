"""The manifests of a cluster's ZooKeeper: ConfigMap, Service, StatefulSet, disruption budget and policy.

Pure. Only the operator replaces pods (OnDelete), the leader last. All pods start at the same time (Parallel),
since a server waits for a quorum. A pod is ready when its server serves, which needs a quorum.
"""

from __future__ import annotations

from typing import Final

from ottla_operator.kubernetes import certificates, naming
from ottla_operator.kubernetes.listeners import CERTIFICATES_DIR
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
    spread_over,
)
from ottla_operator.kubernetes.zookeeper_planning import ServerStage, is_secured
from ottla_operator.planning.cluster_secrets import ZOOKEEPER_STORE, ZOOKEEPER_STORE_PASSWORD
from ottla_operator.planning.listener_security import operator_subject
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.zookeeper import ManagedZooKeeper

CLIENT_PORT, SECURE_PORT, QUORUM_PORT, ELECTION_PORT = 2181, 2182, 2888, 3888
DEFAULT_SIZE: Final = "2Gi"

_CERTIFICATES: Final = f"{CERTIFICATES_DIR}/{certificates.ZOOKEEPER_FILE}"
_TRUSTED: Final = f"{CERTIFICATES_DIR}/{ZOOKEEPER_STORE}"

# Probes send four-letter words. A shell takes 3 ms of processor time, where Python takes 90 to start, every
# three seconds in each server. With TLS, the probe uses the server's certificate as its client certificate.
_ASK: Final = (
    f"exec 3<>/dev/tcp/127.0.0.1/{CLIENT_PORT} && printf {{word}} >&3 && timeout 4 grep -q {{answer}} <&3"
)
_ASK_TLS: Final = (
    f"import socket, ssl; c = socket.create_connection(('127.0.0.1', {SECURE_PORT}), 2); "
    "t = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT); t.check_hostname = False; "
    f"t.verify_mode = ssl.CERT_NONE; t.load_cert_chain('{_CERTIFICATES}'); c = t.wrap_socket(c); "
    "c.sendall(b'{word}'); assert b'{answer}' in b''.join(iter(lambda: c.recv(4096), b''))"
)


def managed(cluster: BrokerCluster) -> ManagedZooKeeper:
    """The settings of the ZooKeeper that the operator runs."""
    return cluster.spec.zookeeper.managed or ManagedZooKeeper()


def member_host(cluster: BrokerCluster, member: int) -> str:
    """The DNS name of a server's pod."""
    name = naming.zookeeper_name(cluster.metadata.name)
    return naming.pod_host(f"{name}-{member}", name, str(cluster.metadata.namespace))


def connect_string(cluster: BrokerCluster, *, secure: bool) -> str:
    """zookeeper.connect of brokers. `secure`: the TLS port of the operator's ZooKeeper."""
    if cluster.spec.zookeeper.connect is not None:
        return cluster.spec.zookeeper.connect
    members = range(managed(cluster).replicas)
    port = SECURE_PORT if secure else CLIENT_PORT
    return ",".join(f"{member_host(cluster, member)}:{port}" for member in members)


def server_names(cluster: BrokerCluster) -> list[str]:
    """The host names of the servers of a secured cluster; empty otherwise."""
    if not is_secured(cluster):
        return []
    return [member_host(cluster, member) for member in range(managed(cluster).replicas)]


def client_ports(stage: ServerStage) -> list[int]:
    """The plain port, the TLS port or both."""
    plain = [CLIENT_PORT] if stage < ServerStage.TLS else []
    return plain + ([SECURE_PORT] if stage > ServerStage.PLAIN else [])


def _tls_lines(cluster: BrokerCluster, stage: ServerStage) -> list[str]:
    """The TLS settings. Servers trust the cluster's authority, not that of clients. They do not verify
    each other's host names: ZooKeeper would look up the names of connecting servers in reverse DNS."""
    if stage == ServerStage.PLAIN:
        return []
    own = (f"location={_CERTIFICATES}", "type=PEM")
    trusted = (f"location={_TRUSTED}", "type=PKCS12", f"password={ZOOKEEPER_STORE_PASSWORD}")
    stores = [
        f"{prefix}.{store}.{setting}"
        for prefix in ("ssl", "ssl.quorum")
        for store, settings in (("keyStore", own), ("trustStore", trusted))
        for setting in settings
    ]
    return [
        f"secureClientPort={SECURE_PORT}",
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
        "authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider",
        f"X509AuthenticationProvider.superUser={operator_subject(cluster.metadata.name).distinguished_name}",
        "ssl.clientAuth=need",
        "ssl.quorum.clientAuth=need",
        "ssl.quorum.hostnameVerification=false",
        "ssl.enabledProtocols=TLSv1.2,TLSv1.3",
        *stores,
        f"sslQuorum={str(stage >= ServerStage.QUORUM_TLS).lower()}",
        f"portUnification={str(stage < ServerStage.TLS).lower()}",
    ]


def _zoo_cfg(cluster: BrokerCluster, stage: ServerStage) -> str:
    servers = [
        f"server.{member + 1}={member_host(cluster, member)}:{QUORUM_PORT}:{ELECTION_PORT}"
        for member in range(managed(cluster).replicas)
    ]
    lines = [
        "dataDir=/var/lib/zookeeper/data",
        *([f"clientPort={CLIENT_PORT}"] if stage < ServerStage.TLS else []),
        *_tls_lines(cluster, stage),
        "tickTime=2000",
        "initLimit=10",
        "syncLimit=5",
        "maxClientCnxns=0",
        "autopurge.snapRetainCount=3",
        "autopurge.purgeInterval=6",
        "4lw.commands.whitelist=srvr,ruok,mntr",
        "admin.enableServer=false",
        "standaloneEnabled=false",
        # The server's own name may not resolve yet when it starts.
        "quorumListenOnAllIPs=true",
        *servers,
    ]
    return "\n".join(lines) + "\n"


def _config_file(stage: ServerStage) -> str:
    return "zoo.cfg" if stage == ServerStage.PLAIN else f"{stage.name.lower().replace('_', '-')}.cfg"


def build_config(cluster: BrokerCluster, stage: ServerStage) -> Manifest:
    """The ConfigMap with zoo.cfg for the current and the previous stage, since pods of both may restart."""
    name = naming.zookeeper_name(cluster.metadata.name)
    stages = [each for each in ServerStage if stage - 1 <= each <= stage]
    data = {_config_file(each): _zoo_cfg(cluster, each) for each in stages}
    return build(cluster, "v1", "ConfigMap", name, naming.ZOOKEEPER, {"data": data})


def _ports(stage: ServerStage) -> dict[str, int]:
    names = {CLIENT_PORT: "client", SECURE_PORT: "secure-client"}
    return {names[port]: port for port in client_ports(stage)}


def build_service(cluster: BrokerCluster, stage: ServerStage) -> Manifest:
    name = naming.zookeeper_name(cluster.metadata.name)
    ports = {**_ports(stage), "quorum": QUORUM_PORT, "election": ELECTION_PORT}
    spec = headless_service(naming.selector_labels(cluster.metadata.name, naming.ZOOKEEPER), ports)
    return build(cluster, "v1", "Service", name, naming.ZOOKEEPER, {"spec": spec})


def build_stateful_set(
    cluster: BrokerCluster,
    images: Images,
    stage: ServerStage,
    certificates_digest: str,
    restarted_at: str = "",
) -> Manifest:
    """`restarted_at`: of `kubectl rollout restart`, which the operator would undo otherwise."""
    name = naming.zookeeper_name(cluster.metadata.name)
    wanted = managed(cluster)
    spec = {
        "replicas": wanted.replicas,
        "serviceName": name,
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "selector": {"matchLabels": naming.selector_labels(cluster.metadata.name, naming.ZOOKEEPER)},
        "template": _template(cluster, images, stage, certificates_digest, restarted_at),
        "volumeClaimTemplates": [
            claim_template(wanted.storage.size or DEFAULT_SIZE, wanted.storage.storage_class)
        ],
    }
    return build(cluster, "apps/v1", "StatefulSet", name, naming.ZOOKEEPER, {"spec": spec})


def _template(
    cluster: BrokerCluster, images: Images, stage: ServerStage, certificates_digest: str, restarted_at: str
) -> Manifest:
    """The pod template, annotated with its revision: what an approval is for. Certificates are not part of
    it, since a server with expired ones is lost, nor are requested restarts."""
    pod = managed(cluster).template.pod
    merged = merge_template(_base(cluster, images, stage), pod, allow_sidecars=images.allow_sidecars)
    annotations = merged["metadata"].setdefault("annotations", {})
    annotations[naming.HASH_ANNOTATION] = digest([_zoo_cfg(cluster, stage), merged])
    if stage > ServerStage.PLAIN:
        annotations[naming.ZOOKEEPER_STAGE_ANNOTATION] = stage.name
        annotations[naming.CERTIFICATES_ANNOTATION] = certificates_digest
    if restarted_at:
        annotations[naming.RESTARTED_AT_ANNOTATION] = restarted_at
    return merged


def _base(cluster: BrokerCluster, images: Images, stage: ServerStage) -> Manifest:
    name, wanted = cluster.metadata.name, managed(cluster)
    has_tls = stage > ServerStage.PLAIN
    container = {
        "name": "zookeeper",
        "image": wanted.image or images.zookeeper,
        "imagePullPolicy": images.pull_policy,
        "args": [
            *("zookeeper", "--config", f"/etc/zookeeper/{_config_file(stage)}", "--id-from-hostname"),
            *(["--heap", wanted.heap] if wanted.heap is not None else []),
        ],
        "ports": container_ports(_ports(stage)),
        "resources": wanted.resources or {"requests": {"cpu": "50m", "memory": "256Mi"}},
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "readinessProbe": exec_probe(four_letter_probe("srvr", "Mode:", has_tls), period_s=3, failures=3),
        "livenessProbe": {
            **exec_probe(four_letter_probe("ruok", "imok", has_tls), period_s=20, failures=3, timeout_s=10),
            "initialDelaySeconds": 30,
        },
        "volumeMounts": [
            {"name": "data", "mountPath": "/var/lib/zookeeper"},
            {"name": "config", "mountPath": "/etc/zookeeper", "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            *([certificates.MOUNT] if has_tls else []),
        ],
    }
    selector = {"matchLabels": naming.selector_labels(name, naming.ZOOKEEPER)}
    return {
        "metadata": {"labels": naming.labels(name, naming.ZOOKEEPER)},
        "spec": {
            "serviceAccountName": naming.brokers_name(name),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": pod_security(),
            "terminationGracePeriodSeconds": 30,
            "topologySpreadConstraints": [spread_over("kubernetes.io/hostname", selector)],
            "containers": [container],
            "volumes": [
                {"name": "config", "configMap": {"name": naming.zookeeper_name(name)}},
                {"name": "tmp", "emptyDir": {}},
                *([certificates.zookeeper_volume(name)] if has_tls else []),
            ],
        },
    }


def four_letter_probe(word: str, answer: str, has_tls: bool) -> list[str]:
    """The command of a probe that sends a four-letter word and expects `answer` in the response."""
    program, text = (["python3", "-IS", "-c"], _ASK_TLS) if has_tls else (["bash", "-c"], _ASK)
    return [*program, text.format(word=word, answer=answer)]


def build_disruption_budget(cluster: BrokerCluster) -> Manifest:
    """Allows one eviction at a time, for any number of servers."""
    spec = {
        "maxUnavailable": 1,
        "selector": {"matchLabels": naming.selector_labels(cluster.metadata.name, naming.ZOOKEEPER)},
    }
    name = naming.zookeeper_name(cluster.metadata.name)
    return build(cluster, "policy/v1", "PodDisruptionBudget", name, naming.ZOOKEEPER, {"spec": spec})


def build_network_policy(cluster: BrokerCluster, images: Images, stage: ServerStage) -> Manifest:
    """Allows brokers and the operator on the client ports, and the servers on the quorum ports."""
    name = cluster.metadata.name
    brokers = {"podSelector": {"matchLabels": naming.selector_labels(name, naming.BROKER)}}
    members = {"podSelector": {"matchLabels": naming.selector_labels(name, naming.ZOOKEEPER)}}
    spec = {
        "podSelector": members["podSelector"],
        "policyTypes": ["Ingress"],
        "ingress": [
            {
                "from": [brokers, *operator_peers(images)],
                "ports": [{"protocol": "TCP", "port": port} for port in client_ports(stage)],
            },
            {
                "from": [members],
                "ports": [{"protocol": "TCP", "port": port} for port in (QUORUM_PORT, ELECTION_PORT)],
            },
        ],
    }
    return build(
        cluster,
        "networking.k8s.io/v1",
        "NetworkPolicy",
        naming.zookeeper_name(name),
        naming.ZOOKEEPER,
        {"spec": spec},
    )


def build_all(
    cluster: BrokerCluster,
    images: Images,
    stage: ServerStage,
    certificates_digest: str = "",
    restarted_at: str = "",
) -> list[Manifest]:
    """All objects of the ensemble, in the order in which they are needed: the ConfigMap and the StatefulSet
    last. Servers restart when `certificates_digest` changes."""
    return [
        build_service(cluster, stage),
        build_disruption_budget(cluster),
        build_network_policy(cluster, images, stage),
        build_config(cluster, stage),
        build_stateful_set(cluster, images, stage, certificates_digest, restarted_at),
    ]
