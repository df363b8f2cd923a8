"""User resources over a cluster in memory: credentials, Secrets and ACLs, and who gives way to whom."""

from __future__ import annotations

import os
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import pkcs12
from operator_cluster import World

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

LISTENERS = [
    {"name": "tls", "port": 9093, "tls": True, "authentication": {"type": "tls"}},
    {"name": "scram", "port": 9094, "tls": True, "authentication": {"type": "scram-sha-512"}},
]
SCRAM, TLS = {"type": "scram-sha-512"}, {"type": "tls"}
READ = {"resource": {"type": "topic", "name": "orders"}, "operations": ["Read", "Describe"]}
WRITE = {"resource": {"type": "topic", "name": "o", "patternType": "prefix"}, "operations": ["Write"]}
OWN_WORD = {"valueFrom": {"secretKeyRef": {"name": "mine", "key": "word"}}}


@pytest.fixture
def world() -> World:
    """A secured cluster, with the Secrets that its platform makes for it."""
    world = World()
    world.brokers(1, listeners=LISTENERS, authorization={"type": "simple"})
    world.cluster.acls = set()
    keep_authorities(world)
    world.settle()
    return world


def keep_authorities(world: World) -> None:
    """What the platform does in each pass."""
    cluster = world.store.kept["BrokerCluster/demo"]
    assert isinstance(cluster, BrokerCluster)
    found = {name: secret.data for name, secret in world.secrets.kept.items()}
    for name, data in plan_secrets(cluster, {}, found, world.cluster.now_ms, os.urandom).data.items():
        world.secrets.write(name, data, cluster.key)


def user(
    world: World, name: str = "alice", authentication: object = SCRAM, *acls: object, **spec: object
) -> None:
    content = {"clusterRef": {"name": "demo"}, "authorization": {"type": "simple", "acls": list(acls)}}
    world.apply("User", name, {**content, "authentication": authentication, **spec})


def status(world: World, key: str = "User/alice") -> UserStatus:
    found = world.status(key)
    assert isinstance(found, UserStatus)
    return found


def password(world: World, name: str = "alice") -> str:
    return world.secrets.kept[name].data["password"].decode()


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


def test_a_password_is_made_once_and_kept_in_the_secret(world: World) -> None:
    user(world)
    world.settle()
    secret = world.secrets.kept["alice"]
    made = password(world)
    assert len(made) == 32
    assert set(secret.data) == {"password", "sasl.jaas.config"}
    login = jaas.parse(secret.data["sasl.jaas.config"].decode())
    assert login.options == {"username": "alice", "password": made}
    assert world.cluster.scram["alice"] == (iterations_of(secret.version), made)
    assert status(world).username == "alice"
    assert status(world).secret == "alice"
    assert world.condition("User/alice", "CredentialsReady")[:2] == ("True", "Ready")
    world.step(60_000)
    assert world.step() == []
    assert password(world) == made


def test_a_credential_that_somebody_else_has_set_is_set_back(world: World) -> None:
    user(world)
    world.settle()
    made = world.cluster.scram["alice"]
    world.cluster.scram["alice"] = (4096, "another")
    world.step()
    assert world.condition("User/alice")[:2] == ("False", "Applying")
    world.settle()
    assert world.cluster.scram["alice"] == made
    del world.cluster.scram["alice"]
    world.step()
    world.settle()
    assert world.cluster.scram["alice"] == made


def test_a_deleted_secret_is_a_new_password(world: World) -> None:
    user(world)
    world.settle()
    before = password(world)
    del world.secrets.kept["alice"]
    world.step()
    world.settle()
    assert password(world) != before
    assert world.cluster.scram["alice"][1] == password(world)


def test_a_password_that_is_changed_in_the_secret_is_set(world: World) -> None:
    user(world)
    world.settle()
    world.secrets.write("alice", {**world.secrets.kept["alice"].data, "password": b"changed"}, "User/alice")
    world.step()
    world.settle()
    assert world.cluster.scram["alice"][1] == "changed"
    assert 'password="changed"' in world.secrets.kept["alice"].data["sasl.jaas.config"].decode()


