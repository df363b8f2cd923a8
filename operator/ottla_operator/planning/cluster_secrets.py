"""Plans the Secrets of a secured cluster: authorities, and certificates of brokers, ZooKeeper and operator.

Called in every reconciliation by each platform, which stores Secrets in its own way. A function of the
existing Secrets, the time and random bytes: a certificate that is not due stays unchanged.
Names and entries are Strimzi's, except that a key and its certificate are in one entry, as Kafka reads them.

To replace the key of an authority, an administrator deletes its Secret. Three phases follow, each after the
previous one has reached all pods: both authorities are trusted; all certificates are issued by the new one;
the old one is no longer trusted. The old authority of clients is trusted until it expires, as with Strimzi:
the operator has no list of the certificates that clients use.

A listener's own certificate is copied from the Secret that the spec names, which the operator never writes.
One that cannot be used is not copied, so that the last one stays in force; before the first one, the
cluster's authority issues one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ottla_operator.planning.certificates import (
    Lifetime,
    Pair,
    RandomBytes,
    Subject,
    authority_reason,
    certificates_in,
    is_issued_by,
    is_recently_issued,
    issue,
    new_authority,
    new_password,
    pkcs12_truststore,
    renewal_reason,
    still_trusted,
    without_former_keys,
)
from ottla_operator.planning.given_certificates import Flaw, authorities_in, given_pair, lacks_hosts
from ottla_operator.planning.listener_security import (
    broker_subject,
    lifetime_of,
    listeners_of,
    operator_subject,
    zookeeper_subject,
)
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.cluster import Listener

Data = Mapping[str, bytes]

CA_CERTIFICATE, CA_STORE, CA_PASSWORD, CA_KEY = "ca.crt", "ca.p12", "ca.password", "ca.key"
OPERATOR = "cluster-operator"
ZOOKEEPER = "zookeeper"


def cluster_ca(cluster: str) -> str:
    """The Secret with the key of the cluster's authority; `certificate_secret` of it is that with the
    certificate."""
    return f"{cluster}-cluster-ca"


def clients_ca(cluster: str) -> str:
    """The Secret with the key of the authority for users."""
    return f"{cluster}-clients-ca"


def certificate_secret(authority: str) -> str:
    """The Secret with the certificate of the authority whose key is in `authority`."""
    return f"{authority}-cert"


def brokers_secret(cluster: str) -> str:
    """The Secret with each broker's key and certificate."""
    return f"{cluster}-brokers"


def zookeeper_secret(cluster: str) -> str:
    """The Secret of all ZooKeeper servers: one certificate with the names of each."""
    return f"{cluster}-zookeeper"


def operator_secret(cluster: str) -> str:
    """The Secret with the operator's key and certificate."""
    return f"{cluster}-cluster-operator-certs"


def listener_file(listener: str) -> str:
    """The name, without .pem, of the file in the brokers' Secret with the listener's own certificate. No pod
    has such a name."""
    return f"{listener}.listener"


def listeners_in_use(settings: Iterable[str]) -> set[str]:
    """The listeners whose own certificates these values of settings name."""
    suffix = f"{listener_file('')}.pem"
    return {value.rpartition("/")[2].removesuffix(suffix) for value in settings if value.endswith(suffix)}


def given_secrets(cluster: BrokerCluster) -> set[str]:
    """The Secrets of others that the plan needs."""
    sources = (listener.own_certificate for listener in listeners_of(cluster))
    return {source.secret_name for source in sources if source is not None}


def secret_names(cluster: str) -> list[str]:
    """The names of all Secrets of a secured cluster."""
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
    flaws: list[Flaw] = field(default_factory=list)
    """What is wrong with certificates of others."""


