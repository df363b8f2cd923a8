"""Kafka's security settings for a cluster's listeners and authorization.

Pure; called by each platform with the paths of the broker's files. In a secured cluster, the inter-broker
listener uses mutual TLS with certificates of the cluster's authority: brokers and the operator are super
users by the subjects of these. A user's certificate cannot have such a subject: it has no organization, and
another authority signs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ottla.security.authorizer import CLASS_NAME, CLASSES, SUPER_USERS
from ottla_operator.planning.certificates import Lifetime, Subject
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.authentication import ListenerAuthentication
from ottla_operator.resources.common import config_texts
from ottla_operator.resources.listeners import Listener
from ottla_operator.resources.security import CertificateAuthority

ORGANIZATION: Final = "ottla.dev"
SCRAM_MECHANISM: Final = "SCRAM-SHA-512"
REPLICATION: Final = "REPLICATION"
"""The name of the inter-broker listener, which the operator uses, too."""
_DEFAULT_LISTENERS: Final = (Listener(name="plain", port=9092),)
OAUTH_MECHANISM: Final = "OAUTHBEARER"
_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer"
_OAUTH_LOGIN: Final = f"{_OAUTH}.OAuthBearerLoginModule required"
_OAUTH_VALIDATOR: Final = f"{_OAUTH}.OAuthBearerValidatorCallbackHandler"
_SCRAM_LOGIN: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


@dataclass(frozen=True, slots=True)
class SecurityFiles:
    """Paths of PEM files, as the broker sees them."""

    keystore: str
    """The broker's key and certificate."""
    cluster_ca: str
    clients_ca: str
    listener_keystore: Callable[[str], str]
    """The listener's own key and certificate, by its name."""
    listener_trusted: Callable[[str], str]
    """The certificates that the broker trusts for the listener's OAuth server, by the listener's name."""
    zookeeper_trusted: str
    """The certificates that the broker trusts for an external ZooKeeper."""


def lifetime_of(authority: CertificateAuthority) -> Lifetime:
    """The lifetime of certificates that the authority signs."""
    return Lifetime(authority.validity_days, authority.renewal_days)


def broker_subject(cluster: str, names: Iterable[str] = ()) -> Subject:
    """The subject of all brokers' certificates of a cluster."""
    return Subject(f"{cluster}-brokers", ORGANIZATION, tuple(names))


def operator_subject(cluster: str) -> Subject:
    """The subject of the operator's certificate for a cluster."""
    return Subject(f"{cluster}-operator", ORGANIZATION)


def zookeeper_subject(cluster: str, names: Iterable[str] = ()) -> Subject:
    """The subject of the ZooKeeper servers' certificate of a cluster."""
    return Subject(f"{cluster}-zookeeper", ORGANIZATION, tuple(names))


def listeners_of(cluster: BrokerCluster) -> Sequence[Listener]:
    """The listeners of the spec; by default, one plaintext listener."""
    return cluster.spec.listeners or _DEFAULT_LISTENERS


def kafka_name(listener: Listener) -> str:
    """The listener's name in Kafka's settings."""
    return listener.kafka_name


def protocol_of(listener: Listener) -> str:
    """Kafka's security protocol of the listener."""
    sasl = listener.authentication is not None and listener.authentication.uses_sasl
    return f"{'SASL_' if sasl else ''}{'SSL' if listener.tls else 'PLAINTEXT'}"


def protocol_map(cluster: BrokerCluster) -> str:
    """listener.security.protocol.map, with the inter-broker listener."""
    protocols = {REPLICATION: "SSL" if cluster.spec.is_secured else "PLAINTEXT"}
    protocols |= {kafka_name(listener): protocol_of(listener) for listener in listeners_of(cluster)}
    return ",".join(f"{name}:{protocol}" for name, protocol in protocols.items())


