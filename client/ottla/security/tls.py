"""TLS contexts from Kafka's ssl.* settings, for a listener and for a client.

Called by the server for each listener of SSL or SASL_SSL, and for connections of clients and between brokers.
A new context is made when the settings or their files have changed (`stamp`): connections keep the one they
were made with. Private keys are passed to OpenSSL in memory, not in a file with a name.

Settings without an equivalent in Python's ssl have no effect: the choice of TLS 1.3 cipher suites,
ssl.protocol, ssl.provider and the algorithms of the key and trust managers.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ottla.security.stores import JKS, StoreProblem, key_store, trusted

_VERSIONS: Final = {
    "TLSv1": ssl.TLSVersion.TLSv1,
    "TLSv1.1": ssl.TLSVersion.TLSv1_1,
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}
_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}

Get = Callable[[str], str | None]


@dataclass(frozen=True, slots=True, repr=False)
class TlsSettings:
    """The ssl.* settings of one listener or client. It has secrets, and no repr."""

    keystore_type: str
    keystore_location: str | None
    keystore_password: str | None
    key_password: str | None
    chain: str | None
    key: str | None
    truststore_type: str
    truststore_location: str | None
    truststore_password: str | None
    certificates: str | None
    client_auth: str
    protocols: tuple[str, ...]
    ciphers: tuple[str, ...]
    identification: str

    @classmethod
    def of(cls, get: Get) -> TlsSettings:
        """`get` returns a setting by Kafka's name (ssl.keystore.location, …), None if it is not set."""
        return cls(
            get("ssl.keystore.type") or JKS,
            get("ssl.keystore.location") or None,
            get("ssl.keystore.password"),
            get("ssl.key.password"),
            get("ssl.keystore.certificate.chain"),
            get("ssl.keystore.key"),
            get("ssl.truststore.type") or JKS,
            get("ssl.truststore.location") or None,
            get("ssl.truststore.password"),
            get("ssl.truststore.certificates"),
            (get("ssl.client.auth") or "none").lower(),
            _words(get("ssl.enabled.protocols")) or ("TLSv1.2", "TLSv1.3"),
            _words(get("ssl.cipher.suites")),
            "https" if (found := get("ssl.endpoint.identification.algorithm")) is None else found,
        )

    def stamp(self) -> tuple[object, ...]:
        """A value that changes with the files of the stores: certificates may be renewed in place."""
        found = []
        for name in (self.keystore_location, self.truststore_location):
            try:
                state = os.stat(name) if name else None
            except OSError:
                state = None
            found.append(None if state is None else (state.st_mtime_ns, state.st_size, state.st_ino))
        return tuple(found)


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """The context of a listener. Raises StoreProblem."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if not _load_key(context, settings):
        raise StoreProblem("ssl.keystore.location: a listener of SSL needs a key store")
    if settings.client_auth not in _CLIENT_AUTH:
        raise StoreProblem(f"ssl.client.auth={settings.client_auth}: must be none, requested or required")
    context.verify_mode = _CLIENT_AUTH[settings.client_auth]
    if context.verify_mode is not ssl.CERT_NONE:
        _load_trusted(context, settings)
    _set_versions(context, settings)
    return context


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """The context of a client. Raises StoreProblem."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.identification.lower() == "https"
    _load_key(context, settings)
    _load_trusted(context, settings)
    _set_versions(context, settings)
    return context


def _load_key(context: ssl.SSLContext, s: TlsSettings) -> bool:
    store = key_store(
        s.keystore_type, s.keystore_location, s.keystore_password, s.key_password, s.chain, s.key
    )
    if store is None:
        return False
    # OpenSSL reads keys from files only: this file is in memory, and closed afterwards.
    handle = os.memfd_create("ottla-key", os.MFD_CLOEXEC)
    try:
        with os.fdopen(handle, "wb", closefd=False) as memory:
            memory.write(f"{store.key}{store.chain}".encode())
        # Without a password OpenSSL would prompt for one on the terminal.
        context.load_cert_chain(f"/proc/self/fd/{handle}", password=store.password or "")
    except (ssl.SSLError, OSError, ValueError) as problem:
        raise StoreProblem(f"the key and the certificates of the key store do not match: {problem}") from None
    finally:
        os.close(handle)
    return True


def _load_trusted(context: ssl.SSLContext, s: TlsSettings) -> None:
    certificates = trusted(s.truststore_type, s.truststore_location, s.truststore_password, s.certificates)
    if certificates is None:
        context.set_default_verify_paths()
        return
    try:
        context.load_verify_locations(cadata=certificates)
    except (ssl.SSLError, ValueError) as problem:
        raise StoreProblem(f"ssl.truststore.*: cannot be parsed: {problem}") from None
    # Java trusts every certificate in the store, root or not.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def _set_versions(context: ssl.SSLContext, settings: TlsSettings) -> None:
    unknown = [name for name in settings.protocols if name not in _VERSIONS]
    if unknown:
        raise StoreProblem(
            f"ssl.enabled.protocols: {', '.join(unknown)} is not supported; {', '.join(_VERSIONS)} are"
        )
    versions = [_VERSIONS[name] for name in settings.protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    older = [openssl_name(name) for name in settings.ciphers if "_WITH_" in name]
    if older:
        try:
            context.set_ciphers(":".join(older))
        except ssl.SSLError:
            raise StoreProblem(
                f"ssl.cipher.suites={','.join(settings.ciphers)}: OpenSSL supports none of them"
            ) from None
    elif settings.ciphers:
        # All suites are of TLS 1.3.
        context.minimum_version = ssl.TLSVersion.TLSv1_3


def openssl_name(suite: str) -> str:
    """OpenSSL's name of a cipher suite: ECDHE-RSA-AES128-GCM-SHA256 for
    TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256."""
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    cipher = cipher.replace("AES_128", "AES128").replace("AES_256", "AES256").replace("_CBC", "")
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    words = [cipher] if exchange == "RSA" else [exchange, cipher]
    return "-".join(words).replace("_", "-")


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())
