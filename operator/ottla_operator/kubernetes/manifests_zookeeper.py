"""The ZooKeeper that the operator runs for a cluster: ConfigMap, headless Service, StatefulSet, budget.

Pure. Pods are replaced by the operator alone (OnDelete), the leader last; all start at once (Parallel), for a
member waits for the others anyway. Each is ready when it serves, which takes a quorum.
"""

from __future__ import annotations

from typing import Final

from ottla_operator.kubernetes import naming
from ottla_operator.kubernetes.manifests_common import (
    Images,
    Manifest,
    build,
    claim_template,
    container_security,
    digest,
    exec_probe,
    pod_security,
)
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.cluster import ManagedZooKeeper

CLIENT_PORT, QUORUM_PORT, ELECTION_PORT = 2181, 2888, 3888
DEFAULT_SIZE: Final = "2Gi"

# Four-letter words over a plain socket; Python is in the image, and starts faster than Java.
_ASK: Final = (
    "import socket; c = socket.create_connection(('127.0.0.1', 2181), 2); c.sendall(b'{word}'); "
    "assert b'{answer}' in b''.join(iter(lambda: c.recv(4096), b''))"
)


def managed(cluster: BrokerCluster) -> ManagedZooKeeper:
    return cluster.spec.zookeeper.managed or ManagedZooKeeper()


def member_host(cluster: BrokerCluster, member: int) -> str:
    name = naming.zookeeper_name(cluster.metadata.name)
    return naming.pod_host(f"{name}-{member}", name, str(cluster.metadata.namespace))


def connect_string(cluster: BrokerCluster) -> str:
    """What brokers connect to."""
    if cluster.spec.zookeeper.connect is not None:
        return cluster.spec.zookeeper.connect
    members = range(managed(cluster).replicas)
    return ",".join(f"{member_host(cluster, member)}:{CLIENT_PORT}" for member in members)


def _zoo_cfg(cluster: BrokerCluster) -> str:
    servers = [
        f"server.{member + 1}={member_host(cluster, member)}:{QUORUM_PORT}:{ELECTION_PORT}"
        for member in range(managed(cluster).replicas)
    ]
    lines = [
        "dataDir=/var/lib/zookeeper/data",
        f"clientPort={CLIENT_PORT}",
        "tickTime=2000",
        "initLimit=10",
        "syncLimit=5",
        "maxClientCnxns=0",
        "autopurge.snapRetainCount=3",
        "autopurge.purgeInterval=6",
        "4lw.commands.whitelist=srvr,ruok,mntr",
        "admin.enableServer=false",
        "standaloneEnabled=false",
        # The own name may not resolve yet when the member starts.
        "quorumListenOnAllIPs=true",
        *servers,
    ]
    return "\n".join(lines) + "\n"


def build_config(cluster: BrokerCluster) -> Manifest:
    name = naming.zookeeper_name(cluster.metadata.name)
    return build(cluster, "v1", "ConfigMap", name, naming.ZOOKEEPER, {"data": {"zoo.cfg": _zoo_cfg(cluster)}})


def build_service(cluster: BrokerCluster) -> Manifest:
    name = naming.zookeeper_name(cluster.metadata.name)
    ports = {"client": CLIENT_PORT, "quorum": QUORUM_PORT, "election": ELECTION_PORT}
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": naming.selector_labels(cluster.metadata.name, naming.ZOOKEEPER),
        "ports": [
            {"name": port, "port": number, "targetPort": number, "protocol": "TCP"}
            for port, number in ports.items()
        ],
    }
    return build(cluster, "v1", "Service", name, naming.ZOOKEEPER, {"spec": spec})


