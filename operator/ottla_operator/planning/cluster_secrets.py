"""Plans the Secrets of a secured cluster: authorities, and certificates of brokers, ZooKeeper and operator.

Called in every reconciliation by each platform, which stores Secrets in its own way. A function of the
existing Secrets, the time and random bytes: a certificate that is not due stays unchanged.
Names and entries are Strimzi's, except that a key and its certificate are in one entry, as Kafka reads them.

To replace the key of an authority, an administrator deletes its Secret. Three phases follow, each after the
previous one has reached all pods: both authorities are trusted; all certificates are issued by the new one;
the old one is no longer trusted. The old authority of clients is trusted until it expires, as with Strimzi:
the operator has no list of the certificates that clients use.

What pods trust is in the Secrets of their keys, so that both change together. An authority of others
(`generateCertificateAuthority: false`) is in the same two Secrets, which the operator only reads; the same
phases follow when its key is another one.

A listener's own certificate is copied from the Secret that the spec names, which the operator never writes.
One that cannot be used is not copied, so that the last one stays in force; before the first one, the
cluster's authority issues one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from ottla_operator.conditions import iso_time, parse_iso_time
from ottla_operator.planning.certificates import (
    SPREAD,
    UNREADABLE,
    Lifetime,
    Pair,
    RandomBytes,
    Subject,
    authority_reason,
    certificates_in,
    is_issued_by,
    is_pair,
    is_recently_issued,
    issue,
    new_authority,
    new_password,
    pkcs12_truststore,
    renewal_reason,
    same_key,
    still_trusted,
    without_former_keys,
)
from ottla_operator.planning.given_certificates import (
    CA_CERTIFICATE,
    CA_KEY,
    Flaw,
    authorities_in,
    given_authority,
    given_pair,
    lacks_hosts,
    trusted_certificates,
)
from ottla_operator.planning.listener_security import (
    broker_subject,
    lifetime_of,
    listeners_of,
    operator_subject,
    zookeeper_subject,
)
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.authentication import TrustedCertificates
from ottla_operator.resources.common import RENEW_ANNOTATION
from ottla_operator.resources.listeners import CertificateSource, Listener
from ottla_operator.resources.security import CertificateAuthority

Data = Mapping[str, bytes]

CA_STORE, CA_PASSWORD = "ca.p12", "ca.password"
CLUSTER_CA, CLIENTS_CA = "cluster-ca.crt", "clients-ca.crt"
"""The files, beside those with keys, with the authorities that brokers trust."""
_FILES = (CLIENTS_CA, CLUSTER_CA)
ZOOKEEPER_TRUSTED = "zookeeper-servers.crt"
"""The file with what brokers trust of an external ZooKeeper."""
OPERATOR = "cluster-operator"
ZOOKEEPER = "zookeeper"
ZOOKEEPER_STORE, ZOOKEEPER_STORE_PASSWORD = "cluster-ca.p12", "certificates"
"""What ZooKeeper servers trust, and a password that protects nothing. Of certificates in PEM with the same
subject, such as two generations of an authority, ZooKeeper trusts the last one only."""


def cluster_ca(cluster: str) -> str:
    """The Secret with the key of the cluster's authority; `certificate_secret` of it is that with the
    certificate."""
    return f"{cluster}-cluster-ca"


def clients_ca(cluster: str) -> str:
    """The Secret with the key of the authority for users."""
    return f"{cluster}-clients-ca"


def authorities(cluster: str) -> tuple[str, str]:
    """The Secrets with the keys of the authorities of users and of the cluster."""
    return clients_ca(cluster), cluster_ca(cluster)


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


def issued_secret(cluster: str, listener: str) -> str:
    """The Secret with the listener's certificate that cert-manager issues, and its Certificate."""
    return f"{cluster}-{listener}-listener"


def own_source(cluster: BrokerCluster, listener: Listener) -> CertificateSource | None:
    """Where the listener's own certificate is; None: it has that of the cluster's authority."""
    if listener.configuration.issuer_ref is not None:
        return CertificateSource(secret_name=issued_secret(cluster.metadata.name, listener.name))
    return listener.configuration.broker_cert_chain_and_key


def trusted_file(listener: str) -> str:
    """The file in the brokers' Secret with what brokers trust for the listener's OAuth server."""
    return f"{listener}.trusted.crt"


def _trusted_of(listener: Listener) -> Sequence[TrustedCertificates]:
    return (listener.authentication.tls_trusted_certificates if listener.authentication else None) or ()


