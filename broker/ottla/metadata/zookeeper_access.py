"""Authentication to ZooKeeper: TLS, SASL login, and ACLs of nodes.

Created by `ottla broker` from the settings and from Java's system properties, as in Kafka:
`KAFKA_OPTS="-Djava.security.auth.login.config=FILE"` names the JAAS file whose section `Client` has
ZooKeeper's DigestLoginModule with user and password, and properties of ZooKeeper's client are defaults of
zookeeper.ssl.* settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from ottla.metadata.config_def import ConfigError, Settings
from ottla.security import jaas
from ottla.security.stores import JKS, PEM, PKCS12, StoreProblem
from ottla.security.tls import TlsSettings

JAVA_OPTIONS: Final = "KAFKA_OPTS"
"""The environment variable with Java's options in Kafka's scripts."""

_NETTY: Final = "org.apache.zookeeper.ClientCnxnSocketNetty"
_DIGEST: Final = "org.apache.zookeeper.server.auth.DigestLoginModule"
_JAAS_FILE: Final = "java.security.auth.login.config"
_KINDS: Final = {".jks": JKS, ".pem": PEM, ".p12": PKCS12}
_PROPERTIES: Final = {
    "zookeeper.ssl.client.enable": "zookeeper.client.secure",
    "zookeeper.clientCnxnSocket": "zookeeper.clientCnxnSocket",
    "zookeeper.ssl.keystore.location": "zookeeper.ssl.keyStore.location",
    "zookeeper.ssl.keystore.password": "zookeeper.ssl.keyStore.password",
    "zookeeper.ssl.keystore.type": "zookeeper.ssl.keyStore.type",
    "zookeeper.ssl.truststore.location": "zookeeper.ssl.trustStore.location",
    "zookeeper.ssl.truststore.password": "zookeeper.ssl.trustStore.password",
    "zookeeper.ssl.truststore.type": "zookeeper.ssl.trustStore.type",
    "zookeeper.ssl.protocol": "zookeeper.ssl.protocol",
    "zookeeper.ssl.enabled.protocols": "zookeeper.ssl.enabledProtocols",
    "zookeeper.ssl.cipher.suites": "zookeeper.ssl.ciphersuites",
    "zookeeper.ssl.endpoint.identification.algorithm": "zookeeper.ssl.hostnameVerification",
    "zookeeper.ssl.crl.enable": "zookeeper.ssl.crl",
    "zookeeper.ssl.ocsp.enable": "zookeeper.ssl.ocsp",
}
"""Kafka's setting -> the property of ZooKeeper's client that is its default."""
_NOT_AUTHENTICATED: Final = (
    "zookeeper.set.acl=true: requires authentication: a client certificate "
    "(zookeeper.ssl.client.enable, zookeeper.clientCnxnSocket, zookeeper.ssl.keystore.location), or a login "
    f"({JAVA_OPTIONS}=-D{_JAAS_FILE}=FILE, a file with a section Client)"
)
_SWITCHES: Final = ("zookeeper.ssl.client.enable", "zookeeper.ssl.crl.enable", "zookeeper.ssl.ocsp.enable")


class Account(NamedTuple):
    user: str
    password: str


@dataclass(frozen=True, slots=True, repr=False)
class ZooKeeperAccess:
    """Contains secrets, so it has no repr. By default without TLS, login and secure ACLs."""

    tls: TlsSettings | None = None
    login: Account | None = None
    secure_acls: bool = False

    @classmethod
    def of(cls, settings: Settings, properties: Mapping[str, str]) -> ZooKeeperAccess:
        """Reads the JAAS file. Raises ConfigError."""
        login = _login(properties)
        try:
            tls = _tls(settings) if settings["zookeeper.ssl.client.enable"] else None
        except StoreProblem as problem:
            raise ConfigError([str(problem)]) from None
        secure = bool(settings["zookeeper.set.acl"])
        if secure and login is None and (tls is None or tls.keystore_location is None):
            raise ConfigError([_NOT_AUTHENTICATED])
        return cls(tls, login, secure)


def java_properties(options: str) -> dict[str, str]:
    """The system properties in Java's options, split at blanks as in Kafka's scripts."""
    words = [word.removeprefix("-D").partition("=") for word in options.split() if word.startswith("-D")]
    return {name: value for name, _, value in words}


def settings_of(properties: Mapping[str, str]) -> dict[str, str]:
    """The defaults of settings from system properties."""
    found = {name: properties[of] for name, of in _PROPERTIES.items() if of in properties}
    for name in _SWITCHES:
        if name in found:
            found[name] = str(found[name] == "true").lower()
    verification = "zookeeper.ssl.endpoint.identification.algorithm"
    if verification in found:
        found[verification] = "HTTPS" if found[verification] == "true" else ""
    return found


def problems(settings: Settings) -> list[str]:
    """Errors of the settings, a line each."""
    if not settings["zookeeper.ssl.client.enable"]:
        return []
    found = [
        f"{name}=true: checks for revoked certificates are not supported"
        for name in ("zookeeper.ssl.crl.enable", "zookeeper.ssl.ocsp.enable")
        if settings[name]
    ]
    socket = settings["zookeeper.clientCnxnSocket"]
    if socket not in (_NETTY, _NETTY.rpartition(".")[2]):
        found.append(f"zookeeper.clientCnxnSocket={socket or ''}: must be {_NETTY}, for TLS to ZooKeeper")
    return found


def _tls(settings: Settings) -> TlsSettings:
    def text(name: str) -> str | None:
        value = settings[f"zookeeper.ssl.{name}"]
        assert value is None or isinstance(value, str)
        return value

    def words(name: str) -> tuple[str, ...]:
        value = settings[f"zookeeper.ssl.{name}"]
        assert value is None or isinstance(value, tuple)
        return value or ()

    return TlsSettings(
        keystore_type=_kind("keystore", text("keystore.type"), text("keystore.location")),
        keystore_location=text("keystore.location"),
        keystore_password=text("keystore.password"),
        key_password=text("keystore.password"),  # ZooKeeper's client has no separate one
        chain=None,
        key=None,
        truststore_type=_kind("truststore", text("truststore.type"), text("truststore.location")),
        truststore_location=text("truststore.location"),
        truststore_password=text("truststore.password"),
        certificates=None,
        client_auth="none",
        protocols=words("enabled.protocols") or (text("protocol") or "",),
        ciphers=words("cipher.suites"),
        identification=text("endpoint.identification.algorithm") or "",
    )


def _kind(store: str, named: str | None, location: str | None) -> str:
    """The type of a store, by default from the suffix of the file name. Raises StoreProblem."""
    if named is not None or location is None:
        return named or PEM
    ending = Path(location).suffix
    if ending not in _KINDS:
        raise StoreProblem(
            f"zookeeper.ssl.{store}.type: required, because {location} does not end in {', '.join(_KINDS)}"
        )
    return _KINDS[ending]


def _login(properties: Mapping[str, str]) -> Account | None:
    """The account in the JAAS file; None without a file, or without the section. Raises ConfigError."""
    named = properties.get(_JAAS_FILE, "").removeprefix("=").removeprefix("file:")
    if not named:
        return None
    section = properties.get("zookeeper.sasl.clientconfig", "Client")
    try:
        logins = jaas.parse_file(Path(named).read_text("utf-8")).get(section)
    except OSError as problem:
        raise ConfigError([f"{_JAAS_FILE}={named}: cannot be read: {problem.strerror}"]) from None
    except ValueError as problem:
        raise ConfigError([f"{_JAAS_FILE}={named}: {problem}"]) from None
    if not logins:
        return None
    module, options = logins[0]
    if properties.get("zookeeper.sasl.client", "true").lower() != "true":
        raise ConfigError([f"zookeeper.sasl.client=false: contradicts the section {section} of {named}"])
    if module != _DIGEST:
        raise ConfigError([f"{named}: section {section}: {module} is not served; {_DIGEST} is"])
    missing = [key for key in ("username", "password") if key not in options]
    if missing:
        raise ConfigError([f"{named}: section {section}: {' and '.join(missing)} not set"])
    return Account(options["username"], options["password"])
