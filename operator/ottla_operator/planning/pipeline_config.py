"""The launch configuration of a pipeline's driver: revision, login and completed job configuration.

Pure. The planner calls `launch_of`, which defines what is part of a revision. The platforms call
`complete_config` with their paths. The completed keys are those of `ottla_pipeline.config`, which the
operator does not import; the rest of the job's configuration is passed on unchanged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from ottla_operator.planning.cluster_secrets import certificate_secret, cluster_ca
from ottla_operator.planning.given_certificates import CA_CERTIFICATE
from ottla_operator.planning.listener_security import SCRAM_MECHANISM
from ottla_operator.resources import BrokerCluster, Pipeline, User
from ottla_operator.resources.pipeline import memory_of

DRIVER_MEMORY: Final = 3 << 29  # 1.5 GiB
EXECUTOR_MEMORY: Final = 1 << 30

# Spark requires a heap of at least 450 MiB. The rest of the memory is for the JVM itself and for Python.
_HEAP_MIB_MIN: Final = 512
_HEAP_PERCENT: Final = 55


@dataclass(frozen=True, slots=True)
class Login:
    """How a driver authenticates to the brokers, and the Secrets that it needs for that."""

    type: Literal["scram-sha-512", "tls"] | None
    """None: the listener has no authentication."""
    tls: bool
    username: str = ""
    secret: str = ""
    """The User's Secret."""
    secret_version: str = ""
    authority: str = ""
    """The Secret with the authority's certificate that signs the brokers' certificates."""


@dataclass(frozen=True, slots=True)
class DriverLaunch:
    """The configuration to start a driver with."""

    revision: str
    bootstrap: str
    login: Login | None = None


@dataclass(frozen=True, slots=True)
class LaunchRefused:
    """Why no driver can be started; `reason` is CamelCase."""

    reason: str
    message: str


def launch_of(
    pipeline: Pipeline,
    cluster: BrokerCluster,
    bootstrap: str,
    users: Mapping[str, User],
    traits: Mapping[str, str],
) -> DriverLaunch | LaunchRefused:
    """`users`: the cluster's Users by resource name. `traits`: the platform's part of the revision."""
    login: Login | None = None
    if pipeline.spec.user is not None:
        user = users.get(pipeline.spec.user)
        if user is None:
            message = f"User {pipeline.spec.user} of {cluster.key} does not exist"
            return LaunchRefused("UserNotFound", message)
        found = login_of(user, cluster)
        if isinstance(found, LaunchRefused):
            return found
        login, bootstrap = found
    elif cluster.spec.listeners and cluster.spec.listeners[0].tls:
        login = Login(None, True, authority=_authority(cluster))
    spec = pipeline.spec.model_dump(mode="json", exclude={"suspend", "cluster_ref"})
    content = [spec, bootstrap, None if login is None else _revision_fields(login), sorted(traits.items())]
    revision = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]
    return DriverLaunch(revision, bootstrap, login)


def _revision_fields(login: Login) -> list[Any]:
    return [login.type, login.tls, login.username, login.secret, login.secret_version, login.authority]


def _authority(cluster: BrokerCluster) -> str:
    return certificate_secret(cluster_ca(cluster.metadata.name))


def login_of(user: User, cluster: BrokerCluster) -> tuple[Login, str] | LaunchRefused:
    """The login, with the bootstrap servers of a listener that accepts the user's authentication."""
    authentication = user.spec.authentication
    kind = None if authentication is None else authentication.type
    accepting = [
        one for one in cluster.spec.listeners if one.authentication and one.authentication.type == kind
    ]
    # Drivers trust the cluster's authority, and not that of a listener's own certificate.
    accepting.sort(key=lambda one: one.has_own_certificate)
    listener = accepting[0] if accepting else None
    if kind is None or listener is None:
        return LaunchRefused(
            "NotSupported", f"no listener of {cluster.key} accepts the authentication of {user.key}"
        )
    servers = next(
        (one.bootstrap_servers for one in cluster.status.listeners if one.name == listener.name), ""
    )
    if not servers or not user.status.secret:
        return LaunchRefused("UserNotReady", f"{user.key} has no credentials yet")
    login = Login(
        kind,
        listener.tls,
        user.login_name,
        user.status.secret,
        user.status.secret_version,
        _authority(cluster),
    )
    return login, servers


def complete_config(
    pipeline: Pipeline,
    launch: DriverLaunch,
    *,
    checkpoint: str | None,
    path_of: Callable[[str, str], str],
    settings: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The job's complete configuration. `checkpoint`: the default one; `path_of`: the file of a Secret's
    entry; `settings`: the Spark settings that a driver needs on this platform."""
    config = dict(pipeline.spec.config)
    kafka = config.get("kafka")
    spark = config.get("spark")
    config = {"name": pipeline.metadata.name, **config}
    if isinstance(kafka, Mapping) or kafka is None:
        config["kafka"] = {**(kafka or {}), "bootstrap": launch.bootstrap, **_credentials(launch, path_of)}
    if checkpoint is not None:
        config.setdefault("checkpoint", checkpoint)
    if settings and (isinstance(spark, Mapping) or spark is None):
        own = (spark or {}).get("settings")
        if isinstance(own, Mapping) or own is None:
            config["spark"] = {**(spark or {}), "settings": {**(own or {}), **settings}}
    return config


def _credentials(launch: DriverLaunch, path_of: Callable[[str, str], str]) -> dict[str, Any]:
    login = launch.login
    if login is None:
        return {}
    found: dict[str, Any] = {}
    if login.tls:
        found["tls"] = {"ca": path_of(login.authority, CA_CERTIFICATE)}
    if login.type == "tls":
        names = {"certificate": "user.crt", "key": "user.key"}
        found["tls"] |= {name: path_of(login.secret, entry) for name, entry in names.items()}
    elif login.type is not None:
        password = path_of(login.secret, "password")
        found["sasl"] = {"mechanism": SCRAM_MECHANISM, "username": login.username, "passwordFile": password}
    return found


def heap_mib(memory: int) -> int:
    """The Java heap in MiB for a container with `memory` bytes."""
    return max(_HEAP_MIB_MIN, (memory >> 20) * _HEAP_PERCENT // 100)


def driver_heap_mib(pipeline: Pipeline) -> int:
    return heap_mib(memory_of(pipeline.spec.driver.resources, DRIVER_MEMORY))
