"""The Secrets of a secured cluster: which ones a reconciliation creates and renews."""

from __future__ import annotations

import os
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import pkcs12

from ottla_operator.planning.certificates import Pair, certificates_in, renewal_reason
from ottla_operator.planning.cluster_secrets import Data, SecretsPlan, plan_secrets
from ottla_operator.planning.listener_security import broker_subject, lifetime_of
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.loading import parse_resource

DAY_MS = 86_400_000
NOW_MS = 1_795_000_000_000
NAMES = {"demo-brokers-0": ["zero.svc"], "demo-brokers-1": ["one.svc"]}
ALL = ["demo-clients-ca", "demo-clients-ca-cert", "demo-cluster-ca", "demo-cluster-ca-cert"]

TRUSTED = ["clients-ca.crt", "cluster-ca.crt"]
"""What brokers trust, beside their own certificates."""

LONGER = {"validityDays": 400, "renewalDays": 370}


def a_cluster(**spec: Any) -> BrokerCluster:
    cluster, problems = parse_resource("BrokerCluster", {"name": "demo"}, {"replicas": 2, **spec})
    assert not problems
    assert isinstance(cluster, BrokerCluster)
    return cluster


CLUSTER = a_cluster()
FIRST = plan_secrets(CLUSTER, NAMES, {}, NOW_MS, os.urandom)


def again(found: dict[str, Data], now_ms: int = NOW_MS, names: Any = None, **spec: Any) -> SecretsPlan:
    return plan_secrets(a_cluster(**spec), NAMES if names is None else names, found, now_ms, os.urandom)


def pairs(planned: SecretsPlan, secret: str) -> dict[str, bytes]:
    """The keys with their certificates in the Secret."""
    return {file: pem for file, pem in planned.data[secret].items() if file.endswith(".pem")}


def without(name: str) -> dict[str, Data]:
    return {other: data for other, data in FIRST.data.items() if other != name}


def test_the_first_reconciliation_creates_all_secrets_and_the_next_changes_none() -> None:
    assert list(FIRST.data) == [*ALL, "demo-brokers", "demo-cluster-operator-certs"]
    assert FIRST.changes["demo-brokers"] == ["demo-brokers-0: it is missing", "demo-brokers-1: it is missing"]
    second = again(FIRST.data)
    assert second.data == FIRST.data
    assert not second.changes


@pytest.mark.parametrize(
    ("days", "spec", "renewed"),
    [
        (334, {}, []),
        (335, {}, ["demo-brokers", "demo-clients-ca-cert", "demo-cluster-ca-cert"]),
        (
            0,
            {"clusterCa": {"validityDays": 400, "renewalDays": 370}},
            ["demo-brokers", "demo-cluster-ca-cert"],
        ),
        (0, {"clientsCa": {"validityDays": 400, "renewalDays": 370}}, ["demo-clients-ca-cert"]),
    ],
)
def test_expiring_certificates_are_renewed_with_the_same_authority_keys(
    days: int, spec: dict[str, Any], renewed: list[str]
) -> None:
    now_ms = NOW_MS + days * DAY_MS
    later = again(FIRST.data, now_ms, **spec)
    assert sorted({*later.changes} - {"demo-cluster-operator-certs"}) == renewed
    for name in ("demo-cluster-ca", "demo-clients-ca"):
        assert later.data[name] == FIRST.data[name]
    assert not again(later.data, now_ms, **spec).changes


def test_only_a_broker_with_a_new_address_gets_a_new_certificate() -> None:
    moved = again(FIRST.data, names={**NAMES, "demo-brokers-1": ["one.svc", "192.0.2.7"]})
    assert moved.changes == {"demo-brokers": ["demo-brokers-1: it lacks the name 192.0.2.7"]}
    old, new = FIRST.data["demo-brokers"], moved.data["demo-brokers"]
    assert old["demo-brokers-0.pem"] == new["demo-brokers-0.pem"]
    assert old["demo-brokers-1.pem"] != new["demo-brokers-1.pem"]


def test_added_brokers_get_certificates_and_removed_ones_lose_theirs() -> None:
    one = again(FIRST.data, names={"demo-brokers-0": ["zero.svc"]})
    assert list(one.data["demo-brokers"]) == ["demo-brokers-0.pem", *TRUSTED]
    assert again(one.data).changes == {"demo-brokers": ["demo-brokers-1: it is missing"]}


@pytest.mark.parametrize("lost", [*ALL, "demo-brokers", "demo-cluster-operator-certs"])
def test_a_deleted_secret_is_created_again(lost: str) -> None:
    found = again(without(lost))
    assert set(found.data[lost]) == set(FIRST.data[lost])
    assert found.changes
    assert not again(found.data).changes