def _all_trusted(cluster: BrokerCluster) -> dict[str, tuple[str, Sequence[TrustedCertificates]]]:
    """Who uses them, and the sources of the certificates that brokers trust, by file."""
    found = {
        trusted_file(listener.name): (f"listener {listener.name}", _trusted_of(listener))
        for listener in listeners_of(cluster)
    }
    found[ZOOKEEPER_TRUSTED] = ("zookeeper", cluster.spec.zookeeper.tls_trusted_certificates or ())
    return {file: (what, sources) for file, (what, sources) in found.items() if sources}


_OF_SPEC = re.compile(r"/([-a-z0-9]+\.(?:listener\.pem|trusted\.crt)|zookeeper-servers\.crt)(?![-.\w])")


def files_in_use(settings: Iterable[str]) -> set[str]:
    """The files of listeners that these values of settings name."""
    return {file for value in settings for file in _OF_SPEC.findall(value)}


def given_secrets(cluster: BrokerCluster) -> set[str]:
    """The Secrets of others that the plan needs."""
    sources = (own_source(cluster, listener) for listener in listeners_of(cluster))
    trusted = (source for _, sources in _all_trusted(cluster).values() for source in sources)
    names = {source.secret_name for source in sources if source is not None}
    names |= {source.secret_name for source in trusted if source.secret_name is not None}
    return names | {issued_authority_secret(name) for name in issued_authorities(cluster)}


def given_config_maps(cluster: BrokerCluster) -> set[str]:
    """The ConfigMaps of others that the plan needs."""
    trusted = (source for _, sources in _all_trusted(cluster).values() for source in sources)
    return {source.config_map_name for source in trusted if source.config_map_name is not None}


def generated_authorities(cluster: BrokerCluster) -> list[str]:
    """The Secrets with the keys of the authorities that the operator makes."""
    specs = (cluster.spec.clients_ca, cluster.spec.cluster_ca)
    of_specs = zip(authorities(cluster.metadata.name), specs, strict=True)
    return [name for name, spec in of_specs if spec.is_generated]


def issued_authorities(cluster: BrokerCluster) -> dict[str, CertificateAuthority]:
    """The authorities that cert-manager issues, by the name of their key's Secret."""
    specs = (cluster.spec.clients_ca, cluster.spec.cluster_ca)
    of_specs = zip(authorities(cluster.metadata.name), specs, strict=True)
    return {name: spec for name, spec in of_specs if spec.issuer_ref is not None}


def issued_authority_secret(authority: str) -> str:
    """The Secret with the authority that cert-manager issues, and its Certificate."""
    return f"{authority}-issued"


def _with_issued(cluster: BrokerCluster, found: Mapping[str, Data]) -> Mapping[str, Data]:
    """The Secrets, as if cert-manager wrote authorities into those that users fill. Of a chain, pods trust
    the authority itself and not those above it, whose other certificates could pose as brokers."""
    seen = dict(found)
    for name in issued_authorities(cluster):
        issued = found.get(issued_authority_secret(name), {})
        for secret in (name, certificate_secret(name)):
            seen.pop(secret, None)
        if "tls.crt" in issued:
            own = b"".join(certificates_in(issued["tls.crt"])[:1])
            seen[certificate_secret(name)] = {CA_CERTIFICATE: own}
            seen[name] = {CA_KEY: issued.get("tls.key", b"")}
    return seen


def renewable_secrets(cluster: BrokerCluster) -> list[str]:
    """The Secrets with certificates that the operator issues."""
    name = cluster.metadata.name
    of_authorities = [certificate_secret(authority) for authority in generated_authorities(cluster)]
    return [*of_authorities, brokers_secret(name), zookeeper_secret(name), operator_secret(name)]


