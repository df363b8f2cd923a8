"""Certificates and authorities that users give: which are taken, and what is said of the others."""

from __future__ import annotations

import os
from typing import Any

import pytest

from ottla_operator.planning.certificates import (
    Lifetime,
    Pair,
    Subject,
    certificates_in,
    is_issued_by,
    issue,
    new_authority,
)
from ottla_operator.planning.cluster_secrets import (
    Data,
    SecretsPlan,
    clients_authority,
    clients_trust,
    files_in_use,
    plan_secrets,
)
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.loading import parse_resource

DAY_MS = 86_400_000
NOW_MS = 1_795_000_000_000
BROKERS = {"demo-brokers-0": ["zero.svc"], "demo-brokers-1": ["one.svc"]}
HOSTS = ["kafka.example.com", "zero.example.com"]
FILE = "public.listener.pem"
AUTHORITY = new_authority("their authority", Lifetime(3000), NOW_MS - DAY_MS, os.urandom)


def a_pair(names: list[str] | None = None, at_ms: int = NOW_MS, days: int = 100) -> Pair:
    subject = Subject("their broker", names=tuple(HOSTS if names is None else names))
    return issue(AUTHORITY, subject, Lifetime(days), at_ms, os.urandom)


def as_data(pair: Pair, chain: bytes = b"") -> Data:
    return {"tls.crt": pair.certificate + chain, "tls.key": pair.key}


def a_cluster(source: dict[str, Any] | None = None, **spec: Any) -> BrokerCluster:
    listener: dict[str, Any] = {"name": "public", "port": 9094, "tls": True}
    if source is not None:
        listener["configuration"] = {"brokerCertChainAndKey": source}
    content = {"replicas": 2, "listeners": [listener], **spec}
    cluster, problems = parse_resource("BrokerCluster", {"name": "demo"}, content)
    assert not problems, problems
    assert isinstance(cluster, BrokerCluster)
    return cluster


OWN = a_cluster({"secretName": "theirs"})


def plan(
    found: dict[str, Data], cluster: BrokerCluster = OWN, now_ms: int = NOW_MS, **more: Any
) -> SecretsPlan:
    return plan_secrets(cluster, BROKERS, found, now_ms, os.urandom, hosts={"public": HOSTS}, **more)


def presented(planned: SecretsPlan) -> Pair:
    return Pair.of_pem(planned.data["demo-brokers"][FILE])


def flaws(planned: SecretsPlan) -> list[tuple[str, str]]:
    return [(flaw.reason, flaw.message) for flaw in planned.flaws]


def test_a_listener_presents_the_certificate_of_the_secret_and_is_never_written_to() -> None:
    pair = a_pair()
    planned = plan({"theirs": as_data(pair, AUTHORITY.certificate)})
    assert presented(planned) == Pair(pair.key, pair.certificate + AUTHORITY.certificate)
    assert "theirs" not in planned.data
    assert not planned.flaws
    assert planned.changes["demo-brokers"][0] == "public.listener: from Secret theirs"
    again = plan({**planned.data, "theirs": as_data(pair, AUTHORITY.certificate)})
    assert again.data == planned.data
    assert not again.changes


def test_entries_have_the_names_of_the_spec() -> None:
    pair = a_pair()
    data = {"theirs": {"chain.pem": pair.certificate, "broker.key": pair.key}}
    source = {"secretName": "theirs", "certificate": "chain.pem", "key": "broker.key"}
    planned = plan(data, a_cluster(source))
    assert presented(planned) == pair


def test_a_replaced_certificate_is_taken_and_the_brokers_own_stay() -> None:
    first = plan({"theirs": as_data(a_pair())})
    second = plan({**first.data, "theirs": as_data(pair := a_pair())})
    assert presented(second) == pair
    assert second.changes == {"demo-brokers": ["public.listener: from Secret theirs"]}
    kept = "demo-brokers-0.pem"
    assert second.data["demo-brokers"][kept] == first.data["demo-brokers"][kept]