def security_settings(cluster: BrokerCluster, files: SecurityFiles) -> dict[str, str]:
    """The security settings of one broker besides the map; empty for a cluster that is not secured."""
    name, spec = cluster.metadata.name, cluster.spec
    if not spec.is_secured:
        return {}
    settings = _of_tls(REPLICATION, files.keystore, files.cluster_ca)
    if spec.zookeeper.tls_trusted_certificates is not None:
        settings |= {
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
            "zookeeper.ssl.truststore.type": "PEM",
            "zookeeper.ssl.truststore.location": files.zookeeper_trusted,
        }
    for listener in listeners_of(cluster):
        settings |= _of_listener(listener, files)
    if spec.authorization is not None:
        own = [broker_subject(name).principal, operator_subject(name).principal]
        users = [f"User:{user}" for user in spec.authorization.super_users]
        authorizer = spec.authorization.authorizer_class or CLASSES[0]
        settings |= {CLASS_NAME: authorizer, SUPER_USERS: ";".join([*own, *users])}
    return settings


def _of_listener(listener: Listener, files: SecurityFiles) -> dict[str, str]:
    kind = listener.authentication.type if listener.authentication is not None else ""
    settings: dict[str, str] = {}
    if listener.tls:
        own = listener.has_own_certificate
        keystore = files.listener_keystore(listener.name) if own else files.keystore
        settings |= _of_tls(kafka_name(listener), keystore, files.clients_ca if kind == "tls" else "")
    if kind == "scram-sha-512":
        prefix = _prefix(kafka_name(listener))
        settings[f"{prefix}sasl.enabled.mechanisms"] = SCRAM_MECHANISM
        settings[f"{prefix}{SCRAM_MECHANISM.lower()}.sasl.jaas.config"] = _SCRAM_LOGIN
    elif listener.authentication is not None and kind == "oauth":
        trusted = files.listener_trusted(listener.name)
        settings |= _prefixed(listener, _of_oauth(listener.authentication, trusted))
    elif listener.authentication is not None and kind == "custom":
        settings |= _prefixed(listener, config_texts(listener.authentication.listener_config or {}))
    return settings


def _prefixed(listener: Listener, settings: Mapping[str, str]) -> dict[str, str]:
    return {f"{_prefix(kafka_name(listener))}{name}": value for name, value in settings.items()}


def _of_oauth(oauth: ListenerAuthentication, trusted: str) -> dict[str, str]:
    """Kafka's own settings for tokens that an OAuth server has signed. `trusted`: the file for
    tlsTrustedCertificates."""
    options: dict[str, str] = {}
    if oauth.tls_trusted_certificates:
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": trusted}
    if oauth.disable_tls_hostname_verification:
        options["ssl.endpoint.identification.algorithm"] = ""
    login = " ".join([_OAUTH_LOGIN, *(f'{name}="{value}"' for name, value in options.items())])
    refresh_s, reauth_s = oauth.jwks_refresh_seconds, oauth.max_seconds_without_reauthentication
    given = {
        "sasl.enabled.mechanisms": OAUTH_MECHANISM,
        "oauthbearer.sasl.server.callback.handler.class": _OAUTH_VALIDATOR,
        "oauthbearer.sasl.jaas.config": f"{login};",
        "sasl.oauthbearer.jwks.endpoint.url": oauth.jwks_endpoint_uri,
        "sasl.oauthbearer.jwks.endpoint.refresh.ms": refresh_s and refresh_s * 1000,
        "sasl.oauthbearer.expected.issuer": oauth.valid_issuer_uri,
        "sasl.oauthbearer.expected.audience": oauth.client_id if oauth.check_audience else None,
        "sasl.oauthbearer.sub.claim.name": oauth.user_name_claim,
        "sasl.oauthbearer.scope.claim.name": oauth.scope_claim,
        "sasl.oauthbearer.clock.skew.seconds": oauth.clock_skew_seconds,
        "oauthbearer.connections.max.reauth.ms": reauth_s and reauth_s * 1000,
    }
    return {name: str(value) for name, value in given.items() if value is not None}


def _of_tls(name: str, keystore: str, trusted: str) -> dict[str, str]:
    """`trusted`: the file of the authority that must have signed clients' certificates; "": clients need
    none."""
    settings = {"ssl.keystore.type": "PEM", "ssl.keystore.location": keystore}
    if trusted:
        settings |= {
            "ssl.client.auth": "required",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": trusted,
        }
    return {f"{_prefix(name)}{setting}": value for setting, value in settings.items()}


def _prefix(name: str) -> str:
    return f"listener.name.{name.lower()}."
