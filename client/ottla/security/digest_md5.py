"""SASL DIGEST-MD5 (RFC 2831) on the client's side: login to ZooKeeper with a password.

Called by the connection to ZooKeeper. Only authentication (`qop=auth`), which is what ZooKeeper supports; TLS
protects the rest of the session. The library that kazoo uses for it has had no release since 2019, and the
mechanism is two hashes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Generator, Mapping
from typing import Final

from ottla.environment import environment
from ottla.security.mechanisms import SaslFailed

SERVICE, HOST = "zookeeper", "zk-sasl-md5"
"""The service, and the host and realm, of all ZooKeeper servers and clients."""

_VALUE: Final = r""""((?:\\.|[^"\\])*)"|([^\s,"]+)"""
_DIRECTIVE: Final = re.compile(rf"\s*([a-zA-Z-]+)\s*=\s*(?:{_VALUE})\s*(?:,|$)", re.DOTALL)
_COUNT: Final = "00000001"


def log_in(
    user: str, password: str, *, uri: str = f"{SERVICE}/{HOST}", nonce: str | None = None
) -> Generator[bytes, bytes | None, None]:
    """The client's side: yields a token to send, and is sent the answer; when it returns, the server has
    accepted the login, and has proved that it has the password. Raises SaslFailed. `nonce` is for tests."""
    challenge = yield b""
    if not challenge:
        raise SaslFailed("the server does not support DIGEST-MD5: its JAAS file has no section for it")
    directives = _directives(challenge)
    client_nonce = nonce or environment.get().random.randbytes(24).hex()
    realm = directives.get("realm", HOST)
    if "nonce" not in directives or "auth" not in directives.get("qop", "auth").split(","):
        raise SaslFailed("the server requires DIGEST-MD5 with another qop than auth")
    secret = _secret(user, realm, password) + f":{directives['nonce']}:{client_nonce}".encode()
    proof = _proof(secret, directives["nonce"], client_nonce, f"AUTHENTICATE:{uri}")
    answer = (
        f'charset=utf-8,username="{_escaped(user)}",realm="{_escaped(realm)}",nonce="{_escaped(directives["nonce"])}",'
        f'nc={_COUNT},cnonce="{client_nonce}",digest-uri="{uri}",response={proof},qop=auth'
    )
    last = yield answer.encode()
    if _directives(last or b"").get("rspauth") != _proof(
        secret, directives["nonce"], client_nonce, f":{uri}"
    ):
        raise SaslFailed("the server has not proved that it has the password")


def _directives(text: bytes) -> Mapping[str, str]:
    found = _DIRECTIVE.findall(text.decode("utf-8", "replace"))
    return {name.lower(): re.sub(r"\\(.)", r"\1", quoted) or word for name, quoted, word in found}


def _escaped(text: str) -> str:
    return re.sub(r'(["\\])', r"\\\1", text)


def _secret(user: str, realm: str, password: str) -> bytes:
    """The hash of user, realm and password; each is encoded in Latin-1 if possible."""
    return _md5(b":".join(map(_latin1_or_utf8, (user, realm, password)))).digest()


def _latin1_or_utf8(text: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def _proof(secret: bytes, nonce: str, cnonce: str, action: str) -> str:
    parts = (_md5(secret).hexdigest(), nonce, _COUNT, cnonce, "auth", _md5(action.encode()).hexdigest())
    return _md5(":".join(parts).encode()).hexdigest()


def _md5(data: bytes) -> hashlib._Hash:
    return hashlib.md5(data, usedforsecurity=False)
