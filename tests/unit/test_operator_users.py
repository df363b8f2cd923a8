"""User resources over a simulated cluster: credentials, Secrets, ACLs and ownership."""

from __future__ import annotations

import os
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import pkcs12

from ottla.security import jaas
from ottla.security.acls import (
    AclBinding,
    Entry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from ottla_operator.conditions import parse_iso_time
from ottla_operator.planning.cluster_secrets import plan_secrets
from ottla_operator.planning.steps import SetScramCredential
from ottla_operator.planning.users import iterations_of
from ottla_operator.platform.interfaces import StepFailed
from ottla_operator.reconcile import DELETION_DEADLINE_MS
from ottla_operator.resources import BrokerCluster, UserStatus
from tests.worlds.operator_simulation import OperatorSimulation

LISTENERS = [
    {"name": "tls", "port": 9093, "tls": True, "authentication": {"type": "tls"}},
    {"name": "scram", "port": 9094, "tls": True, "authentication": {"type": "scram-sha-512"}},
]
SCRAM, TLS = {"type": "scram-sha-512"}, {"type": "tls"}
READ = {"resource": {"type": "topic", "name": "orders"}, "operations": ["Read", "Describe"]}
WRITE = {"resource": {"type": "topic", "name": "o", "patternType": "prefix"}, "operations": ["Write"]}
OWN_WORD = {"valueFrom": {"secretKeyRef": {"name": "mine", "key": "word"}}}


@pytest.fixture
def sim() -> OperatorSimulation:
    """A secured cluster with the Secrets of its authorities."""
    sim = OperatorSimulation()
    sim.apply_cluster(1, listeners=LISTENERS, authorization={"type": "simple"})
    sim.cluster.acls = set()
    keep_authorities(sim)
    sim.reconcile_until_ready()
    return sim


def keep_authorities(sim: OperatorSimulation) -> None:
    """Write the Secrets of the authorities, as the platform does in each reconciliation."""
    cluster = sim.store.stored["BrokerCluster/demo"]
    assert isinstance(cluster, BrokerCluster)
    found = {name: secret.data for name, secret in sim.secrets.stored.items()}
    for name, data in plan_secrets(cluster, {}, found, sim.cluster.now_ms, os.urandom).data.items():
        sim.secrets.write(name, data, cluster.key)


def user(
    sim: OperatorSimulation,
    name: str = "alice",
    authentication: object = SCRAM,
    *acls: object,
    **spec: object,
) -> None:
    content = {"clusterRef": {"name": "demo"}, "authorization": {"type": "simple", "acls": list(acls)}}
    sim.apply("User", name, {**content, "authentication": authentication, **spec})


def status(sim: OperatorSimulation, key: str = "User/alice") -> UserStatus:
    found = sim.status(key)
    assert isinstance(found, UserStatus)
    return found


def password(sim: OperatorSimulation, name: str = "alice") -> str:
    return sim.secrets.stored[name].data["password"].decode()


def acl(
    principal: str,
    operation: Operation,
    name: str = "orders",
    pattern: PatternType = PatternType.LITERAL,
    kind: ResourceType = ResourceType.TOPIC,
) -> AclBinding:
    return AclBinding(
        ResourcePattern(kind, name, pattern), Entry(principal, "*", operation, Permission.ALLOW)
    )


def test_a_password_is_generated_once_and_kept_in_the_secret(sim: OperatorSimulation) -> None:
    user(sim)
    sim.reconcile_until_ready()
    secret = sim.secrets.stored["alice"]
    made = password(sim)
    assert len(made) == 32
    assert set(secret.data) == {"password", "sasl.jaas.config"}
    login = jaas.parse(secret.data["sasl.jaas.config"].decode())
    assert login.options == {"username": "alice", "password": made}
    assert sim.cluster.scram["alice"] == (iterations_of(secret.version), made)
    assert status(sim).username == "alice"
    assert status(sim).secret == "alice"
    assert sim.condition("User/alice", "CredentialsReady")[:2] == ("True", "Ready")
    sim.reconcile(60_000)
    assert sim.reconcile() == []
    assert password(sim) == made


def test_a_credential_set_by_another_tool_is_set_again(sim: OperatorSimulation) -> None:
    user(sim)
    sim.reconcile_until_ready()
    made = sim.cluster.scram["alice"]
    sim.cluster.scram["alice"] = (4096, "another")
    sim.reconcile()
    assert sim.condition("User/alice")[:2] == ("False", "Applying")
    sim.reconcile_until_ready()
    assert sim.cluster.scram["alice"] == made
    del sim.cluster.scram["alice"]
    sim.reconcile()
    sim.reconcile_until_ready()
    assert sim.cluster.scram["alice"] == made


def test_a_deleted_secret_gets_a_new_password(sim: OperatorSimulation) -> None:
    user(sim)
    sim.reconcile_until_ready()
    before = password(sim)
    del sim.secrets.stored["alice"]
    sim.reconcile()
    sim.reconcile_until_ready()
    assert password(sim) != before
    assert sim.cluster.scram["alice"][1] == password(sim)


def test_a_password_changed_in_the_secret_is_applied(sim: OperatorSimulation) -> None:
    user(sim)
    sim.reconcile_until_ready()
    sim.secrets.write("alice", {**sim.secrets.stored["alice"].data, "password": b"changed"}, "User/alice")
    sim.reconcile()
    sim.reconcile_until_ready()
    assert sim.cluster.scram["alice"][1] == "changed"
    assert 'password="changed"' in sim.secrets.stored["alice"].data["sasl.jaas.config"].decode()


def test_a_given_password_is_read_from_its_secret(sim: OperatorSimulation) -> None:
    user(sim, "alice", {**SCRAM, "password": OWN_WORD})
    sim.reconcile()
    sim.reconcile()
    assert sim.condition("User/alice")[:2] == ("False", "InvalidPassword")
    assert "Secret mine of spec.authentication.password does not exist" in sim.condition("User/alice")[2]
    sim.secrets.write("mine", {"word": b"line\n"})
    sim.reconcile()
    assert "printable ASCII" in sim.condition("User/alice")[2]
    quoted = 'with "quotes" and \\'
    sim.secrets.write("mine", {"word": quoted.encode()})
    sim.reconcile_until_ready()
    assert sim.cluster.scram["alice"][1] == quoted
    login = jaas.parse(sim.secrets.stored["alice"].data["sasl.jaas.config"].decode())
    assert login.options["password"] == quoted
    sim.secrets.write("mine", {"word": b"another"})
    sim.reconcile()
    sim.reconcile_until_ready()
    assert sim.cluster.scram["alice"][1] == "another"


def test_a_secret_of_another_owner_is_a_conflict(sim: OperatorSimulation) -> None:
    sim.secrets.write("alice", {"password": b"not yours"})
    user(sim)
    sim.reconcile()
    assert sim.condition("User/alice")[:2] == ("False", "SecretConflict")
    assert sim.secrets.stored["alice"].data == {"password": b"not yours"}
    assert "alice" not in sim.cluster.scram


def test_a_user_certificate_comes_with_a_key_store(sim: OperatorSimulation) -> None:
    user(sim, "alice", TLS, READ)
    sim.reconcile_until_ready()
    data = sim.secrets.stored["alice"].data
    assert set(data) == {"ca.crt", "user.crt", "user.key", "user.p12", "user.password"}
    assert data["ca.crt"] == sim.secrets.stored["demo-clients-ca-cert"].data["ca.crt"]
    certificate = x509.load_pem_x509_certificate(data["user.crt"])
    assert certificate.subject.rfc4514_string() == "CN=alice"
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(data["ca.crt"]))
    key, in_store, _ = pkcs12.load_key_and_certificates(data["user.p12"], data["user.password"])
    assert key is not None
    assert in_store == certificate
    assert status(sim).username == "CN=alice"
    assert sim.cluster.acls == {
        acl("User:CN=alice", Operation.READ),
        acl("User:CN=alice", Operation.DESCRIBE),
    }
    sim.reconcile(60_000)
    assert sim.reconcile() == []


