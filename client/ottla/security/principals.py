"""Principals: the identity of a client, as Kafka names it in ACLs, quotas and logs, and their builder.

A principal is built once for each connection, when it has authenticated, by Kafka's rules or a custom
builder. It is used where clients are distinguished (quotas, ACLs, delegation tokens). Types other than "User"
are built by custom builders only (KIP-189). `principal.builder.class` names Kafka's default, or a class by
its dotted path in Python, which is instantiated without arguments and has `build(Identity) -> Principal`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final, NamedTuple, Protocol, cast

from ottla.security.distinguished_names import MappingRules, subject_of

USER: Final = "User"


class Principal(NamedTuple):
    """A type, which is "User" without a custom principal builder, and a name."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> Principal:
        """ "User:alice"; the name may have further colons. Raises ValueError, with Kafka's message."""
        kind, colon, name = text.partition(":")
        if not colon:
            raise ValueError(f"expected a string in format principalType:principalName but got {text}")
        return cls(kind, name)


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""A client of a listener without authentication."""


DEFAULT_CLASS: Final = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"


class Identity(NamedTuple):
    """The facts about an authenticated connection."""

    protocol: str
    """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
    listener: str
    address: str
    certificate: bytes | None = None
    """In DER, verified; None if the client sent none."""
    mechanism: str | None = None
    authorization_id: str | None = None
    """The user that SASL has authenticated."""


class PrincipalBuilder(Protocol):
    """Maps connections to principals."""

    def build(self, identity: Identity) -> Principal:
        """The principal of a connection. Raises ValueError to close the connection."""


class DefaultPrincipalBuilder:
    """SASL's user; else the certificate's subject through the mapping rules; else ANONYMOUS."""

    def __init__(self, rules: str = "DEFAULT") -> None:
        self._rules = MappingRules(rules)

    def build(self, identity: Identity) -> Principal:
        if identity.authorization_id is not None:
            return Principal(USER, identity.authorization_id)
        if identity.certificate is None:
            return ANONYMOUS
        return Principal(USER, self._rules.name_of(subject_of(identity.certificate)))


def principal_builder(name: str, mapping_rules: str) -> PrincipalBuilder:
    """The builder with the name in principal.builder.class. Raises ValueError."""
    if name in ("", DEFAULT_CLASS):
        return DefaultPrincipalBuilder(mapping_rules)
    module, _, attribute = name.rpartition(".")
    try:
        made = getattr(import_module(module), attribute)()
    except (ImportError, AttributeError, TypeError, ValueError) as problem:
        raise ValueError(f"principal.builder.class={name}: cannot be instantiated: {problem}") from None
    if not callable(getattr(made, "build", None)):
        raise ValueError(f"principal.builder.class={name}: has no method build")
    return cast(PrincipalBuilder, made)