def build_stateful_set(cluster: BrokerCluster, images: Images) -> Manifest:
    name = naming.zookeeper_name(cluster.metadata.name)
    wanted = managed(cluster)
    spec = {
        "replicas": wanted.replicas,
        "serviceName": name,
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "selector": {"matchLabels": naming.selector_labels(cluster.metadata.name, naming.ZOOKEEPER)},
        "template": _template(cluster, images),
        "volumeClaimTemplates": [claim_template(wanted.storage, DEFAULT_SIZE)],
    }
    return build(cluster, "apps/v1", "StatefulSet", name, naming.ZOOKEEPER, {"spec": spec})


def _template(cluster: BrokerCluster, images: Images) -> Manifest:
    name = cluster.metadata.name
    container = {
        "name": "zookeeper",
        "image": images.zookeeper,
        "imagePullPolicy": images.pull_policy,
        "args": ["zookeeper", "--config", "/etc/zookeeper/zoo.cfg", "--id-from-hostname"],
        "ports": [{"name": "client", "containerPort": CLIENT_PORT, "protocol": "TCP"}],
        "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}},
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "readinessProbe": exec_probe(_asking("srvr", "Mode:"), period_s=3, failures=3),
        "livenessProbe": {
            **exec_probe(_asking("ruok", "imok"), period_s=20, failures=3, timeout_s=10),
            "initialDelaySeconds": 30,
        },
        "volumeMounts": [
            {"name": "data", "mountPath": "/var/lib/zookeeper"},
            {"name": "config", "mountPath": "/etc/zookeeper", "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": naming.selector_labels(name, naming.ZOOKEEPER)},
    }
    return {
        "metadata": {
            "labels": naming.labels(name, naming.ZOOKEEPER),
            "annotations": {naming.HASH_ANNOTATION: digest(_zoo_cfg(cluster))},
        },
        "spec": {
            "serviceAccountName": naming.brokers_name(name),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": pod_security(),
            "terminationGracePeriodSeconds": 30,
            "topologySpreadConstraints": [spread],
            "containers": [container],
            "volumes": [
                {"name": "config", "configMap": {"name": naming.zookeeper_name(name)}},
                {"name": "tmp", "emptyDir": {}},
            ],
        },
    }


def _asking(word: str, answer: str) -> list[str]:
    return ["python3", "-IS", "-c", _ASK.format(word=word, answer=answer)]


def build_disruption_budget(cluster: BrokerCluster) -> Manifest:
    """One at a time, whatever the number of members: who evicts waits until it is back."""
    spec = {
        "maxUnavailable": 1,
        "selector": {"matchLabels": naming.selector_labels(cluster.metadata.name, naming.ZOOKEEPER)},
    }
    name = naming.zookeeper_name(cluster.metadata.name)
    return build(cluster, "policy/v1", "PodDisruptionBudget", name, naming.ZOOKEEPER, {"spec": spec})


def build_network_policy(cluster: BrokerCluster) -> Manifest:
    """Brokers and the operator ask; members talk among themselves; nobody else."""
    name = cluster.metadata.name
    brokers = {"podSelector": {"matchLabels": naming.selector_labels(name, naming.BROKER)}}
    members = {"podSelector": {"matchLabels": naming.selector_labels(name, naming.ZOOKEEPER)}}
    spec = {
        "podSelector": members["podSelector"],
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": [brokers, operator_peer()], "ports": [{"protocol": "TCP", "port": CLIENT_PORT}]},
            {
                "from": [members],
                "ports": [
                    {"protocol": "TCP", "port": port} for port in (CLIENT_PORT, QUORUM_PORT, ELECTION_PORT)
                ],
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


def operator_peer() -> Manifest:
    """The operator's pods, in whatever namespace they run."""
    return {
        "namespaceSelector": {},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": naming.MANAGER}},
    }


def build_all(cluster: BrokerCluster, images: Images) -> list[Manifest]:
    """In the order in which they are needed."""
    return [
        build_config(cluster),
        build_service(cluster),
        build_disruption_budget(cluster),
        build_network_policy(cluster),
        build_stateful_set(cluster, images),
    ]
