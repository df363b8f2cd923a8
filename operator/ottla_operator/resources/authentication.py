"""How clients of a listener authenticate: passwords, certificates, tokens, or settings of one's own.

Part of BrokerCluster. Fields have Strimzi's names where Kafka's brokers have the setting themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from pydantic import Field

from ottla.metadata.listener_security import unprefixed
from ottla.metadata.listeners import PREFIX
from ottla_operator.resources.common import (
    ConfigMap,
    Model,
    ObjectName,
    Problem,
    Rule,
    SecretEntry,
    config_texts,
    rules,
)
from ottla_operator.resources.settings import broker_settings_problems

_OF_OAUTH: Final = {
    "valid_issuer_uri": "validIssuerUri",
    "jwks_endpoint_uri": "jwksEndpointUri",
    "jwks_refresh_seconds": "jwksRefreshSeconds",
    "check_audience": "checkAudience",
    "client_id": "clientId",
    "user_name_claim": "userNameClaim",
    "scope_claim": "scopeClaim",
    "clock_skew_seconds": "clockSkewSeconds",
    "max_seconds_without_reauthentication": "maxSecondsWithoutReauthentication",
    "disable_tls_hostname_verification": "disableTlsHostnameVerification",
    "tls_trusted_certificates": "tlsTrustedCertificates",
}
_OF_CUSTOM: Final = {"sasl": "sasl", "listener_config": "listenerConfig"}
_REQUIRED: Final = {
    "oauth": {"valid_issuer_uri": "validIssuerUri", "jwks_endpoint_uri": "jwksEndpointUri"},
    "custom": {"sasl": "sasl"},
}


def _only_for(kind: str, names: dict[str, str]) -> Rule:
    none = " && ".join(f"!has(self.{name})" for name in names.values())
    return Rule(f"{', '.join(names.values())} are for type {kind} only", f"self.type == '{kind}' || ({none})")


def _needs(kind: str) -> Rule:
    names = _REQUIRED[kind].values()
    every = " && ".join(f"has(self.{name})" for name in names)
    return Rule(f"type {kind} requires {' and '.join(names)}", f"self.type != '{kind}' || ({every})")


class TrustedCertificates(Model):
    """Certificates of authorities in a Secret or ConfigMap."""

    model_config = rules(
        Rule(
            "must have one of secretName and configMapName", "has(self.secretName) != has(self.configMapName)"
        ),
        Rule("must have one of certificate and pattern", "has(self.certificate) != has(self.pattern)"),
    )

    secret_name: ObjectName | None = Field(default=None, description="A Secret in the same namespace.")
    config_map_name: ObjectName | None = Field(default=None, description="A ConfigMap in the same namespace.")
    certificate: SecretEntry | None = Field(
        default=None, description="Its entry with certificates, in PEM, such as ca.crt."
    )
    pattern: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="All entries whose name matches, with * for any characters, such as *.crt.",
    )

    def problems(self, path: str) -> Iterator[Problem]:
        """Rules about the fields; `path` is that of the object."""
        if (self.secret_name is None) == (self.config_map_name is None):
            yield Problem(path, "must have one of secretName and configMapName")
        if (self.certificate is None) == (self.pattern is None):
            yield Problem(path, "must have one of certificate and pattern")


class ListenerAuthentication(Model):
    model_config = rules(
        _needs("oauth"),
        _needs("custom"),
        Rule(
            "checkAudience requires clientId",
            "!has(self.checkAudience) || !self.checkAudience || has(self.clientId)",
        ),
        _only_for("oauth", _OF_OAUTH),
        _only_for("custom", _OF_CUSTOM),
    )

    type: Literal["scram-sha-512", "tls", "oauth", "custom"] = Field(
        description="scram-sha-512: by user name and password; tls: by a certificate of clientsCa; oauth: by "
        "a token of an OAuth server (OAUTHBEARER); custom: as listenerConfig says."
    )
    valid_issuer_uri: str | None = Field(
        default=None,
        min_length=1,
        description="oauth: the issuer of tokens, their claim iss (sasl.oauthbearer.expected.issuer).",
    )
    jwks_endpoint_uri: str | None = Field(
        default=None,
        pattern=r"^https?://[^/]+",
        description="oauth: where the OAuth server has its public keys, https or http "
        "(sasl.oauthbearer.jwks.endpoint.url).",
    )
    jwks_refresh_seconds: int | None = Field(
        default=None,
        ge=1,
        le=31_536_000,
        description="oauth: seconds after which the keys are fetched again. Default: 3600.",
    )
    check_audience: bool | None = Field(
        default=None,
        description="oauth: whether the claim aud of tokens must have clientId. false: tokens must have no "
        "aud, as in Kafka. Default: false.",
    )
    client_id: str | None = Field(
        default=None,
        min_length=1,
        pattern=r"^[^,]+$",
        description="oauth: the id of the brokers at the OAuth server, for checkAudience "
        "(sasl.oauthbearer.expected.audience).",
    )
    user_name_claim: str | None = Field(
        default=None, min_length=1, description="oauth: the claim with the user's name. Default: sub."
    )
    scope_claim: str | None = Field(
        default=None, min_length=1, description="oauth: the claim with the scope. Default: scope."
    )
    clock_skew_seconds: int | None = Field(
        default=None,
        ge=0,
        le=3600,
        description="oauth: seconds by which the clocks of brokers and the OAuth server may differ. Default: "
        "30.",
    )
    max_seconds_without_reauthentication: int | None = Field(
        default=None,
        ge=1,
        le=31_536_000,
        description="oauth: seconds after which clients authenticate again, at the latest when their token "
        "expires (connections.max.reauth.ms). Default: no limit.",
    )
    disable_tls_hostname_verification: bool | None = Field(
        default=None,
        description="oauth: whether the OAuth server's certificate may be for another host. Default: false.",
    )
    tls_trusted_certificates: list[TrustedCertificates] | None = Field(
        default=None,
        max_length=32,
        description="oauth: the authorities of the OAuth server's certificate. Default: those of the "
        "brokers' image.",
    )
    sasl: bool | None = Field(
        default=None, description="custom: whether clients authenticate by SASL. Required for custom."
    )
    listener_config: ConfigMap | None = Field(
        default=None,
        description="custom: Kafka's settings of the listener, without the prefix listener.name.NAME, such "
        "as sasl.enabled.mechanisms. The key store is the operator's.",
    )

    @property
    def uses_sasl(self) -> bool:
        return bool(self.sasl) if self.type == "custom" else self.type != "tls"

    def problems(self, path: str, listener: str) -> Iterator[Problem]:
        """Rules about the fields; `path` is that of the object, `listener` the listener's name in Kafka."""
        given = self.model_fields_set
        for kind, names in (("oauth", _OF_OAUTH), ("custom", _OF_CUSTOM)):
            for name, alias in names.items():
                if name in given and self.type != kind and getattr(self, name) is not None:
                    yield Problem(f"{path}.{alias}", f"is for type {kind} only, and the type is {self.type}")
        for name, alias in _REQUIRED.get(self.type, {}).items():
            if getattr(self, name) is None:
                yield Problem(f"{path}.{alias}", f"is required for type {self.type}")
        if self.check_audience and self.client_id is None:
            yield Problem(f"{path}.checkAudience", "requires clientId")
        for n, trusted in enumerate(self.tls_trusted_certificates or ()):
            yield from trusted.problems(f"{path}.tlsTrustedCertificates[{n}]")
        if self.type == "custom":
            yield from self._listener_config_problems(f"{path}.listenerConfig", listener)

    def notes(self) -> Iterator[str]:
        """What the fields may do unexpectedly."""
        if self.type != "oauth":
            return
        if not self.check_audience:
            yield "without checkAudience, tokens with an audience (the claim aud) are refused, as in Kafka"
        if (self.jwks_endpoint_uri or "").startswith("http:"):
            yield "jwksEndpointUri is not https: whoever can change its answers can sign tokens"

    def _listener_config_problems(self, path: str, listener: str) -> Iterator[Problem]:
        prefix = f"{PREFIX}{listener.lower()}."
        settings = {
            f"{prefix}{name}": value for name, value in config_texts(self.listener_config or {}).items()
        }
        for full_name in settings:
            name = full_name.removeprefix(prefix)
            if name.startswith(("ssl.keystore.", "ssl.key.")):
                message = "is set by the operator: from configuration.brokerCertChainAndKey"
                yield Problem(f"{path}[{name}]", message)
            elif unprefixed(full_name) is None:
                yield Problem(f"{path}[{name}]", "is no security setting of a listener")
        for name, message in broker_settings_problems(settings)[0]:
            yield Problem(f"{path}[{name.removeprefix(prefix)}]", message)
        if self.sasl and not any(name.endswith("sasl.enabled.mechanisms") for name in settings):
            yield Problem(path, "must have sasl.enabled.mechanisms, since sasl is true")
