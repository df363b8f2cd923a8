"""From what a connection has shown to a principal: Kafka's rules, or a builder of one's own.

Called once per connection that has authenticated. `principal.builder.class` names Kafka's default, or a class
by its dotted path in Python, which is made without arguments and has `build(Identity) -> Principal`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final, NamedTuple, Protocol, cast

from ottla.security.distinguished_names import subject_of
from ottla.security.mapping_rules import MappingRules
from ottla.security.principals import ANONYMOUS, USER, Principal

DEFAULT_CLASS: Final = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"


class Identity(NamedTuple):
    """What is known of who connects."""

    protocol: str
    """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
    listener: str
    address: str
    certificate: bytes | None = None
    """In DER, verified; None where no certificate was asked for or shown."""
    mechanism: str | None = None
    authorization_id: str | None = None
    """The user that SASL has found."""


class PrincipalBuilder(Protocol):
    def build(self, identity: Identity) -> Principal:
        """Raises ValueError when nobody may come of it: the connection is closed."""


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
    """The builder by the name in principal.builder.class. Raises ValueError."""
    if name in ("", DEFAULT_CLASS):
        return DefaultPrincipalBuilder(mapping_rules)
    module, _, attribute = name.rpartition(".")
    try:
        made = getattr(import_module(module), attribute)()
    except (ImportError, AttributeError, TypeError, ValueError) as problem:
        raise ValueError(f"principal.builder.class={name}: cannot be made: {problem}") from None
    if not callable(getattr(made, "build", None)):
        raise ValueError(f"principal.builder.class={name}: has no method build")
    return cast(PrincipalBuilder, made)
