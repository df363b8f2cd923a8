"""Kafka's security settings for listeners and authorization, validated by the broker's own table."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.metadata.config import BrokerConfig
from ottla_operator.planning.listener_security import (
    REPLICATION,
    SecurityFiles,
    protocol_map,
    security_settings,
)
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.loading import parse_resource

FILES = SecurityFiles(
    "/own.pem",
    "/cluster.crt",
    "/clients.crt",
    "/{}.listener.pem".format,
    "/{}.trusted.crt".format,
    "/zk.crt",
)
OWN = "User:CN=demo-brokers,O=ottla.dev;User:CN=demo-operator,O=ottla.dev"
SCRAM, TLS = {"authentication": {"type": "scram-sha-512"}}, {"authentication": {"type": "tls"}}


def settings(listeners: list[dict[str, Any]], **spec: Any) -> dict[str, str]:
    """The security settings, with the protocols of the listener and of the inter-broker listener."""
    given = {"replicas": 1, "listeners": [{"name": "in-side", "port": 9092, **one} for one in listeners]}
    cluster, problems = parse_resource("BrokerCluster", {"name": "demo"}, {**given, **spec})
    assert not problems
    assert isinstance(cluster, BrokerCluster)
    mapped = protocol_map(cluster)
    found = security_settings(cluster, FILES)
    own = {
        "listeners": "REPLICATION://:9091,IN_SIDE://:9092",
        "inter.broker.listener.name": REPLICATION,
        "zookeeper.connect": "localhost",
    }
    config = BrokerConfig.from_properties({**own, **found, "listener.security.protocol.map": mapped})
    assert not config.warnings
    protocols = {listener.name: listener.protocol for listener in config.listeners}
    return {**found, "inter_broker": protocols["REPLICATION"], "protocol": protocols["IN_SIDE"]}


@pytest.mark.parametrize(
    ("listener", "inter_broker", "protocol", "expected"),
    [
        ({}, "PLAINTEXT", "PLAINTEXT", {}),
        ({"tls": True}, "SSL", "SSL", {"ssl.keystore.location": "/own.pem", "ssl.keystore.type": "PEM"}),
        (
            {"tls": True, **TLS},
            "SSL",
            "SSL",
            {
                "ssl.keystore.location": "/own.pem",
                "ssl.keystore.type": "PEM",
                "ssl.client.auth": "required",
                "ssl.truststore.location": "/clients.crt",
                "ssl.truststore.type": "PEM",
            },
        ),
        (
            SCRAM,
            "SSL",
            "SASL_PLAINTEXT",
            {
                "sasl.enabled.mechanisms": "SCRAM-SHA-512",
                "scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule "
                "required;",
            },
        ),
        (
            {
                "tls": True,
                **TLS,
                "configuration": {"brokerCertChainAndKey": {"secretName": "public"}},
            },
            "SSL",
            "SSL",
            {
                "ssl.keystore.location": "/in-side.listener.pem",
                "ssl.keystore.type": "PEM",
                "ssl.client.auth": "required",
                "ssl.truststore.location": "/clients.crt",
                "ssl.truststore.type": "PEM",
            },
        ),
        (
            {"tls": True, **SCRAM},
            "SSL",
            "SASL_SSL",
            {
                "ssl.keystore.location": "/own.pem",
                "ssl.keystore.type": "PEM",
                "sasl.enabled.mechanisms": "SCRAM-SHA-512",
                "scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule "
                "required;",
            },
        ),
    ],
)
def test_a_listener_has_the_protocol_and_settings_of_its_spec(
    listener: dict[str, Any], inter_broker: str, protocol: str, expected: dict[str, str]
) -> None:
    found = settings([listener])
    assert (found["inter_broker"], found["protocol"]) == (inter_broker, protocol)
    prefix = "listener.name.in_side."
    assert {n.removeprefix(prefix): v for n, v in found.items() if n.startswith(prefix)} == expected


def test_brokers_of_a_secured_cluster_trust_the_cluster_authority() -> None:
    found = settings([{"tls": True}])
    assert found["listener.name.replication.ssl.client.auth"] == "required"
    assert found["listener.name.replication.ssl.truststore.location"] == "/cluster.crt"
    assert "authorizer.class.name" not in found


@pytest.mark.parametrize(
    ("users", "expected"), [([], OWN), (["CN=ann", "bob"], f"{OWN};User:CN=ann;User:bob")]
)
def test_brokers_the_operator_and_the_users_of_the_spec_are_super_users(
    users: list[str], expected: str
) -> None:
    found = settings([{}], authorization={"type": "simple", "superUsers": users})
    assert found["super.users"] == expected
    assert found["authorizer.class.name"] == "kafka.security.authorizer.AclAuthorizer"
    assert (found["inter_broker"], found["protocol"]) == ("SSL", "PLAINTEXT")


def test_a_custom_authorizer_gets_the_same_super_users() -> None:
    custom = {"type": "custom", "authorizerClass": "company.teams:ByTeam", "superUsers": ["CN=ann"]}
    found = settings([{}], authorization=custom)
    assert found["authorizer.class.name"] == "company.teams:ByTeam"
    assert found["super.users"] == f"{OWN};User:CN=ann"


OAUTH: dict[str, Any] = {
    "type": "oauth",
    "validIssuerUri": "https://idp.example/realm",
    "jwksEndpointUri": "https://idp.example/realm/certs",
}
_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
_LOGIN = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
_USUAL = {
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "oauthbearer.sasl.server.callback.handler.class": _HANDLER,
    "oauthbearer.sasl.jaas.config": f"{_LOGIN};",
    "sasl.oauthbearer.jwks.endpoint.url": "https://idp.example/realm/certs",
    "sasl.oauthbearer.expected.issuer": "https://idp.example/realm",
}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"clientId": "kafka"}, {}),
        ({"clientId": "kafka", "checkAudience": True}, {"sasl.oauthbearer.expected.audience": "kafka"}),
        ({"userNameClaim": "name"}, {"sasl.oauthbearer.sub.claim.name": "name"}),
        ({"scopeClaim": "scp"}, {"sasl.oauthbearer.scope.claim.name": "scp"}),
        ({"clockSkewSeconds": 0}, {"sasl.oauthbearer.clock.skew.seconds": "0"}),
        ({"jwksRefreshSeconds": 60}, {"sasl.oauthbearer.jwks.endpoint.refresh.ms": "60000"}),
        (
            {"maxSecondsWithoutReauthentication": 900},
            {"oauthbearer.connections.max.reauth.ms": "900000"},
        ),
        (
            {"tlsTrustedCertificates": [{"secretName": "idp", "certificate": "ca.crt"}]},
            {
                "oauthbearer.sasl.jaas.config": f'{_LOGIN} ssl.truststore.type="PEM" '
                'ssl.truststore.location="/in-side.trusted.crt";'
            },
        ),
        (
            {"disableTlsHostnameVerification": True},
            {"oauthbearer.sasl.jaas.config": f'{_LOGIN} ssl.endpoint.identification.algorithm="";'},
        ),
    ],
)
@pytest.mark.parametrize(("tls", "protocol"), [(True, "SASL_SSL"), (False, "SASL_PLAINTEXT")])
def test_tokens_are_validated_by_kafkas_own_settings(
    given: dict[str, Any], expected: dict[str, str], tls: bool, protocol: str
) -> None:
    found = settings([{"tls": tls, "authentication": {**OAUTH, **given}}])
    assert found["protocol"] == protocol
    prefix = "listener.name.in_side."
    ssl = {"ssl.keystore.location": "/own.pem", "ssl.keystore.type": "PEM"} if tls else {}
    assert {n.removeprefix(prefix): v for n, v in found.items() if n.startswith(prefix)} == {
        **ssl,
        **_USUAL,
        **expected,
    }


PLAIN = {
    "sasl.enabled.mechanisms": "PLAIN",
    "plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required user_a='b';",
}


@pytest.mark.parametrize(
    ("tls", "sasl", "config", "protocol"),
    [
        (True, True, PLAIN, "SASL_SSL"),
        (False, True, PLAIN, "SASL_PLAINTEXT"),
        (True, False, {"ssl.client.auth": "requested"}, "SSL"),
    ],
)
def test_custom_settings_have_the_listeners_prefix(
    tls: bool, sasl: bool, config: dict[str, str], protocol: str
) -> None:
    listener = {"tls": tls, "authentication": {"type": "custom", "sasl": sasl, "listenerConfig": config}}
    found = settings([listener])
    assert found["protocol"] == protocol
    prefix = "listener.name.in_side."
    ssl = {"ssl.keystore.location": "/own.pem", "ssl.keystore.type": "PEM"} if tls else {}
    assert {n.removeprefix(prefix): v for n, v in found.items() if n.startswith(prefix)} == {**ssl, **config}


def test_brokers_connect_to_an_external_zookeeper_by_tls() -> None:
    zookeeper = {
        "connect": "zk:2182",
        "tlsTrustedCertificates": [{"secretName": "zk", "certificate": "ca.crt"}],
    }
    found = settings([{"tls": True}], zookeeper=zookeeper)
    assert {name: value for name, value in found.items() if name.startswith("zookeeper.")} == {
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
        "zookeeper.ssl.truststore.type": "PEM",
        "zookeeper.ssl.truststore.location": "/zk.crt",
    }
