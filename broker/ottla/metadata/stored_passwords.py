"""Encryption of dynamic password settings in ZooKeeper (password.encoder.*).

Used by `dynamic_broker_config`, and by `config` for validation. As in Kafka, no password can be stored
without `password.encoder.secret`, and passwords that cannot be decoded are logged and ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from ottla.metadata.config_def import ConfigType, Settings
from ottla.metadata.security_config_table import SECURITY_CONFIGS
from ottla.security.password_encoder import NotDecoded, PasswordEncoder

log = logging.getLogger(__name__)

SECRET, OLD_SECRET = "password.encoder.secret", "password.encoder.old.secret"


_PASSWORDS: Final = tuple(
    key.name for key in SECURITY_CONFIGS if key.dynamic and key.type is ConfigType.PASSWORD
)


class NoSecret(Exception):
    """password.encoder.secret is not set."""


def encoder(settings: Settings, secret: str = SECRET) -> PasswordEncoder | None:
    """The encoder with these settings; None without a secret."""
    if settings[secret] is None:
        return None
    bits, iterations = settings["password.encoder.key.length"], settings["password.encoder.iterations"]
    assert isinstance(bits, int)
    assert isinstance(iterations, int)
    factory = settings["password.encoder.keyfactory.algorithm"] or "PBKDF2WithHmacSHA512"
    cipher = settings["password.encoder.cipher.algorithm"]
    return PasswordEncoder(str(settings[secret]), str(factory), str(cipher), bits, iterations)


def problems(settings: Settings) -> list[str]:
    """Errors of the encoder's settings, a line each."""
    found = encoder(settings)
    problem = found.problem() if found else None
    return [problem] if problem else []


def encoded(settings: Mapping[str, str], by: PasswordEncoder | None) -> dict[str, str]:
    """The settings for the store, with encoded passwords. Raises NoSecret."""
    if by is None and any(map(_is_stored_password, settings)):
        raise NoSecret("Password encoder secret not configured")
    return {
        name: by.encode(text) if by is not None and _is_stored_password(name) else text
        for name, text in settings.items()
    }


def decoded(stored: Mapping[str, str], by: PasswordEncoder | None) -> dict[str, str]:
    """The stored settings with decoded passwords, without those that cannot be decoded."""
    found: dict[str, str] = {}
    for name, text in stored.items():
        try:
            found[name] = _decoded(text, by) if _is_stored_password(name) else text
        except NotDecoded as problem:
            log.error("Ignoring a stored dynamic setting: %s: %s", name, problem)
    return found


def re_encoded(stored: Mapping[str, str], old: PasswordEncoder, new: PasswordEncoder) -> dict[str, str]:
    """The stored settings, with passwords of the old secret encoded with the new one. Passwords that the old
    secret cannot decode stay as they are: they may have the new secret already."""
    found = dict(stored)
    for name, text in stored.items():
        if _is_stored_password(name):
            try:
                found[name] = new.encode(old.decode(text))
            except NotDecoded:
                log.debug("%s is not encoded with the old secret", name)
    return found


def _decoded(text: str, by: PasswordEncoder | None) -> str:
    if by is None:
        raise NotDecoded("password.encoder.secret is not set")
    return by.decode(text)


def _is_stored_password(name: str) -> bool:
    """Whether this is a password setting, with any prefix (DynamicBrokerConfig.isPasswordConfig)."""
    return name.endswith(_PASSWORDS)
