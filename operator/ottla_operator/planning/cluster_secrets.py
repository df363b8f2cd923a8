"""Plans the Secrets of a secured cluster: authorities, and certificates of brokers, ZooKeeper and operator.

Called in every reconciliation by each platform, which stores Secrets in its own way. A function of the
existing Secrets and the time, but for the generated keys: a certificate that is not due stays unchanged.
Names and entries are Strimzi's, except that a key and its certificate are in one entry, as Kafka reads them.

To replace the key of an authority, an administrator deletes its Secret. Three phases follow, each after the
previous one has reached all pods: both authorities are trusted; all certificates are issued by the new one;
the old one is no longer trusted. The old authority of clients is trusted until it expires, as with Strimzi:
the operator has no list of the certificates that clients use.
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
    is_recently_issued,
    issue,
    new_authority,
    pkcs12_truststore,
    renewal_reason,
    still_trusted,
    without_former_keys,
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
    """The Secret with the key of the cluster's authority; `certificate_secret` of it is that with the
    certificate."""
    return f"{cluster}-cluster-ca"


def clients_ca(cluster: str) -> str:
    return f"{cluster}-clients-ca"


def certificate_secret(authority: str) -> str:
    return f"{authority}-cert"


def brokers_secret(cluster: str) -> str:
    return f"{cluster}-brokers"


def zookeeper_secret(cluster: str) -> str:
    """The Secret of all ZooKeeper servers: one certificate with the names of each."""
    return f"{cluster}-zookeeper"


def operator_secret(cluster: str) -> str:
    return f"{cluster}-cluster-operator-certs"


def secret_names(cluster: str) -> list[str]:
    authorities = (clients_ca(cluster), cluster_ca(cluster))
    public = [certificate_secret(authority) for authority in authorities]
    own = (brokers_secret(cluster), zookeeper_secret(cluster), operator_secret(cluster))
    return [*authorities, *public, *own]


@dataclass(slots=True)
class SecretsPlan:
    """The desired content of all Secrets of a cluster, in the order in which they are needed."""

    data: dict[str, Data] = field(default_factory=dict)
    changes: dict[str, list[str]] = field(default_factory=dict)
    """By Secret, what changes in it and why."""


def plan_secrets(
    cluster: BrokerCluster,
    brokers: Mapping[str, Sequence[str]],
    found: Mapping[str, Data],
    now_ms: int,
    *,
    zookeeper: Sequence[str] = (),
) -> SecretsPlan:
    """`brokers`: the names and addresses of each broker, by its file's name. `found`: the existing Secrets.
    `zookeeper`: the names of the servers; empty without TLS."""
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
    _drop_former_keys(planned, cluster_ca(name), authority, shown, found, now_ms)
    return planned


def _authority(
    planned: SecretsPlan, name: str, lifetime: Lifetime, found: Mapping[str, Data], now_ms: int
) -> Pair:
    key = found.get(name, {}).get(CA_KEY)
    bundle = found.get(certificate_secret(name), {}).get(CA_CERTIFICATE, b"")
    current = certificates_in(bundle)[:1]
    pair = Pair(key, current[0]) if key and current else None
    reason = authority_reason(pair, lifetime, now_ms)
    if pair is None or reason:
        pair = new_authority(name, lifetime, now_ms, key)
        planned.changes[certificate_secret(name)] = [f"{name}: {reason}"]
    planned.data[name] = {CA_KEY: pair.key}
    _publish(planned, name, pair.certificate + still_trusted(pair.certificate, bundle, now_ms), found)
    return pair


def _publish(planned: SecretsPlan, name: str, bundle: bytes, found: Mapping[str, Data]) -> None:
    """Plan the Secret with the authority's certificates; the Java trust store is made again when these
    change."""
    public = found.get(certificate_secret(name), {})
    if public.get(CA_CERTIFICATE) != bundle or not {CA_STORE, CA_PASSWORD} <= public.keys():
        password = secrets.token_urlsafe(16)
        public = {CA_STORE: pkcs12_truststore(bundle, password), CA_PASSWORD: password.encode()}
    planned.data[certificate_secret(name)] = {
        CA_CERTIFICATE: bundle,
        CA_STORE: public[CA_STORE],
        CA_PASSWORD: public[CA_PASSWORD],
    }


def _drop_former_keys(
    planned: SecretsPlan,
    name: str,
    authority: Pair,
    shown: Iterable[bytes],
    found: Mapping[str, Data],
    now_ms: int,
) -> None:
    """Remove the authority's former keys from the trusted ones, once all certificates are of its new key
    and have reached all pods."""
    bundle = planned.data[certificate_secret(name)][CA_CERTIFICATE]
    left = without_former_keys(bundle)
    if left == bundle:
        return
    if all(
        is_issued_by(each, authority.certificate) and not is_recently_issued(each, now_ms) for each in shown
    ):
        _publish(planned, name, left, found)
        planned.changes[certificate_secret(name)] = [f"{name}: no certificate uses its former key any more"]


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
    trusted = planned.data[certificate_secret(cluster_ca(cluster))][CA_CERTIFICATE]
    pairs = {}
    for file, subject in subjects.items():
        pem = found.get(secret, {}).get(f"{file}.pem")
        pair = Pair.of_pem(pem) if pem else None
        reason = renewal_reason(pair, authority.certificate, subject, lifetime, now_ms)
        if pair is None or (reason and not renewal_can_wait(pair, trusted, subject, lifetime, now_ms)):
            pair = issue(authority, subject, lifetime, now_ms)
            planned.changes.setdefault(secret, []).append(f"{file}: {reason}")
        pairs[file] = pair
    return pairs


def renewal_can_wait(pair: Pair, trusted: bytes, subject: Subject, lifetime: Lifetime, now_ms: int) -> bool:
    """Whether a renewal must wait, since its only reason is a recently replaced authority: pods that do
    not have the new authority yet would not trust a certificate of it."""
    newest, *older = certificates_in(trusted)
    return is_recently_issued(newest, now_ms) and any(
        not renewal_reason(pair, old, subject, lifetime, now_ms) for old in older
    )
