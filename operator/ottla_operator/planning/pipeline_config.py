"""What a pipeline's driver is started with: the job's configuration with all that the operator fills in.

Pure. `launch_of` is called by the planner, and says of what a revision is made; `filled_in` by the platforms,
which know where things are. The keys that are filled in are the job's (`ottla_pipeline.config`), which the
operator does not import: whatever else the configuration holds goes through as it is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from ottla_operator.planning.cluster_secrets import CA_CERTIFICATE, cluster_ca, of_certificate
from ottla_operator.resources import BrokerCluster, Pipeline, User
from ottla_operator.resources.pipeline import memory_of

MECHANISM: Final = "SCRAM-SHA-512"
DRIVER_MEMORY: Final = 3 << 29  # 1.5 GiB
EXECUTOR_MEMORY: Final = 1 << 30

# Spark takes no heap below 450 MiB. Beside it there are the JVM's own memory, and Python.
_HEAP_MIB_MIN: Final = 512
_HEAP_PERCENT: Final = 55


@dataclass(frozen=True, slots=True)
class Login:
    """By which listener's kind a driver enters, and whose Secrets it needs for that."""

    type: Literal["scram-sha-512", "tls"] | None
    """None: the listener asks nobody who he is."""
    tls: bool
    username: str = ""
    secret: str = ""
    """Of the User."""
    secret_version: str = ""
    authority: str = ""
    """The Secret with the certificate by which the brokers are known."""


@dataclass(frozen=True, slots=True)
class DriverLaunch:
    """What a driver is to be started with."""

    revision: str
    bootstrap: str
    login: Login | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """Why no driver can be started; `reason` is CamelCase."""

    reason: str
    message: str


def launch_of(
    pipeline: Pipeline,
    cluster: BrokerCluster,
    bootstrap: str,
    users: Mapping[str, User],
    traits: Mapping[str, str],
) -> DriverLaunch | Refused:
    """`users`: the cluster's, by their resources' names. `traits`: the platform's."""
    login: Login | None = None
    if pipeline.spec.user is not None:
        user = users.get(pipeline.spec.user)
        if user is None:
            message = f"there is no User {pipeline.spec.user} of {cluster.key}"
            return Refused("UserNotFound", message)
        found = _login(user, cluster)
        if isinstance(found, Refused):
            return found
        login, bootstrap = found
    elif cluster.spec.listeners and cluster.spec.listeners[0].tls:
        login = Login(None, True, authority=_authority(cluster))
    spec = pipeline.spec.model_dump(mode="json", exclude={"suspend", "cluster_ref"})
    content = [spec, bootstrap, None if login is None else _words(login), sorted(traits.items())]
    revision = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]
    return DriverLaunch(revision, bootstrap, login)


def _words(login: Login) -> list[Any]:
    return [login.type, login.tls, login.username, login.secret, login.secret_version, login.authority]


def _authority(cluster: BrokerCluster) -> str:
    return of_certificate(cluster_ca(cluster.metadata.name))


def _login(user: User, cluster: BrokerCluster) -> tuple[Login, str] | Refused:
    """With the address of the first listener that lets the user in."""
    authentication = user.spec.authentication
    kind = None if authentication is None else authentication.type
    listener = next(
        (one for one in cluster.spec.listeners if one.authentication and one.authentication.type == kind),
        None,
    )
    if kind is None or listener is None:
        return Refused("NotSupported", f"no listener of {cluster.key} lets {user.key} in")
    servers = next(
        (one.bootstrap_servers for one in cluster.status.listeners if one.name == listener.name), ""
    )
    if not servers or not user.status.secret:
        return Refused("UserNotReady", f"{user.key} has no credentials yet")
    login = Login(
        kind,
        listener.tls,
        user.login_name,
        user.status.secret,
        user.status.secret_version,
        _authority(cluster),
    )
    return login, servers


def filled_in(
    pipeline: Pipeline,
    launch: DriverLaunch,
    *,
    checkpoint: str | None,
    path_of: Callable[[str, str], str],
    settings: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The job's whole configuration. `checkpoint`: for one that names none; `path_of`: a Secret's entry as a
    file; `settings`: Spark's, which a driver needs here."""
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
        found["sasl"] = {"mechanism": MECHANISM, "username": login.username, "passwordFile": password}
    return found


def heap_mib(memory: int) -> int:
    """Java's heap in a container of so many bytes."""
    return max(_HEAP_MIB_MIN, (memory >> 20) * _HEAP_PERCENT // 100)


def driver_heap_mib(pipeline: Pipeline) -> int:
    return heap_mib(memory_of(pipeline.spec.driver.resources, DRIVER_MEMORY))
