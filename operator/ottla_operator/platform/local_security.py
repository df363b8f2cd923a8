"""Security of local clusters: Secrets as files, listeners with certificates, and files for Kafka clients.

Used by `ottla up`. Settings and certificates are the same as in pods (`planning.listener_security`,
`planning.cluster_secrets`), with files instead of mounted Secrets. The files `<data>/secrets/<name>/<entry>`
are readable by their owner only; invariant: a file is replaced atomically.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from ottla.local.brokers import escaped
from ottla_operator.planning.certificates import RandomBytes
from ottla_operator.planning.cluster_secrets import (
    CLIENTS_CA,
    CLUSTER_CA,
    OPERATOR,
    ZOOKEEPER_TRUSTED,
    brokers_secret,
    clients_trust,
    files_in_use,
    given_config_maps,
    given_secrets,
    listener_file,
    operator_secret,
    plan_secrets,
    secret_names,
    trusted_file,
)
from ottla_operator.planning.given_certificates import finding_of
from ottla_operator.planning.listener_security import (
    REPLICATION,
    SCRAM_MECHANISM,
    SecurityFiles,
    kafka_name,
    listeners_of,
    protocol_map,
    security_settings,
)
from ottla_operator.planning.observed import Secret
from ottla_operator.platform.interfaces import Ensured, StepFailed
from ottla_operator.platform.processes import write_atomically
from ottla_operator.resources import AnyResource, BrokerCluster, User
from ottla_operator.resources.cluster_status import ListenerStatus
from ottla_operator.resources.listeners import Listener

PORTS_APART: Final = 100
_OWNER: Final = ".owner"
_TRUSTED: Final = "ssl.truststore.location"
SCRAM_TYPE: Final = "scram-sha-512"


def _without_issuers(cluster: BrokerCluster) -> BrokerCluster:
    """The cluster as if nothing had an issuer: there is no cert-manager."""
    without = [
        one.model_copy(update={"configuration": one.configuration.model_copy(update={"issuer_ref": None})})
        for one in cluster.spec.listeners
    ]
    of_authorities = {
        name: getattr(cluster.spec, name).model_copy(update={"issuer_ref": None})
        for name in ("cluster_ca", "clients_ca")
    }
    spec = cluster.spec.model_copy(update={"listeners": without, **of_authorities})
    return cluster.model_copy(update={"spec": spec})


class SecretFiles:
    """The `Secrets` interface over a folder with a folder for each Secret and a file for each entry.

    A folder that the operator wrote has the key of its resource in `.owner`; users may add other folders for
    passwords that they choose.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, name: str, entry: str = "") -> Path:
        """The file of a Secret's entry; without `entry`, the Secret's folder."""
        return (self._folder / name / entry).absolute()

    async def read(self, names: Collection[str]) -> Mapping[str, Secret]:
        return {name: self._read(name) for name in names if self.path(name).is_dir()}

    def data_of(self, names: Iterable[str]) -> Mapping[str, Mapping[str, bytes]]:
        """The content of the existing Secrets among `names`."""
        return {name: self._read(name).data for name in names if self.path(name).is_dir()}

    def config_maps(self, names: Iterable[str]) -> Mapping[str, Mapping[str, bytes]]:
        """The same for ConfigMaps, which are folders beside that of the Secrets."""
        folders = {name: self._folder.parent / "configmaps" / name for name in names}
        return {name: self._read(name, folder).data for name, folder in folders.items() if folder.is_dir()}

    def _read(self, name: str, folder: Path | None = None) -> Secret:
        data, versions = {}, []
        for path in sorted((folder or self.path(name)).iterdir()):
            if path.is_file() and not path.name.startswith("."):
                data[path.name] = path.read_bytes()
                status = path.stat()
                versions.append(f"{path.name}:{status.st_ino}:{status.st_mtime_ns}")
        return Secret(name, data, self._owner(name), " ".join(versions))

    def _owner(self, name: str) -> str:
        try:
            return self.path(name, _OWNER).read_text().strip()
        except OSError:
            return ""

    async def put(self, owner: AnyResource, name: str, data: Mapping[str, bytes]) -> None:
        folder = self.path(name)
        try:
            if folder.exists() and self._owner(name) != owner.key:
                raise StepFailed("SecretConflict", f"{folder} exists and {owner.key} does not own it")
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # First: after an interruption, the folder must be recognized as owned.
            write_atomically(folder / _OWNER, f"{owner.key}\n".encode())
            for entry, value in data.items():
                write_atomically(folder / entry, value)
            for path in folder.iterdir():
                if path.name != _OWNER and path.name not in data:
                    path.unlink()
        except OSError as error:
            raise StepFailed("SecretFailed", f"{folder}: {error.strerror}") from None

    async def delete(self, owner: AnyResource, name: str) -> None:
        if self._owner(name) == owner.key:
            self._remove(self.path(name))

    async def release(self, owner: AnyResource) -> None:
        for marker in self._folder.glob(f"*/{_OWNER}"):
            await self.delete(owner, marker.parent.name)

    def _remove(self, folder: Path) -> None:
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise StepFailed("SecretFailed", f"{folder}: {error.strerror}") from None