_GOOD = as_data(a_pair())
UNUSABLE = [
    (None, "SecretNotFound", "does not exist"),
    ({"tls.key": b"x"}, "InvalidSecret", "has no entry tls.crt"),
    ({"tls.crt": b"x"}, "InvalidSecret", "has no entry tls.key"),
    ({**_GOOD, "tls.crt": b"nonsense"}, "InvalidCertificate", ", entry tls.crt: there is no certificate"),
    (
        {**_GOOD, "tls.crt": b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"},
        "InvalidCertificate",
        ", entry tls.crt: a certificate cannot be read",
    ),
    ({**_GOOD, "tls.key": b"nonsense"}, "InvalidKey", ", entry tls.key: it is no private key, RSA or EC"),
    ({**_GOOD, "tls.key": a_pair().key}, "KeyMismatch", ": the key does not belong to the first certificate"),
    (as_data(a_pair(at_ms=NOW_MS - 200 * DAY_MS)), "Expired", ": it expired on 2026-08-"),
    (as_data(a_pair(at_ms=NOW_MS + 2 * DAY_MS)), "NotYetValid", ": it is valid from 2026-11-"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "reason", "message"), UNUSABLE)
def test_an_unusable_certificate_is_described_and_the_last_one_stays(
    data: Data | None, reason: str, message: str
) -> None:
    before = plan({"theirs": as_data(a_pair())})
    found = {**before.data, **({"theirs": data} if data is not None else {})}
    planned = plan(found)
    ((found_reason, text),) = flaws(planned)
    assert found_reason == reason
    assert text.startswith("listener public: Secret theirs")
    assert message in text
    assert presented(planned) == presented(before)
    assert not planned.changes


@pytest.mark.parametrize(("data", "reason", "message"), UNUSABLE)
def test_before_the_first_good_one_the_clusters_authority_issues_one_for_all_hosts(
    data: Data | None, reason: str, message: str
) -> None:
    found = {"theirs": data} if data is not None else {}
    planned = plan(found)
    bundle = planned.data["demo-cluster-ca-cert"]["ca.crt"]
    assert is_issued_by(presented(planned).certificate, bundle)
    grown = plan_secrets(
        OWN, {**BROKERS, "demo-brokers-2": ["two.svc"]}, {**found, **planned.data}, NOW_MS, os.urandom
    )
    assert "public.listener: it lacks the name two.svc" in grown.changes["demo-brokers"]
    assert clients_trust(OWN, OWN.spec.listeners[0], planned.data) == bundle
    pair = a_pair()
    assert presented(plan({**planned.data, "theirs": as_data(pair)})) == pair


def test_a_certificate_that_expires_soon_is_used_and_reported() -> None:
    pair = a_pair()
    found = {"theirs": as_data(pair)}
    assert not plan(found, now_ms=NOW_MS + 69 * DAY_MS).flaws
    planned = plan(found, now_ms=NOW_MS + 70 * DAY_MS)
    assert presented(planned) == pair
    assert flaws(planned) == [("ExpiresSoon", "listener public: Secret theirs: it expires on 2027-02-26")]


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (HOSTS, ""),
        (["*.example.com"], ""),
        (HOSTS[:1], "zero.example.com"),
        (["*.com"], "kafka.example.com, zero.example.com"),
    ],
)
def test_hosts_that_clients_would_refuse_are_reported(names: list[str], missing: str) -> None:
    expected = f"listener public: Secret theirs: it is not valid for {missing}"
    found = flaws(plan({"theirs": as_data(a_pair(names))}))
    assert found == ([("NamesMissing", expected)] if missing else [])


def test_the_certificate_of_a_listener_that_gave_it_up_stays_while_brokers_use_it() -> None:
    before = plan({"theirs": as_data(a_pair())})
    plain = a_cluster()
    in_use = plan(before.data, plain, in_use=[FILE])
    assert in_use.data["demo-brokers"] == before.data["demo-brokers"]
    assert FILE not in plan(before.data, plain).data["demo-brokers"]


@pytest.mark.parametrize("chained", [False, True])
def test_clients_trust_the_authorities_of_the_chain_or_the_certificate_itself(chained: bool) -> None:
    pair = a_pair()
    data = as_data(pair, AUTHORITY.certificate if chained else b"")
    planned = plan({"theirs": data})
    found = clients_trust(OWN, OWN.spec.listeners[0], {**planned.data, "theirs": data})
    assert found == (AUTHORITY.certificate if chained else pair.certificate)
    with_root = {**data, "ca.crt": AUTHORITY.certificate}
    found = clients_trust(OWN, OWN.spec.listeners[0], {**planned.data, "theirs": with_root})
    assert found == AUTHORITY.certificate


def test_an_own_certificate_needs_tls() -> None:
    listener = {
        "name": "public",
        "port": 9094,
        "configuration": {"brokerCertChainAndKey": {"secretName": "x"}},
    }
    _, problems = parse_resource("BrokerCluster", {"name": "demo"}, {"replicas": 1, "listeners": [listener]})
    assert [str(problem) for problem in problems] == [
        "spec.listeners[0].configuration.brokerCertChainAndKey: requires tls: true on the listener"
    ]


