"""Writes a properties file for Kafka clients for each User of a local cluster.

Called by `up.session` after every reconciliation. `<data>/clients/<user>.properties` has mode 0600, like the
Secret that it is made from, and is deleted with the User.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ottla.local.brokers import escaped
from ottla_operator.planning.cluster_secrets import CA_CERTIFICATE
from ottla_operator.planning.users import MECHANISM
from ottla_operator.platform.local_security import LocalSecurity
from ottla_operator.platform.secret_files import SecretFiles, write_private
from ottla_operator.resources import BrokerCluster, User


class ClientFiles:
    def __init__(self, folder: Path, secrets: SecretFiles) -> None:
        self._folder = folder
        self._secrets = secrets

    def write(self, cluster: BrokerCluster, users: Iterable[User]) -> Iterator[tuple[User, str]]:
        """Write the files that have changed. Yields each user with a Secret, and a line that describes its
        connection."""
        kept = set()
        for user in users:
            properties = self._properties(cluster, user)
            if not properties:
                continue
            path = self._folder / f"{user.metadata.name}.properties"
            kept.add(path)
            text = "".join(f"{name}={escaped(value)}\n" for name, value in properties.items())
            if not path.exists() or path.read_text() != text:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                write_private(path, text.encode())
            servers, secret = properties["bootstrap.servers"], self._secrets.path(user.secret_name)
            yield user, f"{user.key}: bootstrap={servers} properties={path.absolute()} secret={secret}"
        for path in set(self._folder.glob("*.properties")) - kept:
            path.unlink(missing_ok=True)

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
        servers = {status.name: status.bootstrap_servers for status in cluster.status.listeners}
        properties = {"bootstrap.servers": servers.get(listener.name, "")}
        if listener.tls:
            properties |= {
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(
                    self._secrets.path(LocalSecurity.authority(cluster), CA_CERTIFICATE)
                ),
            }
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
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": login,
        }

    def _key_store(self, user: User) -> Mapping[str, str]:
        password = self._secrets.path(user.secret_name, "user.password").read_text()
        return {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(self._secrets.path(user.secret_name, "user.p12")),
            "ssl.keystore.password": password,
            "ssl.key.password": password,
        }
