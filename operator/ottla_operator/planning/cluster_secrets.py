"""The authorities and certificates of one secured cluster, as Secrets: what they should hold, and why.

Called on every pass by each platform, which keeps Secrets in its own way. A function of what is there and of
the time, but for the keys it draws: what is not due stays as it is. Names and entries are Strimzi's, except
that a key stands with its certificate in one entry, as Kafka reads them. Who wants a new key of an authority
deletes the Secret of the old one. Three phases follow, each when the one before has got around: both
authorities are trusted; what is of the old one is issued anew; the old one is no longer trusted. That of
clients is trusted to its end, as with Strimzi: nobody knows who has certificates of it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ottla_operator.planning.certificates import (
    Lifetime,
    Pair,
    Subject,
    authority_reason,
    certificates_in,
    is_issued_by,
    is_new,
    issue,
    new_authority,
    pkcs12_truststore,
    renewal_reason,
    trusted_besides,
    without_earlier,
)
from ottla_operator.planning.listener_security import (
    broker_subject,
    lifetime_of,
    operator_subject,
    zookeeper_subject,
)
from ottla_operator.resources import BrokerCluster

Data = Mapping[str, bytes]

CA_CERTIFICATE, CA_STORE, CA_PASSWORD, CA_KEY = "ca.crt", "ca.p12", "ca.password", "ca.key"
OPERATOR = "cluster-operator"
ZOOKEEPER = "zookeeper"


def cluster_ca(cluster: str) -> str:
    """The Secret of the key; the certificate's is `of_certificate`."""
    return f"{cluster}-cluster-ca"


def clients_ca(cluster: str) -> str:
    return f"{cluster}-clients-ca"


def of_certificate(authority: str) -> str:
    return f"{authority}-cert"


def brokers_secret(cluster: str) -> str:
    return f"{cluster}-brokers"


def zookeeper_secret(cluster: str) -> str:
    """Of all servers together: one certificate with the names of each."""
    return f"{cluster}-zookeeper"


def operator_secret(cluster: str) -> str:
    return f"{cluster}-cluster-operator-certs"


def secret_names(cluster: str) -> list[str]:
    authorities = (clients_ca(cluster), cluster_ca(cluster))
    public = [of_certificate(authority) for authority in authorities]
    own = (brokers_secret(cluster), zookeeper_secret(cluster), operator_secret(cluster))
    return [*authorities, *public, *own]


@dataclass(slots=True)
class SecretsPlan:
    """All of a cluster's Secrets as they should be, in the order in which they are needed."""

    data: dict[str, Data] = field(default_factory=dict)
    news: dict[str, list[str]] = field(default_factory=dict)
    """By Secret, what is new in it and why."""


def plan_secrets(
    cluster: BrokerCluster,
    brokers: Mapping[str, Sequence[str]],
    found: Mapping[str, Data],
    now_ms: int,
    *,
    zookeeper: Sequence[str] = (),
) -> SecretsPlan:
    """`brokers`: by the name of its file, under which names and addresses a broker is reached. `found`: the
    Secrets that are there. `zookeeper`: the names of the servers; none where they have no TLS."""
    name = cluster.metadata.name
    planned = SecretsPlan()
    _authority(planned, clients_ca(name), lifetime_of(cluster.spec.clients_ca), found, now_ms)
    lifetime = lifetime_of(cluster.spec.cluster_ca)
    authority = _authority(planned, cluster_ca(name), lifetime, found, now_ms)
    subjects = {file: broker_subject(name, names) for file, names in brokers.items()}
    issued = _issued(planned, name, brokers_secret(name), authority, subjects, lifetime, found, now_ms)
    planned.data[brokers_secret(name)] = {f"{file}.pem": pair.pem for file, pair in issued.items()}
    if zookeeper:
        servers = {ZOOKEEPER: zookeeper_subject(name, zookeeper)}
        of_servers = _issued(
            planned, name, zookeeper_secret(name), authority, servers, lifetime, found, now_ms
        )
        issued = {**issued, **of_servers}
        planned.data[zookeeper_secret(name)] = {f"{file}.pem": pair.pem for file, pair in of_servers.items()}
    own = {OPERATOR: operator_subject(name)}
    (pair,) = _issued(planned, name, operator_secret(name), authority, own, lifetime, found, now_ms).values()
    planned.data[operator_secret(name)] = {f"{OPERATOR}.pem": pair.pem}
    shown = [each.certificate for each in (*issued.values(), pair)]
    _drop_earlier(planned, cluster_ca(name), authority, shown, found, now_ms)
    return planned


