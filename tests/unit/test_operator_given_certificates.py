"""Certificates and authorities that users give: which are taken, and what is said of the others."""

from __future__ import annotations

import os
from typing import Any

import pytest

from ottla_operator.planning.certificates import Lifetime, Pair, Subject, is_issued_by, issue, new_authority
from ottla_operator.planning.cluster_secrets import Data, SecretsPlan, clients_trust, plan_secrets
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
    ({**_GOOD, "tls.key": b"nonsense"}, "InvalidKey", ", entry tls.key: "),
    ({**_GOOD, "tls.key": a_pair().key}, "KeyMismatch", ": the key does not belong to the first certificate"),
    (as_data(a_pair(at_ms=NOW_MS - 200 * DAY_MS)), "Expired", ": it expired on 2026-08-"),
    (as_data(a_pair(at_ms=NOW_MS + 2 * DAY_MS)), "NotYetValid", ": it is valid from 2026-11-"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "reason", "message"), UNUSABLE)
def test_one_that_cannot_be_used_is_described_and_the_last_one_stays(
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


def test_one_that_expires_soon_is_used_and_reported() -> None:
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
    in_use = plan(before.data, plain, in_use=["public"])
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