# ---- authorities


OTHERS = a_cluster(
    clusterCa={"generateCertificateAuthority": False}, clientsCa={"generateCertificateAuthority": False}
)


def an_authority(name: str = "corporate", at_ms: int = NOW_MS - DAY_MS, days: int = 1000) -> Pair:
    return new_authority(name, Lifetime(days), at_ms, os.urandom)


def secrets_of(cluster: Pair, clients: Pair | None = None, **more: bytes) -> dict[str, Data]:
    """The four Secrets that a user makes; `more`: further entries of the clients' certificate."""
    clients = clients or cluster
    return {
        "demo-cluster-ca": {"ca.key": cluster.key},
        "demo-cluster-ca-cert": {"ca.crt": cluster.certificate},
        "demo-clients-ca": {"ca.key": clients.key},
        "demo-clients-ca-cert": {"ca.crt": clients.certificate, **more},
    }


def trusted(planned: SecretsPlan, file: str = "cluster-ca.crt") -> list[bytes]:
    return certificates_in(planned.data["demo-brokers"][file])


def signed_by(planned: SecretsPlan, authority: Pair) -> list[bool]:
    secrets = ("demo-brokers", "demo-cluster-operator-certs")
    pems = [pem for name in secrets for file, pem in planned.data[name].items() if file.endswith(".pem")]
    return [is_issued_by(Pair.of_pem(pem).certificate, authority.certificate) for pem in pems]


def test_an_authority_of_others_signs_and_its_secrets_are_only_read() -> None:
    corporate, of_clients = an_authority(), an_authority("of clients")
    planned = plan(secrets_of(corporate, of_clients), OTHERS)
    assert set(planned.data) == {"demo-brokers", "demo-cluster-operator-certs"}
    assert trusted(planned) == [corporate.certificate]
    assert trusted(planned, "clients-ca.crt") == [of_clients.certificate]
    assert all(signed_by(planned, corporate))
    assert not planned.flaws
    again = plan({**secrets_of(corporate, of_clients), **planned.data}, OTHERS)
    assert (again.data, again.changes) == (planned.data, {})


def test_one_of_two_authorities_may_be_of_others() -> None:
    corporate = an_authority()
    planned = plan(secrets_of(corporate), a_cluster(clusterCa={"generateCertificateAuthority": False}))
    assert {"demo-clients-ca", "demo-clients-ca-cert"} <= set(planned.data)
    assert "demo-cluster-ca-cert" not in planned.data
    assert all(signed_by(planned, corporate))


def test_another_key_is_trusted_first_then_signs_and_then_the_former_is_trusted_no_more() -> None:
    old, new = an_authority(), an_authority("the next")
    before = plan(secrets_of(old), OTHERS)
    found = {**before.data, **secrets_of(new, old)}
    first = plan(found, OTHERS)
    assert first.changes == {"demo-brokers": ["demo-cluster-ca: it has another key"]}
    assert trusted(first) == [new.certificate, old.certificate]
    assert all(signed_by(first, old))
    soon = plan({**found, **first.data}, OTHERS, NOW_MS + 299_000)
    assert (soon.data, soon.changes) == (first.data, {})
    later = plan({**found, **first.data}, OTHERS, NOW_MS + 300_000)
    assert all(signed_by(later, new))
    assert trusted(later) == [new.certificate, old.certificate]
    waiting = plan({**found, **later.data}, OTHERS, NOW_MS + 599_000)
    assert not waiting.changes
    last = plan({**found, **later.data}, OTHERS, NOW_MS + 600_000)
    assert last.changes == {"demo-brokers": ["demo-cluster-ca: no certificate uses its former key any more"]}
    assert trusted(last) == [new.certificate]
    assert all(signed_by(last, new))
    assert not plan({**found, **last.data}, OTHERS, NOW_MS + 600_000).changes


def test_a_generated_authority_gives_way_to_one_of_others_in_the_same_phases() -> None:
    generated = plan({}, a_cluster())
    old = certificates_in(generated.data["demo-cluster-ca-cert"]["ca.crt"])
    same = plan(generated.data, OTHERS)
    assert not same.changes
    new = an_authority()
    found = {**generated.data, **secrets_of(new)}
    first = plan(found, OTHERS)
    assert trusted(first) == [new.certificate, *old]
    assert not any(signed_by(first, new))
    assert all(signed_by(plan({**found, **first.data}, OTHERS, NOW_MS + 300_000), new))


