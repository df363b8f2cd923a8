"""Key stores and trust stores of Kafka's settings: PEM in a file or inline, and PKCS12 files.

Called by `tls`, which makes SSL contexts of them. PKCS12 is read by `cryptography` (the extra `security`).
Java's JKS format is not read: its only reader in Python is not maintained, and `keytool` converts such a file
to PKCS12 with one command, which the error names. As in Java, a PKCS12 file is accepted as a store of type
JKS."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

_PEM: Final = re.compile(r"-+BEGIN\s+([A-Z0-9 ]+?)-+\s*([A-Za-z0-9+/=\s:,\-]+?)-+END\s+\1-+")
_JKS_MAGIC: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
PEM, PKCS12, JKS = "PEM", "PKCS12", "JKS"


class StoreProblem(ValueError):
    """A key or trust store that cannot be used; the message names the setting and the reason."""


class KeyStore(NamedTuple):
    """A private key and its certificates, the broker's own first, in PEM."""

    key: str
    chain: str
    password: str | None = None
    """The password of an encrypted key."""


def key_store(
    kind: str,
    location: str | None,
    store_password: str | None,
    key_password: str | None,
    chain: str | None,
    key: str | None,
) -> KeyStore | None:
    """The key store of these settings (ssl.keystore.*, ssl.key.password); None without one. Raises
    StoreProblem."""
    if kind.upper() == PEM:
        if location is None and chain is None and key is None:
            return None
        if location is not None:
            if chain is not None or key is not None:
                raise StoreProblem("ssl.keystore.location: cannot be given beside ssl.keystore.key")
            chain = key = _read(location, "ssl.keystore.location").decode("utf-8", "replace")
        elif chain is None or key is None:
            missing = "ssl.keystore.key" if key is None else "ssl.keystore.certificate.chain"
            raise StoreProblem(f"{missing}: needed for a key store of type PEM")
        assert chain is not None
        assert key is not None
        return KeyStore(
            _private_key(key), _certificates(chain, "ssl.keystore.certificate.chain"), key_password
        )
    if chain is not None or key is not None:
        raise StoreProblem(f"ssl.keystore.key: needs ssl.keystore.type=PEM, not {kind}")
    if location is None:
        return None
    data = _read(location, "ssl.keystore.location")
    _check_is_pkcs12(data, kind, location, "ssl.keystore.location")
    if store_password is None:
        raise StoreProblem("ssl.keystore.password: needed for a PKCS12 key store")
    return _pkcs12_key(data, location, store_password)


def trusted(kind: str, location: str | None, password: str | None, inline: str | None) -> str | None:
    """The trusted certificates (ssl.truststore.*) in PEM; None: those that the system trusts. Raises
    StoreProblem."""
    if kind.upper() == PEM:
        if location is not None:
            if inline is not None:
                raise StoreProblem(
                    "ssl.truststore.location: cannot be given beside ssl.truststore.certificates"
                )
            inline = _read(location, "ssl.truststore.location").decode("utf-8", "replace")
        return None if inline is None else _certificates(inline, "ssl.truststore.certificates")
    if inline is not None:
        raise StoreProblem(f"ssl.truststore.certificates: needs ssl.truststore.type=PEM, not {kind}")
    if location is None:
        return None
    data = _read(location, "ssl.truststore.location")
    _check_is_pkcs12(data, kind, location, "ssl.truststore.location")
    return _pkcs12_certificates(data, location, password)


def _read(location: str, setting: str) -> bytes:
    try:
        return Path(location).read_bytes()
    except OSError as problem:
        raise StoreProblem(f"{setting}={location}: cannot be read: {problem.strerror}") from None


def _blocks(text: str) -> list[tuple[str, str]]:
    """Kind and PEM text of each block; a properties file may have removed the line breaks."""
    found = []
    for kind, body in _PEM.findall(text):
        headers, _, rest = body.rpartition("\n\n") if ":" in body else ("", "", body)
        lines = re.findall(".{1,64}", re.sub(r"\s+", "", rest))
        head = [headers.strip() + "\n"] if headers else []
        found.append((kind, "\n".join([f"-----BEGIN {kind}-----", *head, *lines, f"-----END {kind}-----\n"])))
    return found


def _private_key(text: str) -> str:
    keys = [block for kind, block in _blocks(text) if kind.endswith("PRIVATE KEY")]
    if len(keys) != 1:
        raise StoreProblem(f"ssl.keystore.key: {len(keys)} private keys in PEM, one is needed")
    return keys[0]


def _certificates(text: str, setting: str) -> str:
    found = [block for kind, block in _blocks(text) if kind.endswith("CERTIFICATE")]
    if not found:
        raise StoreProblem(f"{setting}: no certificate in PEM")
    return "".join(found)


def _check_is_pkcs12(data: bytes, kind: str, location: str, setting: str) -> None:
    if kind.upper() not in (PKCS12, JKS):
        raise StoreProblem(f"{setting}={location}: stores of type {kind} are not read; PEM and PKCS12 are")
    if data[:4] in _JKS_MAGIC:
        raise StoreProblem(
            f"{setting}={location}: JKS is not supported; convert the store to PKCS12: keytool "
            f"-importkeystore -srckeystore {location} -destkeystore {location}.p12 -deststoretype PKCS12"
        )


def _pkcs12_key(data: bytes, location: str, password: str) -> KeyStore:
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.serialization import pkcs12

    try:
        store = pkcs12.load_pkcs12(data, password.encode())
    except ValueError as problem:
        raise StoreProblem(f"ssl.keystore.location={location}: cannot be opened: {problem}") from None
    if store.key is None or store.cert is None:
        raise StoreProblem(f"ssl.keystore.location={location}: no private key with a certificate in it")
    pem = s.Encoding.PEM
    key = store.key.private_bytes(pem, s.PrivateFormat.PKCS8, s.NoEncryption())
    chain = [store.cert, *store.additional_certs]
    return KeyStore(key.decode(), "".join(c.certificate.public_bytes(pem).decode() for c in chain))


def _pkcs12_certificates(data: bytes, location: str, password: str | None) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, pkcs12

    try:
        store = pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except ValueError as problem:
        raise StoreProblem(f"ssl.truststore.location={location}: not opened: {problem}") from None
    found = [*([] if store.cert is None else [store.cert]), *store.additional_certs]
    if not found:
        raise StoreProblem(f"ssl.truststore.location={location}: no certificate in it")
    return "".join(c.certificate.public_bytes(Encoding.PEM).decode() for c in found)
