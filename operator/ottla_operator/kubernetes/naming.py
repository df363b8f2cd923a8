"""Names, labels and annotations of the objects that the operator creates.

Used by the manifests' builders and by `observing`; only this module derives names from ordinals. Selectors
use the labels of cluster and component only, which a pod template cannot change.
"""

from __future__ import annotations

import re
from typing import Final

from ottla_operator.planning.volumes import log_dir_name
from ottla_operator.resources.cluster import CLUSTER_NAME, CLUSTER_NAME_MAX
from ottla_operator.resources.common import GROUP
from ottla_operator.resources.pool import FIRST_ID

MANAGER: Final = "ottla-operator"
FINALIZER: Final = f"{GROUP}/operator"

CLUSTER_LABEL: Final = f"{GROUP}/cluster"
CONSOLE_LABEL: Final = f"{GROUP}/console"
"""Of the Service of the console, which the chart of a cluster makes."""
COMPONENT_LABEL: Final = f"{GROUP}/component"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"

POOL_LABEL: Final = f"{GROUP}/pool"
"""Of all objects of a broker of a BrokerPool, with the pool's name."""
BROKER_LABEL: Final = f"{GROUP}/broker-id"
PIPELINE_LABEL: Final = f"{GROUP}/pipeline"

BROKER, ZOOKEEPER, SECURITY = "broker", "zookeeper", "security"
PIPELINE, EXECUTOR = "pipeline", "executor"
CONNECT_LABEL: Final = f"{GROUP}/connect"
CONNECT: Final = "connect"

BUNDLE_LABEL: Final = f"{GROUP}/trust-bundle"
HASH_ANNOTATION: Final = f"{GROUP}/config-hash"
SETTINGS_ANNOTATION: Final = f"{GROUP}/settings"
REPLACES_ANNOTATION: Final = f"{GROUP}/replaces-pod"
REPLACED_HASH_ANNOTATION: Final = f"{GROUP}/replaced-hash"
REPLACED_SETTINGS_ANNOTATION: Final = f"{GROUP}/replaced-settings"
APPLIED_ANNOTATION: Final = f"{GROUP}/applied"
RESTORED_ANNOTATION: Final = f"{GROUP}/restored"
RACK_ANNOTATION: Final = f"{GROUP}/rack"
RESTARTED_AT_ANNOTATION: Final = "kubectl.kubernetes.io/restartedAt"
"""Of a pod template: set by `kubectl rollout restart`."""
CERTIFICATES_ANNOTATION: Final = f"{GROUP}/certificates"
ZOOKEEPER_STAGE_ANNOTATION: Final = f"{GROUP}/zookeeper-stage"
NO_RACK: Final = "-"  # for a pod on a node without the label
ADVERTISED_ANNOTATION: Final = f"{GROUP}/advertised"
NODE_PORTS_ANNOTATION: Final = f"{GROUP}/node-ports"
"""Of the bootstrap Service: the node ports of external listeners, by Service."""

# A broker's settings in its pod: CONFIG_DIR/POD/PROPERTIES.
CONFIG_DIR: Final = "/etc/ottla"
PROPERTIES: Final = "server.properties"

_CLUSTER_NAME = re.compile(CLUSTER_NAME)
_ORDINAL = re.compile(r"-([0-9]+)$")
_CLAIM = re.compile(r"^data-(?:([0-9]{1,2})-)?([a-z].*)$")


def name_problem(cluster: str) -> str:
    """Why the cluster's name cannot be part of names of Services and pods, or ""."""
    if len(cluster) > CLUSTER_NAME_MAX:
        return f"the name {cluster} is too long: {CLUSTER_NAME_MAX} characters are allowed"
    if not _CLUSTER_NAME.match(cluster):
        return f"the name {cluster} is not allowed: use lower-case letters, digits and -, with a letter first"
    return ""


def brokers_name(cluster: str) -> str:
    """The StatefulSet of the brokers, their headless Service, their ServiceAccount and policies."""
    return f"{cluster}-brokers"


def is_of_pool(broker: int) -> bool:
    """Whether the broker belongs to a BrokerPool, and has a StatefulSet of its own."""
    return broker >= FIRST_ID


def broker_set(cluster: str, broker: int) -> str:
    """The StatefulSet of a broker."""
    return broker_config(cluster, broker) if is_of_pool(broker) else brokers_name(cluster)