def test_ones_own_password_is_taken_from_the_secret_that_is_named(world: World) -> None:
    user(world, "alice", {**SCRAM, "password": OWN_WORD})
    world.step()
    world.step()
    assert world.condition("User/alice")[:2] == ("False", "InvalidPassword")
    assert "Secret mine of spec.authentication.password does not exist" in world.condition("User/alice")[2]
    world.secrets.write("mine", {"word": b"line\n"})
    world.step()
    assert "printable ASCII" in world.condition("User/alice")[2]
    quoted = 'with "quotes" and \\'
    world.secrets.write("mine", {"word": quoted.encode()})
    world.settle()
    assert world.cluster.scram["alice"][1] == quoted
    login = jaas.parse(world.secrets.kept["alice"].data["sasl.jaas.config"].decode())
    assert login.options["password"] == quoted
    world.secrets.write("mine", {"word": b"another"})
    world.step()
    world.settle()
    assert world.cluster.scram["alice"][1] == "another"


def test_a_secret_of_somebody_else_is_left_alone(world: World) -> None:
    world.secrets.write("alice", {"password": b"not yours"})
    user(world)
    world.step()
    assert world.condition("User/alice")[:2] == ("False", "SecretConflict")
    assert world.secrets.kept["alice"].data == {"password": b"not yours"}
    assert "alice" not in world.cluster.scram


def test_a_certificate_names_the_user_and_comes_with_its_key_store(world: World) -> None:
    user(world, "alice", TLS, READ)
    world.settle()
    data = world.secrets.kept["alice"].data
    assert set(data) == {"ca.crt", "user.crt", "user.key", "user.p12", "user.password"}
    assert data["ca.crt"] == world.secrets.kept["demo-clients-ca-cert"].data["ca.crt"]
    certificate = x509.load_pem_x509_certificate(data["user.crt"])
    assert certificate.subject.rfc4514_string() == "CN=alice"
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(data["ca.crt"]))
    key, in_store, _ = pkcs12.load_key_and_certificates(data["user.p12"], data["user.password"])
    assert key is not None
    assert in_store == certificate
    assert status(world).username == "CN=alice"
    assert world.cluster.acls == {
        acl("User:CN=alice", Operation.READ),
        acl("User:CN=alice", Operation.DESCRIBE),
    }
    world.step(60_000)
    assert world.step() == []


def test_a_certificate_is_renewed_in_time_and_when_it_is_damaged(world: World) -> None:
    user(world, "alice", TLS)
    world.settle()
    first = world.secrets.kept["alice"].data
    world.cluster.now_ms += 336 * 24 * 3600 * 1000
    world.step()
    assert world.step() == [], "its authority is due itself, and would sign for no longer"
    keep_authorities(world)
    world.step()
    world.settle()
    second = world.secrets.kept["alice"].data
    assert second["user.crt"] != first["user.crt"]
    assert second["ca.crt"] != first["ca.crt"]
    for damaged in ({**second, "user.key": first["user.key"]}, {**second, "user.p12": b""}):
        world.secrets.write("alice", damaged, "User/alice")
        world.step()
        world.settle()
        assert world.secrets.kept["alice"].data["user.crt"] != damaged["user.crt"]


def test_a_certificate_of_another_authority_waits_until_brokers_trust_that_one(world: World) -> None:
    user(world, "alice", TLS)
    world.settle()
    first = world.secrets.kept["alice"].data
    del world.secrets.kept["demo-clients-ca"]
    keep_authorities(world)
    assert world.step(240_000) == []
    assert world.condition("User/alice", "CredentialsReady")[:2] == ("True", "Ready")
    user(world, "carol", TLS)
    world.settle()
    assert world.secrets.kept["alice"].data == first
    world.step(60_000)
    world.settle()
    second = world.secrets.kept["alice"].data
    assert second["user.crt"] != first["user.crt"]
    assert second["ca.crt"] == world.secrets.kept["carol"].data["ca.crt"]