class LocalSecurity:
    """Listeners, certificates and client properties of a secured cluster of local processes.

    All brokers have one address, so each listener of each broker has its own port: listener L of broker B
    uses the first port + 100 * L + B. The inter-broker listener, which the operator uses, too, has any free
    port.
    """

    def __init__(self, secrets: SecretFiles, host: str, first_port: int, random_bytes: RandomBytes) -> None:
        self._secrets = secrets
        self._random_bytes = random_bytes
        self._host = host
        self._first_port = first_port

    # ---- addresses

    def client_ports(self, cluster: BrokerCluster, broker: int) -> list[int]:
        """The broker's port for each listener of the spec."""
        first = self._first_port + broker
        return [first + PORTS_APART * number for number, _ in enumerate(listeners_of(cluster))]

    def listeners(self, cluster: BrokerCluster) -> Sequence[ListenerStatus]:
        """`status.listeners`: the bootstrap servers and trusted certificates of each listener."""
        found, cluster = [], _without_issuers(cluster)
        for number, listener in enumerate(listeners_of(cluster)):
            ports = [self.client_ports(cluster, broker)[number] for broker in cluster.broker_ids]
            trusted = [data] if listener.tls and (data := self._trusted(cluster, listener)) else []
            servers = ",".join(f"{self._host}:{port}" for port in ports)
            found.append(ListenerStatus(name=listener.name, bootstrap_servers=servers, certificates=trusted))
        return found

    def _trusted(self, cluster: BrokerCluster, listener: Listener) -> str:
        names = [*secret_names(cluster.metadata.name), *given_secrets(cluster)]
        return clients_trust(cluster, listener, self._secrets.data_of(names)).decode()

    def cluster_trust(self, cluster: BrokerCluster) -> Path:
        """The file with the certificates of the cluster's authority, which clients trust."""
        return self._secrets.path(brokers_secret(cluster.metadata.name), CLUSTER_CA)

    # ---- brokers

    def traits(self, cluster: BrokerCluster) -> Mapping[str, str]:
        """The parts of the revision that affect local brokers: ports and types of listeners are for
        Kubernetes only."""
        cluster = _without_issuers(cluster)
        spec = cluster.spec
        listeners = [
            {
                **listener.model_dump(exclude={"port", "type", "configuration"}),
                **({"keystore": "own"} if listener.has_own_certificate else {}),
            }
            for listener in listeners_of(cluster)
        ]
        authorization = (
            None if spec.authorization is None else spec.authorization.model_dump(exclude_none=True)
        )
        return {"spec.listeners": json.dumps(listeners), "spec.authorization": json.dumps(authorization)}

    def settings(self, cluster: BrokerCluster, broker: int) -> dict[str, str]:
        """The security and listener settings of one broker, without the inter-broker listener
        (`with_inter_broker_port`)."""
        cluster = _without_issuers(cluster)
        name, listeners = cluster.metadata.name, listeners_of(cluster)
        files = SecurityFiles(
            keystore=str(self._secrets.path(brokers_secret(name), f"{_file(broker)}.pem")),
            cluster_ca=str(self._secrets.path(brokers_secret(name), CLUSTER_CA)),
            clients_ca=str(self._secrets.path(brokers_secret(name), CLIENTS_CA)),
            listener_keystore=lambda one: str(
                self._secrets.path(brokers_secret(name), f"{listener_file(one)}.pem")
            ),
            listener_trusted=lambda one: str(self._secrets.path(brokers_secret(name), trusted_file(one))),
            zookeeper_trusted=str(self._secrets.path(brokers_secret(name), ZOOKEEPER_TRUSTED)),
        )
        ports = self.client_ports(cluster, broker)
        own = [
            f"{kafka_name(listener)}://{self._host}:{port}"
            for listener, port in zip(listeners, ports, strict=True)
        ]
        return {
            "listeners": ",".join(own),
            "listener.security.protocol.map": protocol_map(cluster),
            "inter.broker.listener.name": REPLICATION,
            **security_settings(cluster, files),
        }

    def with_inter_broker_port(self, settings: Mapping[str, str], port: int) -> dict[str, str]:
        """The settings with the inter-broker listener at this port."""
        return {**settings, "listeners": f"{REPLICATION}://{self._host}:{port},{settings['listeners']}"}

    async def ensure_children(
        self, cluster: BrokerCluster, brokers: Iterable[int], used: Iterable[str], now_ms: int
    ) -> Ensured:
        """Write the Secrets of authorities and certificates that are due. `used`: values of the settings that
        brokers run with. Raises StepFailed."""
        cluster = _without_issuers(cluster)
        found = self._secrets.data_of([*secret_names(cluster.metadata.name), *given_secrets(cluster)])
        names = {_file(broker): (self._host, "localhost") for broker in brokers}
        hosts = {listener.name: [self._host] for listener in listeners_of(cluster)}
        config_maps = self._secrets.config_maps(given_config_maps(cluster))
        planned = plan_secrets(
            cluster,
            names,
            found,
            now_ms,
            self._random_bytes,
            hosts=hosts,
            in_use=files_in_use(used),
            config_maps=config_maps,
        )
        for name, data in planned.data.items():
            if found.get(name) != data:
                await self._secrets.put(cluster, name, data)
        done = [f"write Secret {name}: {', '.join(why)}" for name, why in planned.changes.items()]
        return Ensured(done, findings=finding_of(planned.flaws))

    # ---- the operator

    def client_properties(self, cluster: BrokerCluster) -> dict[str, str]:
        """The client properties of the operator's connections; empty before it has a certificate."""
        keystore = self._secrets.path(operator_secret(cluster.metadata.name), f"{OPERATOR}.pem")
        if not keystore.exists():
            return {}
        return {
            "security.protocol": "SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(keystore),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.cluster_trust(cluster)),
        }