def test_a_user_certificate_is_renewed_before_it_expires_and_when_it_is_damaged(
    sim: OperatorSimulation,
) -> None:
    user(sim, "alice", TLS)
    sim.reconcile_until_ready()
    first = sim.secrets.stored["alice"].data
    sim.cluster.now_ms += 336 * 24 * 3600 * 1000
    sim.reconcile()
    assert sim.reconcile() == [], "its authority is due itself, and would sign for no longer"
    keep_authorities(sim)
    sim.reconcile()
    sim.reconcile_until_ready()
    second = sim.secrets.stored["alice"].data
    assert second["user.crt"] != first["user.crt"]
    assert second["ca.crt"] != first["ca.crt"]
    for damaged in ({**second, "user.key": first["user.key"]}, {**second, "user.p12": b""}):
        sim.secrets.write("alice", damaged, "User/alice")
        sim.reconcile()
        sim.reconcile_until_ready()
        assert sim.secrets.stored["alice"].data["user.crt"] != damaged["user.crt"]


def test_a_user_certificate_of_a_new_authority_waits_until_brokers_trust_it(
    sim: OperatorSimulation,
) -> None:
    user(sim, "alice", TLS)
    sim.reconcile_until_ready()
    first = sim.secrets.stored["alice"].data
    del sim.secrets.stored["demo-clients-ca"]
    keep_authorities(sim)
    assert sim.reconcile(240_000) == []
    assert sim.condition("User/alice", "CredentialsReady")[:2] == ("True", "Ready")
    user(sim, "carol", TLS)
    sim.reconcile_until_ready()
    assert sim.secrets.stored["alice"].data == first
    sim.reconcile(60_000)
    sim.reconcile_until_ready()
    second = sim.secrets.stored["alice"].data
    assert second["user.crt"] != first["user.crt"]
    assert second["ca.crt"] == sim.secrets.stored["carol"].data["ca.crt"]