def plan_secrets(
    cluster: BrokerCluster,
    brokers: Mapping[str, Sequence[str]],
    found: Mapping[str, Data],
    now_ms: int,
    random_bytes: RandomBytes,
    *,
    zookeeper: Sequence[str] = (),
    hosts: Mapping[str, Sequence[str]] | None = None,
    in_use: Collection[str] = (),
) -> SecretsPlan:
    """`brokers`: the names and addresses of each broker, by its file's name. `found`: the existing Secrets,
    also those of others (`given_secrets`). `zookeeper`: the names of the servers; empty without TLS. `hosts`:
    where clients connect to, by listener with an own certificate. `in_use`: listeners whose own certificate
    brokers use, though they may have another one after their next restart."""
    name, spec = cluster.metadata.name, cluster.spec
    planner = _Planner(found, now_ms, random_bytes)
    planner.plan_authority(clients_ca(name), lifetime_of(spec.clients_ca))
    authority, lifetime = cluster_ca(name), lifetime_of(spec.cluster_ca)
    pair = planner.plan_authority(authority, lifetime)
    subjects = {brokers_secret(name): {file: broker_subject(name, names) for file, names in brokers.items()}}
    own = [listener.name for listener in listeners_of(cluster) if listener.own_certificate is not None]
    all_names = list(dict.fromkeys(each for names in brokers.values() for each in names))
    for listener in own:
        subjects[brokers_secret(name)][listener_file(listener)] = broker_subject(name, all_names)
    planner.plan_listeners(cluster, hosts or {}, set(in_use) - set(own))
    if zookeeper:
        subjects[zookeeper_secret(name)] = {ZOOKEEPER: zookeeper_subject(name, zookeeper)}
    subjects[operator_secret(name)] = {OPERATOR: operator_subject(name)}
    issued: list[bytes] = []
    for secret, subjects_by_file in subjects.items():
        issued += planner.plan_certificates(secret, authority, pair, subjects_by_file, lifetime)
    planner.drop_former_keys(authority, pair, issued)
    return planner.plan


class _Planner:
    """Plans one Secret after the other into `plan`."""

    def __init__(self, found: Mapping[str, Data], now_ms: int, random_bytes: RandomBytes) -> None:
        self.plan = SecretsPlan()
        self._found = found
        self._now_ms = now_ms
        self._random_bytes = random_bytes
        self._given: dict[str, dict[str, bytes]] = {}
        """Files that are not issued here, by Secret."""

    def plan_listeners(
        self, cluster: BrokerCluster, hosts: Mapping[str, Sequence[str]], in_use: Collection[str]
    ) -> None:
        """Plan the listeners' own certificates, before those of brokers."""
        secret, name = brokers_secret(cluster.metadata.name), cluster.metadata.name
        existing, files = self._found.get(secret, {}), self._given.setdefault(secret, {})
        kept = {f"{listener_file(former)}.pem" for former in in_use}
        files |= {file: pem for file, pem in existing.items() if file in kept}
        trusted = self.plan.data[certificate_secret(cluster_ca(name))][CA_CERTIFICATE]
        for listener in listeners_of(cluster):
            source = listener.own_certificate
            if source is None:
                continue
            file, what = (
                f"{listener_file(listener.name)}.pem",
                f"listener {listener.name}: Secret {source.secret_name}",
            )
            given = given_pair(
                what,
                self._found.get(source.secret_name),
                (source.certificate, source.key),
                cluster.spec.cluster_ca.renewal_days,
                self._now_ms,
            )
            flaw = given.flaw
            if given.pair is not None:
                files[file] = given.pair.pem
                if existing.get(file) != given.pair.pem:
                    taken = f"{listener_file(listener.name)}: from Secret {source.secret_name}"
                    self.plan.changes.setdefault(secret, []).append(taken)
                flaw = flaw or lacks_hosts(given.pair, what, hosts.get(listener.name, ()))
            elif file in existing and not _is_of(existing[file], trusted):
                files[file] = existing[file]
            if flaw is not None:
                self.plan.flaws.append(flaw)

    def plan_authority(self, name: str, lifetime: Lifetime) -> Pair:
        """Plan the Secrets of an authority's key and certificates. Returns both."""
        key = self._found.get(name, {}).get(CA_KEY)
        bundle = self._found.get(certificate_secret(name), {}).get(CA_CERTIFICATE, b"")
        current = certificates_in(bundle)[:1]
        pair = Pair(key, current[0]) if key and current else None
        reason = authority_reason(pair, lifetime, self._now_ms)
        if pair is None or reason:
            pair = new_authority(name, lifetime, self._now_ms, self._random_bytes, key)
            self.plan.changes[certificate_secret(name)] = [f"{name}: {reason}"]
        self.plan.data[name] = {CA_KEY: pair.key}
        self._publish(name, pair.certificate + still_trusted(pair.certificate, bundle, self._now_ms))
        return pair

    def _publish(self, name: str, bundle: bytes) -> None:
        """Plan the Secret with the authority's certificates; the Java trust store is made again when these
        change."""
        public = self._found.get(certificate_secret(name), {})
        if public.get(CA_CERTIFICATE) != bundle or not {CA_STORE, CA_PASSWORD} <= public.keys():
            password = new_password(self._random_bytes)
            public = {CA_STORE: pkcs12_truststore(bundle, password), CA_PASSWORD: password.encode()}
        self.plan.data[certificate_secret(name)] = {
            CA_CERTIFICATE: bundle,
            CA_STORE: public[CA_STORE],
            CA_PASSWORD: public[CA_PASSWORD],
        }

    def plan_certificates(
        self, secret: str, authority: str, pair: Pair, subjects: Mapping[str, Subject], lifetime: Lifetime
    ) -> list[bytes]:
        """Plan a Secret with a key and a certificate for each subject, by file name. `pair`: of the
        authority. Returns the certificates."""
        trusted = self.plan.data[certificate_secret(authority)][CA_CERTIFICATE]
        certificates, files = [], dict(self._given.get(secret, {}))
        for file, subject in subjects.items():
            if f"{file}.pem" in files:
                continue
            pem = self._found.get(secret, {}).get(f"{file}.pem")
            own = Pair.of_pem(pem) if pem else None
            reason = renewal_reason(own, pair.certificate, subject, lifetime, self._now_ms)
            if own is None or (
                reason and not renewal_can_wait(own, trusted, subject, lifetime, self._now_ms)
            ):
                own = issue(pair, subject, lifetime, self._now_ms, self._random_bytes)
                self.plan.changes.setdefault(secret, []).append(f"{file}: {reason}")
            files[f"{file}.pem"] = own.pem
            certificates.append(own.certificate)
        self.plan.data[secret] = files
        return certificates

    def drop_former_keys(self, authority: str, pair: Pair, issued: Iterable[bytes]) -> None:
        """Remove the authority's former keys from the trusted ones, once all certificates are of its new
        key and have reached all pods."""
        bundle = self.plan.data[certificate_secret(authority)][CA_CERTIFICATE]
        left = without_former_keys(bundle)
        if left != bundle and all(
            is_issued_by(each, pair.certificate) and not is_recently_issued(each, self._now_ms)
            for each in issued
        ):
            self._publish(authority, left)
            message = f"{authority}: no certificate uses its former key any more"
            self.plan.changes[certificate_secret(authority)] = [message]