def test_a_user_has_the_acls_of_its_resource_and_no_others(world: World) -> None:
    stranger = acl("User:bob", Operation.ALL)
    world.cluster.acls = {stranger, acl("User:alice", Operation.DELETE)}
    user(world, "alice", SCRAM, READ, WRITE)
    world.settle()
    prefixed = acl("User:alice", Operation.WRITE, "o", PatternType.PREFIXED)
    read, describe = (acl("User:alice", operation) for operation in (Operation.READ, Operation.DESCRIBE))
    assert world.cluster.acls == {stranger, prefixed, read, describe}
    assert status(world).acls == 3
    world.cluster.acls.remove(read)
    world.step()
    world.settle()
    assert read in world.cluster.acls
    cluster = {
        "resource": {"type": "cluster"},
        "operations": ["DescribeConfigs"],
        "type": "deny",
        "host": "::1",
    }
    user(world, "alice", SCRAM, WRITE, cluster)
    before = len(world.cluster.log)
    world.settle()
    changes = [line for line in world.cluster.log[before:] if "ACL" in line]
    assert changes == ["add 1 ACL of User:alice", "remove 2 ACLs of User:alice"]
    denied = Entry("User:alice", "::1", Operation.DESCRIBE_CONFIGS, Permission.DENY)
    pattern = ResourcePattern(ResourceType.CLUSTER, "kafka-cluster")
    assert world.cluster.acls == {stranger, prefixed, AclBinding(pattern, denied)}


def test_acls_of_a_user_without_authorization_are_left_to_other_tools(world: World) -> None:
    theirs = acl("User:alice", Operation.DELETE)
    world.cluster.acls = {theirs}
    spec = {"clusterRef": {"name": "demo"}, "authentication": SCRAM}
    world.apply("User", "alice", spec)
    world.settle()
    assert world.cluster.acls == {theirs}
    user(world, "alice", SCRAM, READ)
    world.settle()
    assert theirs not in world.cluster.acls, "the spec has the whole list now"
    world.apply("User", "alice", spec)
    world.settle()
    assert world.cluster.acls == set(), "what was named once is taken away once"
    assert status(world).authorization == ""
    world.cluster.acls.add(theirs)
    assert world.step() == []
    world.store.delete("User/alice")
    world.until(lambda: "User/alice" not in world.store.kept)
    assert world.cluster.acls == {theirs}


def test_without_an_authorizer_acls_are_not_supported_and_logins_are(world: World) -> None:
    world.cluster.acls = None
    user(world, "alice", SCRAM, READ)
    world.until(lambda: "alice" in world.cluster.scram)
    world.step()
    assert world.condition("User/alice")[:2] == ("False", "NotSupported")
    assert "without an authorizer" in world.condition("User/alice")[2]
    assert world.condition("User/alice", "CredentialsReady")[0] == "True"
    world.apply("User", "alice", {"clusterRef": {"name": "demo"}, "authentication": SCRAM})
    world.settle()


def test_a_user_whom_no_listener_lets_in_is_not_ready() -> None:
    world = World()
    world.brokers(1)
    world.settle()
    user(world, "alice", SCRAM, authorization=None)
    user(world, "carol", TLS, authorization=None)
    world.until(lambda: "alice" in world.cluster.scram)
    world.step()
    assert world.condition("User/alice")[1:] == (
        "NotSupported",
        "no listener of BrokerCluster/demo has authentication of type scram-sha-512",
    )
    assert world.condition("User/carol")[1:] == (
        "NotSupported",
        "BrokerCluster/demo has no certificate authority for clients",
    )