def test_a_user_has_the_acls_of_its_resource_and_no_others(sim: OperatorSimulation) -> None:
    stranger = acl("User:bob", Operation.ALL)
    sim.cluster.acls = {stranger, acl("User:alice", Operation.DELETE)}
    user(sim, "alice", SCRAM, READ, WRITE)
    sim.reconcile_until_ready()
    prefixed = acl("User:alice", Operation.WRITE, "o", PatternType.PREFIXED)
    read, describe = (acl("User:alice", operation) for operation in (Operation.READ, Operation.DESCRIBE))
    assert sim.cluster.acls == {stranger, prefixed, read, describe}
    assert status(sim).acls == 3
    sim.cluster.acls.remove(read)
    sim.reconcile()
    sim.reconcile_until_ready()
    assert read in sim.cluster.acls
    cluster = {
        "resource": {"type": "cluster"},
        "operations": ["DescribeConfigs"],
        "type": "deny",
        "host": "::1",
    }
    user(sim, "alice", SCRAM, WRITE, cluster)
    before = len(sim.cluster.log)
    sim.reconcile_until_ready()
    changes = [line for line in sim.cluster.log[before:] if "ACL" in line]
    assert changes == ["add 1 ACL of User:alice", "remove 2 ACLs of User:alice"]
    denied = Entry("User:alice", "::1", Operation.DESCRIBE_CONFIGS, Permission.DENY)
    pattern = ResourcePattern(ResourceType.CLUSTER, "kafka-cluster")
    assert sim.cluster.acls == {stranger, prefixed, AclBinding(pattern, denied)}


def test_acls_of_a_user_without_authorization_are_left_to_other_tools(sim: OperatorSimulation) -> None:
    theirs = acl("User:alice", Operation.DELETE)
    sim.cluster.acls = {theirs}
    spec = {"clusterRef": {"name": "demo"}, "authentication": SCRAM}
    sim.apply("User", "alice", spec)
    sim.reconcile_until_ready()
    assert sim.cluster.acls == {theirs}
    user(sim, "alice", SCRAM, READ)
    sim.reconcile_until_ready()
    assert theirs not in sim.cluster.acls, "the spec has the whole list now"
    sim.apply("User", "alice", spec)
    sim.reconcile_until_ready()
    assert sim.cluster.acls == set(), "what was named once is taken away once"
    assert status(sim).authorization == ""
    sim.cluster.acls.add(theirs)
    assert sim.reconcile() == []
    sim.store.delete("User/alice")
    sim.reconcile_until(lambda: "User/alice" not in sim.store.stored)
    assert sim.cluster.acls == {theirs}


def test_without_an_authorizer_only_acls_are_not_supported(sim: OperatorSimulation) -> None:
    sim.cluster.acls = None
    user(sim, "alice", SCRAM, READ)
    sim.reconcile_until(lambda: "alice" in sim.cluster.scram)
    sim.reconcile()
    assert sim.condition("User/alice")[:2] == ("False", "NotSupported")
    assert "without an authorizer" in sim.condition("User/alice")[2]
    assert sim.condition("User/alice", "CredentialsReady")[0] == "True"
    custom = {"type": "custom", "authorizerClass": "company:ByTeam"}
    sim.apply_cluster(1, listeners=LISTENERS, authorization=custom)
    sim.reconcile()
    assert sim.condition("User/alice")[2] == "the authorizer of BrokerCluster/demo has no ACLs"
    sim.apply("User", "alice", {"clusterRef": {"name": "demo"}, "authentication": SCRAM})
    sim.reconcile_until_ready()


def test_a_user_without_a_listener_for_its_authentication_is_not_ready() -> None:
    sim = OperatorSimulation()
    sim.apply_cluster(1)
    sim.reconcile_until_ready()
    user(sim, "alice", SCRAM, authorization=None)
    user(sim, "carol", TLS, authorization=None)
    sim.reconcile_until(lambda: "alice" in sim.cluster.scram)
    sim.reconcile()
    assert sim.condition("User/alice")[1:] == (
        "NotSupported",
        "no listener of BrokerCluster/demo has authentication of type scram-sha-512",
    )
    assert sim.condition("User/carol")[1:] == (
        "NotSupported",
        "BrokerCluster/demo has no certificate authority for clients",
    )