def secret_names(cluster: str) -> list[str]:
    """The names of all Secrets of a secured cluster."""
    public = [certificate_secret(authority) for authority in authorities(cluster)]
    own = (brokers_secret(cluster), zookeeper_secret(cluster), operator_secret(cluster))
    return [*authorities(cluster), *public, *own]


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
    renew: Collection[str] = (),
    config_maps: Mapping[str, Data] | None = None,
    pending: Mapping[str, Flaw] | None = None,
) -> SecretsPlan:
    """`brokers`: the names and addresses of each broker, by its file's name. `found`: the existing Secrets,
    also those of others (`given_secrets`). `zookeeper`: the names of the servers; empty without TLS. `hosts`:
    where clients connect to, by listener with an own certificate. `in_use`: the files of listeners that
    brokers use, though they may not after their next restart. `renew`: Secrets whose
    certificates are to be renewed before they are due. `config_maps`: the existing ones among
    `given_config_maps`. `pending`: why Secrets of others are not up to date, by their names."""
    name, spec = cluster.metadata.name, cluster.spec
    planner = _Planner(name, _with_issued(cluster, found), now_ms, random_bytes, renew, pending or {})
    planner.plan_authority(clients_ca(name), spec.clients_ca)
    authority = planner.plan_authority(cluster_ca(name), spec.cluster_ca)
    subjects = {brokers_secret(name): {file: broker_subject(name, names) for file, names in brokers.items()}}
    own = [listener.name for listener in listeners_of(cluster) if listener.has_own_certificate]
    all_names = list(dict.fromkeys(each for names in brokers.values() for each in names))
    for one in own:
        subjects[brokers_secret(name)][listener_file(one)] = broker_subject(name, all_names)
    planner.keep(in_use)
    for file, (what, sources) in _all_trusted(cluster).items():
        planner.plan_trusted(file, what, sources, config_maps or {})
    planner.plan_listeners(cluster, authority.trusted, hosts or {})
    if zookeeper:
        subjects[zookeeper_secret(name)] = {ZOOKEEPER: zookeeper_subject(name, zookeeper)}
    subjects[operator_secret(name)] = {OPERATOR: operator_subject(name)}
    issued: list[bytes] = []
    for secret, subjects_by_file in subjects.items():
        issued += planner.plan_certificates(secret, authority, subjects_by_file, lifetime_of(spec.cluster_ca))
    planner.drop_former_keys(authority, issued)
    planner.publish_trusted(zookeeper=bool(zookeeper))
    return planner.plan


@dataclass(frozen=True, slots=True)
class Authority:
    """An authority that signs, or whose certificates are trusted at least."""

    name: str
    pair: Pair | None
    """None: it can sign nothing now."""
    trusted: bytes
    """The certificates that pods trust, the newest first."""
    is_fresh: bool
    """Whether its key is so new that some pods may not trust it yet."""
    current: bytes
    """What is trusted when no certificate is of a former key any more."""

    def renewal_can_wait(self, pair: Pair, subject: Subject, lifetime: Lifetime, now_ms: int) -> bool:
        """Whether a renewal must wait, since its only reason is a recently replaced authority: pods that do
        not have the new authority yet would not trust a certificate of it."""
        return self.is_fresh and any(
            not renewal_reason(pair, former, subject, lifetime, now_ms)
            for former in certificates_in(self.trusted)[1:]
        )


def clients_authority(cluster: BrokerCluster, data: Mapping[str, Data], now_ms: int) -> Authority | None:
    """The authority of users; None while brokers trust none."""
    name, data = clients_ca(cluster.metadata.name), _with_issued(cluster, data)
    brokers = data.get(brokers_secret(cluster.metadata.name), {})
    public = data.get(certificate_secret(name), {})
    trusted = brokers.get(CLIENTS_CA) or public.get(CA_CERTIFICATE, b"")
    if not trusted:
        return None
    newest, key = certificates_in(trusted)[0], data.get(name, {}).get(CA_KEY)
    given = not cluster.spec.clients_ca.is_generated
    fresh = (
        _is_since(brokers.get(_since(CLIENTS_CA)), now_ms) if given else is_recently_issued(newest, now_ms)
    )
    pair = Pair(key, newest) if key is not None and not (given and _mismatch(key, newest)) else None
    return Authority(name, pair, trusted, fresh, trusted)


def _mismatch(key: bytes, certificate: bytes) -> bool:
    try:
        return not is_pair(Pair(key, certificate))
    except UNREADABLE:
        return True


def _since(file: str) -> str:
    """The entry with the time at which a given authority got another key."""
    return f"{file}.since"


def _is_since(text: bytes | None, now_ms: int) -> bool:
    """Whether the time is so recent that some pods may not have the change yet."""
    try:
        since_ms = parse_iso_time((text or b"").decode())
    except ValueError:
        return False
    return now_ms - since_ms < SPREAD // timedelta(milliseconds=1)