def _file(broker: int) -> str:
    return f"broker-{broker}"


class ClientFiles:
    """Writes `<data>/clients/<user>.properties` for each User, deleted with the User.

    Called after every reconciliation. The files have mode 0600, like the Secrets that they are made from.
    """

    def __init__(self, folder: Path, secrets: SecretFiles) -> None:
        self._folder = folder.absolute()
        self._secrets = secrets

    def write(self, cluster: BrokerCluster, users: Iterable[User]) -> Iterator[tuple[User, str]]:
        """Write the files that have changed. Yields each user with a Secret, and a line that describes its
        connection."""
        kept = set()
        cluster = _without_issuers(cluster)
        for user in users:
            properties = self._properties(cluster, user)
            if not properties:
                continue
            path = self._folder / f"{user.metadata.name}.properties"
            kept |= {path, Path(properties.get(_TRUSTED, path))}
            text = "".join(f"{name}={escaped(value)}\n" for name, value in properties.items())
            self._write(path, text)
            servers, secret = properties["bootstrap.servers"], self._secrets.path(user.secret_name)
            yield user, f"{user.key}: bootstrap={servers} properties={path.absolute()} secret={secret}"
        for path in {*self._folder.glob("*.properties"), *self._folder.glob("*.crt")} - kept:
            path.unlink(missing_ok=True)

    def _write(self, path: Path, text: str) -> None:
        if not path.exists() or path.read_text() != text:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            write_atomically(path, text.encode())

    def _properties(self, cluster: BrokerCluster, user: User) -> Mapping[str, str]:
        """The client properties; empty when no listener accepts the user, or without its Secret."""
        listener = next(
            (
                listener
                for listener in cluster.spec.listeners
                if listener.authentication and listener.authentication.type == user.authentication_type
            ),
            None,
        )
        if listener is None or not user.status.secret:
            return {}
        properties = self._address(cluster, listener)
        try:
            if user.authentication_type == "tls":
                return {"security.protocol": "SSL", **properties, **self._key_store(user)}
            protocol = "SASL_SSL" if listener.tls else "SASL_PLAINTEXT"
            login = self._secrets.path(user.secret_name, "sasl.jaas.config").read_text()
        except OSError:
            return {}
        return {
            "security.protocol": protocol,
            **properties,
            "sasl.mechanism": SCRAM_MECHANISM,
            "sasl.jaas.config": login,
        }

    def console_properties(self, cluster: BrokerCluster) -> Mapping[str, str]:
        """The client properties for the console, without a log-in: of the first listener on which persons log
        in by SCRAM, else of the first one without authentication; empty without one."""
        cluster = _without_issuers(cluster)
        by_type = {
            one.authentication.type if one.authentication else "": one for one in cluster.spec.listeners[::-1]
        }
        listener = by_type.get(SCRAM_TYPE) or by_type.get("")
        if listener is None:
            return {}
        properties = self._address(cluster, listener)
        if listener.authentication is None:
            return {"security.protocol": "SSL" if listener.tls else "PLAINTEXT", **properties}
        protocol = "SASL_SSL" if listener.tls else "SASL_PLAINTEXT"
        return {"security.protocol": protocol, "sasl.mechanism": SCRAM_MECHANISM, **properties}

    def _address(self, cluster: BrokerCluster, listener: Listener) -> dict[str, str]:
        """The bootstrap servers of a listener, and what its clients trust."""
        status = next((one for one in cluster.status.listeners if one.name == listener.name), None)
        properties = {"bootstrap.servers": status.bootstrap_servers if status is not None else ""}
        if listener.tls:
            trusted = self._secrets.path(brokers_secret(cluster.metadata.name), CLUSTER_CA)
            if listener.has_own_certificate and status is not None and status.certificates:
                trusted = (self._folder / f"{listener.name}.crt").absolute()
                self._write(trusted, "".join(status.certificates))
            properties |= {"ssl.truststore.type": "PEM", _TRUSTED: str(trusted)}
        return properties

    def _key_store(self, user: User) -> Mapping[str, str]:
        password = self._secrets.path(user.secret_name, "user.password").read_text()
        return {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(self._secrets.path(user.secret_name, "user.p12")),
            "ssl.keystore.password": password,
            "ssl.key.password": password,
        }
