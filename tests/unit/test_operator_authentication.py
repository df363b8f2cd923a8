"""Authentication in the spec of a listener: what fits together, in Python and in the CRD."""

from __future__ import annotations

from typing import Any

import pytest

from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.loading import parse_resource
from tests.unit.test_operator_listener_security import OAUTH

CUSTOM: dict[str, Any] = {
    "type": "custom",
    "sasl": True,
    "listenerConfig": {"sasl.enabled.mechanisms": "PLAIN"},
}
TRUSTED = {"secretName": "idp", "certificate": "ca.crt"}


def problems(authentication: dict[str, Any]) -> list[str]:
    listener = {"name": "tokens", "port": 9094, "tls": True, "authentication": authentication}
    spec = {"replicas": 1, "listeners": [listener]}
    _, found = parse_resource("BrokerCluster", {"name": "demo"}, spec)
    path = "spec.listeners[0].authentication"
    assert all(str(each).startswith(path) for each in found)
    return [str(each).removeprefix(path) for each in found]


@pytest.mark.parametrize(
    "authentication",
    [
        OAUTH,
        {**OAUTH, "tlsTrustedCertificates": [TRUSTED, {"configMapName": "idp", "pattern": "*.crt"}]},
        CUSTOM,
        {"type": "custom", "sasl": False},
    ],
)
def test_combinations_that_fit_are_valid(authentication: dict[str, Any]) -> None:
    assert problems(authentication) == []


@pytest.mark.parametrize(
    ("authentication", "expected"),
    [
        ({**OAUTH, "validIssuerUri": None}, [".validIssuerUri: is required for type oauth"]),
        ({"type": "custom"}, [".sasl: is required for type custom"]),
        ({**OAUTH, "sasl": True}, [".sasl: is for type custom only, and the type is oauth"]),
        (
            {"type": "tls", "clientId": "x", "listenerConfig": {}},
            [
                ".clientId: is for type oauth only, and the type is tls",
                ".listenerConfig: is for type custom only, and the type is tls",
            ],
        ),
        ({**OAUTH, "checkAudience": True}, [".checkAudience: requires clientId"]),
        (
            {**OAUTH, "jwksEndpointUri": "file:/etc/passwd"},
            [
                ".jwksEndpointUri: 'file:/etc/passwd' is not allowed: string should match pattern '^https?://[^/]+'"
            ],
        ),
        (
            {**OAUTH, "tlsTrustedCertificates": [{"secretName": "a", "configMapName": "b"}]},
            [
                ".tlsTrustedCertificates[0]: must have one of secretName and configMapName",
                ".tlsTrustedCertificates[0]: must have one of certificate and pattern",
            ],
        ),
        (
            {**CUSTOM, "listenerConfig": {"sasl.enabled.mechanisms": "PLAIN", "ssl.keystore.type": "PEM"}},
            [
                ".listenerConfig[ssl.keystore.type]: is set by the operator: from "
                "configuration.brokerCertChainAndKey"
            ],
        ),
        (
            {**CUSTOM, "listenerConfig": {"sasl.enabled.mechanisms": "PLAIN", "num.io.threads": 4}},
            [".listenerConfig[num.io.threads]: is no security setting of a listener"],
        ),
        (
            {**CUSTOM, "listenerConfig": {"ssl.client.auth": "none"}},
            [".listenerConfig: must have sasl.enabled.mechanisms, since sasl is true"],
        ),
    ],
)
def test_combinations_that_do_not_fit_are_refused(
    authentication: dict[str, Any], expected: list[str]
) -> None:
    assert problems(authentication) == expected


@pytest.mark.parametrize(
    ("more", "notes"),
    [
        ({}, ["without checkAudience, tokens with an audience (the claim aud) are refused, as in Kafka"]),
        ({"checkAudience": True, "clientId": "kafka"}, []),
        (
            {"checkAudience": True, "clientId": "kafka", "jwksEndpointUri": "http://idp/certs"},
            ["jwksEndpointUri is not https: whoever can change its answers can sign tokens"],
        ),
    ],
)
def test_unexpected_combinations_are_warnings(more: dict[str, Any], notes: list[str]) -> None:
    listener = {"name": "tokens", "port": 9094, "tls": True, "authentication": {**OAUTH, **more}}
    cluster, _ = parse_resource("BrokerCluster", {"name": "demo"}, {"replicas": 1, "listeners": [listener]})
    assert isinstance(cluster, BrokerCluster)
    assert list(cluster.notes()) == [f"spec.listeners[0].authentication: {note}" for note in notes]
