"""The settings of the console: options of the command, and its YAML file with several clusters.

clusters:
  - name: orders                     # in URLs and in the switch of clusters
    bootstrap: kafka-1:9092,kafka-2:9092
    properties:                      # security.protocol, sasl.* and ssl.* as of Kafka's clients
      security.protocol: SASL_SSL
      sasl.mechanism: SCRAM-SHA-512
    login: password                  # password, certificate, oidc, shared or none; default: by
                                     # security.protocol
    oidc:                            # for login: oidc
      issuer: https://sso.example/realms/kafka
      client_id: ottla-console
      client_secret: secret          # without: a public client
    registry:                        # a schema registry, for values of records
      url: https://registry:8081
      properties: {basic.auth.user.info: "console:secret"}
    kubernetes:                      # the BrokerCluster, if the operator runs the cluster
      namespace: kafka
      name: orders
    up: /srv/ottla/data              # or the data folder of `ottla up`, if that runs the cluster
    pipelines:                       # status ports of jobs of ottla-pipeline
      - http://lake:9404
    masks:                           # fields of records that pages do not show
      - topics: ["payments*"]        # default: all
        paths: ["$.card.number", "$..email"]
        headers: [authorization]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from fnmatch import fnmatchcase
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ottla.security import jaas
from ottla.security.clients import PROTOCOLS
from ottla.security.distinguished_names import MappingRules

MAPPING_RULES: Final = "ssl.principal.mapping.rules"
PASSWORD_MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
_LOGINS_OF_CLIENTS: Final = (
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.oauthbearer.token.endpoint.url",
)
_RESOURCE: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_SECURITY: Final = ("security.protocol", "sasl.", "ssl.")


class Login(Enum):
    """How a person becomes a principal of a cluster."""

    NONE = "none"
    """The cluster has no authentication: without a log-in."""
    PASSWORD = "password"
    """Each person logs in by SASL with a user and a password."""
    CERTIFICATE = "certificate"
    """Each person acts as the principal of the client certificate of the browser, by delegation tokens that
    the configured user creates."""
    OIDC = "oidc"
    """Each person logs in at an OpenID provider, whose access tokens are passed to the brokers by
    OAUTHBEARER."""
    SHARED = "shared"
    """All persons act as the principal of the configured credentials."""

    @property
    def personal(self) -> bool:
        """Whether each person logs in."""
        return self in (Login.PASSWORD, Login.CERTIFICATE, Login.OIDC)


class SettingsError(ValueError):
    """Invalid settings; the message says where, and what is allowed."""


@dataclass(frozen=True)
class Registry:
    """A schema registry; its properties are those of `ottla.client.registry`."""

    url: str
    properties: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)


@dataclass(frozen=True)
class BrokerClusterName:
    """The resource of a cluster on Kubernetes."""

    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str) -> BrokerClusterName:
        """Of NAMESPACE/NAME. Raises SettingsError."""
        namespace, _, name = text.partition("/")
        if not (_RESOURCE.fullmatch(namespace) and _RESOURCE.fullmatch(name)):
            raise SettingsError(f"{text}: must be NAMESPACE/NAME of a BrokerCluster")
        return cls(namespace, name)


@dataclass(frozen=True)
class Mask:
    """Fields of records that pages do not show."""

    paths: tuple[str, ...] = ()
    """JSON paths into keys and values."""
    headers: tuple[str, ...] = ()
    topics: tuple[str, ...] = ("*",)
    """Patterns with * and ?."""

    def applies_to(self, topic: str) -> bool:
        return any(fnmatchcase(topic, each) for each in self.topics)


@dataclass(frozen=True)
class OpenIdClient:
    """The console as a client of an OpenID provider."""

    issuer: str
    id: str
    secret: str = field(default="", repr=False)
    """Empty: a public client."""
    scopes: tuple[str, ...] = ("openid",)
    parameters: Mapping[str, str] = field(default_factory=dict, hash=False)
    """More of requests for authorization and for tokens: audience, resource."""
    ca: str = ""
    """A file in PEM with the authorities of the provider; empty: those of the system."""


@dataclass(frozen=True)
class Cluster:
    """A cluster of the console."""

    name: str
    bootstrap: str
    properties: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    """Client properties; without a password in them for Login.PASSWORD."""
    login: Login = Login.NONE
    registry: Registry | None = None
    masks: tuple[Mask, ...] = ()
    kubernetes: BrokerClusterName | None = None
    up: Path | None = None
    """The data folder of the `ottla up` that runs the cluster."""
    principal_mapping: str = ""
    """ssl.principal.mapping.rules, for Login.CERTIFICATE."""
    oidc: OpenIdClient | None = None
    """For Login.OIDC."""
    pipelines: tuple[str, ...] = ()
    """URLs of status ports of jobs of `ottla-pipeline`."""

    @property
    def audited(self) -> bool:
        """Whether an audit's results can be known."""
        return bool(self.pipelines) or self.has_resources

    @property
    def has_resources(self) -> bool:
        """Whether its custom resources are known."""
        return self.kubernetes is not None or self.up is not None

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The SASL mechanisms that a person may log in by; the configured one alone, if there is one."""
        configured = self.properties.get("sasl.mechanism")
        return (configured,) if configured in PASSWORD_MECHANISMS else PASSWORD_MECHANISMS


@dataclass(frozen=True)
class Settings:
    """All settings."""

    clusters: tuple[Cluster, ...]
    writes: bool = False
    """Whether pages may change clusters."""
    values: bool = True
    """Whether pages may show keys, values and headers of records."""
    tls: bool = False
    """Whether browsers reach the console by HTTPS, at itself or at a proxy."""
    hosts: frozenset[str] = frozenset()
    """Names of this console in URLs, besides addresses and localhost."""
    idle_s: float = 1800.0
    lifetime_s: float = 12 * 3600.0

    def cluster(self, name: str) -> Cluster | None:
        return next((each for each in self.clusters if each.name == name), None)


def cluster_of(
    name: str,
    bootstrap: str,
    properties: Mapping[str, str],
    login: str | None = None,
    oidc: OpenIdClient | None = None,
) -> Cluster:
    """A cluster with the log-in that its security protocol asks for, or with the given one. Raises
    SettingsError."""
    kept = {key: value for key, value in properties.items() if key.startswith(_SECURITY)}
    protocol = kept.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise SettingsError(
            f"cluster {name}: security.protocol={protocol}: must be one of {', '.join(PROTOCOLS)}"
        )
    sasl = protocol.startswith("SASL_")
    mechanism = kept.get("sasl.mechanism", "")
    by_password = sasl and (not mechanism or mechanism in PASSWORD_MECHANISMS)
    chosen = (
        Login(login) if login else Login.PASSWORD if by_password else Login.SHARED if sasl else Login.NONE
    )
    if chosen is Login.PASSWORD and not by_password:
        raise SettingsError(
            f"cluster {name}: login=password needs security.protocol SASL_PLAINTEXT or SASL_SSL, and a "
            f"sasl.mechanism among {', '.join(PASSWORD_MECHANISMS)}"
        )
    if chosen is Login.NONE and sasl:
        raise SettingsError(
            f"cluster {name}: login=none is for clusters without SASL; use password or shared"
        )
    rules = kept.pop(MAPPING_RULES, "DEFAULT")
    if chosen is Login.CERTIFICATE:
        _check_token_maker(name, kept)
        _check_rules(name, rules)
    if (chosen is Login.OIDC) != (oidc is not None):
        raise SettingsError(f"cluster {name}: login=oidc and a section oidc of --config go together")
    if oidc is not None:
        if not sasl or mechanism not in ("", "OAUTHBEARER"):
            raise SettingsError(
                f"cluster {name}: login=oidc needs security.protocol SASL_PLAINTEXT or SASL_SSL, and no "
                "sasl.mechanism but OAUTHBEARER"
            )
        for key in _LOGINS_OF_CLIENTS:
            kept.pop(key, None)
    if chosen is Login.PASSWORD:
        kept.pop("sasl.jaas.config", None)
    return Cluster(name, bootstrap, kept, chosen, principal_mapping=rules, oidc=oidc)


def _check_token_maker(name: str, properties: Mapping[str, str]) -> None:
    """The properties of the console's own user, who creates delegation tokens. Raises SettingsError."""
    try:
        account = jaas.parse(properties.get("sasl.jaas.config", "")).options
    except ValueError:
        account = {}
    if (
        not properties.get("security.protocol", "").upper().startswith("SASL_")
        or not properties.get("sasl.mechanism", "").startswith("SCRAM-")
        or not account.get("username")
    ):
        raise SettingsError(
            f"cluster {name}: login=certificate needs security.protocol SASL_PLAINTEXT or SASL_SSL, a "
            "sasl.mechanism SCRAM-SHA-512 or SCRAM-SHA-256, and a sasl.jaas.config with the username and "
            "password of the console's own user, who creates delegation tokens for those who log in"
        )