def test_a_user_without_authentication_needs_no_credentials(sim: OperatorSimulation) -> None:
    user(sim, "alice", None, READ)
    sim.reconcile_until_ready()
    assert len(sim.cluster.acls or ()) == 2
    assert "alice" not in sim.secrets.stored
    assert sim.condition("User/alice", "CredentialsReady")[:2] == ("True", "NotAsked")


@pytest.mark.parametrize(
    ("after", "entries"),
    [(TLS, {"ca.crt", "user.crt", "user.key", "user.p12", "user.password"}), (None, None)],
)
def test_changing_the_authentication_removes_the_previous_credentials(
    sim: OperatorSimulation, after: object, entries: set[str] | None
) -> None:
    user(sim, "alice", SCRAM, READ)
    sim.reconcile_until_ready()
    user(sim, "alice", after, READ)
    sim.reconcile_until_ready()
    assert sim.cluster.scram == {}
    secret = sim.secrets.stored.get("alice")
    assert (secret and set(secret.data)) == entries
    who = status(sim).username
    assert {binding.entry.principal for binding in sim.cluster.acls or ()} == {f"User:{who}"}


def test_the_older_of_two_resources_owns_a_user(sim: OperatorSimulation) -> None:
    user(sim, "alice", SCRAM, READ)
    sim.reconcile_until_ready()
    user(sim, "second", SCRAM, WRITE, userName="alice")
    sim.reconcile()
    assert sim.condition("User/second")[:2] == ("False", "ResourceConflict")
    assert "second" not in sim.secrets.stored
    sim.store.delete("User/second")
    sim.reconcile()
    assert "User/second" not in sim.store.stored
    assert sim.cluster.scram["alice"][1] == password(sim)
    assert len(sim.cluster.acls or ()) == 2
    user(sim, "cert", TLS, READ, userName="alice")
    sim.reconcile_until_ready()
    assert len(sim.cluster.acls or ()) == 4, "a user with a certificate is another principal"


def test_deleting_a_user_removes_credentials_acls_and_secret(sim: OperatorSimulation) -> None:
    user(sim, "alice", SCRAM, READ)
    user(sim, "carol", TLS, WRITE)
    sim.reconcile_until_ready()
    sim.cluster.scram["bob"] = (4096, "his own")
    for name in ("alice", "carol"):
        sim.store.delete(f"User/{name}")
    sim.reconcile_until(lambda: not {"User/alice", "User/carol"} & set(sim.store.stored))
    assert sim.cluster.acls == set()
    assert set(sim.cluster.scram) == {"bob"}
    assert not {"alice", "carol"} & set(sim.secrets.stored)


@pytest.mark.parametrize("reachable", [True, False])
def test_a_user_is_released_at_the_deadline_when_its_cluster_is_unreachable(
    sim: OperatorSimulation, reachable: bool
) -> None:
    user(sim, "alice", SCRAM, READ)
    sim.reconcile_until_ready()
    sim.store.delete("User/alice")
    sim.cluster.describes_access = False
    if not reachable:
        sim.cluster.crash(0)
    deleted_at = sim.store.stored["User/alice"].metadata.deletion_timestamp
    assert deleted_at is not None
    sim.reconcile()
    assert "User/alice" in sim.store.stored
    sim.cluster.now_ms = parse_iso_time(deleted_at) + DELETION_DEADLINE_MS
    sim.reconcile()
    assert "User/alice" not in sim.store.stored
    assert "alice" not in sim.secrets.stored


def test_deleting_an_unmanaged_user_changes_nothing(sim: OperatorSimulation) -> None:
    user(sim, "alice", SCRAM, READ)
    sim.reconcile_until_ready()
    before: Any = (dict(sim.cluster.scram), set(sim.cluster.acls or ()))
    sim.apply("User", "alice", {"clusterRef": {"name": "demo"}, "authentication": SCRAM}, managed="false")
    sim.store.delete("User/alice")
    sim.reconcile()
    assert "User/alice" not in sim.store.stored
    assert (sim.cluster.scram, sim.cluster.acls) == before


def test_a_failed_step_is_reported_and_retried(sim: OperatorSimulation) -> None:
    sim.cluster.step_failures = {SetScramCredential: StepFailed("KafkaError", "not today")}
    user(sim)
    sim.reconcile()
    sim.reconcile()
    assert sim.condition("User/alice") == ("False", "KafkaError", "not today")
    assert status(sim).secret_version == ""
    sim.cluster.step_failures = {}
    sim.reconcile_until_ready()
