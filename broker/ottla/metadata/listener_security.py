"""The security settings of one listener: settings with Kafka's prefixes override those without.

Used by `config` (validation) and by the server for each listener. In the order of precedence:

    listener.name.<listener>.<mechanism>.<setting>      sasl.* and connections.max.reauth.ms
    listener.name.<listener>.<setting>
    <setting>

and each of them in the dynamic settings of this broker, of all brokers, and in the static settings. Names are
in lower case. Every read uses the current layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.metadata.config_def import BadValue, ConfigDef, ConfigType
from ottla.metadata.listeners import PREFIX
from ottla.metadata.security_config_table import INERT_SECURITY_CONFIGS, NAMES, SECURITY_CONFIGS

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
"""The supported SASL mechanisms. GSSAPI (Kerberos) is not supported."""

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
"""The callback handlers of Kafka whose behaviour is built in."""

_TABLE: Final = ConfigDef((*SECURITY_CONFIGS, *INERT_SECURITY_CONFIGS))


class ListenerSecurity:
    """The security settings of one listener. `layers`: the strongest first."""

    def __init__(self, listener: str, *layers: Mapping[str, str]) -> None:
        self.listener = listener
        self._prefix = f"{PREFIX}{listener.lower()}."
        self._layers = layers

    def get(self, name: str) -> str | None:
        """A setting's text, or Kafka's default, which can be None."""
        found = self._find(self._prefix + name)
        if found is None:
            found = self._find(name)
        return _TABLE[name].default if found is None else found

    def of_mechanism(self, mechanism: str, name: str) -> str | None:
        """The setting for one mechanism. sasl.jaas.config counts with the mechanism's prefix only."""
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
    """The errors of a listener with that protocol, a line each."""
    problems = []
    factory = security.get("ssl.engine.factory.class")
    if protocol.endswith("SSL") and factory:
        problems.append(f"ssl.engine.factory.class={factory}: Java classes are not supported")
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
                f"sasl.server.callback.handler.class={handler}: Java classes are not supported; {mechanism} "
                f"supports the default and {_HANDLERS[0]}"
            )
    ours = security.get("sasl.mechanism.inter.broker.protocol")
    if between_brokers and ours not in enabled:
        problems.append(
            f"sasl.mechanism.inter.broker.protocol={ours}: must be included in sasl.enabled.mechanisms when "
            "SASL is used for inter-broker communication"
        )
    return problems


def unprefixed(full_name: str) -> str | None:
    """The setting of the name `listener.name.<listener>.[<mechanism>.]<setting>`; None for other names."""
    rest = full_name.removeprefix(PREFIX)
    if rest == full_name:
        return None
    _, _, name = rest.partition(".")
    if name in NAMES:
        return name
    mechanism, _, name = name.partition(".")
    return name if mechanism.upper() in (*MECHANISMS, "GSSAPI") and name in NAMES else None


def is_password(name: str) -> bool:
    """Whether the setting of this name, without prefix, is a password."""
    return _TABLE[name].type is ConfigType.PASSWORD


def prefixed_problem(full_name: str, text: str) -> str | None:
    """The error of the value of a setting with prefix, or None."""
    name = unprefixed(full_name)
    assert name is not None
    try:
        _TABLE[name].parse(text)
    except BadValue as problem:
        shown = "[hidden]" if is_password(name) else text
        return f"{full_name}={shown}: {problem}"
    return None
