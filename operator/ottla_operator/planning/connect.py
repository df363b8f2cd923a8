"""Plans ConnectClusters: the settings of their workers, and their status.

Pure. `launch_of_workers` defines what is part of a revision: a change of it restarts the workers. Secrets are
not part of the settings: workers read them from files by Kafka's DirectoryConfigProvider.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ottla_operator.conditions import Finding, no, yes
from ottla_operator.planning.connectors import ConnectState
from ottla_operator.planning.listener_security import SCRAM_MECHANISM
from ottla_operator.planning.pipeline_config import LaunchRefused, login_of
from ottla_operator.planning.steps import ResourcePlan
from ottla_operator.resources import BrokerCluster, ConnectCluster, ConnectClusterStatus, User
from ottla_operator.resources.common import config_texts
from ottla_operator.resources.connect import ClientAuthentication, ClientTls, WorkerPlugin
from ottla_operator.resources.listeners import Listener

REST_PORT: Final = 8083
PLUGINS_DIR: Final = "/opt/connect/plugins"
SECRETS_DIR: Final = "/etc/ottla-secrets"
HOST_VARIABLE: Final = "CONNECT_REST_HOST"
"""The environment variable with the DNS name of a worker's pod."""

_PROVIDERS: Final = {
    "directory": "org.apache.kafka.common.config.provider.DirectoryConfigProvider",
    "env": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
    "file": "org.apache.kafka.common.config.provider.FileConfigProvider",
}
_JSON: Final = "org.apache.kafka.connect.json.JsonConverter"
# The clients of the workers themselves, and those of connectors.
_CLIENTS: Final = ("", "producer.", "consumer.", "admin.")
_LOGIN_MODULES: Final = {
    "plain": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "scram-sha-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "scram-sha-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


@dataclass(frozen=True, slots=True)
class WorkerLaunch:
    """The configuration to start workers with."""

    revision: str
    properties: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    """Secrets that are mounted as folders of SECRETS_DIR."""


@dataclass(frozen=True, slots=True)
class WorkerPod:
    """The state of a worker's pod."""

    name: str
    ready: bool
    revision: str = ""
    problem: str = ""
    """Why it does not start."""


@dataclass(frozen=True, slots=True)
class WorkersState:
    """The pods of a ConnectCluster."""

    pods: Sequence[WorkerPod] = ()
    selector: str = ""
    url: str = ""

    @property
    def ready(self) -> int:
        return sum(pod.ready for pod in self.pods)


def launch_of_workers(
    connect: ConnectCluster,
    cluster: BrokerCluster | None,
    user: User | None,
    traits: Mapping[str, str],
) -> WorkerLaunch | LaunchRefused:
    """`cluster`, `user`: those that the spec refers to. `traits`: the platform's part of the revision."""
    spec = connect.spec
    version = ""
    if spec.cluster_ref is None:
        bootstrap = str(spec.bootstrap_servers)
        client, secrets = client_of(spec.tls, spec.authentication)
    else:
        found = _of_cluster(connect, cluster, user)
        if isinstance(found, LaunchRefused):
            return found
        bootstrap, client, secrets = found
        version = "" if user is None else user.status.secret_version
    properties = worker_properties(connect, bootstrap, client)
    content = [sorted(properties.items()), secrets, version, spec.heap, sorted(traits.items())]
    revision = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:10]
    return WorkerLaunch(revision, properties, secrets)


