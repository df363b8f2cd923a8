"""Which dynamic settings are kept encrypted in ZooKeeper, by which secret, there and back.

Called by `dynamic_broker`, and by `config` for the checks at the start. As in Kafka: without
`password.encoder.secret` no password can be stored, and what cannot be decoded is logged and ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, Protocol

from ottla.metadata.config_def import ConfigType, Value
from ottla.metadata.security_config_table import SECURITY_CONFIGS
from ottla.security.password_encoder import NotDecoded, PasswordEncoder

log = logging.getLogger(__name__)

SECRET, OLD_SECRET = "password.encoder.secret", "password.encoder.old.secret"


_PASSWORDS: Final = tuple(
    key.name for key in SECURITY_CONFIGS if key.dynamic and key.type is ConfigType.PASSWORD
)


class NoSecret(Exception):
    """There is nothing to encode a password with."""


class Settings(Protocol):
    """A broker's settings by name."""

    def __getitem__(self, name: str) -> Value: ...


def encoder(settings: Settings, secret: str = SECRET) -> PasswordEncoder | None:
    """By these settings; None where there is no secret."""
    if settings[secret] is None:
        return None
    bits, iterations = settings["password.encoder.key.length"], settings["password.encoder.iterations"]
    assert isinstance(bits, int)
    assert isinstance(iterations, int)
    factory = settings["password.encoder.keyfactory.algorithm"] or "PBKDF2WithHmacSHA512"
    cipher = settings["password.encoder.cipher.algorithm"]
    return PasswordEncoder(str(settings[secret]), str(factory), str(cipher), bits, iterations)


def problems(settings: Settings) -> list[str]:
    """What cannot be encoded with, a line each."""
    found = encoder(settings)
    problem = found.problem() if found else None
    return [problem] if problem else []


def encoded(settings: Mapping[str, str], by: PasswordEncoder | None) -> dict[str, str]:
    """The settings as they are stored. Raises NoSecret."""
    if by is None and any(map(_is_stored_password, settings)):
        raise NoSecret("Password encoder secret not configured")
    return {
        name: by.encode(text) if by is not None and _is_stored_password(name) else text
        for name, text in settings.items()
    }


def decoded(stored: Mapping[str, str], by: PasswordEncoder | None) -> dict[str, str]:
    """The settings that were stored, without passwords that do not decode."""
    found: dict[str, str] = {}
    for name, text in stored.items():
        try:
            found[name] = _decoded(text, by) if _is_stored_password(name) else text
        except NotDecoded as problem:
            log.error("a stored dynamic setting is ignored: %s: %s", name, problem)
    return found


def encoded_anew(stored: Mapping[str, str], old: PasswordEncoder, new: PasswordEncoder) -> dict[str, str]:
    """With the new secret what the old one decodes; the rest may have been encoded anew before."""
    found = dict(stored)
    for name, text in stored.items():
        if _is_stored_password(name):
            try:
                found[name] = new.encode(old.decode(text))
            except NotDecoded:
                log.debug("%s is not of the old secret", name)
    return found


def _decoded(text: str, by: PasswordEncoder | None) -> str:
    if by is None:
        raise NotDecoded("password.encoder.secret is not set")
    return by.decode(text)


def _is_stored_password(name: str) -> bool:
    """With any prefix, as in Kafka (DynamicBrokerConfig.isPasswordConfig)."""
    return name.endswith(_PASSWORDS)