def _check_rules(name: str, rules: str) -> None:
    try:
        MappingRules(rules)
    except ValueError as error:
        raise SettingsError(f"cluster {name}: {MAPPING_RULES}: {error}") from None


class _Registry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    url: str = Field(min_length=1)
    properties: dict[str, str] = Field(default_factory=dict)


class _Kubernetes(BaseModel):
    model_config = ConfigDict(extra="forbid")

    namespace: str = Field(pattern=f"^{_RESOURCE.pattern}$")
    name: str = Field(pattern=f"^{_RESOURCE.pattern}$")


class _Mask(BaseModel):
    model_config = ConfigDict(extra="forbid")

    topics: list[str] = Field(default=["*"], min_length=1)
    paths: list[str] = Field(default_factory=list)
    headers: list[str] = Field(default_factory=list)


class _OpenId(BaseModel):
    model_config = ConfigDict(extra="forbid")

    issuer: str
    client_id: str = Field(min_length=1)
    client_secret: str = ""
    scopes: list[str] = Field(default=["openid"])
    parameters: dict[str, str] = Field(default_factory=dict)
    ca: str = ""

    @field_validator("issuer")
    @classmethod
    def _safe(cls, issuer: str) -> str:
        if not is_safe(issuer):
            raise ValueError("must be an https:// URL; http:// for addresses of this machine only")
        return issuer

    @field_validator("scopes")
    @classmethod
    def _has_openid(cls, scopes: list[str]) -> list[str]:
        if "openid" not in scopes:
            raise ValueError("must have openid")
        return scopes

    def client(self) -> OpenIdClient:
        return OpenIdClient(
            self.issuer, self.client_id, self.client_secret, tuple(self.scopes), self.parameters, self.ca
        )