def test_an_authority_without_its_key_gets_a_new_one_and_keeps_the_old_certificate_trusted() -> None:
    found = again(without("demo-cluster-ca"))
    old = certificates_in(FIRST.data["demo-cluster-ca-cert"]["ca.crt"])
    new = certificates_in(found.data["demo-cluster-ca-cert"]["ca.crt"])
    assert new[1:] == old
    # Brokers keep certificates of the old authority until all pods trust the new one.
    for secret in ("demo-brokers", "demo-cluster-operator-certs"):
        assert pairs(found, secret) == pairs(FIRST, secret)
    assert found.data["demo-brokers"]["cluster-ca.crt"] == found.data["demo-cluster-ca-cert"]["ca.crt"]
    soon = again(found.data, NOW_MS + 299_000)
    assert not soon.changes
    later = again(found.data, NOW_MS + 300_000)
    assert later.changes["demo-brokers"][0] == "demo-brokers-0: another authority issued it"
    pair = Pair.of_pem(later.data["demo-brokers"]["demo-brokers-0.pem"])
    subject, lifetime = broker_subject("demo", ["zero.svc"]), lifetime_of(CLUSTER.spec.cluster_ca)
    assert renewal_reason(pair, new[0], subject, lifetime, NOW_MS) == ""


def test_the_old_authority_is_trusted_until_all_certificates_are_of_the_new_one() -> None:
    replaced = again(without("demo-cluster-ca"))
    issued = again(replaced.data, NOW_MS + 300_000)
    waiting = again(issued.data, NOW_MS + 599_000)
    assert not waiting.changes
    dropped = again(waiting.data, NOW_MS + 600_000)
    public = dropped.data["demo-cluster-ca-cert"]
    assert dropped.changes == {
        "demo-cluster-ca-cert": ["demo-cluster-ca: no certificate uses its former key any more"],
    }
    assert [public["ca.crt"]] == certificates_in(issued.data["demo-cluster-ca-cert"]["ca.crt"])[:1]
    store = pkcs12.load_pkcs12(public["ca.p12"], public["ca.password"])
    assert len(store.additional_certs) == 1
    assert pairs(dropped, "demo-brokers") == pairs(issued, "demo-brokers")
    assert dropped.data["demo-brokers"]["cluster-ca.crt"] == public["ca.crt"]
    assert not again(dropped.data, NOW_MS + 600_000).changes


def test_the_old_authority_is_trusted_while_one_broker_has_a_certificate_of_it() -> None:
    issued = again(again(without("demo-cluster-ca")).data, NOW_MS + 300_000)
    late = {
        **issued.data["demo-brokers"],
        "demo-brokers-1.pem": FIRST.data["demo-brokers"]["demo-brokers-1.pem"],
    }
    found = again({**issued.data, "demo-brokers": late}, NOW_MS + 600_000)
    assert found.changes == {"demo-brokers": ["demo-brokers-1: another authority issued it"]}
    assert not again(found.data, NOW_MS + 899_000).changes
    assert list(again(found.data, NOW_MS + 900_000).changes) == ["demo-cluster-ca-cert"]


def test_the_old_clients_authority_is_trusted_until_it_expires() -> None:
    found = again(without("demo-clients-ca"), NOW_MS + 200 * DAY_MS)
    both = certificates_in(found.data["demo-clients-ca-cert"]["ca.crt"])
    assert both[1:] == [FIRST.data["demo-clients-ca-cert"]["ca.crt"]]
    before, after = (again(found.data, NOW_MS + days * DAY_MS) for days in (364, 366))
    assert certificates_in(before.data["demo-clients-ca-cert"]["ca.crt"]) == both
    assert certificates_in(after.data["demo-clients-ca-cert"]["ca.crt"]) == both[:1]
    assert before.data["demo-clients-ca-cert"]["ca.p12"] != after.data["demo-clients-ca-cert"]["ca.p12"]


def test_a_new_or_moved_broker_gets_its_certificate_during_a_key_replacement() -> None:
    found = again(without("demo-cluster-ca"))
    moved = again(found.data, names={**NAMES, "demo-brokers-1": ["elsewhere"], "demo-brokers-2": ["two"]})
    assert [line.partition(":")[0] for line in moved.changes["demo-brokers"]] == [
        *("demo-brokers-1", "demo-brokers-2"),
    ]


def test_the_java_trust_store_changes_only_with_the_certificates() -> None:
    kept = again(without("demo-brokers"))
    assert kept.data["demo-cluster-ca-cert"] == FIRST.data["demo-cluster-ca-cert"]
    renewed = again(FIRST.data, NOW_MS + 340 * DAY_MS)
    for entry in ("ca.crt", "ca.p12", "ca.password"):
        old, new = (plan.data["demo-cluster-ca-cert"][entry] for plan in (FIRST, renewed))
        assert old != new
