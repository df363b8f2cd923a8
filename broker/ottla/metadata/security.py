"""The security settings of one listener: Kafka's prefixes over what is set for all.

Called by `config` (checks at the start) and by the server for each listener. In the order of precedence:

    listener.name.<listener>.<mechanism>.<setting>      sasl.* and connections.max.reauth.ms
    listener.name.<listener>.<setting>
    <setting>

and over each of those what is set dynamically for this broker, then for all brokers. Names are in lower case.
Pure: it is read anew each time, so it is current.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.metadata.config_def import BadValue, ConfigDef, ConfigType
from ottla.metadata.security_config_table import INERT_SECURITY_CONFIGS, NAMES, SECURITY_CONFIGS

PREFIX: Final = "listener.name."
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
"""What is served. Kafka's GSSAPI is not: no Kerberos here."""

_HANDLERS: Final = tuple(
    f"org.apache.kafka.common.security.{name}"
    for name in (
        "oauthbearer.OAuthBearerValidatorCallbackHandler",
        "oauthbearer.secured.OAuthBearerValidatorCallbackHandler",
        "oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler",
        "plain.internals.PlainServerCallbackHandler",
        "scram.internals.ScramServerCallbackHandler",
    )
)
"""Kafka's own."""

_TABLE: Final = ConfigDef((*SECURITY_CONFIGS, *INERT_SECURITY_CONFIGS))


class ListenerSecurity:
    """What is set for one listener. `layers`: the strongest first."""

    def __init__(self, listener: str, *layers: Mapping[str, str]) -> None:
        self.listener = listener
        self._prefix = f"{PREFIX}{listener.lower()}."
        self._layers = layers

    def get(self, name: str) -> str | None:
        """A setting's text, Kafka's default where nobody sets it; None where that is none."""
        found = self._find(self._prefix + name)
        if found is None:
            found = self._find(name)
        return _TABLE[name].default if found is None else found

    def of_mechanism(self, mechanism: str, name: str) -> str | None:
        """The same of one mechanism. Of sasl.jaas.config only what is prefixed with the mechanism counts."""
        found = self._find(f"{self._prefix}{mechanism.lower()}.{name}")
        if found is None and name != "sasl.jaas.config":
            return self.get(name)
        return found

    def get_int(self, name: str, mechanism: str | None = None) -> int:
        text = self.get(name) if mechanism is None else self.of_mechanism(mechanism, name)
        value = _TABLE[name].parse(text or "")
        assert isinstance(value, int)
        return value

    def get_list(self, name: str, mechanism: str | None = None) -> tuple[str, ...]:
        text = self.get(name) if mechanism is None else self.of_mechanism(mechanism, name)
        return tuple(word.strip() for word in (text or "").split(",") if word.strip())

    def _find(self, full_name: str) -> str | None:
        return next((layer[full_name] for layer in self._layers if full_name in layer), None)


def listener_problems(security: ListenerSecurity, protocol: str, *, between_brokers: bool) -> list[str]:
    """What a listener of that protocol lacks, a line each."""
    problems = []
    factory = security.get("ssl.engine.factory.class")
    if protocol.endswith("SSL") and factory:
        problems.append(f"ssl.engine.factory.class={factory}: Java's classes are not run here")
    if not protocol.startswith("SASL_"):
        return problems
    named = f"sasl.enabled.mechanisms of listener {security.listener}"
    enabled = security.get_list("sasl.enabled.mechanisms")
    problems += [
        f"{named}: {mechanism} is not served; {', '.join(MECHANISMS)} are"
        for mechanism in enabled
        if mechanism not in MECHANISMS
    ]
    for mechanism in enabled:
        handler = security.of_mechanism(mechanism, "sasl.server.callback.handler.class")
        if handler and handler not in _HANDLERS:
            problems.append(
                f"sasl.server.callback.handler.class={handler}: Java's classes are not run here; what "
                f"{mechanism} does without one, or with {_HANDLERS[0]}, is"
            )
    ours = security.get("sasl.mechanism.inter.broker.protocol")
    if between_brokers and ours not in enabled:
        problems.append(
            f"sasl.mechanism.inter.broker.protocol={ours}: must be included in sasl.enabled.mechanisms when "
            "SASL is used for inter-broker communication"
        )
    return problems


def unprefixed(full_name: str) -> str | None:
    """The setting that `listener.name.<listener>.[<mechanism>.]<setting>` names; None if it names none."""
    rest = full_name.removeprefix(PREFIX)
    if rest == full_name:
        return None
    _, _, name = rest.partition(".")
    if name in NAMES:
        return name
    mechanism, _, name = name.partition(".")
    return name if mechanism.upper() in (*MECHANISMS, "GSSAPI") and name in NAMES else None


def is_password(name: str) -> bool:
    """Whether the setting of that name, without prefix, is a secret."""
    return _TABLE[name].type is ConfigType.PASSWORD


def prefixed_problem(full_name: str, text: str) -> str | None:
    """What is wrong with the value of such a setting, or None."""
    name = unprefixed(full_name)
    assert name is not None
    try:
        _TABLE[name].parse(text)
    except BadValue as problem:
        shown = "[hidden]" if is_password(name) else text
        return f"{full_name}={shown}: {problem}"
    return None