def test_a_user_may_be_let_in_by_something_else(world: World) -> None:
    user(world, "alice", None, READ)
    world.settle()
    assert len(world.cluster.acls or ()) == 2
    assert "alice" not in world.secrets.kept
    assert world.condition("User/alice", "CredentialsReady")[:2] == ("True", "NotAsked")


@pytest.mark.parametrize(
    ("after", "entries"),
    [(TLS, {"ca.crt", "user.crt", "user.key", "user.p12", "user.password"}), (None, None)],
)
def test_another_type_of_authentication_leaves_nothing_behind(
    world: World, after: object, entries: set[str] | None
) -> None:
    user(world, "alice", SCRAM, READ)
    world.settle()
    user(world, "alice", after, READ)
    world.settle()
    assert world.cluster.scram == {}
    secret = world.secrets.kept.get("alice")
    assert (secret and set(secret.data)) == entries
    who = status(world).username
    assert {binding.entry.principal for binding in world.cluster.acls or ()} == {f"User:{who}"}


def test_of_two_resources_for_one_user_the_older_has_it(world: World) -> None:
    user(world, "alice", SCRAM, READ)
    world.settle()
    user(world, "second", SCRAM, WRITE, userName="alice")
    world.step()
    assert world.condition("User/second")[:2] == ("False", "ResourceConflict")
    assert "second" not in world.secrets.kept
    world.store.delete("User/second")
    world.step()
    assert "User/second" not in world.store.kept
    assert world.cluster.scram["alice"][1] == password(world)
    assert len(world.cluster.acls or ()) == 2
    user(world, "cert", TLS, READ, userName="alice")
    world.settle()
    assert len(world.cluster.acls or ()) == 4, "a certificate's alice is somebody else"


def test_all_that_a_user_had_goes_with_it(world: World) -> None:
    user(world, "alice", SCRAM, READ)
    user(world, "carol", TLS, WRITE)
    world.settle()
    world.cluster.scram["bob"] = (4096, "his own")
    for name in ("alice", "carol"):
        world.store.delete(f"User/{name}")
    world.until(lambda: not {"User/alice", "User/carol"} & set(world.store.kept))
    assert world.cluster.acls == set()
    assert set(world.cluster.scram) == {"bob"}
    assert not {"alice", "carol"} & set(world.secrets.kept)


@pytest.mark.parametrize("reachable", [True, False])
def test_a_user_is_let_go_when_its_cluster_cannot_be_asked(world: World, reachable: bool) -> None:
    user(world, "alice", SCRAM, READ)
    world.settle()
    world.store.delete("User/alice")
    world.cluster.tells_access = False
    if not reachable:
        world.cluster.crash(0)
    deleted_at = world.store.kept["User/alice"].metadata.deletion_timestamp
    assert deleted_at is not None
    world.step()
    assert "User/alice" in world.store.kept
    world.cluster.now_ms = parse_iso_time(deleted_at) + DELETION_DEADLINE_MS
    world.step()
    assert "User/alice" not in world.store.kept
    assert "alice" not in world.secrets.kept


def test_one_that_is_not_managed_leaves_all_as_it_is(world: World) -> None:
    user(world, "alice", SCRAM, READ)
    world.settle()
    before: Any = (dict(world.cluster.scram), set(world.cluster.acls or ()))
    world.apply("User", "alice", {"clusterRef": {"name": "demo"}, "authentication": SCRAM}, managed="false")
    world.store.delete("User/alice")
    world.step()
    assert "User/alice" not in world.store.kept
    assert (world.cluster.scram, world.cluster.acls) == before


def test_a_step_that_fails_is_told_and_tried_again(world: World) -> None:
    world.cluster.refuse = {SetScramCredential: StepFailed("KafkaError", "not today")}
    user(world)
    world.step()
    world.step()
    assert world.condition("User/alice") == ("False", "KafkaError", "not today")
    assert status(world).secret_version == ""
    world.cluster.refuse = {}
    world.settle()
