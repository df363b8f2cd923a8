"""A broker's ZooKeeper login by Kafka's settings and Java's properties, and the ACLs of its nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.metadata import zookeeper_access
from ottla.metadata.config import BrokerConfig, ConfigError
from ottla.metadata.kazoo_adapter import node_acls
from ottla.metadata.kazoo_connection import zookeeper_context
from ottla.metadata.zookeeper_access import Account, ZooKeeperAccess, java_properties
from ottla.security.stores import StoreProblem
from tests.certificates import PASSWORD, Authority

DIGEST = "org.apache.zookeeper.server.auth.DigestLoginModule"
CLIENT = f'Client {{ {DIGEST} required username="kafka" password="pa ss"; }};'
TLS = {
    "zookeeper.ssl.client.enable": "true",
    "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
}


def access(settings: dict[str, str], options: str = "") -> ZooKeeperAccess:
    """The access that `ottla broker` derives from its settings and KAFKA_OPTS."""
    properties = java_properties(options)
    given = zookeeper_access.settings_of(properties) | settings
    return ZooKeeperAccess.of(BrokerConfig.from_properties(given), properties)


def problems_of(settings: dict[str, str], options: str = "") -> str:
    with pytest.raises(ConfigError) as refused:
        access(settings, options)
    return "\n".join(refused.value.problems)


def jaas_file(path: Path, text: str) -> str:
    path.write_text(text)
    return f"-Xmx1g -Djava.security.auth.login.config={path} -ea"


# --- node ACLs --------------------------------------------------------------------------------------------

EVERYBODY, CREATOR, READERS = ("world", "anyone", 31), ("auth", "", 31), ("world", "anyone", 1)


@pytest.mark.parametrize(
    ("path", "acls"),
    [
        ("/brokers/ids/1", [CREATOR, READERS]),
        ("/config", [CREATOR, READERS]),
        ("/config/topics/orders", [CREATOR, READERS]),
        ("/config/users", [CREATOR]),
        ("/config/users/anna/clients/one", [CREATOR]),
        ("/config/brokers/<default>", [CREATOR]),
        ("/delegation_token", [CREATOR, READERS]),
        ("/delegation_token/token_changes", [CREATOR, READERS]),
        ("/delegation_token/tokens/abc", [CREATOR]),
        ("/consumers", [EVERYBODY]),
        ("/consumers/group", [CREATOR, READERS]),
        ("/kafka-acl/Topic/orders", [CREATOR, READERS]),
    ],
)
def test_only_the_creator_writes_nodes_and_secrets_are_not_readable(
    path: str, acls: list[tuple[str, str, int]]
) -> None:
    assert [(a.id.scheme, a.id.id, a.perms) for a in node_acls(path, secure=True)] == acls
    assert [(a.id.scheme, a.id.id, a.perms) for a in node_acls(path, secure=False)] == [EVERYBODY]


# --- the login --------------------------------------------------------------------------------------------


def test_the_login_is_the_client_section_of_the_jaas_file(tmp_path: Path) -> None:
    text = f"// theirs\nKafkaServer {{\n  a.B required x=1;\n  c.D optional;\n}};\n{CLIENT}"
    options = jaas_file(tmp_path / "jaas.conf", text)
    assert access({"zookeeper.set.acl": "true"}, options).login == Account("kafka", "pa ss")
    assert access({}, options).secure_acls is False
    other = f"{options} -Dzookeeper.sasl.clientconfig=Others"
    assert access({}, other).login is None


def test_without_a_jaas_file_or_section_there_is_no_login(tmp_path: Path) -> None:
    assert access({}).login is None
    assert access({}, jaas_file(tmp_path / "jaas.conf", "")).login is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"Client {{ {DIGEST} required username=a; }};", "password not set"),
        ("Client { com.sun.security.auth.module.Krb5LoginModule required; };", "is not served"),
        (f"Client {{ {DIGEST} required username=a password=b; }}", "does not end with };"),
        (f"Client {{ {DIGEST} required username=a password=b; ", "does not end with };"),
        (f"Client {{ {DIGEST} required username=a password=b }};", "not terminated by semi-colon"),
        (f"Client {DIGEST} required;", "no { after Client"),
        (f"{CLIENT} {CLIENT}", "two sections Client"),
    ],
)
def test_a_jaas_file_without_a_user_is_refused(tmp_path: Path, text: str, says: str) -> None:
    problem = problems_of({}, jaas_file(tmp_path / "jaas.conf", text))
    assert str(tmp_path / "jaas.conf") in problem
    assert says in problem


def test_a_missing_or_disabled_jaas_file_is_refused(tmp_path: Path) -> None:
    missing = f"-Djava.security.auth.login.config={tmp_path}/none"
    assert f"{tmp_path}/none: cannot be read: No such file" in problems_of({}, missing)
    options = jaas_file(tmp_path / "jaas.conf", CLIENT) + " -Dzookeeper.sasl.client=false"
    assert "zookeeper.sasl.client=false: contradicts" in problems_of({}, options)


# --- TLS --------------------------------------------------------------------------------------------------


def test_the_type_of_a_store_is_in_its_name(tmp_path: Path) -> None:
    authority = Authority()
    pem = authority.sign("broker").write_pem(tmp_path / "own.pem")
    p12 = authority.sign("broker").write_pkcs12(tmp_path / "own.p12")
    trust = authority.write(tmp_path / "ca.pem")
    for store, more in ((pem, {}), (p12, {"zookeeper.ssl.keystore.password": PASSWORD})):
        settings = {
            **TLS,
            "zookeeper.ssl.keystore.location": str(store),
            "zookeeper.ssl.truststore.location": str(trust),
            **more,
        }
        tls = access(settings | {"zookeeper.set.acl": "true"}).tls
        assert tls is not None
        context = zookeeper_context(tls)
        assert context.check_hostname
        assert context.maximum_version.name == "TLSv1_2"  # Kafka's default, of ZooKeeper alone
        assert len(context.get_ca_certs()) == 1


def test_properties_of_zookeepers_client_stand_in_for_settings(tmp_path: Path) -> None:
    options = (
        "-Dzookeeper.client.secure=true -Dzookeeper.clientCnxnSocket=ClientCnxnSocketNetty"
        " -Dzookeeper.ssl.keyStore.location=/a.pem -Dzookeeper.ssl.hostnameVerification=false"
        " -Dzookeeper.ssl.enabledProtocols=TLSv1.3,TLSv1.2 -Dzookeeper.ssl.crl=no"
    )
    tls = access({"zookeeper.ssl.keystore.location": "/b.pem"}, options).tls
    assert tls is not None
    assert (tls.keystore_location, tls.identification) == ("/b.pem", "")
    assert tls.protocols == ("TLSv1.3", "TLSv1.2")
    assert access({}).tls is None


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"zookeeper.clientCnxnSocket": ""}, "zookeeper.clientCnxnSocket=: must be org.apache"),
        ({"zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNIO"}, "NIO: must be"),
        ({"zookeeper.ssl.crl.enable": "true"}, "zookeeper.ssl.crl.enable=true: checks for revoked"),
        ({"zookeeper.ssl.ocsp.enable": "true"}, "zookeeper.ssl.ocsp.enable=true: checks for revoked"),
        (
            {"zookeeper.ssl.keystore.location": "/a.store"},
            "zookeeper.ssl.keystore.type: required, because /a.store",
        ),
        ({"zookeeper.set.acl": "true"}, "zookeeper.set.acl=true: requires authentication"),
    ],
)
def test_unsupported_settings_are_refused(settings: dict[str, str], says: str) -> None:
    assert says in problems_of(TLS | settings)


def test_node_acls_need_an_authenticated_user() -> None:
    assert "KAFKA_OPTS=-Djava.security.auth.login.config=FILE" in problems_of({"zookeeper.set.acl": "true"})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"zookeeper.ssl.keystore.location": "/none.pem"},
            "^zookeeper.ssl.keystore.location=/none.pem: cannot",
        ),
        ({"zookeeper.ssl.truststore.location": "{jks}"}, "^zookeeper.ssl.truststore.location=.*keytool"),
        ({"zookeeper.ssl.protocol": "TLS"}, "^zookeeper.ssl.enabled.protocols: TLS is not supported"),
        (
            {"zookeeper.ssl.cipher.suites": "TLS_A_WITH_B"},
            "^zookeeper.ssl.cipher.suites=TLS_A_WITH_B: OpenSSL supports none",
        ),
    ],
)
def test_a_store_that_does_not_open_is_named_as_zookeepers(
    tmp_path: Path, settings: dict[str, str], says: str
) -> None:
    jks = tmp_path / "trust.jks"
    jks.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    tls = access(TLS | {name: text.format(jks=jks) for name, text in settings.items()}).tls
    assert tls is not None
    with pytest.raises(StoreProblem, match=says):
        zookeeper_context(tls)