def test_a_renewed_authority_with_the_same_key_signs_at_once() -> None:
    old = an_authority()
    before = plan(secrets_of(old), OTHERS)
    new = new_authority("corporate", Lifetime(2000), NOW_MS, os.urandom, old.key)
    planned = plan({**before.data, **secrets_of(new)}, OTHERS)
    assert trusted(planned) == [new.certificate]
    assert not planned.changes


def test_clients_authorities_are_those_of_the_secret() -> None:
    old, new = an_authority(), an_authority("the next")
    before = plan(secrets_of(old), OTHERS)
    both = {**before.data, **secrets_of(old, new, **{"ca-2026.crt": old.certificate})}
    planned = plan(both, OTHERS)
    assert trusted(planned, "clients-ca.crt") == [new.certificate, old.certificate]
    authority = clients_authority(OTHERS, {**both, **planned.data}, NOW_MS)
    assert authority is not None
    assert authority.is_fresh
    assert authority.pair == new
    alone = plan({**before.data, **secrets_of(old, new)}, OTHERS)
    assert trusted(alone, "clients-ca.crt") == [new.certificate]


def test_clients_authority_may_be_without_its_key() -> None:
    corporate = an_authority()
    found = secrets_of(corporate)
    del found["demo-clients-ca"]
    planned = plan(found, OTHERS)
    assert not planned.flaws
    assert trusted(planned, "clients-ca.crt") == [corporate.certificate]
    authority = clients_authority(OTHERS, {**found, **planned.data}, NOW_MS)
    assert authority is not None
    assert authority.pair is None


_LEAF, _EXPIRED = a_pair(), an_authority(at_ms=NOW_MS - 2000 * DAY_MS)
UNUSABLE_AUTHORITIES = [
    ({"demo-cluster-ca-cert": None}, "SecretNotFound", "Secret demo-cluster-ca-cert does not exist"),
    ({"demo-cluster-ca-cert": {"x": b""}}, "InvalidSecret", "Secret demo-cluster-ca-cert has no entry "),
    ({"demo-cluster-ca": None}, "SecretNotFound", "Secret demo-cluster-ca does not exist or has no"),
    (
        {"demo-cluster-ca-cert": {"ca.crt": _LEAF.certificate}},
        "InvalidCertificate",
        "Secret demo-cluster-ca-cert: the entries *.crt must have certificates of authorities only",
    ),
    (
        {"demo-cluster-ca": {"ca.key": _LEAF.key}},
        "KeyMismatch",
        "Secrets demo-cluster-ca-cert and demo-cluster-ca: the key does not belong to the first certificate",
    ),
    (
        {
            "demo-cluster-ca-cert": {"ca.crt": _EXPIRED.certificate},
            "demo-cluster-ca": {"ca.key": _EXPIRED.key},
        },
        "Expired",
        "Secrets demo-cluster-ca-cert and demo-cluster-ca: it expired on 2024-",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("broken", "reason", "message"), UNUSABLE_AUTHORITIES)
def test_an_authority_that_cannot_be_used_leaves_everything_as_it_is(
    broken: dict[str, Data | None], reason: str, message: str
) -> None:
    good = secrets_of(an_authority())
    before = plan(good, OTHERS)
    found = {**good, **before.data, **broken}
    left: dict[str, Data] = {name: data for name, data in found.items() if data is not None}
    planned = plan(left, OTHERS, NOW_MS + 340 * DAY_MS)
    assert [flaw.reason for flaw in planned.flaws] == [reason]
    assert planned.flaws[0].message.startswith(message)
    assert planned.data == before.data
    assert not planned.changes
    nothing = plan({name: data for name, data in {**good, **broken}.items() if data is not None}, OTHERS)
    assert "demo-brokers" not in nothing.data, "no broker can start without a certificate"


@pytest.mark.parametrize(
    ("secret", "renewed"),
    [
        ("demo-cluster-ca-cert", ["demo-cluster-ca-cert"]),
        ("demo-clients-ca-cert", ["demo-clients-ca-cert"]),
        ("demo-brokers", ["demo-brokers"]),
        ("demo-cluster-operator-certs", ["demo-cluster-operator-certs"]),
    ],
)
def test_a_renewal_on_request_keeps_the_authoritys_key(secret: str, renewed: list[str]) -> None:
    before = plan({}, a_cluster())
    planned = plan(before.data, a_cluster(), NOW_MS + DAY_MS, renew=[secret])
    assert list(planned.changes) == renewed
    assert all("ottla.dev/force-renew requests it" in why for why in planned.changes[secret])
    for name in ("demo-cluster-ca", "demo-clients-ca"):
        assert planned.data[name] == before.data[name]


# ---- what brokers trust for an OAuth server


def trusting(*sources: dict[str, str]) -> BrokerCluster:
    oauth = {
        "type": "oauth",
        "validIssuerUri": "https://idp",
        "jwksEndpointUri": "https://idp/certs",
        "tlsTrustedCertificates": list(sources),
    }
    return a_cluster(listeners=[{"name": "tokens", "port": 9095, "authentication": oauth}])


ONE, TWO = an_authority("one").certificate, an_authority("two").certificate


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ([{"secretName": "idp", "certificate": "one.crt"}], [ONE]),
        ([{"secretName": "idp", "pattern": "*.crt"}], [ONE, TWO]),
        ([{"configMapName": "idp", "certificate": "two.crt"}], [TWO]),
        (
            [{"configMapName": "idp", "certificate": "two.crt"}, {"secretName": "idp", "pattern": "*.crt"}],
            [TWO, ONE],
        ),
    ],
)
def test_brokers_trust_the_certificates_of_all_sources(
    sources: list[dict[str, str]], expected: list[bytes]
) -> None:
    found = {"idp": {"one.crt": ONE, "two.crt": TWO, "other": _LEAF.key}}
    planned = plan(found, trusting(*sources), config_maps={"idp": {"two.crt": TWO}})
    assert certificates_in(planned.data["demo-brokers"]["tokens.trusted.crt"]) == expected
    assert not planned.flaws