def broker_pod(cluster: str, broker: int) -> str:
    return f"{broker_set(cluster, broker)}-{0 if is_of_pool(broker) else broker}"


def broker_of_pod(cluster: str, pod: str) -> int | None:
    """The id of the broker in a pod; None for a pod that is no broker's."""
    for number in re.findall(r"-([0-9]{1,9})(?=-|$)", pod)[-2:]:
        if pod == broker_pod(cluster, int(number)):
            return int(number)
    return None


def broker_config(cluster: str, broker: int) -> str:
    return f"{cluster}-broker-{broker}"


def bundle_name(cluster: str) -> str:
    """The ConfigMap with the certificates that clients must trust."""
    return f"{cluster}-ca-bundle"


def bootstrap_name(cluster: str) -> str:
    return f"{cluster}-bootstrap"


def zookeeper_name(cluster: str) -> str:
    return f"{cluster}-zookeeper"


def data_claim(pod: str, volume: int = 0) -> str:
    """The PersistentVolumeClaim that a StatefulSet creates for a pod. `volume`: one of a broker's."""
    return f"{log_dir_name(volume)}-{pod}"


def volume_of_claim(claim: str) -> tuple[int, str]:
    """The volume and the pod of a claim. The name of a pod begins with a letter."""
    found = _CLAIM.match(claim)
    return (int(found[1] or 0), found[2]) if found else (0, claim)


def pod_host(pod: str, service: str, namespace: str) -> str:
    """The pod's DNS name without the cluster domain, which every pod's resolver appends."""
    return f"{pod}.{service}.{namespace}.svc"


def ordinal_of(name: str) -> int | None:
    """The number at the end of a pod's or ConfigMap's name; None without one."""
    found = _ORDINAL.search(name)
    return int(found[1]) if found else None


def selector_labels(cluster: str, component: str) -> dict[str, str]:
    """The labels that selectors use."""
    return {CLUSTER_LABEL: cluster, COMPONENT_LABEL: component}


def labels(cluster: str, component: str) -> dict[str, str]:
    """All labels of an object of a cluster's component."""
    return {
        "app.kubernetes.io/name": "ottla",
        "app.kubernetes.io/instance": cluster,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "ottla",
        MANAGED_BY: MANAGER,
        **selector_labels(cluster, component),
    }


# ---- pipelines


def driver_name(pipeline: str) -> str:
    """The name of the StatefulSet of a pipeline's driver and of its other objects."""
    return f"{pipeline}-driver"


def driver_pod(pipeline: str) -> str:
    return f"{driver_name(pipeline)}-0"


def pipeline_selector(cluster: str, pipeline: str) -> dict[str, str]:
    return {**selector_labels(cluster, PIPELINE), PIPELINE_LABEL: pipeline}


def pipeline_labels(cluster: str, pipeline: str, component: str) -> dict[str, str]:
    return {**labels(cluster, component), PIPELINE_LABEL: pipeline}


# ---- Kafka Connect


def connect_name(connect: str) -> str:
    """The name of the StatefulSet of the workers, and of their other objects."""
    return f"{connect}-connect"


def connect_api_name(connect: str) -> str:
    """The Service of the REST API."""
    return f"{connect}-connect-api"


def connect_selector(connect: str) -> dict[str, str]:
    return {CONNECT_LABEL: connect, COMPONENT_LABEL: CONNECT}


def connect_labels(connect: str, cluster: str) -> dict[str, str]:
    """All labels of an object of a ConnectCluster. `cluster`: its BrokerCluster, or ""."""
    found = {**labels(connect, CONNECT), **connect_selector(connect)}
    del found[CLUSTER_LABEL]
    return {**found, CLUSTER_LABEL: cluster} if cluster else found


# ---- keys of workers of the controller

_CONNECT_KEY: Final = "connect/"


def connect_key(connect: str) -> str:
    """The key of the worker of a ConnectCluster; no BrokerCluster has such a name."""
    return f"{_CONNECT_KEY}{connect}"


def connect_of(key: str) -> str:
    """The ConnectCluster of a worker; "" of the worker of a BrokerCluster."""
    return key.removeprefix(_CONNECT_KEY) if key.startswith(_CONNECT_KEY) else ""