def is_safe(url: str) -> bool:
    """Whether secrets may be sent there: by HTTPS, or within this machine."""
    parts = urlsplit(url)
    if parts.scheme == "https":
        return bool(parts.hostname)
    try:
        return parts.scheme == "http" and ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return parts.scheme == "http" and parts.hostname == "localhost"


def status_url(text: str) -> str:
    """The URL of a status port. Raises ValueError."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise ValueError(f"{text}: must be http://HOST:PORT or https://HOST:PORT of a job's status port")
    return text


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
    bootstrap: str = Field(min_length=1)
    properties: dict[str, str] = Field(default_factory=dict)
    login: Literal["none", "password", "certificate", "oidc", "shared"] | None = None
    oidc: _OpenId | None = None
    registry: _Registry | None = None
    masks: list[_Mask] = Field(default_factory=list)
    kubernetes: _Kubernetes | None = None
    up: Path | None = None
    pipelines: list[str] = Field(default_factory=list)

    @field_validator("pipelines")
    @classmethod
    def _urls(cls, given: list[str]) -> list[str]:
        return [*map(status_url, given)]

    @field_validator("properties", mode="before")
    @classmethod
    def _texts(cls, given: object) -> object:
        """YAML's numbers and booleans are texts of properties."""
        if not isinstance(given, dict):
            return given
        return {
            key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in given.items()
        }


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    clusters: list[_Entry] = Field(min_length=1)


def read_clusters(path: Path) -> tuple[Cluster, ...]:
    """The clusters of a YAML file. Raises SettingsError, whose message has no values of properties."""
    try:
        given = _File.model_validate(yaml.safe_load(path.read_text()))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise SettingsError(f"{path}: not YAML{f', line {mark.line + 1}' if mark else ''}") from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(each) for each in first["loc"])
        raise SettingsError(f"{path}: {place}: {first['msg']}") from None
    names = [entry.name for entry in given.clusters]
    if len(set(names)) < len(names):
        raise SettingsError(f"{path}: two clusters have the same name")
    return tuple(
        replace(
            cluster_of(
                each.name,
                each.bootstrap,
                each.properties,
                each.login,
                None if each.oidc is None else each.oidc.client(),
            ),
            registry=None if each.registry is None else Registry(each.registry.url, each.registry.properties),
            masks=tuple(
                Mask(tuple(mask.paths), tuple(mask.headers), tuple(mask.topics)) for mask in each.masks
            ),
            kubernetes=BrokerClusterName(each.kubernetes.namespace, each.kubernetes.name)
            if each.kubernetes
            else None,
            up=each.up,
            pipelines=tuple(each.pipelines),
        )
        for each in given.clusters
    )