@pytest.mark.parametrize(
    ("source", "reason", "message"),
    [
        ({"secretName": "no", "pattern": "*"}, "SecretNotFound", "listener tokens: Secret no does not exist"),
        (
            {"configMapName": "no", "pattern": "*"},
            "ConfigMapNotFound",
            "listener tokens: ConfigMap no does not exist",
        ),
        (
            {"secretName": "idp", "certificate": "other"},
            "InvalidCertificate",
            "listener tokens: Secret idp, entry other: there is no certificate",
        ),
        (
            {"secretName": "idp", "pattern": "*.pem"},
            "InvalidCertificate",
            "listener tokens: Secret idp, entry *.pem: there is no certificate",
        ),
    ],
)
def test_brokers_trust_what_they_did_while_a_source_is_unusable(
    source: dict[str, str], reason: str, message: str
) -> None:
    found = {"idp": {"one.crt": ONE, "other": _LEAF.key}}
    good = {"secretName": "idp", "certificate": "one.crt"}
    before = plan(found, trusting(good))
    found["idp"]["one.crt"] = TWO
    planned = plan({**found, **before.data}, trusting(good, source))
    assert flaws(planned) == [(reason, message)]
    assert planned.data["demo-brokers"]["tokens.trusted.crt"] == ONE
    assert plan(found, trusting(good, source)).data["demo-brokers"]["tokens.trusted.crt"] == TWO


def test_files_of_listeners_in_use_are_found_in_settings() -> None:
    settings = [
        "/etc/ottla-certificates/public.listener.pem",
        'required ssl.truststore.location="/etc/x/my-tokens.trusted.crt";',
        "/etc/ottla-certificates/demo-brokers-0.pem",
        "a=/x/one.listener.pem\nb=/x/two.listener.pem\n",
    ]
    assert files_in_use(settings) == {
        *("public.listener.pem", "my-tokens.trusted.crt", "one.listener.pem", "two.listener.pem")
    }


def test_brokers_trust_the_servers_of_an_external_zookeeper() -> None:
    zookeeper = {"connect": "zk:2182", "tlsTrustedCertificates": [{"secretName": "zk", "pattern": "*"}]}
    cluster = a_cluster(zookeeper=zookeeper)
    missing = plan({}, cluster)
    assert flaws(missing) == [("SecretNotFound", "zookeeper: Secret zk does not exist")]
    planned = plan({"zk": {"ca.crt": ONE}}, cluster)
    assert planned.data["demo-brokers"]["zookeeper-servers.crt"] == ONE
    assert not planned.flaws
    assert files_in_use(["/x/zookeeper-servers.crt"]) == {"zookeeper-servers.crt"}