def worker_properties(connect: ConnectCluster, bootstrap: str, client: Mapping[str, str]) -> dict[str, str]:
    """All settings of the workers. `client`: how their clients connect."""
    name = connect.metadata.name
    given = config_texts(connect.spec.config)
    defaults = {
        "group.id": name,
        "config.storage.topic": f"{name}-configs",
        "offset.storage.topic": f"{name}-offsets",
        "status.storage.topic": f"{name}-status",
        **{f"{kind}.storage.replication.factor": "-1" for kind in ("config", "offset", "status")},
        "key.converter": _JSON,
        "value.converter": _JSON,
        **{f"config.providers.{provider}.class": class_ for provider, class_ in _PROVIDERS.items()},
    }
    return {
        **defaults,
        **given,
        "bootstrap.servers": bootstrap,
        "config.providers": _added(_PROVIDERS, given.get("config.providers", "")),
        "listeners": f"http://0.0.0.0:{REST_PORT}",
        "rest.advertised.host.name": f"${{env:{HOST_VARIABLE}}}",
        "rest.advertised.port": str(REST_PORT),
        "plugin.path": _added((PLUGINS_DIR,), given.get("plugin.path", "")),
        **{f"{prefix}{setting}": value for prefix in _CLIENTS for setting, value in client.items()},
    }


def _added(ours: Iterable[str], given: str) -> str:
    """Our entries of a list, and those of a setting."""
    return ",".join(dict.fromkeys((*ours, *filter(None, map(str.strip, given.split(","))))))


# ---- how clients connect

_Client = tuple[dict[str, str], tuple[str, ...]]
"""Settings, and the Secrets that they refer to."""


def _of_cluster(
    connect: ConnectCluster, cluster: BrokerCluster | None, user: User | None
) -> tuple[str, dict[str, str], tuple[str, ...]] | LaunchRefused:
    """(bootstrap servers, settings, Secrets) of clients of a BrokerCluster."""
    spec = connect.spec
    assert spec.cluster_ref is not None
    if cluster is None:
        return LaunchRefused("ClusterNotFound", f"BrokerCluster {spec.cluster_ref.name} does not exist")
    if cluster.awaits_recovery:
        # Topics of workers would refuse it.
        return LaunchRefused("ClusterNotReady", f"{cluster.key} is recovered from a backup first")
    kind = None
    name = ""
    listener: Listener | None
    if spec.user is not None:
        if user is None or user.spec.cluster_ref.name != cluster.metadata.name:
            return LaunchRefused("UserNotFound", f"User {spec.user} of {cluster.key} does not exist")
        found = login_of(user, cluster)
        if isinstance(found, LaunchRefused):
            return found
        login, bootstrap = found
        kind, name = login.type, login.secret
        at = next(one.name for one in cluster.status.listeners if one.bootstrap_servers == bootstrap)
        listener = next(one for one in cluster.spec.listeners if one.name == at)
    else:
        listener = cluster.spec.listeners[0] if cluster.spec.listeners else None
        if listener is not None and listener.authentication is not None:
            message = f"listener {listener.name} of {cluster.key} needs authentication: spec.user is required"
            return LaunchRefused("UserNotFound", message)
        bootstrap = cluster.status.bootstrap_servers
    if not bootstrap:
        return LaunchRefused("ClusterNotReady", f"{cluster.key} has no bootstrap servers yet")
    client: dict[str, str] = {}
    if listener is not None and listener.tls:
        certificates = _trusted(cluster, listener)
        if not certificates:
            return LaunchRefused("ClusterNotReady", f"listener {listener.name} has no certificates yet")
        client |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": certificates}
    client["security.protocol"] = _protocol(tls=bool(client), sasl=kind == "scram-sha-512")
    folder = f"{SECRETS_DIR}/{name}"
    if kind == "scram-sha-512":
        client |= {
            "sasl.mechanism": SCRAM_MECHANISM,
            "sasl.jaas.config": f"${{directory:{folder}:sasl.jaas.config}}",
        }
    elif kind == "tls":
        client |= {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": f"{folder}/user.p12",
            "ssl.keystore.password": f"${{directory:{folder}:user.password}}",
        }
    return bootstrap, client, (name,) if name else ()


def _trusted(cluster: BrokerCluster, listener: Listener) -> str:
    found = next((one for one in cluster.status.listeners if one.name == listener.name), None)
    return "" if found is None else "\n".join(text.strip() for text in found.certificates)