def clients_trust(cluster: BrokerCluster, listener: Listener, data: Mapping[str, Data]) -> bytes:
    """The certificates that clients of the listener must trust, in PEM; empty while there are none."""
    name, source = cluster.metadata.name, listener.own_certificate
    of_cluster = data.get(certificate_secret(cluster_ca(name)), {}).get(CA_CERTIFICATE, b"")
    own = data.get(brokers_secret(name), {}).get(f"{listener_file(listener.name)}.pem")
    if source is None or own is None or _is_of(own, of_cluster):
        return of_cluster
    chain = certificates_in(own)
    root = authorities_in(data.get(source.secret_name, {}).get(CA_CERTIFICATE, b""))
    found = dict.fromkeys(pem.strip() + b"\n" for pem in (*authorities_in(own), *root))
    return b"".join(found or chain[:1])


def _is_of(pem: bytes, authorities: bytes) -> bool:
    """Whether one of the authorities issued the certificate that the file begins with, after its key."""
    certificate = Pair.of_pem(pem).certificate
    return any(is_issued_by(certificate, authority) for authority in certificates_in(authorities))


def renewal_can_wait(pair: Pair, trusted: bytes, subject: Subject, lifetime: Lifetime, now_ms: int) -> bool:
    """Whether a renewal must wait, since its only reason is a recently replaced authority: pods that do
    not have the new authority yet would not trust a certificate of it."""
    newest, *older = certificates_in(trusted)
    return is_recently_issued(newest, now_ms) and any(
        not renewal_reason(pair, old, subject, lifetime, now_ms) for old in older
    )