class _Planner:
    """Plans one Secret after the other into `plan`."""

    def __init__(
        self,
        cluster: str,
        found: Mapping[str, Data],
        now_ms: int,
        random_bytes: RandomBytes,
        renew: Collection[str],
        pending: Mapping[str, Flaw],
    ) -> None:
        self.plan = SecretsPlan()
        self._cluster = cluster
        self._found = found
        self._now_ms = now_ms
        self._random_bytes = random_bytes
        self._renew = renew
        self._pending = pending
        self._given: dict[str, dict[str, bytes]] = {}
        """Files that are not issued here, by Secret."""
        self._kept: dict[str, bytes] = {}
        """Files of listeners that brokers use still."""
        self._trusted: dict[str, bytes] = {}
        """What brokers trust, by file, with the times of changes."""

    def plan_listeners(
        self,
        cluster: BrokerCluster,
        trusted: bytes,
        hosts: Mapping[str, Sequence[str]],
    ) -> None:
        """Plan the listeners' own certificates, before those of brokers. `trusted`: of the cluster's
        authority."""
        secret = brokers_secret(self._cluster)
        existing, files = self._found.get(secret, {}), self._given.setdefault(secret, {})
        for listener in listeners_of(cluster):
            source = own_source(cluster, listener)
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
            flaw = self._pending.get(source.secret_name) or given.flaw
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

    def keep(self, files: Collection[str]) -> None:
        """Keep these files of the brokers' Secret, unless they are planned otherwise."""
        secret = brokers_secret(self._cluster)
        existing = self._found.get(secret, {})
        self._kept = {file: existing[file] for file in existing if file in files}

    def plan_trusted(
        self,
        file: str,
        what: str,
        sources: Sequence[TrustedCertificates],
        config_maps: Mapping[str, Data],
    ) -> None:
        """Plan a file with what brokers trust. `what`: names the use in the spec."""
        secret = brokers_secret(self._cluster)
        trusted, flaws = trusted_certificates(what, sources, self._found, config_maps)
        self.plan.flaws += flaws
        before = self._found.get(secret, {}).get(file, b"")
        # Fewer than the spec names could lock clients out.
        wanted = before if flaws and before else trusted
        if wanted:
            self._given.setdefault(secret, {})[file] = wanted
        if wanted != before:
            self.plan.changes.setdefault(secret, []).append(f"{file}: certificates to trust")

    def plan_authority(self, name: str, spec: CertificateAuthority) -> Authority:
        """Plan the Secrets of an authority's key and certificates."""
        is_generated = spec.is_generated
        authority = self._generated(name, lifetime_of(spec)) if is_generated else self._of_others(name, spec)
        self._trusted[_FILES[name == cluster_ca(self._cluster)]] = authority.trusted
        return authority

    def _generated(self, name: str, lifetime: Lifetime) -> Authority:
        key = self._found.get(name, {}).get(CA_KEY)
        bundle = self._found.get(certificate_secret(name), {}).get(CA_CERTIFICATE, b"")
        current = certificates_in(bundle)[:1]
        pair = Pair(key, current[0]) if key and current else None
        reason = authority_reason(pair, lifetime, self._now_ms) or self._requested(certificate_secret(name))
        if pair is None or reason:
            pair = new_authority(name, lifetime, self._now_ms, self._random_bytes, key)
            self.plan.changes[certificate_secret(name)] = [f"{name}: {reason}"]
        self.plan.data[name] = {CA_KEY: pair.key}
        trusted = pair.certificate + still_trusted(pair.certificate, bundle, self._now_ms)
        self._publish(name, trusted)
        is_fresh = is_recently_issued(pair.certificate, self._now_ms)
        return Authority(name, pair, trusted, is_fresh, without_former_keys(trusted))

    def _requested(self, secret: str) -> str:
        return f"{RENEW_ANNOTATION} requests it" if secret in self._renew else ""

    def _of_others(self, name: str, spec: CertificateAuthority) -> Authority:
        """An authority whose Secrets are only read. While they cannot be used, all stays as it is. Former
        certificates of the cluster's authority are trusted until none is used; of clients' one, those that
        are in the Secret, too."""
        of_cluster = name == cluster_ca(self._cluster)
        file, brokers = _FILES[of_cluster], self._found.get(brokers_secret(self._cluster), {})
        before, since = brokers.get(file, b""), brokers.get(_since(file), b"")
        given, current = given_authority(
            (certificate_secret(name), name),
            self._found,
            spec.renewal_days,
            self._now_ms,
            needs_key=of_cluster,
        )
        flaw = self._pending.get(issued_authority_secret(name)) or given.flaw
        if flaw is not None:
            self.plan.flaws.append(flaw)
        is_usable = given.pair is not None or (given.flaw is None and not of_cluster)
        if not is_usable:
            trusted = before or current
        else:
            newest, *rest = certificates_in(current)
            former = still_trusted(newest, before, self._now_ms) if of_cluster else b""
            rest += [each for each in certificates_in(former) if each not in rest]
            trusted = b"".join((newest, *rest))
            known = certificates_in(before)[:1]
            if known and not same_key(known[0], newest):
                since = iso_time(self._now_ms).encode()
                self.plan.changes[brokers_secret(self._cluster)] = [f"{name}: it has another key"]
        if since:
            self._trusted[_since(file)] = since
        return Authority(name, given.pair, trusted, _is_since(since, self._now_ms), current)

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
        self, secret: str, authority: Authority, subjects: Mapping[str, Subject], lifetime: Lifetime
    ) -> list[bytes]:
        """Plan a Secret with a key and a certificate for each subject, by file name. Returns the
        certificates."""
        certificates, files = [], dict(self._given.get(secret, {}))
        for file, subject in subjects.items():
            if f"{file}.pem" in files:
                continue
            pem = self._found.get(secret, {}).get(f"{file}.pem")
            own = Pair.of_pem(pem) if pem else None
            if authority.pair is not None:
                own = self._issued(secret, file, own, authority, authority.pair, subject, lifetime)
            if own is not None:
                files[f"{file}.pem"] = own.pem
                certificates.append(own.certificate)
        if files:
            self.plan.data[secret] = files
        return certificates

    def _issued(
        self,
        secret: str,
        file: str,
        own: Pair | None,
        authority: Authority,
        signing: Pair,
        subject: Subject,
        lifetime: Lifetime,
    ) -> Pair:
        """The existing pair, or a new one when it is due."""
        reason = renewal_reason(own, signing.certificate, subject, lifetime, self._now_ms)
        reason = reason or self._requested(secret)
        if own is not None and not reason:
            return own
        if own is not None and authority.renewal_can_wait(own, subject, lifetime, self._now_ms):
            return own
        self.plan.changes.setdefault(secret, []).append(f"{file}: {reason}")
        return issue(signing, subject, lifetime, self._now_ms, self._random_bytes)

    def drop_former_keys(self, authority: Authority, issued: Iterable[bytes]) -> None:
        """Remove the authority's former keys from the trusted ones, once all certificates are of its new
        key and have reached all pods."""
        pair = authority.pair
        if pair is None or authority.current == authority.trusted or authority.is_fresh:
            return
        if all(
            is_issued_by(each, pair.certificate) and not is_recently_issued(each, self._now_ms)
            for each in issued
        ):
            public = certificate_secret(authority.name)
            changed = public if public in self.plan.data else brokers_secret(self._cluster)
            if changed == public:
                self._publish(authority.name, authority.current)
            self._trusted[CLUSTER_CA] = authority.current
            message = f"{authority.name}: no certificate uses its former key any more"
            self.plan.changes[changed] = [message]

    def publish_trusted(self, *, zookeeper: bool) -> None:
        """Add what pods trust to the Secrets with their keys."""
        secrets = {brokers_secret(self._cluster): self._trusted}
        if zookeeper:
            secrets[zookeeper_secret(self._cluster)] = self._trusted_by_zookeeper()
        for secret, trusted in secrets.items():
            if secret in self.plan.data:
                self.plan.data[secret] = {**self.plan.data[secret], **trusted}
        brokers = brokers_secret(self._cluster)
        if brokers in self.plan.data:
            self.plan.data[brokers] = {**self._kept, **self.plan.data[brokers]}

    def _trusted_by_zookeeper(self) -> dict[str, bytes]:
        trusted = self._trusted[CLUSTER_CA]
        found = self._found.get(zookeeper_secret(self._cluster), {})
        store = found.get(ZOOKEEPER_STORE) if found.get(CLUSTER_CA) == trusted else None
        if store is None and trusted:
            store = pkcs12_truststore(trusted, ZOOKEEPER_STORE_PASSWORD)
        return {CLUSTER_CA: trusted, **({ZOOKEEPER_STORE: store} if store is not None else {})}


def cluster_trust(cluster: str, data: Mapping[str, Data]) -> bytes:
    """The certificates of the cluster's authority that brokers, and clients without a listener's own
    certificate, trust; empty while there are none."""
    public = data.get(certificate_secret(cluster_ca(cluster)), {}).get(CA_CERTIFICATE, b"")
    return data.get(brokers_secret(cluster), {}).get(CLUSTER_CA) or public


def clients_trust(cluster: BrokerCluster, listener: Listener, data: Mapping[str, Data]) -> bytes:
    """The certificates that clients of the listener must trust, in PEM; empty while there are none."""
    name, source = cluster.metadata.name, own_source(cluster, listener)
    above = data.get(issued_authority_secret(cluster_ca(name)), {}).get(CA_CERTIFICATE, b"")
    every = (*certificates_in(cluster_trust(name, data)), *authorities_in(above))
    of_cluster = b"".join(dict.fromkeys(every))
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