def _protocol(*, tls: bool, sasl: bool) -> str:
    return ("SASL_" if sasl else "") + ("SSL" if tls else "PLAINTEXT")


def client_of(
    tls: ClientTls | None, given: ClientAuthentication | None, mounts: str = SECRETS_DIR
) -> _Client:
    """Settings of clients of a cluster that is no BrokerCluster. `mounts`: the folder of the Secrets."""
    client: dict[str, str] = {}
    secrets: list[str] = []
    for trusted in tls.trusted_certificates if tls is not None else ():
        secrets.append(trusted.secret_name)
        before = client.get("ssl.truststore.certificates", "")
        more = f"${{directory:{mounts}/{trusted.secret_name}:{trusted.certificate}}}"
        client |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": f"{before}\n{more}".strip()}
    sasl = given is not None and given.type != "tls"
    client["security.protocol"] = _protocol(tls=tls is not None, sasl=sasl)
    if given is not None:
        more_settings, secret = _authentication(given, mounts)
        client |= more_settings
        secrets.append(secret)
    return client, tuple(dict.fromkeys(secrets))


def _authentication(given: ClientAuthentication, mounts: str) -> tuple[dict[str, str], str]:
    if given.type == "tls":
        pair = given.certificate_and_key
        assert pair is not None, "validated"
        folder = f"{mounts}/{pair.secret_name}"
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": f"${{directory:{folder}:{pair.certificate}}}",
            "ssl.keystore.key": f"${{directory:{folder}:{pair.key}}}",
        }, pair.secret_name
    source = given.password_secret
    assert source is not None, "validated"
    password = f"${{directory:{mounts}/{source.secret_name}:{source.password}}}"
    module = _LOGIN_MODULES[given.type]
    return {
        "sasl.mechanism": given.type.upper(),
        "sasl.jaas.config": f'{module} required username="{given.username}" password="{password}";',
    }, source.secret_name


# ---- the status


def plan_connect(
    connect: ConnectCluster,
    launch: WorkerLaunch | LaunchRefused,
    workers: WorkersState,
    state: ConnectState,
) -> ResourcePlan[ConnectClusterStatus]:
    """Conditions and status of a ConnectCluster. `state`: what its REST API says."""
    status = connect.status.model_copy(
        update={
            "replicas": len(workers.pods),
            "ready_replicas": workers.ready,
            "selector": workers.selector,
            "url": workers.url,
        }
    )
    if state.answers:
        plugins = [
            WorkerPlugin(class_name=p.class_name, type=p.type, version=p.version) for p in state.plugins
        ]
        status = status.model_copy(update={"version": state.version, "connector_plugins": plugins})
    if isinstance(launch, LaunchRefused):
        return ResourcePlan(connect, (no("Ready", launch.reason, launch.message),), status)
    status = status.model_copy(update={"revision": launch.revision})
    return ResourcePlan(connect, (_ready(connect, launch, workers, state),), status)


def _ready(
    connect: ConnectCluster, launch: WorkerLaunch, workers: WorkersState, state: ConnectState
) -> Finding:
    wanted = connect.spec.replicas
    if wanted == 0 and not workers.pods:
        return yes("Ready", "Stopped", "spec.replicas is 0: no worker runs")
    broken = [pod for pod in workers.pods if pod.problem]
    if broken:
        return no("Ready", "WorkerFailing", "; ".join(f"{pod.name}: {pod.problem}" for pod in broken))
    outdated = [pod.name for pod in workers.pods if pod.revision != launch.revision]
    if outdated:
        return no("Ready", "Rolling", f"workers restart: {', '.join(outdated)} next")
    if workers.ready != wanted or len(workers.pods) != wanted:
        return no("Ready", "Starting", f"{workers.ready} of {wanted} workers are ready")
    if not state.answers:
        return no("Ready", "NotAnswering", f"the REST API does not respond: {state.problem}")
    return yes("Ready", "Ready", f"{wanted} workers run Kafka Connect {state.version}")