def _authority(
    planned: SecretsPlan, name: str, lifetime: Lifetime, found: Mapping[str, Data], now_ms: int
) -> Pair:
    key = found.get(name, {}).get(CA_KEY)
    bundle = found.get(of_certificate(name), {}).get(CA_CERTIFICATE, b"")
    current = certificates_in(bundle)[:1]
    pair = Pair(key, current[0]) if key and current else None
    reason = authority_reason(pair, lifetime, now_ms)
    if pair is None or reason:
        pair = new_authority(name, lifetime, now_ms, key)
        planned.news[of_certificate(name)] = [f"{name}: {reason}"]
    planned.data[name] = {CA_KEY: pair.key}
    _publish(planned, name, pair.certificate + trusted_besides(pair.certificate, bundle, now_ms), found)
    return pair


def _publish(planned: SecretsPlan, name: str, bundle: bytes, found: Mapping[str, Data]) -> None:
    """What others know the authority by; Java's store of it is another one when the certificates are."""
    public = found.get(of_certificate(name), {})
    if public.get(CA_CERTIFICATE) != bundle or not {CA_STORE, CA_PASSWORD} <= public.keys():
        password = secrets.token_urlsafe(16)
        public = {CA_STORE: pkcs12_truststore(bundle, password), CA_PASSWORD: password.encode()}
    planned.data[of_certificate(name)] = {
        CA_CERTIFICATE: bundle,
        CA_STORE: public[CA_STORE],
        CA_PASSWORD: public[CA_PASSWORD],
    }


def _drop_earlier(
    planned: SecretsPlan,
    name: str,
    authority: Pair,
    shown: Iterable[bytes],
    found: Mapping[str, Data],
    now_ms: int,
) -> None:
    """Trust the authority's earlier keys no longer when everybody has shown a certificate of its new one for
    a while."""
    bundle = planned.data[of_certificate(name)][CA_CERTIFICATE]
    left = without_earlier(bundle)
    if left == bundle:
        return
    if all(is_issued_by(each, authority.certificate) and not is_new(each, now_ms) for each in shown):
        _publish(planned, name, left, found)
        planned.news[of_certificate(name)] = [f"{name}: nothing is of its old key any more"]


def _issued(
    planned: SecretsPlan,
    cluster: str,
    secret: str,
    authority: Pair,
    subjects: Mapping[str, Subject],
    lifetime: Lifetime,
    found: Mapping[str, Data],
    now_ms: int,
) -> dict[str, Pair]:
    trusted = planned.data[of_certificate(cluster_ca(cluster))][CA_CERTIFICATE]
    pairs = {}
    for file, subject in subjects.items():
        pem = found.get(secret, {}).get(f"{file}.pem")
        pair = Pair.of_pem(pem) if pem else None
        reason = renewal_reason(pair, authority.certificate, subject, lifetime, now_ms)
        if pair is None or (reason and not may_wait(pair, trusted, subject, lifetime, now_ms)):
            pair = issue(authority, subject, lifetime, now_ms)
            planned.news.setdefault(secret, []).append(f"{file}: {reason}")
        pairs[file] = pair
    return pairs


def may_wait(pair: Pair, trusted: bytes, subject: Subject, lifetime: Lifetime, now_ms: int) -> bool:
    """Whether all that is wrong with it is an authority that was replaced just now: who has not heard of the
    new one would not trust what it signs."""
    newest, *older = certificates_in(trusted)
    return is_new(newest, now_ms) and any(
        not renewal_reason(pair, old, subject, lifetime, now_ms) for old in older
    )
